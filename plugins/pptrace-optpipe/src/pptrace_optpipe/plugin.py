"""Offers of this distribution: one schedule and one command; light to import.

Source: Li et al., OptPipe: Memory- and Scheduling-Optimized Pipeline Parallelism for LLM Training, 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, ConfigError, ConstraintError, ScheduleOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command
    from pydantic import BaseModel

    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["DEFAULT_NS", "OFFER", "SHORTEST_NS", "pptrace_commands", "pptrace_schedules", "require_solver"]

SHORTEST_NS = 100_000_000
"""The shortest time of a search."""
DEFAULT_NS = 10_000_000_000
"""The time of a search in a configuration unless given."""


def require_solver() -> None:
    """Refuse to go on without the solver.

    Raises:
        ConfigError: it is missing, or cannot be loaded.
    """
    from importlib import import_module

    try:
        import_module("ortools.sat.python.cp_model")
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(f"the solver cannot be loaded ({reason}): pip install 'ortools>=9.10'") from error


def _build(request: ScheduleRequest) -> Schedule:
    require_solver()
    from pptrace_optpipe.schedule import build

    return build(request)


def _check(request: ScheduleRequest) -> None:
    """Refuse a time in which nothing can be searched."""
    time_ns = request.options.get("time", DEFAULT_NS)
    if time_ns is not None and time_ns < SHORTEST_NS:
        raise ConstraintError(f"{time_ns / 1e9:g} s is too short for any search", nearest="0.1 s",
                              key="schedule.options.time")  # fmt: skip


def _options() -> type[BaseModel]:
    from pptrace_optpipe.schedule import OptpipeOptions

    return OptpipeOptions


OFFER = ScheduleOffer(
    name="optpipe",
    summary="The fastest schedule under a memory limit that a search finds, with copies to the host.",
    build=_build,
    options=_options,
    check=_check,
    searches=True,
    constraints="Any ranks, chunks and microbatches; a search takes as long as its time or work says.",
    source="OptPipe, 2025",
)


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
