"""The SVG of a table: narrow where it is long, told in words where it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from pptrace.schedule.table import Schedule
from pptrace.show.label import MARK
from pptrace.show.picture import svg_text
from pptrace.show.slots import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "{http://www.w3.org/2000/svg}"


def svg(rows: list[list[str]]) -> ET.Element:
    return ET.fromstring(svg_text(draw(Schedule.from_rows(rows)), "t"))  # noqa: S314 - our own text


def texts(tree: ET.Element) -> Iterator[tuple[str, dict[str, str]]]:
    return ((element.text or "", element.attrib) for element in tree.iter(f"{NAME}text"))


def long_row(units: int) -> list[list[str]]:
    return [[f"0{kind}{unit}" for unit in range(units) for kind in "FB"]]


def test_a_long_table_is_narrowed_and_its_letters_left_out_where_they_do_not_fit() -> None:
    tree = svg(long_row(1000))

    assert int(tree.attrib["width"]) <= 64 + 6000 + 16
    labels = {text for text, _ in texts(tree)}
    assert "999" not in labels
    assert len(list(tree.iter(f"{NAME}title"))) == 2000


def test_slots_are_numbered_below() -> None:
    numbers = [text for text, style in texts(svg(long_row(8))) if style.get("font-size") == "10"]

    assert numbers == ["0", "5", "10", "15", "20"]


def test_what_is_wrong_is_told_in_lines_that_fit() -> None:
    tree = svg([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])

    lines = [(text, style) for text, style in texts(tree) if style.get("fill") == MARK]
    assert len(lines) > 1
    assert " ".join(text for text, _ in lines).startswith("the schedule deadlocks: rank 0: 0B0 -> rank 1: 1B0")
    assert all(len(text) * 7 <= int(tree.attrib["width"]) for text, _ in lines)
    assert max(int(style["y"]) for _, style in lines) < int(tree.attrib["height"])


def test_a_rank_that_lacks_an_action_is_named_in_the_marks_colour() -> None:
    tree = svg([["0F0", "0B0"], ["1F0"]])

    assert next(text for text, style in texts(tree) if style.get("fill") == MARK) == "rank 1"


def test_cells_at_fault_are_framed_and_lie_on_top() -> None:
    tree = svg([["0B0", "0F0"]])

    boxes = [box for group in tree.iter(f"{NAME}g") for box in group.iter(f"{NAME}rect")]
    assert [box.attrib.get("stroke") == MARK for box in boxes] == [False, True]
