"""Backwards on other ranks than their forwards: rules, times, memory, counters, and what keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.errors import DeadlockError, ScheduleError
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import parse_table, table_text
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import in_flight
from pptrace.timeline.metrics import measure
from pptrace.timeline.trim import renumber_ranks
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

ROWS = [
    ["0UNSHARD", "0F0", "0OFFLOAD0", "0RESHARD", "1UNSHARD", "1RELOAD0", "1RECOMPUTE0", "1B0", "1REDUCE_GRAD"],
    ["1UNSHARD", "1F0", "1OFFLOAD0", "1RESHARD", "0UNSHARD", "0RELOAD0", "0RECOMPUTE0", "0B0", "0REDUCE_GRAD"],
]
"""Two stages whose backwards are on each other's ranks."""

COSTS = Workload.uniform(
    2, f_ns=10, b_ns=20, recompute_ns=10, activation_bytes=100, checkpoint_bytes=30, offload_ns=3, reload_ns=4,
    boundary_bytes=5, weights_bytes=7, gradients_bytes=9, optimizer_bytes=11, unshard_ns=2, reduce_ns=6,
).with_host_state(np.array([True, True]))  # fmt: skip


def placement() -> Placement:
    return replace(Placement.looped(2, 1), backward_rank=np.array([[1, 0]]))


def table(rows: list[list[str]] | None = None) -> Schedule:
    return Schedule.from_rows(rows or ROWS, placement())


def without(name: str) -> list[list[str]]:
    return [[action for action in row if name not in action] for row in ROWS]


def start_of(timeline: Timeline, name: str) -> tuple[int, int, int]:
    """Return the rank, start and end of an action."""
    (row,) = (row for row in range(len(timeline)) if str(timeline.action(row)) == name)
    return int(timeline.rank_of_row()[row]), int(timeline.start_ns[row]), int(timeline.end_ns[row])


def test_a_placement_has_ranks_of_both_passes() -> None:
    assert placement().has_host_state
    assert not Placement.looped(2, 1).has_host_state
    assert placement() != Placement.looped(2, 1)
    assert placement().holders() == ((0, 1), (0, 1))
    assert [placement().rank_of(0, 0, backward=backward) for backward in (False, True)] == [0, 1]


@pytest.mark.parametrize(("rows", "message"), [
    (without("LOAD"), "rank 1: 0B0 needs the activation of another rank: add 0OFFLOAD0 there, and 0RELOAD0 here"),
    (without("RELOAD"), "rank 0: 0OFFLOAD0 without 0RELOAD0"),
    ([[*ROWS[0], "0B0"], [action for action in ROWS[1] if action != "0B0"]], "stage 0 is on rank 1"),
    ([ROWS[0], ["0B0", *[action for action in ROWS[1] if action != "0B0"]]], "0B0 comes before 0RELOAD0"),
])  # fmt: skip
def test_an_invalid_table_is_refused(rows: list[list[str]], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(table(rows))


def test_a_backward_waits_for_the_copies_of_its_activation_through_the_host() -> None:
    timeline = simulate(table(), COSTS)

    assert start_of(timeline, "0OFFLOAD0") == (0, 12, 15)
    assert start_of(timeline, "0RELOAD0") == (1, 24, 28)  # after the copy of weights, on the same stream
    assert start_of(timeline, "1OFFLOAD0") == (1, 22, 25)
    assert start_of(timeline, "1RELOAD0") == (0, 25, 29)  # after the copy to the host, on a rank above
    assert start_of(timeline, "1RECOMPUTE0") == (0, 29, 39)
    assert start_of(timeline, "1B0") == (0, 39, 59)
    assert start_of(timeline, "0B0") == (1, 59, 79)  # after the gradient, by a message to rank 1


def test_gathers_and_reductions_are_copies_and_memory_is_that_of_the_passes() -> None:
    timeline = simulate(table(), COSTS)
    metrics = measure(timeline, COSTS)
    stream = timeline.lane_stream[timeline.lane_of_row()]

    assert {*stream[timeline.kind == Kind.UNSHARD]} == {Stream.COPY_IN}
    assert {*stream[timeline.kind == Kind.REDUCE_GRAD]} == {Stream.COPY_OUT}
    assert metrics.memory.weights_bytes.tolist() == [7, 7]
    assert metrics.memory.gradients_bytes.tolist() == [9, 9]
    assert metrics.memory.optimizer_bytes.tolist() == [0, 0]
    assert metrics.memory.peak_activation_bytes.tolist() == [100, 100]
    assert metrics.memory.peak_activations.tolist() == [1, 1]
    assert [counter.value.tolist() for counter in in_flight(timeline)] == [[1, 0, 1, 0]] * 2
    assert metrics.busy_ns.tolist() == [40, 40]


def test_a_wait_in_a_cycle_of_copies_is_a_deadlock() -> None:
    rows = [
        ["1RELOAD0", "1RECOMPUTE0", "1B0", "0F0", "0OFFLOAD0"],
        ["1F0", "1OFFLOAD0", "0RELOAD0", "0B0"],
    ]

    with pytest.raises(DeadlockError, match="0F0"):
        simulate(table(rows), COSTS)


def test_a_written_table_has_the_same_ranks() -> None:
    schedule = table()

    assert parse_table(table_text(schedule)).schedule == schedule


@pytest.mark.parametrize(("name", "write", "read"), [
    ("step.pftrace", perfetto.write, perfetto.read), ("step.json", kineto.write, kineto.read),
])  # fmt: skip
def test_a_trace_has_the_same_ranks(
    name: str,
    write: Callable[[Timeline, Path, dict[str, object]], None],
    read: Callable[[list[Path]], Timeline],
    tmp_path: Path,
) -> None:
    timeline = simulate(table(), COSTS)
    write(timeline, tmp_path / name, {})

    again = read([tmp_path / name])

    assert again.placement == placement()
    assert measure(again, COSTS).memory.peak_bytes.tolist() == measure(timeline, COSTS).memory.peak_bytes.tolist()


def test_renumbered_ranks_are_those_of_both_passes() -> None:
    renumbered = renumber_ranks(simulate(table(), COSTS), np.array([1, 2, -1], dtype=np.int32), 3).placement

    assert [ranks.tolist() for ranks in renumbered.pass_ranks] == [[[1, 2]], [[2, 1]]]
