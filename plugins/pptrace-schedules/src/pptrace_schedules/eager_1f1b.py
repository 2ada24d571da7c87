"""Eager 1F1B runs forwards further ahead than 1F1B, so that messages have a step's time to arrive.

Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, MLSys 2023, arXiv:2211.05322,
section 4: twice the warm-up of 1F1B.

Order of rank r of p, with m microbatches and w = min(m, 2 (p - 1 - r))::

    w F,   m - w times F B,   w B          forwards 0 … m - 1 and backwards 0 … m - 1, each in order

Between a forward and the one on the next rank lies another forward and backward, so a message that takes less than
these delays nothing, where 1F1B waits for it both ways.

Bubble, where messages take no time: (p - 1) / (m + p - 1), that of 1F1B. Peak activations of rank r:
min(m, 2 (p - 1 - r) + 1).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.one_f_one_b import check_one_chunk

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace_schedules.row_patterns import one_forward_one_backward

    microbatch = np.arange(request.microbatches, dtype=np.int32)
    first_stage = np.zeros_like(microbatch)
    warm_up = [_warm_up(request, rank) for rank in range(request.ranks)]
    return one_forward_one_backward(request, warm_up, microbatch, first_stage, first_stage)


def check(request: ScheduleRequest) -> None:
    """Refuse several chunks per rank."""
    check_one_chunk(request, "eager-1f1b", "interleaved-1f1b")


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    return Fraction(request.ranks - 1, request.microbatches + request.ranks - 1)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the microbatches that each rank holds when its first backward starts."""
    return [Fraction(min(request.microbatches, _warm_up(request, rank) + 1)) for rank in range(request.ranks)]


def _warm_up(request: ScheduleRequest, rank: int) -> int:
    return min(request.microbatches, 2 * (request.ranks - 1 - rank))


OFFER = ScheduleOffer(
    name="eager-1f1b",
    summary="1F1B with a warm-up of twice the forwards, which leaves messages a step's time.",
    build=build,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2211.05322",
)
