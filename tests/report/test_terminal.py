"""The table as text: wrapped where it is wide, brackets around what is wrong."""

from __future__ import annotations

from pptrace.report.table_drawing import Drawing, copy_lines, draw, plain_lines, rich_lines, windows
from pptrace.steps.schedule import Schedule


def text(drawing: Drawing, width: int = 80, most: int = 100) -> list[list[str]]:
    return [plain_lines(drawing, seen) for seen in windows(drawing, width, 0, drawing.length, most)]


LONG = draw(Schedule.from_rows([[f"0{kind}{microbatch}" for microbatch in range(8) for kind in "FB"]]))


def test_a_wide_table_is_wrapped_and_every_slot_shown_once() -> None:
    seen = windows(LONG, 32, 0, LONG.length, 100)

    assert [(part.first, part.last) for part in seen] == [(0, 8), (8, 16), (16, 24)]
    assert [part.hidden for part in seen] == [16, 8, 0]
    assert text(LONG, 32) == [
        ["rank 0  F0 B0=== F1 B1=== F2 B2"],
        ["rank 0  B2 F3 B3=== F4 B4=== F5"],
        ["rank 0  B5=== F6 B6=== F7 B7==="],
    ]


def test_a_table_takes_no_more_lines_than_it_may_but_its_first_part() -> None:
    assert [part.hidden for part in windows(LONG, 32, 0, LONG.length, 4)] == [16, 8]
    assert [part.hidden for part in windows(LONG, 32, 0, LONG.length, 1)] == [16]


def test_marks_take_no_room() -> None:
    good = draw(Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]))
    bad = draw(Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1B1", "1F1"]]))

    assert text(good)[0][1] == "rank 1  .  F0 F1 B0=== B1=== .  ."
    assert text(bad)[0][1] == "rank 1  .  F0 B0===[B1]== F1 ."


def test_neighbours_that_are_both_wrong_share_a_bracket() -> None:
    stuck = draw(Schedule.from_rows([["1F0", "0F0", "1B0", "0B0"]]))

    assert text(stuck)[0] == ["rank 0 [1F0|0F0]1B0==== 0B0===="]


def test_colors_stand_for_brackets_on_a_terminal() -> None:
    bad = draw(Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1B1"]]))
    line = rich_lines(bad, windows(bad, 80, 0, bad.length, 100)[0])[1]

    assert line.plain.startswith("rank 1! ")
    assert str(line.spans[0].style) == "bold red"


def test_the_stage_is_reported_where_a_rank_holds_several() -> None:
    both = draw(Schedule.from_rows([["0F0", "1F0", "1B0", "0B0"]]))

    assert text(both)[0] == ["rank 0  0F0 1F0 1B0==== 0B0===="]


def test_spans_and_messages_have_names_of_their_own() -> None:
    wide = draw(Schedule.from_rows([["0F0+2", "0I0+2", "0W0+2"], ["1F0+2", "1B0+2"]]), messages=True)

    assert text(wide)[0] == [
        "rank 0  F0-1= >0-1= .  .  .  .  .  .  <0-1= I0-1= W0-1=",
        "rank 1  .  .  <0-1= F0-1= B0-1======= >0-1= .  .  .  .",
    ]


def test_copies_take_no_place_in_a_row_and_a_long_name_has_a_letter() -> None:
    drawing = draw(Schedule.from_rows([["0F0", "0OFFLOAD0", "0F1", "0RELOAD0", "0RECOMPUTE1", "0B1", "0B0"]]))

    assert text(drawing) == [["rank 0  F0 F1 R1 B1=== B0==="]]


def test_copies_have_lines_of_their_own_below_their_rank() -> None:
    row = ["0F0", "0OFFLOAD0", "1F0", "1OFFLOAD0", "1RELOAD0", "0RELOAD0", "1B0", "0B0"]
    drawing = draw(Schedule.from_rows([row, ["2F0", "2B0"]]))

    (seen,) = windows(drawing, 80, 0, drawing.length, 100)

    assert plain_lines(drawing, seen)[0] == "rank 0  0F0 1F0 .   .   .   1B0==== 0B0===="
    assert copy_lines(drawing, seen) == [
        ["  out   .   0:0 1:0 .   .   .   .   .   .", "  in    .   .   1:0+.   .   .   .   .   ."],
        [],
    ]


def test_lines_of_copies_count_among_those_that_a_table_may_take() -> None:
    drawing = draw(Schedule.from_rows([["0F0", "0OFFLOAD0", "0F1", "0RELOAD0", "0B1", "0B0"]]))

    assert len(windows(drawing, 17, 0, drawing.length, 8)) == 2
    assert len(windows(drawing, 17, 0, drawing.length, 7)) == 1
