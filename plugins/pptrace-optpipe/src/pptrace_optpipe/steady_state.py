"""Periodic schedules.

The search for a period has no copies and no recomputation. If a problem allows them, the search uses a larger
memory limit, and callers add copies and recomputation to the rows.

In a steady state, each microbatch repeats the computations of the previous microbatch one period later. A period
and one start time per part and stage therefore define an infinite schedule. Computations of a rank do not overlap
modulo the period. Memory used for several periods counts once per whole period, and once more for the remainder.
The number of whole periods between two computations is the number of microbatches between them. This is modulo
scheduling, known from compilers for loops: Rau, Iterative Modulo Scheduling, MICRO 27, 1994.
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
"""About the least, and the most, units of time in a period."""
_LONGEST = 4
"""The longest period, relative to the lower bound of the period."""
_MEMORY_FACTORS = (Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3), Fraction(5, 4), Fraction(4))
"""Memory limits of the search relative to the true limit, if copies or recomputation are possible."""


def steady_rows(problem: Problem, effort: Effort) -> Iterator[Rows]:
    """Yield periodic rows; if copies or recomputation are possible, also rows that exceed memory.

    Args:
        problem: what to schedule.
        effort: limit for each period.
    """
    computations = replace(problem, offload=(), reload=(), recompute=(), checkpoint=(), tail=(), shared=())
    for factor in _MEMORY_FACTORS if problem.copies or problem.recomputes else _MEMORY_FACTORS[:1]:
        limits = tuple(NO_LIMIT if limit == NO_LIMIT else int(limit * factor) for limit in problem.limit)
        coarse = _in_units(replace(computations, limit=limits))
        pattern = shortest_pattern(coarse, effort)
        if pattern is not None:
            yield rows_of(coarse, pattern.starts(problem.microbatches))


def shortest_pattern(problem: Problem, effort: Effort) -> Pattern | None:
    """Return the steady state with the shortest period, by bisection; None without a solution.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        effort: limit for each period.
    """
    low = least_period(problem)
    best = pattern_of(problem, low, effort, first=True)
    increment = 1
    while best is None and increment < (_LONGEST - 1) * low and not effort.stopped():
        best = pattern_of(problem, low + increment, effort, first=True)
        increment *= 2
    if best is None:
        return None
    failed = best.period - increment // 4 if increment > 1 else best.period - 1
    while best.period - failed > 1 and not effort.stopped():
        middle = (failed + best.period) // 2
        pattern = pattern_of(problem, middle, effort, first=True)
        if pattern is None:
            failed = middle
        else:
            best = pattern
    return pattern_of(problem, best.period, effort) or best


def _in_units(problem: Problem) -> Problem:
    """Return a problem in units such that the longest work of a microbatch has between 6 and 48 units."""
    coarse, _ = coarsened(problem, _COARSE * problem.microbatches)
    work = max(coarse.work(rank) for rank in range(coarse.ranks)) // coarse.microbatches
    factor = -(-_FINE // max(work, 1))
    if factor == 1:
        return coarse

    def scaled(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(factor * value for value in values)

    return replace(
        coarse, f=scaled(coarse.f), i=scaled(coarse.i), w=scaled(coarse.w), b=scaled(coarse.b),
        forward_transfer=scaled(coarse.forward_transfer), backward_transfer=scaled(coarse.backward_transfer),
    )  # fmt: skip


_WORK = 1.5
"""Deterministic time of the solver per period."""
_TRIPS = 3
"""The most time of a microbatch in the pipeline, in round trips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A steady state: a period and the start times of one microbatch."""

    period: int
    """Time between the same computation of two consecutive microbatches."""
    start: Mapping[Op, int]
    """Start time of each computation of the first microbatch."""

    def starts(self, microbatches: int) -> dict[Op, int]:
        """Return the start times of all computations of some microbatches."""
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
            size_times_time = sum(
                problem.round_trip(stage) * problem.activation[stage]
                + problem.w[stage] * problem.weight_activation[stage]
                for stage in stages
            )
            least = max(least, -(-size_times_time // limit))
    return least


def pattern_of(problem: Problem, period: int, effort: Effort, *, first: bool = False) -> Pattern | None:
    """Return a steady state with a given period and without copies; None if the solver finds none in time.

    The solver minimises the time of a microbatch in the pipeline.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        period: the period, in the problem's units.
        effort: limit of the solver.
        first: whether to return the first solution instead of the best.
    """
    model = _Period(problem, period)
    work = min(_WORK, max(effort.seconds, 0.01)) if isinstance(effort.clock, WorkClock) else _WORK
    status, solver = run_solver(model.cp, effort, max_deterministic_time=work, stop_after_first_solution=first)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return Pattern(period=period, start={op: int(solver.value(begin)) for op, begin in model.start.items()})


class _Period:
    """The constraint model of a given period."""

    def __init__(self, problem: Problem, period: int) -> None:
        self.problem, self.period = problem, period
        self.cp = cp_model.CpModel()
        self.places: dict[Op, Any] = {}
        """Start times modulo the period."""
        self.laps = 2 + _TRIPS * problem.round_trip(0) // period
        ops = [Op(part, stage, 0) for part, stage in product(COMPUTED, range(problem.stages))]
        last = self.laps * period - 1
        self.start = {op: self.cp.new_int_var(0, last, f"{op.part.name}{op.stage}") for op in ops}
        """Start times, relative to the first forward."""
        self._dataflow()
        for rank, limit in enumerate(problem.limit):
            self._no_overlap(rank)
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
            for part, op_stage in ((Part.W, stage), (Part.F, stage + 1), (Part.I, stage)):
                if op_stage < problem.stages:
                    input_part, input_stage, lag = problem.needs[part, op_stage][-1]
                    self.cp.add(start[Op(part, op_stage, 0)] >= self._end(Op(input_part, input_stage, 0)) + lag)

    def _place(self, moment: Any) -> Any:
        """Return a time modulo the period."""
        lap = self.cp.new_int_var(0, self.laps + 1, "lap")
        place = self.cp.new_int_var(0, self.period - 1, "place")
        self.cp.add(moment == lap * self.period + place)
        return place

    def _no_overlap(self, rank: int) -> None:
        """Add the constraint that a rank's computations do not overlap, also across the end of the period.

        Each computation has an interval in two consecutive periods.
        """
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
        """Add the constraint of a rank's memory limit at each time and, redundantly but faster to use, on average.

        Each use of memory has an interval in two consecutive periods, of which the second has all remainders.
        """
        cp, period = self.cp, self.period
        runs, amounts, constant_amounts = [], [], []
        holdings = self._holdings(rank)
        cp.add(sum((end - begin) * amount for begin, end, amount in holdings) <= self.problem.limit[rank] * period)
        for begin, end, amount in holdings:
            whole_periods, remainder = (
                cp.new_int_var(0, self.laps + 1, "whole"),
                cp.new_int_var(0, period - 1, "rest"),
            )
            cp.add(end - begin == whole_periods * period + remainder)
            constant_amounts.append(whole_periods * amount)
            place = self._place(begin)
            for start in (place, place + period):
                remainder_end = cp.new_int_var(0, 3 * period, "until")
                runs.append(cp.new_interval_var(start, remainder, remainder_end, "held"))
                amounts.append(amount)
        free = cp.new_int_var(0, self.problem.limit[rank], "room")
        cp.add(free == self.problem.limit[rank] - sum(constant_amounts))
        cp.add_cumulative(runs, amounts, free)

    def _holdings(self, rank: int) -> list[tuple[Any, Any, int]]:
        """Return start, end and size of each use of a rank's memory by one microbatch."""
        holdings: list[tuple[Any, Any, int]] = []
        for stage in self.problem.stages_of[rank]:
            forward, gradient, weight = (Op(part, stage, 0) for part in COMPUTED)
            gradient_end = self._end(gradient)
            holdings.append((self.start[forward], gradient_end, self.problem.activation[stage]))
            holdings.append((gradient_end, self._end(weight), self.problem.weight_activation[stage]))
        return [holding for holding in holdings if holding[2]]

    def _objective(self) -> None:
        """Minimise the time from first to last computation, then the time from forwards to input gradients."""
        problem, cp = self.problem, self.cp
        length = cp.new_int_var(0, (self.laps + 1) * self.period, "length")
        for op in self.start:
            cp.add(length >= self._end(op))
        stages = range(problem.stages)
        trips = sum(self.start[Op(Part.I, stage, 0)] - self.start[Op(Part.F, stage, 0)] for stage in stages)
        cp.minimize(problem.stages * length + trips)
