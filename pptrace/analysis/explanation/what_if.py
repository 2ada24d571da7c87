"""What a measured step would take if something were gone: its communication, its bubble, its slowest rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.analysis.steps.times import Performed

__all__ = ["RankBusy", "WhatIf", "busy_by_rank", "what_if"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBusy:
    """What one rank computed."""

    rank: int
    """The rank."""
    busy_ns: Figure
    """Its computations."""
    share: Figure
    """By how much that is more than the median rank's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Lengths of a pipeline's step, from its first computation to its last."""

    replayed_ns: Figure
    """As it was, replayed; the others are against this."""
    free_communication_ns: Figure
    """With every message there at once, and no wait for a rank's own groups."""
    no_host_gaps_ns: Figure
    """With no host gaps."""
    no_bubble_ns: Figure
    """With nothing to wait for: the most that any rank computes."""
    repaired_ns: Figure
    """With the slowest rank as fast as the median one."""
    slowest: RankBusy
    """That rank."""


def what_if(step: Performed, again: Callable[[Performed], int] | None = None) -> WhatIf:
    """Replay a step without one thing after another.

    Args:
        step: the step.
        again: runs it with other durations and gaps and returns its length, its messages held up by whatever holds
            them then; unless given, each is held for as long as it was.

    Raises:
        ScheduleError: its order is no pipeline's.
    """
    ranks = busy_by_rank(step)
    slowest = max(ranks, key=lambda one: (one.busy_ns.value, -one.rank))
    longer = 1 + max(slowest.share.value, 0.0)
    repaired = np.where(step.rank == slowest.rank, (step.duration_ns / longer).astype(np.int64), step.duration_ns)
    nothing = np.zeros_like(step.transfers.took_ns)
    at_once = replace(step.transfers, took_ns=nothing, held_ns=nothing)
    alone = step.duration_ns - step.collective_ns
    length = again or _held
    return WhatIf(
        replayed_ns=Figure(length(step)),
        free_communication_ns=Figure(_held(replace(step, transfers=at_once, duration_ns=alone))),
        no_host_gaps_ns=Figure(length(replace(step, gap_ns=step.gap_ns - step.host_gap_ns))),
        no_bubble_ns=slowest.busy_ns,
        repaired_ns=Figure(length(replace(step, duration_ns=repaired))), slowest=slowest,
    )  # fmt: skip


def busy_by_rank(step: Performed) -> tuple[RankBusy, ...]:
    """Return what each rank computed, against the median."""
    busy = np.bincount(step.rank, weights=step.duration_ns, minlength=step.placement.ranks).astype(np.int64)
    middle = float(np.median(busy)) or 1.0
    return tuple(
        RankBusy(rank=rank, busy_ns=Figure(time), share=Figure(time / middle - 1))
        for rank, time in enumerate(busy.tolist())
    )


def _held(step: Performed) -> int:
    return performed(run_order(step.order, step.times(), partial=step.partial)).span_ns
