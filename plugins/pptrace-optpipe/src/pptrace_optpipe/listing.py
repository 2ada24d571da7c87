"""List scheduling with host copies.

A rank that is free runs an input gradient if one is there, else a forward that memory has room for, else a weight
gradient; weight gradients so fill what would be idle. Source of the rule: Qi et al., arXiv:2401.10241, section
3. Room follows the banker's rule: a forward starts only if every microbatch in flight on the rank could still
finish, oldest first, so that no memory above the least makes ranks wait for ever.

When a rank ends a computation it first launches the reload of the gradient that is due next, if that activation is
away and there is room; a forward starts only if that reload would still have room behind it. What more than some
activations are in line before it, goes to the host right behind its forward. A forward that
finds no room waits for a copy, unless something else can run.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from pptrace_optpipe.playback import rows_of
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["Lister", "OffloadingLister", "Rule", "serial_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a rank prefers."""

    limit: tuple[int, ...]
    """Shape (ranks,): memory for activations; ``NO_LIMIT`` for any amount."""
    in_flight: tuple[int, ...] = ()
    """Shape (ranks,): the most activations between a forward and its input gradient; none unless given."""
    per_stage: tuple[int, ...] = ()
    """Shape (stages,): the same of each stage, which then needs no banker's rule; none unless given."""
    patient: bool = True
    """Whether a rank waits for an input gradient that comes before a weight gradient would be half done."""
    weights_first: bool = False
    """Whether a weight gradient comes before a forward."""


def serial_rows(problem: Problem, *, copied: bool) -> Rows:
    """Return rows of one microbatch after another: what needs least memory.

    Args:
        problem: what to schedule.
        copied: whether each stage's activation but the last's on a rank goes to the host meanwhile.
    """
    rows: Rows = [[] for _ in range(problem.ranks)]
    for microbatch in range(problem.microbatches):
        gone = {stage for stages in problem.stages_of for stage in stages[:-1]} if copied else set()
        for stage, rank in enumerate(problem.stage_rank):
            rows[rank].append(Op(Part.F, stage, microbatch))
            if stage in gone:
                rows[rank] += [Op(Part.O, stage, microbatch), Op(Part.A, stage, microbatch)]
        for stage in reversed(range(problem.stages)):
            row = rows[problem.stage_rank[stage]]
            if stage in gone:
                row.append(Op(Part.R, stage, microbatch))
            row += [Op(Part.I, stage, microbatch), Op(Part.W, stage, microbatch)]
    return rows


class Lister:
    """The ranks while the rule is played; at one instant ends come before starts."""

    def __init__(self, problem: Problem, rule: Rule) -> None:
        self.problem, self.rule = problem, rule
        stages = range(problem.stages)
        self.next = {(part, stage): 0 for part in COMPUTED for stage in stages}
        self.ready: dict[Op, int] = {Op(Part.F, 0, mb): 0 for mb in range(problem.microbatches)}
        self.held = [0] * problem.ranks
        self.flying = [0] * problem.ranks
        self.in_stage = [0] * problem.stages
        self.busy = [0] * problem.ranks
        self.start: dict[Op, int] = {}
        self.events: list[tuple[int, int]] = [(0, rank) for rank in range(problem.ranks)]
        self.ends: list[tuple[int, Op]] = []
        self.now = 0

    def rows(self) -> Rows | None:
        """Play, and return every rank's row."""
        while self.events or self.ends:
            now = self.now = min(queue[0][0] for queue in (self.events, self.ends) if queue)
            while self.ends and self.ends[0][0] <= now:
                self.finish(*heappop(self.ends))
            asked = set()
            while self.events and self.events[0][0] <= now:
                asked.add(heappop(self.events)[1])
            for rank in sorted(asked):
                self.wake(rank, now)
                if self.busy[rank] <= now:
                    self._choose(rank, now)
        count = len(COMPUTED) * self.problem.stages * self.problem.microbatches
        ran = sum(op.part in COMPUTED for op in self.start)
        return rows_of(self.problem, self.start) if ran == count else None

    def wake(self, rank: int, now: int) -> None:
        """Do what a rank does beside computing."""

    def finish(self, now: int, op: Op) -> None:
        """Record the end of an operation: freed memory and operations that become ready."""
        problem, (part, stage, microbatch) = self.problem, op
        rank = problem.stage_rank[stage]
        if part is Part.F:
            last = stage + 1 == problem.stages
            then = Op(Part.I if last else Part.F, stage if last else stage + 1, microbatch)
            self._enable(then, now + (0 if last else problem.forward_transfer[stage]))
        elif part is Part.I:
            self.held[rank] -= problem.activation[stage] - problem.weight_activation[stage]
            self.flying[rank] -= 1
            self.in_stage[stage] -= 1
            self._enable(Op(Part.W, stage, microbatch), now)
            if stage:
                self._enable(Op(Part.I, stage - 1, microbatch), now + problem.backward_transfer[stage - 1])
        else:
            self.held[rank] -= problem.weight_activation[stage]
        heappush(self.events, (now, rank))

    def _enable(self, op: Op, at: int) -> None:
        self.ready[op] = at
        heappush(self.events, (at, self.problem.stage_rank[op.stage]))

    def _choose(self, rank: int, now: int) -> None:
        """Start what the rule prefers, if anything may start."""
        gradient, soon = self.first(rank, Part.I, now)
        forward, _ = self.first(rank, Part.F, now)
        weight, _ = self.first(rank, Part.W, now)
        if forward is not None and not self.has_room(rank, forward):
            forward = None
        rule = self.rule
        order = (gradient, weight, forward) if rule.weights_first else (gradient, forward, weight)
        op = next((one for one in order if one is not None), None)
        if op is None:
            return
        if rule.patient and op is weight and soon is not None and 2 * (soon - now) < self.problem.w[op.stage]:
            return  # it is asked again when that is there
        self.begin(rank, op, now)

    def first(self, rank: int, part: Part, now: int) -> tuple[Op | None, int | None]:
        """Return the best op of a part that may start, and when the earliest one may."""
        best, soon = None, None
        for stage in self.problem.stages_of[rank]:
            op = Op(part, stage, self.next[part, stage])
            at = self.ready.get(op)
            if at is None:
                continue
            soon = at if soon is None else min(soon, at)
            if at <= now and (best is None or (op.microbatch, -op.stage) < (best.microbatch, -best.stage)
                              or (part is Part.F and op.stage > best.stage)):  # fmt: skip
                best = op
        return best, soon

    def begin(self, rank: int, op: Op, now: int) -> None:
        """Start an op."""
        self.next[op.part, op.stage] += 1
        del self.ready[op]
        if op.part is Part.F:
            self.held[rank] += self.problem.activation[op.stage]
            self.flying[rank] += 1
            self.in_stage[op.stage] += 1
        self.start[op] = now
        self.busy[rank] = now + self.problem.duration(op)
        heappush(self.ends, (self.busy[rank], op))

    def has_room(self, rank: int, op: Op) -> bool:
        """Return whether all that is in flight on a rank could finish behind a forward, oldest first."""
        problem, limit = self.problem, self.rule.limit[rank]
        if self._is_full(rank, op.stage):
            return False
        if limit == NO_LIMIT:
            return True
        held = self.held[rank] + problem.activation[op.stage]
        stages = problem.stages_of[rank]
        if held > limit:
            return False
        if len(stages) == 1 or self.rule.per_stage:
            return True
        for microbatch in range(self.next[Part.W, stages[0]], op.microbatch + 1):
            own = sum(problem.activation[s] for s in stages if self.next[Part.F, s] > microbatch
                      or Op(Part.F, s, microbatch) == op)  # fmt: skip
            gone = sum(problem.activation[s] for s in stages if self.next[Part.I, s] > microbatch)
            missing = sum(problem.activation[s] for s in stages) - own
            if held + missing > limit:
                return False
            held -= own - gone
        return True

    def _is_full(self, rank: int, stage: int) -> bool:
        """Return whether as many activations are in flight on a rank or stage as may be."""
        most = self.rule.in_flight[rank] if self.rule.in_flight else NO_LIMIT
        if most != NO_LIMIT and self.flying[rank] >= most:
            return True
        return bool(self.rule.per_stage) and self.in_stage[stage] >= self.rule.per_stage[stage]


class OffloadingLister(Lister):
    """List scheduling with offloaded activations and running copies.

    Args:
        problem: what to schedule.
        kept: how many activations are in line on a rank before one goes to the host.
        patient: as :class:`Rule` has it.
        late: whether an activation comes back just in time for its gradient, or as soon as there is room.
    """

    def __init__(self, problem: Problem, kept: int, *, patient: bool, late: bool) -> None:
        super().__init__(problem, Rule(limit=problem.limit, patient=patient))
        self.kept, self.late = kept, late
        self.line: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
        """Per rank the microbatches and negative stages whose gradients are to come, the next one first."""
        self.away: dict[tuple[int, int], int] = {}
        """When what is in line is on the host."""
        self.back: dict[tuple[int, int], int] = {}
        """When it is back."""
        self.freed: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
        self.copied = [[0, 0] for _ in range(problem.ranks)]
        for group in problem.shared:
            for rank in group:
                self.copied[rank] = self.copied[group[0]]

    def finish(self, now: int, op: Op) -> None:
        """Note an end, and launch what follows it."""
        super().finish(now, op)
        rank, at = self.problem.stage_rank[op.stage], (op.microbatch, -op.stage)
        if op.part is Part.F:
            self._line_up(rank, op, now)
        elif op.part is Part.I:
            self.line[rank].remove(at)

    def _line_up(self, rank: int, op: Op, now: int) -> None:
        """Put an activation in line, and send it away if enough are before it."""
        at, stage = (op.microbatch, -op.stage), op.stage
        self.line[rank].append(at)
        self.line[rank].sort()
        if self.problem.limit[rank] == NO_LIMIT or self.line[rank].index(at) < self.kept:
            return
        if op._replace(part=Part.I) in self.ready:
            return
        out = self.start[op._replace(part=Part.O)] = max(now, self.copied[rank][0])
        self.copied[rank][0] = self.away[at] = out + self.problem.offload[stage]
        self.freed[rank].append((self.away[at], self.problem.activation[stage]))
        heappush(self.events, (self.away[at], rank))

    def wake(self, rank: int, now: int) -> None:
        """Start the next reload if memory allows."""
        due = self._due(rank)
        if due is None or self.away[due] > now:
            return
        stage = -due[1]
        if self.late and self._gradient_at(Op(Part.I, stage, due[0])) - self.problem.reload[stage] > now:
            return
        if self._held_at(rank, now) + self.problem.activation[stage] > self.problem.limit[rank]:
            return
        begin = max(now, self.copied[rank][self._inward])
        self.copied[rank][self._inward] = self.back[due] = begin + self.problem.reload[stage]
        self.held[rank] += self.problem.activation[stage]
        self.start[Op(Part.R, stage, due[0])] = begin
        heappush(self.events, (self.back[due], rank))

    def begin(self, rank: int, op: Op, now: int) -> None:
        """Start an operation and schedule the reload of the previous stage in time."""
        super().begin(rank, op, now)
        if op.part is Part.I and op.stage and self.late:
            before = op._replace(stage=op.stage - 1)
            at = self._gradient_at(before) - self.problem.reload[before.stage]
            heappush(self.events, (int(max(at, now)), self.problem.stage_rank[before.stage]))

    def _gradient_at(self, op: Op) -> float:
        """Return when what an input gradient needs of the next stage is there, as far as that has begun."""
        if op in self.ready:
            return self.ready[op]
        onward = op._replace(stage=op.stage + 1)
        begun = self.start.get(onward)
        if begun is None:
            return inf
        return begun + self.problem.duration(onward) + self.problem.backward_transfer[op.stage]

    @property
    def _inward(self) -> int:
        return 0 if self.problem.one_stream else 1

    def _due(self, rank: int) -> tuple[int, int] | None:
        """Return the next offloaded activation to reload, if any."""
        near = self.line[rank][: self.kept + 1]
        return next((at for at in near if at in self.away and at not in self.back), None)

    def _held_at(self, rank: int, now: int) -> int:
        """Return the bytes on a rank at a time, without activations that are on the host."""
        return self.held[rank] - sum(size for moment, size in self.freed[rank] if moment <= now)

    def first(self, rank: int, part: Part, now: int) -> tuple[Op | None, int | None]:
        """Return what may start, a gradient only when its activation is there."""
        op, soon = super().first(rank, part, now)
        if op is not None and part is Part.I:
            at = (op.microbatch, -op.stage)
            if at in self.away and self.back.get(at, now + 1) > now:
                return None, self.back.get(at, soon)
        return op, soon

    def has_room(self, rank: int, op: Op) -> bool:
        """Return whether a forward may take its memory, and leave some for the next reload unless it goes away."""
        limit, now = self.rule.limit[rank], self.now
        if limit == NO_LIMIT:
            return True
        size = self.problem.activation[op.stage]
        if self._held_at(rank, now) + size > limit:
            return False
        ahead = sum(at < (op.microbatch, -op.stage) for at in self.line[rank])
        due = self._due(rank)
        if ahead >= self.kept or due is None:
            return True
        return (
            self._held_at(rank, now + self.problem.duration(op)) + size + self.problem.activation[-due[1]] <= limit
        )
