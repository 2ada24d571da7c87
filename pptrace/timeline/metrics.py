"""Figures of a step: times, bubble, phases, counters and communication that is not overlapped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pptrace.config.quantities import format_duration
from pptrace.steps.columns import distinct
from pptrace.steps.kinds import BACKWARD, COMPUTE, Kind, Stream
from pptrace.timeline.actions import GroupTime, group_times, in_group
from pptrace.timeline.critical_path import CriticalPath, critical_path
from pptrace.timeline.idle import COMMUNICATION, IdleCause, time_spent
from pptrace.timeline.memory import Memory, measure_memory
from pptrace.timeline.messages import messages
from pptrace.timeline.timeline import time_within, window
from pptrace.timeline.trim import update_intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline


@dataclass(frozen=True, kw_only=True, eq=False)
class Metrics:
    """One step measured over one window for all ranks, from the first action to the optimizer's end."""

    timeline: Timeline = field(repr=False)
    """The step."""
    start_ns: int
    """The window's start."""
    end_ns: int
    """The window's end."""
    busy_ns: Int64s
    """Shape (ranks,): time in which the compute stream computed."""
    idle_ns: Int64s
    """Shape (ranks, causes): idle time by :class:`IdleCause`."""
    collective_ns: Int64s
    """Shape (ranks,): busy time in which a group of the rank (tensor parallel and so on) communicated."""
    reduction_ns: Int64s
    """Shape (ranks,): time in which gradients were reduced, overlapped or not."""
    memory: Memory
    """Memory per rank."""
    tokens: int
    """Tokens of the whole job's step; 0 where unknown."""
    model_flops: int
    """Model FLOPs of the whole job's step; 0 where unknown."""
    peak_flops: int
    """Peak FLOP/s of the whole job's devices; 0 where unknown."""
    plausible_flops: int
    """Highest plausible model FLOP/s of the whole job, by published steps; 0 where unknown."""
    notes: tuple[str, ...] = ()
    """How figures were counted."""

    @cached_property
    def groups(self) -> tuple[GroupTime, ...]:
        """Communication of the data-parallel group and of groups inside actions, and its overlapped part."""
        return group_times(self.timeline)

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path."""
        return critical_path(self.timeline)

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
        """The longest time from a rank's first to its last action: the pace of steps without a barrier between."""
        outside = self.idle_ns[:, IdleCause.FILL] + self.idle_ns[:, IdleCause.DRAIN]
        return self.step_ns - int(outside.min(initial=self.step_ns)) if self.ranks else 0

    @property
    def bubble(self) -> Fraction:
        """Idle time over ranks times window."""
        total_ns = self.ranks * self.step_ns
        return Fraction(int(self.idle_ns.sum()), total_ns) if total_ns else Fraction(0)

    @property
    def exposed_ns(self) -> Int64s:
        """Shape (ranks,): non-overlapped communication: messages, reductions and group collectives."""
        total: Int64s = self.idle_ns[:, list(COMMUNICATION)].sum(axis=1) + self.collective_ns
        return total

    @cached_property
    def idle_by_cause_ns(self) -> dict[str, int]:
        """Idle time of all ranks by cause, in the order of :class:`IdleCause`."""
        total_ns = self.idle_ns.sum(axis=0).tolist()
        return {cause.word: total_ns[cause] for cause in IdleCause}

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of the whole job; None where unknown."""
        return self.tokens * 1e9 / self.step_ns if self.tokens and self.step_ns else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: no recomputation counted, dense peak; None where unknown."""
        available = self.peak_flops * self.step_ns
        return self.model_flops * 1e9 / available if self.model_flops and available else None

    @property
    def plausible_mfu(self) -> float | None:
        """Highest plausible MFU, by published steps on the same devices; None where unknown."""
        return self.plausible_flops / self.peak_flops if self.plausible_flops and self.peak_flops else None


_COMPARED = 2


def measure(timeline: Timeline, workload: Workload, memory: Memory | None = None) -> Metrics:
    """Measure a timeline; the workload gives tokens, FLOPs, and the memory unless ``memory`` is given."""
    opened, closed = window(timeline)
    spent = time_spent(timeline, (opened, closed))
    metrics = Metrics(
        timeline=timeline, start_ns=opened, end_ns=closed, busy_ns=spent.busy_ns, idle_ns=spent.idle_ns,
        collective_ns=spent.collective_ns, reduction_ns=spent.reduction_ns,
        memory=memory or measure_memory(timeline, workload), tokens=workload.tokens,
        model_flops=workload.model_flops, peak_flops=workload.peak_flops,
        plausible_flops=workload.plausible_flops,
    )  # fmt: skip
    noted = plausibility_notes([("this step", metrics.mfu, metrics.plausible_mfu)])
    noted += _steadiness_notes(update_intervals(timeline))
    return replace(metrics, notes=(*noted, *workload.notes))


def _steadiness_notes(intervals_ns: Sequence[int]) -> list[str]:
    """Return a note if the last two times between updates differ by more than a hundredth."""
    if len(intervals_ns) < _COMPARED or abs(intervals_ns[-1] - intervals_ns[-2]) * 100 <= intervals_ns[-1]:
        return []
    previous, last = (format_duration(time_ns) for time_ns in intervals_ns[-2:])
    return [f"times between updates differ ({previous}, then {last}): the step is the last of them"]


def plausibility_notes(steps: Iterable[tuple[str, float | None, float | None]]) -> list[str]:
    """Return a note on steps that are faster than published steps make plausible; none without such a step.

    Args:
        steps: name, MFU and highest plausible MFU of each step.

    >>> plausibility_notes([("1f1b", 0.5, 0.55), ("zb-v", 0.6, 0.55), ("gpipe", 0.4, None)])
    ['MFU of zb-v is above 55.0%, what published steps on this device make plausible']
    """
    higher = [(name, limit) for name, mfu, limit in steps if mfu and limit and mfu > limit]
    if not higher:
        return []
    names, limits = zip(*higher, strict=True)
    text = f"MFU of {' and '.join(names)} is above {min(limits):.1%}"
    return [f"{text}, what published steps on this device make plausible"]


def hidden_ns(timeline: Timeline) -> Int64s:
    """Return each rank's communication time that its computation hides, shape (ranks,).

    Messages count at their receiver, from their start to the arrival of the data. Communication of groups, such as
    the reduction of gradients, counts at each rank of the group. Simultaneous operations count separately.
    """
    total = np.zeros(timeline.ranks, dtype=np.int64)
    for group in group_times(timeline):
        total += group.hidden_ns
    receiver, start_ns, arrived_ns = received_spans(timeline)
    for lane in np.flatnonzero(timeline.lane_stream == Stream.COMPUTE).tolist():
        rows = np.arange(*timeline.lane_ptr[lane : lane + 2].tolist())
        rows = rows[COMPUTE.mask(timeline.kind[rows])]
        rank = timeline.lane_rank[lane]
        before_ns, after_ns = (
            time_within(timeline.start_ns[rows], timeline.end_ns[rows], at_ns[receiver == rank])
            for at_ns in (start_ns, arrived_ns)
        )
        total[rank] += (after_ns - before_ns).sum()
    return total


def received_spans(timeline: Timeline) -> tuple[Int32s, Int64s, Int64s]:
    """Return the receiver of each message with a known consumer, its start and the arrival of its data."""
    ends = messages(timeline)
    known = ends.consumer >= 0
    row, receiver = ends.transfer[known], timeline.rank_of_row()[ends.consumer[known]]
    return receiver, timeline.start_ns[row], timeline.end_ns[row] + timeline.lag_ns[row]


_NEVER = int(np.iinfo(np.int64).max)


class Phase(Struct, frozen=True):
    """A part of one rank's step."""

    rank: int
    """The rank."""
    name: str
    """``warm-up``, ``steady`` or ``cool-down``."""
    start_ns: int
    """When it starts."""
    end_ns: int
    """When it ends, after its start."""


def phases(timeline: Timeline) -> tuple[Phase, ...]:
    """Return the phases of every rank, by rank and time.

    A step without a flush is one steady phase of each rank. Otherwise, warm-up lasts from a rank's first forward
    until its first backward starts, cool-down from the end of its last forward to the end of its last backward,
    and steady is the time between both. Empty phases are omitted, and a rank without a forward or without a
    backward has no phases. In actions with segments, only computation counts.
    """
    if update_intervals(timeline):
        start_ns, end_ns = window(timeline)
        ranks = distinct(timeline.lane_rank).tolist()
        return tuple(Phase(rank=rank, name="steady", start_ns=start_ns, end_ns=end_ns) for rank in ranks)
    computes = ~in_group(timeline)
    forward, backward = (timeline.kind == Kind.F) & computes, BACKWARD.mask(timeline.kind) & computes
    start, turn = (
        _per_rank(np.minimum, _NEVER, timeline, rows, timeline.start_ns) for rows in (forward, backward)
    )
    last, end = (_per_rank(np.maximum, -1, timeline, rows, timeline.end_ns) for rows in (forward, backward))
    rank_phases: list[Phase] = []
    for rank, bounds in enumerate(zip(start, turn, map(max, last, turn), end, strict=True)):
        if _NEVER in bounds[:2]:
            continue
        for name, begin, until in zip(("warm-up", "steady", "cool-down"), bounds, bounds[1:], strict=False):
            if until > begin:
                rank_phases.append(Phase(rank=rank, name=name, start_ns=begin, end_ns=until))
    return tuple(rank_phases)


def _per_rank(
    pick: np.ufunc, initial: int, timeline: Timeline, chosen: NDArray[np.bool_], time_ns: Int64s
) -> list[int]:
    """Return the extreme time of each rank's chosen rows, ``initial`` for none."""
    extreme = np.full(timeline.ranks, initial, dtype=np.int64)
    pick.at(extreme, timeline.rank_of_row()[chosen], time_ns[chosen])
    times: list[int] = extreme.tolist()
    return times
