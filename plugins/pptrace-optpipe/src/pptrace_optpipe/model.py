"""The constraint model of a schedule, and its solver.

Each F, I and W is an interval on its rank. Each offload and reload is an optional interval on a copy stream. On a
stage, operations of one kind run in the order of microbatches, which breaks their symmetry. With copies or
recomputation, this order holds only for the forwards of the first stage, as a microbatch may overtake a microbatch
with a slow copy.

Where a joined backward is shorter than its two parts, the solver may join them: I then takes the time of both,
and W takes none and starts at the end of I.

Memory is exact at each time, a sum over intervals. An activation is in memory from the start of its forward to the
end of its input gradient. An offloaded activation is absent between the end of its offload and the start of its
reload. The weight part is in memory from the end of the input gradient to the end of W.

Source: the formulation follows Zero Bubble's (Qi et al., arXiv:2401.10241, appendix G) and adds OptPipe's copies
(Li et al., 2025). Memory is counted at the times when it is taken and freed, instead of once per operation.
"""

from __future__ import annotations

import time
from itertools import product
from math import ceil
from threading import Thread
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from ortools.sat.python import cp_model

from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from concurrent.futures import Executor

    from pptrace_optpipe.problem import Problem


class Model(Struct):
    """A constraint model with the variables of its solution."""

    cp: cp_model.CpModel
    start: dict[Op, Any] = field(default_factory=dict)
    end: dict[Op, Any] = field(default_factory=dict)
    offloaded: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By stage and microbatch, whether the activation is offloaded, if that is possible."""
    recomputed: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By stage and microbatch, whether the forward is recomputed, if that is possible."""
    joined: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By stage and microbatch, whether the backward is joined, on joinable stages."""
    length: Any = None

    def read(self, solver: Any) -> dict[Op, int]:
        """Return the start times of a solution's operations."""
        offloaded = {key for key, chosen in self.offloaded.items() if solver.value(chosen)}
        recomputed = {key for key, chosen in self.recomputed.items() if solver.value(chosen)}
        start = {
            op: int(solver.value(value))
            for op, value in self.start.items()
            if op.kind in COMPUTED
            or (op.stage, op.microbatch) in (recomputed if op.kind is OpKind.C else offloaded)
        }
        return join_starts(start, (key for key, chosen in self.joined.items() if solver.value(chosen)))

    def hint(self, start: Mapping[Op, int]) -> None:
        """Add start times of a known schedule as hints for the solver."""
        joined = {(op.stage, op.microbatch) for op in start if op.kind is OpKind.B}
        for op, value in start.items():
            if op.kind is OpKind.B:
                self.cp.add_hint(self.start[op._replace(kind=OpKind.I)], int(value))
            if op in self.start:
                self.cp.add_hint(self.start[op], int(value))
        for kind, choices in ((OpKind.O, self.offloaded), (OpKind.C, self.recomputed)):
            for (stage, microbatch), chosen in choices.items():
                self.cp.add_hint(chosen, int(Op(kind, stage, microbatch) in start))
        for key, chosen in self.joined.items():
            self.cp.add_hint(chosen, int(key in joined))


def join_starts(start: dict[Op, int], joined: Iterable[tuple[int, int]]) -> dict[Op, int]:
    """Return start times with ``B`` in place of ``I`` and ``W`` for some stages and microbatches."""
    result = dict(start)
    for key in joined:
        result[Op(OpKind.B, *key)] = result.pop(Op(OpKind.I, *key))
        del result[Op(OpKind.W, *key)]
    return result


def build(problem: Problem, horizon: int, *, ranks: Collection[int] = (), least: int = 0) -> Model:
    """Return the constraint model of a problem.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        horizon: an upper bound of all ends.
        ranks: ranks with constraints of streams and memory; other ranks only delay. All ranks by default.
        least: a known lower bound of the length.
    """
    in_order = not (problem.copies or problem.recomputes)
    model = Model(cp_model.CpModel())
    kept = set(ranks or range(problem.ranks))
    _computations(model, problem, horizon, kept, in_order=in_order)
    _dataflow(model, problem)
    for rank in sorted(kept):
        computed = [op for op in model.start if op.kind in COMPUTED and problem.stage_rank[op.stage] == rank]
        recomputations = _recomputations(model, problem, rank, horizon)
        computations = [
            computation
            for op in computed
            for computation in backward_intervals(model.cp, problem, op, model.start[op], model.joined.get(op[1:]))
        ]
        model.cp.add_no_overlap(computations + recomputations)
        if problem.limit[rank] == NO_LIMIT:
            continue
        _copies(model, problem, rank, horizon)
        hold(model.cp, _holdings(model, problem, rank), problem.limit[rank], horizon)
    for group, kind in problem.channels:
        model.cp.add_no_overlap([
            interval(model.cp, model.start[op], problem.duration(op), chosen)
            for (stage, microbatch), chosen in model.offloaded.items() if problem.stage_rank[stage] in group
            for op in (Op(kind, stage, microbatch),)
        ])  # fmt: skip
    _objective(model, problem, horizon, kept, least, in_order=in_order)
    return model


def _computations(model: Model, problem: Problem, horizon: int, kept: set[int], *, in_order: bool) -> None:
    """Add the variables of F, I and W. Microbatches are numbered by their start on the first stage."""
    for op in problem.ops():
        if op.kind is OpKind.W and problem.stage_rank[op.stage] not in kept:
            continue
        is_kept = problem.stage_rank[op.stage] in kept
        if op.kind is OpKind.I and is_kept and op.stage in problem.joinable:
            model.joined[op[1:]] = model.cp.new_bool_var(f"b{op.stage}.{op.microbatch}")
        joined = model.joined.get(op[1:])
        latest = horizon - (problem.duration(op) if joined is None else 0)
        begin = model.start[op] = model.cp.new_int_var(0, latest, f"{op.kind.name}{op.stage}.{op.microbatch}")
        model.end[op] = backward_end(model.cp, problem, op, begin, joined)
        previous = Op(op.kind, op.stage, op.microbatch - 1)
        if op.kind is OpKind.W and joined is not None:  # weight gradients may pass joined backwards
            model.cp.add(begin == model.end[Op(OpKind.I, *op[1:])]).only_enforce_if(joined)
        elif op.microbatch and (in_order or (op.kind is OpKind.F and not op.stage)):
            model.cp.add(begin >= (model.end[previous] if is_kept else model.start[previous]))


def interval(cp: cp_model.CpModel, begin: Any, duration: int, chosen: Any = None) -> Any:
    """Return the interval of an operation; with ``chosen``, the interval is optional."""
    if chosen is None:
        return cp.new_fixed_size_interval_var(begin, duration, "run")
    return cp.new_optional_fixed_size_interval_var(begin, duration, chosen, "run")


def backward_end(cp: cp_model.CpModel, problem: Problem, op: Op, begin: Any, joined: Any) -> Any:
    """Return the end of a computation; ``joined`` is the literal of a joined backward, or None."""
    duration = problem.duration(op)
    if joined is None or op.kind not in (OpKind.I, OpKind.W):
        return begin + duration
    joined_duration = problem.duration(op._replace(kind=OpKind.B)) if op.kind is OpKind.I else 0
    latest = max(begin.proto.domain) + max(duration, joined_duration)
    end = cp.new_int_var(0, latest, "end")
    cp.add(end == begin + duration + (joined_duration - duration) * joined)
    return end


def backward_intervals(cp: cp_model.CpModel, problem: Problem, op: Op, begin: Any, joined: Any) -> list[Any]:
    """Return the interval of a computation; of ``I``, one for each value of the literal ``joined``, if given."""
    if joined is None or op.kind not in (OpKind.I, OpKind.W):
        return [interval(cp, begin, problem.duration(op))]
    split_interval = interval(cp, begin, problem.duration(op), ~joined)
    if op.kind is OpKind.W:
        return [split_interval]
    return [split_interval, interval(cp, begin, problem.duration(op._replace(kind=OpKind.B)), joined)]


def _dataflow(model: Model, problem: Problem) -> None:
    """Add the constraints of data dependencies."""
    for microbatch, stage in product(range(problem.microbatches), range(problem.stages)):
        for kind, op_stage in ((OpKind.F, stage + 1), (OpKind.I, stage), (OpKind.W, stage)):
            op = Op(kind, op_stage, microbatch)
            if op in model.start:
                input_kind, input_stage, lag = problem.needs[kind, op_stage][-1]
                end = model.end[Op(input_kind, input_stage, microbatch)]
                model.cp.add(model.start[op] >= end + lag)


def _recomputations(model: Model, problem: Problem, rank: int, horizon: int) -> list[Any]:
    """Add the variables of a rank's recomputed forwards, and return their intervals."""
    if not problem.recomputes or problem.limit[rank] == NO_LIMIT:
        return []
    cp, intervals = model.cp, []
    for stage in problem.stages_of[rank]:
        for microbatch in range(problem.microbatches):
            op, duration = Op(OpKind.C, stage, microbatch), problem.recompute[stage]
            chosen = model.recomputed[stage, microbatch] = cp.new_bool_var(f"c{stage}.{microbatch}")
            begin = model.start[op] = cp.new_int_var(0, horizon, f"C{stage}.{microbatch}")
            model.end[op] = begin + duration
            cp.add(begin >= model.end[op._replace(kind=OpKind.F)]).only_enforce_if(chosen)
            cp.add(model.start[op._replace(kind=OpKind.I)] >= begin + duration).only_enforce_if(chosen)
            intervals.append(interval(cp, begin, duration, chosen))
    return intervals


def _copies(model: Model, problem: Problem, rank: int, horizon: int) -> None:
    """Add the variables of a rank's offloads and reloads."""
    if not problem.copies:
        return
    cp = model.cp
    for stage in problem.stages_of[rank]:
        for microbatch in range(problem.microbatches):
            chosen = cp.new_bool_var(f"w{stage}.{microbatch}")
            model.offloaded[stage, microbatch] = chosen
            for kind in (OpKind.O, OpKind.R):
                op = Op(kind, stage, microbatch)
                begin = cp.new_int_var(0, horizon, f"{kind.name}{stage}.{microbatch}")
                model.start[op], model.end[op] = begin, begin + problem.duration(op)
            offload, reload = Op(OpKind.O, stage, microbatch), Op(OpKind.R, stage, microbatch)
            cp.add(model.start[offload] >= model.end[Op(OpKind.F, stage, microbatch)]).only_enforce_if(chosen)
            cp.add(model.start[reload] >= model.end[offload]).only_enforce_if(chosen)
            cp.add(model.start[Op(OpKind.I, stage, microbatch)] >= model.end[reload]).only_enforce_if(chosen)


def hold(cp: cp_model.CpModel, holdings: Iterable[tuple[Any, Any, int, Any]], limit: int, longest: int) -> None:
    """Add the constraint of a rank's memory limit.

    Args:
        cp: the model.
        holdings: start, end, size and choice of each use of memory; a choice of None means always.
        limit: the memory limit, in the same unit as sizes.
        longest: an upper bound of the duration of each use.
    """
    intervals, demands = [], []
    for start, end, size, chosen in holdings:
        if size:
            duration = cp.new_int_var(0, longest, "held")
            intervals.append(
                cp.new_interval_var(start, duration, end, "held") if chosen is None
                else cp.new_optional_interval_var(start, duration, end, chosen, "held")
            )  # fmt: skip
            demands.append(size)
    cp.add_cumulative(intervals, demands, limit)


def _holdings(model: Model, problem: Problem, rank: int) -> Iterator[tuple[Any, Any, int, Any]]:
    """Yield start, end, size and choice of each use of a rank's memory."""
    start, end = model.start, model.end
    for stage, microbatch in product(problem.stages_of[rank], range(problem.microbatches)):
        size, key = problem.activation[stage], (stage, microbatch)
        forward_start, gradient_end = start[Op(OpKind.F, *key)], end[Op(OpKind.I, *key)]
        copied, recomputed = model.offloaded.get(key), model.recomputed.get(key)
        yield forward_start, gradient_end, size, neither(model.cp, copied, recomputed)
        if copied is not None:
            yield forward_start, end[Op(OpKind.O, *key)], size, copied
            yield start[Op(OpKind.R, *key)], gradient_end, size, copied
        if recomputed is not None:
            recompute_start = start[Op(OpKind.C, *key)]
            yield forward_start, recompute_start, problem.checkpoint[stage], recomputed
            yield recompute_start, gradient_end, size, recomputed
        yield gradient_end, end[Op(OpKind.W, *key)], problem.weight_activation[stage], None


def neither(cp: cp_model.CpModel, first: Any, second: Any) -> Any:
    """Return a literal that is true if neither of two exclusive choices is made; None without choices."""
    if first is None or second is None:
        choice = second if first is None else first
        return None if choice is None else ~choice
    neither = cp.new_bool_var("stays")
    cp.add_exactly_one(neither, first, second)
    return neither


def _objective(
    model: Model, problem: Problem, horizon: int, kept: set[int], least: int, *, in_order: bool
) -> None:
    """Minimise the length of the step."""
    cp = model.cp
    model.length = cp.new_int_var(least, horizon + max(problem.tail), "length")
    microbatches = range(problem.microbatches)
    for rank in kept:
        for stage in problem.stages_of[rank]:
            for microbatch in microbatches[-1:] if in_order and stage not in problem.joinable else microbatches:
                end = model.end[Op(OpKind.W, stage, microbatch)]
                cp.add(model.length >= end + problem.tail[rank])
    cp.minimize(model.length)


_POLL_SECONDS = 0.1
"""Seconds between two calls of ``Effort.stopped``."""
_OPS_PER_UNIT = 10_000
"""Scheduled operations, or variables of a solver's model, per unit of work."""


class WorkClock:
    """A clock that counts work, so that a limit gives the same result on every machine under every load.

    Work is the solver's deterministic time plus counted operations. A unit takes about a second on one processor.
    """

    def __init__(self) -> None:
        self.units = 0.0

    def __call__(self) -> float:
        """Return the units of work so far."""
        return self.units


class Effort(Struct, frozen=True, kw_only=True):
    """Time limit, threads and seed of a solver."""

    seconds: float
    workers: int = 1
    """Threads of the solver, and searches side by side where an executor runs them."""
    start_executor: Callable[[], Executor] | None = None
    """Returns an executor for ``workers`` searches side by side; None for a single search."""
    seed: int = 0
    stopped: Callable[[], bool] = lambda: False
    """Called regularly; a true value ends the search with the best result so far."""
    clock: Callable[[], float] = time.monotonic
    """The clock of the time limit between runs of the solver; ``time.process_time`` suits a busy machine. A run of
    the solver has a limit of wall time, or of units with a :class:`WorkClock`."""

    def count(self, ops: int, solver_units: float = 0.0) -> None:
        """Add operations and solver units to the clock, if it is a :class:`WorkClock`."""
        if isinstance(self.clock, WorkClock):
            self.clock.units += ops / _OPS_PER_UNIT + solver_units


def limited(time_ns: int | None, work: float | None, **more: Any) -> Effort:
    """Return an effort limited by units of work if given, else by time."""
    if work is not None:
        return Effort(seconds=work, clock=WorkClock(), **more)
    return Effort(seconds=(time_ns or 0) / 1e9, **more)


class Solved(Struct, frozen=True):
    """The solution of a model, in the problem's units."""

    length: int | None
    """The best solution's length; None without a solution."""
    bound: int
    """A lower bound of the length."""
    start: dict[Op, int]
    """Start times of the best solution; empty without a solution."""


def run_solver(cp: cp_model.CpModel, effort: Effort, **parameters: Any) -> tuple[Any, Any]:
    """Run the solver on a model, and return the status and the solver. The solver ends when the effort is stopped.

    With one worker, the same model gives the same solution unless time runs out. The solver runs in a thread, as
    the main thread cannot receive Ctrl-C inside the solver.

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
    thread = Thread(target=lambda: status.append(solver.solve(cp)), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if effort.stopped():
                solver.stop_search()
    except KeyboardInterrupt:
        solver.stop_search()
        thread.join()
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

    Backwards are joined where this is shorter, so the bound holds for split and for joined backwards.
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
