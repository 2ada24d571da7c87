"""What this distribution offers: one schedule and one command; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, hookimpl
from pptrace_optpipe.schedule import OFFER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command

    from pptrace.plugin import ScheduleOffer

__all__ = ["pptrace_commands", "pptrace_schedules"]


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    yield OFFER


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Offer the search as a command."""
    yield CommandOffer(
        name="optimize", summary="Find the fastest schedule under a memory limit, with a bound.", load=_optimize
    )


def _optimize() -> Command:
    from pptrace_optpipe.command import command

    return command
