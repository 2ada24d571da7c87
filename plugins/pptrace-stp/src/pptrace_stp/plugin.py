"""What this distribution offers: one schedule; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import hookimpl
from pptrace_stp.schedule import OFFER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ScheduleOffer

__all__ = ["pptrace_schedules"]


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    yield OFFER
