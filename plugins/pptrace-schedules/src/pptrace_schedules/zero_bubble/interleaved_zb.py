"""Interleaved 1F1B with split backwards: fewer forwards ahead, and weight gradients that fill the bubble.

Source: PyTorch's ``ScheduleInterleavedZeroBubble``, whose order it has; ZB-H1 of Qi et al., arXiv:2401.10241,
over several chunks.

Chunk c of rank r is stage c p + r; rounds of g = m / max(1, floor(m / p)) are those of ``interleaved-1f1b``. With
w = min(v m, (v - 1) g + p - 1 - r), rank r runs::

    w F,   r times F I,   F I W …,   I W …,   r W         (without F where there are no more)

forwards and backwards in the order of ``interleaved-1f1b``. Length: 3 v m + p - 1 for m >= p in times of a chunk's
forward, input and weight gradient of 1 each, so with v chunks the bubble is a v-th of ZB-H1's; fewer microbatches
wait longer for their way back. Peak activations of every rank, each a chunk's:
min(v m, (v - 1) g + p).

The order is generated unless ``order`` is ``fixed``, in this much memory.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules.interleaved_1f1b import check_rounds
from pptrace_schedules.zero_bubble.offers import bubble_of, is_fixed, options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.plugin import Schedule, ScheduleRequest
    from pptrace_schedules.zero_bubble.bounds import Times

__all__ = ["OFFER"]

_FEWEST_CHUNKS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.zero_bubble.generate import built, without_weights

    fixed = _fixed(request)

    def orders(_times: Times) -> Iterator[Schedule]:
        yield without_weights(fixed)

    return built(request, fixed, _most(request), orders)


def _fixed(request: ScheduleRequest) -> Schedule:
    import numpy as np

    from pptrace.plugin import Placement
    from pptrace_schedules.zero_bubble.split_rows import one_forward_one_input_gradient

    ranks, chunks, size = request.ranks, request.chunks, _round(request)
    block, within = np.divmod(np.arange(chunks * request.microbatches, dtype=np.int32), size)
    number, chunk = np.divmod(block, chunks)
    return one_forward_one_input_gradient(
        Placement.looped(ranks, request.microbatches, chunks),
        [(chunks - 1) * size + ranks - 1 - rank for rank in range(ranks)],
        range(ranks),
        (number * size + within, chunk * ranks, (chunks - 1 - chunk) * ranks),
    )


def check(request: ScheduleRequest) -> None:
    """Refuse a single chunk per rank, and microbatches that make no rounds of equal size."""
    if request.chunks < _FEWEST_CHUNKS:
        raise ConstraintError(
            f"interleaved-zb needs at least {_FEWEST_CHUNKS} chunks of the model on a rank, not {request.chunks} "
            "(zb-h1 takes one)",
            nearest=f"{_FEWEST_CHUNKS} chunks",
            key="parallel.vp",
        )
    check_rounds(request, "interleaved-zb")


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length; None for fewer microbatches than ranks."""
    if request.microbatches < request.ranks:
        return None
    return bubble_of(request, request.chunks, request.ranks - 1)


def peak_activations(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the chunks' activations of which each rank holds anything; None for rounds of more than the ranks.

    Generated orders of such rounds may hold fewer.
    """
    if _round(request) > request.ranks and not is_fixed(request):
        return None
    return [Fraction(_most(request))] * request.ranks


def _most(request: ScheduleRequest) -> int:
    chunks = request.chunks
    return min(chunks * request.microbatches, (chunks - 1) * _round(request) + request.ranks)


def _round(request: ScheduleRequest) -> int:
    return request.microbatches // max(1, request.microbatches // request.ranks)


OFFER = ScheduleOffer(
    name="interleaved-zb",
    summary="Interleaved 1F1B with split backwards: weight gradients fill its bubble, and memory is less.",
    build=build,
    options=options,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints=(
        "Two or more chunks per rank. Microbatches run in rounds of equal size: a multiple of the ranks, or fewer "
        "than two per rank, is always possible."
    ),
    source="https://arxiv.org/abs/2401.10241",
)
