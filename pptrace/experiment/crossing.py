"""Copies that cross none in the other direction, which take a share of their time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.timeline.timeline import Timeline

__all__ = ["sooner_alone"]


def sooner_alone(workload: Workload, timeline: Timeline, microbatches: int, share: float, group: int) -> Workload:
    """Return costs in which copies take a share of their time for as long as they cross none.

    A copy that takes d, and of that runs beside copies in the other direction for x, takes x + share (d - x).

    Args:
        workload: costs of copies that always cross others.
        timeline: a step with these costs.
        microbatches: of that step.
        share: time of a copy that crosses none, as a part of what it has otherwise.
        group: neighbouring ranks whose copies cross each other, those behind one switch.
    """
    shape = workload.stages, microbatches
    crossed = np.ones((2, *shape))
    kinds = Kind.OFFLOAD, Kind.RELOAD
    rows = [np.flatnonzero(timeline.kind == kind) for kind in kinds]
    for into, own, others in zip(crossed, rows, rows[::-1], strict=True):
        beside = _beside(timeline, own, others, group) / np.maximum(timeline.end_ns - timeline.start_ns, 1)[own]
        for offset in range(int(timeline.span[own].max(initial=0))):
            of = timeline.span[own] > offset
            into[timeline.stage[own[of]], timeline.microbatch[own[of]] + offset] = beside[of]
    used = workload.microbatch_class if workload.classes else np.zeros(shape[1], dtype=np.int32)
    costs = workload, *workload.classes
    part = share + (1 - share) * crossed
    times = np.stack([
        (np.stack([getattr(one, name) for one in costs])[used].T * by).astype(np.int64)
        for name, by in zip(("offload_ns", "reload_ns"), part, strict=True)
    ])  # fmt: skip
    patterns = np.concatenate([used[:, None], times.transpose(2, 0, 1).reshape(shape[1], -1)], axis=1)
    _, first, classes = np.unique(patterns, axis=0, return_index=True, return_inverse=True)
    made = tuple(
        replace(
            costs[used[one]], classes=(), microbatch_class=np.zeros(0, dtype=np.int32),
            offload_ns=times[0, :, one].copy(), reload_ns=times[1, :, one].copy(),
        )
        for one in first.tolist()
    )  # fmt: skip
    return replace(workload, classes=made, microbatch_class=(classes.ravel() + 1).astype(np.int32))


def _beside(timeline: Timeline, rows: NDArray[np.int64], others: NDArray[np.int64], group: int) -> Int64s:
    """Return for how long each row runs beside others of its group, which follow one another there."""
    rank = timeline.rank_of_row() // group
    beside = np.zeros(rows.size, dtype=np.int64)
    for one in np.unique(rank[rows]).tolist():
        own, other = np.flatnonzero(rank[rows] == one), others[rank[others] == one]
        start, end = np.sort(timeline.start_ns[other]), np.sort(timeline.end_ns[other])
        busy = np.concatenate([[0], np.cumsum(end - start)])

        def until(time: Int64s, start: Int64s = start, busy: Int64s = busy, end: Int64s = end) -> Int64s:
            begun = np.searchsorted(start, time)
            late = np.maximum(end[begun - 1] - time, 0) if end.size else 0
            found: Int64s = busy[begun] - np.where(begun > 0, late, 0)
            return found

        beside[own] = until(timeline.end_ns[rows[own]]) - until(timeline.start_ns[rows[own]])
    return beside
