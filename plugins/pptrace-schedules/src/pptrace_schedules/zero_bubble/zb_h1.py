"""ZB-H1 keeps 1F1B's memory, and fills most of its bubble with weight gradients.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 2.3. PyTorch calls it
``InterleavedZeroBubble`` with one stage per rank, the paper's repository ZB1P.

Order of rank r = 0 … p - 1, with w = min(m, p - 1 - r)::

    w F,   r times F I,   F I W …,   I W …,   r W         (without F where there are no more)

Length: 3 m + p - 1 for m >= p in times of a forward, of an input and of a weight gradient of 1 each, and
2 m + 2 p - 1 below; the bubble is 1 - 3 m / length, a third of 1F1B's time. In general it takes
(p - 1) (T_F + T_I - T_W).

Memory of rank r: (p - r) M_F + r M_W at most, where a forward leaves M_F and an input gradient M_W of it; as many
activations as 1F1B's first rank on every rank, min(m, p), where both weigh the same.

The order is generated unless ``order`` is ``fixed``: as many forwards first as fit before the
first input gradient, within p microbatches' memory.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.one_f_one_b import check_one_chunk
from pptrace_schedules.zero_bubble.offers import bubble_of, options

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.generate import built
    from pptrace_schedules.zero_bubble.split_rows import one_chunk, one_chunk_orders

    ranks = request.ranks
    fixed = one_chunk(request, [ranks - 1 - rank for rank in range(ranks)], range(ranks))
    return built(request, fixed, ranks, partial(one_chunk_orders, request))


def check(request: ScheduleRequest) -> None:
    """Refuse several chunks per rank."""
    check_one_chunk(request, "zb-h1", "interleaved-zb")


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length."""
    ranks = request.ranks
    return bubble_of(request, 1, max(ranks - 1, 2 * ranks - 1 - request.microbatches))


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the microbatches of which each rank holds anything."""
    return [Fraction(min(request.microbatches, request.ranks))] * request.ranks


OFFER = ScheduleOffer(
    name="zb-h1",
    summary="1F1B with split backwards in 1F1B's memory: weight gradients fill two thirds of its bubble.",
    build=build,
    options=options,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2401.10241",
)
