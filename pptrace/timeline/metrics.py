"""What a step amounts to: its length, where each rank's time went, why it idled, what it held."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.record import dataclass
from pptrace.timeline.actions import GroupTime, group_times
from pptrace.timeline.critical_path import CriticalPath, critical_path
from pptrace.timeline.idle import COMMUNICATION, IdleCause, time_spent
from pptrace.timeline.memory import Memory, measure_memory
from pptrace.timeline.window import window

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.timeline.timeline import Timeline

__all__ = ["IdleCause", "Metrics", "measure"]


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
        total: Int64s = self.idle_ns[:, list(COMMUNICATION)].sum(axis=1) + self.collective_ns
        return total

    @property
    def idle_by_cause_ns(self) -> dict[str, int]:
        """Idle time of all ranks by cause, in the order of :class:`IdleCause`."""
        return {cause.word: int(self.idle_ns[:, cause].sum()) for cause in IdleCause}

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
        return self.memory.over_capacity


def measure(timeline: Timeline, workload: Workload, memory: Memory | None = None) -> Metrics:
    """Measure a timeline; the workload gives memory, unless that was followed already, tokens and FLOPs."""
    opened, closed = window(timeline)
    spent = time_spent(timeline)
    return Metrics(
        start_ns=opened, end_ns=closed, busy_ns=spent.busy_ns, idle_ns=spent.idle_ns,
        collective_ns=spent.collective_ns, reduction_ns=spent.reduction_ns, groups=group_times(timeline),
        memory=memory or measure_memory(timeline, workload), path=critical_path(timeline),
        tokens=workload.tokens, model_flops=workload.model_flops, peak_flops=workload.peak_flops,
        notes=workload.notes,
    )  # fmt: skip
