"""List scheduling with copies: ranks send activations away as they run ahead, and fetch the next one in time.

When a rank ends a computation it first launches the reload of the gradient that is due next, if that activation is
away and there is room; a forward starts only if that reload would still have room behind it. What more than some
activations are in line before it, goes to the host right behind its forward. A forward that
finds no room waits for a copy, unless something else can run.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING

from pptrace_optpipe.listing import Lister, Rule
from pptrace_optpipe.problem import NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["offloaded_rows"]


def offloaded_rows(problem: Problem, kept: int, *, patient: bool) -> Rows | None:
    """Return rows with copies; None where ranks come to wait for each other.

    Args:
        problem: what to schedule.
        kept: how many activations are in line on a rank before one goes to the host.
        patient: as :class:`~pptrace_optpipe.listing.Rule` has it.
    """
    return _Offloader(problem, kept, patient=patient).rows()


class _Offloader(Lister):
    """The ranks, with what is away and on its way."""

    def __init__(self, problem: Problem, kept: int, *, patient: bool) -> None:
        super().__init__(problem, Rule(limit=problem.limit, patient=patient))
        self.kept = kept
        self.line: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
        """Per rank the microbatches and negative stages whose gradients are to come, the next one first."""
        self.away: dict[tuple[int, int], int] = {}
        """When what is in line is on the host."""
        self.back: dict[tuple[int, int], int] = {}
        """When it is back."""
        self.freed: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
        self.copied = [[0, 0] for _ in range(problem.ranks)]

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
        if self._held_at(rank, now) + self.problem.activation[stage] > self.problem.limit[rank]:
            return
        begin = max(now, self.copied[rank][self._inward])
        self.copied[rank][self._inward] = self.back[due] = begin + self.problem.reload[stage]
        self.held[rank] += self.problem.activation[stage]
        self.start[Op(Part.R, stage, due[0])] = begin
        heappush(self.events, (self.back[due], rank))

    @property
    def _inward(self) -> int:
        return 0 if self.problem.one_stream or self.problem.shared else 1

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
        """Return whether a forward may take its memory, and the next reload still find some behind it."""
        limit, now = self.rule.limit[rank], self.now
        if limit == NO_LIMIT:
            return True
        size = self.problem.activation[op.stage]
        until = now + self.problem.duration(op)
        due = self._due(rank)
        reserve = self.problem.activation[-due[1]] if due is not None else 0
        return self._held_at(rank, now) + size <= limit and self._held_at(rank, until) + size + reserve <= limit
