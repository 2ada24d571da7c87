"""ZB-V folds two chunks per rank into a V, and leaves no rank idle in 1F1B's memory.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 6. The order is that of
PyTorch's ``ScheduleZBVZeroBubble``.

Rank r = 0 … p - 1 holds stages r and 2 p - 1 - r, here in capitals and in small letters. It runs::

    (2 (p - r) - 1) F,   r f F,   (p - r) f i w,   (m - 2 p + 1 + r) F I W f i w,
    (p - 1 - r) I W f i w,   r I i,   (p - r) I W,   r w,   r W

for m >= 2 p - 1. Fewer microbatches take the order of 2 p - 1, without those that are not there.

Rank r starts at r and ends at 6 m + r, in times of a chunk's forward, input and weight gradient of 1 each: no
bubble on any rank, where steps follow one another without a barrier (``data_parallel.validation: after``).
From the first start to the last end it is 6 m + p - 1, for fewer microbatches 6 m + max(p - 1, 4 (p - 1) - 2
(m - 1)). Peak activations of every rank, each a chunk's: 2 p, 1F1B's, for m >= 2 p - 1.

The order is generated unless ``order`` is ``fixed``, in this much memory. For equal times it takes
6 m + max(p - 1, 3 p - 1 - 2 m, 4 p - 1 - 4 m), and every rank holds 2 min(m, p).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from pptrace_schedules.zero_bubble.offers import bubble_of, is_fixed, v_idle, v_offer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.offers import v_shaped

    return v_shaped(request, _fixed(request.ranks, request.microbatches), 2 * request.ranks)


@lru_cache(maxsize=16)
def _fixed(ranks: int, microbatches: int) -> Schedule:
    from pptrace_schedules.zero_bubble.v_blocks import in_order

    steady = max(microbatches - 2 * ranks + 1, 0)
    rows = [
        [
            ("F", 2 * (ranks - rank) - 1), ("fF", rank), ("fiw", ranks - rank), ("FIWfiw", steady + rank),
            ("IWfiw", ranks - 1 - rank), ("Ii", rank), ("IW", ranks - rank), ("w", rank), ("W", rank),
        ]
        for rank in range(ranks)
    ]  # fmt: skip
    return in_order(rows, microbatches)


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length, waits before the first and after the last action too."""
    ranks, microbatches = request.ranks, request.microbatches
    if is_fixed(request):
        return bubble_of(request, 2, max(ranks - 1, 4 * (ranks - 1) - 2 * (microbatches - 1)))
    return bubble_of(request, 2, v_idle(ranks, microbatches))


def peak_activations(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the chunks' activations of which each rank holds anything; None for few in fixed order."""
    if is_fixed(request) and request.microbatches < 2 * request.ranks - 1:
        return None
    return [Fraction(2 * min(request.microbatches, request.ranks))] * request.ranks


OFFER = v_offer(
    "zb-v",
    summary="Two chunks per rank in a V and split backwards: no rank idles between its first and last action.",
    build=build,
    bubble=bubble,
    peak_activations=peak_activations,
    source="https://arxiv.org/abs/2401.10241",
)
