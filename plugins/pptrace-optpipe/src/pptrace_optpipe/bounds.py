"""Lower bounds of the step, and their proofs.

The work of a rank takes a known time. A rank also has three idle times:

- Fill: it waits until the first microbatch arrives.
- Before its first gradient, memory is full of forwards. The first microbatch passes to the last stage and back,
  which takes longer than these forwards.
- After its last forward, that microbatch also passes to the last stage and back to the first. This takes longer
  than the gradients of all activations in memory at that time.

If some forward runs after the first gradient, the second and the third idle time are disjoint, and the bound is
their sum. Otherwise all forwards run before the first gradient. Memory then excludes this, or it takes the time of
the offloads that make room. The bound is the lower of the two cases.

An activation takes memory during its round trip to the last stage. The sum of bytes times time is at most the
limit times the time of the step. Up to a rank's last input gradient, it is at most the limit times the time until
then. The input gradients of all previous stages follow. Only whole activations fit, so sizes may be rounded up as
in bin packing, by dual feasible functions: Fekete and Schepers, New classes of fast lower bounds for bin packing
problems, Mathematical Programming 91, 2001. If memory has room for ``k`` activations of a stage, each forward also
starts a round trip after the forward ``k`` places earlier in the order of starts.

All microbatches have the same costs, so a permutation of their numbers does not change the step. With host copies
or recomputation, a microbatch can overtake another, and the solver visits each schedule once per permutation.
This model has no numbers of microbatches. For each stage and kind of operation, ``n(t)`` operations have started
by time ``t``. All operations of a kind take the same time ``d``, so ``n(t - d)`` have ended. In any schedule:

- Streams: ``n(t) - n(t - d)``, summed over the operations of a stream, is at most 1.
- Dataflow: each started operation has a distinct predecessor that has ended. The number of started operations is
  therefore at most the number of ended predecessors. The predecessor of ``F`` is ``F`` of the previous stage, of
  ``I`` it is ``I`` of the next stage, of ``W`` it is ``I``. For copies and recomputation, the predecessor of ``O``
  is an offloaded ``F``, of ``R`` it is ``O``, of ``C`` it is a recomputed ``F``.
- Residency: an activation stays, goes to the host or is recomputed. ``F`` and ``I`` have separate counts for each
  of these cases. Started ``I`` are at most the ``F`` that ended at least a round trip to the last stage earlier.
  They are also at most the ended ``R``, or ``C``. A weaker model, faster to solve, has one count for activations
  that stay and activations that go to the host. No activation with a started ``I`` is on the host or being copied,
  so started ``I`` <= ended ``F`` - started ``O`` + ended ``R``.
- Memory: the bytes in use are exactly the sum of these counts times sizes.

Every schedule gives counts that satisfy these constraints. If no counts satisfy them within a length, no schedule
is as short. The converse is false: in the counts, a microbatch may return in place of another. The bound may
therefore be below the optimum.

This is a destructive bound, which refutes one length after another: Klein and Scholl, Computing lower bounds by
destructive improvement, European Journal of Operational Research 112, 1999.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace
from ortools.sat.python import cp_model

from pptrace_optpipe.model import run_solver, solve
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Op, OpKind, coarsened_by_work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Problem


_GROUPS = 6
"""The most groups of ranks of each size."""


def bound(problem: Problem) -> int:
    """Return a lower bound of the step, from each rank's fill, work, drain, memory and copies."""
    problem = problem.shortest
    return max(_rank_bound(problem, rank) for rank in range(problem.ranks))


def copy_ratio(problem: Problem, rank: int) -> float:
    """Return the time of copying a rank's activations out and back, relative to its computation.

    If the ratio is at most 1, the steady state hides the copies of all activations. The ratio is PipeOffload's k
    (Wan et al., arXiv:2503.01328, section 3). Without copies it is infinite.
    """
    stages = problem.stages_of[rank]
    if not problem.offload:
        return float("inf")
    copied = sum(problem.offload[stage] + problem.reload[stage] for stage in stages)
    return copied / sum(problem.f[stage] + problem.i[stage] + problem.w[stage] for stage in stages)


def _rank_bound(problem: Problem, rank: int) -> int:
    stages = problem.stages_of[rank]
    first = stages[0]
    fill = sum(problem.f[:first]) + sum(problem.forward_transfer[:first])
    waiting = max(_waiting_forwards(problem, rank, stage) for stage in stages)
    # After the rank's last input gradient run the input gradients of all previous stages and one weight gradient.
    drain = sum(problem.i[:first]) + sum(problem.backward_transfer[:first]) + problem.w[0]
    return max(
        fill + _busy(problem, rank) + problem.tail[rank],
        fill + _until_last_gradient(problem, rank) + drain + problem.tail[problem.stage_rank[0]],
        waiting + problem.round_trip(0) + problem.w[0] + problem.tail[problem.stage_rank[0]],
    )


def _deferred_weight_work(problem: Problem, rank: int) -> int:
    """Return the longest work of weight gradients that can wait when a rank's last input gradient ends.

    During this input gradient, memory holds its whole activation and the weight parts of all deferred gradients.
    Weight parts are neither offloaded nor recomputed. The last input gradient belongs to the rank's first stage.
    """
    stages, limit = problem.stages_of[rank], problem.limit[rank]
    all_work = problem.microbatches * sum(problem.w[stage] for stage in stages)
    if limit == NO_LIMIT:
        return all_work
    free_size, waiting = limit - problem.activation[stages[0]], problem.w[stages[0]]
    for stage in sorted(stages, key=lambda stage: -problem.w[stage] / max(problem.weight_activation[stage], 1e-9)):
        size, most_count = problem.weight_activation[stage], problem.microbatches - (stage == stages[0])
        needed_size = most_count * size if size else 0
        if needed_size <= free_size:
            waiting, free_size = waiting + most_count * problem.w[stage], free_size - needed_size
        else:  # the part that fits; rounded up with several stages, as another stage's part may fill the rest
            fitting_count = free_size // size if len(stages) == 1 else -(-free_size // size)
            return min(waiting + fitting_count * problem.w[stage], all_work)
    return min(waiting, all_work)


def _idle_before_gradients(problem: Problem, rank: int) -> tuple[int | None, int | None]:
    """Return the idle time of a rank before its first gradient if some forward runs later, and if none does.

    Proof: the first gradient belongs to the rank's last stage, and follows a round trip of its microbatch. Before
    it, the rank runs only forwards. Memory has room for some of them. Each further forward starts after the end of
    one more offload, and offloads run one at a time after the first forward. The result is the minimum over the
    number of forwards; it is None for a case that memory or the number of microbatches excludes.
    """
    stages = problem.stages_of[rank]
    last = stages[-1]
    gradient_time = sum(problem.f[stages[0] :]) + sum(problem.forward_transfer[stages[0] :])
    gradient_time += sum(problem.i[last + 1 :]) + sum(problem.backward_transfer[last:])
    fitting_count, shortest = _forwards_at_once(problem, rank), min(problem.f[stage] for stage in stages)
    forwards = sorted((problem.f[stage] for stage in stages for _ in range(problem.microbatches)), reverse=True)
    idle_times = []
    for count, work in enumerate(accumulate(forwards), start=1):
        offload_count = max(count - fitting_count, 0)
        if offload_count and not problem.copies:
            break
        offload_time = min(problem.offload[stage] for stage in stages) if offload_count else 0
        last_end = 2 * shortest + offload_count * offload_time if offload_count else work
        idle_times.append(max(gradient_time, last_end, work) - work)
    some_later = min(idle_times[len(stages) - 1 : len(forwards) - 1], default=None)
    return some_later, idle_times[-1] if len(idle_times) == len(forwards) else None


def _forwards_at_once(problem: Problem, rank: int) -> int:
    """Return how many of a rank's forward activations fit into memory at once."""
    stages, limit = problem.stages_of[rank], problem.limit[rank]
    kept = problem.checkpoint if problem.recomputes else problem.activation
    size = min(min(kept[stage], problem.activation[stage]) for stage in stages)
    every = problem.microbatches * len(stages)
    return every if limit == NO_LIMIT or not size else min(limit // size, every)


def _idle_after_forwards(problem: Problem, rank: int, *, has_begun: bool) -> int:
    """Return the idle time of a rank after its last forward, without the tail of the rank.

    Proof: the microbatch of this forward passes to the last stage and back to the first. Meanwhile the rank runs
    only gradients whose activations are in memory or are reloaded in time, and each of them at most once.

    Args:
        problem: what to schedule.
        rank: the rank.
        has_begun: whether some input gradient has ended before the last forward.
    """
    stages, limit = problem.stages_of[rank], problem.limit[rank]
    drain = min(_completion_time(problem, stage) for stage in stages)
    gradients = problem.microbatches * sum(problem.i[stage] + problem.w[stage] for stage in stages)
    if has_begun:
        gradients -= problem.i[stages[-1]]
    if problem.recomputes:
        gradients += problem.microbatches * sum(problem.recompute[stage] for stage in stages)
    if limit != NO_LIMIT:
        fitting = _gradient_work_in_memory(problem, rank)
        if problem.copies:
            longest = max(problem.i[stage] + problem.w[stage] for stage in stages)
            fitting += drain // max(min(problem.reload[stage] for stage in stages), 1) * longest
        gradients = min(gradients, fitting)
    return max(0, drain - gradients - problem.tail[rank])


def _completion_time(problem: Problem, stage: int) -> int:
    """Return the least time from the end of a forward to the end of the step."""
    onward = sum(problem.f[stage + 1 :]) + sum(problem.forward_transfer[stage:])
    backward_times = list(
        accumulate(reversed([i + t for i, t in zip(problem.i, (*problem.backward_transfer, 0), strict=True)]))
    )
    ends = (
        backward_times[-1 - end_stage] + problem.w[end_stage] + problem.tail[problem.stage_rank[end_stage]]
        for end_stage in range(problem.stages)
    )
    return onward + max(ends)


def _gradient_work_in_memory(problem: Problem, rank: int) -> int:
    """Return the largest total duration of gradients whose activations fit in memory together.

    A microbatch on a stage leaves one of three states: its weight part and the weight gradient to run; its whole
    activation and both gradients; or its checkpoint, both gradients and the recomputed forward. The relaxation
    allows fractions of microbatches.
    """
    steps = [step for stage in problem.stages_of[rank] for step in _state_increments(problem, stage)]
    total_time, free_size = 0, problem.limit[rank]
    for size, time in sorted(steps, key=lambda step: -step[1] / max(step[0], 1e-9)):
        needed_size = problem.microbatches * size
        if needed_size > free_size:
            return total_time + time * free_size // size
        total_time, free_size = total_time + problem.microbatches * time, free_size - needed_size
    return total_time


def _state_increments(problem: Problem, stage: int) -> list[tuple[int, int]]:
    """Return the states of a microbatch on a stage as increments of size and time, by falling time per size."""
    i, w = problem.i[stage], problem.w[stage]
    states = [(problem.weight_activation[stage], w), (problem.activation[stage], i + w)]
    if problem.recomputes:
        states.append((problem.checkpoint[stage], problem.recompute[stage] + i + w))
    steps, size, time = [], 0, 0
    while better := [state for state in states if state[1] > time]:
        no_larger = [state for state in better if state[0] <= size]
        best = max(no_larger or better, key=lambda state: (state[1] - time) / max(state[0] - size, 1e-9))
        steps.append((max(best[0] - size, 0), best[1] - time))
        size, time = max(best[0], size), best[1]
    return steps


def _busy(problem: Problem, rank: int) -> int:
    """Return a lower bound of the time from a rank's first start to its last end.

    If some forward runs after the first gradient, the idle times before this gradient and after the last forward
    are disjoint.
    """
    some_later, none_later = _idle_before_gradients(problem, rank)
    work = problem.work(rank)

    def least(recompute_work: int) -> int:
        cases = []
        if some_later is not None:
            after = _idle_after_forwards(problem, rank, has_begun=True)
            cases.append(max(some_later, recompute_work) + after)
        if none_later is not None:
            after = _idle_after_forwards(problem, rank, has_begun=False)
            cases.append(max(none_later, recompute_work + after))
        return work + min(cases, default=0)

    return _with_recomputation(problem, rank, least, 0)


def _until_last_gradient(problem: Problem, rank: int) -> int:
    """Return a lower bound of the time from a rank's first start to the end of its last input gradient.

    Proof: all forwards, input gradients and copies of the rank are in this time. Of its work, only deferred weight
    gradients run later, as many as memory allows, so both its work and its bytes times time bound this time.
    """
    deferred_work = _deferred_weight_work(problem, rank)
    idle = min((time for time in _idle_before_gradients(problem, rank) if time is not None), default=0)
    work = problem.work(rank) - deferred_work
    return _with_recomputation(
        problem, rank, lambda recompute_work: work + max(idle, recompute_work), deferred_work
    )


def _with_recomputation(problem: Problem, rank: int, least: Callable[[int], int], deferred_work: int) -> int:
    """Return the least of a time and of the memory bound, over the number of recomputed forwards.

    Recomputation is free before the rank's first gradient.

    Args:
        problem: what to schedule.
        rank: the rank.
        least: returns a lower bound for a duration of recomputed forwards.
        deferred_work: the longest duration of weight gradients that run after the time that is bounded.
    """
    stages, microbatches = problem.stages_of[rank], problem.microbatches
    if not problem.recomputes or problem.limit[rank] == NO_LIMIT:
        return max(least(0), _memory_bound(problem, rank, microbatches, deferred_work))
    if len(stages) > 1:
        return least(0)
    return min(
        max(
            least(count * problem.recompute[stages[0]]),
            _memory_bound(problem, rank, microbatches - count, deferred_work),
        )
        for count in range(microbatches + 1)
    )


_MOST_PARTS = 32
"""The largest parameter of the dual feasible functions."""


def _dual_feasible(limit: int) -> Iterator[tuple[Callable[[int], int], int]]:
    """Yield functions of sizes, each with a capacity: sizes that sum to the limit have values up to the capacity.

    The first function is the identity. Function ``k`` rounds ``(k + 1) size / limit`` down to a whole number, or
    returns ``k size / limit`` if it is whole. Its capacity is ``k``. Both are scaled by ``limit``.
    """
    yield (lambda size: size), limit
    for parts in range(1, _MOST_PARTS + 1):
        yield partial(_rounded, limit=limit, parts=parts), parts * limit


def _rounded(size: int, limit: int, parts: int) -> int:
    whole, remainder = divmod(size * (parts + 1), limit)
    return whole * limit if remainder else parts * size


def _memory_bound(problem: Problem, rank: int, microbatches: int, deferred_work: int) -> int:
    """Return the least time in which a rank's memory and copy channel can serve some microbatches.

    Weight gradients with a total duration of at most ``deferred_work`` run later. They take at most the largest
    weight part during this duration.

    The sum of bytes times time is at most the limit times the returned time, for sizes of each dual feasible
    function. An activation is in memory during its round trip. An offloaded activation is in memory during its
    forward, input gradient and both copies, and the copy channel is then busy. The best share of offloaded
    activations gives the bound.
    """
    limit = problem.limit[rank]
    if limit in (NO_LIMIT, 0):
        return 0
    return max(
        _least_time(problem, rank, microbatches, deferred_work, value_of, capacity)
        for value_of, capacity in _dual_feasible(limit)
    )


def _least_time(
    problem: Problem, rank: int, microbatches: int, deferred_work: int, value_of: Callable[[int], int],
    capacity: int,
) -> int:  # fmt: skip
    """Return the bound of :func:`_memory_bound` for one function of sizes."""
    memory_time = saved_time = channel = 0
    largest_part = max(value_of(problem.weight_activation[stage]) for stage in problem.stages_of[rank])
    for stage in problem.stages_of[rank]:
        trip, size = problem.round_trip(stage), value_of(problem.activation[stage])
        memory_time += trip * size + value_of(problem.weight_activation[stage]) * problem.w[stage]
        if problem.copies:
            copies = problem.offload[stage] + problem.reload[stage]
            offloaded_time = problem.f[stage] + problem.i[stage] + copies
            saved_time += max(trip - offloaded_time, 0) * size
            channel += max(problem.offload[stage], problem.reload[stage])
    memory_time, saved_time, channel = (microbatches * total for total in (memory_time, saved_time, channel))
    memory_time -= deferred_work * largest_part
    # A share x of the activations is offloaded, from 0 to 1. The time T is at least (memory_time - x saved_time) /
    # capacity and at least x channel.
    least_time = -(-(memory_time - saved_time) // capacity)
    if len(problem.stages_of[rank]) > 1 or not channel:
        return least_time
    return max(
        least_time, -(-memory_time * channel // (capacity * channel + saved_time)) if saved_time else least_time
    )


def _waiting_forwards(problem: Problem, rank: int, stage: int) -> int:
    """Return the least time from the first to the last start of a stage's forwards, without copies.

    Memory has room for ``k`` activations of the stage. When forward ``j + k`` starts, ``j`` input gradients have
    ended, so the start is at least a round trip after that of forward ``j``. If there is no memory for a weight
    part and ``k`` activations, a weight gradient or a further input gradient has ended, too.
    """
    limit = problem.limit[rank]
    kept = problem.checkpoint if problem.recomputes else problem.activation
    size = min(kept[stage], problem.activation[stage])
    if limit == NO_LIMIT or problem.copies or not 0 < size <= limit:
        return 0
    count, free_size = divmod(limit, size)
    is_full = free_size < problem.weight_activation[stage] and not problem.recomputes
    more = min(problem.i[stage], problem.w[stage]) if is_full else 0
    return (problem.microbatches - 1) // count * (problem.round_trip(stage) + more)


def relaxed_ranks(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield groups of ranks for relaxations: those with both ends of the pipeline, small groups first."""
    last = problem.ranks - 1
    ends = {0, last}
    for width in range(1, problem.ranks):
        groups = [group for group in combinations(range(problem.ranks), width) if width == 1 or ends & set(group)]
        yield from sorted(groups, key=lambda group: (-len(ends & set(group)), group))[:_GROUPS]


def relaxed_bound(problem: Problem, effort: Effort, ranks: Collection[int], horizon: int, least: int) -> int:
    """Return a bound by the solver on some ranks; other ranks only delay what passes them.

    The relaxation drops constraints of streams and memory, so its bound also holds for the whole problem.
    """
    solved = solve(problem.shortest, effort, horizon=horizon, ranks=ranks, least=least)
    return max(solved.bound, least)


_RESIDENCIES = (None, OpKind.O, OpKind.C)
"""Residency of an activation: it stays, is offloaded (``O``), or is recomputed (``C``)."""
_MOST_COUNTS = 20_000
"""The most counts in a model that is solved."""
_FINEST = 400
"""The most units of time in a rank's work; finer times are rounded down."""


def counted_bound(problem: Problem, effort: Effort, *, length: int, least: int = 0) -> int:
    """Return a lower bound of the step, from lengths that counts show to be too short.

    Times are rounded down to units coarse enough for the solver, so the bound stays a lower bound.

    Args:
        problem: what to schedule.
        effort: for all lengths together; at its end, the best bound so far is returned.
        length: length of a known schedule, an upper limit of the bound.
        least: a known lower bound, a lower limit of the bound.
    """
    coarse, unit = coarsened_by_work(replace(problem.shortest, b=()), _FINEST)
    variants = (False, True) if coarse.copies else (False,)
    """Values of ``apart``, the faster model first; without copies both models are equal."""
    start = effort.clock()
    low, high = least // unit, length // unit
    candidate, tried_below_known = (low + high - 1) // 2, False
    while low <= candidate < high:
        seconds_left = effort.seconds - (effort.clock() - start)
        if seconds_left <= 0 or effort.stopped() or _model_size(coarse, candidate) > _MOST_COUNTS:
            break
        part_effort = replace(effort, seconds=seconds_left / 2 if candidate == low else seconds_left / 4)
        if all(can_be_as_short(coarse, part_effort, candidate, apart=apart) for apart in variants):
            high = candidate
            candidate = (low + high - 1) // 2
        else:  # the known length is often optimal: after the first refuted midpoint, try one unit below it
            low = candidate + 1
            candidate, tried_below_known = (low + high - 1) // 2 if tried_below_known else high - 1, True
    return max(low * unit, least)


def can_be_as_short(problem: Problem, effort: Effort, length: int, *, apart: bool) -> bool:
    """Return whether counts leave a length possible, or time ran out.

    Args:
        problem: what to schedule, in coarse units of time.
        effort: how to search; its time limit includes building the model.
        length: length of the step.
        apart: whether offloaded activations have separate counts. This gives a stronger bound and takes longer.
    """
    end = effort.clock() + effort.seconds
    counts = _Counts(problem, length, apart=apart)
    for _ in counts.parts():
        if effort.stopped() or effort.clock() > end:
            return True
    solver_effort = replace(effort, seconds=end - effort.clock())
    return bool(run_solver(counts.cp, solver_effort)[0] != cp_model.INFEASIBLE)


def _model_size(problem: Problem, length: int) -> int:
    """Return the number of counts in a model: kinds of operations times stages times moments."""
    counted_kinds = 3 + 4 * problem.copies + 3 * problem.recomputes
    return counted_kinds * problem.stages * max(length, 0)


class _Counted(NamedTuple):
    """A kind of operations that are counted together."""

    kind: OpKind
    stage: int
    residency: OpKind | None = None
    """For ``F`` and ``I``: the residency of their activation, one of ``_RESIDENCIES``."""


class _Counts:
    """The constraint model that tests one length."""

    def __init__(self, problem: Problem, length: int, *, apart: bool) -> None:
        self.problem, self.length, self.apart = problem, length, apart
        self.host = OpKind.O if apart else None
        """The residency of offloaded activations."""
        self.moments = max(length - min(problem.tail), 0) + 1
        self.cp = cp_model.CpModel()
        self.begun: dict[_Counted, list[Any]] = {}
        """By kind, the number of started operations at each moment."""

    def parts(self) -> Iterator[None]:
        """Build the model, and yield at each point where the caller may stop."""
        problem = self.problem
        for stage in range(problem.stages):
            self._stage_counts(stage)
            yield
        for stage in range(problem.stages):
            self._dataflow(stage)
            yield
        for rank in range(problem.ranks):
            stages = problem.stages_of[rank]
            self._no_overlap(
                [counted for counted in self.begun if counted.stage in stages and counted.kind in ON_RANK]
            )
            if problem.limit[rank] != NO_LIMIT:
                self._memory(rank)
            self._ends(rank)
            yield
        for ranks, kind in problem.channels:
            stages = tuple(stage for rank in ranks for stage in problem.stages_of[rank])
            self._no_overlap(
                [counted for counted in self.begun if counted.stage in stages and counted.kind is kind]
            )
            yield

    def _duration(self, counted: _Counted) -> int:
        return self.problem.duration(Op(counted.kind, counted.stage, 0))

    def _stage_counts(self, stage: int) -> None:
        """Add the counts of a stage's operations; each starts after the earliest end of its inputs."""
        problem, microbatches = self.problem, self.problem.microbatches
        limited = problem.limit[problem.stage_rank[stage]] != NO_LIMIT
        forward_start = sum(problem.f[:stage]) + sum(problem.forward_transfer[:stage])
        forward_end = forward_start + problem.f[stage]
        gradient_start = forward_end + self._trip(stage)
        earliest = {_Counted(OpKind.W, stage): gradient_start + problem.i[stage]}
        for residency in _RESIDENCIES:
            possible = problem.copies and self.apart if residency is OpKind.O else problem.recomputes
            if residency is None or (limited and possible):
                earliest[_Counted(OpKind.F, stage, residency)] = forward_start
                earliest[_Counted(OpKind.I, stage, residency)] = gradient_start
        if limited and problem.copies:
            earliest[_Counted(OpKind.O, stage)] = forward_end
            earliest[_Counted(OpKind.R, stage)] = forward_end + problem.offload[stage]
        if _Counted(OpKind.F, stage, OpKind.C) in earliest:
            earliest[_Counted(OpKind.C, stage)] = forward_end
        for counted, start in earliest.items():
            self.begun[counted] = self._started_by_moment(counted, start, self.moments - self._duration(counted))
        for kind in (OpKind.F, OpKind.I, OpKind.W):
            self.cp.add(self._kind_started(kind, stage, self.moments) == microbatches)

    def _trip(self, stage: int) -> int:
        """Return the least time from the end of a forward to the start of its input gradient."""
        return self.problem.round_trip(stage) - self.problem.f[stage] - self.problem.i[stage]

    def _started_by_moment(self, counted: _Counted, earliest: int, end: int) -> list[Any]:
        """Return the count of started operations at each moment; operations that take time start one at a time."""
        microbatches, counts, previous = self.problem.microbatches, list[Any](), 0
        most_starts = 1 if self._duration(counted) else microbatches
        for moment in range(self.moments):
            if earliest <= moment < max(end, 1):
                count = self.cp.new_int_var(0, microbatches, f"{counted}<={moment}")
                starts = self.cp.new_int_var(0, most_starts, f"{counted}@{moment}")
                self.cp.add(count == previous + starts)
                previous = count
            counts.append(previous)
        return counts

    def _started(self, counted: _Counted, moment: int) -> Any:
        """Return how many operations of a kind have started by a moment."""
        counts = self.begun.get(counted)
        return counts[min(moment, self.moments - 1)] if counts is not None and moment >= 0 else 0

    def _ended(self, counted: _Counted, moment: int) -> Any:
        """Return how many operations of a kind have ended by a moment."""
        return self._started(counted, moment - self._duration(counted)) if counted in self.begun else 0

    def _kind_started(self, kind: OpKind, stage: int, moment: int) -> Any:
        """Return how many operations of one kind have started on a stage."""
        return sum(self._started(_Counted(kind, stage, residency), moment) for residency in _RESIDENCIES)

    def _kind_ended(self, kind: OpKind, stage: int, moment: int) -> Any:
        return sum(self._ended(_Counted(kind, stage, residency), moment) for residency in _RESIDENCIES)

    def _dataflow(self, stage: int) -> None:
        """Add the constraints that operations start after their inputs."""
        problem, trip = self.problem, self._trip(stage)
        offload, reload, recomputation = (_Counted(kind, stage) for kind in (OpKind.O, OpKind.R, OpKind.C))
        for moment in range(self.moments):
            if stage:
                sent = self._kind_ended(OpKind.F, stage - 1, moment - problem.forward_transfer[stage - 1])
                self._cap(self._kind_started(OpKind.F, stage, moment), sent)
            if stage + 1 < problem.stages:
                sent = self._kind_ended(OpKind.I, stage + 1, moment - problem.backward_transfer[stage])
                self._cap(self._kind_started(OpKind.I, stage, moment), sent)
            self._cap(self._kind_started(OpKind.W, stage, moment), self._kind_ended(OpKind.I, stage, moment))
            for residency in _RESIDENCIES:
                forward, gradient = _Counted(OpKind.F, stage, residency), _Counted(OpKind.I, stage, residency)
                self._cap(self._started(gradient, moment), self._ended(forward, moment - trip))
            self._cap(self._started(offload, moment), self._ended(_Counted(OpKind.F, stage, self.host), moment))
            self._cap(self._started(reload, moment), self._ended(offload, moment))
            resident = self._ended(reload, moment)
            if not self.apart:
                resident += self._ended(_Counted(OpKind.F, stage), moment) - self._started(offload, moment)
            self._cap(self._started(_Counted(OpKind.I, stage, self.host), moment), resident)
            self._cap(
                self._started(recomputation, moment), self._ended(_Counted(OpKind.F, stage, OpKind.C), moment)
            )
            self._cap(
                self._started(_Counted(OpKind.I, stage, OpKind.C), moment), self._ended(recomputation, moment)
            )

    def _cap(self, count: Any, limit: Any) -> None:
        if not isinstance(count, int) or not isinstance(limit, int):
            self.cp.add(count <= limit)

    def _no_overlap(self, counted_kinds: Sequence[_Counted]) -> None:
        """Add the constraint that operations of some kinds run one at a time."""
        for moment in range(self.moments):
            self._cap(
                sum(self._started(counted, moment) - self._ended(counted, moment) for counted in counted_kinds), 1
            )

    def _memory(self, rank: int) -> None:
        """Add the constraint of a rank's memory limit."""
        problem = self.problem
        for moment in range(self.moments):
            used: Any = 0
            for stage in problem.stages_of[rank]:
                size, weight_size = problem.activation[stage], problem.weight_activation[stage]
                used += size * self._kind_started(OpKind.F, stage, moment)
                used -= (size - weight_size) * self._kind_ended(OpKind.I, stage, moment)
                used -= weight_size * self._kind_ended(OpKind.W, stage, moment)
                reloads = self._started(_Counted(OpKind.R, stage), moment)
                used += size * (reloads - self._ended(_Counted(OpKind.O, stage), moment))
                if problem.recomputes:
                    forward, recomputation = (_Counted(OpKind.F, stage, OpKind.C), _Counted(OpKind.C, stage))
                    left_out = size - problem.checkpoint[stage]
                    used += left_out * (self._started(recomputation, moment) - self._started(forward, moment))
            self._cap(used, problem.limit[rank])

    def _ends(self, rank: int) -> None:
        """Add the constraint that a rank's weight gradients end within the length."""
        problem = self.problem
        for stage in problem.stages_of[rank]:
            count = self._kind_started(OpKind.W, stage, self.length - problem.tail[rank] - problem.w[stage])
            if isinstance(count, int):
                self.cp.add_bool_or([])
            else:
                self.cp.add(count == problem.microbatches)
