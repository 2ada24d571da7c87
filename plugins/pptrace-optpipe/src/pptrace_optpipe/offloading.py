"""List scheduling with copies: ranks send activations away as they run ahead, and fetch the next one in time.

When a rank ends a computation it first launches the reload of the gradient that is due next, if that activation is
away and there is room; a forward starts only if that reload would still have room behind it. What more than some
activations are in line before it, goes to the host right behind its forward. A forward that
finds no room waits for a copy, unless something else can run.
"""

from __future__ import annotations

from heapq import heappush
from math import inf
from typing import TYPE_CHECKING

from pptrace_optpipe.listing import Lister, Rule
from pptrace_optpipe.problem import NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["offloaded_rows"]


def offloaded_rows(problem: Problem, kept: int, *, patient: bool, late: bool) -> Rows | None:
    """Return rows with copies; None where ranks come to wait for each other.

    Args:
        problem: what to schedule.
        kept: how many activations are in line on a rank before one goes to the host.
        patient: as :class:`~pptrace_optpipe.listing.Rule` has it.
        late: whether an activation comes back just in time for its gradient, or as soon as there is room.
    """
    return _Offloader(problem, kept, patient=patient, late=late).rows()


class _Offloader(Lister):
    """The ranks, with what is away and on its way."""

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
        """Launch the reload of what is due next, if there is room."""
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
        """Start an op, and ask the stage before to fetch what it is for in time."""
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
        """Return what is next in line of what is away."""
        near = self.line[rank][: self.kept + 1]
        return next((at for at in near if at in self.away and at not in self.back), None)

    def _held_at(self, rank: int, now: int) -> int:
        """Return what a rank holds, without what is on the host by then."""
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
