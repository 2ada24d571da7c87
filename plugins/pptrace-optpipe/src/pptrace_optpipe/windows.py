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

from pptrace_optpipe.model import neither, run_solver, solver_of
from pptrace_optpipe.playback import rows_of
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Op, Part

if TYPE_CHECKING:
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
    solver = solver_of(effort)
    solver.parameters.max_deterministic_time = _WORK
    if run_solver(solver, window.cp, effort) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
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
        self.ops = [op for row in rows for op in row if op.part not in (Part.A, Part.D)]
        for rank, row in enumerate(rows):
            for op in row:
                if op.part in ON_RANK:
                    self._sort_in(rank, op)
        self.chosen: dict[tuple[int, int], Any] = {}
        """By stage and microbatch: whether it is offloaded, where that may change."""
        self.again: dict[tuple[int, int], Any] = {}
        """The same of whether its forward is computed again."""
        self.shift = [self.cp.new_int_var(0, played.step, f"shift{rank}") for rank in range(problem.ranks)]
        self.variable: dict[Op, Any] = {}

    def _sort_in(self, rank: int, op: Op) -> None:
        """Note whether an op is before, in or behind the window."""
        begin = self.played.start[op]
        if begin < self.low:
            self.first[rank] = max(self.first[rank], self.played.end[op])
        else:
            (self.free if begin < self.high else self.post).add(op)

    def choice(self, op: Op) -> Any:
        """Return what says whether an op is there; None for those that are."""
        if op.part in _COPIED:
            return self.chosen.get((op.stage, op.microbatch))
        return self.again.get((op.stage, op.microbatch)) if op.part is Part.C else None

    def begin(self, op: Op) -> Any:
        """Return when an op starts: a number, a variable, or a number less its rank's shift."""
        if op in self.variable:
            return self.variable[op]
        anchor = op._replace(part=_ANCHOR[op.part])
        moves = anchor in self.post
        at = self.played.start[op]
        return at - self.shift[self.problem.stage_rank[op.stage]] if moves else at

    def build(self) -> None:
        """Make all variables and constraints."""
        self._variables()
        for rank in range(self.problem.ranks):
            self._streams(rank)
            if self.problem.limit[rank] != NO_LIMIT:
                self._memory(rank)
        for ranks, parts in self.problem.channels:
            self.cp.add_no_overlap([
                self._copy(op) for op in self.ops
                if op.part in parts and self.problem.stage_rank[op.stage] in ranks
                and (op in self.variable or self._is_near(op))
            ])  # fmt: skip
        self._dataflow()
        self._objective()

    def _variables(self) -> None:
        problem, cp = self.problem, self.cp
        copied = {(op.stage, op.microbatch) for op in self.ops if op.part is Part.O}
        self._may_compute_again()
        for op in sorted(self.free):
            rank, at = problem.stage_rank[op.stage], (op.stage, op.microbatch)
            self._variable(op, self.first[rank], self.played.start[op])
            other = op._replace(part=Part.I)
            if op.part is Part.F and other in self.free and problem.copies and problem.limit[rank] != NO_LIMIT:
                self.chosen[at] = cp.new_bool_var("w")
                cp.add_hint(self.chosen[at], int(at in copied))
                self.ops += [op._replace(part=part) for part in (Part.O, Part.R) if at not in copied]
            if at not in copied and at not in self.chosen:
                continue
            for part, anchor in ((Part.O, Part.F), (Part.R, Part.I)):
                copy = op._replace(part=part)
                if op.part is anchor and copy not in self.variable:
                    self._variable(copy, 0, self.played.start.get(copy, 0))
        for at in self.chosen:
            back = Op(Part.R, *at)
            if back not in self.variable:
                self._variable(back, 0, self.played.start.get(back, 0))

    def _may_compute_again(self) -> None:
        """Let forwards whose input gradients are inside too be computed again, or no longer."""
        if not self.problem.recomputes:
            return
        known = {op for op in self.ops if op.part is Part.C}
        for op in sorted(self.free):
            rank, gradient = self.problem.stage_rank[op.stage], op._replace(part=Part.I)
            if op.part is Part.F and gradient in self.free and self.problem.limit[rank] != NO_LIMIT:
                later, at = op._replace(part=Part.C), (op.stage, op.microbatch)
                self.again[at] = self.cp.new_bool_var("c")
                self.cp.add_hint(self.again[at], int(later in known))
                if later not in known:
                    self.ops.append(later)
                    self._variable(later, 0, self.played.start[gradient])

    def _variable(self, op: Op, low: int, hint: int) -> None:
        self.variable[op] = self.cp.new_int_var(low, self.horizon, "start")
        self.cp.add_hint(self.variable[op], int(hint))

    def _streams(self, rank: int) -> None:
        """Add the constraints that operations of one stream do not overlap and stay in their window."""
        problem, cp = self.problem, self.cp
        own = [op for op in self.ops if problem.stage_rank[op.stage] == rank]
        inside = [op for op in own if op in self.free]
        again = [op for op in own if op.part is Part.C and op not in self.free and self.choice(op) is not None]
        intervals = [self._run(op) for op in inside + again]
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

    def _run(self, op: Op) -> Any:
        took, chosen = self.problem.duration(op), self.choice(op)
        if chosen is None:
            return self.cp.new_fixed_size_interval_var(self.variable[op], took, "run")
        return self.cp.new_optional_fixed_size_interval_var(self.variable[op], took, chosen, "run")

    def _copy(self, op: Op) -> Any:
        took, at, begin = self.problem.duration(op), (op.stage, op.microbatch), self.begin(op)
        if at in self.chosen:
            return self.cp.new_optional_interval_var(begin, took, begin + took, self.chosen[at], "copy")
        return self.cp.new_interval_var(begin, took, begin + took, "copy")

    def _memory(self, rank: int) -> None:
        """Hold a rank to its limit from the window's first moment there to its last."""
        problem = self.problem
        intervals, demands = [], []
        for begin, until, amount, chosen in self._holdings(rank):
            if not amount:
                continue
            if isinstance(until, int) and until <= self.first[rank]:
                continue
            size = self.cp.new_int_var(0, 2 * self.horizon, "held")
            made = (self.cp.new_interval_var(begin, size, until, "held") if chosen is None
                    else self.cp.new_optional_interval_var(begin, size, until, chosen, "held"))  # fmt: skip
            intervals.append(made)
            demands.append(amount)
        self.cp.add_cumulative(intervals, demands, problem.limit[rank])

    def _holdings(self, rank: int) -> list[tuple[Any, Any, int, Any]]:
        """Return from when to when a rank holds how much, and on what choice that depends."""
        found: list[tuple[Any, Any, int, Any]] = []
        problem, copied = self.problem, {(op.stage, op.microbatch) for op in self.ops if op.part is Part.O}
        again = {(op.stage, op.microbatch) for op in self.ops if op.part is Part.C}
        ends = {op for op in self.ops if problem.stage_rank[op.stage] == rank and op.part is Part.W}
        for weight in sorted(ends):
            forward, gradient, out, back = (weight._replace(part=part)
                                            for part in (Part.F, Part.I, Part.O, Part.R))  # fmt: skip
            if forward in self.post or (weight not in self.free and weight not in self.post
                                        and self.played.end[weight] <= self.first[rank]):  # fmt: skip
                continue
            at = (weight.stage, weight.microbatch)
            whole, part = problem.activation[weight.stage], problem.weight_activation[weight.stage]
            chosen, anew = self.chosen.get(at), self.again.get(at)
            done = self.begin(gradient) + problem.duration(gradient)
            if (chosen is not None or at not in copied) and (anew is not None or at not in again):
                found.append((self.begin(forward), done, whole, neither(self.cp, chosen, anew)))
            if at in again:
                later = self.begin(weight._replace(part=Part.C))
                found.append((self.begin(forward), later, problem.checkpoint[weight.stage], anew))
                found.append((later, done, whole, anew))
            if at in copied:
                gone = self.begin(out) + problem.duration(out)
                found.append((self.begin(forward), gone, whole, chosen))
                found.append((self.begin(back), done, whole, chosen))
            found.append((done, self.begin(weight) + problem.duration(weight), part, None))
        return found

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
        problem, (part, stage, _) = self.problem, op
        if part is Part.F:
            return [(op._replace(stage=stage - 1), problem.forward_transfer[stage - 1])] if stage else []
        if part is Part.W:
            return [(op._replace(part=Part.I), 0)]
        if part in (Part.O, Part.C):
            return [(op._replace(part=Part.F), 0)]
        if part is Part.R:
            return [(op._replace(part=Part.O), 0)]
        found = [(op._replace(part=Part.F), 0)]
        if stage + 1 < problem.stages:
            found.append((op._replace(stage=stage + 1), problem.backward_transfer[stage]))
        later = (op._replace(part=Part.R), op._replace(part=Part.C))
        return found + [(one, 0) for one in later if one in self.variable or one in self.played.start]

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


_ANCHOR = {Part.F: Part.F, Part.I: Part.I, Part.W: Part.W, Part.O: Part.F, Part.R: Part.I, Part.C: Part.C}
"""The computation with which an op moves."""
_COPIED = (Part.O, Part.R)
