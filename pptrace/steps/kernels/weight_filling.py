"""The kernel that puts weight gradients into the gaps of forwards and input gradients.

The rank that is free first goes on, once it is known when its next action may start. Columns are lists or arrays
of integers, alike in use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import OUTSIDE, Heap, pop, push
from pptrace.steps.kinds import Kind

F, I, W = int(Kind.F), int(Kind.I), int(Kind.W)  # noqa: E741 - PyTorch's name


class Given(NamedTuple):
    """Forwards and input gradients in each rank's order, and weight gradients where the table has its own."""

    row_ptr: Any
    kind: Any
    stage: Any
    microbatch: Any


class Stages(NamedTuple):
    """What each stage's actions take."""

    rank: Any
    forward: Any
    input_gradient: Any
    weight_gradient: Any
    taken: Any
    """Bytes that a forward takes."""
    kept: Any
    """Bytes of them that stay from the input gradient until the weight gradient."""
    forward_waits: Any
    """1 where only a gap that is long enough takes a weight gradient before a forward, whatever its rank idles."""
    gradient_waits: Any
    """The same before an input gradient."""


class Rules(NamedTuple):
    """Rules for gaps that are shorter than a weight gradient."""

    missing_weights: int
    """1 where weight gradients are to be put in, 0 where the table has its own."""
    transfer: int
    """Time from one rank to another."""
    missing: int
    """Eighths of a weight gradient that a gap may lack."""
    patience: int
    """For how long a rank idles in all before it runs one in any gap; -1 for as long as any other has so far."""


class Filling(NamedTuple):
    """How far it is."""

    ready: Any
    """Shape (2 x stages x microbatches,): when forwards, then input gradients may start; -1 until known."""
    at: Any
    """Per rank, its next action of those given."""
    due: Any
    """Per rank, from where its next input gradient without a weight gradient is looked for."""
    owed: Any
    """Per rank, its weight gradients that may run."""
    held: Any
    """Per rank, bytes of activations."""
    idle: Any
    """Per rank, time between its actions in which it did nothing."""
    first: Any
    """Per rank, when it started, -1 before."""
    free: Any
    """Per rank, when it ended what it has."""


class Placed(NamedTuple):
    """The table that it makes; where weight gradients are put in, rows start half as far again as given."""

    kind: Any
    stage: Any
    microbatch: Any
    size: Any
    """Per rank, how many of its rows are there."""


def fill_gaps(
    given: Given, stages: Stages, room: Any, rules: Rules, filling: Filling, placed: Placed, ranks: Heap
) -> int:
    """Place everything, the rank that is free first before others; return -1, or a rank that lacks memory."""
    most = 0
    for rank in range(len(room)):
        push(ranks, rank, 0)
    while ranks.size[0] > 0:
        rank = pop(ranks)
        row = filling.at[rank]
        if row == given.row_ptr[rank + 1]:
            while filling.owed[rank] > 0:
                _weigh(given, stages, rules, filling, placed, rank)
            continue
        kind, stage = given.kind[row], given.stage[row]
        due = 0 if kind == W else filling.ready[_place(filling, stages, kind, stage, given.microbatch[row])]
        if due < 0:
            continue
        patience = rules.patience if rules.patience >= 0 else most
        if not _make_way(given, stages, room, rules, filling, placed, rank, due, patience):
            return rank
        most = max(most, _begin(filling, rank, due))
        follower = _run(given, stages, rules, filling, placed, rank)
        push(ranks, rank, filling.free[rank])
        if follower >= 0 and ranks.place[follower] == OUTSIDE:
            push(ranks, follower, filling.free[follower])
    return -1


def _place(filling: Filling, stages: Stages, kind: int, stage: int, microbatch: int) -> int:
    """Return where a forward's or an input gradient's readiness is."""
    count = len(stages.rank)
    microbatches = len(filling.ready) // (2 * count)
    return (stage if kind == F else count + stage) * microbatches + microbatch


def _make_way(
    given: Given,
    stages: Stages,
    room: Any,
    rules: Rules,
    filling: Filling,
    placed: Placed,
    rank: int,
    due: int,
    patience: int,
) -> int:
    """Run weight gradients before a rank's next action where memory lacks or time is left; return 1 if it fits."""
    row = filling.at[rank]
    stage = given.stage[row]
    needs = stages.taken[stage] if given.kind[row] == F else 0
    waits = stages.forward_waits[stage] if given.kind[row] == F else stages.gradient_waits[stage]
    while filling.owed[rank] > 0:
        gap = due - filling.free[rank]
        took = stages.weight_gradient[_owed(given, filling, rank)]
        fits = gap > 0 and 8 * gap + rules.missing * took >= 8 * took
        tired = waits == 0 and gap > 0 and filling.idle[rank] + gap > patience
        if filling.held[rank] + needs <= room[rank] and not fits and not tired:
            break
        _weigh(given, stages, rules, filling, placed, rank)
    return 1 if filling.held[rank] + needs <= room[rank] else 0


def _owed(given: Given, filling: Filling, rank: int) -> int:
    """Return the stage of a rank's next weight gradient, and move on to its input gradient."""
    row = filling.due[rank]
    while given.kind[row] != I:
        row += 1
    filling.due[rank] = row
    stage: int = given.stage[row]
    return stage


def _begin(filling: Filling, rank: int, due: int) -> int:
    """Wait for an action; return for how long the rank has idled in all."""
    if filling.first[rank] < 0:
        filling.first[rank] = due
    else:
        filling.idle[rank] += max(due - filling.free[rank], 0)
    filling.free[rank] = max(due, filling.free[rank])
    idle: int = filling.idle[rank]
    return idle


def _run(given: Given, stages: Stages, rules: Rules, filling: Filling, placed: Placed, rank: int) -> int:
    """Run a rank's next action of those given; return the rank that its result goes to, -1 for none."""
    row = filling.at[rank]
    filling.at[rank] = row + 1
    kind, stage, microbatch = given.kind[row], given.stage[row], given.microbatch[row]
    _write(given, rules, placed, rank, kind, stage, microbatch)
    if kind == W:
        filling.held[rank] -= stages.kept[stage]
        filling.free[rank] += stages.weight_gradient[stage]
        return -1
    if kind == F:
        filling.held[rank] += stages.taken[stage]
        filling.free[rank] += stages.forward[stage]
        last = stage + 1 == len(stages.rank)
        following, to = (I, stage) if last else (F, stage + 1)
    else:
        filling.held[rank] -= stages.taken[stage] - stages.kept[stage]
        filling.free[rank] += stages.input_gradient[stage]
        filling.owed[rank] += rules.missing_weights
        following, to = I, stage - 1
    if to < 0:
        return -1
    target: int = stages.rank[to]
    lag = 0 if target == rank else rules.transfer
    filling.ready[_place(filling, stages, following, to, microbatch)] = filling.free[rank] + lag
    return target


def _weigh(given: Given, stages: Stages, rules: Rules, filling: Filling, placed: Placed, rank: int) -> None:
    """Run a rank's next weight gradient, in the order of its input gradients."""
    stage = _owed(given, filling, rank)
    row = filling.due[rank]
    filling.due[rank] = row + 1
    filling.owed[rank] -= 1
    filling.held[rank] -= stages.kept[stage]
    filling.free[rank] += stages.weight_gradient[stage]
    _write(given, rules, placed, rank, W, stage, given.microbatch[row])


def _write(given: Given, rules: Rules, placed: Placed, rank: int, kind: int, stage: int, microbatch: int) -> None:
    """Put an action at the end of a rank's row."""
    size = placed.size[rank]
    first = given.row_ptr[rank]
    row = first + rules.missing_weights * (first // 2) + size
    placed.kind[row], placed.stage[row], placed.microbatch[row] = kind, stage, microbatch
    placed.size[rank] = size + 1
