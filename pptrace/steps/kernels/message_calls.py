"""Kernels that list a table's messages and issue them in calls.

Columns are lists or arrays of integers, hence without annotations. ``cells`` are
:class:`~pptrace.steps.actions.CellColumns`, ``graph`` is a :class:`~pptrace.steps.schedule.StageGraph`,
``kinds`` the :class:`~pptrace.steps.kinds.KindTable`; the other records are in :mod:`pptrace.steps.message_calls`.
Each of M messages has two ends: the sender's end has the number of the message, the receiver's end M more. A slot
is the place before a row (its position plus its rank). A moment is a slot times :data:`TURNS`, plus a turn.
"""

from __future__ import annotations

from pptrace.steps.kernels.tables import RECEIVE, SEND, copy_action, edges_fed, receiver
from pptrace.steps.kinds import Role

TURNS = 16
"""Number of turns of a slot: successive calls that can be launched there."""

NEVER = -1
"""The moment of a missing wait."""

COMPUTES = int(Role.COMPUTE)


def find_results(first, end, cells, graph, kinds, made_at):
    """Record the row of each result of rows ``first:end`` that other stages need.

    ``made_at`` is initialised with -1.
    """
    for row in range(first, end):
        way = kinds.feeds[cells.kind[row]]
        if way >= 0:
            base = (way * graph.stages + cells.stage[row]) * graph.microbatches
            for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                made_at[base + u] = row


def list_messages(first, end, n, row_ptr, cells, graph, kinds, made_at, sent, out):
    """List the messages from ranks ``first:end`` by producer, after ``n`` messages; return the new number.

    ``sent``, initialised with 0, counts the messages from each rank to each other rank.
    """
    for rank in range(first, end):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            way = kinds.feeds[cells.kind[row]]
            if way >= 0:
                n = _list_of(row, rank, way, cells, graph, made_at, sent, out, n)
    return n


def _list_of(row, rank, way, cells, graph, made_at, sent, out, n):
    """List the messages that carry one action's result."""
    u = cells.microbatch[row]
    others = graph.succ if way == 0 else graph.pred
    edges = graph.succ_edge if way == 0 else graph.pred_edge
    low, high = edges_fed(graph, way, cells.stage[row])
    for e in range(low, high):
        peer = receiver(graph, way, e, u, rank)
        if peer >= 0:
            out.producer[n] = row
            out.consumer[n] = made_at[(way * graph.stages + others[e]) * graph.microbatches + u]
            out.source[n] = rank
            out.target[n] = peer
            out.edge[n] = edges[e]
            out.way[n] = way
            sent[rank * graph.ranks + peer] += 1
            n += 1
    return n


def find_invalid(begin, end_of_messages, row_ptr, producer, consumer, source, target, plan):
    """Return 1 + the first end of messages ``begin:end_of_messages`` with an invalid moment, 0 for none.

    Ends are in the order of sends, receives, then waits for either.
    """
    count, first = len(producer), 0
    for m in range(begin, end_of_messages):
        sender, peer, send, receive = source[m], target[m], plan.send[m], plan.receive[m]
        end, peer_end = row_ptr[sender + 1] + sender + 1, row_ptr[peer + 1] + peer + 1
        wrong = 0
        if send < (producer[m] + sender + 1) * TURNS or send >= end * TURNS:
            wrong = 1 + m
        elif not (row_ptr[peer] + peer) * TURNS <= receive < (consumer[m] + peer + 1) * TURNS:
            wrong = 1 + count + m
        elif _is_invalid_wait(plan.send_waited[m], send, end):
            wrong = 1 + 2 * count + m
        elif _is_invalid_wait(plan.receive_waited[m], receive, peer_end):
            wrong = 1 + 3 * count + m
        if wrong > 0 and (first == 0 or wrong < first):
            first = wrong
    return first


def _is_invalid_wait(waited, launched, end):
    """Return whether a wait precedes its launch, or is in slot ``end`` or later."""
    return waited != NEVER and (waited < launched or waited >= end * TURNS)


def _put(moment, end, communicator, communicators, first, order, key):
    """Append an end to its slot with its sort key; ends of one key are one call."""
    slot = moment // TURNS
    index = first[slot]
    first[slot] = index + 1
    order[index] = end
    key[index] = moment % TURNS * communicators + communicator


def sort_ends(plan, communicators, first, order, key):
    """Sort ends by slot, then by key; ``first`` is initialised with 0 and has one entry more than slots."""
    send, receive, communicator = plan.send, plan.receive, plan.communicator
    count = len(send)
    for m in range(count):
        first[send[m] // TURNS + 1] += 1
        first[receive[m] // TURNS + 1] += 1
    for s in range(len(first) - 1):
        first[s + 1] += first[s]
    for m in range(count):
        _put(send[m], m, communicator[m] if communicators > 1 else 0, communicators, first, order, key)
    for m in range(count):
        end_key = communicator[m] if communicators > 1 else 0
        _put(receive[m], count + m, end_key, communicators, first, order, key)
    for s in range(len(first) - 1, 0, -1):
        first[s] = first[s - 1]
    first[0] = 0
    for s in range(len(first) - 1):
        for i in range(first[s] + 1, first[s + 1]):
            end, end_key, index = order[i], key[i], i
            while index > first[s] and key[index - 1] > end_key:
                order[index] = order[index - 1]
                key[index] = key[index - 1]
                index -= 1
            order[index] = end
            key[index] = end_key


def issue_ends(
    first_rank, end_rank, n, calls, scratch, row_ptr, cells, messages, communicators, first, order, key,
    out, edge, peer, call, position, of_end, before, over, last,
):  # fmt: skip
    """Copy the rows of ranks ``first_rank:end_rank``; insert the messages of a slot before its row.

    ``n`` rows and ``calls`` calls precede. Return the new number of calls.
    Ends of one slot and key are one call; ``communicators`` is a power of two. Outputs: ``position``, the new
    index of each row; ``of_end``, the call of each end; ``over``, the communicator of each call; ``before``, the
    previous call there; ``peer``, the other rank of each message, else -1. ``last`` is scratch space from
    ``scratch`` on.
    """
    for rank in range(first_rank, end_rank):
        for c in range(scratch, scratch + communicators):
            last[c] = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1] + 1):
            slot = row + rank
            for i in range(first[slot], first[slot + 1]):
                if i == first[slot] or key[i - 1] != key[i]:
                    over[calls] = key[i] & (communicators - 1)
                    before[calls] = last[scratch + over[calls]]
                    last[scratch + over[calls]] = calls
                    calls += 1
                of_end[order[i]] = calls - 1
                call[n] = calls - 1
                _write(order[i], cells, messages, out, edge, peer, n)
                n += 1
            if row < row_ptr[rank + 1]:
                position[row] = n
                call[n] = peer[n] = -1
                copy_action(cells, row, out, edge, n)
                n += 1
    return calls


def _write(end, cells, messages, out, edge, peer, n):
    """Write one end of a message."""
    count = len(messages.producer)
    sends = end < count
    m = end if sends else end - count
    row, way = messages.producer[m], messages.way[m]
    out.kind[n] = SEND[way] if sends else RECEIVE[way]
    out.stage[n] = cells.stage[row if sends else messages.consumer[m]]
    out.microbatch[n] = cells.microbatch[row]
    out.span[n] = cells.span[row]
    out.pair[n] = -1
    edge[n] = messages.edge[m]
    peer[n] = messages.target[m] if sends else messages.source[m]


def _needed(m, messages):
    """Return the latest moment at which a message's receiver waits: right before the consumer."""
    return (messages.consumer[m] + messages.target[m]) * TURNS + TURNS - 1


def wait_for_calls(
    row_ptr, cells, kinds, messages, plan, communicators, first, order, key, of_end, position, wide,
    waiting, further, rows, calls, counted,
):  # fmt: skip
    """List the further rows and calls that wait for calls, waits of calls up to their capacity; count both.

    The first computation after the moment of a wait waits, and so do calls before it at a later turn. ``waiting``,
    initialised with -1, becomes the first row that waits for each call. ``further``, initialised with 0, becomes 1
    if other rows can wait: with ``wide``, messages have several consumers. Rows are positions in the issue order.
    """
    send_waited, receive_waited = plan.send_waited, plan.receive_waited
    role, kind = kinds.role, cells.kind
    n, m, count = 0, 0, len(send_waited)
    for end in range(2 * count):
        if end < count:
            waited, rank = send_waited[end], messages.source[end]
            if waited < 0:
                continue
        else:
            waited, needed = receive_waited[end - count], _needed(end - count, messages)
            rank = messages.target[end - count]
            waited = needed if waited < 0 else min(waited, needed)
        awaited, slot = of_end[end], waited // TURNS
        row, last = slot - rank, row_ptr[rank + 1]
        while row < last and role[kind[row]] != COMPUTES:
            row += 1
        if end >= count and (wide or row != messages.consumer[end - count]):
            further[awaited] = 1
        if row < last and waiting[awaited] != position[row]:
            if waiting[awaited] >= 0:
                further[awaited] = 1
                rows.source[n] = awaited
                rows.target[n] = max(waiting[awaited], position[row])
                n += 1
            waiting[awaited] = position[row] if waiting[awaited] < 0 else min(waiting[awaited], position[row])
        launched, least_key, i = -1, (waited % TURNS + 1) * communicators, first[slot + 1] - 1
        while i >= first[slot] and key[i] >= least_key:  # seldom
            later = of_end[order[i]]
            if later != launched:
                launched = later
                if m < len(calls.source):
                    calls.source[m] = awaited
                    calls.target[m] = later
                m += 1
            i -= 1
    counted[0], counted[1] = n, m
