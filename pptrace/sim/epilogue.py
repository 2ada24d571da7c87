"""The end of a step: gradients are reduced over the replicas, then the optimizer updates each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import Kind
from pptrace.schedule.table import Schedule

if TYPE_CHECKING:
    from pptrace.model.workload import Workload

__all__ = ["with_epilogue"]


def with_epilogue(schedule: Schedule, workload: Workload, *, overlap: bool) -> Schedule:
    """Add the reductions and optimizer updates that take time and that the table does not place itself.

    With ``overlap``, a stage's reduction is issued right behind its last backward on the rank; else
    at the row's end. Updates come last.
    """
    if workload.stages != schedule.stages or not (workload.reduce_ns.any() or workload.optimizer_ns.any()):
        return schedule
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.row_ptr))
    last = np.full((schedule.ranks, schedule.stages), -1, dtype=np.int64)
    backward = np.flatnonzero(np.isin(schedule.kind, (Kind.B, Kind.I, Kind.W)))
    last[rank[backward], schedule.stage[backward]] = backward
    added: list[tuple[int, Kind, int]] = []
    for kind, takes, early in (
        (Kind.REDUCE_GRAD, workload.reduce_ns > 0, overlap),
        (Kind.OPTIMIZER, workload.optimizer_ns > 0, False),
    ):
        present = np.zeros_like(last, dtype=bool)
        own = np.flatnonzero(schedule.kind == kind)
        present[rank[own], schedule.stage[own]] = True
        for r, stage in np.argwhere((last >= 0) & ~present & takes):
            at = _behind(schedule, int(last[r, stage])) if early else int(schedule.row_ptr[r + 1])
            added.append((at, kind, int(stage)))
    return _insert(schedule, added) if added else schedule


def _behind(schedule: Schedule, row: int) -> int:
    """Return the position behind a row, or behind the braid that it belongs to."""
    braid = int(schedule.braid[row])
    row += 1
    while braid >= 0 and row < len(schedule) and schedule.braid[row] == braid:
        row += 1
    return row


def _insert(schedule: Schedule, added: list[tuple[int, Kind, int]]) -> Schedule:
    at = np.array([position for position, _, _ in added])
    kinds = np.array([kind for _, kind, _ in added], dtype=np.int8)
    stages = np.array([stage for _, _, stage in added], dtype=np.int32)
    # Every insertion is behind some action of its rank, so the position before it tells the rank.
    owner = np.searchsorted(schedule.row_ptr, at - 1, side="right") - 1
    shift = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=schedule.ranks))])
    order = np.lexsort((kinds, at))
    return Schedule.from_columns(
        schedule.placement,
        schedule.row_ptr + shift,
        np.insert(schedule.kind, at[order], kinds[order]),
        np.insert(schedule.stage, at[order], stages[order]),
        np.insert(schedule.unit, at[order], -1),
        span=np.insert(schedule.span, at[order], 1),
        braid=np.insert(schedule.braid, at[order], -1),
    )
