"""Plans of copies to host memory.

Source: Wan et al., PipeOffload, ICML 2025, arXiv:2503.01328, and the authors' ``offloading.py``: copies out as
early as they can be, copies back as late as they may be, and none of what is needed again soon.
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

    def latest(self, chosen: NDArray[np.bool_], group: int = 1, *, one_stream: bool = False) -> Int64s:
        """Return when each chosen copy back starts at the latest, shape (stages, microbatches).

        Copies of a stream follow one another, each done before its backward and before the next one starts. What
        a stream serves beside a rank's copies back takes its time too, so where copies are slower than what is
        computed meanwhile, the first ones come back long before their backwards.

        Args:
            chosen: shape (stages, microbatches).
            group: neighbouring ranks that share a stream for each direction.
            one_stream: whether copies out share it, each in line when its forward has ended.
        """
        jobs = _Jobs.of(self, chosen, one_stream=one_stream)
        latest = jobs.latest(jobs.rank // group)[jobs.back]
        number, stage, microbatch = worked(self.schedule, jobs.row[jobs.back])
        found = np.zeros(chosen.shape, dtype=np.int64)
        found[stage, microbatch] = latest[number]
        return found

    def ahead(self, chosen: NDArray[np.bool_], start_ns: Int64s) -> Int64s:
        """Return how many blocks ahead of its backward each chosen copy back is at these times, and no earlier."""
        schedule, blocks = self.schedule, blocks_of(self.schedule)
        ahead = np.zeros(chosen.shape, dtype=np.int64)
        ends = self.end_ns[blocks.last]
        first_block = np.searchsorted(blocks.first, schedule.row_ptr)
        rows = np.flatnonzero(GRADIENTS.mask(schedule.kind))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        first_row = np.searchsorted(rows, schedule.row_ptr)
        for rank in range(schedule.ranks):
            own = rows[first_row[rank] : first_row[rank + 1]]
            start = start_ns[schedule.stage[own], schedule.microbatch[own]]
            low, high = first_block[rank], first_block[rank + 1]
            started = low + np.searchsorted(ends[low:high], start, side="right")
            number, stage, microbatch = worked(schedule, own)
            ahead[stage, microbatch] = np.maximum(blocks.of_row[own] - started, 0)[number]
        return ahead


class _Jobs(NamedTuple):
    """Copies that streams have to do, those of an action together, in the order of their rows."""

    row: Int64s
    """Of the table, the forward or the backward that a copy belongs to."""
    rank: Int64s
    back: NDArray[np.bool_]
    """Copies back; what else there is goes out."""
    at_ns: Int64s
    """When a copy out may start, and until when a copy back must have ended."""
    took_ns: Int64s

    @classmethod
    def of(cls, plan: Plan, chosen: NDArray[np.bool_], *, one_stream: bool) -> _Jobs:
        schedule, back = plan.schedule, GRADIENTS.mask(plan.schedule.kind)
        row = np.flatnonzero(back | ((schedule.kind == Kind.F) & one_stream))
        row = row[chosen[schedule.stage[row], schedule.microbatch[row]]]
        back = back[row]
        number, stage, microbatch = worked(schedule, row)
        each = np.where(back[number], plan.back_ns[stage, microbatch], plan.out_ns[stage, microbatch])
        took = np.zeros(row.size, dtype=np.int64)
        np.add.at(took, number, each)
        at = np.where(back, plan.start_ns[row], plan.end_ns[row])
        return cls(row, schedule.rank_of_row()[row], back, at, took)

    def latest(self, stream: Int64s) -> Int64s:
        """Return when each copy starts at the latest, those of a stream in the order of their times."""
        found = np.empty(self.row.size, dtype=np.int64)
        order = np.lexsort((self.row, self.at_ns, stream))
        for own in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
            before = np.concatenate([[0], np.cumsum(self.took_ns[own])])
            never = before[-1] + self.at_ns.max(initial=0)
            slack = np.where(self.back[own], self.at_ns[own], never) - before[1:]
            found[own] = before[:-1] + np.minimum.accumulate(slack[::-1])[::-1]
        return found


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


def copy_turns(schedule: Schedule, plan: Plan, latest_ns: Int64s, group: int) -> tuple[NDArray[np.int32], ...]:
    """Return the waits of copies where ``group`` neighbouring ranks share a stream for each direction.

    Copies out follow one another in the order in which their ranks get to them in the plan, copies back in the
    order in which they have to start. None waits for what only comes behind it: a rank gets to a copy back, and
    the copy starts at the latest, before its backward starts in the plan.

    Args:
        schedule: the plan's table with copies.
        plan: when its rows run without.
        latest_ns: shape (stages, microbatches): when copies back start at the latest.
        group: ranks that share streams.
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
        if kind is Kind.RELOAD:
            latest = latest_ns[schedule.stage[copies], schedule.microbatch[copies]]
            far = rank[copies] * (1 + latest.max(initial=0) - latest.min(initial=0))
            at = np.maximum(at, np.minimum.accumulate((latest + far)[::-1])[::-1] - far)  # in the row's order
        order = np.lexsort((copies, at, rank[copies] // group))
        copies = copies[order]
        told = np.stack([schedule.kind[copies], schedule.stage[copies], schedule.microbatch[copies]], axis=1)
        shared = np.flatnonzero(np.diff(rank[copies] // group)) + 1
        turns += [np.hstack([turn[:-1], turn[1:]]) for turn in np.split(told.astype(np.int32), shared)]
    return tuple(turns)


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
