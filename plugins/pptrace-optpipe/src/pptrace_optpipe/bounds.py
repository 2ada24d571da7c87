"""Lower bounds of the step, and their proofs.

A rank works for a known time, and idles besides at least

- until the first microbatch has come down to it (fill);
- ahead of its first gradient, when its memory is full of forwards: the first microbatch goes on to the last stage
  and back, which takes longer than those forwards;
- behind its last forward: that microbatch, too, goes on to the last stage and back to the first, which takes
  longer than the gradients of all the activations that memory holds then.

Where memory has no room for all forwards, one runs behind the first gradient, so the second and the third are
apart and add up.

All microbatches have the same costs, so a permutation of their numbers does not change the step. With host copies
or recomputation, one microbatch can overtake another, and the solver visits each schedule once per permutation.
This model has no numbers of microbatches. For each stage and kind of operation, ``n(t)`` operations have started
by time ``t``. All of one kind take the same time ``d``, so ``n(t - d)`` have ended. In any schedule:

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
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from ortools.sat.python import cp_model

from pptrace_optpipe.model import run_solver, solve
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Op, Part, coarsened_by_work, is_exact

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Problem

__all__ = [
    "bound",
    "can_be_as_short",
    "copy_ratio",
    "counted_bound",
    "latest",
    "relaxed_bound",
    "relaxed_ranks",
]

_GROUPS = 6
"""Groups of one size that are tried."""


def bound(problem: Problem) -> int:
    """Return a lower bound of the step (or span), from each rank's fill, work, drain, memory and copies."""
    problem = problem.shortest
    return max(_of_rank(problem, rank) for rank in range(problem.ranks))


def copy_ratio(problem: Problem, rank: int) -> float:
    """Return the time of copying a rank's activations out and back, relative to its computation.

    All of them can be copied for nothing in the steady state where this is at most 1: PipeOffload's k (Wan et al.,
    arXiv:2503.01328, section 3). Without copies it is infinite.
    """
    stages = problem.stages_of[rank]
    if not problem.offload:
        return float("inf")
    copied = sum(problem.offload[stage] + problem.reload[stage] for stage in stages)
    return copied / sum(problem.f[stage] + problem.i[stage] + problem.w[stage] for stage in stages)


def _of_rank(problem: Problem, rank: int) -> int:
    stages = problem.stages_of[rank]
    first = stages[0]
    fill = 0 if problem.span else sum(problem.f[:first]) + sum(problem.forward_transfer[:first])
    found = fill + _busy(problem, rank) + problem.tail[rank]
    if problem.span:
        return found
    # Behind the rank's last input gradient are all those of the stages before, and one weight gradient; of its own
    # only the weight gradients that memory let wait.
    passes = problem.work(rank) - _waiting(problem, rank)
    drain = sum(problem.i[:first]) + sum(problem.backward_transfer[:first]) + problem.w[0]
    return max(found, fill + _idle_ahead(problem, rank) + passes + drain + problem.tail[problem.stage_rank[0]])


def _waiting(problem: Problem, rank: int) -> int:
    """Return the longest work of weight gradients that can wait when a rank's last input gradient ends.

    While that runs, its whole activation is there, and the weight gradient's part of every other one that waits;
    those neither go to the host nor are computed again. The last input gradient is of the rank's first stage.
    """
    stages, limit = problem.stages_of[rank], problem.limit[rank]
    every = problem.microbatches * sum(problem.w[stage] for stage in stages)
    if limit == NO_LIMIT:
        return every
    left, waiting = limit - problem.activation[stages[0]], problem.w[stages[0]]
    for stage in sorted(stages, key=lambda one: -problem.w[one] / max(problem.weight_activation[one], 1e-9)):
        size, most = problem.weight_activation[stage], problem.microbatches - (stage == stages[0])
        room = most * size if size else 0
        if room <= left:
            waiting, left = waiting + most * problem.w[stage], left - room
        else:  # the part that fits, of one too where another sort could have the rest
            whole = left // size if len(stages) == 1 else -(-left // size)
            return min(waiting + whole * problem.w[stage], every)
    return min(waiting, every)


def _idle_ahead(problem: Problem, rank: int) -> int:
    """Return how long a rank has nothing to compute until its first gradient is there, as memory is full.

    The first one is of the rank's last stage. Until then it runs forwards alone, as many as memory has room for,
    those counted that go to the host in time.
    """
    stages = problem.stages_of[rank]
    last = stages[-1]
    until = sum(problem.f[stages[0] :]) + sum(problem.forward_transfer[stages[0] :])
    until += sum(problem.i[last + 1 :]) + sum(problem.backward_transfer[last:])
    most = _forwards_at_once(problem, rank)
    if problem.copies:
        most += until // max(min(problem.offload[stage] for stage in stages), 1)
    forwards = sorted((problem.f[stage] for stage in stages), reverse=True)
    longest = [time for time in forwards for _ in range(problem.microbatches)]
    return max(0, until - sum(longest[:most]))


def _forwards_at_once(problem: Problem, rank: int) -> int:
    """Return how many forwards' activations a rank has room for, of all that it runs."""
    stages, limit = problem.stages_of[rank], problem.limit[rank]
    kept = problem.checkpoint if problem.recomputes else problem.activation
    size = min(min(kept[stage], problem.activation[stage]) for stage in stages)
    every = problem.microbatches * len(stages)
    return every if limit == NO_LIMIT or not size else min(limit // size, every)


def _overtaken(problem: Problem, rank: int) -> bool:
    """Return whether some forward of a rank runs behind its first gradient, in any schedule."""
    every = problem.microbatches * len(problem.stages_of[rank])
    return not problem.copies and _forwards_at_once(problem, rank) < every


def _idle_behind(problem: Problem, rank: int) -> int:
    """Return how long a rank has nothing to compute behind its last forward, beside what follows its last end.

    That microbatch still goes on to the last stage, and back to the first. Meanwhile the rank has the gradients
    alone of which it holds the activations, and those come back from the host in time.
    """
    stages, limit = problem.stages_of[rank], problem.limit[rank]
    if limit == NO_LIMIT:
        return 0
    until = min(_way_out(problem, rank, stage) for stage in stages)
    left = _gradients_held(problem, rank)
    if problem.copies:
        longest = max(problem.i[stage] + problem.w[stage] for stage in stages)
        left += until // max(min(problem.reload[stage] for stage in stages), 1) * longest
    return max(0, until - left - problem.tail[rank])


def _way_out(problem: Problem, rank: int, stage: int) -> int:
    """Return the least time from the end of a forward to that of the step, or of its rank's span."""
    onward = sum(problem.f[stage + 1 :]) + sum(problem.forward_transfer[stage:])
    ends = problem.stages_of[rank] if problem.span else range(problem.stages)
    back = list(
        accumulate(reversed([i + t for i, t in zip(problem.i, (*problem.backward_transfer, 0), strict=True)]))
    )
    ways = (back[-1 - end] + problem.w[end] + problem.tail[problem.stage_rank[end]] for end in ends)
    return onward + max(ways)


def _gradients_held(problem: Problem, rank: int) -> int:
    """Return the largest total duration of gradients whose activations fit in memory together.

    Each microbatch on each stage leaves a weight gradient's part with that gradient to run, or all of it with
    both, or its checkpoint with a forward to run again too; parts of microbatches are allowed, which makes it no
    less.
    """
    steps = [step for stage in problem.stages_of[rank] for step in _held_steps(problem, stage)]
    found, left = 0, problem.limit[rank]
    for size, time in sorted(steps, key=lambda one: -one[1] / max(one[0], 1e-9)):
        most = problem.microbatches * size
        if most > left:
            return found + time * left // size
        found, left = found + problem.microbatches * time, left - most
    return found


def _held_steps(problem: Problem, stage: int) -> list[tuple[int, int]]:
    """Return what a microbatch may leave on a stage in steps of more size and time, by falling time per size."""
    i, w = problem.i[stage], problem.w[stage]
    ways = [(problem.weight_activation[stage], w), (problem.activation[stage], i + w)]
    if problem.recomputes:
        ways.append((problem.checkpoint[stage], problem.recompute[stage] + i + w))
    steps, size, time = [], 0, 0
    while better := [one for one in ways if one[1] > time]:
        free = [one for one in better if one[0] <= size]
        way = max(free or better, key=lambda one: (one[1] - time) / max(one[0] - size, 1e-9))
        steps.append((max(way[0] - size, 0), way[1] - time))
        size, time = max(way[0], size), way[1]
    return steps


def _busy(problem: Problem, rank: int) -> int:
    """Return a lower bound of the time from a rank's first start to its last end.

    Where forwards may be computed again, that is the least over how many are; while the rank has no gradient yet,
    those cost nothing.
    """
    work, limit, stages = problem.work(rank), problem.limit[rank], problem.stages_of[rank]
    ahead, behind = _idle_ahead(problem, rank), _idle_behind(problem, rank)
    apart = _overtaken(problem, rank)

    def idle(again: int) -> int:
        return max(ahead, again) + behind if apart else max(ahead, again + behind)

    if not problem.recomputes or limit == NO_LIMIT:
        return max(work + idle(0), _held(problem, rank, problem.microbatches))
    if len(stages) > 1:
        return work + idle(0)
    return min(
        max(work + idle(count * problem.recompute[stages[0]]), _held(problem, rank, problem.microbatches - count))
        for count in range(problem.microbatches + 1)
    )


def _held(problem: Problem, rank: int, microbatches: int) -> int:
    """Return what a rank's memory and copy channel take: bytes times time are no more than the limit's.

    Counted are so many microbatches.

    Every activation is held over its round trip, or over its forward, input gradient and both copies where it is
    offloaded; then a copy channel is busy. The best share of offloaded ones gives the bound.
    """
    limit = problem.limit[rank]
    if limit in (NO_LIMIT, 0):
        return 0
    whole = saved = channel = 0
    for stage in problem.stages_of[rank]:
        trip, size = problem.round_trip(stage), problem.activation[stage]
        whole += trip * size + problem.weight_activation[stage] * problem.w[stage]
        if problem.copies:
            copies = problem.offload[stage] + problem.reload[stage]
            gone = problem.f[stage] + problem.i[stage] + copies
            saved += max(trip - gone, 0) * size
            channel += copies if problem.one_stream else max(problem.offload[stage], problem.reload[stage])
    whole, saved, channel = (microbatches * one for one in (whole, saved, channel))
    # A share x of the stages' activations goes: T >= (whole - x saved) / limit and T >= x channel, x from 0 to 1.
    most = -(-(whole - saved) // limit)
    if len(problem.stages_of[rank]) > 1 or not channel:
        return most
    return max(most, -(-whole * channel // (limit * channel + saved)) if saved else most)


def relaxed_ranks(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield groups of ranks whose relaxations are worth solving: both ends of the pipeline, small groups first."""
    last = problem.ranks - 1
    ends = {0, last}
    for width in range(1, problem.ranks):
        groups = [one for one in combinations(range(problem.ranks), width) if width == 1 or ends & set(one)]
        yield from sorted(groups, key=lambda one: (-len(ends & set(one)), one))[:_GROUPS]


def latest(problem: Problem, length: int) -> int:
    """Return a time by which a schedule of some length has ended.

    That is the length where the step counts. Where spans count, the first rank starts at 0; its first input
    gradient has all of its others and its weight gradients behind it, and every rank starts before.
    """
    if not problem.span:
        return length
    behind = problem.microbatches * (problem.i[0] + problem.w[0])
    way = problem.f[-1] + sum(problem.i[1:]) + sum(problem.backward_transfer)
    return length + max(length - behind - way, 0)


def relaxed_bound(problem: Problem, effort: Effort, ranks: Collection[int], horizon: int, least: int) -> int:
    """Return a bound by the solver on some ranks; the others delay what passes them, and nothing else.

    Leaving out what ranks and their memory forbid makes nothing longer, so the bound holds for the whole.
    """
    found = solve(problem.shortest, effort, horizon=horizon, ranks=ranks, least=least)
    return max(found.bound, least)


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
    return bool(run_solver(counts.cp, left)[0] != cp_model.INFEASIBLE)


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
        """Return how many operations of one part have started on a stage."""
        return sum(self._at(_Sort(part, stage, way), moment) for way in _WAYS)

    def _ended(self, part: Part, stage: int, moment: int) -> Any:
        return sum(self._done(_Sort(part, stage, way), moment) for way in _WAYS)

    def _dataflow(self, stage: int) -> None:
        """Add the constraints that operations start after their inputs."""
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
