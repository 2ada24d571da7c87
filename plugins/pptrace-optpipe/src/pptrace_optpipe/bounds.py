"""What no schedule can beat: arguments about single ranks, and the solver on a few ranks at a time.

A rank works for a known time, and idles besides at least

- until the first microbatch has come down to it (fill);
- ahead of its first gradient, when its memory is full of forwards: the first microbatch goes on to the last stage
  and back, which takes longer than those forwards;
- behind its last forward: that microbatch, too, goes on to the last stage and back to the first, which takes
  longer than the gradients of all the activations that memory holds then.

Where memory has no room for all forwards, one runs behind the first gradient, so the second and the third are
apart and add up.
"""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import TYPE_CHECKING

from pptrace_optpipe.problem import NO_LIMIT
from pptrace_optpipe.solving import solve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pptrace_optpipe.problem import Problem
    from pptrace_optpipe.solving import Effort

__all__ = ["bound", "copy_ratio", "latest", "relaxed_bound", "relaxed_ranks"]

_GROUPS = 6
"""Groups of one size that are tried."""


def bound(problem: Problem) -> int:
    """Return a lower bound of the step (or span), from each rank's fill, work, drain, memory and copies."""
    problem = problem.shortest
    return max(_of_rank(problem, rank) for rank in range(problem.ranks))


def copy_ratio(problem: Problem, rank: int) -> float:
    """Return what copying a rank's activations out and back takes, in terms of what it computes meanwhile.

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
    """Return the longest work of gradients whose activations, or what is left of them, memory has room for.

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
    """Return the least time from a rank's first start to its last end, by work, what it idles, memory and copies.

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
