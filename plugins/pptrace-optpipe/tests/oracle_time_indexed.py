"""The same problem as an integer program over moments, for HiGHS: another formulation and another engine.

For every op and moment a binary says whether it starts then; streams, memory and dataflow are sums of those.
Moments are halves, as all times of toy pipelines are. Microbatches are numbered as they start on the first stage,
and nothing else orders them unless that is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from pptrace_optpipe.problem import COMPUTED, Op, OpKind

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem


_THROWN = OpKind.B
"""Starts with a forward whose activation is thrown away, and takes no stream; no toy has a whole backward."""


class _Program:
    def __init__(self, problem: Problem, horizon: int) -> None:
        self.problem, self.horizon = problem, horizon
        copies = [Op(kind, op.stage, op.microbatch) for op in problem.ops() if op.kind is OpKind.F
                  for kind in (OpKind.O, OpKind.R)] if problem.copies else []  # fmt: skip
        again = [Op(kind, op.stage, op.microbatch) for op in problem.ops() if op.kind is OpKind.F
                 for kind in (OpKind.C, _THROWN)] if problem.recomputes else []  # fmt: skip
        self.ops = {op: at for at, op in enumerate([*problem.ops(), *copies, *again])}
        self.length = len(self.ops) * horizon
        self.terms: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def row(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        self.terms += [(len(self.low), column, value) for column, value in terms]
        self.low.append(low)
        self.high.append(high)

    def started(self, op: Op, until: int, value: float = 1.0) -> list[tuple[int, float]]:
        """Return the terms of whether an op started until a moment."""
        base = self.ops[op] * self.horizon
        return [(base + moment, value) for moment in range(max(0, min(until + 1, self.horizon)))]

    def ended(self, op: Op, until: int, value: float = 1.0) -> list[tuple[int, float]]:
        return self.started(op, until - self.problem.duration(op), value)

    def running(self, op: Op, moment: int) -> list[tuple[int, float]]:
        base, took = self.ops[op] * self.horizon, self.problem.duration(op)
        return [(base + begin, 1.0) for begin in range(max(0, moment - took + 1), moment + 1)]

    def after(self, op: Op, before: Op) -> None:
        """Let an op start only when another has ended."""
        for moment in range(self.horizon):
            self.row(self.started(op, moment) + self.ended(before, moment, -1.0), -np.inf, 0)


def shortest(problem: Problem, horizon: int, *, ordered: bool) -> int:
    """Return the least step, in halves; ``ordered`` is whether microbatches keep order everywhere."""
    program = _Program(problem, horizon)
    last = horizon - 1
    for op in program.ops:
        if op.kind in COMPUTED:
            program.row(program.started(op, last), 1, 1)
            for moment in range(horizon - problem.duration(op) + 1, horizon):
                program.row([(program.ops[op] * horizon + moment, 1.0)], 0, 0)
    for op in problem.ops():
        _wait(program, op)
    for rank in range(problem.ranks):
        _share(program, rank)
    _lengths(program)
    _in_order(program, everywhere=ordered)
    columns = program.length + 1
    matrix = coo_array(
        ([value for _, _, value in program.terms],
         ([row for row, _, _ in program.terms], [column for _, column, _ in program.terms])),
        shape=(len(program.low), columns),
    )  # fmt: skip
    cost, high = np.zeros(columns), np.ones(columns)
    cost[program.length] = 1
    high[program.length] = horizon
    result = milp(cost, constraints=LinearConstraint(matrix.tocsr(), program.low, program.high),
                 integrality=np.ones(columns), bounds=Bounds(0, high))  # fmt: skip
    assert result.status == 0, result.message
    return round(result.fun)


def _wait(program: _Program, op: Op) -> None:
    problem, (kind, stage, _) = program.problem, op
    if kind is OpKind.F and stage:
        program.after(op, op._replace(stage=stage - 1))
    if kind is OpKind.W:
        program.after(op, op._replace(kind=OpKind.I))
    if kind is not OpKind.I:
        return
    top = stage + 1 == problem.stages
    program.after(op, op._replace(kind=OpKind.F) if top else op._replace(stage=stage + 1))
    last = program.horizon - 1
    if problem.recomputes:
        forward, later, thrown = (op._replace(kind=each) for each in (OpKind.F, OpKind.C, _THROWN))
        program.after(later, forward)
        program.row(program.started(thrown, last) + program.started(later, last, -1.0), 0, 0)
        for moment in range(program.horizon):
            base, own = (program.ops[each] * program.horizon + moment for each in (forward, thrown))
            program.row([(own, 1.0), (base, -1.0)], -np.inf, 0)
            # Started and not computed again, or computed by then.
            terms = program.started(op, moment) + program.ended(later, moment, -1.0)
            program.row(terms + program.started(later, last), -np.inf, 1)
    if problem.recomputes and problem.copies:
        out, later = op._replace(kind=OpKind.O), op._replace(kind=OpKind.C)
        program.row(program.started(out, last) + program.started(later, last), 0, 1)
    if problem.copies:
        forward, out, back = (op._replace(kind=each) for each in (OpKind.F, OpKind.O, OpKind.R))
        program.after(out, forward)
        program.row(program.started(out, last) + program.started(back, last, -1.0), 0, 0)
        for moment in range(program.horizon):
            program.row(program.started(back, moment) + program.ended(out, moment, -1.0), -np.inf, 0)
            # Started and not offloaded, or reloaded by then.
            terms = program.started(op, moment) + program.ended(back, moment, -1.0)
            program.row(terms + program.started(out, last), -np.inf, 1)


def _share(program: _Program, rank: int) -> None:
    """Keep a rank's streams and memory."""
    problem = program.problem
    own = [op for op in program.ops if problem.stage_rank[op.stage] == rank]
    for moment in range(program.horizon):
        for stream in ((*COMPUTED, OpKind.C), (OpKind.O,), (OpKind.R,)):
            terms = [term for op in own if op.kind in stream for term in program.running(op, moment)]
            program.row(terms, 0, 1)
        held: list[tuple[int, float]] = []
        for op in own:
            whole, weight_part = problem.activation[op.stage], problem.weight_activation[op.stage]
            left_out = whole - problem.checkpoint[op.stage] if problem.recomputes else 0
            if op.kind in (OpKind.F, OpKind.R):
                held += program.started(op, moment, whole)
            elif op.kind in (OpKind.C, _THROWN):
                held += program.started(op, moment, left_out if op.kind is OpKind.C else -left_out)
            else:
                freed = {OpKind.I: whole - weight_part, OpKind.W: weight_part, OpKind.O: whole}[op.kind]
                held += program.ended(op, moment, -freed)
        program.row(held, -np.inf, problem.limit[rank])


def _lengths(program: _Program) -> None:
    """Let the length be no less than any end."""
    problem, horizon = program.problem, program.horizon
    for op in problem.ops():
        if op.kind is OpKind.W:
            base = program.ops[op] * horizon
            begin = [(base + moment, float(moment)) for moment in range(horizon)]
            program.row([*begin, (program.length, -1.0)], -np.inf, -problem.duration(op))


def _in_order(program: _Program, *, everywhere: bool) -> None:
    """Start ops of one sort and stage in the order of microbatches; or the first stage's forwards alone."""
    for op in program.ops:
        first = op.kind is OpKind.F and not op.stage
        if op.kind in COMPUTED and op.microbatch and (everywhere or first):
            program.after(op, op._replace(microbatch=op.microbatch - 1))
