"""The bubble of schedules whose chunks loop over the ranks, each loop as long as the ranks or the microbatches."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.plugin import ScheduleRequest

__all__ = ["looped_bubble"]


def looped_bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length.

    Rank 0 runs the first microbatch of its next chunk when the last rank has run it on this chunk, which
    leaves it idle where there are fewer microbatches than ranks.
    """
    ranks, microbatches, chunks = request.ranks, request.microbatches, request.chunks
    length = (chunks - 1) * max(ranks, microbatches) + microbatches + ranks - 1
    return 1 - Fraction(chunks * microbatches, length)
