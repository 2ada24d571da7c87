"""The SVG of a table: narrow where it is long, told in words where it is wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from pptrace.report import table_drawing as picture
from pptrace.report.table_drawing import MARK, color, cropped, draw, legend, svg_text
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

NAME = "{http://www.w3.org/2000/svg}"


def svg(rows: list[list[str]]) -> ET.Element:
    return ET.fromstring(svg_text(draw(Schedule.from_rows(rows)), "t"))  # noqa: S314 - our own text


def texts(tree: ET.Element) -> Iterator[tuple[str, dict[str, str]]]:
    return ((element.text or "", element.attrib) for element in tree.iter(f"{NAME}text"))


def long_row(microbatches: int) -> list[list[str]]:
    return [[f"0{kind}{microbatch}" for microbatch in range(microbatches) for kind in "FB"]]


def test_a_long_table_is_narrowed_and_its_letters_left_out_where_they_do_not_fit() -> None:
    tree = svg(long_row(1000))

    assert int(tree.attrib["width"]) <= 64 + 6000 + 16
    labels = {text for text, _ in texts(tree)}
    assert "999" not in labels
    assert len(list(tree.iter(f"{NAME}title"))) == 2000


def test_slots_are_numbered_below() -> None:
    numbers = [text for text, style in texts(svg(long_row(8))) if style.get("font-size") == "10"]

    assert numbers == ["0", "5", "10", "15", "20"]


def test_what_is_wrong_is_reported_in_lines_that_fit() -> None:
    tree = svg([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])

    lines = [(text, style) for text, style in texts(tree) if style.get("fill") == MARK]
    assert len(lines) > 1
    assert " ".join(text for text, _ in lines).startswith("the schedule deadlocks: rank 0: 0B0 -> rank 1: 1B0")
    assert all(len(text) * 7 <= int(tree.attrib["width"]) for text, _ in lines)
    assert max(int(style["y"]) for _, style in lines) < int(tree.attrib["height"])


def test_a_rank_that_lacks_an_action_is_named_in_the_marks_color() -> None:
    tree = svg([["0F0", "0B0"], ["1F0"]])

    assert next(text for text, style in texts(tree) if style.get("fill") == MARK) == "rank 1"


def test_cells_at_fault_are_framed_and_lie_on_top() -> None:
    tree = svg([["0B0", "0F0"]])

    boxes = [box for group in tree.iter(f"{NAME}g") for box in group.iter(f"{NAME}rect")]
    assert [box.attrib.get("stroke") == MARK for box in boxes] == [False, True]


def test_messages_point_away_from_their_sender_and_have_a_legend() -> None:
    drawing = draw(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]), messages=True)
    tree = ET.fromstring(svg_text(drawing, "t"))  # noqa: S314 - our own text

    labels = [text for group in tree.iter(f"{NAME}g") for text, _ in texts(group)]
    assert labels == ["0", "→0", "←0", "0", "←0", "0", "0", "→0"]
    meanings = {text for text, _ in texts(tree)}
    assert meanings >= {"→ ← activations sent, received", "→ ← gradients sent, received"}


def test_the_legend_has_what_the_picture_has() -> None:
    both_ways = [["0F0", "1F1", "1B1", "0I0", "0W0"], ["0F1", "1F0", "1I0", "1W0", "0B1"]]

    assert legend(draw(Schedule.from_rows([["0F0", "0B0"]])).cells) == {
        "F forward": "#9cc3f0",
        "B backward": "#8fd19e",
    }
    assert list(legend(draw(Schedule.from_rows(both_ways)).cells)) == [
        "F forward", "I input gradient", "W weight gradient",
        "F forward, other direction", "B backward, other direction",
    ]  # fmt: skip


def test_a_legend_too_wide_goes_on_below() -> None:
    tree = svg([["0F0", "1F1", "1B1", "0I0", "0W0"], ["0F1", "1F0", "1I0", "1W0", "0B1"]])

    places = [(int(s["x"]), int(s["y"])) for text, s in texts(tree) if text[:2] in {"F ", "I ", "W ", "B "}]
    assert len({y for _, y in places}) > 1
    assert max(x for x, _ in places) < int(tree.attrib["width"])
    assert max(y for _, y in places) < int(tree.attrib["height"])


def test_more_cells_than_anyone_reads_are_bands_that_cover_the_same_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    drawing = draw(Schedule.from_rows(rows))
    monkeypatch.setattr(picture, "_MOST_BOXES", 7)
    tree = ET.fromstring(svg_text(drawing, "t"))  # noqa: S314 - our own text

    bands = {
        (band.attrib["transform"], band.attrib["stroke"]): band.attrib["d"] for band in tree.iter(f"{NAME}path")
    }
    drawn = {
        (place, stroke, slot)
        for (place, stroke), dashes in bands.items()
        for start, end in covered(dashes)
        for slot in range(start, end)
    }
    cells = {
        (f"translate(64 {34 + cell.rank * 26 + 13})scale(26 1)", color(cell), slot)
        for cell in drawing.cells
        for slot in range(cell.start, cell.start + cell.length)
    }
    assert drawn == cells
    assert any("8 actions are too many" in text for text, _ in texts(tree))


def test_among_bands_what_is_wrong_still_has_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_MOST_BOXES", 1)

    boxes = [box for group in svg([["0B0", "0F0"]]).iter(f"{NAME}g") for box in group.iter(f"{NAME}rect")]
    assert [box.attrib["stroke"] for box in boxes] == [MARK]


def test_a_cell_of_a_band_takes_a_few_bytes() -> None:
    assert len(svg_text(draw(Schedule.from_rows(long_row(10_000))), "t")) < 20_000 * 10


def covered(dashes: str) -> Iterator[tuple[int, int]]:
    """Return the spans that a path of horizontal dashes draws."""
    at = 0
    for letter, number in re.findall(r"([hm])(\d+)", dashes):
        if letter == "h":
            yield at, at + int(number)
        at += int(number)


def test_slots_that_are_cut_out_keep_their_numbers() -> None:
    whole = draw(Schedule.from_rows(long_row(8)))
    part = cropped(whole, 4, 11)

    assert (part.first, part.length) == (4, 7)
    assert [(str(cell.action), cell.start, cell.length) for cell in part.cells] == [
        ("0B1", 0, 2), ("0F2", 2, 1), ("0B2", 3, 2), ("0F3", 5, 1), ("0B3", 6, 1),
    ]  # fmt: skip
    numbers = [(t, s["x"]) for t, s in texts(ET.fromstring(svg_text(part, "t"))) if s.get("font-size") == "10"]  # noqa: S314 - our own text
    assert numbers == [("5", "90"), ("10", "220")]


def test_copies_are_thin_bars_along_the_row_in_a_picture() -> None:
    tree = svg([["0F0", "0OFFLOAD0", "0F1", "0RELOAD0", "0B1", "0B0"]])

    bars = {
        str(group.findtext(f"{NAME}title")): group.find(f"{NAME}rect") for group in tree.iter(f"{NAME}g")
        if group.find(f"{NAME}title") is not None
    }  # fmt: skip
    out, back, forward = (bars[name] for name in ("0OFFLOAD0", "0RELOAD0", "0F1"))
    assert out is not None
    assert back is not None
    assert forward is not None
    assert [bar.attrib["height"] for bar in (out, back, forward)] == ["4", "4", "24"]
    # Out beside what follows the forward, at the lower edge; back from where the rank gets to, at the upper.
    assert float(out.attrib["x"]) - 1 == float(forward.attrib["x"])
    assert float(back.attrib["x"]) - 1 == float(forward.attrib["x"]) + float(forward.attrib["width"])
    assert float(back.attrib["y"]) < float(out.attrib["y"])
    assert {"offload to the host", "reload"} <= {text for text, _ in texts(tree)}
