"""Traversal of a table along its dependencies, and the cycle of a deadlock."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.errors import DeadlockError
from pptrace.steps.columns import empty_columns, unset
from pptrace.steps.kernels.heap import Heap
from pptrace.steps.kernels.tables import Traversal, place_messages
from pptrace.steps.kinds import TABLE, Result
from pptrace.steps.schedule import graph_of, index_schedule
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.steps.actions import CellColumns
    from pptrace.steps.columns import Int32s
    from pptrace.steps.schedule import Positions, Schedule, StageGraph


class IssueColumns(NamedTuple):
    """Columns of an issue order that a kernel fills."""

    row_ptr: Int32s
    cells: CellColumns
    edge: Int32s


def empty(schedule: Schedule, rows: int) -> IssueColumns:
    """Return unfilled columns for ``rows`` rows of a schedule and its messages."""
    (edge,) = empty_columns(rows, np.int32)
    return IssueColumns(np.zeros(schedule.ranks + 1, dtype=np.int32), schedule.cells.empty(rows), edge)


def traverse(schedule: Schedule, out: IssueColumns | None = None) -> tuple[int, Int32s]:
    """Visit actions in dependency order, rank by rank in rounds.

    Args:
        schedule: the table.
        out: columns for the actions and their messages; ``row_ptr`` is set.

    Returns:
        The number of visited actions, and the position of each rank's next action.
    """
    placement, issued = schedule.placement, out or empty(schedule, 0)
    ranks, results = schedule.ranks, 2 * placement.stages * placement.microbatches
    head, write, dependency_row, edge, offset, item, time = (np.zeros(ranks, dtype=np.int32) for _ in range(7))
    state = Traversal(
        head=head, write=write, done=np.zeros(results, dtype=np.int8), dependency_row=dependency_row, edge=edge,
        offset=offset,
        waiting=unset(results), next_waiting=unset(ranks), running=np.zeros(2 * ranks, dtype=np.int32),
        released=Heap(item=item, place=unset(ranks), time=time, size=np.zeros(1, dtype=np.int32)),
    )  # fmt: skip
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


SHOWN = 12
"""Number of actions of a cycle that an error names."""


def explain_deadlock(schedule: Schedule) -> DeadlockError:
    """Return the error, with its cycle, for a deadlocked schedule without other faults."""
    _, next_position = traverse(schedule)
    head = next_position.tolist()
    graph, positions = graph_of(schedule.placement), index_schedule(schedule)
    rank = next(r for r in range(schedule.ranks) if head[r] < schedule.row_ptr[r + 1])
    chain: list[str] = []
    visited: dict[int, int] = {}
    awaited = -1
    while True:
        row, needed = next(_waits(schedule, head, rank, graph, positions))
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
    """Return a cycle as one line of at most 12 actions, without adjacent repetitions.

    >>> cycle_text(["rank 0: 0B0", "rank 1: 1B0", "rank 1: 1B0"])
    'rank 0: 0B0 -> rank 1: 1B0 -> rank 0: 0B0'
    """
    cycle = [name for name, _ in groupby(cycle)]  # segments of one action have equal names
    if len(cycle) > 1 and cycle[-1] == cycle[0]:
        cycle.pop()
    shown = list(cycle[:SHOWN])
    if len(cycle) > SHOWN:
        shown.append(f"... {len(cycle) - SHOWN} more ...")
    return " -> ".join([*shown, cycle[0]])


def _waits(
    schedule: Schedule, head: Sequence[int], rank: int, graph: StageGraph, positions: Positions
) -> Iterator[tuple[int, int]]:
    """Yield each waiting row of a rank's blocked action or overlapped pair, and the row that it waits for."""
    placement, has_messages = schedule.placement, schedule.has_communication
    for row in _pair_rows(schedule, head[rank], int(schedule.row_ptr[rank + 1])):
        stage = int(schedule.stage[row])
        feeds = int(TABLE.feeds[schedule.kind[row]])
        if feeds < 0:
            continue
        forward = feeds == 0
        ptr, neighbours = (graph.pred_ptr, graph.pred) if forward else (graph.succ_ptr, graph.succ)
        computed = positions.of(Result.ACTIVATION if forward else Result.GRADIENT)
        sent = positions.of(Result.SENT_ACTIVATION if forward else Result.SENT_GRADIENT)
        for microbatch in range(int(schedule.microbatch[row]), int(schedule.microbatch[row] + schedule.span[row])):
            for neighbour in neighbours[ptr[stage] : ptr[stage + 1]].tolist():
                peer = placement.rank_of(neighbour, microbatch, backward=not forward)
                if peer < 0:
                    continue
                awaited = sent if has_messages and peer != rank else computed
                if awaited[neighbour, microbatch] >= head[peer]:
                    yield row, int(awaited[neighbour, microbatch])


def _pair_rows(schedule: Schedule, first: int, end: int) -> Iterator[int]:
    """Yield the position of an action, or of each member of the overlapped pair that begins there."""
    yield first
    pair = schedule.pair[first]
    row = first + 1
    while pair >= 0 and row < end and schedule.pair[row] == pair:
        yield row
        row += 1
