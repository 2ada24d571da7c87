"""Simulation of orders during a search.

A copy is launched after the last computation that has ended at the start of the copy. A forward or reload takes
memory that is free at its start. It first takes memory freed by operations that its streams order before it, then
awaits the offloads that free the other bytes. The given times satisfy every dependency of the resulting rows, so
playing the rows is never slower. Each byte passes from one activation to the next, so no timing needs more memory.
This is chaining of partial-order schedules: Policella et al., From Precedence Constraint Posting to Partial Order
Schedules, AI Communications 20, 2007.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from pptrace_optpipe.problem import AWAIT_OF, GRADIENT, NO_LIMIT, ON_RANK, Op, OpKind, computed_again

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pptrace_optpipe.problem import Problem, Rows


class Played(Struct, frozen=True):
    """Start and end times of operations, with the step and the peak memory."""

    start: dict[Op, int]
    end: dict[Op, int]
    step: int
    """The latest end of a rank with its tail."""
    peak: tuple[int, ...]
    """Shape (ranks,): the most activations held at once."""

    def fits(self, problem: Problem) -> bool:
        """Return whether every rank keeps its limit."""
        limits = zip(self.peak, problem.limit, strict=True)
        return all(limit == NO_LIMIT or peak <= limit for peak, limit in limits)


def play(problem: Problem, rows: Rows) -> Played | None:
    """Run every operation as early as its rank and its inputs allow. Return None for a deadlock."""
    player = _Player(problem)
    row_indexes = player.by_start_time(rows) if problem.shared else player.rank_by_rank(rows)
    if any(row_indexes[rank] < len(row) for rank, row in enumerate(rows)):
        return None
    start, end = player.start, player.end
    peak = tuple(_peak(problem, row, start, end) for row in rows)
    return Played(start, end, _step(problem, rows, end), peak)


class _Player:
    """The state of all streams during the simulation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.start: dict[Op, int] = {}
        self.end: dict[Op, int] = {}
        self.free = [0] * problem.ranks
        self.awaited = [0] * problem.ranks
        channel_ranks = list(range(problem.ranks))
        for group in problem.shared:
            for rank in group:
                channel_ranks[rank] = group[0]
        self.channel = [(2 * rank, 2 * rank + 1) for rank in channel_ranks]
        self.copied = [0] * (2 * problem.ranks)

    def rank_by_rank(self, rows: Rows) -> list[int]:
        """Run all ranks until none can continue. Return the row index that each rank reaches.

        No copy stream is shared by several ranks.
        """
        row_indexes, has_progress = [0] * len(rows), True
        while has_progress:
            has_progress = False
            for rank, row in enumerate(rows):
                while row_indexes[rank] < len(row) and self.run(rank, row[row_indexes[rank]]):
                    row_indexes[rank] += 1
                    has_progress = True
        return row_indexes

    def by_start_time(self, rows: Rows) -> list[int]:
        """Run operations by start time, as several ranks share a copy stream. Return as :meth:`rank_by_rank`."""
        row_indexes = [0] * len(rows)
        while True:
            heads = [
                (max(ready, self.free[rank], self.awaited[rank]), rank)
                for rank, row in enumerate(rows)
                if row_indexes[rank] < len(row) and (ready := self.ready_time(row[row_indexes[rank]])) is not None
            ]
            if not heads:
                return row_indexes
            _, rank = min(heads)
            self.run(rank, rows[rank][row_indexes[rank]])
            row_indexes[rank] += 1

    def run(self, rank: int, op: Op) -> bool:
        """Run an operation if its inputs have run."""
        ready = self.ready_time(op)
        if ready is None:
            return False
        if op.kind in AWAIT_OF.values():
            self.awaited[rank] = max(self.awaited[rank], ready)
            return True
        begin = max(ready, self.free[rank], self.awaited[rank])
        self.awaited[rank] = 0
        if op.kind in (OpKind.O, OpKind.R):
            stream = self.channel[rank][op.kind is OpKind.R]
            begin = max(begin, self.copied[stream])
            self.copied[stream] = begin + self.problem.duration(op)
        else:
            self.free[rank] = begin + self.problem.duration(op)
        self.start[op] = begin
        self.end[op] = begin + self.problem.duration(op)
        return True

    def ready_time(self, op: Op) -> int | None:
        """Return when all inputs of an operation are available; None if one of them has not run."""
        ready_time, end = 0, self.end
        for kind, stage, transfer in self.problem.needs[op.kind, op.stage]:
            input_end = end.get(Op(kind, stage, op.microbatch))
            if input_end is None and kind is OpKind.I:
                input_end = end.get(Op(OpKind.B, stage, op.microbatch))
            if input_end is None:
                return None
            ready_time = max(ready_time, input_end + transfer)
        if op.kind in GRADIENT:
            ready_time = max(ready_time, end.get(Op(OpKind.R, op.stage, op.microbatch), 0))
        return ready_time


def _step(problem: Problem, rows: Rows, end: dict[Op, int]) -> int:
    """Return the length of the step."""
    ends = [max((end[op] for op in row if op.kind in ON_RANK), default=0) for row in rows]
    return max(last + tail for last, tail in zip(ends, problem.tail, strict=True))


def memory_changes(problem: Problem, op: Op, recomputed: Collection[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes that an operation allocates at its start and frees at its end.

    Args:
        problem: what is scheduled.
        op: the operation.
        recomputed: stage and microbatch of recomputed forwards.
    """
    size, weight_size = problem.activation[op.stage], problem.weight_activation[op.stage]
    if recomputed and op.kind in (OpKind.F, OpKind.C) and (op.stage, op.microbatch) in recomputed:
        kept = problem.checkpoint[op.stage]
        return (kept if op.kind is OpKind.F else size - kept), 0
    if op.kind in AWAIT_OF.values():
        return 0, 0
    return ((size, 0), (0, size - weight_size), (0, weight_size), (0, size), (size, 0), (0, size))[op.kind]


def _peak(problem: Problem, row: list[Op], start: dict[Op, int], end: dict[Op, int]) -> int:
    """Return the peak bytes of a rank. At equal times, frees come first."""
    events, recomputed = [], computed_again(row)
    for op in row:
        taken, freed = memory_changes(problem, op, recomputed)
        if taken:
            events.append((start[op], taken))
        if freed:
            events.append((end[op], -freed))
    events.sort()
    return max(accumulate((change for _, change in events), initial=0))


_COPIES = (OpKind.O, OpKind.R)


def rows_of(problem: Problem, start: Mapping[Op, int]) -> Rows:
    """Return the rows of a schedule with given start times, at which it keeps the memory limit."""
    ops_by_rank: Rows = [[] for _ in range(problem.ranks)]
    for op in start:
        ops_by_rank[problem.stage_rank[op.stage]].append(op)
    rows = [_Rank(problem, start, rank, ops).row() for rank, ops in enumerate(ops_by_rank)]
    return _with_stream_waits(problem, rows, start) if problem.shared else rows


def with_stream_waits(problem: Problem, rows: Rows) -> Rows:
    """Return rows in which copies of ranks that share a stream wait for each other, as they do in :func:`play`."""
    played = play(problem, rows) if problem.shared else None
    return rows if played is None else _with_stream_waits(problem, rows, played.start)


def _with_stream_waits(problem: Problem, rows: Rows, start: Mapping[Op, int]) -> Rows:
    """Insert the waits between copies of different ranks that rows do not have yet."""
    awaits: dict[Op, Op] = {}
    for ranks, kind in problem.channels:
        copies = [op for op in start if op.kind is kind and problem.stage_rank[op.stage] in ranks]
        copies.sort(key=lambda op: (start[op], problem.duration(op), op))
        for copy, next_copy in pairwise(copies):
            if copy.stage not in problem.stages_of[problem.stage_rank[next_copy.stage]]:
                awaits[next_copy] = copy._replace(kind=OpKind.A if copy.kind is OpKind.O else OpKind.D)
    return [
        [item for op in row for item in ((awaits[op], op) if op in awaits and awaits[op] not in known else (op,))]
        for row, known in ((row, set(row)) for row in rows)
    ]


class _Rank:
    """The operations of one rank, with start times and memory dependencies."""

    def __init__(self, problem: Problem, start: Mapping[Op, int], rank: int, ops: list[Op]) -> None:
        self.problem, self.start, self.limit = problem, start, problem.limit[rank]
        self.recomputed = computed_again(ops)
        self.computed = sorted((op for op in ops if op.kind not in _COPIES), key=self._moment)
        self.copies = sorted((op for op in ops if op.kind in _COPIES), key=self._moment)
        self.place = {op: index for index, op in enumerate(self.computed)}
        ends = [self._end(op) for op in self.computed]
        for op in self.copies:
            index = bisect_right(ends, start[op])
            gradients = (op._replace(kind=kind) for kind in GRADIENT if op.kind is OpKind.R)
            self.place[op] = min((index, *(self.place.get(gradient, index) for gradient in gradients)))
        self.offloads = [op for op in self.copies if op.kind is OpKind.O]
        self.offload_index = {op: index for index, op in enumerate(self.offloads)}
        self.ended_offload = [-1] * (len(self.computed) + 1)
        """By place in ``computed``: index of the last offload that has ended when the computation starts."""
        self.await_of: dict[Op, Op] = {}

    def _end(self, op: Op) -> int:
        return self.start[op] + self.problem.duration(op)

    def _moment(self, op: Op) -> tuple[int, int, int, int, int]:
        down = op.kind in (OpKind.F, OpKind.O)
        return self.start[op], self._end(op), op.kind, op.microbatch, op.stage if down else -op.stage

    def row(self) -> list[Op]:
        """Return the operations of the rank in order, with its copies and waits for copies."""
        if self.offloads and self.limit != NO_LIMIT:
            self._assign_memory()
        row, launched = list[Op](), 0
        for place in range(len(self.computed) + 1):
            while launched < len(self.copies) and self.place[self.copies[launched]] <= place:
                row += self._with_wait(self.copies[launched])
                launched += 1
            if place < len(self.computed):
                row += self._with_wait(self.computed[place])
        return row

    def _with_wait(self, op: Op) -> list[Op]:
        awaited = self.await_of.get(op)
        return [op] if awaited is None else [awaited._replace(kind=OpKind.A), op]

    def _assign_memory(self) -> None:
        """Record which offload each operation that takes memory awaits, if any."""
        freed = sorted(
            (self._end(op), op) for op in self.place if memory_changes(self.problem, op, self.recomputed)[1]
        )
        free, offloaded = self.limit, dict[int, int]()
        """Freed and unused bytes: ``free`` of computations, and by offload index those of offloads."""
        done = 0
        for op in sorted(self.place, key=lambda op: (self.start[op], self.place[op], op.kind not in _COPIES)):
            while done < len(freed) and freed[done][0] <= self.start[op]:
                source = freed[done][1]
                amount = memory_changes(self.problem, source, self.recomputed)[1]
                if source.kind is OpKind.O:
                    offloaded[self.offload_index[source]] = amount
                else:
                    free += amount
                done += 1
            ended = self._last_ended(op)
            need = memory_changes(self.problem, op, self.recomputed)[0]
            taken = min(need, free)
            free, last = free - taken, _take(offloaded, need - taken)
            if last > ended:
                self.await_of[op], ended = self.offloads[last], last
            if op.kind not in _COPIES:
                self.ended_offload[self.place[op] + 1] = ended

    def _last_ended(self, op: Op) -> int:
        """Return the index of the last offload that ends before an operation by stream order or dependencies."""
        ended, offload = self.ended_offload[self.place[op]], op._replace(kind=OpKind.O)
        if op.kind in (*GRADIENT, OpKind.R) and offload in self.offload_index:
            ended = max(ended, self.offload_index[offload])
        return ended


def _take(offloaded: dict[int, int], need: int) -> int:
    """Take needed bytes from finished offloads, earliest first. Return the last offload used."""
    last = -1
    for index in sorted(offloaded):
        if not need:
            break
        amount = min(need, offloaded[index])
        need, last = need - amount, index
        offloaded[index] -= amount
        if not offloaded[index]:
            del offloaded[index]
    return last
