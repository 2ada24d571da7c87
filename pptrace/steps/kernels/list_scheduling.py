"""Kernel of the list scheduler.

A sequence has the actions of one stage, kind and route in the order of their microbatches. Actions are numbered
sequence by sequence. Enabled actions are in one queue per sequence, sorted by priority.

An event is the end of a rank's action (the number of the rank) or the readiness of an action (its number plus
``ranks``). So ends precede readiness at one instant. Without transfers, the heap holds at most one event per rank.
Columns are lists or arrays of integers. A room is an index into the limits of microbatches in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import Heap, pop, push


class Sequences(NamedTuple):
    """Sequences of actions, sorted by rank."""

    rank: Any
    """Per sequence, its rank."""
    of_rank: Any
    """Shape (ranks + 1,): first sequence of each rank."""
    kind: Any
    stage: Any
    duration: Any
    span: Any
    """Per sequence; ``span`` is the number of microbatches of each action."""
    first: Any
    """Shape (sequences + 1,): first action of each sequence."""
    sequence_of: Any
    """Per action, its sequence; empty without transfers."""
    microbatch: Any
    """Microbatches, route by route."""
    turn: Any
    """Per sequence, the place of its first microbatch in ``microbatch``."""
    after_ptr: Any
    after: Any
    """CSR by sequence: sequences whose action of a microbatch waits for its action of the same microbatch."""
    room: Any
    """Shape (sequences x 2,): rooms that shrink when an action starts or grow when it ends, -1 for none."""
    origin: Any
    step: Any
    """Per sequence: without ``key``, the priority of an action is ``origin + step * microbatch``."""
    direction: Any
    """Per sequence, 1 if its starts shrink rooms, -1 if its ends grow rooms, else 0."""


class ListingState(NamedTuple):
    """State of the simulation."""

    needs: Any
    """Per action, the sum over awaited sequences of the number of microbatches that it still waits for."""
    left: Any
    """Per room, the number of further microbatches that can start."""
    sequence: Any
    action: Any
    """Per rank, its running action and the sequence of that; the sequence is -1 for none."""
    enabled: Any
    """Enabled actions of each sequence, from the place of its first action."""
    begin: Any
    end: Any
    """Per sequence, where its queue begins and ends in ``enabled``."""
    head: Any
    """Per sequence, the priority of the first action in its queue."""
    ready: Any
    """Per action, its earliest start; empty without transfers."""
    dirty: Any
    """Per rank, whether it is on the stack."""
    stack: Any
    """Ranks that may be able to start an action."""
    next: Any
    """Per rank, its next place in the order."""


class Order(NamedTuple):
    """Columns of the started actions in order, rank by rank."""

    kind: Any
    stage: Any
    microbatch: Any


def list_actions(
    sequences: Sequences, key: Any, transfer: int, state: ListingState, events: Heap, order: Order
) -> int:
    """Run all actions and write their order; return the number of actions that ran.

    ``key`` has the distinct priority of each action, and the lowest goes first; it is empty for priorities that
    are linear in the microbatch. ``transfer`` is the time from one rank to another.
    """
    ranks = len(state.sequence)
    begun = touched = now = 0
    for sequence in range(len(sequences.rank)):
        for action in range(sequences.first[sequence], sequences.first[sequence + 1]):
            if state.needs[action] == 0:
                touched = _enable(sequences, state, key, sequence, action, touched)
    while touched > 0:
        while touched > 0:
            touched -= 1
            rank = state.stack[touched]
            state.dirty[rank] = 0
            sequence = _choose(sequences, state, rank) if state.sequence[rank] < 0 else -1
            if sequence >= 0:
                _begin(sequences, state, key, order, rank, sequence)
                begun += 1
                push(events, rank, now + sequences.duration[sequence])
        if events.size[0] > 0:
            now = events.time[0]
        while events.size[0] > 0 and events.time[0] == now:
            event = pop(events)
            if event < ranks:
                touched = _finish(sequences, state, key, events, event, now, transfer, touched)
            else:
                action = event - ranks
                touched = _enable(sequences, state, key, sequences.sequence_of[action], action, touched)
    return begun


def _choose(sequences: Sequences, state: ListingState, rank: int) -> int:
    """Return the sequence whose first enabled action a rank starts next, -1 for none."""
    chosen = -1
    for sequence in range(sequences.of_rank[rank], sequences.of_rank[rank + 1]):
        if (
            state.begin[sequence] < state.end[sequence]
            and (chosen < 0 or state.head[sequence] < state.head[chosen])
            and _fits(sequences, state, sequence)
        ):
            chosen = sequence
    return chosen


def _fits(sequences: Sequences, state: ListingState, sequence: int) -> bool:
    """Return whether the rooms of a sequence have space for one more action."""
    fits = True
    if sequences.direction[sequence] > 0:
        for side in range(2):
            room = sequences.room[2 * sequence + side]
            if room >= 0 and state.left[room] < sequences.span[sequence]:
                fits = False
    return fits


def _resize_rooms(sequences: Sequences, state: ListingState, sequence: int, microbatches: int) -> None:
    """Add ``microbatches`` to the rooms of a sequence."""
    for side in range(2):
        room = sequences.room[2 * sequence + side]
        if room >= 0:
            state.left[room] += microbatches


def _begin(sequences: Sequences, state: ListingState, key: Any, order: Order, rank: int, sequence: int) -> None:
    """Start the first action in the queue of a sequence: write it, and shrink its rooms."""
    queue, place = state.begin[sequence], state.next[rank]
    action = state.enabled[queue]
    state.begin[sequence] = queue + 1
    if queue + 1 < state.end[sequence]:
        state.head[sequence] = _priority(sequences, key, sequence, state.enabled[queue + 1])
    order.kind[place] = sequences.kind[sequence]
    order.stage[place] = sequences.stage[sequence]
    order.microbatch[place] = _microbatch(sequences, sequence, action)
    state.next[rank] = place + 1
    state.sequence[rank], state.action[rank] = sequence, action
    if sequences.direction[sequence] > 0:
        _resize_rooms(sequences, state, sequence, -sequences.span[sequence])


def _finish(
    sequences: Sequences,
    state: ListingState,
    key: Any,
    events: Heap,
    rank: int,
    now: int,
    transfer: int,
    touched: int,
) -> int:
    """End a rank's action: free its microbatches, enable dependents. Return the number of ranks on the stack."""
    ranks, sequence = len(state.sequence), state.sequence[rank]
    state.sequence[rank] = -1
    touched = _touch(state, rank, touched)
    span = sequences.span[sequence]
    if sequences.direction[sequence] < 0:
        _resize_rooms(sequences, state, sequence, span)
    first = (state.action[rank] - sequences.first[sequence]) * span
    for edge in range(sequences.after_ptr[sequence], sequences.after_ptr[sequence + 1]):
        target = sequences.after[edge]
        for turn in range(first, first + span):
            block = turn if sequences.span[target] == 1 else turn // sequences.span[target]  # division is slow
            action = sequences.first[target] + block
            state.needs[action] -= 1
            arrival = now if transfer == 0 or sequences.rank[target] == rank else now + transfer
            if arrival > now:
                state.ready[action] = arrival
            if state.needs[action] == 0:
                if transfer > 0 and state.ready[action] > now:
                    push(events, ranks + action, state.ready[action])
                else:
                    touched = _enable(sequences, state, key, target, action, touched)
    return touched


def _enable(sequences: Sequences, state: ListingState, key: Any, sequence: int, action: int, touched: int) -> int:
    """Insert an action into the queue of its sequence; return the number of ranks on the stack."""
    place = state.end[sequence]
    priority = _priority(sequences, key, sequence, action)
    state.end[sequence] = place + 1
    while place > state.begin[sequence]:
        earlier = state.enabled[place - 1]
        if _priority(sequences, key, sequence, earlier) < priority:
            break
        state.enabled[place] = earlier
        place -= 1
    state.enabled[place] = action
    if place == state.begin[sequence]:
        state.head[sequence] = priority
    return _touch(state, sequences.rank[sequence], touched)


def _priority(sequences: Sequences, key: Any, sequence: int, action: int) -> int:
    """Return the priority of an action; the lowest goes first."""
    if len(key) > 0:
        priority: int = key[action]
    else:
        microbatch = _microbatch(sequences, sequence, action)
        priority = sequences.origin[sequence] + sequences.step[sequence] * microbatch
    return priority


def _microbatch(sequences: Sequences, sequence: int, action: int) -> int:
    """Return the first microbatch of an action."""
    turn = (action - sequences.first[sequence]) * sequences.span[sequence]
    microbatch: int = sequences.microbatch[sequences.turn[sequence] + turn]
    return microbatch


def _touch(state: ListingState, rank: int, touched: int) -> int:
    """Push a rank on the stack of ranks to check; return the number of ranks on the stack."""
    if state.dirty[rank]:
        return touched
    state.dirty[rank] = 1
    state.stack[touched] = rank
    return touched + 1
