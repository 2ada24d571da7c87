"""ZB-H2 runs twice as many forwards ahead as ZB-H1, and leaves no rank idle between its first and last action.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 2.3; the paper's
repository calls it ZB2P.

Order of rank r = 0 … p - 1, with w = min(m, 2 (p - 1 - r))::

    w F,   2 r times F I,   F I W …,   I W …,   2 r W      (without F where there are no more)

Rank r starts at r and ends at 3 m + r, for m >= 2 p - 1 in times of a forward, of an input and of a weight
gradient of 1 each: no bubble on any rank, where steps follow one another without a barrier
(``data_parallel.validation: after``). From the first start to the last end it is 3 m + p - 1, for fewer
microbatches
3 m + max(p - 1, 2 p - 2 - floor(m / 2)), and generated 3 m + max(p - 1, 2 p - 1 - m). In general a
rank idles for (p - 1) (T_F + T_I - 2 T_W).

Memory of rank r: (2 (p - r) - 1) M_F + 2 r M_W at most, where a forward leaves M_F and an input gradient M_W of
it: twice 1F1B's. min(m, 2 p - 1) activations on every rank where both weigh the same.

The order is generated unless ``order`` is ``fixed``, within 2 p microbatches' memory.
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

__all__ = ["OFFER"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.generate import built
    from pptrace_schedules.zero_bubble.split_rows import one_chunk, one_chunk_orders

    ranks = request.ranks
    late = [2 * rank for rank in range(ranks)]
    return built(request, one_chunk(request, late[::-1], late), 2 * ranks, partial(one_chunk_orders, request))


def check(request: ScheduleRequest) -> None:
    """Refuse several chunks per rank."""
    check_one_chunk(request, "zb-h2", "zb-v")


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length, waits before the first and after the last action too."""
    ranks = request.ranks
    few = 2 * ranks - 2 - request.microbatches // 2 if is_fixed(request) else 2 * ranks - 1 - request.microbatches
    return bubble_of(request, 1, max(ranks - 1, few))


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the microbatches of which each rank holds anything."""
    return [Fraction(min(request.microbatches, 2 * request.ranks - 1))] * request.ranks


OFFER = ScheduleOffer(
    name="zb-h2",
    summary="Split backwards in twice 1F1B's memory: no rank idles between its first and its last action.",
    build=build,
    options=options,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2401.10241",
)
