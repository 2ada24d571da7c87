"""Kernels that number the actions of a table and place its messages as Megatron's loops issue them.

Columns are lists or arrays of integers. The moment before an action is (position + rank) x TURNS, plus a turn. The
moment after it is one slot later. Source: see :mod:`pptrace_frameworks.megatron`.
"""

from typing import Any, NamedTuple

from pptrace.plugin import MessageCalls

TURNS = MessageCalls.MOST_TURNS

NEXT_CALL = 4
"""Turns of one call: up to four operations."""

WAIT_TURN = 3
"""The turn after the operations of a call."""

PREFETCH_TURN = 5
"""The turn of a prefetched receive: after the wait for the receive of the next action."""

NEVER = -1
"""The moment of an absent wait."""

PAIR = 2


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
    """Positions of each rank's forwards, flat: rank x passes + k."""
    backward: Any
    number: Any
    """Index of each action among the forwards or backwards of its rank."""
    warm_up: Any
    ranks: int
    passes: int
    """Forwards of a rank, equal to its backwards."""
    group: int
    has_chunks: int
    """Whether ranks have several chunks."""
    overlap: int
    flush: int
    frees_outputs: int
    batch: int


class Calls(NamedTuple):
    """Columns of :class:`pptrace.plugin.MessageCalls`."""

    send: Any
    receive: Any
    send_waited: Any
    receive_waited: Any
    communicator: Any


EQUAL, ONE_ORDER = 1, 2
"""Each rank has the given number of forwards and backwards; all ranks run them in one order."""


def number_rows(
    first_rank, end_rank, row_ptr, cells, direction_of_kind, count, forward, backward, number, leading, turns
):  # fmt: skip
    """List and number the forwards and backwards of ranks ``first_rank:end_rank``, ``count`` of both.

    Return the bits :data:`EQUAL` and :data:`ONE_ORDER`, the latter if all these ranks run the same microbatches of
    the same chunks in one order. ``leading`` becomes the number of forwards before each rank's first backward.
    ``turns`` becomes 1 if each later forward follows exactly one more backward than the forward before it. The
    kernel returns 0 at the first rank with another count.
    """
    flags = EQUAL | ONE_ORDER
    for rank in range(first_rank, end_rank):
        first, first_of_order, forwards, backwards = rank * count, first_rank * count, 0, 0
        leading[rank], turns[rank] = count, 1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            direction = direction_of_kind[cells.kind[row]]
            k = backwards if direction == 1 else forwards
            number[row] = k if direction >= 0 else -1
            if direction < 0:
                continue
            if k == count:
                return 0
            if direction == 0:
                forward[first + k] = row
                forwards += 1
                if backwards > 0 and leading[rank] > k:
                    leading[rank] = k
                if backwards != max(k + 1 - leading[rank], 0):
                    turns[rank] = 0
            else:
                backward[first + k] = row
                backwards += 1
            row_0 = backward[first_of_order + k] if direction == 1 else forward[first_of_order + k]
            if not _matches_first_rank(row, row_0, rank - first_rank, cells):
                flags = EQUAL
        if forwards != count or backwards != count:
            return 0
    return flags


def _matches_first_rank(row, row_0, rank, cells):
    """Return whether an action equals that of the first rank, with its stage increased by ``rank``."""
    same = cells.microbatch[row] == cells.microbatch[row_0] and cells.span[row] == cells.span[row_0]
    return same and cells.stage[row] == cells.stage[row_0] + rank


def place(first, end, messages, loop, calls):
    """Place messages ``first:end``."""
    for m in range(first, end):
        source, target, gradient = messages.source[m], messages.target[m], messages.gradient[m]
        if loop.batch == 0:
            calls.communicator[m] = _communicator(source, target, loop)
        producer_index, consumer_index = loop.number[messages.producer[m]], loop.number[messages.consumer[m]]
        send = _after(messages.producer[m], source)
        if loop.overlap == 1:
            _place_overlapped(m, send, producer_index, consumer_index, source, target, gradient, loop, calls)
            continue
        if loop.has_chunks == 0:
            receive = _receive_moment(messages.consumer[m], consumer_index, target, gradient, loop)
        else:
            send = _exchange(producer_index, source, gradient, loop)
            issued = consumer_index - _prefetch_distance(target, gradient, loop)
            if issued >= 0:
                receive = _exchange(issued, target, gradient, loop)
            else:
                receive = _first_receive(target, gradient, loop)
        calls.send_waited[m], calls.receive_waited[m] = send, receive
        if loop.batch == 0:  # separate operations; the waits follow all operations of the call
            calls.send_waited[m], calls.receive_waited[m] = send + WAIT_TURN, receive + WAIT_TURN
            send += 2 * gradient + _is_second(source, 0)
            receive += 2 * gradient + _is_second(target, 1)
        calls.send[m], calls.receive[m] = send, receive


def _before(row, rank):
    return (row + rank) * TURNS


def _after(row, rank):
    return (row + rank + 1) * TURNS


def _row(k, rank, gradient, loop):
    index = rank * loop.passes + k
    return loop.backward[index] if gradient == 1 else loop.forward[index]


def _communicator(source, target, loop):
    """Return the communicator of two ranks; a job of two ranks has one per direction."""
    if loop.ranks <= PAIR:
        return source
    return source if (source + 1) % loop.ranks == target else target


def _is_second(rank, receives):
    """Return whether an end is the second of its direction: even ranks send first, odd ranks receive first."""
    return receives if rank % 2 == 0 else 1 - receives


def _prefetch_distance(rank, gradient, loop):
    """Return by how many actions a receive precedes its use: more where a message enters the next chunk."""
    turning_rank = loop.ranks - 1 if gradient == 1 else 0
    return loop.group - loop.ranks + 1 if rank == turning_rank else 1


def _receive_moment(consumer, k, rank, gradient, loop):
    """Return the moment of a receive of 1F1B: in the send's call in steady state, else in the next call."""
    is_steady = k < loop.passes - loop.warm_up[rank] if gradient == 1 else k > loop.warm_up[rank]
    return _before(consumer, rank) + (0 if is_steady else NEXT_CALL)


def _exchange(k, rank, gradient, loop):
    """Return the moment of the exchange after a rank's k-th forward or backward.

    In steady state, the exchange of a forward follows the backward after it.
    """
    steady = k - loop.warm_up[rank]
    if gradient == 0 and steady >= 0:
        return _after(loop.backward[rank * loop.passes + steady], rank)
    return _after(_row(k, rank, gradient, loop), rank)


def _first_receive(rank, gradient, loop):
    """Return the moment of the first receive: before all actions for forwards, after warm-up for backwards."""
    if gradient == 0:
        return _before(loop.forward[rank * loop.passes], rank)
    last = loop.warm_up[rank] - 1
    alone = NEXT_CALL if last == loop.passes - 1 or loop.overlap == 1 else 0
    return _after(loop.forward[rank * loop.passes + last], rank) + alone


def _is_warm_up_or_drain(k, rank, gradient, loop):
    """Return whether a rank's k-th forward is in warm-up, or its k-th backward in drain."""
    return k >= loop.passes - loop.warm_up[rank] if gradient == 1 else k < loop.warm_up[rank]


def _place_overlapped(m, send, producer_index, consumer_index, source, target, gradient, loop, calls):
    # In an overlapped pair of forward and backward, the call of the backward follows that of the forward.
    call = NEXT_CALL * gradient
    calls.send[m] = send + call + _is_second(source, 0)
    calls.send_waited[m] = _send_waited(send, producer_index, source, gradient, loop)
    issued = consumer_index - _prefetch_distance(target, gradient, loop)
    if issued < 0:
        receive = _first_receive(target, gradient, loop)
        calls.receive[m] = receive
        is_steady = gradient == 1 and loop.warm_up[target] < loop.passes
        calls.receive_waited[m] = NEVER if is_steady else receive
        return
    row = _row(issued, target, gradient, loop)
    calls.receive[m] = _after(row, target) + call + _is_second(target, 1)
    calls.receive_waited[m] = NEVER
    is_warm_up_or_drain = _is_warm_up_or_drain(issued, target, gradient, loop)
    turning_rank = loop.ranks - 1 if gradient == 1 else 0
    if loop.flush == 1:
        if is_warm_up_or_drain and target != turning_rank:
            calls.receive[m] = _before(row, target) + call + PREFETCH_TURN
        if _is_warm_up_or_drain(consumer_index, target, gradient, loop):
            consumer_row = _row(consumer_index, target, gradient, loop)
            calls.receive_waited[m] = _before(consumer_row, target) + call + NEXT_CALL
    elif is_warm_up_or_drain:
        calls.receive_waited[m] = _after(row, target) + call + WAIT_TURN


def _send_waited(send, k, rank, gradient, loop):
    """Return the moment of the wait for a send: immediately, or after the next action of its kind."""
    waited = WAIT_TURN + NEXT_CALL * gradient
    waits_immediately = loop.flush == 0 and _is_warm_up_or_drain(k, rank, gradient, loop)
    if waits_immediately or (loop.frees_outputs == 1 and gradient == 0):
        return send + waited
    if k == loop.passes - 1:
        return send + waited if gradient == 1 else NEVER
    is_last_steady = loop.flush == 0 and gradient == 1 and k == loop.passes - loop.warm_up[rank] - 1
    following = loop.passes - 1 if is_last_steady else k + 1
    return _after(_row(following, rank, gradient, loop), rank) + waited
