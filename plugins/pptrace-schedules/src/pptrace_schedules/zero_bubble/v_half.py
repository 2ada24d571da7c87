"""V-Half holds half of 1F1B's activations, and idles half as long.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362.

Rank r = 0 … p - 1 holds stages r and 2 p - 1 - r, here in capitals and in small letters. Microbatch j's actions
belong into the slots of its building block, 6 j after microbatch 0's::

    F  2 r        f  3 p - 2 - r        i  3 p - 1 + 2 r + d        I  6 p - 2 - r + d

with d = 3 where p is even and 0 where it is odd, which gives the order of forwards and input gradients.
Weight gradients follow in the order of input gradients, each where its rank would wait for as long, where a
forward needs its memory, or at the end.

Length: 6 m + 3 (p - 1) for even p and 6 m + 3 p - 4 for odd, in times of a chunk's forward, input and weight
gradient of 1 each; 1F1B idles 6 (p - 1). Up to about p / 2 microbatches take 4 p - 5 less 2 for each more than one
(even p: two). Peak activations of every rank, each a chunk's: 2 floor(p / 2) + 2, where 1F1B holds 2 p.

The order is generated unless ``order`` is ``fixed``, in this much memory. For equal times and m > p > 2 it takes
6 m + 3 p - 7 for even p and 6 m + 3 p - 4 for odd; where two ranks or m <= floor(p / 2) + 1 leave memory to spare,
as long as ZB-V.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace_schedules.zero_bubble.offers import bubble_of, half_peak, is_fixed, v_idle, v_offer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]

_SMALL = 2
"""Ranks whose memory holds the order of ZB-V."""


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.offers import v_shaped
    from pptrace_schedules.zero_bubble.v_blocks import fill_blocks, half_blocks

    most = half_peak(request.ranks)
    return v_shaped(request, fill_blocks(half_blocks(request.ranks), request.microbatches, most), most)


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length; None from where memory binds to as many microbatches as ranks."""
    ranks, microbatches = request.ranks, request.microbatches
    if is_fixed(request):
        return bubble_of(request, 2, _fixed_idle(ranks, microbatches))
    if ranks <= _SMALL or 2 * microbatches <= half_peak(ranks):
        return bubble_of(request, 2, v_idle(ranks, microbatches))
    if microbatches <= ranks:
        return None
    return bubble_of(request, 2, 3 * ranks - (4 if ranks % 2 else 7))


def _fixed_idle(ranks: int, microbatches: int) -> int:
    if ranks == 1:
        return 0
    even = ranks % 2 == 0
    few = 4 * ranks - 5 - 2 * max(0, microbatches - 1 - even)
    return max(3 * ranks - 3 - (not even), few)


def peak_activations(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the chunks' activations of which each rank holds anything; None for few microbatches."""
    if request.microbatches <= (2 * request.ranks - 1 if is_fixed(request) else request.ranks):
        return None
    return [Fraction(half_peak(request.ranks))] * request.ranks


OFFER = v_offer(
    "v-half",
    summary="Two chunks per rank in a V that hold half of 1F1B's activations, with half of its bubble.",
    build=build,
    bubble=bubble,
    peak_activations=peak_activations,
    source="https://arxiv.org/abs/2405.15362",
)
