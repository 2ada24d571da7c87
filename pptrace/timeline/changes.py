"""What each row of a timeline takes of its rank's memory, or frees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import WEIGHT_GRADIENTS, Kind, Result
from pptrace.timeline.actions import last_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.timeline.timeline import Timeline

__all__ = ["gathered_changes", "memory_changes", "unreduced_changes"]


def memory_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of activations that rows take at their starts or, below zero, free at their ends.

    Of an action in segments, the first takes and the last frees what the action does, unless the workload says
    what each of them does.
    """
    again = _computed_again(timeline, rows)
    whole = _of_actions(timeline, workload, rows, again)
    if timeline.parts is None:
        return whole
    number = timeline.parts.number[rows]
    last = last_segments(timeline)[rows] == rows
    delta: Int64s = np.where((number < 0) | np.where(whole > 0, number == 0, last), whole, 0)
    told = (number >= 0) & (again == 0) & (TABLE.recomputed[timeline.kind[rows]] == 0)
    for place in np.flatnonzero(told).tolist() if _says_changes(workload) else ():
        own = _given(timeline, workload, int(rows[place]))
        if own is not None:
            delta[place] = own[int(number[place])] * int(timeline.span[rows[place]])
    return delta


def gathered_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of weights that a rank's gathers take at their starts, and what frees them at its end.

    A stage that is gathered again before it is freed takes no more: layer by layer, one follows the other.
    """
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    delta = np.zeros(rows.size, dtype=np.int64)
    gathers = kind == Kind.UNSHARD
    for one in np.unique(stage[gathers]).tolist():
        events = np.flatnonzero((gathers | (kind == Kind.RESHARD)) & (stage == one))
        sign = np.where(gathers[events], 1, -1)
        at = np.where(sign > 0, timeline.start_ns[rows[events]], timeline.end_ns[rows[events]])
        order = np.lexsort((sign, at))
        there = sign[order].cumsum()
        changed = events[order[(there > 0) != (np.append([0], there[:-1]) > 0)]]
        delta[changed] = np.where(gathers[changed], 1, -1) * workload.gathered_bytes[one]
    return delta


def unreduced_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of whole gradients that a rank's rows take at their starts or free at their ends.

    The first backward behind a reduction takes them, and the next reduction frees them: of several, the one that
    was issued next.
    """
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    delta = np.zeros(rows.size, dtype=np.int64)
    backward = WEIGHT_GRADIENTS.mask(kind)
    for one in np.unique(stage[backward]).tolist():
        backs = np.flatnonzero(backward & (stage == one))
        backs = backs[np.argsort(timeline.start_ns[rows[backs]], kind="stable")]
        reductions = np.flatnonzero((kind == Kind.REDUCE_GRAD) & (stage == one))
        issued = timeline.enter_ns[rows[reductions]]
        order = np.argsort(issued, kind="stable")
        group = np.searchsorted(issued[order], timeline.end_ns[rows[backs]], side="left")
        groups, first = np.unique(group, return_index=True)
        delta[backs[first]] = workload.unreduced_bytes[one]
        reduced = reductions[order][groups[groups < reductions.size]]
        delta[reduced] = -workload.unreduced_bytes[one]
    return delta


def _of_actions(timeline: Timeline, workload: Workload, rows: Int64s, again: Int64s) -> Int64s:
    kind, stage, microbatch = timeline.kind[rows], timeline.stage[rows], timeline.microbatch[rows]
    classes = (workload, *workload.classes)
    used = workload.microbatch_class
    by_class = np.where(microbatch < 0, 0, used[microbatch]) if used.size else np.zeros(rows.size, dtype=np.int64)

    def each(size_bytes: Callable[[Workload], Int64s]) -> Int64s:
        found: Int64s = np.stack([size_bytes(one) for one in classes])[by_class, stage]
        return found

    span = timeline.span[rows]
    total = TABLE.activation[kind] * each(lambda one: one.activation_bytes) * span
    total += TABLE.weight_activation[kind] * each(lambda one: one.weight_activation_bytes) * span
    total += TABLE.copied[kind] * each(lambda one: one.copied_bytes) * span
    left_out = each(lambda one: one.activation_bytes - one.checkpoint_bytes)
    total += (TABLE.recomputed[kind] * span - again) * left_out
    return total


def _computed_again(timeline: Timeline, rows: Int64s) -> Int64s:
    """Return on how many microbatches each row works forward that are computed again later."""
    recomputes = np.flatnonzero(TABLE.recomputed[timeline.kind])
    if not recomputes.size:
        return np.zeros(rows.size, dtype=np.int64)
    placement = timeline.placement
    count = np.zeros((placement.stages, placement.microbatches + 1), dtype=np.int64)
    first = timeline.microbatch[recomputes]
    for offset in range(int(timeline.span[recomputes].max())):
        inside = offset < timeline.span[recomputes]
        count[timeline.stage[recomputes[inside]], first[inside] + offset + 1] = 1
    count = count.cumsum(axis=1)
    stage, microbatch = timeline.stage[rows], timeline.microbatch[rows]
    forwards = TABLE.result[timeline.kind[rows]] == Result.ACTIVATION
    return np.where(forwards, count[stage, microbatch + timeline.span[rows]] - count[stage, microbatch], 0)


def _says_changes(workload: Workload) -> bool:
    costs = (workload, *workload.classes)
    stages = [own for one in costs for stages in one.segments.values() for own in stages]
    return any(segment.activation_bytes is not None for own in stages for segment in own)


def _given(timeline: Timeline, workload: Workload, row: int) -> list[int] | None:
    """Return what the workload says of each segment of a row's action; None where it says nothing."""
    microbatch, used = int(timeline.microbatch[row]), workload.microbatch_class
    costs = workload.of_class(int(used[microbatch]) if used.size and microbatch >= 0 else 0)
    stages = costs.segments.get(Kind(int(timeline.kind[row])))
    if stages is None:
        return None
    own = [one.activation_bytes for one in stages[int(timeline.stage[row])]]
    return None if all(change is None for change in own) else [change or 0 for change in own]
