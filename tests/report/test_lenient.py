"""Actions are placed as the simulation places them where it can, and somewhere in their row where it cannot."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import valid_schedules

from pptrace.report.table_drawing import draw, place_invalid, plain_lines, windows
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence


def lengths(schedule: Schedule) -> list[int]:
    actions = [schedule.action(row) for row in range(len(schedule))]
    return [action.kind.traits.slots * action.span for action in actions]


@given(valid_schedules(pairs=False))
def test_a_valid_schedule_is_placed_as_it_is_simulated(schedule: Schedule) -> None:
    start = place_invalid(schedule, lengths(schedule))

    drawn = [(cell.rank, cell.start, str(cell.action)) for cell in draw(schedule).cells]
    placed = [(schedule.rank_at(row), at, str(schedule.action(row))) for row, at in enumerate(start)]
    assert sorted(placed) == sorted(drawn)


@given(valid_schedules(), st.randoms(use_true_random=False))
def test_whatever_the_rows_every_action_is_placed_once_behind_the_one_before(
    schedule: Schedule, random: Any
) -> None:
    rows = schedule.rows()
    for row in rows:
        random.shuffle(row)
        del row[: random.randint(0, 1)]
    wild = Schedule.from_rows(rows, schedule.placement)
    length = lengths(wild)

    start = place_invalid(wild, length)

    for low, high in pairwise(wild.row_ptr.tolist()):
        for row in range(low + 1, high):
            assert start[row] >= start[row - 1] + length[row - 1]


@given(valid_schedules(copies=True, messages=True), st.randoms(use_true_random=False), st.integers(20, 200))
def test_whatever_the_rows_they_can_be_drawn(schedule: Schedule, random: Any, width: int) -> None:
    rows = [schedule[rank] for rank in range(schedule.ranks)]
    for row in rows:
        if len(row) > 1:
            low, high = random.randrange(len(row)), random.randrange(len(row))
            row[low], row[high] = row[high], row[low]
        del row[: random.randint(0, 1)]
    drawing = draw(Schedule.from_rows(rows, schedule.placement))

    text = [
        line for seen in windows(drawing, width, 0, drawing.length, 10_000) for line in plain_lines(drawing, seen)
    ]

    assert max(map(len, text)) <= max(width, 24)
    if drawing.error is not None:
        assert any(c in line for line in text for c in "[!") or drawing.error.rank < 0


def placed(rows: Sequence[Sequence[str]], at_fault: frozenset[int] = frozenset()) -> list[int]:
    schedule = Schedule.from_rows(rows)
    return place_invalid(schedule, lengths(schedule), at_fault)


def test_an_action_waits_for_what_the_table_has_and_not_for_what_it_lacks() -> None:
    assert placed([["0F0", "0B0"], ["1F0", "1B0"]]) == [0, 4, 1, 2]
    assert placed([["0F0", "0B0"], ["1F0"]]) == [0, 1, 1]


def test_where_all_wait_an_action_at_fault_goes_first() -> None:
    stuck = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]

    assert placed(stuck) == [0, 1, 3, 7, 4, 5, 7, 8]
    assert placed(stuck, frozenset({4}))[4] == 0


def test_twice_the_same_action_stands_twice() -> None:
    assert placed([["0F0", "0F0", "0B0"]]) == [0, 1, 2]


def test_numbers_that_no_stage_has_are_placed_too() -> None:
    schedule = Schedule.from_columns(
        Schedule.from_rows([["0F0", "0B0"]]).placement, [0, 3], [0, 1, 0], [0, 7, -1], [0, -3, 9]
    )

    assert place_invalid(schedule, [1, 2, 1]) == [0, 1, 3]
    assert np.asarray(draw(schedule).length) > 0
