"""Kernels that say what waits for the calls in which a program issues its messages.

Columns are lists or arrays of integers, alike in use, hence without annotations. A call with one end of a message
is that message's task. One with several begins with a task of its own only where more than its rank's computation
holds it up, and ends with one only where another call waits for it.
"""

from pptrace.kernel.memory import fetch
from pptrace.sim.kernels.linking import chain_behind, link_consumers
from pptrace.sim.kernels.rules import AHEAD, LINE, SENDS

__all__ = ["LAUNCHED", "OUTLASTED", "link_calls", "tell_calls"]

LAUNCHED, JOINED = 1, 2
"""A call whose beginning, or end, is a task of its own."""

SEVERAL = 4
"""A call with several ends of messages."""

FOLLOWS = 8
"""A call whose communicator alone holds it behind the call before: no computation waits for that in between."""

OF_RECEIVER = 16
"""A call that is one message's receiver's side alone."""

OUTLASTED = 32
"""A call of one send that another one follows: who waits for that one may wait for no other."""


def tell_calls(row_ptr, cells, kinds, calls, place, fork, waited, flags):
    """Find what each call is, and which need tasks of their own; return how many tasks.

    ``waited``, which comes as -1, becomes the first computation that waits for each call; ``flags`` come zeroed.
    """
    for i in range(len(calls.row)):
        flags[calls.awaited[i]] |= JOINED
    for i in range(len(calls.later)):
        flags[calls.later[i]] |= LAUNCHED
        flags[calls.earlier[i]] |= JOINED
    for rank in range(len(row_ptr) - 1):
        opened = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            call = calls.of_row[row]
            if call < 0:
                continue
            if call == opened:
                flags[call] |= SEVERAL
            else:
                opened = call
                if calls.waited[call] >= 0:
                    waited[call] = place[calls.waited[call]]
                before = calls.before[call]
                if before >= 0 and (waited[before] < 0 or waited[before] > fork[place[row]]):
                    flags[call] |= FOLLOWS | LAUNCHED
                    flags[before] |= JOINED | OUTLASTED
                if kinds.role[cells.kind[row]] != SENDS:
                    flags[call] |= OF_RECEIVER
    tasks = 0
    for call in range(len(flags)):
        own = flags[call]
        if own & (SEVERAL | OF_RECEIVER):
            own &= ~OUTLASTED
        own = own & ~OF_RECEIVER if own & SEVERAL else own & ~(LAUNCHED | JOINED)
        flags[call] = own
        tasks += (own & LAUNCHED) + (own & JOINED) // JOINED
    return tasks


def link_calls(
    row_ptr, cells, edge, graph, kinds, lanes, rules, place, found, task, twin, calls, known, n,
    first, last, sent, following, following_peer, pairs,
):  # fmt: skip
    """List the edges of calls behind ``n`` others, and chain each communicator's; return how many edges there are.

    ``first`` and ``last`` become each call's first and last task. ``sent`` is scratch per rank.
    """
    extra = rules.rows
    for rank in range(graph.ranks):
        for peer in range(graph.ranks):
            sent[peer] = -1
        opened = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            call = calls.of_row[row]
            if call < 0:
                continue
            at = place[row]
            if at % LINE == 0:
                fetch(at + AHEAD, twin, task.fork, task.duration_ns, following)
            sends = kinds.role[cells.kind[row]] == SENDS
            message, held = at if sends else twin[at], task.fork[at]
            if call != opened:
                opened = call
                flags = known.flags[call]
                first[call] = last[call] = message
                if flags & LAUNCHED:
                    first[call] = extra
                    extra += 1
                if flags & JOINED:
                    last[call] = extra
                    extra += 1
                n = _begin(call, held, calls, known, task, first, last, following, following_peer, pairs, n)
            if sends:
                n = _in_line(calls.communicator[call], at, lanes.peer[row], sent, pairs, n)
            n = _end(call, message, held, known, first, last, pairs, n)
            if not sends and calls.further[call]:
                over = last[call] if known.flags[call] & JOINED else message
                n = link_consumers(row, over, known.waited[call], cells, edge, graph, kinds, found, pairs, n)
    for i in range(len(calls.row)):
        if place[calls.row[i]] != known.waited[calls.awaited[i]]:
            n = _pair(pairs, n, last[calls.awaited[i]], place[calls.row[i]])
    for i in range(len(calls.later)):
        n = _pair(pairs, n, last[calls.earlier[i]], first[calls.later[i]])
    return n


def _pair(pairs, n, source, target):
    """Write one edge; return the number of edges."""
    pairs.source[n] = source
    pairs.target[n] = target
    return n + 1


def _begin(call, held, calls, known, task, first, last, following, following_peer, pairs, n):
    """Begin a call behind what its rank computed and the call before it on its communicator; let its rank wait."""
    flags, before = known.flags[call], calls.before[call]
    if flags & LAUNCHED and held >= 0:
        n = _pair(pairs, n, held, first[call])
    if flags & FOLLOWS:
        sends = not known.flags[before] & OF_RECEIVER
        chain_behind(last[before], first[call], sends, following, following_peer)
        if known.flags[before] & OUTLASTED and not _is_outlasted(before, call, known, task, first, last):
            n = _pair(pairs, n, last[before], known.waited[before])
    if flags & JOINED and known.waited[call] >= 0:
        n = _pair(pairs, n, last[call], known.waited[call])
    return n


def _is_outlasted(before, call, known, task, first, last):
    """Whether nothing waits for a call, or what does waits longer for the next one on its communicator."""
    if known.waited[before] < 0:
        return True
    if known.flags[call] & SEVERAL or known.waited[call] != known.waited[before]:
        return False
    message = first[call]
    return task.duration_ns[message] + task.lag_ns[message] > task.lag_ns[last[before]]


def _in_line(communicator, message, peer, sent, pairs, n):
    """Let messages from one rank to another follow one another where no communicator says so."""
    if sent[peer] >= 0 and sent[peer] != communicator:
        n = _pair(pairs, n, message - 1, message)
    sent[peer] = communicator
    return n


def _end(call, message, held, known, first, last, pairs, n):
    """List the edges of one end of a message, but for those from a message to what computes with it."""
    flags, waited = known.flags[call], known.waited[call]
    if flags & LAUNCHED:
        n = _pair(pairs, n, first[call], message)
    elif held >= 0:
        n = _pair(pairs, n, held, message)
    if flags & JOINED:
        return _pair(pairs, n, message, last[call])
    return _pair(pairs, n, message, waited) if waited >= 0 and not flags & OUTLASTED else n
