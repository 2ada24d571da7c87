"""Run the solver on a model: within a time or an amount of work, from a seed, stoppable from outside."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil
from threading import Thread
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from pptrace_optpipe.model import build

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pptrace_optpipe.problem import Op, Problem

__all__ = ["Effort", "Solved", "WorkClock", "limited", "run_solver", "solve", "solver_of"]


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
    """What the seconds are told by, but for one run of the solver: ``time.process_time`` on a busy machine; or a
    :class:`WorkClock`, whose units then limit the solver too."""

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
