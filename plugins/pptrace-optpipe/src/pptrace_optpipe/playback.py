"""Simulation of orders during a search.

A copy is launched behind the last computation that has ended when it starts. Room passes from what frees it to
what takes it: a forward or reload takes what has been freed by its start, what its own streams imply first, and
awaits the copies to the host that it takes the rest from. All that then orders the rows also holds at the given
times, so playing the rows is never slower; and every byte is handed on from one activation to the next, so no
timing holds more. The argument is that of partial-order schedules by chaining: Policella et al., From Precedence
Constraint Posting to Partial Order Schedules, AI Communications 20, 2007.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from pptrace_optpipe.problem import AWAIT_OF, NO_LIMIT, ON_RANK, Op, Part, computed_again

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["Played", "memory_changes", "play", "rows_of"]


@dataclass(frozen=True, slots=True)
class Played:
    """When ops run, and what follows from that."""

    start: dict[Op, int]
    end: dict[Op, int]
    step: int
    """The end of the last op with what follows it; or the longest rank's span."""
    peak: tuple[int, ...]
    """Shape (ranks,): the most activations held at once."""

    def fits(self, problem: Problem) -> bool:
        """Return whether every rank keeps its limit."""
        return all(limit in (NO_LIMIT, max(peak, limit)) for peak, limit in zip(self.peak, problem.limit,
                                                                               strict=True))  # fmt: skip


def play(problem: Problem, rows: Rows) -> Played | None:
    """Run every operation as early as its rank and its inputs allow. Return None for a deadlock."""
    player = _Player(problem)
    at = player.in_turn(rows) if problem.shared else player.rank_by_rank(rows)
    if any(at[rank] < len(row) for rank, row in enumerate(rows)):
        return None
    start, end = player.start, player.end
    peak = tuple(_peak(problem, row, start, end) for row in rows)
    return Played(start, end, _step(problem, rows, start, end), peak)


class _Player:
    """The streams while they run."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.start: dict[Op, int] = {}
        self.end: dict[Op, int] = {}
        self.free = [0] * problem.ranks
        self.awaited = [0] * problem.ranks
        channel = list(range(problem.ranks))
        for group in problem.shared:
            for rank in group:
                channel[rank] = group[0]
        self.channel = [(2 * one, 2 * one + (not problem.one_stream)) for one in channel]
        self.copied = [0] * (2 * problem.ranks)

    def rank_by_rank(self, rows: Rows) -> list[int]:
        """Run what each rank can run, over and over, and return how far they come; copies are of no other rank."""
        at, going = [0] * len(rows), True
        while going:
            going = False
            for rank, row in enumerate(rows):
                while at[rank] < len(row) and self.runs(rank, row[at[rank]]):
                    at[rank] += 1
                    going = True
        return at

    def in_turn(self, rows: Rows) -> list[int]:
        """Run ops in the order in which ranks get to them, as copies of several ranks then share a stream."""
        at = [0] * len(rows)
        while True:
            heads = [
                (max(ready, self.free[rank], self.awaited[rank]), rank)
                for rank, row in enumerate(rows)
                if at[rank] < len(row) and (ready := self.ready(row[at[rank]])) is not None
            ]
            if not heads:
                return at
            _, rank = min(heads)
            self.runs(rank, rows[rank][at[rank]])
            at[rank] += 1

    def runs(self, rank: int, op: Op) -> bool:
        """Run an operation if its inputs have run."""
        ready = self.ready(op)
        if ready is None:
            return False
        if op.part in AWAIT_OF.values():
            self.awaited[rank] = max(self.awaited[rank], ready)
            return True
        begin = max(ready, self.free[rank], self.awaited[rank])
        self.awaited[rank] = 0
        if op.part in (Part.O, Part.R):
            stream = self.channel[rank][op.part is Part.R]
            begin = max(begin, self.copied[stream])
            self.copied[stream] = begin + self.problem.duration(op)
        else:
            self.free[rank] = begin + self.problem.duration(op)
        self.start[op] = begin
        self.end[op] = begin + self.problem.duration(op)
        return True

    def ready(self, op: Op) -> int | None:
        """Return when the inputs of an op are there; None where one of them has not run."""
        ready, end = 0, self.end
        for part, stage, transfer in self.problem.needs[op.part, op.stage]:
            sent = end.get(Op(part, stage, op.microbatch))
            if sent is None and part is Part.I:
                sent = end.get(Op(Part.B, stage, op.microbatch))
            if sent is None:
                return None
            ready = max(ready, sent + transfer)
        if op.part in (Part.I, Part.B):
            ready = max(ready, end.get(Op(Part.R, op.stage, op.microbatch), 0))
        return ready


def _step(problem: Problem, rows: Rows, start: dict[Op, int], end: dict[Op, int]) -> int:
    """Return the length of a step: of the longest rank's span where the problem asks for that."""
    ends = [max((end[op] for op in row if op.part in ON_RANK), default=0) for row in rows]
    if problem.span:
        return max(last - min((start[op] for op in row if op in start), default=0)
                   for last, row in zip(ends, rows, strict=True))  # fmt: skip
    return max(last + tail for last, tail in zip(ends, problem.tail, strict=True))


def memory_changes(problem: Problem, op: Op, again: Collection[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes that an operation allocates at its start and frees at its end.

    Args:
        problem: what is scheduled.
        op: the op.
        again: stage and microbatch of forwards that are computed again.
    """
    whole, part = problem.activation[op.stage], problem.weight_activation[op.stage]
    if again and op.part in (Part.F, Part.C) and (op.stage, op.microbatch) in again:
        kept = problem.checkpoint[op.stage]
        return (kept if op.part is Part.F else whole - kept), 0
    if op.part in AWAIT_OF.values():
        return 0, 0
    return ((whole, 0), (0, whole - part), (0, part), (0, whole), (whole, 0), (0, whole))[op.part]


def _peak(problem: Problem, row: list[Op], start: dict[Op, int], end: dict[Op, int]) -> int:
    """Return the peak bytes of a rank. At equal times, frees come first."""
    events, again = [], computed_again(row)
    for op in row:
        taken, freed = memory_changes(problem, op, again)
        if taken:
            events.append((start[op], taken))
        if freed:
            events.append((end[op], -freed))
    events.sort()
    return max(accumulate((change for _, change in events), initial=0))


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
        freed = sorted((self._end(op), op) for op in self.place if memory_changes(self.problem, op, self.again)[1])
        free, gone = self.limit, dict[int, int]()
        """What computations have freed, and each copy out, and nothing has taken."""
        done = 0
        for op in sorted(self.place, key=lambda one: (self.start[one], self.place[one], one.part not in _COPIES)):
            while done < len(freed) and freed[done][0] <= self.start[op]:
                source = freed[done][1]
                amount = memory_changes(self.problem, source, self.again)[1]
                if source.part is Part.O:
                    gone[self.turn[source]] = amount
                else:
                    free += amount
                done += 1
            known = self._known(op)
            need = memory_changes(self.problem, op, self.again)[0]
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
    """Take needed bytes from finished offloads, earliest first. Return the last offload used."""
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
