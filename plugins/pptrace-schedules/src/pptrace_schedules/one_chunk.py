"""Some schedules keep one chunk of the model on each rank; others are made for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError

if TYPE_CHECKING:
    from pptrace.plugin import ScheduleRequest

__all__ = ["check_one_chunk"]


def check_one_chunk(request: ScheduleRequest, name: str, instead: str) -> None:
    """Refuse several chunks per rank.

    Raises:
        ConstraintError: the schedule ``name`` is asked for several; ``instead`` takes them.
    """
    if request.chunks != 1:
        raise ConstraintError(
            f"{name} keeps one chunk of the model on a rank, not {request.chunks} ({instead} takes several)",
            nearest="1 chunk",
            key="parallel.vp",
        )
