"""The end of a step: gradients are reduced over the replicas, all ranks meet, the optimizer updates each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.model.action import Kind
from pptrace.schedule.table import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.workload import Workload

__all__ = ["with_epilogue"]

_ENDS = (Kind.REDUCE_GRAD, Kind.OPTIMIZER)


class _Added(NamedTuple):
    at: int
    rank: int
    kind: Kind
    stage: int


def with_epilogue(schedule: Schedule, workload: Workload, *, overlap: bool) -> Schedule:
    """Add the reductions and optimizer updates that take time and that the table does not place itself.

    With ``overlap``, a stage's reduction is issued right behind its last backward on the rank. Else all
    reductions, the table's own among them, are at the row's end. Where ranks meet, each has one more reduction
    there, its last. Updates come last.
    """
    takes = {Kind.REDUCE_GRAD: workload.reduce_ns > 0, Kind.OPTIMIZER: workload.optimizer_ns > 0}
    meets = workload.sync_ns > 0
    if overlap and not meets and not any(stages.any() for stages in takes.values()):
        return schedule
    own = {kind: _held(schedule, np.flatnonzero(schedule.kind == kind)) for kind in _ENDS}
    table = schedule if overlap else _without_ends(schedule)
    last = _last_backward(table)
    added = []
    for kind in _ENDS:
        wanted = (last >= 0) & takes[kind] & ~own[kind]
        if table is not schedule:
            wanted |= own[kind]
        for rank, stage in np.argwhere(wanted).tolist():
            early = overlap and kind is Kind.REDUCE_GRAD
            at = _behind(table, int(last[rank, stage])) if early else int(table.row_ptr[rank + 1])
            added.append(_Added(at, rank, kind, stage))
    if meets:  # sorting is stable, so these follow the other reductions
        first = (last >= 0).argmax(axis=1)
        ranks = np.flatnonzero((last >= 0).any(axis=1)).tolist()
        added += [_Added(int(table.row_ptr[r + 1]), r, Kind.REDUCE_GRAD, int(first[r])) for r in ranks]
    return _insert(table, added) if added else table


def _ranks_of(schedule: Schedule) -> NDArray[np.int64]:
    return np.repeat(np.arange(schedule.ranks), np.diff(schedule.row_ptr))


def _held(schedule: Schedule, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which ranks have any of ``rows`` for which stages, shape (ranks, stages)."""
    held = np.zeros((schedule.ranks, schedule.stages), dtype=bool)
    if rows.size:
        held[_ranks_of(schedule)[rows], schedule.stage[rows]] = True
    return held


def _last_backward(schedule: Schedule) -> NDArray[np.int64]:
    """Return the position of each rank's last backward of each stage, -1 where there is none."""
    last = np.full((schedule.ranks, schedule.stages), -1, dtype=np.int64)
    backward = np.flatnonzero((schedule.kind >= Kind.B) & (schedule.kind <= Kind.W))
    last[_ranks_of(schedule)[backward], schedule.stage[backward]] = backward
    return last


def _without_ends(schedule: Schedule) -> Schedule:
    rows = np.flatnonzero((schedule.kind != Kind.REDUCE_GRAD) & (schedule.kind != Kind.OPTIMIZER))
    if rows.size == len(schedule):
        return schedule
    return Schedule.from_columns(
        schedule.placement, np.searchsorted(rows, schedule.row_ptr), schedule.kind[rows], schedule.stage[rows],
        schedule.unit[rows], span=schedule.span[rows], braid=schedule.braid[rows],
    )  # fmt: skip


def _behind(schedule: Schedule, row: int) -> int:
    """Return the position behind a row, or behind the braid that it belongs to."""
    braid = int(schedule.braid[row])
    row += 1
    while braid >= 0 and row < len(schedule) and schedule.braid[row] == braid:
        row += 1
    return row


def _insert(schedule: Schedule, added: list[_Added]) -> Schedule:
    added = sorted(added, key=lambda one: (one.at, one.rank, one.kind))
    at = [one.at for one in added]
    shift = np.cumsum([0, *np.bincount([one.rank for one in added], minlength=schedule.ranks)])
    return Schedule.from_columns(
        schedule.placement,
        schedule.row_ptr + shift,
        np.insert(schedule.kind, at, np.array([one.kind for one in added], dtype=np.int8)),
        np.insert(schedule.stage, at, np.array([one.stage for one in added], dtype=np.int32)),
        np.insert(schedule.unit, at, -1),
        span=np.insert(schedule.span, at, 1),
        braid=np.insert(schedule.braid, at, -1),
    )
