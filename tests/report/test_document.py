"""A document's text fits the terminal and is never cut, its values are plain, its page shows what text shows."""

from __future__ import annotations

import doctest
import math
import re
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from markupsafe import Markup
from msgspec import Struct

from pptrace.cli.main import cli
from pptrace.measured import operations_diff
from pptrace.report import document as documents
from pptrace.report import numbers, svg
from pptrace.report.document import (
    NO_BREAK,
    Cell,
    Code,
    Column,
    Document,
    Line,
    Picture,
    Section,
    Table,
    markdown_of,
    page_of,
    plain,
    table_of,
    text_of,
)
from pptrace.report.numbers import Figure, Sides
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

NAMES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "at::native::vectorized_elementwise_kernel<4, add<float> >" * 4,
)
WIDE = Table(head=("", "how many", "in sum"), rows=tuple((name, "12", "1.000 ms") for name in NAMES))
STAGES = Table(
    head=("", *map(str, range(40))), rows=(("F", *(Cell(text=f"1.{at:03}") for at in range(40))),), splits=True
)
SENTENCE = (
    "peak 131 GiB of 80 GiB is more than any device of this cluster has, so that some of it must go elsewhere"
)


def document(*blocks: Line | Table | Picture) -> Document:
    return Document(title="a", lead=(Line(text=SENTENCE),), sections=(Section(title="one", blocks=blocks),))


@pytest.mark.parametrize("width", [45, 60, 100, 250, 1000])
def test_lines_fit_the_terminal_and_nothing_is_cut(width: int) -> None:
    lines = text_of(document(WIDE), width).splitlines()

    assert max(map(len, lines)) <= width
    together = "".join("".join(line.split()) for line in lines)
    assert "".join(SENTENCE.split()) in together
    assert sum(line.count("1.000 ms") for line in lines) == 2
    shown = "".join(
        line.split("  ")[1].replace(" ", "") for line in lines if line.startswith("  ") and line[2] != " "
    )
    for name in NAMES:
        assert name.replace(" ", "") in shown


def test_without_a_terminal_lines_are_as_long_as_they_are() -> None:
    lines = str(document(WIDE)).splitlines()

    assert lines[0] == SENTENCE
    assert lines[-1] == f"  {NAMES[1]}        12  1.000 ms"


@pytest.mark.parametrize(("width", "tables"), [(None, 3), (60, 5), (2000, 1)])
def test_columns_that_do_not_fit_stand_below_the_others(width: int | None, tables: int) -> None:
    lines = text_of(document(STAGES), width).split("one\n")[1].splitlines()

    assert len(lines) == 2 * tables
    assert [cell for line in lines[1::2] for cell in line.split()[1:]] == [f"1.{at:03}" for at in range(40)]
    assert max(map(len, lines)) <= (width or 122)


def test_a_table_that_cannot_be_narrower_keeps_its_figures() -> None:
    figures = Table(rows=(("rank 0", *("123,456.789 ±0.001 ms",) * 4),))

    assert text_of(document(figures), 30).splitlines()[-1].count("123,456.789 ±0.001 ms") == 4


def test_words_of_a_table_that_splits_wrap_outside_terminals_and_the_last_column_keeps_long_ones() -> None:
    command = f"simulate --set model.layout={'E' * 130}"
    table = Table(rows=(("pptrace", f"{'--tp 2 ' * 20}{command}"), ("vp", "4")), words=2, splits=True)

    lines = text_of(Document(title="a", lead=(table,))).splitlines()

    assert lines == [
        f"pptrace  {('--tp 2 ' * 16).rstrip()}",
        f"         {'--tp 2 ' * 4}simulate --set",
        f"         model.layout={'E' * 130}",
        "vp       4",
    ]


def test_no_line_is_wrapped_at_a_no_break_space() -> None:
    parts = ", ".join(f"{cause}{NO_BREAK}1.5%" for cause in ("fill", "drain", "transfer"))
    document = Document(title="a", lead=(Table(rows=(("idle", parts),), words=2), f"  {parts}"))

    assert text_of(document, 27).splitlines() == [
        "idle  fill 1.5%,",
        "      drain 1.5%,",
        "      transfer 1.5%",
        "  fill 1.5%, drain 1.5%,",
        "  transfer 1.5%",
    ]


@pytest.mark.parametrize("lead", [(), (Table(rows=()),)])
def test_without_a_lead_the_first_section_with_contents_is_first(lead: tuple[Table, ...]) -> None:
    sections = tuple(Section(title=title, blocks=blocks) for title, blocks in (("one", lead), ("two", ("b",))))

    assert text_of(Document(title="a", lead=lead, sections=sections, notes=("c",))) == "two\n  b\nnote: c"


def test_marks_stand_behind_their_column() -> None:
    rows = (("a", "+1.000 ms ~", "1"), ("b", "+20.000 ms", "2"))

    assert text_of(document(Table(rows=rows))).splitlines()[-2:] == [
        "  a   +1.000 ms ~  1",
        "  b  +20.000 ms    2",
    ]


def test_text_shows_a_table_for_a_picture_and_leaves_out_what_is_only_drawn() -> None:
    drawn = Picture(draw=lambda: Markup("<svg></svg>"))
    both = Picture(draw=drawn.draw, keys=(("f", "forward"),), instead=Table(rows=(("compute", "1 ms"),)))
    text, page = text_of(document(both)), page_of(document(both))

    assert text.splitlines()[2:] == ["one", "  compute  1 ms"]
    assert "one" not in text_of(document(drawn)).split()[-1:]
    assert "<svg></svg>" in page
    assert '<i class="key f"></i>forward' in page
    assert page.index('class="wide pictured"') < page.index(
        "compute"
    )  # for narrow screens, which hide the drawing


def test_a_shade_is_red_for_more_and_green_for_less() -> None:
    page = page_of(document(Table(rows=(("F", Cell(text="2", shade=1.0), Cell(text="0.5", shade=-0.5)),))))

    assert "rgba(196,71,61,0.720)" in page
    assert "rgba(47,143,91,0.360)" in page


def test_markdown_has_tables_fences_lists_and_no_markup_of_names() -> None:
    shown = Table(
        rows=(("a|`b`", "1 ms"), ("<i>", Cell(text="2_ms_", title="more")), ("no figures",)), head=("", "step"),
        unchanged=frozenset({1}), fold="equal",
    )  # fmt: skip
    drawn = Picture(draw=lambda: Markup("<svg></svg>"), instead=Table(rows=(("whole", "3 ms"),)))
    sections = (
        Section(title="last", blocks=(shown, Code(lines=("cat ```a```", "  *")))),
        Section(title="none", blocks=(drawn._replace(instead=None),)),
        Section(title="first", blocks=(drawn,), about="Parts.", priority=1),
    )

    document = Document(title="a*", lead=["", "# x"], sections=sections, notes=("n [1]", "m"), partial="p")

    assert markdown_of(document) == (
        "# a\\*\n\n\\# x\n\n"
        "## first \\*\n\nParts.\n\n|  |  |\n| --- | ---: |\n| whole | 3 ms |\n\n"
        "## last \\*\n\n|  | step |\n| --- | ---: |\n| a\\|\\`b\\` | 1 ms |\n| no figures |  |\n\n"
        "<details><summary>1 equal</summary>\n\n|  | step |\n| --- | ---: |\n| \\<i\\> | 2\\_ms\\_ |\n\n"
        "</details>\n\n"
        "````\ncat ```a```\n  *\n````\n\n"
        "\\* partial data: p\n\n- n \\[1\\]\n- m\n"
    )


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    "words",
    ["simulate llama3-70b-cluster.yaml", "diff plan-1f1b.yaml run-1f1b", "explain run-1f1b"],
)
def test_rows_of_markdown_have_as_many_cells_as_their_heading(words: str, examples: Path, tmp_path: Path) -> None:
    command, *sources = words.split()
    paths = [str(examples / source) for source in sources]

    CliRunner().invoke(cli, [command, *paths, "-o", str(tmp_path / "page.md")], catch_exceptions=False)

    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    tables = [[*rows] for is_table, rows in groupby(lines, key=lambda line: line.startswith("|")) if is_table]
    assert len(tables) > 2
    for heading, rule, *rows in tables:
        assert {*rule} <= {*"| -:"}
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in (heading, rule, *rows)} == {rule.count("|")}


class Row(Struct, frozen=True):
    action: Action
    took_ns: Figure
    both_ns: Sides
    unseen_ns: Figure


def test_values_have_what_is_known_of_a_figure_beside_it() -> None:
    row = Row(
        action=Action(kind=Kind.F, stage=1, microbatch=2), took_ns=Figure(5, 1.5, 3),
        both_ns=Sides(Figure(1), Figure(2, 0.5)), unseen_ns=Figure(math.nan),
    )  # fmt: skip
    expected = {
        "action": "1F2", "took_ns": 5, "took_ns_deviation": 1.5, "took_ns_spread": 3, "both_ns": [1, 2],
        "both_ns_deviation": [None, 0.5], "unseen_ns": None,
    }  # fmt: skip

    one = Document(title="a", lead=(), values={"rows": (row,), "parts_ns": {"idle": Figure(1, 2.0)}})

    assert plain(row) == expected
    assert plain(one) == {"rows": [expected], "parts_ns": {"idle": 1}, "parts_ns_deviation": {"idle": 2.0}}
    assert plain([one, one]) == [plain(one)] * 2


def test_elements_escape_what_is_no_markup() -> None:
    drawn = svg.drawing(10, 2.5, "a < b", svg.rectangle(0, 1.999, 3, 0.5, "row", "1 < 2"), svg.text(1, 2, "<b>"))

    assert drawn == (
        '<svg viewBox="0 0 10 2.5" role="img" aria-label="a &lt; b"><g><title>1 &lt; 2</title>'
        '<rect x="0" y="2" width="3" height="0.5" class="row"/></g>'
        '<text x="1" y="2" class="label" text-anchor="start">&lt;b&gt;</text></svg>'
    )


def test_a_reason_replaces_the_figures_of_a_row() -> None:
    columns = [
        Column("name", ("name",), str, is_words=True), Column("step", ("step_ms",), "{} ms".format, group="time"),
        Column("idle", ("idle",), "{:.0%}".format), Column("memory", ("size",), str, is_shown=False),
    ]  # fmt: skip
    rows = [({"name": "eager", "step_ms": 8, "idle": 0.5}, ""), ({"name": "even"}, "cannot run: 3 is odd")]
    document = Document(title="a", lead=["first", table_of(columns, rows)])

    lines = text_of(document).splitlines()

    assert lines == [
        "first",
        "       time",
        "name   step  idle",
        "eager  8 ms   50%",
        "even   cannot run: 3 is odd",
    ]
    assert "<p>first</p>" in page_of(document)


@pytest.mark.parametrize("module", [documents, operations_diff, numbers, svg])
def test_examples_in_docstrings_say_what_comes_out(module: ModuleType) -> None:
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0
