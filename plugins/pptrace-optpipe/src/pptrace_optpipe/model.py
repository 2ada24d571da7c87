"""The constraint model, and its solver.

Every F, I and W is an interval on its rank, every offload and reload an optional one on a copy stream. Ops of one
sort and stage follow the order of microbatches, which breaks the symmetry between those. Where activations may be
copied or computed again, that holds for the first stage's forwards alone: a microbatch may overtake one whose copy
is slow. Memory is what
intervals from a start to an end hold, exact to the moment: of a forward until its input gradient ends, or until it
is on the host and again from the reload's start; of the weight gradient's part from then until W ends.

Source: the formulation follows Zero Bubble's (Qi et al., arXiv:2401.10241, appendix G) and adds OptPipe's copies
(Li et al., 2025), with memory counted when it is taken and freed rather than per op.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import ceil
from threading import Thread
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pptrace_optpipe.problem import Problem

__all__ = [
    "Effort",
    "Model",
    "Solved",
    "WorkClock",
    "build",
    "limited",
    "neither",
    "run_solver",
    "solve",
    "solver_of",
]


@dataclass(slots=True)
class Model:
    """A model with the variables that a solution is read from."""

    cp: cp_model.CpModel
    start: dict[Op, Any] = field(default_factory=dict)
    end: dict[Op, Any] = field(default_factory=dict)
    offloaded: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By stage and microbatch, for those that may be offloaded."""
    again: dict[tuple[int, int], Any] = field(default_factory=dict)
    """The same for those that may be computed again."""
    length: Any = None

    def read(self, solver: Any) -> dict[Op, int]:
        """Return when a solution starts its ops."""
        gone = {at for at, chosen in self.offloaded.items() if solver.value(chosen)}
        again = {at for at, chosen in self.again.items() if solver.value(chosen)}
        return {
            op: int(solver.value(value))
            for op, value in self.start.items()
            if op.part in COMPUTED or (op.stage, op.microbatch) in (again if op.part is Part.C else gone)
        }

    def hint(self, start: Mapping[Op, int]) -> None:
        """Start the search from a solution."""
        for op, value in start.items():
            if op in self.start:
                self.cp.add_hint(self.start[op], int(value))
        for part, choices in ((Part.O, self.offloaded), (Part.C, self.again)):
            for (stage, microbatch), chosen in choices.items():
                self.cp.add_hint(chosen, int(Op(part, stage, microbatch) in start))


def build(
    problem: Problem, horizon: int, *, ranks: Collection[int] = (), least: int = 0, in_order: bool = False
) -> Model:
    """Return the model.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        horizon: no op ends later.
        ranks: those whose streams and memory count; the others only delay. All unless given.
        least: a lower bound of the length that is known.
        in_order: whether all ops follow the order of microbatches even where another one may be shorter; then
            nothing is proved of those.
    """
    in_order = in_order or not (problem.copies or problem.recomputes)
    model = Model(cp_model.CpModel())
    kept = set(ranks or range(problem.ranks))
    _computations(model, problem, horizon, kept, in_order=in_order)
    _dataflow(model, problem)
    for rank in sorted(kept):
        own = [op for op in model.start if op.part in COMPUTED and problem.stage_rank[op.stage] == rank]
        again = _again(model, problem, rank, horizon)
        model.cp.add_no_overlap([_interval(model, op, problem.duration(op)) for op in own] + again)
        _copies(model, problem, rank, horizon)
        if problem.limit[rank] != NO_LIMIT:
            _memory(model, problem, rank, horizon)
    for ranks_of, parts in problem.channels:
        stages = [stage for stage in range(problem.stages) if problem.stage_rank[stage] in set(ranks_of) & kept]
        _one_at_a_time(model, problem, stages, parts)
    _objective(model, problem, horizon, kept, least, in_order=in_order)
    return model


def _computations(model: Model, problem: Problem, horizon: int, kept: set[int], *, in_order: bool) -> None:
    """Make the variables of F, I and W; microbatches are numbered as they start on the first stage."""
    for op in problem.ops():
        if op.part is Part.W and problem.stage_rank[op.stage] not in kept:
            continue
        took = problem.duration(op)
        begin = model.cp.new_int_var(0, horizon - took, f"{op.part.name}{op.stage}.{op.microbatch}")
        model.start[op], model.end[op] = begin, begin + took
        before = Op(op.part, op.stage, op.microbatch - 1)
        if op.microbatch and (in_order or (op.part is Part.F and not op.stage)):
            apart = took if problem.stage_rank[op.stage] in kept else 0
            model.cp.add(begin >= model.start[before] + apart)


def _interval(model: Model, op: Op, took: int) -> Any:
    return model.cp.new_fixed_size_interval_var(model.start[op], took, f"{op.part.name}{op.stage}.{op.microbatch}")


def _dataflow(model: Model, problem: Problem) -> None:
    """Add the constraints of data dependencies."""
    cp, start, end = model.cp, model.start, model.end
    for microbatch in range(problem.microbatches):
        for stage in range(problem.stages):
            forward, gradient = Op(Part.F, stage, microbatch), Op(Part.I, stage, microbatch)
            if stage + 1 < problem.stages:
                onward, back = Op(Part.F, stage + 1, microbatch), Op(Part.I, stage + 1, microbatch)
                cp.add(start[onward] >= end[forward] + problem.forward_transfer[stage])
                cp.add(start[gradient] >= end[back] + problem.backward_transfer[stage])
            else:
                cp.add(start[gradient] >= end[forward])
            weight = Op(Part.W, stage, microbatch)
            if weight in start:
                cp.add(start[weight] >= end[gradient])


def _again(model: Model, problem: Problem, rank: int, horizon: int) -> list[Any]:
    """Make the variables of what a rank may compute again, and return their intervals."""
    if not problem.recomputes or problem.limit[rank] == NO_LIMIT:
        return []
    cp, intervals = model.cp, []
    for stage in problem.stages_of[rank]:
        for microbatch in range(problem.microbatches):
            op, took = Op(Part.C, stage, microbatch), problem.recompute[stage]
            chosen = model.again[stage, microbatch] = cp.new_bool_var(f"c{stage}.{microbatch}")
            begin = model.start[op] = cp.new_int_var(0, horizon, f"C{stage}.{microbatch}")
            model.end[op] = begin + took
            cp.add(begin >= model.end[op._replace(part=Part.F)]).only_enforce_if(chosen)
            cp.add(model.start[op._replace(part=Part.I)] >= begin + took).only_enforce_if(chosen)
            intervals.append(cp.new_optional_fixed_size_interval_var(begin, took, chosen, "again"))
    return intervals


def _copies(model: Model, problem: Problem, rank: int, horizon: int) -> None:
    """Make the variables of a rank's copies."""
    if not problem.copies or problem.limit[rank] == NO_LIMIT:
        return
    cp = model.cp
    for stage in problem.stages_of[rank]:
        for microbatch in range(problem.microbatches):
            chosen = cp.new_bool_var(f"w{stage}.{microbatch}")
            model.offloaded[stage, microbatch] = chosen
            for part in (Part.O, Part.R):
                op = Op(part, stage, microbatch)
                begin = cp.new_int_var(0, horizon, f"{part.name}{stage}.{microbatch}")
                model.start[op], model.end[op] = begin, begin + problem.duration(op)
            out, back = Op(Part.O, stage, microbatch), Op(Part.R, stage, microbatch)
            cp.add(model.start[out] >= model.end[Op(Part.F, stage, microbatch)]).only_enforce_if(chosen)
            cp.add(model.start[back] >= model.end[out]).only_enforce_if(chosen)
            cp.add(model.start[Op(Part.I, stage, microbatch)] >= model.end[back]).only_enforce_if(chosen)


def _one_at_a_time(model: Model, problem: Problem, stages: Collection[int], parts: Collection[Part]) -> None:
    """Let copies share a stream."""
    intervals = []
    for (stage, microbatch), chosen in model.offloaded.items():
        if stage not in stages:
            continue
        intervals += [
            model.cp.new_optional_interval_var(
                model.start[op], problem.duration(op), model.end[op], chosen, f"copy{op.part.name}"
            )
            for op in (Op(part, stage, microbatch) for part in parts)
        ]
    model.cp.add_no_overlap(intervals)


def _memory(model: Model, problem: Problem, rank: int, horizon: int) -> None:
    """Hold the rank to its limit."""
    cp, start, end = model.cp, model.start, model.end
    intervals, demands = [], []

    def holds(begin: Any, until: Any, amount: int, chosen: Any = None) -> None:
        if not amount:
            return
        size = cp.new_int_var(0, horizon, "held")
        if chosen is None:
            intervals.append(cp.new_interval_var(begin, size, until, "held"))
        else:
            intervals.append(cp.new_optional_interval_var(begin, size, until, chosen, "held"))
        demands.append(amount)

    for stage in problem.stages_of[rank]:
        whole, part = problem.activation[stage], problem.weight_activation[stage]
        for microbatch in range(problem.microbatches):
            forward, gradient, weight, out, back = (
                Op(one, stage, microbatch) for one in (Part.F, Part.I, Part.W, Part.O, Part.R)
            )
            chosen = model.offloaded.get((stage, microbatch))
            again = model.again.get((stage, microbatch))
            begin = start[forward]
            holds(begin, end[gradient], whole, neither(cp, chosen, again))
            if chosen is not None:
                holds(begin, end[out], whole, chosen)
                holds(start[back], end[gradient], whole, chosen)
            if again is not None:
                later = Op(Part.C, stage, microbatch)
                holds(begin, start[later], problem.checkpoint[stage], again)
                holds(start[later], end[gradient], whole, again)
            holds(end[gradient], end[weight], part)
    cp.add_cumulative(intervals, demands, problem.limit[rank])


def neither(cp: cp_model.CpModel, one: Any, other: Any) -> Any:
    """Return whether neither choice is made, where at most one may be; None where there is none."""
    if one is None or other is None:
        left = other if one is None else one
        return None if left is None else ~left
    neither = cp.new_bool_var("stays")
    cp.add_exactly_one(neither, one, other)
    return neither


def _objective(
    model: Model, problem: Problem, horizon: int, kept: set[int], least: int, *, in_order: bool
) -> None:
    """Shorten the step, or the longest span."""
    cp = model.cp
    model.length = cp.new_int_var(least, horizon + max(problem.tail), "length")
    every = range(problem.microbatches)
    for rank in kept:
        stages = problem.stages_of[rank]
        begin: Any = 0
        if problem.span:
            begin = cp.new_int_var(0, horizon, f"begin{rank}")
            for microbatch in every[:1] if in_order else every:
                cp.add(begin <= model.start[Op(Part.F, stages[0], microbatch)])
        for stage in stages:
            for microbatch in every[-1:] if in_order else every:
                done = model.end[Op(Part.W, stage, microbatch)]
                cp.add(model.length >= done - begin + problem.tail[rank])
    cp.minimize(model.length)


_OFTEN = 0.1
"""Seconds between two looks at whether to stop."""
_OPS = 10_000
"""Ops that are placed, or variables that the solver is given, in a unit of work."""


class WorkClock:
    """A clock of the work that was done, so that a limit means the same on every machine, however busy.

    A unit takes about a second of one processor: the solver's own deterministic time, and ops that were counted.
    """

    def __init__(self) -> None:
        self.units = 0.0

    def __call__(self) -> float:
        """Return the units of work so far."""
        return self.units


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How a solver works."""

    seconds: float
    workers: int = 1
    seed: int = 0
    stopped: Callable[[], bool] = lambda: False
    """Asked now and then; true ends the search with the best so far."""
    clock: Callable[[], float] = time.monotonic
    """The clock of the time limit, except in a run of the solver: ``time.process_time`` suits a busy machine. The
    units of a :class:`WorkClock` also limit the solver."""

    def count(self, ops: int, solver_units: float = 0.0) -> None:
        """Add ops, and units of the solver's, to the work that was done, where that is limited."""
        if isinstance(self.clock, WorkClock):
            self.clock.units += ops / _OPS + solver_units


def limited(time_ns: int | None, work: float | None, **more: Any) -> Effort:
    """Return an effort that ends after so many units of work where those are given, else after some time."""
    if work is not None:
        return Effort(seconds=work, clock=WorkClock(), **more)
    return Effort(seconds=(time_ns or 0) / 1e9, **more)


@dataclass(frozen=True, slots=True)
class Solved:
    """What a search found, in the problem's units."""

    length: int | None
    """The best solution's length; None where none was found."""
    bound: int
    """No solution is shorter."""
    start: dict[Op, int]
    """When the best solution starts its ops."""
    infeasible: bool = False

    @property
    def is_proved(self) -> bool:
        """Whether the solution is the best there is."""
        return self.length == self.bound


def run_solver(solver: Any, model: cp_model.CpModel, effort: Effort) -> Any:
    """Run a solver on a model, and return its status; an effort that is stopped ends it at once.

    It runs beside this thread, since no Ctrl-C is heard while this one is inside the solver.
    """
    status: list[Any] = []
    beside = Thread(target=lambda: status.append(solver.solve(model)), daemon=True)
    beside.start()
    try:
        while beside.is_alive():
            beside.join(_OFTEN)
            if effort.stopped():
                solver.stop_search()
    except KeyboardInterrupt:
        solver.stop_search()
        beside.join()
        raise
    effort.count(len(model.proto.variables), solver.response_proto.deterministic_time)
    return status[0] if status else cp_model.UNKNOWN


def solver_of(effort: Effort) -> Any:
    """Return a solver: with one worker, the same input gives the same result unless time runs out."""
    solver = cp_model.CpSolver()
    seconds = max(effort.seconds, 0.01)
    if isinstance(effort.clock, WorkClock):
        solver.parameters.max_deterministic_time = seconds
    else:
        solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = effort.workers
    solver.parameters.random_seed = effort.seed
    solver.parameters.catch_sigint_signal = False
    return solver


def solve(
    problem: Problem,
    effort: Effort,
    *,
    horizon: int,
    hint: Mapping[Op, int] | None = None,
    ranks: Collection[int] = (),
    least: int = 0,
) -> Solved:
    """Solve the whole problem, or its relaxation to some ranks; see :func:`pptrace_optpipe.model.build`.

    Backwards are split: the bound is one of whole backwards too where none is shorter than its halves.
    """
    model = build(problem, horizon, ranks=ranks, least=least)
    if hint:
        model.hint(hint)
    solver = solver_of(effort)
    status = run_solver(solver, model.cp, effort)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        start = model.read(solver)
        length = int(solver.value(model.length))
        bound = length if status == cp_model.OPTIMAL else ceil(solver.best_objective_bound - 1e-6)
        return Solved(length, max(bound, least), start)
    return Solved(None, least, {}, status == cp_model.INFEASIBLE)
