"""Assert that the time to generate a schedule grows about as its table does."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.errors import ConstraintError

if TYPE_CHECKING:
    from pptrace.hooks.offers import ScheduleOffer
    from pptrace.model.request import ScheduleRequest

__all__ = ["assert_linear_growth"]

_FEW, _MANY = 8, 128
"""Microbatches per rank of the two sizes that are timed."""
_SLACK = 4
"""Growth beyond the table's that is put down to noise: quadratic growth is 16 times the table's here."""
_NEGLIGIBLE_S = 0.1
"""A generation faster than this is fast enough, however it grows."""


def assert_linear_growth(offer: ScheduleOffer, request: ScheduleRequest) -> None:
    """Assert that 16 times the microbatches take at most 64 times the processor time, or under 0.1 s.

    Says nothing where the schedule does not take such sizes.

    Raises:
        AssertionError: both times.
    """
    sizes = [replace(request, microbatches=request.ranks * each) for each in (_FEW, _MANY)]
    try:
        for size in sizes:
            if offer.check is not None:
                offer.check(size)
    except ConstraintError:
        return
    few, many = (_seconds(offer, size) for size in sizes)
    if many > _NEGLIGIBLE_S and many > few * (_MANY // _FEW) * _SLACK:
        raise AssertionError(
            f"{offer.name}: {sizes[1].microbatches} microbatches take {many:.2f} s to generate and "
            f"{sizes[0].microbatches} take {few:.4f} s: the time grows faster than the table"
        )


def _seconds(offer: ScheduleOffer, request: ScheduleRequest) -> float:
    """Return the least processor time of three builds, which other processes hardly touch."""
    times = []
    for _ in range(3):
        before = time.process_time()
        built = offer.build(request)
        if not hasattr(built, "row_ptr"):
            list(built)
        times.append(time.process_time() - before)
    return min(times)
