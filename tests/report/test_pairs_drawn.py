"""Drawings in text and SVG distinguish overlapped pairs and chunks."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from msgspec.structs import replace

from pptrace.report.table_drawing import (
    color,
    cropped,
    draw,
    legend,
    note,
    pairs_of,
    plain_lines,
    rich_lines,
    svg_text,
    window,
)
from pptrace.steps.kinds import Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule

ROWS = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "(1F2;1B1)OVERLAP_F_B", "1B2"]]
PAIRS = replace(Schedule.from_rows(ROWS), interleave={(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)})
V = Schedule.from_rows([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]], Placement.v_shaped(2, 1))


def test_text_joins_members_of_a_pair() -> None:
    drawing = draw(PAIRS)

    assert plain_lines(drawing, window(drawing, 120))[1] == "rank 1  .  F0 F1&B0=== F2&B1=== B2=== .  ."
    assert rich_lines(drawing, window(drawing, 120))[1].plain.rstrip().count("&") == 2
    assert note(drawing) == "overlapped pairs are framed; F&B computes in order F B B F B B"


def test_members_compute_by_the_turns_of_the_schedule() -> None:
    first, _ = pairs_of(draw(PAIRS))

    assert (first.start, first.length) == (2, 3)
    assert first.turns == (((2.0, 0.5), (3.5, 0.5)), ((2.5, 0.5), (3.0, 0.5), (4.0, 0.5), (4.5, 0.5)))


def test_without_an_order_members_are_drawn_when_they_run() -> None:
    drawing = draw(replace(PAIRS, interleave={}))

    assert pairs_of(drawing)[0].turns == (((2.0, 1.0),), ((3.0, 2.0),))
    assert note(drawing) == "overlapped pairs are framed"


def test_a_pair_that_is_cut_is_drawn_as_cells() -> None:
    cut = cropped(draw(PAIRS), 0, 6)

    assert [pair.start for pair in pairs_of(cut)] == [2]
    assert sum(cell.pair >= 0 for cell in cut.cells) == 3


def drawn(schedule: Schedule) -> ET.Element:
    return ET.fromstring(svg_text(draw(schedule), "pairs"))  # noqa: S314 - our own text


def test_no_pairs_no_note() -> None:
    assert note(draw(V)) == ""


def test_svg_frames_pairs_and_keeps_a_tooltip_per_action() -> None:
    tree = drawn(PAIRS)

    name = "{http://www.w3.org/2000/svg}"
    assert sorted(str(t.text) for t in tree.iter(f"{name}title")) == sorted(
        str(member) for rank in range(2) for action in PAIRS[rank] for member in action.sub_actions or (action,)
    )
    assert sum(rect.get("fill") == "none" for rect in tree.iter(f"{name}rect")) == 2
    assert any("in order F B B F B B" in str(t.text) for t in tree.iter(f"{name}text"))


def test_copies_lie_over_pairs_in_svg() -> None:
    row = ["0F0", "0F1", "0OFFLOAD1", "(0F2;0B0)OVERLAP_F_B", "0RELOAD1", "(0F3;0B2)OVERLAP_F_B", "0B1", "0B3"]
    tree = drawn(Schedule.from_rows([row]))

    parts = [(part.get("height"), part.get("stroke-width")) for part in tree.iter() if part.tag.endswith("rect")]
    frames = [at for at, (_, line) in enumerate(parts) if line == "1.4"]
    bars = [at for at, (height, _) in enumerate(parts) if height == "4"]
    assert len(frames) == 2
    assert len(bars) == 2
    assert max(frames) < min(bars)


def test_a_long_note_of_pairs_is_wrapped() -> None:
    kinds: dict[tuple[Kind, ...], tuple[int, ...]] = {(Kind.F, Kind.B): (0, 1) * 40}
    tree = drawn(replace(PAIRS, interleave=kinds))

    width = float(str(tree.get("width")))
    lines = [str(part.text) for part in tree.iter() if part.tag.endswith("text") and "F B F B" in str(part.text)]
    assert len(lines) > 1
    assert all(64 + 6.5 * len(line) <= width for line in lines)


def test_chunks_of_a_v_are_distinguished() -> None:
    cells = {str(cell.action): cell for cell in draw(V).cells}

    assert [cells[name].chunk for name in ("0F0", "1F0", "2F0", "3F0")] == [0, 0, 1, 1]
    assert color(cells["0F0"]) == color(cells["1F0"]) != color(cells["3F0"])
    assert "F forward, odd chunk" in legend(cells.values())


def test_directions_are_no_chunks() -> None:
    both = Schedule.from_rows([["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]])

    assert {cell.chunk for cell in draw(both).cells} == {0}
