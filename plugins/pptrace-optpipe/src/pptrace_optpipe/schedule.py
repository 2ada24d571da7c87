"""The schedule ``optpipe``: what a search finds for the times and sizes that it is asked for.

Source: Li et al., OptPipe: Memory- and Scheduling-Optimized Pipeline Parallelism for LLM Training, 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER", "SHORTEST", "require_solver"]

SHORTEST = 100_000_000
"""Nanoseconds below which no search is worth its start."""
_DEFAULT = 10_000_000_000


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


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    require_solver()
    from pptrace_optpipe.cache import Cache
    from pptrace_optpipe.in_place import searched_in_place
    from pptrace_optpipe.model import limited

    options = request.options
    effort = limited(
        options.get("time", _DEFAULT), options.get("work"),
        workers=options.get("workers", 1), seed=options.get("seed", 0),
    )  # fmt: skip
    return searched_in_place(request, effort, Cache() if options.get("cache", True) else None)


def check(request: ScheduleRequest) -> None:
    """Refuse a time in which nothing can be searched."""
    time = request.options.get("time", _DEFAULT)
    if time is not None and time < SHORTEST:
        raise ConstraintError(f"{time / 1e9:g} s is too short for any search", nearest="0.1 s",
                              key="schedule.options.time")  # fmt: skip


def options() -> type[BaseModel]:
    """Return the parameter model."""
    from pptrace_optpipe.options import OptpipeOptions

    return OptpipeOptions


OFFER = ScheduleOffer(
    name="optpipe",
    summary="The fastest schedule under a memory limit that a search finds, with copies to the host.",
    build=build,
    options=options,
    check=check,
    searches=True,
    constraints="Any ranks, chunks and microbatches; a search takes as long as its time or work says.",
    source="OptPipe, 2025",
)
