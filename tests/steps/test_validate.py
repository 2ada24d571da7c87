"""What a schedule must not be; PyTorch's validator lets most of these pass."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import valid_schedules

from pptrace.errors import ScheduleError
from pptrace.steps.kinds import WAITS, Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate

TWO = [["0F0", "0B0"], ["1F0", "1B0"]]


def refused(rows: list[list[str]], placement: Placement | None = None) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        validate(Schedule.from_rows(rows, placement))
    assert "\n" not in str(caught.value)
    return caught.value


def with_cell(rank: int, position: int, cell: str) -> list[list[str]]:
    rows = [list(row) for row in TWO]
    rows[rank].insert(position, cell)
    return rows


@pytest.mark.parametrize(
    ("rank", "cell", "position"),
    [(0, "0F0", 1), (0, "0B0", 2), (1, "1B0", 2)],
)
def test_an_action_that_is_there_twice_is_refused(rank: int, cell: str, position: int) -> None:
    error = refused(with_cell(rank, position, cell))

    assert (error.rank, error.action) == (rank, cell)
    assert error.position == 2 * rank + position
    assert "repeats action" in str(error)
    assert "remove one" in str(error)


@pytest.mark.parametrize("rows", [
    [["0F0", "0I0", "0W0", "0W0"]],
    [["0F0", "0I0", "0I0", "0W0"]],
    [["0F0+2", "0F1", "0B0+2"]],
    [["0F0", "0RECOMPUTE0", "0RECOMPUTE0", "0B0"]],
    [["0F0", "0SEND_F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]],
])  # fmt: skip
def test_repeated_halves_spans_copies_and_messages_are_refused(rows: list[list[str]]) -> None:
    assert "repeats action" in str(refused(rows))


def test_a_microbatch_without_gaps_below_it_is_missing_them() -> None:
    error = refused([["0F5", "0B5"]])

    assert str(error) == (
        "rank 0 lacks 0F0 (and 4 more): every stage runs each microbatch forward and backward once"
    )
    assert (error.rank, error.missing) == (0, "0F0")


def test_a_microbatch_out_of_the_placements_range_is_refused() -> None:
    error = refused([["0F0", "0F1", "0B0", "0B1"]], Placement.looped(ranks=1, microbatches=1))

    assert str(error) == "rank 0, action 1 (0F1): microbatch 1 is out of range: they are 0 to 0"


def test_a_stage_out_of_the_placements_range_is_refused() -> None:
    error = refused([["0F0", "2F0", "0B0"], ["1F0", "1B0"]], Placement.looped(ranks=2, microbatches=1))

    assert str(error) == "rank 0, action 1 (2F0): stage 2 is out of range: stages are 0 to 1"


def test_a_stage_that_no_action_names_is_refused() -> None:
    error = refused([["0F0", "0B0"], ["2F0", "2B0"]])

    assert "stage 1 has no actions on any rank" in str(error)


@pytest.mark.parametrize("rows", [
    [["0F0", "0I0", "0W0", "0F1", "0B1", "0B0"]],
    [["0F0", "0B0", "0W0"]],
    [["0F0", "0B0", "0I0", "0W0"]],
])  # fmt: skip
def test_a_full_backward_beside_its_halves_is_refused(rows: list[list[str]]) -> None:
    assert "repeats action" in str(refused(rows))


def test_a_full_backward_and_halves_that_balance_another_microbatch_are_refused() -> None:
    error = refused([["0F0", "0F1", "0B0", "0I0", "0W0"]])

    assert error.rank == 0


@pytest.mark.parametrize(("rows", "missing"), [
    ([["0F0"]], "0B0"), ([["0B0"]], "0F0"), ([["0F0", "0I0"]], "0W0"), ([["0F0", "0W0"]], "0I0"),
    ([["0F0", "0B0"], ["1F0"]], "1B0"), ([["0F0", "0F1", "0B0"]], "0B1"),
])  # fmt: skip
def test_a_missing_action_is_named(rows: list[list[str]], missing: str) -> None:
    error = refused(rows)

    assert error.missing == missing
    assert f"lacks {missing}" in str(error)


@pytest.mark.parametrize(("rows", "first", "second"), [
    ([["0B0", "0F0"]], "0B0", "0F0"),
    ([["0F0", "0W0", "0I0"]], "0W0", "0I0"),
    ([["0F0", "0B0", "0RECOMPUTE0"]], "0B0", "0RECOMPUTE0"),
    ([["0F0", "0B0", "0OFFLOAD0", "0RELOAD0"]], "0B0", "0RELOAD0"),
    ([["0F0", "0RELOAD0", "0OFFLOAD0", "0B0"]], "0RELOAD0", "0OFFLOAD0"),
    ([["0OFFLOAD0", "0F0", "0RELOAD0", "0B0"]], "0OFFLOAD0", "0F0"),
    ([["0F0", "0REDUCE_GRAD", "0B0"]], "0REDUCE_GRAD", "0B0"),
    ([["0F0", "0I0", "0OPTIMIZER", "0W0"]], "0OPTIMIZER", "0W0"),
    ([["0SEND_F0", "0F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]], "0SEND_F0", "0F0"),
    ([["0F0", "0SEND_F0", "0B0", "0RECV_B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]], "0B0", "0RECV_B0"),
    ([["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1F0", "1RECV_F0", "1B0", "1SEND_B0"]], "1F0", "1RECV_F0"),
    ([["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1SEND_B0", "1B0"]], "1SEND_B0", "1B0"),
])  # fmt: skip
def test_actions_of_one_rank_in_the_wrong_order_are_refused(
    rows: list[list[str]], first: str, second: str
) -> None:
    error = refused(rows)

    assert f"{first} comes before {second}: swap them" in str(error)
    assert (error.action, error.missing) == (first, second)
    assert error.position == functools.reduce(operator.iadd, rows, []).index(first)


@pytest.mark.parametrize(("rows", "text"), [
    ([["0F0", "1F0", "1B0", "0B0"], ["1F0", "1B0"]], "rank 0, action 1 (1F0): stage 1 is on rank 1"),
    ([["0F0", "0B0", "1OPTIMIZER"], ["1F0", "1B0"]], "rank 0, action 2 (1OPTIMIZER): stage 1 is on rank 1"),
    ([["0F0", "0B0"], ["1F0", "1B0", "0B0"]], "rank 1, action 2 (0B0): stage 0 is on rank 0"),
])  # fmt: skip
def test_an_action_on_the_wrong_rank_is_refused(rows: list[list[str]], text: str) -> None:
    placement = Placement.looped(ranks=2, microbatches=1)

    assert str(refused(rows, placement)) == f"{text}: move the action there"


@pytest.mark.parametrize(("rows", "position", "missing"), [
    ([["0F0", "0B0"], ["1F0", "1B0@1OFFLOAD0"]], 3, "1OFFLOAD0"),
    ([["0F0", "0B0@0F1"], ["1F0", "1B0"]], 1, "0F1"),
])  # fmt: skip
def test_a_wait_for_what_is_not_there_is_refused(rows: list[list[str]], position: int, missing: str) -> None:
    error = refused(rows)

    assert f"waits for {missing}: there is no {missing}" in str(error)
    assert (error.position, error.missing) == (position, missing)


@pytest.mark.parametrize(("rows", "text"), [
    ([["0F0", "0SEND_F0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]], "rank 0 lacks 0RECV_B0"),
    ([["0F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]], "rank 0 lacks 0SEND_F0"),
    ([["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1F0", "1B0", "1SEND_B0"]], "rank 1 lacks 1RECV_F0"),
    ([["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0"]], "rank 1 lacks 1SEND_B0"),
    ([["0F0", "0SEND_F0", "0B0"]], "rank 0: 0SEND_F0 has no peer"),
    ([["0RECV_F0", "0F0", "0B0"]], "rank 0: 0RECV_F0 has no peer"),
    ([["0F0", "0SEND_F0", "1F0", "1B0", "0B0"]], "rank 0: 0SEND_F0 has no peer"),
    (
        [["0F0+2", "0SEND_F0+2", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
         ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"]],
        "rank 1: 1RECV_F0 receives other microbatches than 0SEND_F0+2 on rank 0 sends",
    ),
])  # fmt: skip
def test_a_message_without_its_other_end_is_refused(rows: list[list[str]], text: str) -> None:
    assert text in str(refused(rows))


@pytest.mark.parametrize(("rows", "text"), [
    ([["0F0", "0OFFLOAD0", "0B0"]], "0OFFLOAD0 without 0RELOAD0"),
    ([["0F0", "0RELOAD0", "0B0"]], "0RELOAD0 without 0OFFLOAD0"),
    ([["0F0", "0B0", "0OPTIMIZER", "0OPTIMIZER"]], "0OPTIMIZER occurs twice: remove one"),
    ([["0F0", "0B0", "0REDUCE_GRAD", "0REDUCE_GRAD"]], "0REDUCE_GRAD occurs twice: remove one"),
    ([["0F0", "0B0", "0OPTIMIZER", "0F1", "0B1", "0OPTIMIZER"]], "stages have 2 updates: write one"),
    ([["0F0", "0B0", "0OPTIMIZER", "0F1", "0B1", "0OPTIMIZER"], ["1F0", "1B0", "1F1", "1B1", "1OPTIMIZER"]],
     "rank 1: stage 1 has 1 updates and another has 2: write one for each stage, or 3 or more"),
    ([["0F0", "0B0", "0OPTIMIZER", "0F1", "0B1"]], "0OPTIMIZER comes before 0B1: swap them"),
    ([["0F0", "0B0", "0OPTIMIZER", "0REDUCE_GRAD"]], "0REDUCE_GRAD comes after 0OPTIMIZER: swap them"),
])  # fmt: skip
def test_copies_without_return_and_ends_of_a_stage_twice_are_refused(rows: list[list[str]], text: str) -> None:
    assert text in str(refused(rows))


@pytest.mark.parametrize("rows", [
    [["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"], ["1F0", "1RECOMPUTE0", "1B0"]],
    [["0UNSHARD", "0F0", "0RESHARD", "0UNSHARD", "0B0", "0REDUCE_GRAD", "0OPTIMIZER"], ["1F0", "1B0"]],
    [["0F0", "1F0", "1B0", "0B0"]],
    [["0F0", "0B0"], []],
])  # fmt: skip
def test_what_needs_no_message_needs_none(rows: list[list[str]]) -> None:
    validate(Schedule.from_rows(rows))


def test_a_table_without_actions_is_refused() -> None:
    assert "the table is empty" in str(refused([[], []]))


def test_a_table_with_other_rows_than_its_placement_has_ranks_is_refused() -> None:
    assert "2 rows for 3 ranks" in str(refused(TWO, Placement.looped(ranks=3, microbatches=1)))


def test_a_span_over_microbatches_of_different_routes_is_refused() -> None:
    placement = Placement.of_stages([[0, 1], [0, 0]], microbatches=2)

    error = refused([["0F0+2", "1F1", "1B1", "0B0+2"], ["1F0", "1B0"]], placement)

    assert "0F0+2: its microbatches take different routes" in str(error)


def test_a_span_over_routes_that_are_alike_is_one_message() -> None:
    placement = Placement.of_stages([[0, 1], [0, 1]], microbatches=2)

    validate(Schedule.from_rows([["0F0+2", "0B0+2"], ["1F0+2", "1B0+2"]], placement))


def placed(route: int, edges: list[list[int]]) -> Placement:
    return Placement(
        ranks=1,
        stage_rank=np.array([[0]]),
        microbatch_route=np.array([route]),
        edges=np.array(edges, dtype=np.int32),
    )


COLUMNS: dict[str, Any] = {
    "placement": Placement.looped(ranks=1, microbatches=1),
    "row_ptr": [0, 2], "kind": [0, 1], "stage": [0, 0], "microbatch": [0, 0],
}  # fmt: skip


@pytest.mark.parametrize(("change", "text"), [
    ({"kind": [0, len(Kind)]}, "column kind has numbers that are not kinds"),
    ({"kind": [-1, 1]}, "column kind has numbers that are not kinds"),
    ({"stage": [0]}, "column stage has 1 values for 2 actions"),
    ({"row_ptr": [0, 1]}, "row_ptr must rise from 0"),
    ({"row_ptr": [1, 2]}, "row_ptr must rise from 0"),
    ({"span": [1, 0]}, "0B0: a span is at least 1, not 0"),
    ({"microbatch": [0, -1]}, "microbatch -1 is out of range"),
    ({"stage": [0, -1]}, "stage -1 is out of range"),
    ({"placement": Placement.of_stages([1], microbatches=1, ranks=1)}, "ranks beyond its 1"),
    ({"placement": placed(1, [])}, "routes beyond its 1"),
    ({"placement": placed(0, [[0, 1]])}, "edges name stages beyond its 1"),
])  # fmt: skip
def test_columns_that_do_not_fit_are_refused_in_words(change: dict[str, Any], text: str) -> None:
    schedule = Schedule.from_columns(**{**COLUMNS, **change})

    with pytest.raises(ScheduleError, match=text):
        validate(schedule)


@given(valid_schedules(copies=True, messages=True), st.randoms(use_true_random=False))
def test_no_schedule_is_valid_without_one_of_its_actions(schedule: Schedule, random: Any) -> None:
    row = random.randrange(len(schedule))
    assume(schedule.action(row).kind not in {Kind.RECOMPUTE, *WAITS})
    kept = np.delete(np.arange(len(schedule)), row)

    less = Schedule.from_columns(
        schedule.placement, np.searchsorted(kept, schedule.row_ptr), schedule.kind[kept], schedule.stage[kept],
        schedule.microbatch[kept], span=schedule.span[kept], pair=schedule.pair[kept],
    )  # fmt: skip

    with pytest.raises(ScheduleError):
        validate(less)


@given(valid_schedules(copies=True, messages=True), st.randoms(use_true_random=False))
def test_no_schedule_is_valid_with_an_action_twice(schedule: Schedule, random: Any) -> None:
    row, to = random.randrange(len(schedule)), random.randrange(schedule.ranks)
    at = random.randint(int(schedule.row_ptr[to]), int(schedule.row_ptr[to + 1]))

    columns = {
        name: np.insert(getattr(schedule, name), at, getattr(schedule, name)[row])
        for name in ("kind", "stage", "microbatch", "span")
    }
    ptr = schedule.row_ptr + (np.arange(schedule.ranks + 1) > to)
    pair = np.insert(schedule.pair, at, -1)
    more = Schedule.from_columns(schedule.placement, ptr, **columns, pair=pair)

    with pytest.raises(ScheduleError):
        validate(more)
