"""A lower bound by counting: how many ops of each sort have begun by each moment, of whichever microbatch.

Microbatches are alike, so a schedule that differs in nothing but their numbers is as good. Where copies or
forwards computed again let one overtake another, no order of them may be assumed, and the solver meets every
schedule as often as microbatches can be numbered. Here they have no numbers. For each stage and sort of op,
``n(t)`` is how many have begun by moment ``t``; as all of a sort take as long, ``n(t - d)`` have ended. In any
schedule:

- Streams: ``n(t) - n(t - d)``, summed over what runs on a stream, is at most 1.
- Dataflow: whatever has begun has its own predecessor ended, and no two share one, so at least as many of those
  have ended. ``F`` is counted against ``F`` of the stage before, ``I`` against ``I`` of the next, ``W`` against
  ``I``, ``O`` against ``F`` that go to the host, ``R`` against ``O``, ``C`` against ``F`` that are computed again.
- Residency: an activation stays, goes to the host or is computed again, and its ``F`` and ``I`` are counted with
  those of its kind. ``I`` begun are at most ``F`` that ended as long ago as the way to the last stage and back
  takes at least, and at most ``R``, or ``C``, that have ended. Quicker to solve, and weaker, is to count together
  what stays and what goes to the host: of what has begun ``I``, nothing is at the host or on its way, so ``I``
  begun <= ``F`` ended - ``O`` begun + ``R`` ended.
- Memory: what is held is the sum of those counts times sizes, exactly.

So every schedule gives counts that satisfy all this, and where none do within a length, no schedule is as short.
The other way does not hold: to counts, one microbatch may come back in place of another. The bound may be below
the optimum.

Showing one length after another to be too short is a destructive bound: Klein and Scholl, Computing lower bounds
by destructive improvement, European Journal of Operational Research 112, 1999.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ortools.sat.python import cp_model

from pptrace_optpipe.bounds import latest
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Op, Part, coarsened_by_work, is_exact
from pptrace_optpipe.solving import run_solver, solver_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace_optpipe.problem import Problem
    from pptrace_optpipe.solving import Effort

__all__ = ["can_be_as_short", "counted_bound"]

_WAYS = (None, Part.O, Part.C)
"""What becomes of an activation: it stays, goes to the host, or is computed again."""
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
    problem = replace(problem.shortest, b=(), tail=() if problem.span else problem.tail)
    coarse, unit = coarsened_by_work(problem, _FINEST)
    if problem.span and not is_exact(problem, coarse, unit):
        return least
    began = effort.clock()
    low, high = least // unit, length // unit
    tried, leapt = (low + high - 1) // 2, False
    while low <= tried < high:
        left = effort.seconds - (effort.clock() - began)
        if left <= 0 or effort.stopped() or _size(coarse, tried) > _MOST:
            break
        each = replace(effort, seconds=left / 2 if tried == low else left / 4)
        if all(can_be_as_short(coarse, each, tried, apart=apart) for apart in _apart(coarse)):
            high = tried
            tried = (low + high - 1) // 2
        else:  # what is known is often the shortest: that is tried once, where half way to it is too short
            low = tried + 1
            tried, leapt = (low + high - 1) // 2 if leapt else high - 1, True
    return max(low * unit, least)


def _apart(problem: Problem) -> tuple[bool, ...]:
    """Return how to count, the quick way first; without copies both are the same."""
    return (False, True) if problem.copies else (False,)


def can_be_as_short(problem: Problem, effort: Effort, length: int, *, apart: bool) -> bool:
    """Return whether counts leave a length possible, or time ran out.

    Args:
        problem: what to schedule, in units that moments are few of.
        effort: how to search; its time is for making the model too.
        length: of the step or, where that counts, the longest rank's span.
        apart: whether to count what goes to the host apart from what stays, which shows more and takes longer.
    """
    until = effort.clock() + effort.seconds
    counts = _Counts(problem, length, apart=apart)
    for _ in counts.parts():
        if effort.stopped() or effort.clock() > until:
            return True
    left = replace(effort, seconds=until - effort.clock())
    return bool(run_solver(solver_of(left), counts.cp, left) != cp_model.INFEASIBLE)


def _size(problem: Problem, length: int) -> int:
    """Return how many moments of sorts a model has."""
    sorts = 3 + 4 * problem.copies + 3 * problem.recomputes
    return sorts * problem.stages * max(latest(problem, length), 0)


class _Sort(NamedTuple):
    """Ops that are alike."""

    part: Part
    stage: int
    way: Part | None = None
    """Of ``F`` and ``I``: what becomes of their activation, one of ``_WAYS``."""


class _Counts:
    """The model of one length."""

    def __init__(self, problem: Problem, length: int, *, apart: bool) -> None:
        self.problem, self.length, self.apart = problem, length, apart
        self.host = Part.O if apart else None
        """The way of what goes to the host."""
        self.moments = max(latest(problem, length) - min(problem.tail), 0) + 1
        self.cp = cp_model.CpModel()
        self.begun: dict[_Sort, list[Any]] = {}
        """How many have begun by each moment."""

    def parts(self) -> Iterator[None]:
        """Make the model, and yield wherever that may be given up."""
        problem = self.problem
        for stage in range(problem.stages):
            self._sorts(stage)
            yield
        for stage in range(problem.stages):
            self._dataflow(stage)
            yield
        for rank in range(problem.ranks):
            stages = problem.stages_of[rank]
            self._one_at_a_time([one for one in self.begun if one.stage in stages and one.part in ON_RANK])
            if problem.limit[rank] != NO_LIMIT:
                self._memory(rank)
            self._ends(rank)
            yield
        for ranks, parts in problem.channels:
            stages = tuple(stage for rank in ranks for stage in problem.stages_of[rank])
            self._one_at_a_time([one for one in self.begun if one.stage in stages and one.part in parts])
            yield

    def _took(self, sort: _Sort) -> int:
        return self.problem.duration(Op(sort.part, sort.stage, 0))

    def _sorts(self, stage: int) -> None:
        """Count the ops of a stage, none of which begins before what it needs can have ended, or ends too late."""
        problem, every = self.problem, self.problem.microbatches
        limited = problem.limit[problem.stage_rank[stage]] != NO_LIMIT
        down = sum(problem.f[:stage]) + sum(problem.forward_transfer[:stage])
        done = down + problem.f[stage]
        turned = done + self._trip(stage)
        first = {_Sort(Part.W, stage): turned + problem.i[stage]}
        for way in (None, Part.O, Part.C):
            possible = problem.copies and self.apart if way is Part.O else problem.recomputes
            if way is None or (limited and possible):
                first |= {_Sort(Part.F, stage, way): down, _Sort(Part.I, stage, way): turned}
        if limited and problem.copies:
            first |= {_Sort(Part.O, stage): done, _Sort(Part.R, stage): done + problem.offload[stage]}
        if _Sort(Part.F, stage, Part.C) in first:
            first[_Sort(Part.C, stage)] = done
        for sort, since in first.items():
            self.begun[sort] = self._line(sort, since, self.moments - self._took(sort))
        for part in (Part.F, Part.I, Part.W):
            self.cp.add(self._count(part, stage, self.moments) == every)

    def _trip(self, stage: int) -> int:
        """Return the least time from the end of a forward to the start of its input gradient."""
        return self.problem.round_trip(stage) - self.problem.f[stage] - self.problem.i[stage]

    def _line(self, sort: _Sort, since: int, until: int) -> list[Any]:
        """Return how many of a sort have begun by each moment; those that take time begin one at a time."""
        every, line, last = self.problem.microbatches, list[Any](), 0
        at_once = 1 if self._took(sort) else every
        for moment in range(self.moments):
            if since <= moment < max(until, 1):
                now = self.cp.new_int_var(0, every, f"{sort}<={moment}")
                begins = self.cp.new_int_var(0, at_once, f"{sort}@{moment}")
                self.cp.add(now == last + begins)
                last = now
            line.append(last)
        return line

    def _at(self, sort: _Sort, moment: int) -> Any:
        """Return how many of a sort have begun by a moment."""
        line = self.begun.get(sort)
        return line[min(moment, self.moments - 1)] if line is not None and moment >= 0 else 0

    def _done(self, sort: _Sort, moment: int) -> Any:
        """Return how many of a sort have ended by a moment."""
        return self._at(sort, moment - self._took(sort)) if sort in self.begun else 0

    def _count(self, part: Part, stage: int, moment: int) -> Any:
        """Return how many of a part have begun on a stage, whatever becomes of their activations."""
        return sum(self._at(_Sort(part, stage, way), moment) for way in _WAYS)

    def _ended(self, part: Part, stage: int, moment: int) -> Any:
        return sum(self._done(_Sort(part, stage, way), moment) for way in _WAYS)

    def _dataflow(self, stage: int) -> None:
        """Let no more of a sort have begun than what they need has ended."""
        problem, trip = self.problem, self._trip(stage)
        out, back, again = (_Sort(part, stage) for part in (Part.O, Part.R, Part.C))
        for moment in range(self.moments):
            if stage:
                sent = self._ended(Part.F, stage - 1, moment - problem.forward_transfer[stage - 1])
                self._at_most(self._count(Part.F, stage, moment), sent)
            if stage + 1 < problem.stages:
                sent = self._ended(Part.I, stage + 1, moment - problem.backward_transfer[stage])
                self._at_most(self._count(Part.I, stage, moment), sent)
            self._at_most(self._count(Part.W, stage, moment), self._ended(Part.I, stage, moment))
            for way in _WAYS:
                forward, gradient = _Sort(Part.F, stage, way), _Sort(Part.I, stage, way)
                self._at_most(self._at(gradient, moment), self._done(forward, moment - trip))
            self._at_most(self._at(out, moment), self._done(_Sort(Part.F, stage, self.host), moment))
            self._at_most(self._at(back, moment), self._done(out, moment))
            there = self._done(back, moment)
            if not self.apart:
                there += self._done(_Sort(Part.F, stage), moment) - self._at(out, moment)
            self._at_most(self._at(_Sort(Part.I, stage, self.host), moment), there)
            self._at_most(self._at(again, moment), self._done(_Sort(Part.F, stage, Part.C), moment))
            self._at_most(self._at(_Sort(Part.I, stage, Part.C), moment), self._done(again, moment))

    def _at_most(self, one: Any, other: Any) -> None:
        if not isinstance(one, int) or not isinstance(other, int):
            self.cp.add(one <= other)

    def _one_at_a_time(self, sorts: Sequence[_Sort]) -> None:
        """Let sorts share a stream."""
        for moment in range(self.moments):
            self._at_most(sum(self._at(one, moment) - self._done(one, moment) for one in sorts), 1)

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
                back, out = self._at(_Sort(Part.R, stage), moment), self._done(_Sort(Part.O, stage), moment)
                held += whole * (back - out)
                if problem.recomputes:
                    later, again = (_Sort(Part.F, stage, Part.C), _Sort(Part.C, stage))
                    left_out = whole - problem.checkpoint[stage]
                    held += left_out * (self._at(again, moment) - self._at(later, moment))
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
                begun = self._count(Part.F, first, moment)
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
