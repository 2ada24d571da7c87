"""Kernels of the list scheduler.

An event is the end of what a rank does, numbered as the rank, or an action's readiness, numbered ``ranks`` above
it: so at one instant ends come first, and where nothing has a lag the heap is as small as there are ranks. Columns
are lists or arrays of integers, alike in use.

What a stage does of one kind and on one route is a sequence here. Its actions become ready, start and end one
after another, so three counts say how far each is, and a rank chooses among the next actions of its few sequences.
Columns are lists or arrays of integers, alike in use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import Heap, pop, push


class Work(NamedTuple):
    """What there is to do."""

    duration: Any
    after_ptr: Any
    """With ``after`` and ``lag``, CSR by action: what it enables, that long after its end; no lags for all 0."""
    after: Any
    lag: Any
    queue: Any
    """The queue in which it waits once it is enabled."""
    key: Any
    """Its place in the order of its rank's choice; distinct."""


class InFlightLimits(NamedTuple):
    """Limits on microbatches in flight; -1 for no limit."""

    microbatches: Any
    """Per action, the microbatches that it takes at its start or returns at its end."""
    returned: Any
    """Shape (actions x 2,): the rooms to which an action's end returns them; empty where none is bounded."""
    taken: Any
    """Shape (queues x 2,): the rooms from which a queue's actions take them."""


class Queues(NamedTuple):
    """Queues of enabled actions; the queues of a rank are contiguous."""

    rank: Any
    """Per queue, its rank."""
    ptr: Any
    """Per queue and one more, where its part of ``shelf`` starts."""
    of_rank: Any
    """Per rank and one more, its first queue."""


class Playing(NamedTuple):
    """How far it is."""

    needs: Any
    """Per action, how many others enable it."""
    left: Any
    """Per room, the microbatches that may still be taken."""
    doing: Any
    """Per rank, the action that it does, -1 while it is free."""
    fill: Any
    """Per queue, how many wait."""
    ready: Any
    """Per action, when it may start; empty where there are no lags."""
    shelf: Any
    """A heap by key for each queue."""
    dirty: Any
    """Per rank, whether it is on the stack."""
    stack: Any
    """Ranks that may have something to start."""
    order: Any
    """Rank by rank, what it starts, in this order."""
    next: Any
    """Per rank, its next place in ``order``."""


def list_actions(work: Work, rooms: InFlightLimits, queues: Queues, playing: Playing, events: Heap) -> int:
    """Run all actions and fill ``order``; return how many could run."""
    actions, ranks = len(work.duration), len(playing.doing)
    begun = touched = now = 0
    for action in range(actions):
        if playing.needs[action] == 0:
            touched = _enable(work, queues, playing, action, touched)
    while touched > 0:
        while touched > 0:
            touched -= 1
            rank = playing.stack[touched]
            playing.dirty[rank] = 0
            own = _choose(work, rooms, queues, playing, rank) if playing.doing[rank] < 0 else -1
            if own >= 0:
                action = _begin(work, rooms, queues, playing, own)
                playing.doing[rank] = action
                playing.order[playing.next[rank]] = action
                playing.next[rank] += 1
                begun += 1
                push(events, rank, now + work.duration[action])
        if events.size[0] > 0:
            now = events.time[events.item[0]]
        while events.size[0] > 0 and events.time[events.item[0]] == now:
            event = pop(events)
            if event >= ranks:
                touched = _enable(work, queues, playing, event - ranks, touched)
            else:
                touched = _finish(work, rooms, queues, playing, events, event, now, touched)
    return begun


def _enable(work: Work, queues: Queues, playing: Playing, action: int, touched: int) -> int:
    """Let an action wait for its rank; return how many ranks may have something to start."""
    own = work.queue[action]
    _put(playing, work.key, queues.ptr[own], own, action)
    return _touch(playing, queues.rank[own], touched)


def _touch(playing: Playing, rank: int, touched: int) -> int:
    """Push a rank on the stack of ranks to check; return the number of ranks on the stack."""
    if playing.dirty[rank]:
        return touched
    playing.dirty[rank] = 1
    playing.stack[touched] = rank
    return touched + 1


def _finish(
    work: Work,
    rooms: InFlightLimits,
    queues: Queues,
    playing: Playing,
    events: Heap,
    rank: int,
    now: int,
    touched: int,
) -> int:
    """End what a rank does: return its microbatches, enable what waits; return how many ranks are on the stack."""
    action: int = playing.doing[rank]
    playing.doing[rank] = -1
    touched = _touch(playing, rank, touched)
    for side in range(2 if len(rooms.returned) > 0 else 0):
        room = rooms.returned[2 * action + side]
        if room >= 0:
            playing.left[room] += rooms.microbatches[action]
    lags = len(work.lag) > 0
    for edge in range(work.after_ptr[action], work.after_ptr[action + 1]):
        target = work.after[edge]
        playing.needs[target] -= 1
        ready = now
        if lags:
            playing.ready[target] = max(playing.ready[target], now + work.lag[edge])
            ready = playing.ready[target]
        if playing.needs[target] == 0:
            if ready == now:
                touched = _enable(work, queues, playing, target, touched)
            else:
                push(events, len(playing.doing) + target, ready)
    return touched


def _choose(work: Work, rooms: InFlightLimits, queues: Queues, playing: Playing, rank: int) -> int:
    """Return the queue whose first action a rank starts next, -1 for none."""
    best, chosen = -1, -1
    for own in range(queues.of_rank[rank], queues.of_rank[rank + 1]):
        if playing.fill[own] == 0:
            continue
        action = playing.shelf[queues.ptr[own]]
        fits = True
        for side in range(2):
            room = rooms.taken[2 * own + side]
            if room >= 0 and playing.left[room] < rooms.microbatches[action]:
                fits = False
        if fits and (best < 0 or work.key[action] < work.key[best]):
            best, chosen = action, own
    return chosen


def _begin(work: Work, rooms: InFlightLimits, queues: Queues, playing: Playing, own: int) -> int:
    """Take the first action off a queue, and its microbatches from their rooms; return it."""
    action: int = playing.shelf[queues.ptr[own]]
    for side in range(2):
        room = rooms.taken[2 * own + side]
        if room >= 0:
            playing.left[room] -= rooms.microbatches[action]
    _take(playing, work.key, queues.ptr[own], own)
    return action


def _put(playing: Playing, key: Any, first: int, own: int, action: int) -> None:
    """Put an action into a queue whose part of the shelf starts at ``first``."""
    shelf, at = playing.shelf, playing.fill[own]
    playing.fill[own] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if key[shelf[first + above]] < key[action]:
            break
        shelf[first + at] = shelf[first + above]
        at = above
    shelf[first + at] = action


def _take(playing: Playing, key: Any, first: int, own: int) -> None:
    """Take the first action off a queue (the caller has read it)."""
    shelf, count = playing.shelf, playing.fill[own] - 1
    playing.fill[own] = count
    last = shelf[first + count]
    at = 0
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and key[shelf[first + below + 1]] < key[shelf[first + below]]:
            below += 1
        if key[last] < key[shelf[first + below]]:
            break
        shelf[first + at] = shelf[first + below]
        at = below
    shelf[first + at] = last


class Sequences(NamedTuple):
    """What there is to do; a rank's sequences stand together."""

    rank: Any
    """Per sequence, its rank."""
    of_rank: Any
    """Per rank and one more, its first sequence."""
    kind: Any
    stage: Any
    duration: Any
    count: Any
    """Per sequence, how many actions it has."""
    first: Any
    """Per sequence, where its microbatches begin in ``turns``."""
    turns: Any
    """Microbatches, route by route."""
    origin: Any
    step: Any
    """Per sequence: an action's place in the order of its rank's choice is ``origin + step * microbatch``."""
    before_ptr: Any
    before: Any
    """CSR by sequence: those whose n-th action enables its n-th."""
    after_ptr: Any
    after: Any
    """CSR by sequence: those whose n-th action its n-th enables."""
    room: Any
    """Shape (sequences x 2,): rooms that an action takes at its start or gives back at its end, or -1."""
    way: Any
    """Per sequence, 1 where it takes room, -1 where it gives room back, else 0."""


class Progress(NamedTuple):
    """How far it is."""

    begun: Any
    ended: Any
    ready: Any
    """Per sequence, how many actions have begun, have ended, and may have begun."""
    head: Any
    """Per sequence, the place of its next action in its rank's choice."""
    left: Any
    """Per room, the microbatches that may still be taken."""
    doing: Any
    """Per rank, the sequence of what it does, -1 while it is free."""
    dirty: Any
    """Per rank, whether it is on the stack."""
    stack: Any
    """Ranks that may have something to start."""
    next: Any
    """Per rank, its next place in what is written."""


class Written(NamedTuple):
    """Columns of the started actions in start order, grouped by rank."""

    kind: Any
    stage: Any
    microbatch: Any


def list_in_turn(given: Sequences, progress: Progress, events: Heap, written: Written) -> int:
    """Run all actions and write them; return how many could run."""
    ranks = len(progress.doing)
    started, now, touched = 0, 0, ranks
    for rank in range(ranks):
        progress.stack[rank] = rank
        progress.dirty[rank] = 1
    while touched > 0:
        while touched > 0:
            touched -= 1
            rank = progress.stack[touched]
            progress.dirty[rank] = 0
            own = _choose_in_turn(given, progress, rank) if progress.doing[rank] < 0 else -1
            if own >= 0:
                _begin_in_turn(given, progress, written, rank, own)
                started += 1
                push(events, rank, now + given.duration[own])
        if events.size[0] > 0:
            now = events.time[events.item[0]]
        while events.size[0] > 0 and events.time[events.item[0]] == now:
            touched = _end(given, progress, pop(events), touched)
    return started


def _choose_in_turn(given: Sequences, progress: Progress, rank: int) -> int:
    """Return the sequence whose next action a rank starts, -1 for none."""
    best, chosen = 0, -1
    for own in range(given.of_rank[rank], given.of_rank[rank + 1]):
        if progress.begun[own] < progress.ready[own] and (chosen < 0 or progress.head[own] < best):
            fits = True
            if given.way[own] > 0:
                for side in range(2):
                    room = given.room[2 * own + side]
                    if room >= 0 and progress.left[room] < 1:
                        fits = False
            if fits:
                best, chosen = progress.head[own], own
    return chosen


def _begin_in_turn(given: Sequences, progress: Progress, written: Written, rank: int, own: int) -> None:
    """Start the next action of a sequence: write it, and take its room."""
    turn = progress.begun[own]
    at, place = given.first[own] + turn, progress.next[rank]
    written.kind[place] = given.kind[own]
    written.stage[place] = given.stage[own]
    written.microbatch[place] = given.turns[at]
    progress.next[rank] = place + 1
    progress.doing[rank] = own
    progress.begun[own] = turn + 1
    if turn + 1 < given.count[own]:
        progress.head[own] = given.origin[own] + given.step[own] * given.turns[at + 1]
    if given.way[own] > 0:
        _give(given, progress, own, -1)


def _give(given: Sequences, progress: Progress, own: int, more: int) -> None:
    """Add ``more`` to the free capacity of a sequence's limits."""
    for side in range(2):
        room = given.room[2 * own + side]
        if room >= 0:
            progress.left[room] += more


def _end(given: Sequences, progress: Progress, rank: int, touched: int) -> int:
    """End a rank's action: release its capacity and enable dependents. Return the number of ranks on the stack."""
    own: int = progress.doing[rank]
    progress.doing[rank] = -1
    progress.ended[own] += 1
    touched = _touch_in_turn(progress, rank, touched)
    if given.way[own] < 0:
        _give(given, progress, own, 1)
    for edge in range(given.after_ptr[own], given.after_ptr[own + 1]):
        target = given.after[edge]
        low = progress.ended[own]
        for other in range(given.before_ptr[target], given.before_ptr[target + 1]):
            low = min(low, progress.ended[given.before[other]])
        if low > progress.ready[target]:
            progress.ready[target] = low
            touched = _touch_in_turn(progress, given.rank[target], touched)
    return touched


def _touch_in_turn(progress: Progress, rank: int, touched: int) -> int:
    """Push a rank on the stack of ranks to check; return the number of ranks on the stack."""
    if progress.dirty[rank]:
        return touched
    progress.dirty[rank] = 1
    progress.stack[touched] = rank
    return touched + 1
