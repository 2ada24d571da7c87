"""What a candidate's step would about take, from costs and closed forms alone: which of many to simulate.

Each rank's computation, the schedule's own bubble, what the step ends with; and for memory its peak activations.
Nothing is waited for here, so a simulated step is rarely shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import PptraceError
from pptrace.hooks.build import checked_options
from pptrace.hooks.call import plugin_code
from pptrace.model.request import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.experiment import Offload
    from pptrace.hooks.offers import ScheduleOffer
    from pptrace.hooks.provider import Provided
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload

__all__ = ["Estimate", "estimate"]


_BESIDE_COPIES = 3
"""Activations that a rank holds in spite of copies: one in use, one on its way out, one on its way back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """About what a step takes."""

    step_ns: int
    """Its length."""
    peak_bytes: int
    """The memory of its fullest rank."""
    fits: bool
    """Whether that is no more than the device has, as far as is known."""
    reduction_ns: int = 0
    """The part of the step in which gradients are reduced over replicas."""


def estimate(
    provided: Provided[ScheduleOffer],
    workload: Workload,
    ranks: int,
    microbatches: int,
    own: Mapping[str, Any] | None = None,
    offload: Offload | None = None,
) -> Estimate | None:
    """Return what a schedule's step would about take; None where it cannot run, or nothing is known of it.

    Args:
        provided: the schedule.
        workload: costs of the stages, which say how many chunks a rank has.
        ranks: pipeline ranks.
        microbatches: of one pipeline.
        own: options of the schedule that the configuration runs, which has 1F1B's forms where it offers none;
            others have their defaults.
        offload: activations that are in host memory between forward and backward.
    """
    offer, chunks = provided.offer, workload.stages // ranks
    try:
        with plugin_code(provided.provider, offer.build):
            options = checked_options(provided, {}, "schedule.options") if own is None else own
            request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=options)
            if offer.check is not None:
                offer.check(request)
            bubble = offer.bubble(request) if offer.bubble else None
            share = None if bubble is None else float(bubble)
            held = [
                float(one) for one in (offer.peak_activations(request) if offer.peak_activations else None) or ()
            ]
    except PptraceError:
        return None
    if share is None and own is not None:
        share = (ranks - 1) / (chunks * microbatches + ranks - 1)
    if share is None or not 0 <= share < 1:
        return None
    work = _by_rank(workload.f_ns + workload.b_ns, ranks) * microbatches
    idle = float(work.mean()) * share / (1 - share)
    reduction, update = (int(_by_rank(time, ranks).max()) for time in (workload.reduce_ns, workload.optimizer_ns))
    peak = _peak(workload, ranks, held, offload)
    return Estimate(
        step_ns=int(work.max()) + int(idle) + reduction + update + workload.sync_ns,
        peak_bytes=peak,
        fits=not workload.capacity_bytes or peak <= workload.capacity_bytes,
        reduction_ns=reduction,
    )


def _peak(workload: Workload, ranks: int, held: list[float], offload: Offload | None) -> int:
    """Return the memory of the fullest rank where each holds so many chunks' activations; 1F1B's unless given."""
    chunks = workload.stages // ranks
    if len(held) != ranks:
        held = [float(min(ranks - rank, ranks) * chunks) for rank in range(ranks)]
    state = workload.weights_bytes + workload.gradients_bytes + workload.optimizer_bytes
    each, away = (
        _by_rank(size, ranks) / chunks for size in (workload.activation_bytes, _copied(workload, ranks, offload))
    )
    activations = each * np.array(held) - away * np.maximum(np.array(held) - _BESIDE_COPIES, 0)
    return int((_by_rank(state, ranks) + activations).max()) + workload.reserved_bytes


def _copied(workload: Workload, ranks: int, offload: Offload | None) -> Int64s:
    """Return the bytes of each stage's activations that are in host memory between forward and backward."""
    stage = np.arange(workload.stages)
    if offload is None:
        return np.zeros_like(workload.activation_bytes)
    chosen = np.isin(stage, offload.stages) if offload.stages is not None else stage >= 0
    if offload.chunks is not None:
        chosen &= np.isin(stage // ranks, offload.chunks)
    copied: Int64s = np.where(chosen, workload.copied_bytes * offload.ratio, 0).astype(np.int64)
    return copied


def _by_rank(values: Int64s, ranks: int) -> Int64s:
    """Return what each rank's stages have in sum, the stages dealt out in turn."""
    total: Int64s = values.reshape(-1, ranks).sum(axis=0)
    return total
