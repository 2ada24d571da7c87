"""Plans of copies to host memory.

Source: Wan et al., PipeOffload, ICML 2025, arXiv:2503.01328, and the authors' ``offloading.py``: copies to the
host as early as possible, copies back as late as possible, and none of activations with a short wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.steps.action_insertion import blocks_of, worked
from pptrace.steps.kinds import COMPUTE, GRADIENTS, STAGE_ENDS, Kind, Stream
from pptrace.timeline.actions import folded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline


class Plan(NamedTuple):
    """Times of a table without copies, and durations of copies, by stage and microbatch."""

    schedule: Schedule
    start_ns: Int64s
    """Shape (actions,): start of each computation; 0 for other actions."""
    end_ns: Int64s
    """Shape (actions,): end of each computation."""
    forward_end_ns: Int64s
    """Shape (stages, microbatches)."""
    backward_start_ns: Int64s
    out_ns: Int64s
    """Duration of a copy to the host."""
    back_ns: Int64s
    """Duration of a copy back."""

    def long_enough(self, times: float) -> NDArray[np.bool_]:
        """Return the activations that wait longer than this multiple of their copies."""
        waits = self.backward_start_ns - self.forward_end_ns
        is_long: NDArray[np.bool_] = (waits > times * (self.out_ns + self.back_ns)) | (times == 0)
        return is_long

    def latest(self, chosen: NDArray[np.bool_], group: int = 1, *, one_stream: bool = False) -> Int64s:
        """Return the latest start of each chosen copy back, shape (stages, microbatches).

        Copies of a stream run one after the other, and each ends before its backward starts. The stream's other
        copies take time too. If copies are slower than computation, the first copies back start long before their
        backwards.

        Args:
            chosen: shape (stages, microbatches).
            group: neighbouring ranks that share a stream for each direction.
            one_stream: whether copies to the host share the stream, each ready at the end of its forward.
        """
        schedule, is_back = self.schedule, GRADIENTS.mask(self.schedule.kind)
        rows = np.flatnonzero(is_back | ((schedule.kind == Kind.F) & one_stream))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        is_back = is_back[rows]
        index, stage, microbatch = worked(schedule, rows)
        copy_ns = np.where(is_back[index], self.back_ns[stage, microbatch], self.out_ns[stage, microbatch])
        duration_ns = np.zeros(rows.size, dtype=np.int64)
        np.add.at(duration_ns, index, copy_ns)
        # Earliest start of a copy to the host, and latest end of a copy back.
        limit_ns = np.where(is_back, self.start_ns[rows], self.end_ns[rows])
        stream, start_ns = schedule.rank_of_row()[rows] // group, np.empty(rows.size, dtype=np.int64)
        order = np.lexsort((rows, limit_ns, stream))
        for copies in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
            passed_ns = np.concatenate([[0], np.cumsum(duration_ns[copies])])
            never = passed_ns[-1] + limit_ns.max(initial=0)
            slack_ns = np.where(is_back[copies], limit_ns[copies], never) - passed_ns[1:]
            start_ns[copies] = passed_ns[:-1] + np.minimum.accumulate(slack_ns[::-1])[::-1]
        latest_ns, back = np.zeros(chosen.shape, dtype=np.int64), is_back[index]
        latest_ns[stage[back], microbatch[back]] = start_ns[index[back]]
        return latest_ns

    def ahead(self, chosen: NDArray[np.bool_], start_ns: Int64s) -> Int64s:
        """Return the number of blocks between each chosen copy back and its backward at these start times."""
        schedule, blocks = self.schedule, blocks_of(self.schedule)
        ahead = np.zeros(chosen.shape, dtype=np.int64)
        ends = self.end_ns[blocks.last]
        first_block = np.searchsorted(blocks.first, schedule.row_ptr)
        rows = np.flatnonzero(GRADIENTS.mask(schedule.kind))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        first_row = np.searchsorted(rows, schedule.row_ptr)
        for rank in range(schedule.ranks):
            rank_rows = rows[first_row[rank] : first_row[rank + 1]]
            start = start_ns[schedule.stage[rank_rows], schedule.microbatch[rank_rows]]
            low, high = first_block[rank], first_block[rank + 1]
            started = low + np.searchsorted(ends[low:high], start, side="right")
            index, stage, microbatch = worked(schedule, rank_rows)
            ahead[stage, microbatch] = np.maximum(blocks.of_row[rank_rows] - started, 0)[index]
        return ahead


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
        rows = np.flatnonzero(kinds)
        index, stage, microbatch = worked(schedule, rows)
        into[stage, microbatch] = times[rows][index]
    return Plan(schedule, start, end, forward_end, backward_start, *_copies(workload, shape))


def _copies(workload: Workload, shape: tuple[int, int]) -> tuple[Int64s, Int64s]:
    """Return the durations of copies in both directions, by stage and microbatch."""
    used = workload.microbatch_class if workload.classes else np.zeros(shape[1], dtype=np.int32)
    costs = (workload, *workload.classes)
    out, back = (
        np.stack([getattr(each, name) for each in costs])[used].T.copy() for name in ("offload_ns", "reload_ns")
    )
    return out, back


def copy_turns(schedule: Schedule, plan: Plan, latest_ns: Int64s, group: int) -> tuple[NDArray[np.int32], ...]:
    """Return the waits of copies where ``group`` neighbouring ranks share a stream for each direction.

    Copies to the host are in the order of their ready times, copies back in the order of their latest starts. No
    copy waits for a later action, as each copy back is ready and starts before its backward.

    Args:
        schedule: the plan's table with copies.
        plan: the times without copies.
        latest_ns: shape (stages, microbatches): latest starts of copies back.
        group: ranks that share streams.
    """
    rows = np.flatnonzero(COMPUTE.mask(schedule.kind) & ~STAGE_ENDS.mask(schedule.kind))
    ends = np.zeros(len(schedule), dtype=np.int64)
    ends[rows] = plan.end_ns[blocks_of(plan.schedule).of_row >= 0]
    rank = schedule.rank_of_row()
    reached = np.maximum.accumulate(ends + rank * (ends.max(initial=0) + 1))  # end of the rank's last computation
    turns = []
    for kind in (Kind.OFFLOAD, Kind.RELOAD):
        copies = np.flatnonzero(schedule.kind == kind)
        start_ns = reached[copies] - rank[copies] * (ends.max(initial=0) + 1)
        if kind is Kind.RELOAD:
            latest = latest_ns[schedule.stage[copies], schedule.microbatch[copies]]
            far = rank[copies] * (1 + latest.max(initial=0) - latest.min(initial=0))
            start_ns = np.maximum(
                start_ns, np.minimum.accumulate((latest + far)[::-1])[::-1] - far
            )  # in the row's order
        order = np.lexsort((copies, start_ns, rank[copies] // group))
        copies = copies[order]
        described = np.stack([schedule.kind[copies], schedule.stage[copies], schedule.microbatch[copies]], axis=1)
        shared = np.flatnonzero(np.diff(rank[copies] // group)) + 1
        turns += [np.hstack([turn[:-1], turn[1:]]) for turn in np.split(described.astype(np.int32), shared)]
    return tuple(turns)


def sooner_alone(workload: Workload, timeline: Timeline, microbatches: int, share: float, group: int) -> Workload:
    """Return costs with faster copies during the time without copies in the other direction.

    A copy of duration d that overlaps with copies in the other direction for x takes x + share (d - x).

    Args:
        workload: costs of copies that always overlap.
        timeline: a step with these costs.
        microbatches: number of microbatches in the step.
        share: duration of a copy without overlap, relative to one with overlap.
        group: neighbouring ranks whose copies affect each other, as they share a switch.
    """
    shape = workload.stages, microbatches
    crossed = np.ones((2, *shape))
    kinds = Kind.OFFLOAD, Kind.RELOAD
    rows = [np.flatnonzero(timeline.kind == kind) for kind in kinds]
    for into, copies, opposite in zip(crossed, rows, rows[::-1], strict=True):
        overlap_ns = _overlap_ns(timeline, copies, opposite, group)
        overlap = overlap_ns / np.maximum(timeline.end_ns - timeline.start_ns, 1)[copies]
        for offset in range(int(timeline.span[copies].max(initial=0))):
            spans = timeline.span[copies] > offset
            covered = copies[spans]
            into[timeline.stage[covered], timeline.microbatch[covered] + offset] = overlap[spans]
    used = workload.microbatch_class if workload.classes else np.zeros(shape[1], dtype=np.int32)
    costs = workload, *workload.classes
    copies_ns = np.stack(_copies(workload, shape))
    times_ns = (copies_ns * (share + (1 - share) * crossed)).astype(np.int64)
    patterns = np.concatenate([used[:, None], times_ns.transpose(2, 0, 1).reshape(shape[1], -1)], axis=1)
    _, first, classes = np.unique(patterns, axis=0, return_index=True, return_inverse=True)
    costs_of_pattern = tuple(
        replace(
            costs[used[microbatch]], classes=(), microbatch_class=np.zeros(0, dtype=np.int32),
            offload_ns=times_ns[0, :, microbatch].copy(), reload_ns=times_ns[1, :, microbatch].copy(),
        )
        for microbatch in first.tolist()
    )  # fmt: skip
    return replace(workload, classes=costs_of_pattern, microbatch_class=(classes.ravel() + 1).astype(np.int32))


def _overlap_ns(timeline: Timeline, rows: NDArray[np.int64], others: NDArray[np.int64], group: int) -> Int64s:
    """Return the overlap of each row with the consecutive ``others`` of its group."""
    rank = timeline.rank_of_row() // group
    overlap_ns = np.zeros(rows.size, dtype=np.int64)
    for group_rank in np.unique(rank[rows]).tolist():
        indices, other = np.flatnonzero(rank[rows] == group_rank), others[rank[others] == group_rank]
        start, end = np.sort(timeline.start_ns[other]), np.sort(timeline.end_ns[other])
        busy = np.concatenate([[0], np.cumsum(end - start)])

        def until(time: Int64s, start: Int64s = start, busy: Int64s = busy, end: Int64s = end) -> Int64s:
            begun = np.searchsorted(start, time)
            remaining = np.maximum(end[begun - 1] - time, 0) if end.size else 0
            busy_ns: Int64s = busy[begun] - np.where(begun > 0, remaining, 0)
            return busy_ns

        overlap_ns[indices] = until(timeline.end_ns[rows[indices]]) - until(timeline.start_ns[rows[indices]])
    return overlap_ns
