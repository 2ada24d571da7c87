"""The schedule ``optpipe``: what a search finds for the times and sizes that it is asked for.

Source: Li et al., OptPipe: Memory- and Scheduling-Optimized Pipeline Parallelism for LLM Training, 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, ConstraintError, ScheduleError, ScheduleOffer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pptrace.plugin import Schedule, ScheduleRequest
    from pptrace_optpipe.problem import Problem

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
    except (ImportError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the solver cannot be loaded ({reason}): pip install 'ortools>=9.10'") from error


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    require_solver()
    from pptrace.plugin import Placement
    from pptrace_optpipe.caching import Cache
    from pptrace_optpipe.optimising import cached_search
    from pptrace_optpipe.setting import check_room
    from pptrace_optpipe.solving import Effort
    from pptrace_optpipe.tables import joined, table_of

    problem = problem_asked(request)
    check_room(problem)
    options = request.options
    effort = Effort(
        seconds=options.get("time", _DEFAULT) / 1e9, workers=options.get("workers", 1), seed=options.get("seed", 0)
    )
    found = cached_search(problem, effort, Cache() if options.get("cache", True) else None)
    if found is None:
        raise ScheduleError("optpipe found nothing that fits in time: allow more time or activations")
    placement = Placement.looped(request.ranks, request.microbatches, request.chunks)
    return table_of(joined(problem, found.schedule.rows), placement)


def problem_asked(request: ScheduleRequest) -> Problem:
    """Return the problem that a request poses; every part takes 1, and memory does not matter, where unknown."""
    from pptrace_optpipe.problem import NO_LIMIT, Problem

    stages, ones, none = request.stages, (1,) * request.stages, (0,) * request.stages
    stage_rank = tuple(stage % request.ranks for stage in range(stages))
    copies = bool(request.offload_ns) and all(request.offload_ns) and all(request.reload_ns)
    return Problem(
        microbatches=request.microbatches,
        stage_rank=stage_rank,
        f=request.f_ns or ones,
        i=request.i_ns or ones,
        w=request.w_ns or ones,
        b=request.b_ns or (),
        activation=request.activation_bytes or none,
        weight_activation=request.weight_activation_bytes or none,
        limit=_limits(request, stage_rank) if any(request.activation_bytes) else (NO_LIMIT,) * request.ranks,
        forward_transfer=(request.transfer_ns * (request.ranks > 1),) * (stages - 1),
        backward_transfer=(request.transfer_ns * (request.ranks > 1),) * (stages - 1),
        offload=request.offload_ns if copies else (),
        reload=request.reload_ns if copies else (),
    )


def _limits(request: ScheduleRequest, stage_rank: tuple[int, ...]) -> tuple[int, ...]:
    """Return what each rank may hold of activations: as asked, or what its device leaves beside its stages."""
    from pptrace_optpipe.problem import NO_LIMIT

    asked = request.options.get("activations", 0)
    if asked or not request.device_bytes:
        return (asked or request.memory_limit_bytes or NO_LIMIT,) * request.ranks
    room = [request.device_bytes] * request.ranks
    for stage, size in enumerate(request.stage_bytes):
        room[stage_rank[stage]] -= size
    return tuple(max(one, 0) for one in room)


def check(request: ScheduleRequest) -> None:
    """Refuse a time in which nothing can be searched."""
    time = request.options.get("time", _DEFAULT)
    if time < SHORTEST:
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
    constraints="Any ranks, chunks and microbatches; a search takes as long as its time option says.",
    source="OptPipe, 2025",
)
