"""The kernel that inserts weight gradients into the gaps between forwards and input gradients.

The rank that is free first continues, once the earliest start of its next action is known. Columns are lists or
arrays of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import OUTSIDE, Heap, pop, push
from pptrace.steps.kinds import Kind

UNKNOWN = -(2**62)
"""The latest start of an action before it is computed."""

F, I, W = int(Kind.F), int(Kind.I), int(Kind.W)  # noqa: E741 - PyTorch's name


class Table(NamedTuple):
    """Forwards and input gradients in each rank's order, with weight gradients if the table has them."""

    row_ptr: Any
    kind: Any
    stage: Any
    microbatch: Any


class Stages(NamedTuple):
    """Durations and memory of each stage's actions."""

    rank: Any
    forward: Any
    input_gradient: Any
    weight_gradient: Any
    taken: Any
    """Bytes that a forward allocates."""
    kept: Any
    """The part of these bytes that is kept from the input gradient to the weight gradient."""


class Rules(NamedTuple):
    """Settings of the filling."""

    missing_weights: int
    """1 to insert weight gradients, 0 if the table has them."""
    transfer: int
    """Time from one rank to another."""
    deadline: Any
    """Per rank, its desired end; empty for no deadline."""


class Slack(NamedTuple):
    """Latest starts of actions; empty columns without deadlines."""

    latest: Any
    """Shape (2 x stages x microbatches,): latest starts of forwards, then of input gradients."""
    next: Any
    """Per rank, the last row without a latest start."""
    end: Any
    """Per rank, the latest start of the row after that row."""
    before: Any
    """Per rank, its deadline minus the work after that row; finally, minus all its work."""


class Filling(NamedTuple):
    """State of the simulation."""

    ready: Any
    """Shape (2 x stages x microbatches,): earliest starts of forwards, then input gradients; -1 until known."""
    next: Any
    """Per rank, the row of its next action."""
    due: Any
    """Per rank, a row up to which each input gradient has its weight gradient."""
    pending_weights: Any
    """Per rank, the number of weight gradients that can run."""
    held: Any
    """Per rank, bytes of activations."""
    idle: Any
    """Per rank, idle time between its actions."""
    first: Any
    """Per rank, its first start; -1 before it."""
    free: Any
    """Per rank, the end of its last action so far."""


class PlacedActions(NamedTuple):
    """The resulting table; with inserted weight gradients, rows begin at 1.5 times their original positions."""

    kind: Any
    stage: Any
    microbatch: Any
    size: Any
    """Per rank, the number of its actions so far."""


def fill_gaps(
    table: Table,
    stages: Stages,
    room: Any,
    rules: Rules,
    slack: Slack,
    filling: Filling,
    placed: PlacedActions,
    ranks: Heap,
) -> int:
    """Place all actions, the rank that is free first before others; return -1, or a rank that lacks memory."""
    if len(rules.deadline) > 0:
        _find_latest_starts(table, stages, rules, slack)
    most = 0
    for rank in range(len(room)):
        push(ranks, rank, 0)
    while ranks.size[0] > 0:
        rank = pop(ranks)
        row = filling.next[rank]
        if row == table.row_ptr[rank + 1]:
            while filling.pending_weights[rank] > 0:
                _run_next_weight_gradient(table, stages, rules, filling, placed, rank)
            continue
        kind, due = table.kind[row], 0
        if kind != W:
            due = filling.ready[_place(stages, len(filling.ready), kind, table.stage[row], table.microbatch[row])]
        if due < 0:
            continue
        idle = most
        if len(rules.deadline) > 0 and filling.first[rank] >= 0:
            idle = max(idle, slack.before[rank] - filling.first[rank])
        if not _run_due_weight_gradients(table, stages, room, rules, slack, filling, placed, rank, due, idle):
            return rank
        most = max(most, _begin(filling, rank, due))
        follower = _run(table, stages, rules, filling, placed, rank)
        push(ranks, rank, filling.free[rank])
        if follower >= 0 and ranks.place[follower] == OUTSIDE:
            push(ranks, follower, filling.free[follower])
    return -1


def _find_latest_starts(table: Table, stages: Stages, rules: Rules, slack: Slack) -> None:
    """Compute latest starts of forwards and input gradients for all deadlines, in backward order.

    A weight gradient counts as work after its input gradient at any later time.
    """
    has_changed = 1
    while has_changed > 0:
        has_changed = 0
        for rank in range(len(rules.deadline)):
            row = slack.next[rank]
            while row >= table.row_ptr[rank]:
                kind, stage, microbatch = table.kind[row], table.stage[row], table.microbatch[row]
                duration = stages.forward[stage] if kind == F else stages.input_gradient[stage]
                weight = stages.weight_gradient[stage] if kind == I else 0
                late = min(slack.end[rank], slack.before[rank] - weight)
                following, to = _follower(stages, kind, stage)
                if to >= 0:
                    after = slack.latest[_place(stages, len(slack.latest), following, to, microbatch)]
                    if after == UNKNOWN:
                        break
                    late = min(late, after - (0 if stages.rank[to] == rank else rules.transfer))
                slack.latest[_place(stages, len(slack.latest), kind, stage, microbatch)] = late - duration
                slack.end[rank] = late - duration
                slack.before[rank] -= duration + weight
                row -= 1
                has_changed = 1
            slack.next[rank] = row


def _follower(stages: Stages, kind: int, stage: int) -> tuple[int, int]:
    """Return the kind and stage of the action that a forward or an input gradient enables; stage -1 for none."""
    if kind == I:
        return I, stage - 1
    if stage + 1 == len(stages.rank):
        return I, stage
    return F, stage + 1


def _place(stages: Stages, size: int, kind: int, stage: int, microbatch: int) -> int:
    """Return the index of a forward or an input gradient in a column of ``size`` values."""
    count = len(stages.rank)
    return (stage if kind == F else count + stage) * (size // (2 * count)) + microbatch


def _run_due_weight_gradients(
    table: Table,
    stages: Stages,
    room: Any,
    rules: Rules,
    slack: Slack,
    filling: Filling,
    placed: PlacedActions,
    rank: int,
    due: int,
    idle: int,
) -> int:
    """Run weight gradients before a rank's next action if memory is short or time is left; return 1 if it fits."""
    row = filling.next[rank]
    stage = table.stage[row]
    activation_size = stages.taken[stage] if table.kind[row] == F else 0
    late = due
    if len(slack.latest) > 0 and table.kind[row] != W:
        latest = slack.latest[_place(stages, len(slack.latest), table.kind[row], stage, table.microbatch[row])]
        late = max(due, latest)
    while filling.pending_weights[rank] > 0:
        gap = due - filling.free[rank]
        duration = stages.weight_gradient[_find_next_weight_gradient(table, filling, rank)]
        fits = filling.free[rank] + duration <= late
        has_idled_too_long = filling.idle[rank] + gap > idle
        if filling.held[rank] + activation_size <= room[rank] and (gap <= 0 or not (fits or has_idled_too_long)):
            break
        _run_next_weight_gradient(table, stages, rules, filling, placed, rank)
    return 1 if filling.held[rank] + activation_size <= room[rank] else 0


def _find_next_weight_gradient(table: Table, filling: Filling, rank: int) -> int:
    """Return the stage of a rank's next weight gradient, and set ``due`` to its input gradient."""
    row = filling.due[rank]
    while table.kind[row] != I:
        row += 1
    filling.due[rank] = row
    stage: int = table.stage[row]
    return stage


def _begin(filling: Filling, rank: int, due: int) -> int:
    """Wait until an action can start; return the rank's total idle time."""
    if filling.first[rank] < 0:
        filling.first[rank] = due
    else:
        filling.idle[rank] += max(due - filling.free[rank], 0)
    filling.free[rank] = max(due, filling.free[rank])
    idle: int = filling.idle[rank]
    return idle


def _run(table: Table, stages: Stages, rules: Rules, filling: Filling, placed: PlacedActions, rank: int) -> int:
    """Run a rank's next action of the table; return the rank that receives its result, -1 for none."""
    row = filling.next[rank]
    filling.next[rank] = row + 1
    kind, stage, microbatch = table.kind[row], table.stage[row], table.microbatch[row]
    _write(table, rules, placed, rank, kind, stage, microbatch)
    if kind == W:
        filling.held[rank] -= stages.kept[stage]
        filling.free[rank] += stages.weight_gradient[stage]
        return -1
    if kind == F:
        filling.held[rank] += stages.taken[stage]
        filling.free[rank] += stages.forward[stage]
    else:
        filling.held[rank] -= stages.taken[stage] - stages.kept[stage]
        filling.free[rank] += stages.input_gradient[stage]
        filling.pending_weights[rank] += rules.missing_weights
    following, to = _follower(stages, kind, stage)
    if to < 0:
        return -1
    target: int = stages.rank[to]
    lag = 0 if target == rank else rules.transfer
    filling.ready[_place(stages, len(filling.ready), following, to, microbatch)] = filling.free[rank] + lag
    return target


def _run_next_weight_gradient(
    table: Table, stages: Stages, rules: Rules, filling: Filling, placed: PlacedActions, rank: int
) -> None:
    """Run a rank's next weight gradient, in the order of its input gradients."""
    stage = _find_next_weight_gradient(table, filling, rank)
    row = filling.due[rank]
    filling.due[rank] = row + 1
    filling.pending_weights[rank] -= 1
    filling.held[rank] -= stages.kept[stage]
    filling.free[rank] += stages.weight_gradient[stage]
    _write(table, rules, placed, rank, W, stage, table.microbatch[row])


def _write(
    table: Table, rules: Rules, placed: PlacedActions, rank: int, kind: int, stage: int, microbatch: int
) -> None:
    """Append an action to a rank's row."""
    size = placed.size[rank]
    first = table.row_ptr[rank]
    row = first + rules.missing_weights * (first // 2) + size
    placed.kind[row], placed.stage[row], placed.microbatch[row] = kind, stage, microbatch
    placed.size[rank] = size + 1
