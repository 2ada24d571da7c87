"""V-Min holds a third of 1F1B's activations, and idles two thirds as long.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362.

Rank r = 0 … p - 1 holds stages r and 2 p - 1 - r, here in capitals and in small letters. Microbatch j's actions
belong into the slots of its building block, 6 j after microbatch 0's::

    F  r        f  2 p - 1 - r        i  2 p + r + d        I  4 p - 1 - r + d

with d = 2 where 3 divides p and 0 elsewhere, which gives the order of forwards and input gradients.
Weight gradients follow in the order of input gradients, each where its rank would wait for as long, where a
forward needs its memory, or at the end.

Length: 6 m + 4 p - 5, and 2 more where 3 divides p and m > 1, in times of a chunk's forward, input and weight
gradient of 1 each; 1F1B idles 6 (p - 1). Where the times differ, a further bubble grows with m. Peak activations
of any rank, each a chunk's: at most 2 floor((p + 1) / 3) + 2, where 1F1B holds 2 p.

The order is generated unless ``order`` is ``fixed``, in this much memory. For equal times and m > p > 2 it takes
6 m + 4 p - 5, and 2 less where 3 divides p; for p = 3 and 5, where V-Half holds as much, 6 m + 3 p - 4. Where two
ranks or m <= floor((p + 1) / 3) + 1 leave memory to spare, it takes as long as ZB-V.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_schedules.zero_bubble.offers import bubble_of, half_peak, is_fixed, min_peak, v_idle, v_offer

if TYPE_CHECKING:
    from fractions import Fraction

    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]

_SMALL = 2
"""Ranks whose memory holds the order of ZB-V."""


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.offers import v_shaped
    from pptrace_schedules.zero_bubble.v_blocks import fill_blocks, min_blocks

    most = min_peak(request.ranks)
    return v_shaped(request, fill_blocks(min_blocks(request.ranks), request.microbatches, most), most)


def bubble(request: ScheduleRequest) -> Fraction | None:
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


OFFER = v_offer(
    "v-min",
    summary="Two chunks per rank in a V that hold a third of 1F1B's activations, with two thirds of its bubble.",
    build=build,
    bubble=bubble,
    source="https://arxiv.org/abs/2405.15362",
)
