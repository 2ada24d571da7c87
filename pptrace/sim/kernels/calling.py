"""Kernels that say what waits for the calls in which a program issues its messages.

Columns are lists or arrays of integers, alike in use, hence without annotations. A call with one end of a message
is that message's task. One with several begins with a task of its own only where more than its rank's computation
holds it up, and ends with one only where another call waits for it.
"""

from pptrace.sim.kernels.linking import link_consumers
from pptrace.sim.kernels.rules import RECEIVES, SENDS

__all__ = ["LAUNCHED", "link_calls", "tell_calls"]

LAUNCHED, JOINED = 1, 2
"""A call whose beginning, or end, is a task of its own."""

OF_RECEIVER = 1
"""A call that is one message's receiver's side alone."""


def tell_calls(row_ptr, calls, place, fork, held, waited, size, implied, parts):
    """Find how many ends each call has, and which need tasks of their own; return how many tasks.

    ``held`` becomes the computation before each call, ``waited`` (which comes as -1) the first computation that
    waits for it, ``implied`` whether that says that the call before on its communicator is over. ``size`` and
    ``parts`` come zeroed.
    """
    for i in range(len(calls.row)):
        call, at = calls.awaited[i], place[calls.row[i]]
        if waited[call] >= 0 and waited[call] != at:
            parts[call] |= JOINED
        waited[call] = at if waited[call] < 0 else min(at, waited[call])
    for i in range(len(calls.later)):
        parts[calls.later[i]] |= LAUNCHED
        parts[calls.earlier[i]] |= JOINED
    for rank in range(len(row_ptr) - 1):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            call = calls.of_row[row]
            if call < 0:
                continue
            size[call] += 1
            if size[call] == 1:
                held[call] = fork[place[row]]
                before = calls.before[call]
                over = before >= 0 and waited[before] >= 0 and waited[before] <= held[call]
                implied[call] = 1 if before < 0 or over else 0
                if implied[call] == 0:
                    parts[call] |= LAUNCHED
                    parts[before] |= JOINED
    tasks = 0
    for call in range(len(size)):
        if size[call] == 1:
            parts[call] = 0
        tasks += (parts[call] & LAUNCHED) + (parts[call] & JOINED) // JOINED
    return tasks


def link_calls(
    row_ptr, cells, edge, graph, kinds, lanes, rules, place, found, calls, known, twin, n,
    first, last, side, sent, following, following_peer, pairs,
):  # fmt: skip
    """List the edges of calls behind ``n`` others, and chain each communicator's; return how many edges there are.

    ``first`` and ``last`` become each call's first and last task, ``side`` whether the last goes on as a
    receiver's. ``sent`` is scratch per rank.
    """
    extra = rules.rows
    waited, size, parts = known.waited, known.size, known.parts
    for rank in range(graph.ranks):
        for peer in range(graph.ranks):
            sent[peer] = -1
        opened = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            call = calls.of_row[row]
            if call < 0:
                continue
            at = place[row]
            k = cells.kind[row]
            message = at if kinds.role[k] == SENDS else twin[at]
            if call != opened:
                opened = call
                first[call] = last[call] = message
                side[call] = OF_RECEIVER if kinds.role[k] == RECEIVES and size[call] == 1 else 0
                if parts[call] & LAUNCHED:
                    first[call] = extra
                    extra += 1
                if parts[call] & JOINED:
                    last[call] = extra
                    extra += 1
                n = _begin(call, calls, known, first, last, side, following, following_peer, pairs, n)
                if parts[call] & JOINED and waited[call] >= 0:
                    n = _pair(pairs, n, last[call], waited[call])
            if kinds.role[k] == SENDS:
                n = _in_line(call, at, lanes.peer[row], calls, sent, pairs, n)
            n = _end(row, call, message, cells, edge, graph, kinds, found, known, first, last, pairs, n)
    for i in range(len(calls.row)):
        if place[calls.row[i]] != waited[calls.awaited[i]]:
            n = _pair(pairs, n, last[calls.awaited[i]], place[calls.row[i]])
    for i in range(len(calls.later)):
        n = _pair(pairs, n, last[calls.earlier[i]], first[calls.later[i]])
    return n


def _pair(pairs, n, source, target):
    """Write one edge; return the number of edges."""
    pairs.source[n] = source
    pairs.target[n] = target
    return n + 1


def _begin(call, calls, known, first, last, side, following, following_peer, pairs, n):
    """Begin a call behind what its rank computed and the call before it on its communicator."""
    if known.parts[call] & LAUNCHED and known.held[call] >= 0:
        n = _pair(pairs, n, known.held[call], first[call])
    before = calls.before[call]
    if known.implied[call] == 0:
        if side[before] == OF_RECEIVER:
            following_peer[last[before]] = first[call]
        else:
            following[last[before]] = first[call]
    return n


def _in_line(call, message, peer, calls, sent, pairs, n):
    """Let messages from one rank to another follow one another where no communicator says so."""
    before = sent[peer]
    if before >= 0 and calls.communicator[before] != calls.communicator[call]:
        n = _pair(pairs, n, message - 1, message)
    sent[peer] = call
    return n


def _end(row, call, message, cells, edge, graph, kinds, found, known, first, last, pairs, n):
    """List the edges of one end of a message."""
    held, waited, parts = known.held, known.waited, known.parts
    if parts[call] & LAUNCHED:
        n = _pair(pairs, n, first[call], message)
    elif held[call] >= 0:
        n = _pair(pairs, n, held[call], message)
    over = message
    if parts[call] & JOINED:
        n = _pair(pairs, n, message, last[call])
        over = last[call]
    elif waited[call] >= 0:
        n = _pair(pairs, n, message, waited[call])
    if kinds.role[cells.kind[row]] == RECEIVES:
        n = link_consumers(row, over, waited[call], cells, edge, graph, kinds, found, pairs, n)
    return n
