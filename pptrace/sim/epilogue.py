"""The end of a step: gradients are reduced over replicas, all ranks meet, the optimizer updates each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.cells import group_starts
from pptrace.model.kinds import BACKWARD, STAGE_ENDS, Kind
from pptrace.schedule.inserted import inserted_of_stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.workload import Workload
    from pptrace.schedule.table import Schedule

__all__ = ["with_epilogue"]

_LATE = (Kind.SYNC, Kind.OPTIMIZER)
"""What comes behind all reductions of its rank, in this order."""


def with_epilogue(schedule: Schedule, workload: Workload, *, overlap: bool) -> Schedule:
    """Add the reductions, meetings and optimizer updates that take time and that the table does not place itself.

    With ``overlap``, a stage's reduction is issued right behind its last backward on the rank. Else all
    reductions, the table's own among them, are at the row's end. There each rank meets the others once, before
    its updates.
    """
    takes = {kind: workload.duration_ns(kind) > 0 for kind in (Kind.REDUCE_GRAD, *_LATE)}
    if overlap and not any(stages.any() for stages in takes.values()):
        return schedule
    own = {kind: _held(schedule, kind) for kind in STAGE_ENDS}
    table = schedule if overlap else schedule.selected(np.flatnonzero(~STAGE_ENDS.mask(schedule.kind)))
    last = _last_backward(table)
    ends = table.row_ptr[1:, None]
    added = []
    for kind in (Kind.REDUCE_GRAD, *_LATE):
        wanted = (last >= 0) & takes[kind]
        if kind is Kind.SYNC:
            wanted[:, 1:] &= ~np.logical_or.accumulate(wanted, axis=1)[:, :-1]
        elif table is schedule:
            wanted &= ~own[kind]
        else:
            wanted |= own[kind]
        early = overlap and kind is Kind.REDUCE_GRAD
        at = _behind(table, last) if early else np.broadcast_to(ends, last.shape)
        rank, stage = np.nonzero(wanted)
        added.append(np.stack([at[rank, stage], rank, np.full(rank.size, kind), stage]))
    return inserted_of_stages(table, np.concatenate(added, axis=1))


def _held(schedule: Schedule, kind: Kind) -> NDArray[np.bool_]:
    """Return which ranks have an action of a kind for which stages, shape (ranks, stages)."""
    held = np.zeros((schedule.ranks, schedule.stages), dtype=bool)
    rows = np.flatnonzero(schedule.kind == kind)
    held[schedule.rank_of_row()[rows], schedule.stage[rows]] = True
    return held


def _last_backward(schedule: Schedule) -> NDArray[np.int64]:
    """Return the position of each rank's last backward of each stage, -1 where there is none."""
    last = np.full((schedule.ranks, schedule.stages), -1, dtype=np.int64)
    backward = np.flatnonzero(BACKWARD.mask(schedule.kind))
    last[schedule.rank_of_row()[backward], schedule.stage[backward]] = backward
    return last


def _behind(schedule: Schedule, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions behind some rows, or behind the overlapped pairs that they belong to."""
    starts = group_starts(schedule.pair, schedule.row_ptr)
    return np.append(starts, len(schedule))[np.searchsorted(starts, rows, side="right")]
