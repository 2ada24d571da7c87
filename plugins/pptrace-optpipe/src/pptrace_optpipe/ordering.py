"""Rows that do what given times say, and keep the limit whatever the true times are.

A copy is launched behind the last computation that has ended when it starts. Room passes from what frees it to
what takes it: a forward or reload takes what has been freed by its start, what its own streams imply first, and
awaits the copies to the host that it takes the rest from. All that then orders the rows also holds at the given
times, so playing the rows is never slower; and every byte is handed on from one activation to the next, so no
timing holds more. The argument is that of partial-order schedules by chaining: Policella et al., From Precedence
Constraint Posting to Partial Order Schedules, AI Communications 20, 2007.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from pptrace_optpipe.playing import changes
from pptrace_optpipe.problem import NO_LIMIT, Op, Part, computed_again

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["rows_of"]

_COPIES = (Part.O, Part.R)


def rows_of(problem: Problem, start: Mapping[Op, int]) -> Rows:
    """Return the rows of a schedule whose ops start at given times and keep the limit then."""
    own: Rows = [[] for _ in range(problem.ranks)]
    for op in start:
        own[problem.stage_rank[op.stage]].append(op)
    rows = [_Rank(problem, start, rank, ops).row() for rank, ops in enumerate(own)]
    return _in_turn(problem, rows, start) if problem.shared else rows


def _in_turn(problem: Problem, rows: Rows, start: Mapping[Op, int]) -> Rows:
    """Let copies that share a stream with other ranks' await those that go before."""
    before: dict[Op, Op] = {}
    for ranks, parts in problem.channels:
        copies = [op for op in start if op.part in parts and problem.stage_rank[op.stage] in ranks]
        copies.sort(key=lambda op: (start[op], problem.duration(op), op))
        for one, other in pairwise(copies):
            if one.stage not in problem.stages_of[problem.stage_rank[other.stage]]:
                before[other] = one._replace(part=Part.A if one.part is Part.O else Part.D)
    return [[each for op in row for each in ((before[op], op) if op in before else (op,))] for row in rows]


class _Rank:
    """One rank's ops with their times, and who has its memory."""

    def __init__(self, problem: Problem, start: Mapping[Op, int], rank: int, ops: list[Op]) -> None:
        self.problem, self.start, self.limit = problem, start, problem.limit[rank]
        self.again = computed_again(ops)
        self.computed = sorted((op for op in ops if op.part not in _COPIES), key=self._moment)
        self.copies = sorted((op for op in ops if op.part in _COPIES), key=self._moment)
        self.place = {op: at for at, op in enumerate(self.computed)}
        ends = [self._end(op) for op in self.computed]
        for op in self.copies:
            at = bisect_right(ends, start[op])
            self.place[op] = at if op.part is Part.O else min(at, self.place[op._replace(part=Part.I)])
        self.out = [op for op in self.copies if op.part is Part.O]
        self.turn = {op: at for at, op in enumerate(self.out)}
        self.known = [-1] * (len(self.computed) + 1)
        """By place: the last copy out that has ended when the computation there starts."""
        self.awaited: dict[Op, Op] = {}

    def _end(self, op: Op) -> int:
        return self.start[op] + self.problem.duration(op)

    def _moment(self, op: Op) -> tuple[int, int, int, int, int]:
        down = op.part in (Part.F, Part.O)
        return self.start[op], self._end(op), op.part, op.microbatch, op.stage if down else -op.stage

    def row(self) -> list[Op]:
        """Return the row."""
        if self.out and self.limit != NO_LIMIT:
            self._hand_on()
        row, launched = list[Op](), 0
        for at in range(len(self.computed) + 1):
            while launched < len(self.copies) and self.place[self.copies[launched]] <= at:
                row += self._awaiting(self.copies[launched])
                launched += 1
            if at < len(self.computed):
                row += self._awaiting(self.computed[at])
        return row

    def _awaiting(self, op: Op) -> list[Op]:
        before = self.awaited.get(op)
        return [op] if before is None else [before._replace(part=Part.A), op]

    def _hand_on(self) -> None:
        """Say for every op that takes memory which copy out it awaits, if any."""
        freed = sorted((self._end(op), op) for op in self.place if changes(self.problem, op, self.again)[1])
        free, gone = self.limit, dict[int, int]()
        """What computations have freed, and each copy out, and nothing has taken."""
        done = 0
        for op in sorted(self.place, key=lambda one: (self.start[one], self.place[one], one.part not in _COPIES)):
            while done < len(freed) and freed[done][0] <= self.start[op]:
                source = freed[done][1]
                amount = changes(self.problem, source, self.again)[1]
                if source.part is Part.O:
                    gone[self.turn[source]] = amount
                else:
                    free += amount
                done += 1
            known = self._known(op)
            need = changes(self.problem, op, self.again)[0]
            taken = min(need, free)
            free, last = free - taken, _taken(gone, need - taken)
            if last > known:
                self.awaited[op], known = self.out[last], last
            if op.part not in _COPIES:
                self.known[self.place[op] + 1] = known

    def _known(self, op: Op) -> int:
        """Return the last copy out that an op's streams let it wait for anyway."""
        known, out = self.known[self.place[op]], op._replace(part=Part.O)
        if op.part in (Part.I, Part.B, Part.R) and out in self.turn:
            known = max(known, self.turn[out])
        if op.part is Part.R and self.problem.one_stream:
            known = max(known, bisect_right(self.out, self.start[op], key=self.start.__getitem__) - 1)
        return known


def _taken(gone: dict[int, int], need: int) -> int:
    """Take what is needed of what copies out have freed, the earliest first; return the last of them."""
    last = -1
    for turn in sorted(gone):
        if not need:
            break
        part = min(need, gone[turn])
        need, last = need - part, turn
        gone[turn] -= part
        if not gone[turn]:
            del gone[turn]
    return last
