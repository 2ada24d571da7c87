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
        direction = kinds.feeds[cells.kind[row]]
        if direction >= 0:
            base = (direction * graph.stages + cells.stage[row]) * graph.microbatches
            for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                made_at[base + u] = row


def list_messages(first, end, n, row_ptr, cells, graph, kinds, made_at, sent, out):
    """List the messages from ranks ``first:end`` by producer, after ``n`` messages; return the new number.

    ``sent``, initialised with 0, counts the messages from each rank to each other rank.
    """
    for rank in range(first, end):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            direction = kinds.feeds[cells.kind[row]]
            if direction >= 0:
                n = _list_of(row, rank, direction, cells, graph, made_at, sent, out, n)
    return n


def _list_of(row, rank, direction, cells, graph, made_at, sent, out, n):
    """List the messages that carry one action's result."""
    u = cells.microbatch[row]
    neighbors = graph.succ if direction == 0 else graph.pred
    edges = graph.succ_edge if direction == 0 else graph.pred_edge
    low, high = edges_fed(graph, direction, cells.stage[row])
    for e in range(low, high):
        peer = receiver(graph, direction, e, u, rank)
        if peer >= 0:
            out.producer[n] = row
            out.consumer[n] = made_at[(direction * graph.stages + neighbors[e]) * graph.microbatches + u]
            out.source[n] = rank
            out.target[n] = peer
            out.edge[n] = edges[e]
            out.direction[n] = direction
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


def sort_ends(
    first_rank, end_rank, send, end_of_sends, begin, row_ptr, plan, communicators, first, order, key
):  # fmt: skip
    """Sort the ends of ranks ``first_rank:end_rank`` by slot, then by key; return the number of their calls.

    The ranks send messages ``send:end_of_sends``, and ``begin`` ends precede theirs. Ends of one slot and key are
    one call. ``first`` becomes the first end of each slot.
    """
    low, high = row_ptr[first_rank] + first_rank, row_ptr[end_rank] + end_rank
    count = len(plan.send)
    for slot in range(low, high):
        first[slot] = 0
    for m in range(send, end_of_sends):
        first[plan.send[m] // TURNS] += 1
    for m in range(count):
        slot = plan.receive[m] // TURNS
        if low <= slot < high:
            first[slot] += 1
    end = begin
    for slot in range(low, high):
        end += first[slot]
        first[slot] = end
    for m in range(count - 1, -1, -1):  # the last end of a slot comes first
        if low <= plan.receive[m] // TURNS < high:
            _put(plan.receive[m], count + m, m, plan, communicators, first, order, key)
    for m in range(end_of_sends - 1, send - 1, -1):
        _put(plan.send[m], m, m, plan, communicators, first, order, key)
    calls = 0
    for slot in range(low, high):
        last = first[slot + 1] if slot + 1 < high else end
        calls += _sort_slot(first[slot], last, order, key)
    return calls


def _put(moment, end, m, plan, communicators, first, order, key):
    """Put an end before the ends of its slot, with its sort key."""
    slot = moment // TURNS
    index = first[slot] - 1
    first[slot] = index
    order[index] = end
    key[index] = moment % TURNS * communicators + (plan.communicator[m] if communicators > 1 else 0)


def _sort_slot(begin, last, order, key):
    """Sort the ends ``begin:last`` of a slot by key; return how many keys they have."""
    for i in range(begin + 1, last):
        end, end_key, index = order[i], key[i], i
        while index > begin and key[index - 1] > end_key:
            order[index] = order[index - 1]
            key[index] = key[index - 1]
            index -= 1
        order[index] = end
        key[index] = end_key
    keys = 0
    for i in range(begin, last):
        if i == begin or key[i - 1] != key[i]:
            keys += 1
    return keys


def issue_ends(
    first_rank, end_rank, begin, calls, part, row_ptr, cells, kinds, messages, plan, communicators, wide, first,
    order, key, out, edge, peer, call, position, before, over, last, of_end, waiting, further, rows, pairs,
    counted,
):  # fmt: skip
    """Copy the rows of ranks ``first_rank:end_rank``; insert the messages of a slot before its row.

    ``begin`` ends and ``calls`` calls precede. Ends of one slot and key are one call; ``communicators`` is a power
    of two. Outputs: ``position``, the new index of each row; ``of_end``, the call of each sorted end; ``over``,
    the communicator of each call; ``before``, the previous call there; ``peer``, the other rank of each message,
    else -1. ``last`` is scratch space per part and communicator. :func:`_wait_for_calls` fills the other outputs.
    Return the number of waits of further rows.
    """
    scratch = part * (len(last) // 2)
    n, waits = row_ptr[first_rank] + begin, begin
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
                    waiting[calls] = -1
                    further[calls] = 0
                    calls += 1
                of_end[i] = call[n] = calls - 1
                _write(order[i], cells, messages, out, edge, peer, n)
                n += 1
            if row < row_ptr[rank + 1]:
                position[row] = n
                call[n] = peer[n] = -1
                copy_action(cells, row, out, edge, n)
                n += 1
        waits = _wait_for_calls(
            rank, part, row_ptr, cells, kinds, messages, plan, communicators, wide, first, order, key, position,
            of_end, waiting, further, rows, pairs, counted, waits,
        )  # fmt: skip
    return waits - begin


def _write(end, cells, messages, out, edge, peer, n):
    """Write one end of a message."""
    count = len(messages.producer)
    sends = end < count
    m = end if sends else end - count
    row, direction = messages.producer[m], messages.direction[m]
    out.kind[n] = SEND[direction] if sends else RECEIVE[direction]
    out.stage[n] = cells.stage[row if sends else messages.consumer[m]]
    out.microbatch[n] = cells.microbatch[row]
    out.span[n] = cells.span[row]
    out.pair[n] = -1
    edge[n] = messages.edge[m]
    peer[n] = messages.target[m] if sends else messages.source[m]


def _wait_for_calls(
    rank, part, row_ptr, cells, kinds, messages, plan, communicators, wide, first, order, key, position,
    of_end, waiting, further, rows, pairs, counted, n,
):  # fmt: skip
    """List the further rows and calls that wait for a rank's calls, after ``n`` rows; return the new count.

    The first computation after the moment of a wait waits, and so do calls before it at a later turn. ``waiting``
    becomes the first row that waits for each call. ``further`` becomes 1 if other rows can wait: with ``wide``,
    messages have several consumers. Rows are positions in the issue order. ``counted`` has the number of waits
    between calls of each part; each part has half of ``pairs`` for them.
    """
    role, kind = kinds.role, cells.kind
    count, end_of_rank, capacity = len(messages.producer), row_ptr[rank + 1], len(pairs.source) // 2
    awaited = waited = slot = row = NEVER
    for i in range(first[row_ptr[rank] + rank], first[end_of_rank + rank + 1]):
        receives = order[i] >= count
        m = order[i] - count if receives else order[i]
        moment = plan.receive_waited[m] if receives else plan.send_waited[m]
        if receives:  # before the consumer at the latest
            needed = (messages.consumer[m] + rank) * TURNS + TURNS - 1
            moment = needed if moment < 0 else min(moment, needed)
        if moment < 0:
            continue
        if moment != waited or of_end[i] != awaited:
            awaited, waited, slot = of_end[i], moment, moment // TURNS
            row = slot - rank
            while row < end_of_rank and role[kind[row]] != COMPUTES:
                row += 1
            if row < end_of_rank and waiting[awaited] != position[row]:
                if waiting[awaited] >= 0:
                    further[awaited] = 1
                    rows.source[n] = awaited
                    rows.target[n] = max(waiting[awaited], position[row])
                    n += 1
                waiting[awaited] = position[row] if waiting[awaited] < 0 else min(waiting[awaited], position[row])
            launched, least_key, j = -1, (waited % TURNS + 1) * communicators, first[slot + 1] - 1
            while j >= first[slot] and key[j] >= least_key:  # seldom
                later = of_end[j]
                if later != launched:
                    launched = later
                    if counted[part] < capacity:
                        pairs.source[part * capacity + counted[part]] = awaited
                        pairs.target[part * capacity + counted[part]] = later
                    counted[part] += 1
                j -= 1
        if receives and (wide or row != messages.consumer[m]):
            further[awaited] = 1
    return n
