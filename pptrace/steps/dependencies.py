"""Traversal of a table along its dependencies, and the cycle of a deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.errors import DeadlockError
from pptrace.steps.actions import CELL, CellColumns
from pptrace.steps.columns import empty_columns, unset
from pptrace.steps.kernels.heap import Heap
from pptrace.steps.kernels.traversal import Walk, place_messages
from pptrace.steps.kinds import TABLE, Result
from pptrace.steps.schedule import graph_of, index_schedule
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.steps.columns import Int32s
    from pptrace.steps.schedule import Positions, Schedule, StageGraph


class Issued(NamedTuple):
    """An issue order to be filled."""

    row_ptr: Int32s
    cells: CellColumns
    edge: Int32s


def empty(rows: int, ranks: int) -> Issued:
    """Return one with room for so many rows."""
    *cells, edge = empty_columns(rows, *(np.int8 if name == "kind" else np.int32 for name in CELL), np.int32)
    return Issued(np.zeros(ranks + 1, dtype=np.int32), CellColumns(*cells), edge)


def walk(schedule: Schedule, out: Issued | None = None) -> tuple[int, Int32s]:
    """Walk the ranks in rounds; return the actions walked and each rank's next position.

    With ``out`` (its ``row_ptr`` set), the actions and their messages are written there.
    """
    placement, issued = schedule.placement, out or empty(0, schedule.ranks)
    state = _start(schedule.ranks, 2 * placement.stages * placement.microbatches)
    walked = run(
        place_messages,
        (
            schedule.row_ptr, schedule.cells, graph_of(placement), TABLE,
            issued.row_ptr.copy(), int(out is not None), int(schedule.has_communication),
        ),
        (state, issued.cells, issued.edge),
        work=len(schedule),
    )  # fmt: skip
    return walked, state.head


def _start(ranks: int, cells: int) -> Walk:
    """Return the state of a walk before its first round."""
    head, write, needy, edge, offset, item, time = (np.zeros(ranks, dtype=np.int32) for _ in range(7))
    return Walk(
        head=head, write=write, done=np.zeros(cells, dtype=np.int8), needy=needy, edge=edge, offset=offset,
        waiting=unset(cells), next_waiting=unset(ranks), running=np.zeros(2 * ranks, dtype=np.int32),
        woken=Heap(item=item, place=unset(ranks), time=time, size=np.zeros(1, dtype=np.int32)),
    )  # fmt: skip


SHOWN = 12
"""Actions of a cycle that are spelled out; the rest is counted."""


def explain_deadlock(schedule: Schedule) -> DeadlockError:
    """Return the error for a schedule whose walk gets stuck (index it without problem first)."""
    _, stuck = walk(schedule)
    head = stuck.tolist()
    near, positions = graph_of(schedule.placement), index_schedule(schedule)
    rank = next(r for r in range(schedule.ranks) if head[r] < schedule.row_ptr[r + 1])
    chain: list[str] = []
    visited: dict[int, int] = {}
    awaited = -1
    while True:
        row, needed = next(_waits(schedule, head, rank, near, positions))
        if awaited not in {-1, row}:
            chain.append(f"rank {rank}: {schedule.action(awaited)}")
        if rank in visited:
            break
        visited[rank] = len(chain)
        chain.append(f"rank {rank}: {schedule.action(row)}")
        awaited, rank = needed, schedule.rank_at(needed)
    cycle = chain[visited[rank] :]
    return DeadlockError(
        f"the schedule deadlocks: {cycle_text(cycle)}; each action waits for the next: "
        f"change the order on one of these ranks",
        cycle=cycle,
    )


def cycle_text(cycle: Sequence[str]) -> str:
    """Return a cycle on one line, at most 12 actions spelled out, and once those that follow themselves.

    >>> cycle_text(["rank 0: 0B0", "rank 1: 1B0", "rank 1: 1B0"])
    'rank 0: 0B0 -> rank 1: 1B0 -> rank 0: 0B0'
    """
    cycle = [
        one for one, before in zip(cycle, [None, *cycle], strict=False) if one != before
    ]  # segments of one action
    if len(cycle) > 1 and cycle[-1] == cycle[0]:
        cycle.pop()
    shown = list(cycle[:SHOWN])
    if len(cycle) > SHOWN:
        shown.append(f"... {len(cycle) - SHOWN} more ...")
    return " -> ".join([*shown, cycle[0]])


def _waits(
    schedule: Schedule, head: Sequence[int], rank: int, near: StageGraph, positions: Positions
) -> Iterator[tuple[int, int]]:
    """Yield each waiting row of a rank's blocked action or overlapped pair, and the row that it waits for."""
    placement, own = schedule.placement, schedule.has_communication
    for row in _together(schedule, head[rank], int(schedule.row_ptr[rank + 1])):
        stage = int(schedule.stage[row])
        way = int(TABLE.feeds[schedule.kind[row]])
        if way < 0:
            continue
        forward = way == 0
        ptr, others = (near.pred_ptr, near.pred) if forward else (near.succ_ptr, near.succ)
        computed = positions.of(Result.ACTIVATION if forward else Result.GRADIENT)
        sent = positions.of(Result.SENT_ACTIVATION if forward else Result.SENT_GRADIENT)
        for microbatch in range(int(schedule.microbatch[row]), int(schedule.microbatch[row] + schedule.span[row])):
            for other in others[ptr[stage] : ptr[stage + 1]]:
                at = placement.rank_of(int(other), microbatch)
                if at < 0:
                    continue
                needed = int(sent[other, microbatch] if own and at != rank else computed[other, microbatch])
                if needed >= head[at]:
                    yield row, needed


def _together(schedule: Schedule, first: int, end: int) -> Iterator[int]:
    """Yield the position of an action, or of each member of the overlapped pair that begins there."""
    yield first
    pair = schedule.pair[first]
    row = first + 1
    while pair >= 0 and row < end and schedule.pair[row] == pair:
        yield row
        row += 1
