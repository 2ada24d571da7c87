"""The schedule ``optpipe``: the best table of a search and of other plugins' schedules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import ConfigError, Placement, PptraceError, ScheduleError
from pptrace_optpipe.options import DEFAULT_NS
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import NO_LIMIT
from pptrace_optpipe.setting import (
    CHUNKS,
    SearchInput,
    Simulated,
    channels_of,
    pairs,
    problem_of,
    rows_of_table,
    serial_table,
    simulated,
)
from pptrace_optpipe.start_schedules import Rival, rival_figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.plugin import Schedule, ScheduleRequest, StepInputs


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
        raise ConfigError(f"the solver cannot be loaded ({reason}): pip install 'ortools>=9.14'") from error


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
    if simulator is not None:
        with suppress(PptraceError):  # a policy may take only some orders
            prepared = simulator.prepared(serial_table(placement))
            limit = _limits(request, placement, _free_bytes(prepared, simulated(prepared)))
            shared = channels_of(prepared, copies)
    search_input = _search_input(request, placement, limit, shared)
    return optimise(search_input, effort, cache, rivals=_rivals(request, search_input)).table


def _rivals(request: ScheduleRequest, search_input: SearchInput) -> Iterator[Rival | None]:
    """Yield other plugins' schedules for a request that fit and have the same work, and None for each other one.

    If the configuration has chunks per rank, they also have the placement of the search.
    """
    problem, simulator = search_input.problem, request.simulator
    if simulator is None:
        return
    work_ns = sum(problem.work(rank) for rank in range(problem.ranks))
    for name, table, rival_request in simulator.others():
        try:
            prepared = simulator.prepared(table)
        except PptraceError:
            yield None
            continue
        placement = search_input.placement if CHUNKS in prepared.resolved.positions else None
        figures = rival_figures(prepared, work_ns, placement)
        if figures is None:
            yield None
            continue
        full_request = replace(rival_request, options=request.options, simulator=simulator)
        limit = _limits(full_request, table.placement, _free_bytes(prepared, figures))
        yield Rival(
            name=name, table=table, simulated=figures, fits=True,
            search_input=partial(_search_input, full_request, table.placement, limit, problem.shared),
        ) if _fits(figures, limit) else None  # fmt: skip


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
            return simulated(request.simulator.prepared(table))
        played = play(problem, rows_of_table(table))
        if played is None:
            raise ScheduleError("ranks wait for each other")
        return Simulated(played.step, 0.0, played.peak, (0,) * problem.ranks)

    return SearchInput(
        placement=placement,
        problem=problem,
        simulate=simulate,
        fits=partial(_fits, limit=limit),
        messages_are_simple=request.simulator is None,
    )


def _fits(figures: Simulated, limit: tuple[int, ...]) -> bool:
    """Return whether the activations of every rank keep its limit."""
    peaks = figures.activation_bytes
    return all(size in (NO_LIMIT, max(peak, size)) for peak, size in zip(peaks, limit, strict=True))


def _free_bytes(prepared: StepInputs, figures: Simulated) -> tuple[int, ...]:
    """Return the device memory of each rank without static memory; unlimited if it is not known."""
    workload, ranks = prepared.workload, prepared.schedule.ranks
    if not workload.capacity_bytes:
        return (NO_LIMIT,) * ranks
    return tuple(np.maximum(workload.capacities(ranks) - figures.static_bytes, 0).tolist())


def _limits(request: ScheduleRequest, placement: Placement, free_bytes: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the limit of activations in bytes per rank: the option, or device memory without static memory.

    Args:
        request: costs and options.
        placement: ranks of stages.
        free_bytes: shape (ranks,): device memory without static memory; by default an estimate from the request.
    """
    requested_bytes = request.options.get("activations", 0)
    is_known = any(request.activation_bytes)
    if not is_known or requested_bytes:
        return ((requested_bytes if is_known else 0) or NO_LIMIT,) * request.ranks
    if free_bytes:
        return free_bytes
    if not request.device_bytes:
        return (request.memory_limit_bytes or NO_LIMIT,) * request.ranks
    estimated_bytes = list(request.rank_bytes or [request.device_bytes] * request.ranks)
    for stage, size in enumerate(request.stage_bytes):
        estimated_bytes[placement.rank_of(stage, 0)] -= size
    return tuple(max(size, 0) for size in estimated_bytes)
