"""Constraint models of parts of a schedule: a window of time, or one period of a steady state.

In a window, the solver orders the operations. Operations before the window keep their times. Operations after it
start earlier, by one shift per rank that the solver maximises. An activation with forward and input gradient
inside the window may change between staying, offload and recomputation. Other copies are kept, and move with their
computation if it is inside. Memory after the window may differ from the model if copies overlap the window's end,
so callers must play the rows of a window.

In a steady state, each microbatch repeats the computations of the previous microbatch one period later. A period
and one start time per kind and stage therefore define an infinite schedule. Computations of a rank do not overlap
modulo the period. Memory used for several periods counts once per whole period, and once more for the remainder.
The number of whole periods between two computations is the number of microbatches between them. This is modulo
scheduling, known from compilers for loops: Rau, Iterative Modulo Scheduling, MICRO 27, 1994. The search for a
period has no copies and no recomputation. If a problem allows them, the search uses a larger memory limit, and
callers add copies and recomputation to the rows.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from ortools.sat.python import cp_model

from pptrace_optpipe.model import (
    WorkClock,
    backward_end,
    backward_intervals,
    hold,
    interval,
    join_starts,
    neither,
    run_solver,
)
from pptrace_optpipe.playback import rows_of
from pptrace_optpipe.problem import (
    AWAIT_OF,
    COMPUTED,
    NO_LIMIT,
    ON_RANK,
    Op,
    OpKind,
    coarsened,
    joined_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.playback import Played
    from pptrace_optpipe.problem import Problem, Rows


MOST_OPS = 160
"""The most computations in a window."""
_WORK = 1.5
"""Deterministic time of the solver per window or period."""


def improved(
    problem: Problem, rows: Rows, played: Played, span: tuple[int, int], effort: Effort, work: float = 1
) -> Rows | None:
    """Return rows with a new order of the operations that start in a span of time; None without a solution.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        rows: the rows.
        played: their simulation.
        span: start and end of the window.
        effort: time and seed of the solver.
        work: the most work of the solver, relative to the default.
    """
    window = _Window(problem, rows, played, span)
    if not window.free:
        return None
    window.build()
    status, solver = run_solver(window.cp, effort, max_deterministic_time=_WORK * work)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    start = {
        op: int(solver.value(window.begin(op)))
        for op in window.ops if (chosen := window.choice(op)) is None or solver.value(chosen)
    }  # fmt: skip
    joined = {key for key, chosen in window.joined.items() if solver.value(chosen)}
    return rows_of(problem, join_starts(start, window.kept_joined | joined))


class _Window:
    """The model of one window."""

    def __init__(self, problem: Problem, rows: Rows, played: Played, span: tuple[int, int]) -> None:
        self.problem, self.played, self.cp = problem, _split(played), cp_model.CpModel()
        self.low, self.high = span
        self.horizon = played.step + max(played.end.values(), default=0)
        self.first = [0] * problem.ranks
        self.free: set[Op] = set()
        self.post: set[Op] = set()
        self.ops: list[Op] = []
        self.kept_joined: set[tuple[int, int]] = set()
        """Stage and microbatch of joined backwards, without those that the solver may split."""
        for op in (op for row in rows for op in row if op.kind not in AWAIT_OF.values()):
            if op.kind is OpKind.B:
                self.kept_joined.add(op[1:])
            self.ops += [op._replace(kind=kind) for kind in (OpKind.I, OpKind.W)] if op.kind is OpKind.B else [op]
        for op in self.ops:
            if op.kind in ON_RANK:
                self._classify(op)
        self.joined: dict[tuple[int, int], Any] = {}
        """By stage and microbatch of backwards inside the window, a literal that is true if they are joined."""
        self.joined_end: dict[Op, Any] = {}
        """The ends of ``I`` and ``W`` of these backwards."""
        self.choices: dict[Op, Any] = {}
        """By offload or recomputation that the solver may choose, a literal that is true if it is chosen."""
        self.shift = [self.cp.new_int_var(0, played.step, f"shift{rank}") for rank in range(problem.ranks)]
        self.variable: dict[Op, Any] = {}

    def _classify(self, op: Op) -> None:
        """Record whether an operation is before, inside or after the window."""
        is_joined = op.kind is OpKind.W and op[1:] in self.kept_joined
        begin = self.played.start[op._replace(kind=OpKind.I) if is_joined else op]
        rank = self.problem.stage_rank[op.stage]
        if begin < self.low:
            self.first[rank] = max(self.first[rank], self.played.end[op])
        else:
            (self.free if begin < self.high else self.post).add(op)

    def choice(self, op: Op) -> Any:
        """Return the literal of an optional operation; None if the operation is not optional."""
        return self.choices.get(op._replace(kind=OpKind.O) if op.kind is OpKind.R else op)

    def begin(self, op: Op) -> Any:
        """Return the start of an operation: a constant, a variable, or a constant minus its rank's shift."""
        if op in self.variable:
            return self.variable[op]
        start = self.played.start[op]
        moves = op._replace(kind=_ANCHOR.get(op.kind, op.kind)) in self.post
        return start - self.shift[self.problem.stage_rank[op.stage]] if moves else start

    def end(self, op: Op) -> Any:
        """Return the end of an operation: a constant, or an expression of variables."""
        if op[1:] in self.kept_joined and op.kind in (OpKind.I, OpKind.W):
            is_weight = op.kind is OpKind.W
            return self.begin(op) + (0 if is_weight else self.problem.duration(op._replace(kind=OpKind.B)))
        return self.joined_end.get(op, self.begin(op) + self.problem.duration(op))

    def build(self) -> None:
        """Add all variables and constraints."""
        self._variables()
        for rank in range(self.problem.ranks):
            self._streams(rank)
            if self.problem.limit[rank] != NO_LIMIT:
                self._memory(rank)
        for ranks, kind in self.problem.channels:
            self.cp.add_no_overlap([
                self._interval(op) for op in self.ops
                if op.kind is kind and self.problem.stage_rank[op.stage] in ranks
                and (op in self.variable or self._is_near(op))
            ])  # fmt: skip
        self._dataflow()
        self._objective()

    def _variables(self) -> None:
        copied = {op for op in self.ops if op.kind is OpKind.O}
        recomputed = {op for op in self.ops if op.kind is OpKind.C}
        inside = [op for op in sorted(self.free) if self._is_inside(op)]
        for recomputation in [op._replace(kind=OpKind.C) for op in inside] if self.problem.recomputes else ():
            self._choose(recomputation, is_there=recomputation in recomputed)
            if recomputation not in recomputed:
                self.ops.append(recomputation)
                self._variable(recomputation, 0, self.played.start[recomputation._replace(kind=OpKind.I)])
        for op in sorted(self.free):
            self._variable(op, self.first[self.problem.stage_rank[op.stage]], self.played.start[op])
            self._copy_variables(op, copied)
        for op in sorted(self.free):
            if (
                op.kind is OpKind.I
                and op.stage in self.problem.joinable
                and op._replace(kind=OpKind.W) in self.free
            ):
                self._join_variable(op)
        for offload in [op for op in self.choices if op.kind is OpKind.O]:
            self._copy_variable(offload._replace(kind=OpKind.R))

    def _join_variable(self, gradient: Op) -> None:
        """Add the choice between a joined backward and its two parts."""
        joined = self.joined[gradient[1:]] = self.cp.new_bool_var("joined")
        self.cp.add_hint(joined, int(gradient[1:] in self.kept_joined))
        self.kept_joined.discard(gradient[1:])
        weight = gradient._replace(kind=OpKind.W)
        for op in (gradient, weight):
            self.joined_end[op] = backward_end(self.cp, self.problem, op, self.variable[op], joined)
        self.cp.add(self.variable[weight] == self.end(gradient)).only_enforce_if(joined)

    def _copy_variables(self, op: Op, copied: set[Op]) -> None:
        """Add the variables of the copies that move with a computation."""
        offload, reload = op._replace(kind=OpKind.O), op._replace(kind=OpKind.R)
        if self.problem.copies and self._is_inside(op):
            self._choose(offload, is_there=offload in copied)
            self.ops += [offload, reload] if offload not in copied else []
        if op.kind in (OpKind.F, OpKind.I) and (offload in copied or offload in self.choices):
            self._copy_variable(offload if op.kind is OpKind.F else reload)

    def _copy_variable(self, copy: Op) -> None:
        if copy not in self.variable:
            self._variable(copy, 0, self.played.start.get(copy, 0))

    def _is_inside(self, op: Op) -> bool:
        """Return whether an operation is a forward of a limited rank with its input gradient inside the window."""
        is_limited = self.problem.limit[self.problem.stage_rank[op.stage]] != NO_LIMIT
        return op.kind is OpKind.F and op._replace(kind=OpKind.I) in self.free and is_limited

    def _choose(self, op: Op, *, is_there: bool) -> None:
        self.choices[op] = self.cp.new_bool_var(op.kind.name)
        self.cp.add_hint(self.choices[op], int(is_there))

    def _variable(self, op: Op, low: int, hint: int) -> None:
        self.variable[op] = self.cp.new_int_var(low, self.horizon, "start")
        self.cp.add_hint(self.variable[op], int(hint))

    def _streams(self, rank: int) -> None:
        """Add the constraints that operations of one stream do not overlap and stay in their window."""
        problem, cp = self.problem, self.cp
        rank_ops = [op for op in self.ops if problem.stage_rank[op.stage] == rank]
        inside = [op for op in rank_ops if op in self.free]
        optional = [op for op in rank_ops if op not in self.free and self.choice(op) is not None]
        recomputations = [op for op in optional if op.kind is OpKind.C]
        intervals = [item for op in inside + recomputations for item in self._intervals(op)]
        after = [op for op in rank_ops if op in self.post]
        if after:
            first_after = min(after, key=self.played.start.__getitem__)
            for op in inside:
                if self.choice(op) is None:
                    cp.add(self.end(op) <= self.begin(first_after))
        for kind in (OpKind.F, OpKind.I, OpKind.W):
            for stage in problem.stages_of[rank]:
                if kind is OpKind.W and stage in problem.joinable:
                    continue
                microbatches = sorted(op.microbatch for op in inside if op.kind is kind and op.stage == stage)
                for microbatch, next_microbatch in pairwise(microbatches):
                    op, next_op = Op(kind, stage, microbatch), Op(kind, stage, next_microbatch)
                    cp.add(self.end(op) <= self.variable[next_op])
        cp.add_no_overlap(intervals)

    def _is_near(self, op: Op) -> bool:
        return self.played.end[op] > self.low and self.played.start[op] < self.high

    def _intervals(self, op: Op) -> list[Any]:
        """Return the intervals of an operation; only one of them is present."""
        if op[1:] in self.kept_joined and op.kind in (OpKind.I, OpKind.W):
            is_weight = op.kind is OpKind.W
            duration = 0 if is_weight else self.problem.duration(op._replace(kind=OpKind.B))
            return [interval(self.cp, self.begin(op), duration)]
        if self.choice(op) is not None:
            return [self._interval(op)]
        return backward_intervals(self.cp, self.problem, op, self.begin(op), self.joined.get(op[1:]))

    def _interval(self, op: Op) -> Any:
        return interval(self.cp, self.begin(op), self.problem.duration(op), self.choice(op))

    def _memory(self, rank: int) -> None:
        """Add the constraint of a rank's memory limit from the window's start on the rank."""
        first = self.first[rank]
        holdings = [held for held in self._holdings(rank) if not (isinstance(held[1], int) and held[1] <= first)]
        hold(self.cp, holdings, self.problem.limit[rank], 2 * self.horizon)

    def _holdings(self, rank: int) -> Iterator[tuple[Any, Any, int, Any]]:
        """Yield start, end, size and choice of each use of a rank's memory."""
        problem, ops = self.problem, set(self.ops)
        for weight in sorted(op for op in ops if problem.stage_rank[op.stage] == rank and op.kind is OpKind.W):
            forward, gradient, offload, reload, recomputation = (
                weight._replace(kind=kind) for kind in (OpKind.F, OpKind.I, OpKind.O, OpKind.R, OpKind.C)
            )
            has_ended = weight not in self.free | self.post and self.played.end[weight] <= self.first[rank]
            if forward in self.post or has_ended:
                continue
            size = problem.activation[weight.stage]
            copied, recomputed = self.choice(offload), self.choice(recomputation)
            begin, gradient_end = self.begin(forward), self.end(gradient)
            if (copied is not None or offload not in ops) and (recomputed is not None or recomputation not in ops):
                yield begin, gradient_end, size, neither(self.cp, copied, recomputed)
            if recomputation in ops:
                yield begin, self.begin(recomputation), problem.checkpoint[weight.stage], recomputed
                yield self.begin(recomputation), gradient_end, size, recomputed
            if offload in ops:
                yield begin, self.begin(offload) + problem.duration(offload), size, copied
                yield self.begin(reload), gradient_end, size, copied
            yield gradient_end, self.end(weight), problem.weight_activation[weight.stage], None

    def _dataflow(self) -> None:
        """Add the constraints of data dependencies with at least one variable operation."""
        problem, cp = self.problem, self.cp
        slack: dict[tuple[int, int], int] = {}
        for op in [op for op in self.ops if op in self.played.start or op in self.variable]:
            for input_op, lag in self._needs(op):
                chosen = self.choice(op) if self.choice(input_op) is None else self.choice(input_op)
                if input_op in self.variable or op in self.variable:
                    constraint = cp.add(self.begin(op) >= self.end(input_op) + lag)
                    if chosen is not None:
                        constraint.only_enforce_if(chosen)
                    continue
                input_rank, op_rank = problem.stage_rank[input_op.stage], problem.stage_rank[op.stage]
                slack_time = self.played.start[op] - self.played.end[input_op] - lag
                if op in self.post:
                    if input_op in self.post:
                        slack[input_rank, op_rank] = min(slack.get((input_rank, op_rank), slack_time), slack_time)
                    else:
                        slack[-1, op_rank] = min(slack.get((-1, op_rank), slack_time), slack_time)
        for (input_rank, op_rank), slack_time in slack.items():
            if input_rank != op_rank:
                cp.add(self.shift[op_rank] <= (0 if input_rank < 0 else self.shift[input_rank]) + slack_time)

    def _needs(self, op: Op) -> list[tuple[Op, int]]:
        """Return the inputs of an operation, with the transfer time of each."""
        needs = [
            (Op(kind, stage, op.microbatch), lag) for kind, stage, lag in self.problem.needs[op.kind, op.stage]
        ]
        if op.kind is OpKind.I:
            copies = (op._replace(kind=OpKind.R), op._replace(kind=OpKind.C))
            needs += [(copy, 0) for copy in copies if copy in self.variable or copy in self.played.start]
        return needs

    def _objective(self) -> None:
        """Minimise the step, then the sum of the ranks' end times."""
        problem, cp = self.problem, self.cp
        ends = [cp.new_int_var(0, self.horizon, f"end{rank}") for rank in range(problem.ranks)]
        for op in self.ops:
            if op in self.free or op in self.post:
                rank = problem.stage_rank[op.stage]
                cp.add(ends[rank] >= self.end(op) + problem.tail[rank])
        for rank, end in enumerate(ends):
            cp.add(end >= self.first[rank] + problem.tail[rank])
        length = cp.new_int_var(0, self.horizon, "length")
        cp.add_max_equality(length, ends)
        cp.minimize(length * 2 * problem.ranks + sum(ends))


def _split(played: Played) -> Played:
    """Return times with each joined backward as ``I`` of its whole time, and ``W`` of no time."""
    start, end = dict(played.start), dict(played.end)
    for op in [op for op in start if op.kind is OpKind.B]:
        gradient, weight = (op._replace(kind=kind) for kind in (OpKind.I, OpKind.W))
        start[gradient], end[gradient] = start.pop(op), end.pop(op)
        start[weight] = end[weight] = end[gradient]
    return replace(played, start=start, end=end)


_ANCHOR = {OpKind.O: OpKind.F, OpKind.R: OpKind.I}
"""By copy, the computation that it moves with."""


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
    factors = _MEMORY_FACTORS if problem.copies or problem.recomputes else _MEMORY_FACTORS[:1]
    for factor, is_joined in product(factors, (False, True) if problem.joinable else (False,)):
        limits = tuple(NO_LIMIT if limit == NO_LIMIT else int(limit * factor) for limit in problem.limit)
        limited = replace(computations, limit=limits)
        coarse = _in_units(limited.joined if is_joined else limited)
        pattern = shortest_pattern(coarse, effort)
        if pattern is not None:
            rows = rows_of(coarse, pattern.starts(problem.microbatches))
            yield joined_rows(problem, rows) if is_joined else rows


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


_TRIPS = 3
"""The most time of a microbatch in the pipeline, in round trips."""


class Pattern(Struct, frozen=True, kw_only=True):
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
        ops = [Op(kind, stage, 0) for kind, stage in product(COMPUTED, range(problem.stages))]
        last = self.laps * period - 1
        self.start = {op: self.cp.new_int_var(0, last, f"{op.kind.name}{op.stage}") for op in ops}
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
        self.cp.add(start[Op(OpKind.F, 0, 0)] == 0)
        for stage in range(problem.stages):
            for kind, op_stage in ((OpKind.W, stage), (OpKind.F, stage + 1), (OpKind.I, stage)):
                if op_stage < problem.stages:
                    input_kind, input_stage, lag = problem.needs[kind, op_stage][-1]
                    self.cp.add(start[Op(kind, op_stage, 0)] >= self._end(Op(input_kind, input_stage, 0)) + lag)

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
        for kind, stage in product(COMPUTED, self.problem.stages_of[rank]):
            op = Op(kind, stage, 0)
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
            forward, gradient, weight = (Op(kind, stage, 0) for kind in COMPUTED)
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
        trips = sum(self.start[Op(OpKind.I, stage, 0)] - self.start[Op(OpKind.F, stage, 0)] for stage in stages)
        cp.minimize(problem.stages * length + trips)
