"""Kernels of the list scheduler.

In :func:`list_actions`, an event is the end of a rank's action (the number of the rank) or the readiness of an
action (its number plus ``ranks``). So ends precede readiness at one instant. Without lags, the heap holds at most
one event per rank.

In :func:`list_in_turn`, the actions of one stage, kind and route are a sequence. They become ready, start and end
in order, so three counts describe each sequence. A rank chooses among the next actions of its sequences.
Columns are lists or arrays of integers. A room is an index into the limits of microbatches in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import Heap, pop, push


class Work(NamedTuple):
    """Actions and their dependencies."""

    duration: Any
    after_ptr: Any
    """CSR by action of ``after`` (enabled actions) and ``lag`` (time from its end; empty if all are 0)."""
    after: Any
    lag: Any
    queue: Any
    """Queue of each action once it is enabled."""
    key: Any
    """Distinct priority of each action on its rank; the lowest goes first."""


class InFlightLimits(NamedTuple):
    """Limits on microbatches in flight; -1 for no limit."""

    microbatches: Any
    """Number of microbatches of each action."""
    returned: Any
    """Shape (actions x 2,): rooms that grow when an action ends; empty without limits."""
    taken: Any
    """Shape (queues x 2,): rooms that shrink when an action of a queue starts."""


class Queues(NamedTuple):
    """Queues of enabled actions; the queues of a rank are contiguous."""

    rank: Any
    """Per queue, its rank."""
    ptr: Any
    """Shape (queues + 1,): first place of each queue in ``enabled``."""
    of_rank: Any
    """Shape (ranks + 1,): first queue of each rank."""


class ListingState(NamedTuple):
    """State of the simulation with queues."""

    needs: Any
    """Per action, the number of actions that it still waits for."""
    left: Any
    """Per room, the number of further microbatches that can start."""
    running: Any
    """Per rank, its running action, -1 for none."""
    fill: Any
    """Per queue, the number of its actions."""
    ready: Any
    """Per action, its earliest start; empty without lags."""
    enabled: Any
    """A heap by key for each queue."""
    dirty: Any
    """Per rank, whether it is on the stack."""
    stack: Any
    """Ranks that may be able to start an action."""
    order: Any
    """Started actions in order, rank by rank."""
    next: Any
    """Per rank, its next place in ``order``."""


def list_actions(work: Work, rooms: InFlightLimits, queues: Queues, state: ListingState, events: Heap) -> int:
    """Run all actions and fill ``order``; return the number of actions that ran."""
    actions, ranks = len(work.duration), len(state.running)
    begun = touched = now = 0
    for action in range(actions):
        if state.needs[action] == 0:
            touched = _enable(work, queues, state, action, touched)
    while touched > 0:
        while touched > 0:
            touched -= 1
            rank = state.stack[touched]
            state.dirty[rank] = 0
            queue = _choose(work, rooms, queues, state, rank) if state.running[rank] < 0 else -1
            if queue >= 0:
                action = _begin(work, rooms, queues, state, queue)
                state.running[rank] = action
                state.order[state.next[rank]] = action
                state.next[rank] += 1
                begun += 1
                push(events, rank, now + work.duration[action])
        if events.size[0] > 0:
            now = events.time[events.item[0]]
        while events.size[0] > 0 and events.time[events.item[0]] == now:
            event = pop(events)
            if event >= ranks:
                touched = _enable(work, queues, state, event - ranks, touched)
            else:
                touched = _finish(work, rooms, queues, state, events, event, now, touched)
    return begun


def _enable(work: Work, queues: Queues, state: ListingState, action: int, touched: int) -> int:
    """Put an enabled action into its queue; return the number of ranks on the stack."""
    queue = work.queue[action]
    _put(state, work.key, queues.ptr[queue], queue, action)
    return _touch(state, queues.rank[queue], touched)


def _touch(state: ListingState | Progress, rank: int, touched: int) -> int:
    """Push a rank on the stack of ranks to check; return the number of ranks on the stack."""
    if state.dirty[rank]:
        return touched
    state.dirty[rank] = 1
    state.stack[touched] = rank
    return touched + 1


def _finish(
    work: Work,
    rooms: InFlightLimits,
    queues: Queues,
    state: ListingState,
    events: Heap,
    rank: int,
    now: int,
    touched: int,
) -> int:
    """End a rank's action: free its microbatches, enable dependents. Return the number of ranks on the stack."""
    action: int = state.running[rank]
    state.running[rank] = -1
    touched = _touch(state, rank, touched)
    for side in range(2 if len(rooms.returned) > 0 else 0):
        room = rooms.returned[2 * action + side]
        if room >= 0:
            state.left[room] += rooms.microbatches[action]
    lags = len(work.lag) > 0
    for edge in range(work.after_ptr[action], work.after_ptr[action + 1]):
        target = work.after[edge]
        state.needs[target] -= 1
        ready = now
        if lags:
            state.ready[target] = max(state.ready[target], now + work.lag[edge])
            ready = state.ready[target]
        if state.needs[target] == 0:
            if ready == now:
                touched = _enable(work, queues, state, target, touched)
            else:
                push(events, len(state.running) + target, ready)
    return touched


def _choose(work: Work, rooms: InFlightLimits, queues: Queues, state: ListingState, rank: int) -> int:
    """Return the queue whose first action a rank starts next, -1 for none."""
    best, chosen = -1, -1
    for queue in range(queues.of_rank[rank], queues.of_rank[rank + 1]):
        if state.fill[queue] == 0:
            continue
        action = state.enabled[queues.ptr[queue]]
        fits = True
        for side in range(2):
            room = rooms.taken[2 * queue + side]
            if room >= 0 and state.left[room] < rooms.microbatches[action]:
                fits = False
        if fits and (best < 0 or work.key[action] < work.key[best]):
            best, chosen = action, queue
    return chosen


def _begin(work: Work, rooms: InFlightLimits, queues: Queues, state: ListingState, queue: int) -> int:
    """Remove the first action of a queue and subtract its microbatches from its rooms; return the action."""
    action: int = state.enabled[queues.ptr[queue]]
    for side in range(2):
        room = rooms.taken[2 * queue + side]
        if room >= 0:
            state.left[room] -= rooms.microbatches[action]
    _take(state, work.key, queues.ptr[queue], queue)
    return action


def _put(state: ListingState, key: Any, first: int, queue: int, action: int) -> None:
    """Add an action to a queue whose first place in the enabled is ``first``."""
    enabled, index = state.enabled, state.fill[queue]
    state.fill[queue] = index + 1
    while index > 0:
        above = (index - 1) >> 1
        if key[enabled[first + above]] < key[action]:
            break
        enabled[first + index] = enabled[first + above]
        index = above
    enabled[first + index] = action


def _take(state: ListingState, key: Any, first: int, queue: int) -> None:
    """Remove the first action of a queue."""
    enabled, count = state.enabled, state.fill[queue] - 1
    state.fill[queue] = count
    last = enabled[first + count]
    index = 0
    while 2 * index + 1 < count:
        below = 2 * index + 1
        if below + 1 < count and key[enabled[first + below + 1]] < key[enabled[first + below]]:
            below += 1
        if key[last] < key[enabled[first + below]]:
            break
        enabled[first + index] = enabled[first + below]
        index = below
    enabled[first + index] = last


class Sequences(NamedTuple):
    """Sequences of actions, sorted by rank."""

    rank: Any
    """Per sequence, its rank."""
    of_rank: Any
    """Shape (ranks + 1,): first sequence of each rank."""
    kind: Any
    stage: Any
    duration: Any
    count: Any
    """Per sequence, the number of its actions."""
    first: Any
    """Per sequence, the place of its first microbatch in ``turns``."""
    turns: Any
    """Microbatches, route by route."""
    origin: Any
    step: Any
    """Per sequence: the priority of an action is ``origin + step * microbatch``, and the lowest goes first."""
    before_ptr: Any
    before: Any
    """CSR by sequence: sequences whose n-th action enables its n-th action."""
    after_ptr: Any
    after: Any
    """CSR by sequence: sequences whose n-th action its n-th action enables."""
    room: Any
    """Shape (sequences x 2,): rooms that shrink when an action starts or grow when it ends, -1 for none."""
    direction: Any
    """Per sequence, 1 if its starts shrink rooms, -1 if its ends grow rooms, else 0."""


class Progress(NamedTuple):
    """State of the simulation without queues."""

    begun: Any
    ended: Any
    ready: Any
    """Per sequence, the number of actions that began, that ended, and that can begin."""
    head: Any
    """Per sequence, the priority of its next action."""
    left: Any
    """Per room, the number of further microbatches that can start."""
    running: Any
    """Per rank, the sequence of its running action, -1 for none."""
    dirty: Any
    """Per rank, whether it is on the stack."""
    stack: Any
    """Ranks that may be able to start an action."""
    next: Any
    """Per rank, its next place in the output."""


class Written(NamedTuple):
    """Columns of the started actions in start order, grouped by rank."""

    kind: Any
    stage: Any
    microbatch: Any


def list_in_turn(given: Sequences, progress: Progress, events: Heap, written: Written) -> int:
    """Run all actions and write them; return the number of actions that ran."""
    ranks = len(progress.running)
    started, now, touched = 0, 0, ranks
    for rank in range(ranks):
        progress.stack[rank] = rank
        progress.dirty[rank] = 1
    while touched > 0:
        while touched > 0:
            touched -= 1
            rank = progress.stack[touched]
            progress.dirty[rank] = 0
            sequence = _choose_in_turn(given, progress, rank) if progress.running[rank] < 0 else -1
            if sequence >= 0:
                _begin_in_turn(given, progress, written, rank, sequence)
                started += 1
                push(events, rank, now + given.duration[sequence])
        if events.size[0] > 0:
            now = events.time[events.item[0]]
        while events.size[0] > 0 and events.time[events.item[0]] == now:
            touched = _end(given, progress, pop(events), touched)
    return started


def _choose_in_turn(given: Sequences, progress: Progress, rank: int) -> int:
    """Return the sequence whose next action a rank starts, -1 for none."""
    best, chosen = 0, -1
    for sequence in range(given.of_rank[rank], given.of_rank[rank + 1]):
        if progress.begun[sequence] < progress.ready[sequence] and (chosen < 0 or progress.head[sequence] < best):
            fits = True
            if given.direction[sequence] > 0:
                for side in range(2):
                    room = given.room[2 * sequence + side]
                    if room >= 0 and progress.left[room] < 1:
                        fits = False
            if fits:
                best, chosen = progress.head[sequence], sequence
    return chosen


def _begin_in_turn(given: Sequences, progress: Progress, written: Written, rank: int, sequence: int) -> None:
    """Start the next action of a sequence: write it, and shrink its rooms."""
    turn = progress.begun[sequence]
    index, place = given.first[sequence] + turn, progress.next[rank]
    written.kind[place] = given.kind[sequence]
    written.stage[place] = given.stage[sequence]
    written.microbatch[place] = given.turns[index]
    progress.next[rank] = place + 1
    progress.running[rank] = sequence
    progress.begun[sequence] = turn + 1
    if turn + 1 < given.count[sequence]:
        progress.head[sequence] = given.origin[sequence] + given.step[sequence] * given.turns[index + 1]
    if given.direction[sequence] > 0:
        _give(given, progress, sequence, -1)


def _give(given: Sequences, progress: Progress, sequence: int, more: int) -> None:
    """Add ``more`` to the free capacity of a sequence's limits."""
    for side in range(2):
        room = given.room[2 * sequence + side]
        if room >= 0:
            progress.left[room] += more


def _end(given: Sequences, progress: Progress, rank: int, touched: int) -> int:
    """End a rank's action: release its capacity and enable dependents. Return the number of ranks on the stack."""
    sequence: int = progress.running[rank]
    progress.running[rank] = -1
    progress.ended[sequence] += 1
    touched = _touch(progress, rank, touched)
    if given.direction[sequence] < 0:
        _give(given, progress, sequence, 1)
    for edge in range(given.after_ptr[sequence], given.after_ptr[sequence + 1]):
        target = given.after[edge]
        low = progress.ended[sequence]
        for other in range(given.before_ptr[target], given.before_ptr[target + 1]):
            low = min(low, progress.ended[given.before[other]])
        if low > progress.ready[target]:
            progress.ready[target] = low
            touched = _touch(progress, given.rank[target], touched)
    return touched
