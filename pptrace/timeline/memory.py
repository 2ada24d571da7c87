"""Memory per rank over time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.memo import memoized
from pptrace.steps.actions import microbatches_of
from pptrace.steps.columns import distinct
from pptrace.steps.kinds import PASSES, TABLE, WEIGHT_GRADIENTS, Kind, Result, Stream, present
from pptrace.timeline.actions import folded, last_segments
from pptrace.timeline.kernels.rows import find_memory_peaks
from pptrace.timeline.messages import lanes_of
from pptrace.timeline.trim import update_intervals
from pptrace_kernel import halves, run_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.placement import Placement
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline


class Memory(Struct, frozen=True, dict=True):
    """Memory of every rank; all arrays have shape (ranks,)."""

    weights_bytes: Int64s
    """Weights at the peak, gathered weights included."""
    gradients_bytes: Int64s
    """Gradient buffers at the peak, including unsharded gradients before their reduction."""
    optimizer_bytes: Int64s
    """Optimizer state."""
    buffer_bytes: Int64s
    """Point-to-point buffers: one to send and one to receive per boundary shared with another rank."""
    reserved_bytes: Int64s
    """Memory of no action: the reserve and the transient bytes of the workload, and the allocator's share of the
    peak. The allocator returns this share to the device when an allocation fails (PyTorch's
    ``CUDACachingAllocator``)."""
    peak_activation_bytes: Int64s
    """Peak of activations."""
    peak_at_ns: Int64s
    """Time at which the peak is first reached."""
    peak_activations: Int64s
    """Peak number of activations in memory; each pair of stage and microbatch counts once."""
    capacity_bytes: int
    """The device's memory, the smallest where devices differ; 0 where unknown."""
    device_bytes: Int64s
    """Memory of each rank's device; 0 where unknown."""
    gathered_bytes: Int64s
    """The part of weights and gradients that is allocated at the peak, but not during the whole step."""

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
        """The rank furthest over its device's memory, the time of its peak, and the excess in bytes.

        None where all ranks fit.
        """
        if not self.capacity_bytes:
            return None
        excess_bytes, rank = self.peak_bytes - self.device_bytes, self.fullest
        if not excess_bytes.size or excess_bytes[rank] <= 0:
            return None
        return rank, int(self.peak_at_ns[rank]), int(excess_bytes[rank])

    @cached_property
    def fullest(self) -> int:
        """The rank with the least free memory, or with the highest peak where capacities are unknown.

        0 where there are no ranks.
        """
        excess_bytes = self.peak_bytes - self.device_bytes
        return int(np.argmax(excess_bytes)) if excess_bytes.size else 0

    @property
    def fullest_bytes(self) -> int:
        """The most bytes in use on that rank."""
        return int(self.peak_bytes[self.fullest]) if self.peak_bytes.size else 0

    @property
    def fullest_device_bytes(self) -> int:
        """The memory of that rank's device; 0 where unknown."""
        return int(self.device_bytes[self.fullest]) if self.device_bytes.size else 0

    @property
    def devices_differ(self) -> bool:
        """Whether the memory of devices differs between ranks."""
        return len({*self.device_bytes.tolist()}) > 1

    @cached_property
    def peak_bytes(self) -> Int64s:
        """The most bytes in use."""
        total: Int64s = self.static_bytes + self.gathered_bytes + self.peak_activation_bytes
        return total


def measure_memory(timeline: Timeline, workload: Workload) -> Memory:
    """Follow the memory of every rank through a timeline.

    Without a clock, all but the times of peaks is equal in steps with the same rows and sizes, which share it.
    """
    if needs_clock(timeline, workload):
        peaks = _peaks_in_order(folded(timeline), workload, held_at_start(timeline, workload).microbatches)
        size_bytes, peak_at_ns, gathered, unreduced = _peaks(timeline, workload)
        peaks = peaks._replace(size_bytes=size_bytes)
        return _memory(timeline.placement, workload, peaks, peak_at_ns, gathered, unreduced)

    def measure_sizes() -> tuple[Memory, Int32s]:
        none = np.zeros(timeline.ranks, dtype=np.int64)
        peaks = _peaks_in_order(timeline, workload, none)
        return _memory(timeline.placement, workload, peaks, none, none, none), peaks.row

    memory, row = memoized(
        measure_sizes, ("memory", workload.sizes()), timeline.placement, timeline.lane_ptr, timeline.lane_rank,
        timeline.lane_stream, *timeline.cells, rows=len(timeline),
    )  # fmt: skip
    peak_at_ns, is_reached = np.zeros(timeline.ranks, dtype=np.int64), row >= 0
    peak_at_ns[is_reached] = timeline.start_ns[row[is_reached]]
    return replace(memory, peak_at_ns=peak_at_ns)


class _Peaks(NamedTuple):
    """Peaks of activations in the order of rows; shape (ranks,)."""

    size_bytes: Int64s
    """Bytes."""
    row: Int32s
    """The row that reaches the peak first, -1 for none."""
    microbatches: Int64s
    """Peak number of activations."""


def _peaks_in_order(timeline: Timeline, workload: Workload, held: Int64s) -> _Peaks:
    """Return the peaks of activations if memory changes in the order of rows.

    ``held`` has the microbatches of each rank at the start.
    """
    ranks, placement = timeline.ranks, timeline.placement
    peaks = _Peaks(
        size_bytes=np.zeros(ranks, dtype=np.int64), row=np.full(ranks, -1, dtype=np.int32),
        microbatches=np.zeros(ranks, dtype=np.int64),
    )  # fmt: skip
    classes = (workload, *workload.classes)
    is_moved = placement.is_moved if placement.has_host_state else np.zeros(0)
    class_ptr = np.zeros(placement.microbatches + 1, dtype=np.int64)
    class_ptr[1 : workload.microbatch_class.size + 1] = workload.microbatch_class
    run_parts(
        find_memory_peaks,
        halves(ranks, work=len(timeline)),
        (
            lanes_of(timeline, Stream.COMPUTE), timeline.lane_ptr, timeline.cells, class_ptr * workload.stages,
            np.concatenate([costs.activation_bytes for costs in classes]),
            np.concatenate([costs.weight_activation_bytes for costs in classes]), TABLE, held,
            placement.microbatch_route, placement.stages, is_moved.ravel().astype(np.int8),
        ),
        peaks,
        work=len(timeline),
    )  # fmt: skip
    return peaks


def _memory(
    placement: Placement,
    workload: Workload,
    peaks: _Peaks,
    peak_at_ns: Int64s,
    gathered: Int64s,
    unreduced: Int64s,
) -> Memory:
    """Return the memory of all ranks from the peaks of activations, and their times.

    ``gathered`` and ``unreduced`` are bytes of gathered weights and of unreduced gradients at the peaks.
    """
    copies, buffers = placement.copies().astype(np.int64), _buffers(placement, workload.buffer_bytes)
    allocated = copies @ workload.static_bytes + buffers + peaks.size_bytes + gathered + unreduced
    device_bytes = workload.capacities(placement.ranks)
    cached = -(-allocated * workload.reserved_permille // 1000)
    if workload.capacity_bytes:
        cached = np.minimum(cached, np.maximum(device_bytes - allocated - workload.reserved_bytes, 0))
    return Memory(
        weights_bytes=copies @ workload.weights_bytes + gathered,
        gradients_bytes=copies @ workload.gradients_bytes + unreduced,
        optimizer_bytes=copies @ workload.optimizer_bytes,
        buffer_bytes=buffers,
        reserved_bytes=workload.reserved_bytes + copies @ workload.transient_bytes + cached,
        peak_activation_bytes=peaks.size_bytes,
        peak_at_ns=peak_at_ns,
        peak_activations=peaks.microbatches,
        capacity_bytes=workload.capacity_bytes,
        device_bytes=device_bytes,
        gathered_bytes=gathered + unreduced,
    )


def needs_clock(timeline: Timeline, workload: Workload) -> bool:
    """Return whether the order of memory changes differs from the order of rows on the compute stream."""
    kind = timeline.kind

    def moves() -> bool:
        kinds = np.array([each for each in present(kind) if each not in PASSES], dtype=np.int64)
        changes = (TABLE.activation, TABLE.weight_activation, TABLE.copied, TABLE.recomputed)
        return bool(np.any([column[kinds] for column in changes]))

    sharded = bool(workload.gathered_bytes.any() or workload.unreduced_bytes.any())
    in_parts = timeline.parts is not None or bool(update_intervals(timeline))
    return sharded or in_parts or memoized(moves, "moves memory", kind, rows=kind.size)


def changes_of_rank(
    timeline: Timeline, workload: Workload, rank: int, held_bytes: Int64s
) -> tuple[Int64s, Int64s]:
    """Return the changes of a rank's memory by time; at equal times, memory is freed first.

    ``held_bytes`` are activations that ranks hold at the start (:func:`held_at_start`).

    Returns:
        Times, and bytes of activations, gathered weights and unreduced gradients, shape (3, changes).
    """
    _, row_slice = timeline.rank_slices(rank)
    rows = np.arange(row_slice.start, row_slice.stop)
    categories = (memory_changes, gathered_changes, unreduced_changes)
    delta = np.stack([change(timeline, workload, rows) for change in categories])
    time_ns = np.where(delta > 0, timeline.start_ns[rows], timeline.end_ns[rows])
    category, index = np.nonzero(delta)
    order = np.lexsort((delta[category, index], time_ns[category, index]))
    category, index = category[order], index[order]
    changes = np.zeros((len(categories), order.size), dtype=np.int64)
    changes[category, np.arange(order.size)] = delta[category, index]
    change_ns, held = time_ns[category, index], int(held_bytes[rank])
    if held:
        change_ns = np.insert(change_ns, 0, 0)
        changes = np.insert(changes, 0, [held, 0, 0], axis=1)
    return change_ns, changes


class _Held(NamedTuple):
    """Activations that ranks hold at the start of a step without a flush; shape (ranks,)."""

    size_bytes: Int64s
    """Their bytes."""
    microbatches: Int64s
    """Number of them, once for each of the rank's stages."""


def held_at_start(timeline: Timeline, workload: Workload) -> _Held:
    """Return the activations that a step frees and does not allocate; none where the pipeline starts empty."""
    held = _Held(*np.zeros((2, timeline.ranks), dtype=np.int64))
    if not update_intervals(timeline):
        return held
    rows = np.flatnonzero(timeline.microbatch >= 0)
    number, stage, microbatch = microbatches_of(timeline, rows)
    rows = rows[number]
    delta = memory_changes(timeline, workload, np.arange(len(timeline)))[rows] // timeline.span[rows]
    cell = microbatch * timeline.placement.stages + stage
    cell = cell * timeline.ranks + timeline.rank_of_row()[rows]
    cells = timeline.placement.microbatches * timeline.placement.stages * timeline.ranks
    total, starts, ends = np.zeros((3, cells), dtype=np.int64)
    np.add.at(total, cell, delta)
    starts[cell[TABLE.result[timeline.kind[rows]] == Result.ACTIVATION]] = 1
    ends[cell[WEIGHT_GRADIENTS.mask(timeline.kind[rows])]] = 1
    np.add.at(held.size_bytes, np.arange(cells) % timeline.ranks, np.maximum(-total, 0))
    np.add.at(held.microbatches, np.arange(cells) % timeline.ranks, np.maximum(ends - starts, 0))
    return held


def _peaks(timeline: Timeline, workload: Workload) -> Int64s:
    """Return activations, time, gathered weights and unreduced gradients at each rank's peak; shape (4, ranks)."""
    peaks = np.zeros((4, timeline.ranks), dtype=np.int64)
    held_bytes = held_at_start(timeline, workload).size_bytes
    for rank in range(timeline.ranks):
        time_ns, changes = changes_of_rank(timeline, workload, rank, held_bytes)
        if time_ns.size:
            allocated = changes.cumsum(axis=1)
            top = int(np.argmax(allocated.sum(axis=0)))
            activations, gathered, unreduced = np.maximum(allocated[:, top], 0)
            peaks[:, rank] = activations, time_ns[top], gathered, unreduced
    return peaks


def _buffers(placement: Placement, buffer_bytes: Int64s) -> Int64s:
    ranks_of_pass = np.concatenate(placement.pass_ranks if placement.has_host_state else [placement.stage_rank])
    low, high = (ranks_of_pass[:, side].astype(np.int64) for side in placement.edges.T)
    crosses = np.nonzero((low != high) & (low >= 0) & (high >= 0))
    ranks = np.int64(placement.ranks)
    buffers = np.zeros(placement.ranks, dtype=np.int64)
    # Ranks without state of stages compute one stage at a time, with the same buffers.
    combine = np.maximum if placement.has_host_state else np.add
    for rank, size_bytes in zip((low, high), buffer_bytes, strict=True):
        edge, rank_of_edge = np.divmod(distinct(crosses[1] * ranks + rank[crosses]), ranks)
        combine.at(buffers, rank_of_edge, 2 * size_bytes[edge])
    return buffers


def memory_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of activations that rows allocate at their starts or, below zero, free at their ends.

    In an action with segments, the first segment allocates and the last segment frees.
    Changes per segment that the workload states have precedence.
    """
    recomputed = _recomputed_microbatches(timeline, rows)
    by_action = _action_changes(timeline, workload, rows, recomputed)
    if timeline.parts is None:
        return by_action
    recomputed = np.where(TABLE.copied[timeline.kind[rows]] == 0, recomputed, 0)
    number = timeline.parts.number[rows]
    last = last_segments(timeline, rows)[rows] == rows
    delta: Int64s = np.where((number < 0) | np.where(by_action > 0, number == 0, last), by_action, 0)
    in_segments = (number >= 0) & (recomputed == 0) & (TABLE.recomputed[timeline.kind[rows]] == 0)
    return _with_stated(delta, timeline, workload, rows, np.where(in_segments, number, -1))


def gathered_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of weights that gathers allocate at their starts and releases free at their ends.

    A gather of a stage whose weights are still gathered allocates nothing: layers are gathered one by one. Before
    a gather in a part of a shard group, a release keeps this part's share.
    """
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    delta = np.zeros(rows.size, dtype=np.int64)
    in_subgroup = kind == Kind.UNSHARD_SUBGROUP
    gathers = (kind == Kind.UNSHARD) | in_subgroup
    for number in distinct(stage[gathers]).tolist():
        events = np.flatnonzero((gathers | (kind == Kind.RESHARD)) & (stage == number))
        sign = np.where(gathers[events], 1, -1)
        time_ns = np.where(sign > 0, timeline.start_ns[rows[events]], timeline.end_ns[rows[events]])
        order = np.lexsort((sign, time_ns))
        count = sign[order].cumsum()
        changed = events[order[(count > 0) != (np.append([0], count[:-1]) > 0)]]
        replaced = np.where(in_subgroup[changed], workload.subgroup_bytes[number], 0)
        size_bytes = workload.gathered_bytes[number] - np.maximum(replaced, np.append(replaced[1:], 0))
        delta[changed] = np.where(gathers[changed], size_bytes, -size_bytes)
    return delta


def unreduced_changes(timeline: Timeline, workload: Workload, rows: Int64s) -> Int64s:
    """Return the bytes of unsharded gradients that a rank's rows allocate at their starts or free at their ends.

    The first backward after a reduction allocates them. The reduction that is issued next frees them.
    """
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    delta = np.zeros(rows.size, dtype=np.int64)
    backward = WEIGHT_GRADIENTS.mask(kind)
    for number in distinct(stage[backward]).tolist():
        backs = np.flatnonzero(backward & (stage == number))
        backs = backs[np.argsort(timeline.start_ns[rows[backs]], kind="stable")]
        reductions = np.flatnonzero((kind == Kind.REDUCE_GRAD) & (stage == number))
        issued = timeline.enter_ns[rows[reductions]]
        order = np.argsort(issued, kind="stable")
        group = np.searchsorted(issued[order], timeline.end_ns[rows[backs]], side="left")
        groups, first = np.unique(group, return_index=True)
        delta[backs[first]] = workload.unreduced_bytes[number]
        delta[reductions[order][groups[groups < reductions.size]]] = -workload.unreduced_bytes[number]
    return delta


def _action_changes(timeline: Timeline, workload: Workload, rows: Int64s, recomputed: Int64s) -> Int64s:
    """Return the bytes of activations that the action of each row allocates or, below zero, frees."""
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    classes = (workload, *workload.classes)
    by_class = _class_of(workload, timeline.microbatch[rows])

    def per_row(size_bytes: Callable[[Workload], Int64s]) -> Int64s:
        sizes: Int64s = np.stack([size_bytes(costs) for costs in classes])[by_class, stage]
        return sizes

    span = timeline.span[rows]
    total = TABLE.activation[kind] * per_row(lambda costs: costs.activation_bytes) * span
    total += TABLE.weight_activation[kind] * per_row(lambda costs: costs.weight_activation_bytes) * span
    total += TABLE.copied[kind] * per_row(lambda costs: costs.copied_bytes) * (span - recomputed)
    total += TABLE.copied[kind] * per_row(lambda costs: costs.checkpoint_bytes) * recomputed
    discarded = per_row(lambda costs: costs.activation_bytes - costs.checkpoint_bytes)
    total += (TABLE.recomputed[kind] * span - np.where(TABLE.copied[kind] == 0, recomputed, 0)) * discarded
    return total


def _recomputed_microbatches(timeline: Timeline, rows: Int64s) -> Int64s:
    """Return the number of microbatches in each forward or copy that are recomputed later; 0 for other rows."""
    candidates = np.arange(len(timeline)) if timeline.placement.has_host_state else rows
    recomputes = candidates[TABLE.recomputed[timeline.kind[candidates]] > 0]
    if not recomputes.size:
        return np.zeros(rows.size, dtype=np.int64)
    placement = timeline.placement
    count = np.zeros((placement.stages, placement.microbatches + 1), dtype=np.int64)
    _, again, number = microbatches_of(timeline, recomputes)
    count[again, number + 1] = 1
    count = count.cumsum(axis=1)
    stage, microbatch = timeline.stage[rows], timeline.microbatch[rows]
    kind = timeline.kind[rows]
    keeps = (TABLE.result[kind] == Result.ACTIVATION) | (TABLE.copied[kind] != 0)
    return np.where(keeps, count[stage, microbatch + timeline.span[rows]] - count[stage, microbatch], 0)


def _class_of(workload: Workload, microbatch: Int32s) -> Int64s:
    """Return the index of each microbatch's costs: 0 for the workload, then its classes."""
    class_of = workload.microbatch_class
    if not class_of.size:
        return np.zeros(microbatch.size, dtype=np.int64)
    return np.where(microbatch < 0, 0, class_of[microbatch % class_of.size])  # forward-only passes repeat them


def _with_stated(delta: Int64s, timeline: Timeline, workload: Workload, rows: Int64s, number: Int64s) -> Int64s:
    """Return the changes of rows, with those that the workload states for segments in place of the action's.

    ``delta`` has the changes of the rows' actions in bytes. ``number`` is the index of each row's segment, and
    below 0 for rows that keep their change.
    """
    kind, stage = timeline.kind[rows], timeline.stage[rows]
    by_class = _class_of(workload, timeline.microbatch[rows])
    for index, costs in enumerate((workload, *workload.classes)):
        for segments_kind, stages in costs.segments.items():
            stated = np.array([any(part.activation_bytes is not None for part in parts) for parts in stages])
            if not stated.any():
                continue
            sizes = np.zeros((len(stages), max(map(len, stages))), dtype=np.int64)
            for place, parts in enumerate(stages):
                sizes[place, : len(parts)] = [part.activation_bytes or 0 for part in parts]
            chosen = np.flatnonzero((number >= 0) & (by_class == index) & (kind == segments_kind))
            chosen = chosen[stated[stage[chosen]]]
            delta[chosen] = sizes[stage[chosen], number[chosen]] * timeline.span[rows[chosen]]
    return delta
