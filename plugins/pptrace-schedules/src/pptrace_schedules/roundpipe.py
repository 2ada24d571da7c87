"""RoundPipe runs the passes of a round of microbatches on one rank after another, with weights in host memory.

Source: Luo et al., Efficient Training on Multiple Consumer GPUs with RoundPipe, 2026, arXiv:2604.27085. The
order is that of the authors' simulator (github.com/ITcarrot/RoundPipe-artifact, ``pp-simulate/simulator.py``). The
default partition is that of ``ModelExecutePlan.auto("fused")`` in ``roundpipe/scheduler.py`` of
github.com/ITcarrot/RoundPipe, without its limit of memory.

A pass computes consecutive stages for all microbatches of a round, at most p of them, in order. Forward passes
come first. The first backward pass starts with the forward of its stages. Backward passes can have other stages
than forward passes. Pass k of a round that starts on rank q runs on rank (q + k) mod p. For stages a and b::

    forward             aF bF
    first backward      aF bF bB aB
    other backwards     aRECOMPUTE bRECOMPUTE bB aB

The next round starts on the rank that is free first. The default partition has the lowest product of the number of
passes, at least p, and their longest time, which is at most 1.1 times that of the longest stage.

A rank copies the weights of a pass from host memory during its pass before, and gradients back after a backward
pass. Checkpoints go through host memory from forward to backward. The authors' runtime divides copies of weights,
so that copies of activations pass them. Here, copies keep their order.

For passes of equal time in full rounds, with S passes and m microbatches::

    bubble = p (p - 1) / (m S + p (p - 1))
"""

from __future__ import annotations

from importlib import import_module
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pptrace.plugin import Kind, Schedule, ScheduleRequest

_TOLERANCE = 1.1
"""Longest time of a pass, relative to the longest stage."""


class Times(Struct, frozen=True):
    """Times of each stage's actions, and of a message."""

    forward: Sequence[int]
    recompute: Sequence[int]
    backward: Sequence[int]
    transfer: int


class Partition(Struct, frozen=True):
    """Stages of each pass."""

    forward: list[range]
    backward: list[range]

    @property
    def passes(self) -> list[range]:
        """All passes of a round, in order."""
        return [*self.forward, *self.backward]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    count = _stages(request)
    table = _table(request, Times([1] * count, [1] * count, [2] * count, 0))
    if request.simulator is None:
        return table
    priced = request.simulator.prepared(table).request
    return _table(request, Times(priced.f_ns, priced.recompute_ns, priced.b_ns, priced.transfer_ns))


def _stages(request: ScheduleRequest) -> int:
    return sum(request.options.get("backward") or ()) or request.options.get("stages") or request.stages


def check(request: ScheduleRequest) -> None:
    """Refuse fewer than two stages."""
    if _stages(request) == 1:
        message = "roundpipe divides the model into stages that ranks compute in turn, and there is one"
        raise ConstraintError(message, nearest="2 chunks", key="parallel.vp")


def _table(request: ScheduleRequest, times: Times) -> Schedule:
    """Return the table for these times."""
    import numpy as np

    from pptrace.plugin import Placement, Schedule

    ranks, count = request.ranks, len(times.forward)
    partition = _partition(request, times)
    firsts = _first_ranks(request, partition, times)
    rows: list[list[list[tuple[Kind, int, int]]]] = [[] for _ in range(ranks)]
    copied: list[list[range]] = [[] for _ in range(ranks)]
    for number, first in enumerate(firsts):
        microbatches = range(number * ranks, min((number + 1) * ranks, request.microbatches))
        for place, stages in enumerate(partition.passes):
            rank = (first + place) % ranks
            rows[rank].append(list(_actions(stages, place - len(partition.forward), microbatches)))
            copied[rank].append(stages)
    whole = [_with_weights(passes, stages) for passes, stages in zip(rows, copied, strict=True)]
    forward_pass = [place for place, stages in enumerate(partition.forward) for _ in stages]
    forward_pass += [len(partition.forward)] * len(partition.backward[0])
    backward_pass = [0] * count
    for place, stages in enumerate(partition.backward, len(partition.forward)):
        for stage in stages:
            backward_pass[stage] = place
    route = sorted({*firsts})
    rank_of = (np.arange(len(partition.passes), dtype=np.int32)[:, None] + np.array(route, dtype=np.int32)) % ranks
    placement = Placement(
        ranks=ranks, stage_rank=rank_of[forward_pass].T, backward_rank=rank_of[backward_pass].T,
        microbatch_route=np.repeat([route.index(first) for first in firsts], ranks)[: request.microbatches],
    )  # fmt: skip
    columns = zip(*(action for row in whole for action in row), strict=True)
    return Schedule.from_columns(placement, np.cumsum([0, *map(len, whole)]), *map(list, columns))


def _actions(stages: range, place: int, microbatches: range) -> Iterator[tuple[Kind, int, int]]:
    """Yield the computations and copies of activations of a pass.

    Args:
        stages: its stages.
        place: its number among the backward passes; below 0 for a forward pass.
        microbatches: the round.
    """
    from pptrace.plugin import Kind

    for microbatch in microbatches:
        if place <= 0:
            for stage in stages:
                yield Kind.F, stage, microbatch
                if place < 0:
                    yield Kind.OFFLOAD, stage, microbatch
        else:
            # Copies back overlap the computation of the microbatch before.
            for ahead in range(
                microbatch + (microbatch > microbatches[0]), min(microbatch + 2, microbatches.stop)
            ):
                yield from ((Kind.RELOAD, stage, ahead) for stage in reversed(stages))
            yield from ((Kind.RECOMPUTE, stage, microbatch) for stage in stages)
        if place >= 0:
            yield from ((Kind.B, stage, microbatch) for stage in reversed(stages))


def _with_weights(
    passes: Sequence[list[tuple[Kind, int, int]]], stages_of_passes: Sequence[range]
) -> list[tuple[Kind, int, int]]:
    """Return a rank's row with copies of weights one pass ahead, their releases, and copies of gradients."""
    from pptrace.plugin import Kind

    row = [(Kind.UNSHARD, stage, -1) for stage in (stages_of_passes[0] if passes else ())]
    for place, (actions, stages) in enumerate(zip(passes, stages_of_passes, strict=True)):
        if place + 1 < len(passes):
            row += [(Kind.UNSHARD, stage, -1) for stage in stages_of_passes[place + 1]]
        row += actions
        row += [(Kind.RESHARD, stage, -1) for stage in stages]
        if actions[-1][0] is Kind.B:
            row += [(Kind.REDUCE_GRAD, stage, -1) for stage in reversed(stages)]
    return row


def _first_ranks(request: ScheduleRequest, partition: Partition, times: Times) -> list[int]:
    """Return the rank on which each round starts: the one that is free first, the lowest of several."""
    ranks, free, first, firsts = request.ranks, [0] * request.ranks, 0, list[int]()
    hop = times.transfer if ranks > 1 else 0
    for start in range(0, request.microbatches, ranks):
        firsts.append(first)
        ends = [0] * min(ranks, request.microbatches - start)
        for place, stages in enumerate(partition.passes):
            rank, kind = (first + place) % ranks, place - len(partition.forward)
            # Only a recomputation can start before the pass before has ended.
            ahead = sum(times.recompute[stage] for stage in stages) if kind > 0 else 0
            after = sum(times.forward[stage] for stage in stages) if kind <= 0 else 0
            after += sum(times.backward[stage] for stage in stages) if kind >= 0 else 0
            for number, end in enumerate(ends):
                ready = end + hop if place else 0
                ends[number] = free[rank] = max(free[rank] + ahead, ready) + after
        first = free.index(min(free))
    return firsts


def _partition(request: ScheduleRequest, times: Times) -> Partition:
    """Return the configured passes, or those of the authors' rule."""
    forward, backward = request.options.get("forward"), request.options.get("backward")
    if forward and backward:
        ascending = _ranges(list(reversed(backward)))
        return Partition(_ranges(forward), list(reversed(ascending)))
    ahead = list(times.recompute) if any(times.recompute) else list(times.forward)
    whole = [before + after for before, after in zip(ahead, times.backward, strict=True)]
    longest = max(ahead + whole)
    limits = sorted({*_sums(ahead, longest), *_sums(whole, longest)})
    partitions = [(_greedy(ahead, whole, limit), limit) for limit in limits]
    return min(partitions, key=lambda pair: max(len(pair[0].passes), request.ranks) * pair[1])[0]


def _sums(times: Sequence[int], longest: int) -> Iterator[int]:
    """Yield the times of consecutive stages that a pass may take."""
    for first in range(len(times)):
        for total in accumulate(times[first:]):
            if total > longest * _TOLERANCE:
                break
            if total >= longest:
                yield total


def _greedy(forward: Sequence[int], backward: Sequence[int], limit: int) -> Partition:
    """Return passes of at most ``limit``; those of forwards and the first backward are filled from the end."""
    count = len(forward)
    (fused, *_) = _filled(reversed(backward), limit)
    rest = count - fused
    forwards = _ranges(list(reversed(_filled(reversed(forward[:rest]), limit))))
    backwards = _ranges(_filled(backward[:rest], limit))
    return Partition(forwards, [range(rest, count), *reversed(backwards)])


def _filled(times: Iterable[int], limit: int) -> list[int]:
    """Return the number of times in each group, filled in order up to a limit."""
    sizes, total = list[int](), 0
    for time in times:
        if sizes and total + time <= limit:
            sizes[-1] += 1
            total += time
        else:
            sizes.append(1)
            total = time
    return sizes


def _ranges(sizes: Sequence[int]) -> list[range]:
    """Return consecutive ranges of these sizes."""
    return [range(*ends) for ends in pairwise(accumulate(sizes, initial=0))]


OFFER = ScheduleOffer(
    name="roundpipe",
    summary="Passes of a round of microbatches on one rank after another, with weights in host memory.",
    build=build,
    check=check,
    options=lambda: import_module("pptrace_schedules.options").RoundPipeOptions,
    only_by_name=True,
    constraints="Two stages or more; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2604.27085",
)
