"""Periodic schedules.

The period is searched for without copies. Where activations may go to the host, or forwards may be computed again,
it is searched for with more memory than there is, and whoever takes the rows puts those in.

In a steady state, what is done for a microbatch is done for the next one a period later. So a schedule without end
is one start for each computation of a stage, and the period. Streams are kept apart modulo the period, and what is
held for several periods counts once for each whole one and once more for the rest. How many whole periods are
between two computations says how many microbatches are between them. This is modulo scheduling, as compilers have
it for loops: Rau, Iterative Modulo Scheduling, MICRO 27, 1994.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from pptrace_optpipe.model import WorkClock, run_solver
from pptrace_optpipe.playback import rows_of
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part, coarsened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["Pattern", "least_period", "pattern_of", "shortest_pattern", "steady_rows"]

_FINE, _COARSE = 6, 48
"""Units of time of a period: at least about so many, and at most."""
_LONGEST = 4
"""How many times its lower bound a period is, at most."""
_AHEAD = (Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3), Fraction(5, 4), Fraction(4))
"""With how much more memory the period is searched for, where copies or computing again make room."""


def steady_rows(problem: Problem, effort: Effort) -> Iterator[Rows]:
    """Yield rows that repeat; where copies or computing again are possible, also some that take too much memory.

    Args:
        problem: what to schedule.
        effort: for each period that is tried.
    """
    bare = replace(problem, offload=(), reload=(), recompute=(), checkpoint=(), tail=(), shared=())
    more = _AHEAD if problem.copies or problem.recomputes else _AHEAD[:1]
    for one in more:
        limit = tuple(NO_LIMIT if each == NO_LIMIT else int(each * one) for each in problem.limit)
        coarse = _in_units(replace(bare, limit=limit))
        pattern = shortest_pattern(coarse, effort)
        if pattern is not None:
            yield rows_of(coarse, pattern.starts(problem.microbatches))


def shortest_pattern(problem: Problem, effort: Effort) -> Pattern | None:
    """Return the steady state of the shortest period that is found, by halving; None where none is.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        effort: for each period that is tried.
    """
    low = least_period(problem)
    best = pattern_of(problem, low, effort, first=True)
    apart = 1
    while best is None and apart < (_LONGEST - 1) * low and not effort.stopped():
        best = pattern_of(problem, low + apart, effort, first=True)
        apart *= 2
    if best is None:
        return None
    failed = best.period - apart // 4 if apart > 1 else best.period - 1
    while best.period - failed > 1 and not effort.stopped():
        middle = (failed + best.period) // 2
        found = pattern_of(problem, middle, effort, first=True)
        if found is None:
            failed = middle
        else:
            best = found
    return pattern_of(problem, best.period, effort) or best


def _in_units(problem: Problem) -> Problem:
    """Return a problem whose longest work of a microbatch is neither too few units nor too many."""
    coarse, _ = coarsened(problem, _COARSE * problem.microbatches)
    work = max(coarse.work(rank) for rank in range(coarse.ranks)) // coarse.microbatches
    times = -(-_FINE // max(work, 1))
    if times == 1:
        return coarse

    def longer(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(times * value for value in values)

    return replace(
        coarse, f=longer(coarse.f), i=longer(coarse.i), w=longer(coarse.w), b=longer(coarse.b),
        forward_transfer=longer(coarse.forward_transfer), backward_transfer=longer(coarse.backward_transfer),
    )  # fmt: skip


_WORK = 1.5
"""Units of the solver's own deterministic time that a period gets."""
_TRIPS = 3
"""Round trips within which a microbatch goes through the pipeline, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A steady state."""

    period: int
    """So much later all starts again, for the next microbatch."""
    start: Mapping[Op, int]
    """When each computation of the first microbatch starts."""

    def starts(self, microbatches: int) -> dict[Op, int]:
        """Return when the computations of so many microbatches start, the steady state going on all the time."""
        return {
            op._replace(microbatch=microbatch): begin + microbatch * self.period
            for op, begin in self.start.items()
            for microbatch in range(microbatches)
        }


def least_period(problem: Problem) -> int:
    """Return a lower bound of the period: each rank's work, and its memory over the activations' round trips."""
    least = 1
    for stages, limit in zip(problem.stages_of, problem.limit, strict=True):
        least = max(least, sum(problem.f[stage] + problem.i[stage] + problem.w[stage] for stage in stages))
        if limit > 0:
            held = sum(
                problem.round_trip(stage) * problem.activation[stage]
                + problem.w[stage] * problem.weight_activation[stage]
                for stage in stages
            )
            least = max(least, -(-held // limit))
    return least


def pattern_of(problem: Problem, period: int, effort: Effort, *, first: bool = False) -> Pattern | None:
    """Return a steady state with a period and without copies; None where the solver finds none in its time.

    Of those it looks for the one that takes a microbatch through the pipeline soonest.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        period: how long it takes.
        effort: the solver's.
        first: whether to take the first that it finds.
    """
    model = _Period(problem, period)
    work = min(_WORK, max(effort.seconds, 0.01)) if isinstance(effort.clock, WorkClock) else _WORK
    status, solver = run_solver(model.cp, effort, max_deterministic_time=work, stop_after_first_solution=first)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return Pattern(period=period, start={op: int(solver.value(begin)) for op, begin in model.start.items()})


class _Period:
    """The model of one period."""

    def __init__(self, problem: Problem, period: int) -> None:
        self.problem, self.period = problem, period
        self.cp = cp_model.CpModel()
        self.places: dict[Op, Any] = {}
        """How far into a period an op starts."""
        self.laps = 2 + _TRIPS * problem.round_trip(0) // period
        ops = [Op(part, stage, 0) for part, stage in product(COMPUTED, range(problem.stages))]
        last = self.laps * period - 1
        self.start = {op: self.cp.new_int_var(0, last, f"{op.part.name}{op.stage}") for op in ops}
        """When an op starts, counted from the first forward."""
        self._dataflow()
        for rank, limit in enumerate(problem.limit):
            self._apart(rank)
            if limit != NO_LIMIT:
                self._memory(rank)
        self._objective()

    def _end(self, op: Op) -> Any:
        return self.start[op] + self.problem.duration(op)

    def _dataflow(self) -> None:
        """Add the constraints of data dependencies."""
        problem, start = self.problem, self.start
        self.cp.add(start[Op(Part.F, 0, 0)] == 0)
        for stage in range(problem.stages):
            for part, own_stage in ((Part.W, stage), (Part.F, stage + 1), (Part.I, stage)):
                if own_stage < problem.stages:
                    before, before_stage, lag = problem.needs[part, own_stage][-1]
                    self.cp.add(start[Op(part, own_stage, 0)] >= self._end(Op(before, before_stage, 0)) + lag)

    def _place(self, moment: Any) -> Any:
        """Return how far into a period a moment is."""
        lap = self.cp.new_int_var(0, self.laps + 1, "lap")
        place = self.cp.new_int_var(0, self.period - 1, "place")
        self.cp.add(moment == lap * self.period + place)
        return place

    def _apart(self, rank: int) -> None:
        """Let a rank compute one thing at a time, also over the period's end: each op is there twice."""
        runs = []
        for part, stage in product(COMPUTED, self.problem.stages_of[rank]):
            op = Op(part, stage, 0)
            place = self.places[op] = self._place(self.start[op])
            runs += [
                self.cp.new_fixed_size_interval_var(begin, self.problem.duration(op), "run")
                for begin in (place, place + self.period)
            ]
        self.cp.add_no_overlap(runs)

    def _memory(self, rank: int) -> None:
        """Hold a rank to its limit at every moment of a period, and, which says less but sooner, on average.

        Over the second of two periods, what each of them begins is all there is but for whole periods.
        """
        cp, period = self.cp, self.period
        runs, amounts, always = [], [], []
        holdings = self._holdings(rank)
        cp.add(sum((end - begin) * amount for begin, end, amount in holdings) <= self.problem.limit[rank] * period)
        for begin, end, amount in holdings:
            whole, rest = cp.new_int_var(0, self.laps + 1, "whole"), cp.new_int_var(0, period - 1, "rest")
            cp.add(end - begin == whole * period + rest)
            always.append(whole * amount)
            place = self._place(begin)
            for lap in (place, place + period):
                until = cp.new_int_var(0, 3 * period, "until")
                runs.append(cp.new_interval_var(lap, rest, until, "held"))
                amounts.append(amount)
        room = cp.new_int_var(0, self.problem.limit[rank], "room")
        cp.add(room == self.problem.limit[rank] - sum(always))
        cp.add_cumulative(runs, amounts, room)

    def _holdings(self, rank: int) -> list[tuple[Any, Any, int]]:
        """Return from when to when a rank holds how much of one microbatch."""
        found: list[tuple[Any, Any, int]] = []
        for stage in self.problem.stages_of[rank]:
            forward, gradient, weight = (Op(part, stage, 0) for part in COMPUTED)
            done = self._end(gradient)
            found.append((self.start[forward], done, self.problem.activation[stage]))
            found.append((done, self._end(weight), self.problem.weight_activation[stage]))
        return [one for one in found if one[2]]

    def _objective(self) -> None:
        """Shorten the time from first to last computation, and then that between forwards and input gradients."""
        problem, cp = self.problem, self.cp
        length = cp.new_int_var(0, (self.laps + 1) * self.period, "length")
        for op in self.start:
            cp.add(length >= self._end(op))
        stages = range(problem.stages)
        trips = sum(self.start[Op(Part.I, stage, 0)] - self.start[Op(Part.F, stage, 0)] for stage in stages)
        cp.minimize(problem.stages * length + trips)
