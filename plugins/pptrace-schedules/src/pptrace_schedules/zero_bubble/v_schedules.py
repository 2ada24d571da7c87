"""V schedules: ZB-V, and V-Half and V-Min, which hold half and a third of 1F1B's activations.

Rank r = 0 … p - 1 holds stages r and 2 p - 1 - r, here in capitals and in small letters. Lengths are in times
of a chunk's forward, input and weight gradient of 1 each; 1F1B idles 6 (p - 1). Peak activations count chunks;
1F1B holds 2 p. The order is generated in the same memory unless ``order`` is ``fixed``.

**ZB-V** leaves no rank idle in 1F1B's memory. Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024,
arXiv:2401.10241, section 6. The order is that of PyTorch's ``ScheduleZBVZeroBubble``; rank r runs::

    (2 (p - r) - 1) F,   r f F,   (p - r) f i w,   (m - 2 p + 1 + r) F I W f i w,
    (p - 1 - r) I W f i w,   r I i,   (p - r) I W,   r w,   r W

for m >= 2 p - 1. With fewer microbatches, the order is that of 2 p - 1, without the missing ones. Rank r starts
at r and ends at 6 m + r, so no rank has a bubble if steps follow one another without a barrier
(``data_parallel.validation: after``). From the first start to the last end, the length is 6 m + p - 1, and with
fewer microbatches 6 m + max(p - 1, 4 (p - 1) - 2 (m - 1)). Peak activations of every rank: 2 p for m >= 2 p - 1.
The generated order for equal times takes 6 m + max(p - 1, 3 p - 1 - 2 m, 4 p - 1 - 4 m), and every rank holds
2 min(m, p).

**V-Half and V-Min.** Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024,
arXiv:2405.15362. A building block has the slots of the actions of microbatch 0; those of microbatch j are 6 j
slots later. This gives the order of forwards and input gradients. Weight gradients have the order of input
gradients. Each runs where its rank would otherwise wait, before a forward that needs its memory, or at the end.

**V-Half** idles half as long as 1F1B. Its block, with d = 3 where p is even and 0 where it is odd::

    F  2 r        f  3 p - 2 - r        i  3 p - 1 + 2 r + d        I  6 p - 2 - r + d

Length: 6 m + 3 (p - 1) for even p and 6 m + 3 p - 4 for odd p. For up to about p / 2 microbatches, the bubble is
4 p - 5, less 2 for each microbatch after the first (even p: the second). Peak activations of every rank:
2 floor(p / 2) + 2. The generated order for equal times and m > p > 2 takes 6 m + 3 p - 7 for even p and
6 m + 3 p - 4 for odd p. With two ranks or m <= floor(p / 2) + 1, it takes as long as ZB-V, because memory is left.

**V-Min** idles two thirds as long. Its block, with d = 2 where 3 divides p and 0 elsewhere::

    F  r        f  2 p - 1 - r        i  2 p + r + d        I  4 p - 1 - r + d

Length: 6 m + 4 p - 5, and 2 more if 3 divides p and m > 1. If times differ, a further bubble grows with m. Peak
activations of any rank: at most 2 floor((p + 1) / 3) + 2. The generated order for equal times and m > p > 2 takes
6 m + 4 p - 5, and 2 less if 3 divides p. For p = 3 and 5, where V-Half holds as much, it takes 6 m + 3 p - 4. With
two ranks or m <= floor((p + 1) / 3) + 1, it takes as long as ZB-V, because memory is left.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from pptrace_schedules.zero_bubble.offers import bubble_of, half_peak, is_fixed, min_peak, v_idle, v_offer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

_SMALL = 2
"""Ranks whose memory holds the order of ZB-V."""


def _build_zb_v(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.offers import v_shaped

    return v_shaped(request, _fixed_zb_v(request.ranks, request.microbatches), 2 * request.ranks)


@lru_cache(maxsize=16)
def _fixed_zb_v(ranks: int, microbatches: int) -> Schedule:
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


def _bubble_zb_v(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length, waits before the first and after the last action too."""
    ranks, microbatches = request.ranks, request.microbatches
    if is_fixed(request):
        return bubble_of(request, 2, max(ranks - 1, 4 * (ranks - 1) - 2 * (microbatches - 1)))
    return bubble_of(request, 2, v_idle(ranks, microbatches))


def _peak_activations_zb_v(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the chunks' activations of which each rank holds anything; None for few in fixed order."""
    if is_fixed(request) and request.microbatches < 2 * request.ranks - 1:
        return None
    return [Fraction(2 * min(request.microbatches, request.ranks))] * request.ranks


def _build_blocks(request: ScheduleRequest, *, is_min: bool) -> Schedule:
    """Return the table of V-Min or V-Half."""
    from pptrace_schedules.zero_bubble.offers import v_shaped
    from pptrace_schedules.zero_bubble.v_blocks import fill_blocks, half_blocks, min_blocks

    most = (min_peak if is_min else half_peak)(request.ranks)
    blocks = (min_blocks if is_min else half_blocks)(request.ranks)
    return v_shaped(request, fill_blocks(blocks, request.microbatches, most), most)


def _bubble_half(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length; None from where memory binds to as many microbatches as ranks."""
    ranks, microbatches = request.ranks, request.microbatches
    if is_fixed(request):
        return bubble_of(request, 2, _fixed_idle_half(ranks, microbatches))
    if ranks <= _SMALL or 2 * microbatches <= half_peak(ranks):
        return bubble_of(request, 2, v_idle(ranks, microbatches))
    if microbatches <= ranks:
        return None
    return bubble_of(request, 2, 3 * ranks - (4 if ranks % 2 else 7))


def _fixed_idle_half(ranks: int, microbatches: int) -> int:
    if ranks == 1:
        return 0
    even = ranks % 2 == 0
    few = 4 * ranks - 5 - 2 * max(0, microbatches - 1 - even)
    return max(3 * ranks - 3 - (not even), few)


def _peak_activations_half(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the chunks' activations of which each rank holds anything; None for few microbatches."""
    if request.microbatches <= (2 * request.ranks - 1 if is_fixed(request) else request.ranks):
        return None
    return [Fraction(half_peak(request.ranks))] * request.ranks


def _bubble_min(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length; None from where memory binds to as many microbatches as ranks."""
    ranks, microbatches = request.ranks, request.microbatches
    if is_fixed(request):
        shifted = ranks % 3 == 0 and microbatches > 1
        return bubble_of(request, 2, 4 * ranks - 5 + 2 * shifted if ranks > 1 else 0)
    if ranks <= _SMALL or 2 * microbatches <= min_peak(ranks):
        return bubble_of(request, 2, v_idle(ranks, microbatches))
    if microbatches <= ranks:
        return None
    if min_peak(ranks) == half_peak(ranks):
        return bubble_of(request, 2, 3 * ranks - 4)
    return bubble_of(request, 2, 4 * ranks - (5 if ranks % 3 else 7))


ZB_V = v_offer(
    "zb-v",
    summary="Two chunks per rank in a V and split backwards: no rank idles between its first and last action.",
    build=_build_zb_v,
    bubble=_bubble_zb_v,
    peak_activations=_peak_activations_zb_v,
    source="https://arxiv.org/abs/2401.10241",
)
V_HALF = v_offer(
    "v-half",
    summary="Two chunks per rank in a V that hold half of 1F1B's activations, with half of its bubble.",
    build=partial(_build_blocks, is_min=False),
    bubble=_bubble_half,
    peak_activations=_peak_activations_half,
    source="https://arxiv.org/abs/2405.15362",
)
V_MIN = v_offer(
    "v-min",
    summary="Two chunks per rank in a V that hold a third of 1F1B's activations, with two thirds of its bubble.",
    build=partial(_build_blocks, is_min=True),
    bubble=_bubble_min,
    source="https://arxiv.org/abs/2405.15362",
)
