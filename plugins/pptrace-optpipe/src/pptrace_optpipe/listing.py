"""List scheduling with host copies.

An idle rank runs an input gradient if one is ready, else a forward that fits into memory, else a weight gradient.
Weight gradients therefore fill idle time. Source of the rule: Qi et al., arXiv:2401.10241, section 3. Memory
follows the banker's algorithm: a forward starts only if all microbatches in flight on the rank can still finish,
oldest first. This prevents deadlocks for every limit that one microbatch fits into.

A weight gradient that starts shortly before an input arrives delays that microbatch on all further stages. With
lookahead, the rank waits for inputs that are being computed on another rank or are in transit.

At the end of a computation, a rank first starts the next reload, if that activation is offloaded and memory allows
it. A forward starts only if memory also allows this reload afterwards. An activation is offloaded directly after
its forward if more than some number of activations on the rank are needed earlier. A forward that does not fit
waits for a copy, unless another operation can run.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import product
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from pptrace_optpipe.playback import rows_of
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, OpKind

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem, Rows


class Rule(Struct, frozen=True, kw_only=True):
    """Memory limits and priorities of list scheduling."""

    limit: tuple[int, ...]
    """Shape (ranks,): memory for activations; ``NO_LIMIT`` for unlimited memory."""
    in_flight: tuple[int, ...] = ()
    """Shape (ranks,): the most activations between a forward and its input gradient; empty for no limit."""
    per_stage: tuple[int, ...] = ()
    """Shape (stages,): the same limit per stage, which replaces the banker's algorithm; empty for no limit."""
    patient: bool = True
    """Whether a rank waits for an input gradient that is ready before half of a weight gradient could run."""
    weights_first: bool = False
    """Whether a weight gradient comes before a forward."""
    pace: int = 0
    """The least time between the starts of two forwards on the first stage."""
    lookahead: float = 0
    """Share of a weight gradient's time; a rank waits for an input gradient or a forward that is ready earlier."""
    by_arrival: bool = False
    """Whether input gradients and forwards run in order of arrival; else input gradients come first."""


def serial_rows(problem: Problem, *, copied: bool) -> Rows:
    """Return rows that run one microbatch after another, which need the least memory.

    Args:
        problem: what to schedule.
        copied: whether the activations of all stages of a rank, except its last one, are offloaded in between.
    """
    rows: Rows = [[] for _ in range(problem.ranks)]
    for microbatch in range(problem.microbatches):
        offloaded = {stage for stages in problem.stages_of for stage in stages[:-1]} if copied else set()
        for stage, rank in enumerate(problem.stage_rank):
            rows[rank].append(Op(OpKind.F, stage, microbatch))
            if stage in offloaded:
                rows[rank] += [Op(OpKind.O, stage, microbatch), Op(OpKind.A, stage, microbatch)]
        for stage in reversed(range(problem.stages)):
            row = rows[problem.stage_rank[stage]]
            if stage in offloaded:
                row.append(Op(OpKind.R, stage, microbatch))
            row += [Op(OpKind.I, stage, microbatch), Op(OpKind.W, stage, microbatch)]
    return rows


class Lister:
    """The state of list scheduling under a rule; at equal times, ends come before starts."""

    def __init__(self, problem: Problem, rule: Rule) -> None:
        self.problem, self.rule = problem, rule
        stages = range(problem.stages)
        self.next = {(kind, stage): 0 for kind in COMPUTED for stage in stages}
        self.ready: dict[Op, int] = {Op(OpKind.F, 0, mb): mb * rule.pace for mb in range(problem.microbatches)}
        self.held = [0] * problem.ranks
        self.flying = [0] * problem.ranks
        self.in_stage = [0] * problem.stages
        self.busy = [0] * problem.ranks
        self.start: dict[Op, int] = {}
        self.events: list[tuple[int, int]] = [(0, rank) for rank in range(problem.ranks)]
        self.events += [(time, problem.stage_rank[0]) for time in self.ready.values() if time]
        self.ends: list[tuple[int, Op]] = []
        self.now = 0

    def rows(self) -> Rows | None:
        """Run list scheduling, and return every rank's row; None if some operations never start."""
        while self.events or self.ends:
            now = self.now = min(queue[0][0] for queue in (self.events, self.ends) if queue)
            while self.ends and self.ends[0][0] <= now:
                self.finish(*heappop(self.ends))
            awake_ranks = set()
            while self.events and self.events[0][0] <= now:
                awake_ranks.add(heappop(self.events)[1])
            for rank in sorted(awake_ranks):
                self.wake(rank, now)
                if self.busy[rank] <= now:
                    self._choose(rank, now)
        count = len(COMPUTED) * self.problem.stages * self.problem.microbatches
        ran = sum(op.kind in COMPUTED for op in self.start)
        return rows_of(self.problem, self.start) if ran == count else None

    def wake(self, rank: int, now: int) -> None:
        """Start copies of a rank at an event; a rank has none without offloading."""

    def finish(self, now: int, op: Op) -> None:
        """Record the end of an operation: freed memory and operations that become ready."""
        problem, (kind, stage, microbatch) = self.problem, op
        rank = problem.stage_rank[stage]
        if kind is OpKind.F:
            is_last = stage + 1 == problem.stages
            next_op = Op(OpKind.I if is_last else OpKind.F, stage if is_last else stage + 1, microbatch)
            self._enable(next_op, now + (0 if is_last else problem.forward_transfer[stage]))
        elif kind is OpKind.I:
            self.held[rank] -= problem.activation[stage] - problem.weight_activation[stage]
            self.flying[rank] -= 1
            self.in_stage[stage] -= 1
            self._enable(Op(OpKind.W, stage, microbatch), now)
            if stage:
                self._enable(Op(OpKind.I, stage - 1, microbatch), now + problem.backward_transfer[stage - 1])
        else:
            self.held[rank] -= problem.weight_activation[stage]
        heappush(self.events, (now, rank))

    def _enable(self, op: Op, time: int) -> None:
        self.ready[op] = time
        heappush(self.events, (time, self.problem.stage_rank[op.stage]))

    def _choose(self, rank: int, now: int) -> None:
        """Start what the rule prefers, if anything may start."""
        gradient, soon = self.first(rank, OpKind.I, now)
        forward, _ = self.first(rank, OpKind.F, now)
        weight, _ = self.first(rank, OpKind.W, now)
        if forward is not None and not self.has_room(rank, forward):
            forward = None
        rule = self.rule
        order = (gradient, weight, forward) if rule.weights_first else (gradient, forward, weight)
        if rule.by_arrival and gradient and forward and self.ready[forward] < self.ready[gradient]:
            order = (forward, gradient, weight)
        op = next((candidate for candidate in order if candidate is not None), None)
        if op is None:
            return
        if rule.patient and op is weight and soon is not None and 2 * (soon - now) < self.problem.w[op.stage]:
            return  # the end of that input wakes the rank again
        if rule.lookahead and op is weight and self._is_input_soon(rank, op):
            return  # the end of that computation wakes the rank
        self.begin(rank, op, now)

    def _is_input_soon(self, rank: int, weight: Op) -> bool:
        """Return whether an input gradient, or a forward that fits into memory, is ready within the lookahead."""
        until = self.now + self.rule.lookahead * self.problem.w[weight.stage]
        for kind, stage in product((OpKind.I, OpKind.F), self.problem.stages_of[rank]):
            op = Op(kind, stage, self.next[kind, stage])
            if self.now < self._ready_time(op) < until and (kind is OpKind.I or self.has_room(rank, op)):
                return True
        return False

    def _ready_time(self, op: Op) -> float:
        """Return when the input of an operation arrives; infinity if its computation has not started."""
        if op in self.ready or op.microbatch == self.problem.microbatches:
            return self.ready.get(op, inf)
        kind, stage, lag = self.problem.needs[op.kind, op.stage][-1]
        input_op = op._replace(kind=kind, stage=stage)
        return self.start.get(input_op, inf) + self.problem.duration(input_op) + lag

    def first(self, rank: int, kind: OpKind, now: int) -> tuple[Op | None, int | None]:
        """Return the best operation of a kind that may start now, and the earliest time at which any may start."""
        best, soon = None, None
        for stage in self.problem.stages_of[rank]:
            op = Op(kind, stage, self.next[kind, stage])
            ready_time = self.ready.get(op)
            if ready_time is None:
                continue
            soon = ready_time if soon is None else min(soon, ready_time)
            if ready_time <= now and (best is None or (op.microbatch, -op.stage) < (best.microbatch, -best.stage)
                              or (kind is OpKind.F and op.stage > best.stage)):  # fmt: skip
                best = op
        return best, soon

    def begin(self, rank: int, op: Op, now: int) -> None:
        """Start an op."""
        self.next[op.kind, op.stage] += 1
        del self.ready[op]
        if op.kind is OpKind.F:
            self.held[rank] += self.problem.activation[op.stage]
            self.flying[rank] += 1
            self.in_stage[op.stage] += 1
        self.start[op] = now
        self.busy[rank] = now + self.problem.duration(op)
        heappush(self.ends, (self.busy[rank], op))

    def has_room(self, rank: int, op: Op) -> bool:
        """Return whether all microbatches in flight on a rank can finish after a forward starts, oldest first."""
        problem, limit = self.problem, self.rule.limit[rank]
        if self._is_full(rank, op.stage):
            return False
        if limit == NO_LIMIT:
            return True
        used = self.held[rank] + problem.activation[op.stage]
        stages = problem.stages_of[rank]
        if used > limit:
            return False
        if len(stages) == 1 or self.rule.per_stage:
            return True
        for microbatch in range(self.next[OpKind.W, stages[0]], op.microbatch + 1):
            present = sum(problem.activation[s] for s in stages if self.next[OpKind.F, s] > microbatch
                      or Op(OpKind.F, s, microbatch) == op)  # fmt: skip
            needed = sum(problem.activation[s] for s in stages if self.next[OpKind.I, s] > microbatch)
            missing = sum(problem.activation[s] for s in stages) - present
            if used + missing > limit:
                return False
            used -= present - needed
        return True

    def _is_full(self, rank: int, stage: int) -> bool:
        """Return whether the number of activations in flight on a rank or stage is at its limit."""
        limit = self.rule.in_flight[rank] if self.rule.in_flight else NO_LIMIT
        if limit != NO_LIMIT and self.flying[rank] >= limit:
            return True
        return bool(self.rule.per_stage) and self.in_stage[stage] >= self.rule.per_stage[stage]


class OffloadingLister(Lister):
    """List scheduling with offloaded activations and running copies.

    Args:
        problem: what to schedule.
        kept: how many activations that are needed first stay on a rank; the next ones are offloaded.
        patient: as in :class:`Rule`.
        late: whether a reload ends just in time for its gradient; else it starts as soon as memory allows.
    """

    def __init__(self, problem: Problem, kept: int, *, patient: bool, late: bool) -> None:
        super().__init__(problem, Rule(limit=problem.limit, patient=patient))
        self.kept, self.late = kept, late
        self.pending: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
        """Per rank the microbatch and negative stage of each pending input gradient, the next one first."""
        self.offload_end: dict[tuple[int, int], int] = {}
        """By entry of ``pending``, the end of its offload."""
        self.reload_end: dict[tuple[int, int], int] = {}
        """By entry of ``pending``, the end of its reload."""
        self.freed: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
        self.copied = [[0, 0] for _ in range(problem.ranks)]
        for group in problem.shared:
            for rank in group:
                self.copied[rank] = self.copied[group[0]]

    def finish(self, now: int, op: Op) -> None:
        """Record the end of an operation, and start the offload of its activation."""
        super().finish(now, op)
        rank, key = self.problem.stage_rank[op.stage], (op.microbatch, -op.stage)
        if op.kind is OpKind.F:
            self._add_pending(rank, op, now)
        elif op.kind is OpKind.I:
            self.pending[rank].remove(key)

    def _add_pending(self, rank: int, op: Op, now: int) -> None:
        """Add an activation to the pending ones, and offload it if enough of them are needed earlier."""
        key, stage = (op.microbatch, -op.stage), op.stage
        self.pending[rank].append(key)
        self.pending[rank].sort()
        if self.problem.limit[rank] == NO_LIMIT or self.pending[rank].index(key) < self.kept:
            return
        if op._replace(kind=OpKind.I) in self.ready:
            return
        start = self.start[op._replace(kind=OpKind.O)] = max(now, self.copied[rank][0])
        self.copied[rank][0] = self.offload_end[key] = start + self.problem.offload[stage]
        self.freed[rank].append((self.offload_end[key], self.problem.activation[stage]))
        heappush(self.events, (self.offload_end[key], rank))

    def wake(self, rank: int, now: int) -> None:
        """Start the next reload if memory allows."""
        due = self._due(rank)
        if due is None or self.offload_end[due] > now:
            return
        stage = -due[1]
        if self.late and self._gradient_time(Op(OpKind.I, stage, due[0])) - self.problem.reload[stage] > now:
            return
        if self._held_size(rank, now) + self.problem.activation[stage] > self.problem.limit[rank]:
            return
        begin = max(now, self.copied[rank][1])
        self.copied[rank][1] = self.reload_end[due] = begin + self.problem.reload[stage]
        self.held[rank] += self.problem.activation[stage]
        self.start[Op(OpKind.R, stage, due[0])] = begin
        heappush(self.events, (self.reload_end[due], rank))

    def begin(self, rank: int, op: Op, now: int) -> None:
        """Start an operation and schedule the reload of the previous stage in time."""
        super().begin(rank, op, now)
        if op.kind is OpKind.I and op.stage and self.late:
            previous = op._replace(stage=op.stage - 1)
            reload_time = self._gradient_time(previous) - self.problem.reload[previous.stage]
            heappush(self.events, (int(max(reload_time, now)), self.problem.stage_rank[previous.stage]))

    def _gradient_time(self, op: Op) -> float:
        """Return when the next stage's gradient arrives for an input gradient; infinity before that one starts."""
        if op in self.ready:
            return self.ready[op]
        next_op = op._replace(stage=op.stage + 1)
        start = self.start.get(next_op)
        if start is None:
            return inf
        return start + self.problem.duration(next_op) + self.problem.backward_transfer[op.stage]

    def _due(self, rank: int) -> tuple[int, int] | None:
        """Return the next offloaded activation to reload, if any."""
        next_keys = self.pending[rank][: self.kept + 1]
        return next((key for key in next_keys if key in self.offload_end and key not in self.reload_end), None)

    def _held_size(self, rank: int, now: int) -> int:
        """Return the bytes on a rank at a time, without activations that are on the host."""
        return self.held[rank] - sum(size for moment, size in self.freed[rank] if moment <= now)

    def first(self, rank: int, kind: OpKind, now: int) -> tuple[Op | None, int | None]:
        """Return as the base class; an input gradient may start only if its activation is on the rank."""
        op, soon = super().first(rank, kind, now)
        if op is not None and kind is OpKind.I:
            key = (op.microbatch, -op.stage)
            if key in self.offload_end and self.reload_end.get(key, now + 1) > now:
                return None, self.reload_end.get(key, soon)
        return op, soon

    def has_room(self, rank: int, op: Op) -> bool:
        """Return whether a forward fits into memory. If it is not offloaded, the next reload must fit as well."""
        limit, now = self.rule.limit[rank], self.now
        if limit == NO_LIMIT:
            return True
        size = self.problem.activation[op.stage]
        if self._held_size(rank, now) + size > limit:
            return False
        earlier_count = sum(key < (op.microbatch, -op.stage) for key in self.pending[rank])
        due = self._due(rank)
        if earlier_count >= self.kept or due is None:
            return True
        used = self._held_size(rank, now + self.problem.duration(op))
        return used + size + self.problem.activation[-due[1]] <= limit
