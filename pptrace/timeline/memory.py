"""Memory per rank over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.kinds import PASSES, TABLE, WEIGHT_GRADIENTS, Kind, Result, Stream, present
from pptrace.timeline.actions import folded, last_segments
from pptrace.timeline.kernels import rows as rows_kernels
from pptrace.timeline.messages import lanes_of
from pptrace.timeline.timeline import Counter
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.columns import Int64s
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of every rank; all arrays have shape (ranks,)."""

    weights_bytes: Int64s
    """Weights, at the peak: those that are gathered then among them."""
    gradients_bytes: Int64s
    """Gradient buffers, at the peak: whole gradients that are sharded once they are reduced among them."""
    optimizer_bytes: Int64s
    """Optimizer state."""
    buffer_bytes: Int64s
    """Point-to-point buffers: one to send and one to receive per boundary shared with another rank."""
    reserved_bytes: Int64s
    """What no action accounts for: what the workload says, and the allocator's share of the peak."""
    peak_activation_bytes: Int64s
    """The most activations held at once."""
    peak_at_ns: Int64s
    """When that is first reached."""
    peak_activations: Int64s
    """The most microbatches' activations held at once, each stage's of a microbatch counted as one."""
    capacity_bytes: int
    """The device's memory, the smallest one's where devices differ; 0 where unknown."""
    room_bytes: Int64s
    """Memory of each rank's device; 0 where unknown."""
    gathered_bytes: Int64s
    """The part of weights and gradients that is there at the peak, and not from the step's start to its end."""

    @property
    def static_bytes(self) -> Int64s:
        """Memory that is allocated from the step's start to its end."""
        total: Int64s = (
            self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
            + self.buffer_bytes + self.reserved_bytes - self.gathered_bytes
        )  # fmt: skip
        return total

    @property
    def over_capacity(self) -> tuple[int, int, int] | None:
        """The rank furthest over its device's memory, when, and by how many bytes; None where all fit."""
        if not self.capacity_bytes:
            return None
        over, rank = self.peak_bytes - self.room_bytes, self.fullest
        if not over.size or over[rank] <= 0:
            return None
        return rank, int(self.peak_at_ns[rank]), int(over[rank])

    @property
    def fullest(self) -> int:
        """The rank with the least left of its device, or where that is unknown the most in use; 0 of none."""
        used = self.peak_bytes - self.room_bytes
        return int(np.argmax(used)) if used.size else 0

    @property
    def fullest_bytes(self) -> int:
        """The most bytes in use on that rank."""
        return int(self.peak_bytes[self.fullest]) if self.peak_bytes.size else 0

    @property
    def fullest_room_bytes(self) -> int:
        """The memory of that rank's device; 0 where unknown."""
        return int(self.room_bytes[self.fullest]) if self.room_bytes.size else 0

    @property
    def devices_differ(self) -> bool:
        """Whether the memory of devices differs between ranks."""
        return len({*self.room_bytes.tolist()}) > 1

    @property
    def peak_bytes(self) -> Int64s:
        """The most bytes in use."""
        total: Int64s = self.static_bytes + self.gathered_bytes + self.peak_activation_bytes
        return total


def measure_memory(timeline: Timeline, workload: Workload) -> Memory:
    """Follow the memory of every rank through a timeline."""
    ranks = timeline.ranks
    peak, peak_at, most, gathered, unreduced = np.zeros((5, ranks), dtype=np.int64)
    needs_clock = _needs_clock(timeline, workload)
    whole = folded(timeline) if needs_clock else timeline
    run(
        rows_kernels.follow_memory,
        (
            lanes_of(whole, Stream.COMPUTE), whole.lane_ptr, whole.cells, whole.start_ns,
            workload.activation_bytes, workload.weight_activation_bytes, TABLE,
        ),
        (peak, peak_at, most),
        work=len(timeline),
    )  # fmt: skip
    if needs_clock:
        peak, peak_at, gathered, unreduced = _peaks(timeline, workload)
    held = timeline.placement.copies().astype(np.int64)
    buffers = _buffers(timeline, workload)
    allocated = held @ workload.static_bytes + buffers + peak + gathered + unreduced
    reserved = workload.reserved_bytes + -(-allocated * workload.reserved_permille // 1000)
    return Memory(
        weights_bytes=held @ workload.weights_bytes + gathered,
        gradients_bytes=held @ workload.gradients_bytes + unreduced,
        optimizer_bytes=held @ workload.optimizer_bytes,
        buffer_bytes=buffers,
        reserved_bytes=reserved,
        peak_activation_bytes=peak,
        peak_at_ns=peak_at,
        peak_activations=most,
        capacity_bytes=workload.capacity_bytes,
        room_bytes=workload.capacities(ranks),
        gathered_bytes=gathered + unreduced,
    )


def memory_counters(timeline: Timeline, workload: Workload) -> tuple[Counter, ...]:
    """Return each rank's memory over time, static bytes included, as counters."""
    static = measure_memory(timeline, workload).static_bytes
    counters = []
    for rank in range(timeline.ranks):
        at, each = _changes(timeline, workload, rank)
        delta = each.sum(axis=0)
        when, first = np.unique(at, return_index=True)
        value = static[rank] + np.add.reduceat(delta, first).cumsum() if at.size else at
        if not when.size or when[0] > 0:
            when, value = np.concatenate([[0], when]), np.concatenate([[static[rank]], value])
        counters.append(Counter(rank=rank, name="memory", unit="bytes", at_ns=when, value=value))
    return tuple(counters)


def _needs_clock(timeline: Timeline, workload: Workload) -> bool:
    """Whether changes of memory are not in the order of the compute stream's rows alone."""
    others = np.array([kind for kind in present(timeline.kind) if kind not in PASSES], dtype=np.int64)
    changes = [
        column[others] for column in (TABLE.activation, TABLE.weight_activation, TABLE.copied, TABLE.recomputed)
    ]
    sharded = bool(workload.gathered_bytes.any() or workload.unreduced_bytes.any())
    return bool(np.any(changes)) or timeline.parts is not None or bool(workload.classes) or sharded


def _changes(timeline: Timeline, workload: Workload, rank: int) -> tuple[Int64s, Int64s]:
    """Return the changes of one rank's memory in order of time; at one instant, memory is freed first.

    Returns:
        Times, and bytes of activations, gathered weights and gradients that are not reduced, shape (3, changes).
    """
    _, of_rank = timeline.rank_slices(rank)
    rows = np.arange(of_rank.start, of_rank.stop)
    sorts = (memory_changes, gathered_changes, unreduced_changes)
    delta = np.stack([change(timeline, workload, rows) for change in sorts])
    time_ns = np.where(delta > 0, timeline.start_ns[rows], timeline.end_ns[rows])
    sort, index = np.nonzero(delta)
    order = np.lexsort((delta[sort, index], time_ns[sort, index]))
    sort, index = sort[order], index[order]
    each = np.zeros((len(sorts), order.size), dtype=np.int64)
    each[sort, np.arange(order.size)] = delta[sort, index]
    return time_ns[sort, index], each


def _peaks(timeline: Timeline, workload: Workload) -> Int64s:
    """Return each rank's peak of activations, its time, and gathered weights and gradients then: (4, ranks)."""
    peaks = np.zeros((4, timeline.ranks), dtype=np.int64)
    for rank in range(timeline.ranks):
        time_ns, each = _changes(timeline, workload, rank)
        if time_ns.size:
            held = each.cumsum(axis=1)
            top = int(np.argmax(held.sum(axis=0)))
            activations, gathered, unreduced = np.maximum(held[:, top], 0)
            peaks[:, rank] = activations, time_ns[top], gathered, unreduced
    return peaks


def _buffers(timeline: Timeline, workload: Workload) -> Int64s:
    placement = timeline.placement
    low, high = (placement.stage_rank[:, side].astype(np.int64) for side in placement.edges.T)
    edge = np.nonzero((low != high) & (low >= 0) & (high >= 0))
    ranks = np.int64(placement.ranks)
    pairs = np.sort((edge[1] * ranks + low[edge]) * ranks + high[edge])
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    size = 2 * np.asarray(workload.boundary_bytes)[pairs // ranks // ranks]
    buffers = np.zeros(placement.ranks, dtype=np.int64)
    for rank in (pairs // ranks % ranks, pairs % ranks):
        np.add.at(buffers, rank, size)
    return buffers


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
    for number in np.unique(stage[gathers]).tolist():
        events = np.flatnonzero((gathers | (kind == Kind.RESHARD)) & (stage == number))
        sign = np.where(gathers[events], 1, -1)
        at = np.where(sign > 0, timeline.start_ns[rows[events]], timeline.end_ns[rows[events]])
        order = np.lexsort((sign, at))
        there = sign[order].cumsum()
        changed = events[order[(there > 0) != (np.append([0], there[:-1]) > 0)]]
        delta[changed] = np.where(gathers[changed], 1, -1) * workload.gathered_bytes[number]
    return delta


def unreduced_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of whole gradients that a rank's rows take at their starts or free at their ends.

    The first backward behind a reduction takes them, and the next reduction frees them: of several, the one that
    was issued next.
    """
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    delta = np.zeros(rows.size, dtype=np.int64)
    backward = WEIGHT_GRADIENTS.mask(kind)
    for number in np.unique(stage[backward]).tolist():
        backs = np.flatnonzero(backward & (stage == number))
        backs = backs[np.argsort(timeline.start_ns[rows[backs]], kind="stable")]
        reductions = np.flatnonzero((kind == Kind.REDUCE_GRAD) & (stage == number))
        issued = timeline.enter_ns[rows[reductions]]
        order = np.argsort(issued, kind="stable")
        group = np.searchsorted(issued[order], timeline.end_ns[rows[backs]], side="left")
        groups, first = np.unique(group, return_index=True)
        delta[backs[first]] = workload.unreduced_bytes[number]
        reduced = reductions[order][groups[groups < reductions.size]]
        delta[reduced] = -workload.unreduced_bytes[number]
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
