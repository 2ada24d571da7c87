"""What a step amounts to: its length, where each rank's time went, why it idled, what it held."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import Stream
from pptrace.timeline.actions import GroupTime, group_times
from pptrace.timeline.critical_path import CriticalPath, critical_path
from pptrace.timeline.folded import with_own_waits
from pptrace.timeline.kernels import idling, indexing
from pptrace.timeline.memory import Memory, measure_memory
from pptrace.timeline.row_index import index_timeline, lanes_of
from pptrace.timeline.window import window

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.timeline.timeline import Timeline

__all__ = ["IdleCause", "Metrics", "measure"]


class IdleCause(IntEnum):
    """Why a rank's compute stream did no work; every idle nanosecond has exactly one cause."""

    FILL = idling.FILL
    """Before the rank's first action."""
    DRAIN = idling.DRAIN
    """After its last."""
    TRANSFER = idling.TRANSFER
    """The message that it waited for was under way, for as long as it takes with nothing shared."""
    CONTENTION = idling.CONTENTION
    """The message was under way for longer than that."""
    HEAD_OF_LINE = idling.HEAD_OF_LINE
    """The message was ready, but its stream held another task."""
    PEER_COMPUTE = idling.PEER_COMPUTE
    """The message's producer had not computed yet."""
    REDUCTION = idling.REDUCTION
    """Its gradients were being reduced, or its weights gathered, over the data-parallel replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """One step measured over one window for all ranks, from the first action to the optimizer's end."""

    start_ns: int
    """The window's start."""
    end_ns: int
    """The window's end."""
    busy_ns: Int64s
    """Shape (ranks,): time in which the compute stream computed."""
    idle_ns: Int64s
    """Shape (ranks, causes): idle time by :class:`IdleCause`."""
    collective_ns: Int64s
    """Shape (ranks,): busy time in which the rank's own group (tensor parallel and so on) communicated."""
    reduction_ns: Int64s
    """Shape (ranks,): time in which gradients were reduced, whether or not something ran beside it."""
    groups: tuple[GroupTime, ...]
    """Communication of the data-parallel group and of those inside actions, and what computation hid of it."""
    memory: Memory
    """Memory per rank."""
    path: CriticalPath
    """The critical path."""
    tokens: int
    """Tokens of the whole job's step; 0 where unknown."""
    model_flops: int
    """Model FLOPs of the whole job's step; 0 where unknown."""
    peak_flops: int
    """Peak FLOP/s of the whole job's devices; 0 where unknown."""
    notes: tuple[str, ...] = ()
    """How figures were counted."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.busy_ns.size)

    @property
    def step_ns(self) -> int:
        """The step's length."""
        return self.end_ns - self.start_ns

    @property
    def pace_ns(self) -> int:
        """The longest time from a rank's start to its end: steps' pace where none waits for others in between."""
        outside = self.idle_ns[:, IdleCause.FILL] + self.idle_ns[:, IdleCause.DRAIN]
        return self.step_ns - int(outside.min(initial=self.step_ns)) if self.ranks else 0

    @property
    def bubble(self) -> Fraction:
        """Idle time over ranks times window."""
        whole = self.ranks * self.step_ns
        return Fraction(int(self.idle_ns.sum()), whole) if whole else Fraction(0)

    @property
    def exposed_ns(self) -> Int64s:
        """Shape (ranks,): communication that nothing hid: waits for messages and reductions, own collectives."""
        waits = (IdleCause.TRANSFER, IdleCause.CONTENTION, IdleCause.HEAD_OF_LINE, IdleCause.REDUCTION)
        total: Int64s = self.idle_ns[:, list(waits)].sum(axis=1) + self.collective_ns
        return total

    @property
    def idle_by_cause_ns(self) -> dict[str, int]:
        """Idle time of all ranks by cause, in the order of :class:`IdleCause`."""
        return {c.name.lower().replace("_", "-"): int(self.idle_ns[:, c].sum()) for c in IdleCause}

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of the whole job; None where unknown."""
        return self.tokens * 1e9 / self.step_ns if self.tokens and self.step_ns else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: no recomputation counted, dense peak; None where unknown."""
        whole = self.peak_flops * self.step_ns
        return self.model_flops * 1e9 / whole if self.model_flops and whole else None

    @property
    def over_capacity(self) -> tuple[int, int, int] | None:
        """The rank furthest over its device's memory, when, and by how many bytes; None where all fit."""
        over = self.memory.peak_bytes - self.memory.capacity_bytes
        if not self.memory.capacity_bytes or int(over.max(initial=0)) <= 0:
            return None
        rank = int(np.argmax(over))
        return rank, int(self.memory.peak_at_ns[rank]), int(over[rank])


def measure(timeline: Timeline, workload: Workload) -> Metrics:
    """Measure a timeline; the workload gives memory, tokens and FLOPs."""
    index = index_timeline(timeline)
    opened, closed = window(timeline)
    times = with_own_waits(timeline)
    compute = lanes_of(timeline, Stream.COMPUTE)
    reduce = lanes_of(timeline, Stream.DATA_PARALLEL)
    busy, collective, reduction = (np.zeros(timeline.ranks, dtype=np.int64) for _ in range(3))
    idle = np.zeros(timeline.ranks * len(IdleCause), dtype=np.int64)
    run(
        idling.attribute_idle,
        (
            compute, reduce, timeline.lane_ptr, timeline.cells,
            idling.Rows(
                times.start_ns, times.end_ns, timeline.lag_ns, timeline.uncontended_ns, timeline.cause,
                times.collective_ns,
            ),
            index.graph, TABLE, indexing.Index(index.made, index.send, index.recv), opened, closed,
        ),
        (idling.Spent(busy, idle, collective, reduction),),
        work=len(timeline),
    )  # fmt: skip
    return Metrics(
        start_ns=opened, end_ns=closed, busy_ns=busy, idle_ns=idle.reshape(timeline.ranks, len(IdleCause)),
        collective_ns=collective, reduction_ns=reduction, groups=group_times(timeline),
        memory=measure_memory(timeline, workload), path=critical_path(timeline),
        tokens=workload.tokens, model_flops=workload.model_flops, peak_flops=workload.peak_flops,
        notes=workload.notes,
    )  # fmt: skip
