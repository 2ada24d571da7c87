"""1F1B alternates one forward and one backward as soon as the first backward can run.

Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021, arXiv:2006.09503
(PipeDream-Flush); Fan et al., DAPPLE, PPoPP 2021, arXiv:2007.01045, found the same order.

Order of rank r of p, with m microbatches and w = min(m, p - 1 - r)::

    w F,   m - w times F B,   w B          forwards 0 … m - 1 and backwards 0 … m - 1, each in order

Bubble: (p - 1) / (m + p - 1), that of GPipe. Peak activations of rank r: min(m, p - r).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER", "check_one_chunk"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace_schedules.row_patterns import one_forward_one_backward

    warm_up = [min(request.microbatches, request.ranks - 1 - rank) for rank in range(request.ranks)]
    microbatch = np.arange(request.microbatches, dtype=np.int32)
    first_stage = np.zeros_like(microbatch)
    return one_forward_one_backward(request, warm_up, microbatch, first_stage, first_stage)


def check(request: ScheduleRequest) -> None:
    """Refuse several chunks per rank."""
    check_one_chunk(request, "1f1b", "interleaved-1f1b")


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    return Fraction(request.ranks - 1, request.microbatches + request.ranks - 1)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the microbatches that each rank holds when its first backward starts."""
    return [Fraction(min(request.microbatches, request.ranks - rank)) for rank in range(request.ranks)]


def check_one_chunk(request: ScheduleRequest, name: str, instead: str) -> None:
    """Refuse several chunks per rank.

    Raises:
        ConstraintError: the schedule ``name`` is asked for several; ``instead`` takes them.
    """
    if request.chunks != 1:
        raise ConstraintError(
            f"{name} keeps one chunk of the model on a rank, not {request.chunks} ({instead} takes several)",
            nearest="1 chunk",
            key="parallel.vp",
        )


OFFER = ScheduleOffer(
    name="1f1b",
    summary="One forward and one backward in turns, after a warm-up as long as the way to the last rank.",
    build=build,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2006.09503",
)
