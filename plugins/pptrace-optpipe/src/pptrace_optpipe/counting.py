"""A lower bound by counting: how many ops of each sort have begun by each moment, of whichever microbatch.

Microbatches are alike, so a schedule that differs in nothing but their numbers is as good. Where copies or
forwards computed again let one overtake another, no order of them may be assumed, and the solver meets every
schedule as often as microbatches can be numbered. Here they have no numbers. For each stage and sort of op,
``n(t)`` is how many have begun by moment ``t``; as all of a sort take as long, ``n(t - d)`` have ended. In any
schedule:

- Streams: ``n(t) - n(t - d)``, summed over what runs on a stream, is at most 1.
- Dataflow: whatever has begun has its own predecessor ended, and no two share one, so at least as many of those
  have ended. ``F`` is counted against ``F`` of the stage before, ``I`` against ``I`` of the next, ``W`` against
  ``I``, ``O`` against ``F``, ``R`` against ``O``, ``C`` against the forwards that are to be computed again.
- Residency: a microbatch whose ``I`` has begun has its forward ended and, if it goes to the host or is computed
  again, is back or has been computed. What has left for the host and is not back has its forward ended too, and
  has not begun its ``I``. So begun ``I`` <= ended ``F`` - begun ``O`` + ended ``R`` + ended ``C``, where ``F``
  leaves out the forwards that are to be computed again.
- Memory: what is held is the sum of those counts times sizes, exactly.

So every schedule gives counts that satisfy all this, and where none do within a length, no schedule is as short.
The other way does not hold: to counts, one microbatch may come back in place of another. The bound may be below
the optimum.

Showing one length after another to be too short is a destructive bound: Klein and Scholl, Computing lower bounds
by destructive improvement, European Journal of Operational Research 112, 1999.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from pptrace_optpipe.bounds import latest
from pptrace_optpipe.problem import NO_LIMIT, Op, Part, coarsened
from pptrace_optpipe.solving import run_solver, solver_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_optpipe.problem import Problem
    from pptrace_optpipe.solving import Effort

__all__ = ["can_be_as_short", "counted_bound"]

_LATER = Part.A
"""Stands for a forward that is to be computed again; nothing is awaited here."""
_MOST = 20_000
"""Moments of all sorts together, above which no solver is asked."""
_FINEST = 400
"""Units of time that a rank's work has at most, where times are finer than that."""


def counted_bound(problem: Problem, effort: Effort, *, length: int, least: int = 0) -> int:
    """Return a lower bound of the step (or span), from lengths that counts show to be too short.

    Times are rounded down to moments coarse enough for the solver, which keeps the bound one. A span may then come
    out longer, so of spans whose times are too fine nothing is shown.

    Args:
        problem: what to schedule.
        effort: for all lengths together; where that ends, the bound is what was shown until then.
        length: of a schedule that is known: the bound is no higher.
        least: a lower bound that is known; what is returned is no lower.
    """
    problem = replace(problem.shortest, tail=()) if problem.span else problem.shortest
    coarse, unit = coarsened(problem, _FINEST)
    if problem.span and unit != coarsened(problem, problem.work(0) * problem.ranks)[1]:
        return least
    began = effort.clock()
    low, high = least // unit, length // unit
    tried = high - 1
    while low <= tried < high:
        left = effort.seconds - (effort.clock() - began)
        if left <= 0 or effort.stopped() or _size(coarse, tried) > _MOST:
            break
        if can_be_as_short(coarse, replace(effort, seconds=left if tried == low else left / 2), tried):
            high = tried
        else:
            low = tried + 1
        tried = (low + high - 1) // 2
    return max(low * unit, least)


def can_be_as_short(problem: Problem, effort: Effort, length: int) -> bool:
    """Return whether counts leave a length possible, or time ran out.

    Args:
        problem: what to schedule, in units that moments are few of.
        effort: how to search.
        length: of the step or, where that counts, the longest rank's span.
    """
    model = _Counts(problem, length).build()
    return bool(run_solver(solver_of(effort), model, effort) != cp_model.INFEASIBLE)


def _size(problem: Problem, length: int) -> int:
    """Return how many moments of sorts a model has."""
    sorts = 3 + 2 * problem.copies + 2 * problem.recomputes
    return sorts * problem.stages * max(latest(problem, length), 0)


class _Counts:
    """The model of one length."""

    def __init__(self, problem: Problem, length: int) -> None:
        self.problem, self.length = problem, length
        self.moments = max(latest(problem, length) - min(problem.tail), 0) + 1
        self.cp = cp_model.CpModel()
        self.begun: dict[tuple[Part, int], list[Any]] = {}
        """By sort and stage: how many have begun by each moment."""

    def build(self) -> cp_model.CpModel:
        """Return the model."""
        problem = self.problem
        for stage in range(problem.stages):
            self._sorts(stage)
        for stage in range(problem.stages):
            self._dataflow(stage)
        for rank in range(problem.ranks):
            stages = problem.stages_of[rank]
            self._one_at_a_time([(part, s) for part in (Part.F, _LATER, Part.I, Part.W, Part.C) for s in stages])
            if problem.limit[rank] != NO_LIMIT:
                self._memory(rank)
            self._ends(rank)
        for ranks, parts in problem.channels:
            self._one_at_a_time([(part, s) for part in parts for rank in ranks for s in problem.stages_of[rank]])
        return self.cp

    def _took(self, part: Part, stage: int) -> int:
        return self.problem.duration(Op(Part.F if part is _LATER else part, stage, 0))

    def _sorts(self, stage: int) -> None:
        """Count the ops of a stage, none of which begins before what it needs can have ended, or ends too late."""
        problem = self.problem
        limited = problem.limit[problem.stage_rank[stage]] != NO_LIMIT
        down = list(accumulate((f + t for f, t in zip(problem.f, (*problem.forward_transfer, 0), strict=True)),
                               initial=0))  # fmt: skip
        turned = down[-1] + sum(problem.i[stage + 1 :]) + sum(problem.backward_transfer[stage:])
        done = down[stage] + problem.f[stage]
        first = {Part.F: down[stage], Part.I: turned, Part.W: turned + problem.i[stage]}
        if problem.copies and limited:
            first |= {Part.O: done, Part.R: done + problem.offload[stage]}
        if problem.recomputes and limited:
            first |= {_LATER: down[stage], Part.C: done}
        for part, since in first.items():
            until = self.moments - self._took(part, stage)
            self.begun[part, stage] = self._line(part, stage, since, until)
        for part, other in ((Part.O, Part.R), (_LATER, Part.C)):
            if (part, stage) in self.begun:
                self.cp.add(self.begun[part, stage][-1] == self.begun[other, stage][-1])
        every = problem.microbatches
        self.cp.add(self._count(Part.F, stage, self.moments) + self._count(_LATER, stage, self.moments) == every)
        for part in (Part.I, Part.W):
            self.cp.add(self._count(part, stage, self.moments) == every)

    def _line(self, part: Part, stage: int, since: int, until: int) -> list[Any]:
        """Return how many of a sort have begun by each moment; those that take time begin one at a time."""
        every, line, last = self.problem.microbatches, list[Any](), 0
        at_once = 1 if self._took(part, stage) else every
        for moment in range(self.moments):
            if since <= moment < max(until, 1):
                now = self.cp.new_int_var(0, every, f"{part.name}{stage}<={moment}")
                begins = self.cp.new_int_var(0, at_once, f"{part.name}{stage}@{moment}")
                self.cp.add(now == last + begins)
                last = now
            line.append(last)
        return line

    def _count(self, part: Part, stage: int, moment: int, *, ended: bool = False) -> Any:
        """Return how many of a sort have begun, or ended, by a moment."""
        line = self.begun.get((part, stage))
        if line is None:
            return 0
        at = moment - self._took(part, stage) if ended else moment
        return line[min(at, self.moments - 1)] if at >= 0 else 0

    def _ended(self, part: Part, stage: int, moment: int) -> Any:
        return self._count(part, stage, moment, ended=True)

    def _dataflow(self, stage: int) -> None:
        """Let no more of a sort have begun than what they need has ended."""
        problem = self.problem
        for moment in range(self.moments):
            forwards = self._count(Part.F, stage, moment) + self._count(_LATER, stage, moment)
            if stage:
                at = moment - problem.forward_transfer[stage - 1]
                self._at_most(forwards, self._ended(Part.F, stage - 1, at) + self._ended(_LATER, stage - 1, at))
            gradients, done = self._count(Part.I, stage, moment), self._ended(Part.F, stage, moment)
            if stage + 1 < problem.stages:
                at = moment - problem.backward_transfer[stage]
                self._at_most(gradients, self._ended(Part.I, stage + 1, at))
            out = self._count(Part.O, stage, moment)
            back, again = self._ended(Part.R, stage, moment), self._ended(Part.C, stage, moment)
            self._at_most(gradients, done - out + back + again)
            self._at_most(self._count(Part.W, stage, moment), self._ended(Part.I, stage, moment))
            self._at_most(out, done)
            self._at_most(self._count(Part.R, stage, moment), self._ended(Part.O, stage, moment))
            self._at_most(self._count(Part.C, stage, moment), self._ended(_LATER, stage, moment))

    def _at_most(self, one: Any, other: Any) -> None:
        if not isinstance(one, int) or not isinstance(other, int):
            self.cp.add(one <= other)

    def _one_at_a_time(self, sorts: Iterable[tuple[Part, int]]) -> None:
        """Let sorts share a stream."""
        own = [one for one in sorts if one in self.begun]
        for moment in range(self.moments):
            self._at_most(sum(self._count(*one, moment) - self._ended(*one, moment) for one in own), 1)

    def _memory(self, rank: int) -> None:
        """Hold a rank to its limit."""
        problem = self.problem
        for moment in range(self.moments):
            held: Any = 0
            for stage in problem.stages_of[rank]:
                whole, part = problem.activation[stage], problem.weight_activation[stage]
                held += whole * self._count(Part.F, stage, moment)
                held -= (whole - part) * self._ended(Part.I, stage, moment)
                held -= part * self._ended(Part.W, stage, moment)
                if problem.copies:
                    held += whole * (self._count(Part.R, stage, moment) - self._ended(Part.O, stage, moment))
                if problem.recomputes:
                    kept = problem.checkpoint[stage]
                    held += kept * self._count(_LATER, stage, moment)
                    held += (whole - kept) * self._count(Part.C, stage, moment)
            self._at_most(held, problem.limit[rank])

    def _ends(self, rank: int) -> None:
        """Let all weight gradients of a rank end in time: of the step, or behind its own first start."""
        problem = self.problem
        for stage in problem.stages_of[rank]:
            last = self.length - problem.tail[rank] - problem.w[stage]
            if not problem.span:
                self._all_begun(stage, last)
                continue
            first = problem.stages_of[rank][0]
            for moment in range(self.moments - 1 - last):
                begun = self._count(Part.F, first, moment) + self._count(_LATER, first, moment)
                if isinstance(begun, int):
                    continue
                # Whatever has begun by now, all weight gradients begin no later than that length from here.
                some = self.cp.new_bool_var("some")
                self.cp.add(begun == 0).only_enforce_if(~some)
                self._all_begun(stage, moment + last, some)

    def _all_begun(self, stage: int, moment: int, chosen: Any = None) -> None:
        """Let all weight gradients of a stage have begun by a moment, if that is chosen."""
        count = self._count(Part.W, stage, moment)
        if isinstance(count, int):
            held = self.cp.add_bool_or([]) if chosen is None else self.cp.add(chosen == 0)
        else:
            held = self.cp.add(count == self.problem.microbatches)
            if chosen is not None:
                held.only_enforce_if(chosen)
