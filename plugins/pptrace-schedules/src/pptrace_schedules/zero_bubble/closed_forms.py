"""From what a table takes beyond its work to its bubble."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pptrace.plugin import ScheduleRequest

__all__ = ["bubble_of", "is_fixed", "options", "v_idle"]


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


def options() -> type[BaseModel]:
    """Return the parameter model."""
    from pptrace_schedules.zero_bubble.options import ZeroBubbleOptions

    return ZeroBubbleOptions
