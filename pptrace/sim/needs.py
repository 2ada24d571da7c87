"""What waits beside streams and messages: reductions and meetings at a step's end, and what a table asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.model.kinds import BACKWARD, COMPUTE, Kind, KindSet, Stream
from pptrace.sim.chains import of_all
from pptrace.sim.records import Pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int8s, Int32s, Int64s
    from pptrace.model.placement import Placement
    from pptrace.schedule.table import Schedule
    from pptrace.sim.lanes import Lanes
    from pptrace.sim.records import TaskColumns

__all__ = ["Needs", "needs_of", "with_further"]

_COMPUTED = [Stream.COMPUTE, *(stream for stream in Stream if stream.is_group)]
"""Streams of actions and of their segments."""
_PASSES = COMPUTE.mask(np.arange(len(Kind)))
_MEETINGS = KindSet({Kind.SYNC})
_ENDS = KindSet({Kind.SYNC, Kind.REDUCE_GRAD})


class Needs(NamedTuple):
    """What waits for other ranks and replicas."""

    edges: list[Pairs]
    tasks: int
    """The step's tasks, with those through which ranks and replicas meet."""
    released_ns: Int64s
    """Times of the last of these tasks, one per stage; none where no replica is waited for."""


def needs_of(
    schedule: Schedule,
    released_ns: Int64s,
    cells: CellColumns,
    lanes: Lanes,
    tasks: int,
    *,
    barrier: bool,
    stage_replicas: bool,
) -> Needs:
    """Return what the rows of a schedule wait for beside streams and messages, behind so many tasks.

    Args:
        schedule: the table.
        released_ns: when other replicas have computed each stage's gradients.
        cells: the rows, lane by lane.
        lanes: where each lane is.
        tasks: rows, and what else has a task of its own.
        barrier: whether reductions wait until all is computed.
        stage_replicas: whether they wait for all ranks that hold their stage.
    """
    hub = _behind_all_ranks(cells, lanes, tasks, barrier=barrier)
    holders = _behind_holders(cells, lanes, schedule.placement) if stage_replicas and not barrier else None
    further = _further_waits(cells, schedule.waits, schedule.placement.microbatches)
    tasks += hub is not None
    others = _behind_others(cells, released_ns, tasks, barrier=barrier)
    edges = [found for found in (hub, holders, further, others) if found is not None]
    released = released_ns if others is not None else released_ns[:0]
    return Needs(edges, tasks + released.size, released)


def with_further(task: TaskColumns, needs: Needs) -> TaskColumns:
    """Return the columns of all tasks: what is waited through takes no time but for that of other replicas."""
    task = task._replace(
        duration_ns=of_all(task.duration_ns, needs.tasks), lag_ns=of_all(task.lag_ns, needs.tasks)
    )
    if needs.released_ns.size:
        task.duration_ns[-needs.released_ns.size :] = needs.released_ns
    return task


def _behind_all_ranks(cells: CellColumns, lanes: Lanes, hub: int, *, barrier: bool) -> Pairs | None:
    """Return the edges by which ranks meet, through a task ``hub``; with ``barrier``, reductions wait too."""
    behind = np.flatnonzero((_ENDS if barrier else _MEETINGS).mask(cells.kind)).astype(np.int32)
    if not behind.size:
        return None
    before = _last_computations(lanes, cells.kind)
    return Pairs(
        np.concatenate([before, np.full(behind.size, hub, dtype=np.int32)]),
        np.concatenate([np.full(before.size, hub, dtype=np.int32), behind]),
    )


def _last_computations(lanes: Lanes, kind: Int8s) -> Int32s:
    """Return each rank's last row of the pipeline on its compute stream, and on those of segments."""
    last: list[int] = []
    for lane in np.flatnonzero(np.isin(lanes.lane_stream, _COMPUTED)).tolist():
        low, high = int(lanes.lane_ptr[lane]), int(lanes.lane_ptr[lane + 1])
        segments = lanes.lane_stream[lane] != Stream.COMPUTE
        while high > low and (kind[high - 1] == Kind.OPTIMIZER or (segments and not _PASSES[kind[high - 1]])):
            high -= 1
        if high > low:
            last.append(high - 1)
    return np.array(last, dtype=np.int32)


def _behind_holders(cells: CellColumns, lanes: Lanes, placement: Placement) -> Pairs | None:
    """Return edges to reductions of a stage from the last backward of it on the other ranks that hold it."""
    kind, stage = cells.kind, cells.stage
    reductions = np.flatnonzero(kind == Kind.REDUCE_GRAD)
    reductions = reductions[placement.copies().sum(axis=0)[stage[reductions]] > 1]
    if not reductions.size:
        return None
    lane = np.repeat(np.arange(lanes.lane_rank.size), np.diff(lanes.lane_ptr))
    backward = np.flatnonzero(BACKWARD.mask(kind))
    last = np.full((lanes.lane_rank.size, placement.stages), -1, dtype=np.int64)
    np.maximum.at(last.ravel(), lane[backward] * placement.stages + stage[backward], backward)
    which, other = np.nonzero(last.T[stage[reductions]] >= 0)
    away = lanes.lane_rank[other] != lanes.lane_rank[lane[reductions[which]]]
    which, other = which[away], other[away]
    return Pairs(last[other, stage[reductions[which]]].astype(np.int32), reductions[which].astype(np.int32))


def _behind_others(cells: CellColumns, released_ns: Int64s, first: int, *, barrier: bool) -> Pairs | None:
    """Return the edges by which reductions and meetings wait for other replicas, through a task for each stage.

    Args:
        cells: the rows.
        released_ns: when the others have computed each stage's gradients.
        first: the task of the first stage.
        barrier: whether reductions wait until all is computed.
    """
    if not released_ns.any():
        return None
    rows = np.flatnonzero(_ENDS.mask(cells.kind)).astype(np.int32)
    all_computed = barrier | (cells.kind[rows] == Kind.SYNC)
    stage = np.where(all_computed, int(np.argmax(released_ns)), cells.stage[rows])
    return Pairs((first + stage).astype(np.int32), rows)


def _further_waits(cells: CellColumns, waits: Sequence[Int32s], microbatches: int) -> Pairs | None:
    """Return the edges that :attr:`Schedule.waits` asks for; of what waits, the first row does."""
    if not waits:
        return None
    stages = int(cells.stage.max(initial=0)) + 1

    def number(kind: Int32s, stage: Int32s, microbatch: Int32s) -> NDArray[np.int64]:
        return (kind.astype(np.int64) * stages + stage) * microbatches + microbatch

    asked = np.concatenate(waits)
    kinds = np.unique(asked[:, [0, 3]])
    rows = np.flatnonzero(np.isin(cells.kind, kinds) & (cells.microbatch >= 0)).astype(np.int32)
    own = number(cells.kind[rows], cells.stage[rows], cells.microbatch[rows])
    order = np.argsort(own, kind="stable")
    rows, own = rows[order], own[order]
    before = np.searchsorted(own, number(*asked[:, :3].T), side="right") - 1
    return Pairs(rows[before], rows[np.searchsorted(own, number(*asked[:, 3:].T))])
