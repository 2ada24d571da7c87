"""Which activations there is time to copy to the host, and when, going by a step without copies.

Source: Wan et al., PipeOffload, ICML 2025, arXiv:2503.01328, and the authors' ``offloading.py``: copies out as
early as they can be, copies back as late as they may be, and none of what is needed again soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.model.kinds import COMPUTE, GRADIENTS, STAGE_ENDS, Kind, Stream
from pptrace.schedule.inserted import blocks_of, worked
from pptrace.timeline.folded import folded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.schedule.table import Schedule
    from pptrace.timeline.timeline import Timeline

__all__ = ["Plan", "copies_alone", "copy_turns", "plan_of"]


class Plan(NamedTuple):
    """When a table's rows run without copies, and what copies take; times by stage and microbatch."""

    schedule: Schedule
    start_ns: Int64s
    """Shape (actions,): when each computation of the table starts; 0 for what does not compute."""
    end_ns: Int64s
    """The same of ends."""
    forward_end_ns: Int64s
    """Shape (stages, microbatches)."""
    backward_start_ns: Int64s
    out_ns: Int64s
    """What a copy out takes."""
    back_ns: Int64s
    """What a copy back takes."""

    def long_enough(self, times: float) -> NDArray[np.bool_]:
        """Return which activations wait longer than so many times what their copies take."""
        waits = self.backward_start_ns - self.forward_end_ns
        found: NDArray[np.bool_] = (waits > times * (self.out_ns + self.back_ns)) | (times == 0)
        return found

    def latest(self, chosen: NDArray[np.bool_]) -> Int64s:
        """Return how many blocks ahead of its backward each chosen copy back starts in time, and no earlier.

        Copies back of a rank follow one another, each done before its backward and before the next one starts.
        """
        schedule, blocks = self.schedule, blocks_of(self.schedule)
        ahead = np.zeros(chosen.shape, dtype=np.int64)
        ends = self.end_ns[blocks.last]
        first_block = np.searchsorted(blocks.first, schedule.row_ptr)
        rows = np.flatnonzero(GRADIENTS.mask(schedule.kind))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        first_row = np.searchsorted(rows, schedule.row_ptr)
        for rank in range(schedule.ranks):
            own = rows[first_row[rank] : first_row[rank + 1]]
            number, stage, microbatch = worked(schedule, own)
            took = np.bincount(number, weights=self.back_ns[stage, microbatch], minlength=own.size).astype(
                np.int64
            )
            before = np.concatenate([[0], np.cumsum(took)])
            slack = self.start_ns[own] - before[1:]
            latest = before[:-1] + np.minimum.accumulate(slack[::-1])[::-1]
            low, high = first_block[rank], first_block[rank + 1]
            started = low + np.searchsorted(ends[low:high], latest, side="right")
            ahead[stage, microbatch] = np.maximum(blocks.of_row[own] - started, 0)[number]
        return ahead


def copies_alone(schedule: Schedule) -> NDArray[np.bool_]:
    """Return which copies of a table cross no copy in the other direction of their rank.

    Those are the copies out of what is forwarded before a rank's first backward, and the copies back for the
    backwards behind its last forward.

    Returns:
        Shape (2, stages, microbatches): of copies out and of copies back.
    """
    alone = np.zeros((2, schedule.stages, schedule.microbatches), dtype=bool)
    for into, kinds, others, later in (
        (alone[0], schedule.kind == Kind.F, GRADIENTS.mask(schedule.kind), False),
        (alone[1], GRADIENTS.mask(schedule.kind), schedule.kind == Kind.F, True),
    ):
        before = np.concatenate([[0], np.cumsum(others)])
        begin, end = (
            np.repeat(before[side], np.diff(schedule.row_ptr))
            for side in (schedule.row_ptr[:-1], schedule.row_ptr[1:])
        )
        own = np.flatnonzero(kinds & (before[:-1] == (end if later else begin)))
        _, stage, microbatch = worked(schedule, own)
        into[stage, microbatch] = True
    return alone


def plan_of(schedule: Schedule, timeline: Timeline, workload: Workload) -> Plan:
    """Return the plan of a table that ran as a timeline, without copies."""
    timeline = folded(timeline)
    mask = COMPUTE.mask(timeline.kind) & ~STAGE_ENDS.mask(timeline.kind)
    lanes = np.repeat(timeline.lane_stream == Stream.COMPUTE, np.diff(timeline.lane_ptr))
    rows, there = np.flatnonzero(mask & lanes), np.flatnonzero(blocks_of(schedule).of_row >= 0)
    start, end = np.zeros((2, len(schedule)), dtype=np.int64)
    start[there], end[there] = timeline.start_ns[rows], timeline.end_ns[rows]
    shape = schedule.stages, schedule.microbatches
    forward_end, backward_start = np.zeros((2, *shape), dtype=np.int64)
    for into, times, kinds in (
        (forward_end, end, schedule.kind == Kind.F), (backward_start, start, GRADIENTS.mask(schedule.kind))
    ):  # fmt: skip
        own = np.flatnonzero(kinds)
        number, stage, microbatch = worked(schedule, own)
        into[stage, microbatch] = times[own][number]
    return Plan(schedule, start, end, forward_end, backward_start, *_copies(workload, shape))


def _copies(workload: Workload, shape: tuple[int, int]) -> tuple[Int64s, Int64s]:
    """Return what copies out and back take, by stage and microbatch."""
    used = workload.microbatch_class if workload.classes else np.zeros(shape[1], dtype=np.int32)
    costs = (workload, *workload.classes)
    out, back = (
        np.stack([getattr(one, name) for one in costs])[used].T.copy() for name in ("offload_ns", "reload_ns")
    )
    return out, back


def copy_turns(schedule: Schedule, plan: Plan, group: int) -> tuple[NDArray[np.int32], ...]:
    """Return the waits of copies where ``group`` neighbouring ranks share a stream for each direction.

    Copies follow one another in the order in which their ranks get to them in the plan.
    """
    rows = np.flatnonzero(COMPUTE.mask(schedule.kind) & ~STAGE_ENDS.mask(schedule.kind))
    ends = np.zeros(len(schedule), dtype=np.int64)
    ends[rows] = plan.end_ns[blocks_of(plan.schedule).of_row >= 0]
    rank = schedule.rank_of_row()
    reached = np.maximum.accumulate(ends + rank * (ends.max(initial=0) + 1))  # of a rank, what it last computed
    turns = []
    for kind in (Kind.OFFLOAD, Kind.RELOAD):
        copies = np.flatnonzero(schedule.kind == kind)
        at = reached[copies] - rank[copies] * (ends.max(initial=0) + 1)
        order = np.lexsort((copies, at, rank[copies] // group))
        copies = copies[order]
        told = np.stack([schedule.kind[copies], schedule.stage[copies], schedule.microbatch[copies]], axis=1)
        shared = np.flatnonzero(np.diff(rank[copies] // group)) + 1
        turns += [np.hstack([turn[:-1], turn[1:]]) for turn in np.split(told.astype(np.int32), shared)]
    return tuple(turns)
