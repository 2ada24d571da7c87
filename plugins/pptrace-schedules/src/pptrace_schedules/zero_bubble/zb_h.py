"""ZB-H1 and ZB-H2, with split backwards and one chunk per rank.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 2.3. A forward leaves
M_F on its rank, and an input gradient M_W of it. Lengths are in times of a forward, of an input and of a weight
gradient of 1 each. The order is generated unless ``order`` is ``fixed``.

**ZB-H1** keeps 1F1B's memory, and fills most of its bubble with weight gradients. PyTorch calls it
``InterleavedZeroBubble`` with one stage per rank, the paper's repository ZB1P. Order of rank r = 0 … p - 1, with
w = min(m, p - 1 - r)::

    w F,   r times F I,   F I W …,   I W …,   r W         (without F where there are no more)

Length: 3 m + p - 1 for m >= p, and 2 m + 2 p - 1 below; the bubble is 1 - 3 m / length, a third of 1F1B's time.
In general it takes (p - 1) (T_F + T_I - T_W). Memory of rank r: (p - r) M_F + r M_W at most; as many activations
as 1F1B's first rank on every rank, min(m, p), where both weigh the same. A generated order has as many forwards
first as fit before the first input gradient, within p microbatches' memory.

**ZB-H2** runs twice as many forwards ahead, and leaves no rank idle between its first and last action. The
paper's repository calls it ZB2P. Order of rank r = 0 … p - 1, with w = min(m, 2 (p - 1 - r))::

    w F,   2 r times F I,   F I W …,   I W …,   2 r W      (without F where there are no more)

Rank r starts at r and ends at 3 m + r, for m >= 2 p - 1: no bubble on any rank, where steps follow one another
without a barrier (``data_parallel.validation: after``). From the first start to the last end it is 3 m + p - 1,
for fewer microbatches 3 m + max(p - 1, 2 p - 2 - floor(m / 2)), and generated 3 m + max(p - 1, 2 p - 1 - m). In
general a rank idles for (p - 1) (T_F + T_I - 2 T_W). Memory of rank r: (2 (p - r) - 1) M_F + 2 r M_W at most,
twice 1F1B's; min(m, 2 p - 1) activations on every rank where both weigh the same. A generated order keeps within
2 p microbatches' memory.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.one_f_one_b import check_one_chunk
from pptrace_schedules.zero_bubble.offers import bubble_of, is_fixed, options

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["ZB_H1", "ZB_H2"]


def _build_h1(request: ScheduleRequest) -> Schedule:
    from pptrace_schedules.zero_bubble.generate import built
    from pptrace_schedules.zero_bubble.split_rows import one_chunk, one_chunk_orders

    ranks = request.ranks
    fixed = one_chunk(request, [ranks - 1 - rank for rank in range(ranks)], range(ranks))
    return built(request, fixed, ranks, partial(one_chunk_orders, request))


def _bubble_h1(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length."""
    ranks = request.ranks
    return bubble_of(request, 1, max(ranks - 1, 2 * ranks - 1 - request.microbatches))


def _build_h2(request: ScheduleRequest) -> Schedule:
    from pptrace_schedules.zero_bubble.generate import built
    from pptrace_schedules.zero_bubble.split_rows import one_chunk, one_chunk_orders

    ranks = request.ranks
    late = [2 * rank for rank in range(ranks)]
    return built(request, one_chunk(request, late[::-1], late), 2 * ranks, partial(one_chunk_orders, request))


def _bubble_h2(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length, waits before the first and after the last action too."""
    ranks = request.ranks
    few = 2 * ranks - 2 - request.microbatches // 2 if is_fixed(request) else 2 * ranks - 1 - request.microbatches
    return bubble_of(request, 1, max(ranks - 1, few))


def _held(request: ScheduleRequest, most: int) -> list[Fraction]:
    """Return the microbatches of which each rank holds anything: at most ``most``."""
    return [Fraction(min(request.microbatches, most))] * request.ranks


ZB_H1 = ScheduleOffer(
    name="zb-h1",
    summary="1F1B with split backwards in 1F1B's memory: weight gradients fill two thirds of its bubble.",
    build=_build_h1,
    options=options,
    check=lambda request: check_one_chunk(request, "zb-h1", "interleaved-zb"),
    bubble=_bubble_h1,
    peak_activations=lambda request: _held(request, request.ranks),
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2401.10241",
)
ZB_H2 = ScheduleOffer(
    name="zb-h2",
    summary="Split backwards in twice 1F1B's memory: no rank idles between its first and its last action.",
    build=_build_h2,
    options=options,
    check=lambda request: check_one_chunk(request, "zb-h2", "zb-v"),
    bubble=_bubble_h2,
    peak_activations=lambda request: _held(request, 2 * request.ranks - 1),
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2401.10241",
)
