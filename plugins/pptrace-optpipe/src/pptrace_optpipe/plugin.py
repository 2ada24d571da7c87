"""Offers of this distribution: one schedule and one command; light to import.

Source: Li et al., OptPipe: Memory- and Scheduling-Optimized Pipeline Parallelism for LLM Training, 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, ConstraintError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command
    from pydantic import BaseModel

    from pptrace.plugin import Schedule, ScheduleOffer, ScheduleRequest


def _build(request: ScheduleRequest) -> Schedule:
    from pptrace_optpipe.schedule import build

    return build(request)


def _check(request: ScheduleRequest) -> None:
    """Check that the time is sufficient for a search."""
    from pptrace_optpipe.options import SHORTEST_NS

    time_ns = request.options.get("time")
    if time_ns is not None and time_ns < SHORTEST_NS:
        raise ConstraintError(f"{time_ns / 1e9:g} s is too short for any search", nearest="0.1 s",
                              key="schedule.options.time")  # fmt: skip


def _options() -> type[BaseModel]:
    from pptrace_optpipe.options import OptpipeOptions

    return OptpipeOptions


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    from pptrace.plugin import ScheduleOffer

    yield ScheduleOffer(
        name="optpipe",
        summary="The fastest schedule under a memory limit that a search finds, with copies to the host.",
        build=_build,
        options=_options,
        check=_check,
        searches=True,
        constraints="Any ranks, chunks and microbatches; options time and work limit the search.",
        source="OptPipe, 2025",
    )


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Offer the search as a command."""
    yield CommandOffer(
        name="optimize", summary="Find the fastest schedule under a memory limit, with a bound.", load=_optimize
    )


def _optimize() -> Command:
    from pptrace_optpipe.command import command

    return command
