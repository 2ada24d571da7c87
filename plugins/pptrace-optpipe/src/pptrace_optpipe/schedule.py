"""The schedule ``optpipe``: the best table of a search and of other plugins' schedules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.plugin import (
    ConfigError,
    Kind,
    Placement,
    PptraceError,
    ScheduleError,
    measure,
)
from pptrace_optpipe.options import DEFAULT_NS
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import NO_LIMIT
from pptrace_optpipe.setting import (
    SearchInput,
    Simulated,
    channels_of,
    pairs,
    problem_of,
    rows_of_table,
    serial_table,
)
from pptrace_optpipe.start_schedules import Rival, is_as_much

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.plugin import Schedule, ScheduleRequest
    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Problem


_SHARE, _AT_LEAST_S = 0.25, 1.0
"""Share of the time, and least seconds, to build and simulate other plugins' schedules."""


def require_solver() -> None:
    """Check that the solver can be loaded.

    Raises:
        ConfigError: the solver is missing, or fails to load.
    """
    from importlib import import_module

    try:
        import_module("ortools.sat.python.cp_model")
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(f"the solver cannot be loaded ({reason}): pip install 'ortools>=9.10'") from error


def build(request: ScheduleRequest) -> Schedule:
    """Return the best table, at most as long as each simulated schedule of other plugins that fits.

    Raises:
        ScheduleError: no table that fits was found in time.
        ConstraintError: no table can fit.
    """
    require_solver()
    from pptrace_optpipe.cache import Cache
    from pptrace_optpipe.model import limited
    from pptrace_optpipe.search import optimise

    options, simulator = request.options, request.simulator
    effort = limited(
        options.get("time", DEFAULT_NS), options.get("work"),
        workers=options.get("workers", 1), seed=options.get("seed", 0),
    )  # fmt: skip
    cache = Cache() if options.get("cache", True) else None
    placement = Placement.looped(request.ranks, request.microbatches, request.chunks)
    limit, copies = _limits(request, placement), options.get("copies", "cluster")
    shared: tuple[tuple[int, ...], ...] = pairs(request.ranks) if copies == "pair" else ()
    if simulator is None:
        return optimise(_search_input(request, placement, limit, shared), effort, cache).table
    start = effort.clock()
    with suppress(PptraceError):  # a policy may take only some orders
        table = serial_table(placement)
        limit = _limits(request, placement, _simulate_table(request, table))
        shared = channels_of(simulator.prepared(table), copies)
    search_input = _search_input(request, placement, limit, shared)
    rivals = list(_rivals(request, search_input.problem, effort))
    spent = min(effort.clock() - start, effort.seconds * _SHARE)
    return optimise(search_input, replace(effort, seconds=effort.seconds - spent), cache, rivals=rivals).table


def _rivals(request: ScheduleRequest, problem: Problem, effort: Effort) -> Iterator[Rival]:
    """Yield other plugins' schedules for a request that fit and have the same work."""
    end = effort.clock() + max(effort.seconds * _SHARE, _AT_LEAST_S)
    work = sum(problem.work(rank) for rank in range(problem.ranks))
    for name, table, rival_request in request.simulator.others() if request.simulator else ():
        if effort.clock() > end or effort.stopped():
            return
        effort.count(int(table.row_ptr[-1]))
        if table.interleave or table.recompute_waits or table.microbatches != problem.microbatches:
            continue
        try:
            played = _simulate_table(request, table)
        except PptraceError:
            continue
        full_request = replace(rival_request, options=request.options, simulator=request.simulator)
        limit = _limits(full_request, table.placement, played)
        simulated = Simulated(played.step_ns, 0.0, played.activation_bytes)
        if is_as_much(played.work_ns, work) and _fits(simulated, limit):
            yield Rival(
                name=name, table=table, simulated=simulated, fits=True,
                search_input=partial(_search_input, full_request, table.placement, limit, problem.shared),
            )  # fmt: skip


def _search_input(
    request: ScheduleRequest, placement: Placement, limit: tuple[int, ...], shared: tuple[tuple[int, ...], ...]
) -> SearchInput:
    """Return the input of a search for a request with a placement; unknown sizes mean unlimited memory.

    Raises:
        ConstraintError: no table can fit.
    """
    messages = tuple(
        request.transfer_ns * (rank != next_rank) for rank, next_rank in pairwise(placement.stage_rank[0].tolist())
    )
    problem = problem_of(
        request, placement, limit, (messages, messages),
        recompute=bool(request.options.get("recompute")), shared=shared, key="schedule",
    )  # fmt: skip

    def simulate(table: Schedule) -> Simulated:
        """Simulate a table with the configuration, or without one with the search's transfer times."""
        if request.simulator is not None:
            result = _simulate_table(request, table)
            return Simulated(result.step_ns, 0.0, result.activation_bytes)
        played = play(problem, rows_of_table(table))
        if played is None:
            raise ScheduleError("ranks wait for each other")
        return Simulated(played.step, 0.0, played.peak)

    return SearchInput(
        placement=placement,
        problem=problem,
        simulate=simulate,
        fits=partial(_fits, limit=limit),
        messages_are_simple=request.simulator is None,
    )


def _fits(simulated: Simulated, limit: tuple[int, ...]) -> bool:
    """Return whether every rank keeps its limit."""
    return all(size in (NO_LIMIT, max(peak, size)) for peak, size in zip(simulated.peak_bytes, limit, strict=True))


class _TableFigures(NamedTuple):
    """Simulated figures of a table in the configuration of a request."""

    step_ns: int
    activation_bytes: tuple[int, ...]
    """Shape (ranks,): peak memory without static memory."""
    room_bytes: tuple[int, ...]
    """Shape (ranks,): device memory available for activations; empty if device memory is not known."""
    work_ns: int
    """Time of the forwards and backwards of all stages and microbatches."""


def _simulate_table(request: ScheduleRequest, table: Schedule) -> _TableFigures:
    if request.simulator is None:
        raise ScheduleError("there is no configuration to simulate a table in")
    prepared = request.simulator.prepared(table)
    workload = prepared.workload
    metrics = measure(prepared.simulate().timeline, workload)
    memory = metrics.memory
    free_bytes = np.maximum(memory.room_bytes - memory.static_bytes, 0)
    return _TableFigures(
        step_ns=int(metrics.step_ns),
        activation_bytes=tuple((memory.peak_bytes - memory.static_bytes).tolist()),
        room_bytes=tuple(free_bytes.tolist()) if workload.capacity_bytes else (),
        work_ns=workload.total_ns((Kind.F, Kind.I, Kind.W), table.microbatches),
    )


def _limits(
    request: ScheduleRequest, placement: Placement, played: _TableFigures | None = None
) -> tuple[int, ...]:
    """Return the limit of activations in bytes per rank: the option, or device memory without static memory."""
    requested_bytes = request.options.get("activations", 0)
    is_known = any(request.activation_bytes)
    if not is_known or requested_bytes:
        return ((requested_bytes if is_known else 0) or NO_LIMIT,) * request.ranks
    if played is not None:
        return played.room_bytes or (NO_LIMIT,) * request.ranks
    if not request.device_bytes:
        return (request.memory_limit_bytes or NO_LIMIT,) * request.ranks
    free_bytes = list(request.rank_bytes or [request.device_bytes] * request.ranks)
    for stage, size in enumerate(request.stage_bytes):
        free_bytes[placement.rank_of(stage, 0)] -= size
    return tuple(max(size, 0) for size in free_bytes)
