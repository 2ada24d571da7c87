"""What this distribution offers: six schedules; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import hookimpl
from pptrace_schedules import chimera, gpipe, hanayo, interleaved_1f1b, looped_bfs, one_f_one_b

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ScheduleOffer

__all__ = ["pptrace_schedules"]


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedules."""
    yield gpipe.OFFER
    yield one_f_one_b.OFFER
    yield interleaved_1f1b.OFFER
    yield looped_bfs.OFFER
    yield chimera.OFFER
    yield hanayo.OFFER
