"""Weight gradients in the gaps of a table of forwards and input gradients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import ScheduleError
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.weight_filling import fill_weights
from pptrace.steps.workload import Workload
from pptrace.testing import assert_valid_schedule
from pptrace.timeline.metrics import measure
from pptrace_kernel import always_compiled

ONE = {Kind.F: 1, Kind.I: 1, Kind.W: 1}


def order(ahead: list[int], microbatches: int) -> Schedule:
    """Return rows of so many forwards, then an input gradient and a forward in turns."""
    rows = []
    for rank, own in enumerate(ahead):
        early = min(own, microbatches)
        row = [f"{rank}F{item}" for item in range(early)]
        for index in range(microbatches):
            row.append(f"{rank}I{index}")
            row += [f"{rank}F{early + index}"] if early + index < microbatches else []
        rows.append(row)
    return Schedule.from_rows(rows, Placement.looped(len(ahead), microbatches))


@st.composite
def orders(draw: st.DrawFn) -> Schedule:
    ahead = sorted(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)), reverse=True)
    return order(ahead, draw(st.integers(1, 9)))


@given(
    table=orders(),
    times=st.lists(st.integers(0, 20), min_size=15, max_size=15),
    weights=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    transfer=st.integers(0, 9),
    deadline=st.none() | st.integers(0, 400) | st.lists(st.integers(0, 400), min_size=5, max_size=5),
)
def test_times_and_memory_are_those_of_the_simulation(
    table: Schedule, times: list[int], weights: list[int], transfer: int, deadline: int | list[int] | None
) -> None:
    stages = table.stages
    f, i, w = (times[5 * k : 5 * k + stages] for k in range(3))
    taken, kept = np.array(weights[:stages]), np.array(weights[:stages]) // 2
    ends = deadline[:stages] if isinstance(deadline, list) else deadline
    filled = fill_weights(table, {Kind.F: f, Kind.I: i, Kind.W: w}, transfer=transfer, deadline=ends)
    costs = Workload.uniform(stages, f_ns=f, i_ns=i, w_ns=w, activation_bytes=taken, weight_activation_bytes=kept)

    timeline = simulate(filled.schedule, costs, Flat(rate_kbps=10**12, latency_ns=transfer))

    assert_valid_schedule(filled.schedule)
    assert filled.schedule.selected(np.flatnonzero(filled.schedule.kind != Kind.W)) == table
    assert filled.length == int(timeline.end_ns.max())
    metrics = measure(timeline, costs)
    assert filled.longest == metrics.pace_ns

    room = metrics.memory.peak_activation_bytes
    held = fill_weights(
        filled.schedule, {Kind.F: f, Kind.I: i, Kind.W: w}, transfer=transfer, taken=taken, kept=kept, room=room
    )
    assert held.schedule == filled.schedule
    assert (held.start.tolist(), held.end.tolist()) == (filled.start.tolist(), filled.end.tolist())


@given(table=orders(), spare=st.integers(0, 4))
def test_memory_is_kept_or_the_order_is_refused(table: Schedule, spare: int) -> None:
    held = np.cumsum(np.where(table.kind == Kind.F, 1, -1))
    least = max(int(held[a:b].max() - (held[a - 1] if a else 0)) for a, b in _rows(table))
    costs = Workload.uniform(table.stages, f_ns=1, i_ns=1, w_ns=1, activation_bytes=1, weight_activation_bytes=1)

    filled = fill_weights(table, ONE, taken=1, kept=1, room=least + spare)

    peak = measure(simulate(filled.schedule, costs), costs).memory.peak_activation_bytes
    assert int(peak.max()) <= least + spare
    with pytest.raises(
        ScheduleError, match=r"rank \d: \dF\d can never start: its memory holds no more: allow more"
    ):
        fill_weights(table, ONE, taken=1, kept=1, room=least - 1)


def _rows(table: Schedule) -> list[tuple[int, int]]:
    return list(pairwise(table.row_ptr.tolist()))


def test_compiled_and_interpreted_give_the_same_table() -> None:
    table = order([7, 5, 3, 1], 40)
    arguments = {"transfer": 3, "taken": 2, "kept": 1, "room": 14, "deadline": 1300}
    durations = {Kind.F: 11, Kind.I: 12, Kind.W: [5, 6, 7, 8]}

    interpreted = fill_weights(table, durations, **arguments)
    with always_compiled():
        compiled = fill_weights(table, durations, **arguments)

    assert interpreted.schedule == compiled.schedule
    assert interpreted.end.tolist() == compiled.end.tolist()


def test_a_deadline_runs_weight_gradients_in_gaps_that_delay_nothing_beyond_it() -> None:
    table = order([3, 2, 1], 3)
    durations = {Kind.F: 4, Kind.I: 4, Kind.W: 9}

    early, target = fill_weights(table, durations), fill_weights(table, durations, deadline=59)

    assert [" ".join(filled.schedule.rows()[1]) for filled in (early, target)] == [
        "1F0 1F1 1I0 1F2 1I1 1I2 1W0 1W1 1W2",
        "1F0 1F1 1I0 1F2 1I1 1W0 1I2 1W1 1W2",
    ]
    assert (early.length, target.length) == (63, 59)


def test_an_order_that_waits_for_itself_is_refused() -> None:
    table = order([1, 3], 4)

    with pytest.raises(ScheduleError, match=r"rank 0: 0I0 can never start: its dependency comes later"):
        fill_weights(table, ONE)


def test_times_that_are_too_long_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"2\*\*59"):
        fill_weights(order([1], 1), {Kind.F: 2**60, Kind.I: 1, Kind.W: 1})
