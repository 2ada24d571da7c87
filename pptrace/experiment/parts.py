"""Costs of the parts into which a schedule cuts microbatches."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pptrace.hooks.call import call_plugin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.hooks.offers import ScheduleOffer
    from pptrace.hooks.provider import Provided
    from pptrace.model.request import ScheduleRequest
    from pptrace.model.workload import Workload

__all__ = ["in_parts", "part_times"]

_BY_BYTES = (
    "activation_bytes", "weight_activation_bytes", "boundary_bytes", "boundary_gradient_bytes", "offload_bytes",
    "checkpoint_bytes",
    "offload_ns", "reload_ns",
)  # fmt: skip
"""What parts of unlike times have alike."""


def part_times(
    provided: Provided[ScheduleOffer], request: ScheduleRequest, workload: Workload
) -> Sequence[Fraction]:
    """Return the share of a microbatch's time that each of its parts takes; none where they are alike.

    Raises:
        PluginError: the schedule's own function fails.
    """
    told = provided.offer.part_times
    if told is None:
        return ()
    return call_plugin(provided.provider, told, replace(request, causal_share=_causal_share(workload)))


def _causal_share(workload: Workload) -> Fraction:
    kernels = workload.kernels() if workload.kernels else ()
    whole = sum(one.duration_ns for one in kernels)
    return Fraction(sum(one.duration_ns for one in kernels if one.causal), max(whole, 1))


def in_parts(workload: Workload, microbatches: int, parts: int, times: Sequence[Fraction]) -> Workload:
    """Return the costs of so many parts of each microbatch, one after the other.

    Args:
        workload: the costs of whole microbatches.
        microbatches: how many there are.
        parts: into how many each is cut.
        times: each part's share of the time; none where all are alike.
    """
    if len(set(times)) <= 1:
        return workload.divided(parts)
    used = workload.microbatch_class
    used = used if used.size else np.zeros(microbatches, dtype=np.int32)
    alike = replace(workload, classes=(), microbatch_class=np.zeros(0, dtype=np.int32))
    first, *others = (_part(one, share, parts) for one in (alike, *workload.classes) for share in times)
    number = np.repeat(used, parts) * parts + np.tile(np.arange(parts, dtype=np.int32), microbatches)
    return replace(first, classes=tuple(others), microbatch_class=number.astype(np.int32))


def _part(whole: Workload, share: Fraction, parts: int) -> Workload:
    """Return the costs of a part of ``share`` of the time, and of as many bytes as all others."""
    even = whole.scaled(Fraction(1, parts))
    return replace(whole.scaled(share), **{name: getattr(even, name) for name in _BY_BYTES})
