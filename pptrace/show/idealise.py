"""Make the idealised table: by simulation where a schedule is valid, as far as it goes where it is not."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import DeadlockError, ScheduleError
from pptrace.model.action import COMMUNICATION, Kind
from pptrace.model.workload import Workload
from pptrace.network.flat import Flat
from pptrace.schedule.validate import validate
from pptrace.show.grid import Costs, Grid
from pptrace.show.lenient import place_leniently
from pptrace.sim.policy import Policy, PolicyName
from pptrace.sim.simulate import simulate
from pptrace.timeline.timeline import Stream

if TYPE_CHECKING:
    from pptrace.schedule.issue_order import Receive
    from pptrace.schedule.table import Schedule

__all__ = ["idealise"]


def idealise(
    schedule: Schedule, costs: Costs | None = None, messages: Receive | None = None
) -> tuple[Grid, ScheduleError | None]:
    """Return a schedule's idealised table and what is wrong with it, if anything.

    A message takes no time; with ``messages`` it takes one unit of its sender and one of its receiver,
    whose receive starts no earlier than the send: PyTorch's step simulator.
    """
    costs = costs or Costs()
    try:
        validate(schedule)
        return _simulated(schedule, costs, messages), None
    except ScheduleError as error:
        return _in_order(schedule, costs, error, shown=messages is not None), error


def _simulated(schedule: Schedule, costs: Costs, messages: Receive | None) -> Grid:
    input_ns, weight_ns = costs.halves
    workload = Workload.uniform(
        schedule.stages,
        edges=schedule.placement.edges.shape[0],
        f_ns=costs.forward,
        b_ns=costs.backward,
        i_ns=input_ns,
        w_ns=weight_ns,
        recompute_ns=np.full(schedule.stages, costs.forward),
    )
    policy = Policy(name=PolicyName.BLOCKING, receive=messages) if messages else Policy()
    timeline = simulate(schedule, workload, Flat(overhead_ns=int(messages is not None)), policy)
    compute = timeline.lane_stream[timeline.lane_of_row()] == Stream.COMPUTE
    rows = np.flatnonzero(compute & (timeline.end_ns > timeline.start_ns))
    return _grid(
        schedule,
        rank=timeline.rank_of_row()[rows],
        start=timeline.start_ns[rows],
        length=(timeline.end_ns - timeline.start_ns)[rows],
        **{name: getattr(timeline, name)[rows] for name in ("kind", "stage", "unit", "span")},
        marked=np.zeros(rows.size, dtype=np.int8),
    )


def _in_order(schedule: Schedule, costs: Costs, error: ScheduleError, *, shown: bool) -> Grid:
    marked = np.zeros(len(schedule), dtype=np.int8)
    marked[_at_fault(schedule, error)] = 1
    talks = np.isin(schedule.kind, [int(kind) for kind in COMMUNICATION])
    length = np.array(
        [costs.of(k, max(n, 0)) for k, n in zip(schedule.kind.tolist(), schedule.span.tolist(), strict=True)],
        dtype=np.int64,
    )
    length[talks & shown] = 1
    length[marked == 1] = np.maximum(length[marked == 1], 1)
    start = place_leniently(schedule, length)
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.row_ptr))
    rows = np.flatnonzero(length > 0)
    lacking = (error.rank,) if error.position < 0 <= error.rank else ()
    return _grid(
        schedule, rank=rank[rows], start=start[rows], length=length[rows],
        **{name: getattr(schedule, name)[rows] for name in ("kind", "stage", "unit", "span")},
        marked=marked[rows], wrong_ranks=lacking,
    )  # fmt: skip


def _at_fault(schedule: Schedule, error: ScheduleError) -> list[int]:
    """Return the positions that an error speaks of."""
    if error.position >= 0:
        return [error.position]
    if not isinstance(error, DeadlockError):
        return []
    found = []
    for rank, name in (entry.removeprefix("rank ").split(": ", 1) for entry in error.cycle):
        low, high = schedule.row_ptr[int(rank)], schedule.row_ptr[int(rank) + 1]
        found += [row for row in range(int(low), int(high)) if str(schedule.action(row)) == name][:1]
    return found


def _grid(schedule: Schedule, **columns: Any) -> Grid:
    """Build a grid whose slot is the longest time that all lengths are multiples of."""
    times = np.concatenate([columns["start"], columns["length"]])
    unit = gcd(*np.unique(times).tolist()) or 1
    columns["start"], columns["length"] = columns["start"] // unit, columns["length"] // unit
    return Grid(placement=schedule.placement, **columns)
