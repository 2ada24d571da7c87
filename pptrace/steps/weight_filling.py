"""Insertion of weight gradients into the gaps of a table of forwards and input gradients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.steps.kernels.heap import OUTSIDE, Heap
from pptrace.steps.kernels.weight_filling import (
    UNKNOWN,
    Filling,
    PlacedActions,
    Rules,
    Slack,
    Stages,
    Table,
    fill_gaps,
)
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.steps.columns import Int64s

_NO_LIMIT = 2**62
_LARGEST_TIME = 2**59


class Filled(NamedTuple):
    """A table with its weight gradients, and its times per rank without contention."""

    schedule: Schedule
    """The table."""
    start: Int64s
    """Shape (ranks,): start of each rank's first action."""
    end: Int64s
    """Shape (ranks,): end of each rank's last action."""

    @property
    def length(self) -> int:
        """The makespan: time from the first start to the last end."""
        return int(self.end.max(initial=0))

    @property
    def longest(self) -> int:
        """The longest time from a rank's start to its end: the period of steps without a barrier."""
        return int((self.end - self.start).max(initial=0))


def fill_weights(
    table: Schedule,
    durations: Mapping[Kind, object],
    *,
    transfer: int = 0,
    taken: object = 0,
    kept: object = 0,
    room: object = None,
    deadline: object = None,
) -> Filled:
    """Return a table with a weight gradient for every input gradient, in their order on each rank.

    A weight gradient runs in a gap that is long enough, before a forward that needs its memory, or at the end of
    the row. It runs in a shorter gap if the rank has already idled too long for its deadline or more than other
    ranks, or if the delay endangers no deadline.

    Args:
        table: F and I of every stage and microbatch, on one route of stages that are a chain. One that has W
            already keeps its order, and is only timed.
        durations: time of one action for F, I and W: one value, or one per stage.
        transfer: time from one rank to another.
        taken: activation bytes of a forward: one value, or one per stage.
        kept: the part that is kept from the input gradient to the weight gradient; likewise.
        room: limit of activation bytes: one value, or one per rank; None for no limit.
        deadline: desired end of a rank: one value, or one per rank; None for no deadline. It can be missed.

    Raises:
        ScheduleError: the order deadlocks, a rank's memory does not hold it, or times add up to 2**59 and more.

    >>> table = Schedule.from_rows([["0F0", "0F1", "0I0", "0I1"], ["1F0", "1I0", "1F1", "1I1"]])
    >>> fill_weights(table, {Kind.F: 1, Kind.I: 1, Kind.W: 1}).schedule.rows()
    [['0F0', '0F1', '0I0', '0W0', '0I1', '0W1'], ['1F0', '1I0', '1F1', '1I1', '1W0', '1W1']]
    """
    stages, ranks, count = table.stages, table.ranks, len(table)
    cost = {kind: _per_index(durations[kind], stages) for kind in (Kind.F, Kind.I, Kind.W)}
    if float(sum(map(np.sum, cost.values()))) * table.microbatches + count * transfer >= _LARGEST_TIME:
        raise ScheduleError("times add up to 2**59 or more: give them in a larger unit")
    row_ptr = table.row_ptr.astype(np.int64)
    filling, heap = _start(table)
    missing_weights = int(not (table.kind == Kind.W).any())
    whole_ptr = row_ptr + missing_weights * (row_ptr // 2)
    kind, stage, microbatch = (np.zeros(int(whole_ptr[-1]), dtype=np.int32) for _ in range(3))
    ends = _per_index(deadline, ranks) if deadline is not None and missing_weights else _per_index(0, 0)
    placed = PlacedActions(kind, stage, microbatch, np.zeros(ranks, dtype=np.int64))
    full = run(
        fill_gaps,
        (
            Table(row_ptr, table.kind, table.stage, table.microbatch),
            Stages(
                table.placement.stage_rank[0].astype(np.int64), cost[Kind.F], cost[Kind.I], cost[Kind.W],
                _per_index(taken, stages), _per_index(kept, stages),
            ),
            _per_index(_NO_LIMIT if room is None else room, ranks),
            Rules(missing_weights, transfer, ends),
        ),
        (_slack(table, ends), filling, placed, heap),
        work=count,
    )  # fmt: skip
    _check(table, full, filling)
    schedule = Schedule.from_columns(table.placement, whole_ptr, kind.astype(np.int8), stage, microbatch)
    return Filled(schedule=schedule, start=np.maximum(filling.first, 0), end=filling.free)


def _start(table: Schedule) -> tuple[Filling, Heap]:
    zeros, ranks = partial(np.zeros, dtype=np.int64), table.ranks
    first_row = table.row_ptr[:-1].astype(np.int64)
    ready = np.full(2 * table.stages * table.microbatches, -1, dtype=np.int64)
    ready[: table.microbatches] = 0
    filling = Filling(
        ready=ready, next=first_row, due=first_row.copy(), pending_weights=zeros(ranks), held=zeros(ranks),
        idle=zeros(ranks),
        first=np.full(ranks, -1, dtype=np.int64), free=zeros(ranks),
    )  # fmt: skip
    return filling, Heap(item=zeros(ranks), place=np.full(ranks, OUTSIDE), time=zeros(ranks), size=zeros(1))


def _slack(table: Schedule, ends: Int64s) -> Slack:
    """Return unset latest starts."""
    if not ends.size:
        return Slack(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    latest = np.full(2 * table.stages * table.microbatches, UNKNOWN)
    return Slack(latest=latest, next=table.row_ptr[1:].astype(np.int64) - 1, end=ends.copy(), before=ends.copy())


def _per_index(values: object, size: int) -> Int64s:
    wide: Int64s = np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=np.int64), (size,)))
    return wide


def _check(table: Schedule, full: int, filling: Filling) -> None:
    """Check that all actions ran."""
    late = np.flatnonzero(filling.next < table.row_ptr[1:])
    if full < 0 and not late.size:
        return
    rank = full if full >= 0 else int(late[0])
    action = str(table.action(int(filling.next[rank])))
    why = "its memory holds no more: allow more" if full >= 0 else "its dependency comes later: change the order"
    raise ScheduleError(f"rank {rank}: {action} can never start: {why}", rank=rank, action=action)
