"""The list scheduler's kernel where every stage takes its microbatches in turn: counts stand for what waits.

What a stage does of one kind and on one route is a sequence here. Its actions become ready, start and end one
after another, so three counts say how far each is, and a rank chooses among the next actions of its few sequences.
Columns are lists or arrays of integers, alike in use.
"""

from typing import Any, NamedTuple

from pptrace.schedule.kernels.heap import Heap, pop, push

__all__ = ["Progress", "Sequences", "Written", "list_in_turn"]


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
    """Rank by rank, what is started, in this order."""

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
            own = _choose(given, progress, rank) if progress.doing[rank] < 0 else -1
            if own >= 0:
                _begin(given, progress, written, rank, own)
                started += 1
                push(events, rank, now + given.duration[own])
        if events.size[0] > 0:
            now = events.time[events.item[0]]
        while events.size[0] > 0 and events.time[events.item[0]] == now:
            touched = _end(given, progress, pop(events), touched)
    return started


def _choose(given: Sequences, progress: Progress, rank: int) -> int:
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


def _begin(given: Sequences, progress: Progress, written: Written, rank: int, own: int) -> None:
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
    """Change what is left of a sequence's rooms."""
    for side in range(2):
        room = given.room[2 * own + side]
        if room >= 0:
            progress.left[room] += more


def _end(given: Sequences, progress: Progress, rank: int, touched: int) -> int:
    """End what a rank does: give its room back, enable what waits; return how many ranks are on the stack."""
    own: int = progress.doing[rank]
    progress.doing[rank] = -1
    progress.ended[own] += 1
    touched = _touch(progress, rank, touched)
    if given.way[own] < 0:
        _give(given, progress, own, 1)
    for edge in range(given.after_ptr[own], given.after_ptr[own + 1]):
        target = given.after[edge]
        low = progress.ended[own]
        for other in range(given.before_ptr[target], given.before_ptr[target + 1]):
            low = min(low, progress.ended[given.before[other]])
        if low > progress.ready[target]:
            progress.ready[target] = low
            touched = _touch(progress, given.rank[target], touched)
    return touched


def _touch(progress: Progress, rank: int, touched: int) -> int:
    """Note that a rank may have something to start; return how many may."""
    if progress.dirty[rank]:
        return touched
    progress.dirty[rank] = 1
    progress.stack[touched] = rank
    return touched + 1
