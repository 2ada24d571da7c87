"""The report stands alone, escapes whatever it is given, and draws what the diff found."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from compared_steps import ROWS, compared, one_step
from markupsafe import Markup
from msgspec.structs import replace

from pptrace.measured import diff_document as tables
from pptrace.measured import diff_drawing
from pptrace.measured.diff import OrderShare
from pptrace.measured.diff_document import Diff, diff_document
from pptrace.report.document import page_of, text_of
from pptrace.report.numbers import Figure, Sides, ms
from pptrace.report.svg import element

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.measured.diff import StepDiff

HOSTILE = ("<script>alert(1)</script>", "\"><img src=x onerror='alert(2)'>&lt;b&gt;")
VOID = {"meta", "rect", "line"}


class Read(HTMLParser):
    """Elements, attributes and texts; every element is closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.stack: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def page(found: StepDiff, top: int = 10, notes: Sequence[str] = ()) -> str:
    return page_of(diff_document(found, top, notes))


def drawings(found: StepDiff) -> dict[str, ET.Element]:
    shown = re.findall(r"<svg.*?</svg>", page(found), re.DOTALL)
    parsed = [ET.fromstring(item) for item in shown]  # noqa: S314 - our own drawing
    return {item.attrib["aria-label"]: item for item in parsed}


def bars(drawing: ET.Element) -> dict[str, tuple[float, float]]:
    """Return where each bar that has a title begins, and its width."""
    result = {}
    for group in drawing.iter("g"):
        title, rectangle = group.find("title"), group.find("rect")
        assert title is not None
        assert rectangle is not None
        result[str(title.text)] = (float(rectangle.attrib["x"]), float(rectangle.attrib["width"]))
    return result


def test_nothing_in_it_is_fetched_or_run() -> None:
    shown = page(compared()[0])
    read = Read(shown)

    assert set(read.tags) & {"script", "link", "img", "iframe", "object", "base", "form"} == set()
    assert [name for name, _ in read.attributes if name.startswith("on") or name in {"src", "href"}] == []
    assert re.findall(r"https?:|url\(|@import", shown) == []
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in read.attributes


def test_hostile_names_and_notes_are_words() -> None:
    difference, _ = compared(names=HOSTILE)

    read = Read(page(difference, notes=HOSTILE))

    assert "script" not in read.tags
    assert "img" not in read.tags
    assert [name for name, _ in read.attributes if name.startswith("on")] == []
    for text in HOSTILE:
        assert read.words.count(text) == 4  # title, heading, lead, notes


def test_attributes_are_escaped_and_markup_is_not_escaped_twice() -> None:
    inner = element("b", "1 < 2", title='say "hi" & <go>')

    assert inner == '<b title="say &#34;hi&#34; &amp; &lt;go&gt;">1 &lt; 2</b>'
    assert element("p", inner, "<") == f"<p>{inner}&lt;</p>"
    assert isinstance(inner, Markup)


def test_the_same_diff_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        difference, sides = compared()
        Diff(difference, sides, ("a note",)).save(tmp_path / name)

    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_it_is_readable_in_the_light_in_the_dark_and_on_paper() -> None:
    shown = page(compared()[0])

    assert "@media screen and (prefers-color-scheme:dark)" in shown
    assert "@media print" in shown


def test_the_bars_of_the_ladder_lead_from_one_step_to_the_other() -> None:
    difference, _ = compared()

    shown = bars(drawings(difference)["ladder"])

    reached = sum(shown[f"first step: {ms(difference.step_ns.first)}"])
    for rung in difference.ladder:
        if not rung.change_ns.value:
            continue  # named below the bars
        x, width = shown[f"{rung.name}: {ms(rung.change_ns, sign=True)}"]
        longer = rung.change_ns.value
        assert (x if longer >= 0 else x + width) == pytest.approx(reached, abs=0.02)
        reached += width if longer > 0 else -width if longer < 0 else 0
    assert reached == pytest.approx(sum(shown[f"second step: {ms(difference.step_ns.second)}"]), abs=0.05)


def test_the_parts_fill_bars_as_long_as_the_steps() -> None:
    difference, _ = compared()
    drawing = drawings(difference)["parts"]

    lengths: dict[str, float] = {}
    for rectangle in drawing.findall("g/rect"):
        y = rectangle.attrib["y"]
        lengths[y] = lengths.get(y, 0.0) + float(rectangle.attrib["width"])

    first, second = lengths.values()
    assert second / first == pytest.approx(
        difference.step_ns.second.value / difference.step_ns.first.value, rel=1e-3
    )


def test_every_ratio_is_in_the_heat_map_and_a_slow_stage_is_redder() -> None:
    shown = page(compared()[0])
    cells = re.findall(
        r'<td class="shaded" title="(\w) of stage (\d)[^"]*" style="background:rgba\(([^)]*)\)">([\d.]+)</td>',
        shown,
    )

    assert {(kind, stage): ratio for kind, stage, _, ratio in cells} == {
        (kind, str(stage)): "1.250" if stage == 1 else "1.000" for kind in "FB" for stage in range(3)
    }
    opacity = {stage: float(color.split(",")[-1]) for _, stage, color, _ in cells}
    assert opacity["1"] > 0.5
    assert opacity["0"] == opacity["2"] == 0


def test_every_action_of_both_steps_is_drawn_where_it_ran() -> None:
    difference, _ = compared()

    shown = bars(drawings(difference)["both steps by rank and time"])

    long = difference.steps[1].span_ns
    for step in difference.steps:
        begin = int(step.start_ns.min())
        for index in range(len(step)):
            start, end = int(step.start_ns[index]) - begin, int(step.end_ns[index]) - begin
            kind = "FB"[int(step.kind[index])]
            title = f"{step.stage[index]}{kind}{step.microbatch[index]}, {ms(start)} to {ms(end)}"
            x, width = shown[title]
            assert x == pytest.approx(66 + start / long * 942, abs=0.02)
            assert width == pytest.approx((end - start) / long * 942 - 0.5, abs=0.02)


def test_what_is_too_much_to_draw_is_thinned_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    difference, _ = compared()
    monkeypatch.setattr(diff_drawing, "_MOST", 10)
    monkeypatch.setattr(diff_drawing, "_FEWEST_RANKS", 2)

    picture, note = diff_drawing.strips(difference)

    drawn = picture.draw()
    assert note.startswith(" Drawn: 2 of 3 ranks, the first ")
    assert "Drawn" not in text_of(diff_document(difference))
    assert "rank 1<" not in drawn
    assert 8 <= drawn.count("<title>") <= 14


def test_where_nothing_is_drawn_the_report_says_why() -> None:
    difference, _ = compared(second=one_step([["0F0", "0B0"], ["1F0", "1B0"]]))

    read = Read(page(difference))

    assert (
        "not computed: the steps have 3 ranks, 3 stages, 4 microbatches and 2 ranks, 2 stages, 1 microbatches"
        in read.words
    )


def test_a_step_against_itself_says_that_nothing_differs() -> None:
    step = one_step()

    words = Read(page(compared(step, step)[0])).words

    assert "equal within 2.0%" in words
    assert "no difference: 24 actions in the same order, 16 messages, all times equal" in words


def test_it_begins_with_who_is_to_blame_and_folds_what_is_unchanged() -> None:
    difference, _ = compared()  # stage 1 takes a quarter longer
    shown = page(difference)
    titles = re.findall(r"<h2>(.*?)</h2>", shown)
    assert titles[:2] == ["slow or fast ranks, stages and links, and outliers", "first difference"]
    assert "Largest slowdown, a slow rank: rank 1" in shown

    times = shown.partition("<h2>times of actions by stage and kind</h2>")[2].partition("</section>")[0]
    changed, _, rest = times.partition("<details><summary>4 unchanged</summary>")
    assert set(re.findall(r"<tr><td class=\"word\">(\d[FB])</td>", changed)) == {"1F", "1B"}
    assert set(re.findall(r"<tr><td class=\"word\">(\d[FB])</td>", rest)) == {"0F", "0B", "2F", "2B"}


def test_long_steps_are_drawn_wide_enough_for_their_microbatches_numbers_and_tell_chunks_apart() -> None:
    microbatches = range(24)
    rows = [
        [*(f"{stage}F{m}" for stage in stages for m in microbatches),
         *(f"{stage}B{m}" for stage in reversed(stages) for m in microbatches)]
        for stages in ((0, 2), (1, 3))
    ]  # fmt: skip
    difference, _ = compared(one_step(rows), one_step(rows, slow={1: 1.25}))
    drawing = drawings(difference)["both steps by rank and time"]

    labels = [element.text for element in drawing.iter("text") if element.get("class") == "on small"]
    assert Counter(labels) == {str(m): 2 * 2 * 4 for m in microbatches}  # sides, kinds, stages
    chunks: Counter[tuple[str, bool]] = Counter()
    for part in drawing.iter("g"):
        action, class_ = part[0].text, part[1].get("class", "")
        chunks[action[0], "k4" in class_.split()] += 1
    assert set(chunks) == {("0", False), ("1", False), ("2", True), ("3", True)}


def test_the_order_the_divergence_and_the_culprit_are_reported() -> None:
    other = [ROWS[0], ROWS[1], ["2F0", "2F1", "2B0", "2B1", "2F2", "2B2", "2F3", "2B3"]]
    difference, _ = compared(second=one_step(other, slow={0: 1.5}))

    words = Read(page(difference, top=3)).words

    assert "rank 0 (its one stage, 0)" in words
    assert "0F0 ends 5.000 ms late: +5.000 ms from its duration" in words
    assert f"largest changes, of {len(difference.changes)} changed actions" in words
    assert "rank 22B02F11" in words  # a row of the table: rank 2 has 2B0, then 2F1, behind 1


def test_many_ways_and_orders_are_reported_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MOST", 1)
    other = [[f"{rank}{kind}{microbatch}" for kind in "FB" for microbatch in range(4)] for rank in range(3)]
    difference, _ = compared(second=one_step(other, rate_kbps=500_000))

    words = Read(page(difference)).words

    assert "and 3 further links with smaller changes" in words
    assert "and 2 further ranks" in words


def test_kinds_links_and_effects_are_listed_by_how_much_they_changed_either_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    findings = compared(second=one_step(slow={0: 1.1, 1: 0.5}))[0]
    (kinds,) = tables.kinds(findings)
    assert [row[0] for row in kinds.rows[:4]] == ["1B", "1F", "0B", "0F"]

    monkeypatch.setattr(tables, "_MOST", 1)
    changes = dict(zip(findings.links, (1e6, -5e6), strict=False))
    links = {
        key: replace(findings.links[key], median_ns=Sides(Figure(9e6), Figure(9e6 + change)))
        for key, change in changes.items()
    }
    (messages, *_) = tables.messages(replace(findings, links=links))
    source, target = list(changes)[1]
    assert messages.rows[0][0] == f"{source} to {target}"

    share = OrderShare(order_ns=Figure(1e6), times_ns=Figure(-5e6), rest_ns=Figure(0.0))
    (effects,) = tables.order_share(replace(findings, order_share=share))
    assert [row[0].split()[0] for row in effects.rows] == ["times", "the"]
