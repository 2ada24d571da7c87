"""What a candidate's step would about take, from costs and closed forms alone: which of many to simulate.

Each rank's computation, forwards computed again among it, or its copies where they take longer; the schedule's own
bubble, what the step ends with; and for memory its peak activations. Nothing is waited for here, so a simulated
step is rarely shorter.
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
    recompute: Recompute | None = None,
    *,
    hides: bool = False,
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
        recompute: forwards that are computed again by actions of their own.
        hides: whether overlapped pairs hide all collectives, as they do at most.
    """
    if recompute is not None and (offload is not None or not workload.recompute_ns.any()):
        return None
    chunks = workload.stages // ranks
    told = _told(provided, ranks, microbatches, chunks, own)
    if told is None:
        return None
    share, held = told
    once = _by_rank(workload.f_ns + workload.b_ns - (_collective_ns(workload) if hides else 0), ranks)
    again = _by_rank(np.where(_chosen(workload, ranks, recompute), workload.recompute_ns, 0), ranks)
    filled = once if recompute is not None and recompute.early else once + again
    idle = float(filled.mean()) * microbatches * share / (1 - share)
    if len(held) != ranks:
        held = [float(min(ranks - rank, ranks) * chunks) for rank in range(ranks)]
    kept = _Kept(np.array(held), once, chunks)
    copied = _chosen(workload, ranks, offload) & kept.long_enough(workload, offload)
    reduction, update = (int(_by_rank(time, ranks).max()) for time in (workload.reduce_ns, workload.optimizer_ns))
    peaks = _peaks(workload, kept, _share(workload, copied, offload), _chosen(workload, ranks, recompute))
    computed = int((once + again).max()) * microbatches + int(idle)
    return Estimate(
        step_ns=max(computed, _copying_ns(workload, copied, ranks, offload) * microbatches)
        + reduction + update + workload.sync_ns,
        peak_bytes=int(peaks.max()),
        fits=not workload.capacity_bytes or bool((peaks <= workload.capacities(ranks)).all()),
        reduction_ns=reduction,
    )  # fmt: skip


def _collective_ns(workload: Workload) -> Int64s:
    """Return the collectives of a microbatch on each stage."""
    collective_ns: Int64s = workload.f_collective_ns + workload.b_collective_ns
    return collective_ns


def _told(
    provided: Provided[ScheduleOffer], ranks: int, microbatches: int, chunks: int, own: Mapping[str, Any] | None
) -> tuple[float, list[float]] | None:
    """Return a schedule's bubble and what ranks hold, as its closed forms say; None where they say no bubble."""
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


class _Kept(NamedTuple):
    """What ranks hold in a schedule."""

    held: NDArray[np.float64]
    """Shape (ranks,): the most activations of chunks."""
    once_ns: Int64s
    """Shape (ranks,): what a rank computes on a microbatch."""
    chunks: int
    """Chunks of each rank."""

    def long_enough(self, workload: Workload, offload: Offload | None) -> NDArray[np.bool_]:
        """Return which stages' activations wait longer than copies of them ask for.

        So many at a time wait for as long as their rank takes for as many others (Little's law).
        """
        if offload is None or offload.gap == 0:
            return np.ones(workload.stages, dtype=bool)
        waits = (self.held - 1) * self.once_ns / self.chunks
        copies = (workload.offload_ns + workload.reload_ns) * offload.ratio
        found: NDArray[np.bool_] = np.tile(waits, self.chunks) > offload.gap * copies
        return found


def _peaks(workload: Workload, kept: _Kept, away: Int64s, again: NDArray[np.bool_]) -> Int64s:
    """Return the memory of each rank."""
    ranks, state = kept.held.size, workload.weights_bytes + workload.gradients_bytes + workload.optimizer_bytes
    beside = np.where(again, workload.activation_bytes - workload.checkpoint_bytes, 0)
    each, gone, freed = (_by_rank(size, ranks) / kept.chunks for size in (workload.activation_bytes, away, beside))
    activations = each * kept.held - gone * np.maximum(kept.held - _BESIDE_COPIES, 0)
    activations -= freed * np.maximum(kept.held - 1, 0)
    peaks: Int64s = (_by_rank(state, ranks) + activations).astype(np.int64) + workload.reserved_bytes
    return peaks


def _chosen(workload: Workload, ranks: int, asked: Offload | Recompute | None) -> NDArray[np.bool_]:
    """Return the stages that copies or forwards computed again are asked for."""
    stage = np.arange(workload.stages)
    chosen: NDArray[np.bool_] = np.full(workload.stages, asked is not None)
    if asked is not None and asked.stages is not None:
        chosen &= np.isin(stage, asked.stages)
    if asked is not None and asked.chunks is not None:
        chosen &= np.isin(stage // ranks, asked.chunks)
    return chosen


def _share(workload: Workload, copied: NDArray[np.bool_], offload: Offload | None) -> Int64s:
    """Return the bytes of each stage's activations that are in host memory between forward and backward."""
    ratio = 0 if offload is None else offload.ratio
    away: Int64s = np.where(copied, workload.copied_bytes * ratio, 0).astype(np.int64)
    return away


def _copying_ns(workload: Workload, copied: NDArray[np.bool_], ranks: int, offload: Offload | None) -> int:
    """Return for how long the busiest stream of copies copies what is left of a microbatch."""
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
    """Return what each rank's stages have in sum, the stages dealt out in turn."""
    total: Int64s = values.reshape(-1, ranks).sum(axis=0)
    return total
