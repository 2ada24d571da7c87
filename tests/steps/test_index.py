"""The index finds each action of a schedule, or the first that has no place in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted import interpreted_kernels
from strategies import valid_schedules
from two_threads import two_threads

import pptrace_kernel
from pptrace.steps.kernels import tables
from pptrace.steps.kinds import TABLE, Result
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import ABSENT, Schedule, index_schedule


def test_a_full_backward_is_both_gradients_and_halves_are_one_each() -> None:
    positions = index_schedule(Schedule.from_rows([["0F0", "0F1", "0I0", "0B1", "0W0"]]))

    assert positions.problem is None
    assert positions.of(Result.ACTIVATION).tolist() == [[0, 1]]
    assert positions.of(Result.GRADIENT).tolist() == [[2, 3]]
    assert positions.of(Result.WEIGHT_GRADIENT).tolist() == [[4, 3]]


def test_a_span_fills_every_microbatch_of_it() -> None:
    positions = index_schedule(Schedule.from_rows([["0F0+3", "0B0", "0B1+2"]]))

    assert positions.of(Result.ACTIVATION).tolist() == [[0, 0, 0]]
    assert positions.of(Result.GRADIENT).tolist() == [[1, 2, 2]]


@pytest.mark.parametrize(("row", "count"), [
    (["0F0", "0B0"], 2), (["0F0", "0I0", "0W0"], 3), (["0F0", "0SEND_F0", "0B0"], 4),
    (["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"], 9), (["0F0", "0RECOMPUTE0", "0B0"], 10),
])  # fmt: skip
def test_results_that_no_kind_leaves_take_no_memory_and_are_absent(row: list[str], count: int) -> None:
    positions = index_schedule(Schedule.from_rows([row]))

    assert (positions.results, positions.by_result.size) == (count, count)
    for result in range(count, 10):
        assert positions.of(result).tolist() == [[ABSENT]]


@pytest.mark.parametrize(("row", "problem"), [
    (["0F0", "2F0", "0B0"], (tables.OUT_OF_STAGES, 1, 0)),
    (["0F0", "0F2", "0B0"], (tables.OUT_OF_MICROBATCHES, 1, 0)),
    (["0F0", "0F1+2", "0B0"], (tables.OUT_OF_MICROBATCHES, 1, 0)),
    (["0F0", "0F1", "0F0", "0B9"], (tables.TWICE, 2, 0)),
    (["0B0", "0F0", "0W0"], (tables.TWICE, 2, 0)),
    (["1F0", "0F0"], (tables.MISPLACED, 0, 1)),
    (["0F0", "1RESHARD"], (tables.MISPLACED, 1, 1)),
])  # fmt: skip
def test_the_first_action_without_a_place_is_reported(row: list[str], problem: tuple[int, int, int]) -> None:
    schedule = Schedule.from_rows([row, ["1F0", "1F3"]], Placement.looped(ranks=2, microbatches=2))

    assert index_schedule(schedule).problem == problem
    with two_threads():
        assert index_schedule(schedule).problem == problem


@given(valid_schedules(copies=True, messages=True), st.booleans())
def test_every_action_is_found_at_its_position(schedule: Schedule, compiled: bool) -> None:  # noqa: FBT001 - drawn
    with pptrace_kernel.always_compiled() if compiled else interpreted_kernels():
        positions = index_schedule(schedule)

    for row in range(len(schedule)):
        slot = int(TABLE.result[schedule.kind[row]])
        first = int(schedule.microbatch[row])
        here = positions.of(slot)[int(schedule.stage[row]), first : first + int(schedule.span[row])]
        assert (here == row).all()
    absent = int((positions.by_result == ABSENT).sum())
    twice = int(schedule.span[schedule.kind == 1].sum()) if positions.results > Result.WEIGHT_GRADIENT else 0
    assert positions.by_result.size - absent == int(schedule.span.sum()) + twice
