"""Estimates of steps from costs and closed forms, to choose candidates for simulation.

An estimate is the larger of computation (with recomputation) and copies of the slowest rank, plus the schedule's
bubble and the end of the step. Memory is that of peak activations. Estimates contain no other waits, so a
simulated step is rarely shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pptrace.config.choices import CopyStream
from pptrace.errors import PptraceError
from pptrace.plugins.construction import checked_options
from pptrace.plugins.guards import plugin_code
from pptrace.plugins.requests import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.config.schema import Offload, Recompute
    from pptrace.plugins.offers import Provided, ScheduleOffer
    from pptrace.steps.columns import Int64s
    from pptrace.steps.workload import Workload

_BESIDE_COPIES = 3
"""Activations on a rank that copies do not remove: one in use, one in each direction of copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated step."""

    step_ns: int
    """Its length."""
    peak_bytes: int
    """The memory of its fullest rank."""
    fits: bool
    """Whether the memory fits the device; true for unknown devices."""
    reduction_ns: int = 0
    """The part of the step in which gradients are reduced over replicas."""


def estimate(
    provided: Provided[ScheduleOffer],
    workload: Workload,
    ranks: int,
    microbatches: int,
    own: Mapping[str, Any] | None = None,
    offload: Offload | None = None,
    recompute: Recompute | None = None,
    *,
    hides: bool = False,
) -> Estimate | None:
    """Return an estimate of a schedule's step; None where it cannot run or has no closed forms.

    Args:
        provided: the schedule.
        workload: costs of the stages of all chunks.
        ranks: pipeline ranks.
        microbatches: of one pipeline.
        own: options of the configured schedule, which defaults to the closed forms of 1F1B; None for defaults.
        offload: copies of activations to the host.
        recompute: recomputation by separate actions.
        hides: whether overlapped pairs hide all collectives, as they do at most.
    """
    if recompute is not None and (offload is not None or not workload.recompute_ns.any()):
        return None
    chunks = workload.stages // ranks
    forms = _closed_forms(provided, ranks, microbatches, chunks, own)
    if forms is None:
        return None
    share, held = forms
    hidden_ns = workload.f_collective_ns + workload.b_collective_ns if hides else 0
    once = _by_rank(workload.f_ns + workload.b_ns - hidden_ns, ranks)
    again = _by_rank(np.where(_chosen(workload, ranks, recompute), workload.recompute_ns, 0), ranks)
    filled = once if recompute is not None and recompute.early else once + again
    idle = float(filled.mean()) * microbatches * share / (1 - share)
    if len(held) != ranks:
        held = [float(min(ranks - rank, ranks) * chunks) for rank in range(ranks)]
    kept = _HeldActivations(np.array(held), once, chunks)
    copied = _chosen(workload, ranks, offload) & kept.long_enough(workload, offload)
    reduction, update = (int(_by_rank(time, ranks).max()) for time in (workload.reduce_ns, workload.optimizer_ns))
    ratio = 0 if offload is None else offload.ratio
    copied_bytes = np.where(copied, workload.copied_bytes * ratio, 0).astype(np.int64)
    peaks = _peaks(workload, kept, copied_bytes, _chosen(workload, ranks, recompute))
    computed = int((once + again).max()) * microbatches + int(idle)
    return Estimate(
        step_ns=max(computed, _copying_ns(workload, copied, ranks, offload) * microbatches)
        + reduction + update + workload.sync_ns,
        peak_bytes=int(peaks.max()),
        fits=not workload.capacity_bytes or bool((peaks <= workload.capacities(ranks)).all()),
        reduction_ns=reduction,
    )  # fmt: skip


def _closed_forms(
    provided: Provided[ScheduleOffer], ranks: int, microbatches: int, chunks: int, own: Mapping[str, Any] | None
) -> tuple[float, list[float]] | None:
    """Return bubble and activations per rank by a schedule's closed forms; None without a bubble."""
    offer = provided.offer
    try:
        with plugin_code(provided.provider, offer.build):
            options = checked_options(provided, {}, "schedule.options") if own is None else own
            request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=options)
            if offer.check is not None:
                offer.check(request)
            bubble = offer.bubble(request) if offer.bubble else None
            share = None if bubble is None else float(bubble)
            peaks = (offer.peak_activations(request) if offer.peak_activations else None) or ()
            held = [float(peak) for peak in peaks]
    except PptraceError:
        return None
    if share is None and own is not None:
        share = (ranks - 1) / (chunks * microbatches + ranks - 1)
    return None if share is None or not 0 <= share < 1 else (share, held)


class _HeldActivations(NamedTuple):
    """Activations on ranks under a schedule."""

    held: NDArray[np.float64]
    """Shape (ranks,): peak activations of chunks."""
    once_ns: Int64s
    """Shape (ranks,): computation of a microbatch."""
    chunks: int
    """Chunks of each rank."""

    def long_enough(self, workload: Workload, offload: Offload | None) -> NDArray[np.bool_]:
        """Return the stages whose activations wait longer than the configured gap.

        By Little's law, their wait is the computation of as many other microbatches.
        """
        if offload is None or offload.gap == 0:
            return np.ones(workload.stages, dtype=bool)
        waits = (self.held - 1) * self.once_ns / self.chunks
        copies = (workload.offload_ns + workload.reload_ns) * offload.ratio
        is_long: NDArray[np.bool_] = np.tile(waits, self.chunks) > offload.gap * copies
        return is_long


def _peaks(workload: Workload, kept: _HeldActivations, away: Int64s, again: NDArray[np.bool_]) -> Int64s:
    """Return the memory of each rank."""
    ranks, state = kept.held.size, workload.weights_bytes + workload.gradients_bytes + workload.optimizer_bytes
    beside = np.where(again, workload.activation_bytes - workload.checkpoint_bytes, 0)
    each, gone, freed = (_by_rank(size, ranks) / kept.chunks for size in (workload.activation_bytes, away, beside))
    activations = each * kept.held - gone * np.maximum(kept.held - _BESIDE_COPIES, 0)
    activations -= freed * np.maximum(kept.held - 1, 0)
    peaks: Int64s = (_by_rank(state, ranks) + activations).astype(np.int64) + workload.reserved_bytes
    return peaks


def _chosen(workload: Workload, ranks: int, asked: Offload | Recompute | None) -> NDArray[np.bool_]:
    """Return the stages with configured copies or recomputation."""
    stage = np.arange(workload.stages)
    chosen: NDArray[np.bool_] = np.full(workload.stages, asked is not None)
    if asked is not None and asked.stages is not None:
        chosen &= np.isin(stage, asked.stages)
    if asked is not None and asked.chunks is not None:
        chosen &= np.isin(stage // ranks, asked.chunks)
    return chosen


def _copying_ns(workload: Workload, copied: NDArray[np.bool_], ranks: int, offload: Offload | None) -> int:
    """Return the time of copies per microbatch on the busiest copy stream."""
    if offload is None:
        return 0
    out, back = (
        _by_rank(np.where(copied, times * offload.ratio, 0).astype(np.int64), ranks)
        for times in (workload.offload_ns, workload.reload_ns)
    )
    if offload.stream is CopyStream.RANK:
        return int((out + back).max())
    if offload.stream is CopyStream.PAIR:
        out, back = (np.add.reduceat(times, np.arange(0, ranks, 2)) for times in (out, back))
    return int(np.maximum(out, back).max())


def _by_rank(values: Int64s, ranks: int) -> Int64s:
    """Return the sum over each rank's stages, which loop over the ranks."""
    total: Int64s = values.reshape(-1, ranks).sum(axis=0)
    return total
