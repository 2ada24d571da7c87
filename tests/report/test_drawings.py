from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from pptrace.errors import DeadlockError
from pptrace.report import svg
from pptrace.report.svg import document, element, write_drawing
from pptrace.report.table_drawing import draw, plain_lines, rich_lines, svg_text, window
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from pathlib import Path

GPIPE = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
SWAPPED = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1B0", "1F0", "1F1", "1B1"]])
STUCK = Schedule.from_rows([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])


def test_every_action_stands_in_its_slots() -> None:
    drawing = draw(GPIPE)

    places = {str(cell.action): (cell.rank, cell.start, cell.length) for cell in drawing.cells}
    assert places == {
        "0F0": (0, 0, 1), "0F1": (0, 1, 1), "1F0": (1, 1, 1), "1F1": (1, 2, 1),
        "1B0": (1, 3, 2), "0B0": (0, 5, 2), "1B1": (1, 5, 2), "0B1": (0, 7, 2),
    }  # fmt: skip
    assert drawing.length == 9
    assert drawing.bubble == Fraction(1, 3)


def test_slots_per_kind_are_the_callers() -> None:
    assert draw(GPIPE, {Kind.F: 2, Kind.B: 2}).length == 12


def test_messages_take_a_slot_each_on_both_ranks() -> None:
    drawing = draw(GPIPE, messages=True)

    kinds = [cell.action.kind.name for cell in drawing.cells]
    assert kinds.count("SEND_F") == kinds.count("RECV_F") == kinds.count("SEND_B") == kinds.count("RECV_B") == 2


def test_drawn_messages_leave_the_bubble_of_the_schedule_as_it_is() -> None:
    drawing = draw(GPIPE, messages=True)

    assert (drawing.step_slots, drawing.bubble) == (9, Fraction(1, 3))
    assert drawing.length == max(cell.start + cell.length for cell in drawing.cells) == 13


def test_a_table_of_text_has_a_line_per_rank_that_fits() -> None:
    drawing = draw(GPIPE)

    assert plain_lines(drawing, window(drawing, 80)) == [
        "rank 0  F0 F1 .  .  .  B0=== B1===",
        "rank 1  .  F0 F1 B0=== B1=== .  .",
    ]
    narrow = window(drawing, 20)
    assert max(map(len, plain_lines(drawing, narrow))) <= 20
    assert narrow.hidden == 9 - 4


def test_a_window_starts_where_it_is_asked_to() -> None:
    drawing = draw(GPIPE)

    assert plain_lines(drawing, window(drawing, 80, 5, 8))[0] == "rank 0  B0=== B1"


def test_colors_tell_kind_and_direction() -> None:
    both = Schedule.from_rows([["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]])

    styles = {str(span.style) for line in rich_lines(draw(both), window(draw(both), 80)) for span in line.spans}
    assert len(styles) == 4


@pytest.mark.parametrize(("schedule", "marked"), [(SWAPPED, ["1B0"]), (STUCK, ["0B0", "0F1", "1F1", "1B0"])])
def test_what_is_wrong_is_marked_and_the_rest_still_drawn(schedule: Schedule, marked: list[str]) -> None:
    drawing = draw(schedule)

    assert drawing.error is not None
    assert drawing.bubble is None
    assert sorted(str(cell.action) for cell in drawing.cells if cell.marked) == sorted(marked)
    assert len(drawing.cells) == len(schedule)
    assert "[" in "".join(plain_lines(drawing, window(drawing, 200)))


def test_a_deadlock_names_the_missing_dependency() -> None:
    error = draw(STUCK).error

    assert isinstance(error, DeadlockError)
    assert "rank 0: 0F1" in str(error)


def test_svg_is_well_formed_with_a_tooltip_per_action() -> None:
    tree = ET.fromstring(svg_text(draw(SWAPPED), "a <title> & more"))  # noqa: S314 - our own text

    name = "{http://www.w3.org/2000/svg}"
    assert [t.text for t in tree.iter(f"{name}title")].count("1B0") == 1
    texts = [t.text for t in tree.iter(f"{name}text")]
    assert "a <title> & more" in texts
    assert any("comes before" in (text or "") for text in texts)


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF-")])
def test_svg_is_converted_to_the_same_bytes_twice(suffix: str, begins: bytes, tmp_path: Path) -> None:
    paths = tmp_path / "first", tmp_path / "second"

    for path in paths:
        write_drawing(path, suffix, svg_text(draw(GPIPE), "gpipe"))

    assert paths[0].read_bytes().startswith(begins)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_converted_text_is_visible(tmp_path: Path) -> None:
    from matplotlib.image import imread

    label = element("text", "step \N{RIGHTWARDS ARROW}", x=2, y=15)

    for name, parts in (("empty.png", ()), ("text.png", (label,))):
        write_drawing(tmp_path / name, ".png", document(60, 20, "#000000", *parts))

    assert imread(tmp_path / "empty.png").min() == 1
    assert imread(tmp_path / "text.png")[..., 0].min() < 0.2


def test_large_drawings_are_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.image import imread

    monkeypatch.setattr(svg, "_MOST_PIXELS", 5000)

    write_drawing(tmp_path / "small.png", ".png", document(200, 100, "#000000"))

    assert imread(tmp_path / "small.png").shape[:2] == (50, 100)
