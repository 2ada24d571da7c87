"""Parts of the offers of this family: closed forms of bubbles, and tables of two chunks per rank in a V.

In a V, first and last stage are on rank 0, and a microbatch turns on the last rank.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.plugin import Schedule, ScheduleRequest
    from pptrace_schedules.zero_bubble.bounds import Times


def bubble_of(request: ScheduleRequest, chunks: int, extra: int) -> Fraction | None:
    """Return idle over ranks times length, where each action takes 1 and a rank idles for ``extra``.

    There is none where backwards are merged, for gradients are then handed on later.
    """
    if request.options.get("merge"):
        return None
    work = 3 * chunks * request.microbatches
    return Fraction(extra, work + extra)


def is_fixed(request: ScheduleRequest) -> bool:
    """Return whether the order is the fixed one."""
    return request.options.get("order") == "fixed"


def v_idle(ranks: int, microbatches: int) -> int:
    """Return how long a rank of a V idles at least from the first start to the last end, where memory suffices.

    An action takes 1. Few microbatches wait for their own way down the ranks and back.
    """
    return max(ranks - 1, 3 * ranks - 1 - 2 * microbatches, 4 * ranks - 1 - 4 * microbatches)


_CHUNKS = 2


def half_peak(ranks: int) -> int:
    """Return the chunks' activations that V-Half holds on a rank at most: half of 1F1B's and up to two more."""
    return 2 * (ranks // 2 + 1) if ranks > 1 else 2


def min_peak(ranks: int) -> int:
    """Return the chunks' activations that V-Min holds on a rank at most: a third of 1F1B's and up to four more."""
    return 2 * ((ranks + 1) // 3 + 1) if ranks > 1 else 2


def v_shaped(request: ScheduleRequest, fixed: Schedule, most: int) -> Schedule:
    """Return a table of two chunks per rank: the fixed one, or one made for a request's costs.

    Args:
        request: the sizes, costs, memory and options.
        fixed: the table for equal times.
        most: chunks' activations that a rank may hold.
    """
    from pptrace_schedules.zero_bubble.generate import built, without_weight_gradients
    from pptrace_schedules.zero_bubble.v_blocks import half_blocks, min_blocks, pack_blocks

    def orders(times: Times) -> Iterator[Schedule]:
        yield without_weight_gradients(fixed)
        chunks = int(times.room.sets(fixed.placement).min()) * _CHUNKS
        for blocks in (half_blocks(request.ranks), min_blocks(request.ranks)):
            for forwards in (False, True):
                packed = pack_blocks(blocks, request.microbatches, chunks, forwards=forwards)
                yield packed
                yield without_weight_gradients(packed)

    return built(request, fixed, most, orders)


def v_offer(name: str, **fields: Any) -> ScheduleOffer:
    """Return the offer of a schedule with two chunks per rank; ``fields`` are those that differ."""
    return ScheduleOffer(
        name=name,
        options=lambda: import_module("pptrace_schedules.options").ZeroBubbleOptions,
        check=partial(_check, name=name),
        chunks=lambda _request: _CHUNKS,
        constraints="Two chunks per rank; any number of ranks and microbatches.",
        **fields,
    )


def _check(request: ScheduleRequest, *, name: str) -> None:
    if request.chunks != _CHUNKS:
        raise ConstraintError(
            f"{name} keeps {_CHUNKS} chunks of the model on a rank, not {request.chunks}",
            nearest=f"{_CHUNKS} chunks",
            key="parallel.vp",
        )
