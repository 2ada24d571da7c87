"""Improvement of rows in windows of time: the solver orders the operations inside a window.

What ran before the window keeps its times. What runs behind it may start earlier, every rank's as one block; by
how much is what the solver maximises. Activations whose forward and input gradient are both inside may be
offloaded or kept anew; other copies stay, and move with the end of them that is inside. Memory behind the window
may differ from the model's where copies run over its end, so whoever takes a window's rows plays them first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from pptrace_optpipe.model import hold, interval, neither, run_solver
from pptrace_optpipe.playback import rows_of
from pptrace_optpipe.problem import AWAIT_OF, NO_LIMIT, ON_RANK, Op, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.playback import Played
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["MOST_OPS", "improved"]

MOST_OPS = 160
"""Computations that a window holds at most."""
_WORK = 1.5
"""Units of the solver's own deterministic time that a window gets."""


def improved(problem: Problem, rows: Rows, played: Played, span: tuple[int, int], effort: Effort) -> Rows | None:
    """Return rows whose ops that start in a span of time may stand otherwise; None where the solver finds none."""
    window = _Window(problem, rows, played, span)
    if not window.free:
        return None
    window.build()
    status, solver = run_solver(window.cp, effort, max_deterministic_time=_WORK)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return rows_of(problem, {
        op: int(solver.value(window.begin(op)))
        for op in window.ops if (chosen := window.choice(op)) is None or solver.value(chosen)
    })  # fmt: skip


class _Window:
    """The model of one window."""

    def __init__(self, problem: Problem, rows: Rows, played: Played, span: tuple[int, int]) -> None:
        self.problem, self.played, self.cp = problem, played, cp_model.CpModel()
        self.low, self.high = span
        self.horizon = played.step + max(played.end.values(), default=0)
        self.first = [0] * problem.ranks
        self.free: set[Op] = set()
        self.post: set[Op] = set()
        self.ops = [op for row in rows for op in row if op.part not in AWAIT_OF.values()]
        for op in self.ops:
            if op.part in ON_RANK:
                self._sort_in(op)
        self.choices: dict[Op, Any] = {}
        """By offload or recomputation, whether it is there, where that may change."""
        self.shift = [self.cp.new_int_var(0, played.step, f"shift{rank}") for rank in range(problem.ranks)]
        self.variable: dict[Op, Any] = {}

    def _sort_in(self, op: Op) -> None:
        """Note whether an op is before, in or behind the window."""
        begin, rank = self.played.start[op], self.problem.stage_rank[op.stage]
        if begin < self.low:
            self.first[rank] = max(self.first[rank], self.played.end[op])
        else:
            (self.free if begin < self.high else self.post).add(op)

    def choice(self, op: Op) -> Any:
        """Return what says whether an op is there; None for those that are."""
        return self.choices.get(op._replace(part=Part.O) if op.part is Part.R else op)

    def begin(self, op: Op) -> Any:
        """Return when an op starts: a number, a variable, or a number less its rank's shift."""
        if op in self.variable:
            return self.variable[op]
        start = self.played.start[op]
        moves = op._replace(part=_ANCHOR.get(op.part, op.part)) in self.post
        return start - self.shift[self.problem.stage_rank[op.stage]] if moves else start

    def build(self) -> None:
        """Make all variables and constraints."""
        self._variables()
        for rank in range(self.problem.ranks):
            self._streams(rank)
            if self.problem.limit[rank] != NO_LIMIT:
                self._memory(rank)
        for ranks, parts in self.problem.channels:
            self.cp.add_no_overlap([
                self._interval(op) for op in self.ops
                if op.part in parts and self.problem.stage_rank[op.stage] in ranks
                and (op in self.variable or self._is_near(op))
            ])  # fmt: skip
        self._dataflow()
        self._objective()

    def _variables(self) -> None:
        copied = {op for op in self.ops if op.part is Part.O}
        again = {op for op in self.ops if op.part is Part.C}
        inside = [op for op in sorted(self.free) if self._is_inside(op)]
        for later in [op._replace(part=Part.C) for op in inside] if self.problem.recomputes else ():
            self._choose(later, is_there=later in again)
            if later not in again:
                self.ops.append(later)
                self._variable(later, 0, self.played.start[later._replace(part=Part.I)])
        for op in sorted(self.free):
            self._variable(op, self.first[self.problem.stage_rank[op.stage]], self.played.start[op])
            self._copy_variables(op, copied)
        for out in [op for op in self.choices if op.part is Part.O]:
            self._copy_variable(out._replace(part=Part.R))

    def _copy_variables(self, op: Op, copied: set[Op]) -> None:
        """Make the variables of the copy that moves with a computation."""
        out, back = op._replace(part=Part.O), op._replace(part=Part.R)
        if self.problem.copies and self._is_inside(op):
            self._choose(out, is_there=out in copied)
            self.ops += [out, back] if out not in copied else []
        if op.part in (Part.F, Part.I) and (out in copied or out in self.choices):
            self._copy_variable(out if op.part is Part.F else back)

    def _copy_variable(self, copy: Op) -> None:
        if copy not in self.variable:
            self._variable(copy, 0, self.played.start.get(copy, 0))

    def _is_inside(self, op: Op) -> bool:
        """Return whether an op is a forward of a limited rank, and its input gradient is inside the window too."""
        is_limited = self.problem.limit[self.problem.stage_rank[op.stage]] != NO_LIMIT
        return op.part is Part.F and op._replace(part=Part.I) in self.free and is_limited

    def _choose(self, op: Op, *, is_there: bool) -> None:
        self.choices[op] = self.cp.new_bool_var(op.part.name)
        self.cp.add_hint(self.choices[op], int(is_there))

    def _variable(self, op: Op, low: int, hint: int) -> None:
        self.variable[op] = self.cp.new_int_var(low, self.horizon, "start")
        self.cp.add_hint(self.variable[op], int(hint))

    def _streams(self, rank: int) -> None:
        """Add the constraints that operations of one stream do not overlap and stay in their window."""
        problem, cp = self.problem, self.cp
        own = [op for op in self.ops if problem.stage_rank[op.stage] == rank]
        inside = [op for op in own if op in self.free]
        again = [op for op in own if op.part is Part.C and op not in self.free and self.choice(op) is not None]
        intervals = [self._interval(op) for op in inside + again]
        behind = [op for op in own if op in self.post]
        if behind:
            then = min(behind, key=self.played.start.__getitem__)
            for op in inside:
                if self.choice(op) is None:
                    cp.add(self.variable[op] + problem.duration(op) <= self.begin(then))
        for part in (Part.F, Part.I, Part.W):
            for stage in problem.stages_of[rank]:
                line = sorted(op.microbatch for op in inside if op.part is part and op.stage == stage)
                for one, other in pairwise(line):
                    ahead, after = Op(part, stage, one), Op(part, stage, other)
                    cp.add(self.variable[ahead] + problem.duration(ahead) <= self.variable[after])
        cp.add_no_overlap(intervals)

    def _is_near(self, op: Op) -> bool:
        return self.played.end[op] > self.low and self.played.start[op] < self.high

    def _interval(self, op: Op) -> Any:
        return interval(self.cp, self.begin(op), self.problem.duration(op), self.choice(op))

    def _memory(self, rank: int) -> None:
        """Keep a rank within its limit from the window's first moment there to its last."""
        first = self.first[rank]
        holdings = [held for held in self._holdings(rank) if not (isinstance(held[1], int) and held[1] <= first)]
        hold(self.cp, holdings, self.problem.limit[rank], 2 * self.horizon)

    def _holdings(self, rank: int) -> Iterator[tuple[Any, Any, int, Any]]:
        """Yield from when to when a rank holds how much, and on what choice that depends."""
        problem, ops = self.problem, set(self.ops)
        for weight in sorted(op for op in ops if problem.stage_rank[op.stage] == rank and op.part is Part.W):
            forward, gradient, out, back, later = (
                weight._replace(part=part) for part in (Part.F, Part.I, Part.O, Part.R, Part.C)
            )
            is_over = weight not in self.free | self.post and self.played.end[weight] <= self.first[rank]
            if forward in self.post or is_over:
                continue
            whole = problem.activation[weight.stage]
            copied, again = self.choice(out), self.choice(later)
            begin, done = self.begin(forward), self.begin(gradient) + problem.duration(gradient)
            if (copied is not None or out not in ops) and (again is not None or later not in ops):
                yield begin, done, whole, neither(self.cp, copied, again)
            if later in ops:
                yield begin, self.begin(later), problem.checkpoint[weight.stage], again
                yield self.begin(later), done, whole, again
            if out in ops:
                yield begin, self.begin(out) + problem.duration(out), whole, copied
                yield self.begin(back), done, whole, copied
            end = self.begin(weight) + problem.duration(weight)
            yield done, end, problem.weight_activation[weight.stage], None

    def _dataflow(self) -> None:
        """Add the constraints of data dependencies with at least one variable operation."""
        problem, cp = self.problem, self.cp
        slack: dict[tuple[int, int], int] = {}
        for op in [one for one in self.ops if one in self.played.start or one in self.variable]:
            for before, lag in self._needs(op):
                chosen = self.choice(op) if self.choice(before) is None else self.choice(before)
                if before in self.variable or op in self.variable:
                    held = cp.add(self.begin(op) >= self.begin(before) + problem.duration(before) + lag)
                    if chosen is not None:
                        held.only_enforce_if(chosen)
                    continue
                one, other = (problem.stage_rank[each.stage] for each in (before, op))
                room = self.played.start[op] - self.played.end[before] - lag
                if op in self.post:
                    if before in self.post:
                        slack[one, other] = min(slack.get((one, other), room), room)
                    else:
                        slack[-1, other] = min(slack.get((-1, other), room), room)
        for (one, other), room in slack.items():
            if one != other:
                cp.add(self.shift[other] <= (0 if one < 0 else self.shift[one]) + room)

    def _needs(self, op: Op) -> list[tuple[Op, int]]:
        """Return what an op waits for, and how long that is under way."""
        needs = [
            (Op(part, stage, op.microbatch), lag) for part, stage, lag in self.problem.needs[op.part, op.stage]
        ]
        if op.part is Part.I:
            copies = (op._replace(part=Part.R), op._replace(part=Part.C))
            needs += [(copy, 0) for copy in copies if copy in self.variable or copy in self.played.start]
        return needs

    def _objective(self) -> None:
        """Shorten the step, and then every rank's own time."""
        problem, cp = self.problem, self.cp
        ends = [cp.new_int_var(0, self.horizon, f"end{rank}") for rank in range(problem.ranks)]
        for op in self.ops:
            if op in self.free or op in self.post:
                rank = problem.stage_rank[op.stage]
                cp.add(ends[rank] >= self.begin(op) + problem.duration(op) + problem.tail[rank])
        for rank, end in enumerate(ends):
            cp.add(end >= self.first[rank] + problem.tail[rank])
        length = cp.new_int_var(0, self.horizon, "length")
        cp.add_max_equality(length, ends)
        cp.minimize(length * 2 * problem.ranks + sum(ends))


_ANCHOR = {Part.O: Part.F, Part.R: Part.I}
"""The computation with which a copy moves."""
