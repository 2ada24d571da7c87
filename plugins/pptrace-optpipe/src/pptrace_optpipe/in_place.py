"""A request for a schedule as something to search in, beside the tables of other plugins' schedules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.plugin import Kind, Placement, PptraceError, ScheduleError, measure
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import NO_LIMIT, Problem, again_of, check_room, pairs, shared_of
from pptrace_optpipe.search import optimise
from pptrace_optpipe.setting import Simulated, alone, rows_of_table, table_of
from pptrace_optpipe.start_schedules import Rival, is_as_much

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.plugin import Schedule, ScheduleRequest
    from pptrace_optpipe.cache import Cache
    from pptrace_optpipe.model import Effort

__all__ = ["problem_asked", "searched_in_place"]

_SHARE, _AT_LEAST = 0.25, 1.0
"""The part of the time, and the seconds at least, in which other plugins' schedules are made and played."""


def searched_in_place(request: ScheduleRequest, effort: Effort, cache: Cache | None) -> Schedule:
    """Return the best table: no longer than any of other plugins that the simulator says fits.

    Raises:
        ScheduleError: nothing that fits was found in time.
        ConstraintError: nothing can fit.
    """
    simulator = request.simulator
    placement = Placement.looped(request.ranks, request.microbatches, request.chunks)
    limit, copies = _limits(request, placement), request.options.get("copies", "cluster")
    shared: tuple[tuple[int, ...], ...] = pairs(request.ranks) if copies == "pair" else ()
    if simulator is None:
        return optimise(_Asked(request, placement, limit, shared), 0, effort, cache).table
    began = effort.clock()
    with suppress(PptraceError):  # a policy may take only some orders
        one = table_of(alone(placement, placement.microbatches), placement)
        limit = _limits(request, placement, _played(request, one))
        shared = shared_of(simulator.prepared(one), copies)
    ground = _Asked(request, placement, limit, shared)
    rivals = list(_rivals(ground, effort))
    took = min(effort.clock() - began, effort.seconds * _SHARE)
    return optimise(ground, 0, replace(effort, seconds=effort.seconds - took), cache, rivals=rivals).table


def _rivals(own: _Asked, effort: Effort) -> Iterator[Rival]:
    """Yield what other plugins' schedules make of a request, where it fits and computes as much."""
    until = effort.clock() + max(effort.seconds * _SHARE, _AT_LEAST)
    problem = own.problem(0)
    work = sum(problem.work(rank) for rank in range(problem.ranks))
    simulator = own.request.simulator
    for name, table, asked in simulator.others() if simulator else ():
        if effort.clock() > until or effort.stopped():
            return
        effort.count(int(table.row_ptr[-1]))
        if table.interleave or table.recompute_waits or table.microbatches != own.placement.microbatches:
            continue
        try:
            played = _played(own.request, table)
        except PptraceError:
            continue
        request = replace(asked, options=own.request.options, simulator=simulator)
        ground = _Asked(request, table.placement, _limits(request, table.placement, played), own.shared)
        said = Simulated(played.step_ns, 0.0, played.activation_bytes)
        if is_as_much(played.work_ns, work) and ground.fits(said, 0):
            yield Rival(name=name, table=table, simulated=said, of=partial(_searchable, ground, table))


def _searchable(ground: _Asked, table: Schedule) -> _Asked:
    """Return a ground if a search can split a table of its placement."""
    rows_of_table(table)
    return ground


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request with a placement of its stages; a limit in bytes is not asked for, since the request has it."""

    request: ScheduleRequest
    placement: Placement
    limit: tuple[int, ...]
    shared: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks whose GPUs copy to the host by one channel."""

    @property
    def messages_are_simple(self) -> bool:
        """Return whether nothing but a search knows what messages cost."""
        return self.request.simulator is None

    def problem(self, memory: int) -> Problem:
        """Return the problem."""
        del memory
        problem = problem_asked(self.request, self.placement, self.limit, self.shared)
        check_room(problem, "schedule")
        return problem

    def simulate(self, table: Schedule) -> Simulated:
        """Return what the simulator says of a table, or the search's own clock where there is none."""
        if self.request.simulator is not None:
            played = _played(self.request, table)
            return Simulated(played.step_ns, 0.0, played.activation_bytes)
        clock = play(self.problem(0), rows_of_table(table))
        if clock is None:
            raise ScheduleError("ranks wait for each other")
        return Simulated(clock.step, 0.0, clock.peak)

    def fits(self, simulated: Simulated, memory: int) -> bool:
        """Return whether every rank keeps its limit."""
        del memory
        return all(
            limit in (NO_LIMIT, max(peak, limit))
            for peak, limit in zip(simulated.peak_bytes, self.limit, strict=True)
        )


class _Played(NamedTuple):
    """Figures of a table that was simulated in the configuration of a request."""

    step_ns: int
    activation_bytes: tuple[int, ...]
    """Shape (ranks,): the most in use, without what is there from the step's start to its end."""
    room_bytes: tuple[int, ...]
    """Shape (ranks,): what the device leaves for that; empty where its memory is not known."""
    work_ns: int
    """Time of the forwards and backwards of all stages and microbatches."""


def _played(request: ScheduleRequest, table: Schedule) -> _Played:
    if request.simulator is None:
        raise ScheduleError("there is no configuration to simulate a table in")
    prepared = request.simulator.prepared(table)
    workload = prepared.workload
    metrics = measure(prepared.simulate().timeline, workload)
    memory = metrics.memory
    room = np.maximum(memory.room_bytes - memory.static_bytes, 0)
    return _Played(
        step_ns=int(metrics.step_ns),
        activation_bytes=tuple((memory.peak_bytes - memory.static_bytes).tolist()),
        room_bytes=tuple(room.tolist()) if workload.capacity_bytes else (),
        work_ns=workload.total_ns((Kind.F, Kind.I, Kind.W), table.microbatches),
    )


def _limits(request: ScheduleRequest, placement: Placement, played: _Played | None = None) -> tuple[int, ...]:
    """Return what each rank may hold of activations: as asked, or what its device leaves beside its stages."""
    asked = request.options.get("activations", 0)
    known = any(request.activation_bytes)
    if not known or asked:
        return ((asked if known else 0) or NO_LIMIT,) * request.ranks
    if played is not None:
        return played.room_bytes or (NO_LIMIT,) * request.ranks
    if not request.device_bytes:
        return (request.memory_limit_bytes or NO_LIMIT,) * request.ranks
    room = list(request.rank_bytes or [request.device_bytes] * request.ranks)
    for stage, size in enumerate(request.stage_bytes):
        room[placement.rank_of(stage, 0)] -= size
    return tuple(max(one, 0) for one in room)


def problem_asked(
    request: ScheduleRequest,
    placement: Placement,
    limit: tuple[int, ...],
    shared: tuple[tuple[int, ...], ...] = (),
) -> Problem:
    """Return the problem that a request poses; every part takes 1, and memory does not matter, where unknown."""
    stages = request.stages
    ones, none, message = (1,) * stages, (0,) * stages, request.transfer_ns
    stage_rank = tuple(int(rank) for rank in placement.stage_rank[0])
    between = tuple(message * (one != other) for one, other in pairwise(stage_rank))
    again = again_of(request.recompute_ns) if request.options.get("recompute") and request.recompute_ns else ()
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
        limit=limit,
        recompute=again,
        checkpoint=request.checkpoint_bytes if again else (),
        forward_transfer=between,
        backward_transfer=between,
        offload=request.offload_ns if copies else (),
        reload=request.reload_ns if copies else (),
        shared=shared,
    )
