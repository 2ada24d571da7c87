"""Eager 1F1B: 1F1B whose warm-up is twice as deep, so that messages have time to arrive.

Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, MLSys 2023.
Order of rank r of p, with m microbatches and w = min(m, 2 (p - r) - 1): w F, then B F in turns, then the other B.
Bubble: (p - 1) / (m + p - 1), as 1F1B. Peak activations of rank r: w.
"""

from collections.abc import Iterable
from fractions import Fraction

from pptrace.plugin import ScheduleOffer, ScheduleRequest, hookimpl


def warm_up(request: ScheduleRequest, rank: int) -> int:
    """Return how many forwards a rank runs before its first backward."""
    return min(request.microbatches, 2 * (request.ranks - rank) - 1)


def build(request: ScheduleRequest) -> list[list[str]]:
    """Return the actions of each rank in order."""
    rows = []
    for rank in range(request.ranks):
        ahead = warm_up(request, rank)
        row = [f"{rank}F{each}" for each in range(ahead)]
        for each in range(request.microbatches):
            row.append(f"{rank}B{each}")
            if each + ahead < request.microbatches:
                row.append(f"{rank}F{each + ahead}")
        rows.append(row)
    return rows


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle time over all time, where a backward takes two forwards."""
    return Fraction(request.ranks - 1, request.microbatches + request.ranks - 1)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the most microbatches that each rank holds at once."""
    return [Fraction(warm_up(request, rank)) for rank in range(request.ranks)]


OFFER = ScheduleOffer(
    name="ahead-1f1b",
    summary="1F1B with a deeper warm-up, which hides slow messages and holds more activations.",
    build=build,
    bubble=bubble,
    peak_activations=peak_activations,
    source="https://arxiv.org/abs/2211.05322",
)


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    yield OFFER
