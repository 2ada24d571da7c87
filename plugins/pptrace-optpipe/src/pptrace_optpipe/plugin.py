"""Offers of this distribution: one schedule and one command; light to import.

Source: Li et al., OptPipe: Memory- and Scheduling-Optimized Pipeline Parallelism for LLM Training, 2025.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, ConstraintError, deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ScheduleOffer, ScheduleRequest


def _check(request: ScheduleRequest) -> None:
    """Check that the time is sufficient for a search."""
    from pptrace_optpipe.options import SHORTEST_NS

    time_ns = request.options.get("time")
    if time_ns is not None and time_ns < SHORTEST_NS:
        raise ConstraintError(f"{time_ns / 1e9:g} s is too short for any search", nearest="0.1 s",
                              key="schedule.options.time")  # fmt: skip


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    from pptrace.plugin import ScheduleOffer

    yield ScheduleOffer(
        name="optpipe",
        summary="The fastest schedule under a memory limit that a search finds, with copies to the host.",
        build=deferred("pptrace_optpipe.schedule:build"),
        options=lambda: import_module("pptrace_optpipe.options").OptpipeOptions,
        check=_check,
        searches=True,
        constraints="Any ranks, chunks and microbatches; options time and work limit the search.",
        source="OptPipe, 2025",
    )


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Offer the search as a command."""
    yield CommandOffer(
        name="optimize", summary="Find the fastest schedule under a memory limit, with a bound.",
        load=lambda: import_module("pptrace_optpipe.command").command,
    )  # fmt: skip
