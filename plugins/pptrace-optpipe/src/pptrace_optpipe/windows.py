"""Improvement of rows in windows of time: the solver orders the operations inside a window.

Operations before the window keep their times. Operations after it start earlier, by one shift per rank that the
solver maximises. An activation with forward and input gradient inside the window may change between staying,
offload and recomputation. Other copies are kept, and move with their computation if it is inside. Memory after the
window may differ from the model if copies overlap the window's end, so callers must play the rows of a window.
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
"""Deterministic time of the solver per window."""


def improved(problem: Problem, rows: Rows, played: Played, span: tuple[int, int], effort: Effort) -> Rows | None:
    """Return rows with a new order of the operations that start in a span of time; None without a solution."""
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
                self._classify(op)
        self.choices: dict[Op, Any] = {}
        """By offload or recomputation that the solver may choose, a literal that is true if it is chosen."""
        self.shift = [self.cp.new_int_var(0, played.step, f"shift{rank}") for rank in range(problem.ranks)]
        self.variable: dict[Op, Any] = {}

    def _classify(self, op: Op) -> None:
        """Record whether an operation is before, inside or after the window."""
        begin, rank = self.played.start[op], self.problem.stage_rank[op.stage]
        if begin < self.low:
            self.first[rank] = max(self.first[rank], self.played.end[op])
        else:
            (self.free if begin < self.high else self.post).add(op)

    def choice(self, op: Op) -> Any:
        """Return the literal of an optional operation; None if the operation is not optional."""
        return self.choices.get(op._replace(part=Part.O) if op.part is Part.R else op)

    def begin(self, op: Op) -> Any:
        """Return the start of an operation: a constant, a variable, or a constant minus its rank's shift."""
        if op in self.variable:
            return self.variable[op]
        start = self.played.start[op]
        moves = op._replace(part=_ANCHOR.get(op.part, op.part)) in self.post
        return start - self.shift[self.problem.stage_rank[op.stage]] if moves else start

    def build(self) -> None:
        """Add all variables and constraints."""
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
        recomputed = {op for op in self.ops if op.part is Part.C}
        inside = [op for op in sorted(self.free) if self._is_inside(op)]
        for recomputation in [op._replace(part=Part.C) for op in inside] if self.problem.recomputes else ():
            self._choose(recomputation, is_there=recomputation in recomputed)
            if recomputation not in recomputed:
                self.ops.append(recomputation)
                self._variable(recomputation, 0, self.played.start[recomputation._replace(part=Part.I)])
        for op in sorted(self.free):
            self._variable(op, self.first[self.problem.stage_rank[op.stage]], self.played.start[op])
            self._copy_variables(op, copied)
        for offload in [op for op in self.choices if op.part is Part.O]:
            self._copy_variable(offload._replace(part=Part.R))

    def _copy_variables(self, op: Op, copied: set[Op]) -> None:
        """Add the variables of the copies that move with a computation."""
        offload, reload = op._replace(part=Part.O), op._replace(part=Part.R)
        if self.problem.copies and self._is_inside(op):
            self._choose(offload, is_there=offload in copied)
            self.ops += [offload, reload] if offload not in copied else []
        if op.part in (Part.F, Part.I) and (offload in copied or offload in self.choices):
            self._copy_variable(offload if op.part is Part.F else reload)

    def _copy_variable(self, copy: Op) -> None:
        if copy not in self.variable:
            self._variable(copy, 0, self.played.start.get(copy, 0))

    def _is_inside(self, op: Op) -> bool:
        """Return whether an operation is a forward of a limited rank with its input gradient inside the window."""
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
        rank_ops = [op for op in self.ops if problem.stage_rank[op.stage] == rank]
        inside = [op for op in rank_ops if op in self.free]
        optional = [op for op in rank_ops if op not in self.free and self.choice(op) is not None]
        recomputations = [op for op in optional if op.part is Part.C]
        intervals = [self._interval(op) for op in inside + recomputations]
        after = [op for op in rank_ops if op in self.post]
        if after:
            first_after = min(after, key=self.played.start.__getitem__)
            for op in inside:
                if self.choice(op) is None:
                    cp.add(self.variable[op] + problem.duration(op) <= self.begin(first_after))
        for part in (Part.F, Part.I, Part.W):
            for stage in problem.stages_of[rank]:
                microbatches = sorted(op.microbatch for op in inside if op.part is part and op.stage == stage)
                for microbatch, next_microbatch in pairwise(microbatches):
                    op, next_op = Op(part, stage, microbatch), Op(part, stage, next_microbatch)
                    cp.add(self.variable[op] + problem.duration(op) <= self.variable[next_op])
        cp.add_no_overlap(intervals)

    def _is_near(self, op: Op) -> bool:
        return self.played.end[op] > self.low and self.played.start[op] < self.high

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
        for weight in sorted(op for op in ops if problem.stage_rank[op.stage] == rank and op.part is Part.W):
            forward, gradient, offload, reload, recomputation = (
                weight._replace(part=part) for part in (Part.F, Part.I, Part.O, Part.R, Part.C)
            )
            has_ended = weight not in self.free | self.post and self.played.end[weight] <= self.first[rank]
            if forward in self.post or has_ended:
                continue
            size = problem.activation[weight.stage]
            copied, recomputed = self.choice(offload), self.choice(recomputation)
            begin, gradient_end = self.begin(forward), self.begin(gradient) + problem.duration(gradient)
            if (copied is not None or offload not in ops) and (recomputed is not None or recomputation not in ops):
                yield begin, gradient_end, size, neither(self.cp, copied, recomputed)
            if recomputation in ops:
                yield begin, self.begin(recomputation), problem.checkpoint[weight.stage], recomputed
                yield self.begin(recomputation), gradient_end, size, recomputed
            if offload in ops:
                yield begin, self.begin(offload) + problem.duration(offload), size, copied
                yield self.begin(reload), gradient_end, size, copied
            end = self.begin(weight) + problem.duration(weight)
            yield gradient_end, end, problem.weight_activation[weight.stage], None

    def _dataflow(self) -> None:
        """Add the constraints of data dependencies with at least one variable operation."""
        problem, cp = self.problem, self.cp
        slack: dict[tuple[int, int], int] = {}
        for op in [op for op in self.ops if op in self.played.start or op in self.variable]:
            for input_op, lag in self._needs(op):
                chosen = self.choice(op) if self.choice(input_op) is None else self.choice(input_op)
                if input_op in self.variable or op in self.variable:
                    constraint = cp.add(self.begin(op) >= self.begin(input_op) + problem.duration(input_op) + lag)
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
            (Op(part, stage, op.microbatch), lag) for part, stage, lag in self.problem.needs[op.part, op.stage]
        ]
        if op.part is Part.I:
            copies = (op._replace(part=Part.R), op._replace(part=Part.C))
            needs += [(copy, 0) for copy in copies if copy in self.variable or copy in self.played.start]
        return needs

    def _objective(self) -> None:
        """Minimise the step, then the sum of the ranks' end times."""
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
"""By copy, the computation that it moves with."""
