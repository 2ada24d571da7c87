"""Kernels that number a table's actions, and place each message where Megatron's loops issue it and wait for it.

Columns are lists or arrays of integers, alike in use. A moment is (position + rank) x TURNS before an action, one
slot more behind it, plus a turn. Source: see :mod:`pptrace_frameworks.megatron`.
"""

from typing import Any, NamedTuple

from pptrace.plugin import MessageCalls

TURNS = MessageCalls.MOST_TURNS

NEXT_CALL = 4
"""Turns of one call: up to four operations."""

WAITED = 3
"""The turn behind a call's operations."""

AHEAD = 5
"""The turn of a receive that is issued ahead of the next action, behind the wait for that action's own."""

NEVER = -1
"""The moment of a wait that there is not."""

TWO = 2


class Messages(NamedTuple):
    """Both ends of each message."""

    producer: Any
    consumer: Any
    source: Any
    target: Any
    gradient: Any


class Loop(NamedTuple):
    """One of Megatron's loops, and its switches."""

    forward: Any
    """Positions of each rank's forwards, flat: rank x number_of + k."""
    backward: Any
    number: Any
    """Which forward or backward of its rank each action is."""
    warm_up: Any
    ranks: int
    number_of: int
    """Forwards, and backwards, of a rank."""
    group: int
    several: int
    """Whether ranks have several chunks."""
    overlap: int
    flush: int
    frees: int
    batch: int


class Calls(NamedTuple):
    """What :class:`pptrace.plugin.MessageCalls` holds."""

    send: Any
    receive: Any
    send_waited: Any
    receive_waited: Any
    communicator: Any


def number_rows(row_ptr, cells, ways, count, forward, backward, ahead, number, results):
    """List and number each rank's forwards and backwards, ``count`` of both.

    ``results`` becomes whether there are so many everywhere, and whether all ranks run the same microbatches of
    the same chunks in one order; up to the first rank that has not so many.
    """
    results[1] = 1
    for rank in range(len(row_ptr) - 1):
        first, forwards, backwards = rank * count, 0, 0
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            way = ways[cells.kind[row]]
            k = backwards if way == 1 else forwards
            number[row] = k if way >= 0 else -1
            if way < 0:
                continue
            if k == count:
                return
            if way == 0:
                forward[first + k] = row
                ahead[first + k] = backwards
                forwards += 1
            else:
                backward[first + k] = row
                backwards += 1
            if not _is_alike(row, backward[k] if way == 1 else forward[k], rank, cells):
                results[1] = 0
        if forwards != count or backwards != count:
            return
    results[0] = 1


def _is_alike(row, of_first, rank, cells):
    """Whether a rank's action is that of the first rank, a stage on for each rank between."""
    same = cells.microbatch[row] == cells.microbatch[of_first] and cells.span[row] == cells.span[of_first]
    return same and cells.stage[row] == cells.stage[of_first] + rank


def place(messages, loop, calls):
    """Place every message."""
    for m in range(len(messages.producer)):
        source, target, gradient = messages.source[m], messages.target[m], messages.gradient[m]
        if loop.batch == 0:
            calls.communicator[m] = _communicator(source, target, loop)
        made, used = loop.number[messages.producer[m]], loop.number[messages.consumer[m]]
        send = _behind(messages.producer[m], source)
        if loop.overlap == 1:
            _overlap(m, send, made, used, source, target, gradient, loop, calls)
            continue
        if loop.several == 0:
            receive = _before_use(messages.consumer[m], used, target, gradient, loop)
        else:
            send = _exchange(made, source, gradient, loop)
            issued = used - _ahead(target, gradient, loop)
            receive = _exchange(issued, target, gradient, loop) if issued >= 0 else _start(target, gradient, loop)
        calls.send_waited[m], calls.receive_waited[m] = send, receive
        if loop.batch == 0:  # an operation of its own, waited for behind all of its call
            calls.send_waited[m], calls.receive_waited[m] = send + WAITED, receive + WAITED
            send += 2 * gradient + _second(source, 0)
            receive += 2 * gradient + _second(target, 1)
        calls.send[m], calls.receive[m] = send, receive


def _before(row, rank):
    return (row + rank) * TURNS


def _behind(row, rank):
    return (row + rank + 1) * TURNS


def _row(k, rank, gradient, loop):
    index = rank * loop.number_of + k
    return loop.backward[index] if gradient == 1 else loop.forward[index]


def _communicator(source, target, loop):
    """Return a pair's communicator; two ranks have one per direction."""
    if loop.ranks <= TWO:
        return source
    return source if (source + 1) % loop.ranks == target else target


def _second(rank, receives):
    """Whether an end comes second of its direction's two: even ranks send first, odd ones receive first."""
    return receives if rank % 2 == 0 else 1 - receives


def _ahead(rank, gradient, loop):
    """Return how many actions ahead of its use a receive is issued: more where the next chunk's begin."""
    returns = loop.ranks - 1 if gradient == 1 else 0
    return loop.group - loop.ranks + 1 if rank == returns else 1


def _before_use(consumer, used, rank, gradient, loop):
    """Return the call of a receive of 1F1B: that of the send in the steady state, else the next one."""
    turned = used < loop.number_of - loop.warm_up[rank] if gradient == 1 else used > loop.warm_up[rank]
    return _before(consumer, rank) + (0 if turned else NEXT_CALL)


def _exchange(k, rank, gradient, loop):
    """Return the exchange behind a rank's k-th forward, or backward: in turns, behind the backward."""
    steady = k - loop.warm_up[rank]
    if gradient == 0 and steady >= 0:
        return _behind(loop.backward[rank * loop.number_of + steady], rank)
    return _behind(_row(k, rank, gradient, loop), rank)


def _start(rank, gradient, loop):
    """Return where the first of a kind is received: before all, or at the end of warm-up."""
    if gradient == 0:
        return _before(loop.forward[rank * loop.number_of], rank)
    last = loop.warm_up[rank] - 1
    alone = NEXT_CALL if last == loop.number_of - 1 or loop.overlap == 1 else 0
    return _behind(loop.forward[rank * loop.number_of + last], rank) + alone


def _outside(k, rank, gradient, loop):
    """Whether a rank's k-th forward (backward) is in warm-up (at the end), not in turns."""
    return k >= loop.number_of - loop.warm_up[rank] if gradient == 1 else k < loop.warm_up[rank]


def _overlap(m, send, made, used, source, target, gradient, loop, calls):
    # A backward's call comes behind its forward's where both are one pair.
    call = NEXT_CALL * gradient
    calls.send[m] = send + call + _second(source, 0)
    calls.send_waited[m] = _send_waited(send, made, source, gradient, loop)
    issued = used - _ahead(target, gradient, loop)
    if issued < 0:
        receive = _start(target, gradient, loop)
        calls.receive[m] = receive
        turns = gradient == 1 and loop.warm_up[target] < loop.number_of
        calls.receive_waited[m] = NEVER if turns else receive
        return
    row = _row(issued, target, gradient, loop)
    calls.receive[m] = _behind(row, target) + call + _second(target, 1)
    calls.receive_waited[m] = NEVER
    outside = _outside(issued, target, gradient, loop)
    returns = loop.ranks - 1 if gradient == 1 else 0
    if loop.flush == 1:
        if outside and target != returns:
            calls.receive[m] = _before(row, target) + call + AHEAD
        if _outside(used, target, gradient, loop):
            calls.receive_waited[m] = _before(_row(used, target, gradient, loop), target) + call + NEXT_CALL
    elif outside:
        calls.receive_waited[m] = _behind(row, target) + call + WAITED


def _send_waited(send, made, rank, gradient, loop):
    """Return from when on a sender waits: at once, or behind the next of its kind."""
    waited = WAITED + NEXT_CALL * gradient
    at_once = loop.flush == 0 and _outside(made, rank, gradient, loop)
    if at_once or (loop.frees == 1 and gradient == 0):
        return send + waited
    if made == loop.number_of - 1:
        return send + waited if gradient == 1 else NEVER
    kept = loop.flush == 0 and gradient == 1 and made == loop.number_of - loop.warm_up[rank] - 1
    following = loop.number_of - 1 if kept else made + 1
    return _behind(_row(following, rank, gradient, loop), rank) + waited
