"""Estimates of steps from costs and closed forms, to choose candidates for simulation.

An estimate is the larger of computation (with recomputation) and copies of the slowest rank, plus the schedule's
bubble and the end of the step. Memory is estimated at peak activations. Estimates omit all other waits, so a
simulated step is rarely shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

_ALWAYS_HELD = 3
"""Activations on a rank that copies do not remove: one in use, one in each direction of copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated step."""

    step_ns: int
    """The step time."""
    peak_bytes: int
    """The memory of the fullest rank."""
    fits: bool
    """Whether the memory fits the device; true for unknown devices."""
    reduction_ns: int = 0
    """The part of the step in which gradients are reduced over replicas."""


def estimate(
    provided: Provided[ScheduleOffer],
    workload: Workload,
    ranks: int,
    microbatches: int,
    options: Mapping[str, Any] | None = None,
    offload: Offload | None = None,
    recompute: Recompute | None = None,
    *,
    hides: bool = False,
) -> Estimate | None:
    """Return an estimate of a schedule's step; None if it cannot run or has no closed forms.

    Args:
        provided: the schedule.
        workload: costs of the stages of all chunks.
        ranks: pipeline ranks.
        microbatches: microbatches of one pipeline.
        options: options of the configured schedule, which defaults to the closed forms of 1F1B; None for defaults.
        offload: copies of activations to the host.
        recompute: recomputation by separate actions.
        hides: whether overlapped pairs hide all collectives, which is an upper bound.
    """
    if recompute is not None and (offload is not None or not workload.recompute_ns.any()):
        return None
    chunks = workload.stages // ranks
    forms = _closed_forms(provided, ranks, microbatches, chunks, options)
    if forms is None:
        return None
    share, peak_activations = forms
    hidden_ns = workload.f_collective_ns + workload.b_collective_ns if hides else 0
    compute_ns = _by_rank(workload.f_ns + workload.b_ns - hidden_ns, ranks)
    is_recomputed = _selected_stages(workload, ranks, recompute)
    recompute_ns = _by_rank(np.where(is_recomputed, workload.recompute_ns, 0), ranks)
    pipeline_ns = compute_ns if recompute is not None and recompute.early else compute_ns + recompute_ns
    idle_ns = float(pipeline_ns.mean()) * microbatches * share / (1 - share)
    if len(peak_activations) != ranks:
        peak_activations = [float(min(ranks - rank, ranks) * chunks) for rank in range(ranks)]
    chunk_peaks = np.array(peak_activations)
    is_copied = _selected_stages(workload, ranks, offload)
    if offload is not None and offload.gap:
        # By Little's law, activations wait for the computation of all other activations on the rank.
        waits_ns = (chunk_peaks - 1) * compute_ns / chunks
        copies_ns = (workload.offload_ns + workload.reload_ns) * offload.ratio
        is_copied &= np.tile(waits_ns, chunks) > offload.gap * copies_ns
    reduction, update = (int(_by_rank(time, ranks).max()) for time in (workload.reduce_ns, workload.optimizer_ns))
    ratio = 0 if offload is None else offload.ratio
    copied_bytes = np.where(is_copied, workload.copied_bytes * ratio, 0).astype(np.int64)
    peaks = _peaks(workload, chunk_peaks, chunks, copied_bytes, is_recomputed)
    computation_ns = int((compute_ns + recompute_ns).max()) * microbatches + int(idle_ns)
    return Estimate(
        step_ns=max(computation_ns, _copying_ns(workload, is_copied, ranks, offload) * microbatches)
        + reduction + update + workload.sync_ns,
        peak_bytes=int(peaks.max()),
        fits=not workload.capacity_bytes or bool((peaks <= workload.capacities(ranks)).all()),
        reduction_ns=reduction,
    )  # fmt: skip


def _closed_forms(
    provided: Provided[ScheduleOffer],
    ranks: int,
    microbatches: int,
    chunks: int,
    options: Mapping[str, Any] | None,
) -> tuple[float, list[float]] | None:
    """Return bubble and activations per rank by a schedule's closed forms; None without a bubble."""
    offer = provided.offer
    try:
        with plugin_code(provided.provider, offer.build):
            checked = checked_options(provided, {}, "schedule.options") if options is None else options
            request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=checked)
            if offer.check is not None:
                offer.check(request)
            bubble = offer.bubble(request) if offer.bubble else None
            share = None if bubble is None else float(bubble)
            peaks = (offer.peak_activations(request) if offer.peak_activations else None) or ()
            peak_activations = [float(peak) for peak in peaks]
    except PptraceError:
        return None
    if share is None and options is not None:
        share = (ranks - 1) / (chunks * microbatches + ranks - 1)
    return None if share is None or not 0 <= share < 1 else (share, peak_activations)


def _peaks(
    workload: Workload,
    chunk_peaks: NDArray[np.float64],
    chunks: int,
    copied_bytes: Int64s,
    is_recomputed: NDArray[np.bool_],
) -> Int64s:
    """Return the peak memory of each rank; ``chunk_peaks`` are its peak activations of chunks."""
    ranks = chunk_peaks.size
    state = workload.weights_bytes + workload.gradients_bytes + workload.optimizer_bytes
    dropped_bytes = np.where(is_recomputed, workload.activation_bytes - workload.checkpoint_bytes, 0)
    stored, offloaded, dropped = (
        _by_rank(size, ranks) / chunks for size in (workload.activation_bytes, copied_bytes, dropped_bytes)
    )
    activation_bytes = stored * chunk_peaks - offloaded * np.maximum(chunk_peaks - _ALWAYS_HELD, 0)
    activation_bytes -= dropped * np.maximum(chunk_peaks - 1, 0)
    peaks: Int64s = (_by_rank(state, ranks) + activation_bytes).astype(np.int64) + workload.reserved_bytes
    return peaks


def _selected_stages(workload: Workload, ranks: int, selection: Offload | Recompute | None) -> NDArray[np.bool_]:
    stage = np.arange(workload.stages)
    is_selected: NDArray[np.bool_] = np.full(workload.stages, selection is not None)
    if selection is not None and selection.stages is not None:
        is_selected &= np.isin(stage, selection.stages)
    if selection is not None and selection.chunks is not None:
        is_selected &= np.isin(stage // ranks, selection.chunks)
    return is_selected


def _copying_ns(workload: Workload, is_copied: NDArray[np.bool_], ranks: int, offload: Offload | None) -> int:
    """Return the time of copies per microbatch on the busiest copy stream."""
    if offload is None:
        return 0
    out_ns, back_ns = (
        _by_rank(np.where(is_copied, times * offload.ratio, 0).astype(np.int64), ranks)
        for times in (workload.offload_ns, workload.reload_ns)
    )
    if offload.stream is CopyStream.RANK:
        return int((out_ns + back_ns).max())
    if offload.stream is CopyStream.PAIR:
        out_ns, back_ns = (np.add.reduceat(times, np.arange(0, ranks, 2)) for times in (out_ns, back_ns))
    return int(np.maximum(out_ns, back_ns).max())


def _by_rank(values: Int64s, ranks: int) -> Int64s:
    """Return the sum over each rank's stages, which loop over the ranks."""
    total: Int64s = values.reshape(-1, ranks).sum(axis=0)
    return total
