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
from itertools import product
from math import ceil
from threading import Thread
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pptrace_optpipe.problem import Problem

__all__ = [
    "Effort",
    "Model",
    "Solved",
    "WorkClock",
    "build",
    "hold",
    "interval",
    "limited",
    "neither",
    "run_solver",
    "solve",
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


def build(problem: Problem, horizon: int, *, ranks: Collection[int] = (), least: int = 0) -> Model:
    """Return the model.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        horizon: no op ends later.
        ranks: those whose streams and memory count; the others only delay. All unless given.
        least: a lower bound of the length that is known.
    """
    in_order = not (problem.copies or problem.recomputes)
    model = Model(cp_model.CpModel())
    kept = set(ranks or range(problem.ranks))
    _computations(model, problem, horizon, kept, in_order=in_order)
    _dataflow(model, problem)
    for rank in sorted(kept):
        computed = [op for op in model.start if op.part in COMPUTED and problem.stage_rank[op.stage] == rank]
        again = _recomputations(model, problem, rank, horizon)
        runs = [interval(model.cp, model.start[op], problem.duration(op)) for op in computed]
        model.cp.add_no_overlap(runs + again)
        if problem.limit[rank] == NO_LIMIT:
            continue
        _copies(model, problem, rank, horizon)
        hold(model.cp, _holdings(model, problem, rank), problem.limit[rank], horizon)
    for ranks_of, parts in problem.channels:
        model.cp.add_no_overlap([
            interval(model.cp, model.start[op], problem.duration(op), chosen)
            for (stage, microbatch), chosen in model.offloaded.items() if problem.stage_rank[stage] in ranks_of
            for op in (Op(part, stage, microbatch) for part in parts)
        ])  # fmt: skip
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


def interval(cp: cp_model.CpModel, begin: Any, took: int, chosen: Any = None) -> Any:
    """Return the interval of an op; it is there if that is chosen, where there is a choice."""
    if chosen is None:
        return cp.new_fixed_size_interval_var(begin, took, "run")
    return cp.new_optional_fixed_size_interval_var(begin, took, chosen, "run")


def _dataflow(model: Model, problem: Problem) -> None:
    """Add the constraints of data dependencies."""
    for microbatch, stage in product(range(problem.microbatches), range(problem.stages)):
        for part, own_stage in ((Part.F, stage + 1), (Part.I, stage), (Part.W, stage)):
            op = Op(part, own_stage, microbatch)
            if op in model.start:
                before, before_stage, lag = problem.needs[part, own_stage][-1]
                end = model.end[Op(before, before_stage, microbatch)]
                model.cp.add(model.start[op] >= end + lag)


def _recomputations(model: Model, problem: Problem, rank: int, horizon: int) -> list[Any]:
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
            intervals.append(interval(cp, begin, took, chosen))
    return intervals


def _copies(model: Model, problem: Problem, rank: int, horizon: int) -> None:
    """Make the variables of a rank's copies."""
    if not problem.copies:
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


def hold(cp: cp_model.CpModel, holdings: Iterable[tuple[Any, Any, int, Any]], limit: int, longest: int) -> None:
    """Keep a rank within its limit.

    Args:
        cp: the model.
        holdings: from when to when a rank holds how much, and on what choice that depends, if any.
        limit: the most of that at once.
        longest: no holding takes longer.
    """
    intervals, demands = [], []
    for begin, until, amount, chosen in holdings:
        if amount:
            size = cp.new_int_var(0, longest, "held")
            intervals.append(
                cp.new_interval_var(begin, size, until, "held") if chosen is None
                else cp.new_optional_interval_var(begin, size, until, chosen, "held")
            )  # fmt: skip
            demands.append(amount)
    cp.add_cumulative(intervals, demands, limit)


def _holdings(model: Model, problem: Problem, rank: int) -> Iterator[tuple[Any, Any, int, Any]]:
    """Yield from when to when a rank holds how much, and on what choice that depends."""
    start, end = model.start, model.end
    for stage, microbatch in product(problem.stages_of[rank], range(problem.microbatches)):
        whole, key = problem.activation[stage], (stage, microbatch)
        begin, done = start[Op(Part.F, *key)], end[Op(Part.I, *key)]
        copied, again = model.offloaded.get(key), model.again.get(key)
        yield begin, done, whole, neither(model.cp, copied, again)
        if copied is not None:
            yield begin, end[Op(Part.O, *key)], whole, copied
            yield start[Op(Part.R, *key)], done, whole, copied
        if again is not None:
            later = start[Op(Part.C, *key)]
            yield begin, later, problem.checkpoint[stage], again
            yield later, done, whole, again
        yield done, end[Op(Part.W, *key)], problem.weight_activation[stage], None


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
    """The solution of a model, in the problem's units."""

    length: int | None
    """The best solution's length; None where none was found."""
    bound: int
    """No solution is shorter."""
    start: dict[Op, int]
    """When the best solution starts its ops."""


def run_solver(cp: cp_model.CpModel, effort: Effort, **parameters: Any) -> tuple[Any, Any]:
    """Run the solver on a model, and return the status and the solver; an effort that is stopped ends it at once.

    With one worker, the same model gives the same solution unless time runs out. The solver runs beside this
    thread, since no Ctrl-C is heard while this one is inside it.

    Args:
        cp: the model.
        effort: time, threads and seed.
        parameters: more parameters of the solver.
    """
    solver = cp_model.CpSolver()
    is_timed = not isinstance(effort.clock, WorkClock)
    limit = "max_time_in_seconds" if is_timed else "max_deterministic_time"
    values = {
        limit: max(effort.seconds, 0.01), "num_workers": effort.workers, "random_seed": effort.seed,
        "catch_sigint_signal": False, **parameters,
    }  # fmt: skip
    for name, value in values.items():
        setattr(solver.parameters, name, value)
    status: list[Any] = []
    beside = Thread(target=lambda: status.append(solver.solve(cp)), daemon=True)
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
    effort.count(len(cp.proto.variables), solver.response_proto.deterministic_time)
    return (status[0] if status else cp_model.UNKNOWN), solver


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
    status, solver = run_solver(model.cp, effort)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        start = model.read(solver)
        length = int(solver.value(model.length))
        bound = length if status == cp_model.OPTIMAL else ceil(solver.best_objective_bound - 1e-6)
        return Solved(length, max(bound, least), start)
    return Solved(None, least, {})
