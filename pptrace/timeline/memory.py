"""Memory per rank: what is always there, and what the actions hold over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import PASSES, Stream, present
from pptrace.record import dataclass
from pptrace.timeline.changes import gathered_changes, memory_changes, unreduced_changes
from pptrace.timeline.counter import Counter
from pptrace.timeline.folded import folded
from pptrace.timeline.kernels import following
from pptrace.timeline.row_index import lanes_of

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.timeline.timeline import Timeline

__all__ = ["Memory", "measure_memory", "memory_counters"]


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
        """What is there from the step's start to its end."""
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
        """Whether ranks have devices of unlike memory."""
        return len({*self.room_bytes.tolist()}) > 1

    @property
    def peak_bytes(self) -> Int64s:
        """The most bytes in use."""
        total: Int64s = self.static_bytes + self.gathered_bytes + self.peak_activation_bytes
        return total


def measure_memory(timeline: Timeline, workload: Workload) -> Memory:
    """Follow the memory of every rank through a timeline."""
    ranks = timeline.ranks
    peak, peak_at, most, gathered, unreduced = (np.zeros(ranks, dtype=np.int64) for _ in range(5))
    if _needs_clock(timeline, workload):
        _peaks(timeline, workload, peak, peak_at, gathered, unreduced)
        whole, scratch = folded(timeline), (np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64), most)
    else:
        whole, scratch = timeline, (peak, peak_at, most)
    run(
        following.follow_memory,
        (
            lanes_of(whole, Stream.COMPUTE), whole.lane_ptr, whole.cells, whole.start_ns,
            workload.activation_bytes, workload.weight_activation_bytes, TABLE,
        ),
        scratch,
        work=len(timeline),
    )  # fmt: skip
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
    """Return when one rank's memory changes, in order; at one instant, what is freed comes first.

    Returns:
        Times, and bytes of activations, gathered weights and gradients that are not reduced, shape (3, changes).
    """
    lanes = np.flatnonzero(timeline.lane_rank == rank)
    rows = np.concatenate(
        [np.arange(timeline.lane_ptr[lane], timeline.lane_ptr[lane + 1]) for lane in lanes]
        or [np.zeros(0, dtype=np.int64)]
    )
    sorts = (memory_changes, gathered_changes, unreduced_changes)
    found = [change(timeline, workload, rows) for change in sorts]
    delta = np.concatenate(found)
    each = np.zeros((len(sorts), delta.size), dtype=np.int64)
    for sort, own in enumerate(found):
        each[sort, sort * rows.size : (sort + 1) * rows.size] = own
    at = np.where(delta > 0, np.tile(timeline.start_ns[rows], 3), np.tile(timeline.end_ns[rows], 3))
    changes = np.flatnonzero(delta)
    order = changes[np.lexsort((delta[changes], at[changes]))]
    return at[order], each[:, order]


def _peaks(timeline: Timeline, workload: Workload, *columns: Int64s) -> None:
    """Fill in each rank's peak of activations, when it is there, and gathered weights and gradients then."""
    peak, peak_at, gathered, unreduced = columns
    for rank in range(timeline.ranks):
        at, each = _changes(timeline, workload, rank)
        if at.size:
            held = each.cumsum(axis=1)
            top = int(np.argmax(held.sum(axis=0)))
            peak[rank], gathered[rank], unreduced[rank] = np.maximum(held[:, top], 0)
            peak_at[rank] = at[top]


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
