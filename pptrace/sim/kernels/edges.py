"""Kernels that link rows by their dependencies and calls.

Columns are lists or arrays of integers, hence without annotations. ``cells`` are
:class:`~pptrace.steps.actions.CellColumns`, ``graph`` is a :class:`~pptrace.steps.schedule.StageGraph`,
``kinds`` the :class:`~pptrace.steps.kinds.KindTable`, ``parts`` are
:class:`~pptrace.sim.streams.PartColumns`; the other records are in :mod:`pptrace.sim.streams`.

A call with one end of a message is that message's task. A call with several ends starts with a separate task only
if it waits for more than its rank's computation, and ends with a separate task only if another call waits for it.
"""

from __future__ import annotations

from pptrace.sim.kernels.placement import (
    AHEAD,
    COMPUTE_STREAM,
    COMPUTES,
    FORWARD,
    FREES,
    GATHERS,
    LINE,
    NO_RECEIVE,
    ON_COMPUTE,
    RECEIVES,
    RENDEZVOUS,
    SENDS,
    SUBGROUP_GATHERS,
)
from pptrace_kernel import fetch


def link_rows(
    first, end, n, rows, place, ends, task, sender_row, awaited_stage, awaited_microbatch, batch_next, pairs,
    problem,
):  # fmt: skip
    """Append the edges of ranks ``first:end`` that no stream or call implies to ``n`` edges; return the new count.

    ``problem[0]`` becomes 1 + the row that needs a result which its rank computes later. This is not checked if no
    rank holds adjacent stages, or if rows are segments.
    """
    cells, graph, kinds = rows.cells, rows.graph, rows.kinds
    parts, lanes, rules = rows.parts, rows.lanes, rows.rules
    row_ptr = rows.row_ptr
    kind, role, fork, in_parts = cells.kind, kinds.role, task.fork, len(parts.stream) > 0
    looks = graph.nearby and not in_parts
    for rank in range(first, end):
        for i in range(len(awaited_stage)):
            awaited_stage[i] = -1
        launched = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            index = place[row]
            if role[k] == SENDS or role[k] == RECEIVES:
                if rules.called:
                    continue
                if rules.batched:
                    launch = rules.rows + 2 * lanes.group[row]
                    if launch != launched:
                        n = _launch(launch, launched, fork[index], rules.rows, batch_next, pairs, n)
                        launched = launch
                n = _link_message(row, index, rows, ends, task, sender_row, pairs, n)
                if len(awaited_microbatch) > 0 and role[k] == SENDS and rules.mode != ON_COMPUTE:
                    end = rules.rows + 2 * lanes.group[row] + 1 if rules.batched else index
                    _record_microbatches(row, end, cells, graph, kinds, awaited_microbatch)
                continue
            if len(awaited_stage) > 0 and (not in_parts or parts.number[row] < 1):  # of segments, the first waits
                n = _link_streams(row, index, cells, graph, kinds, awaited_stage, awaited_microbatch, pairs, n)
            if role[k] != COMPUTES or (in_parts and parts.stream[row] > COMPUTE_STREAM):
                if fork[index] >= 0:
                    n = _pair(pairs, n, fork[index], index)
            elif (
                looks and kinds.feeds[k] >= 0 and _needs_later_result(row, index, rank, cells, graph, kinds, ends)
            ):
                problem[0] = row + 1
                return n
    return n


def _pair(pairs, n, source, target):
    """Write one edge; return the number of edges."""
    pairs.source[n] = source
    pairs.target[n] = target
    return n + 1


def _link_streams(row, index, cells, graph, kinds, awaited_stage, awaited_microbatch, pairs, n):
    """List the edges to a row from other streams of its rank, and record the results that later rows wait for."""
    k, s = cells.kind[row], cells.stage[row]
    for w in range(kinds.wait_ptr[k], kinds.wait_ptr[k + 1]):
        producer_kind = kinds.wait[w]
        if kinds.result[producer_kind] < 0:
            source = awaited_stage[producer_kind * graph.stages + s]
            awaited_stage[producer_kind * graph.stages + s] = -1
            if source >= 0:
                n = _pair(pairs, n, source, index)
        elif len(awaited_microbatch) > 0:
            base = (kinds.result[producer_kind] * graph.stages + s) * graph.microbatches
            for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                if awaited_microbatch[base + u] >= 0:
                    n = _pair(pairs, n, awaited_microbatch[base + u], index)
    if k == FREES:
        _free(s, graph.stages, len(kinds.role), awaited_stage)
    if kinds.awaited[k] == 1:
        if kinds.result[k] < 0:
            slot = k * graph.stages + s
            if k == GATHERS or k == SUBGROUP_GATHERS:
                slot = _gather(s, graph.stages, len(kinds.role), awaited_stage)
            awaited_stage[slot] = index
        else:
            _record_microbatches(row, index, cells, graph, kinds, awaited_microbatch)
    return n


def _record_microbatches(row, task, cells, graph, kinds, awaited_microbatch):
    """Record the task whose end completes an action's result."""
    base = (kinds.result[cells.kind[row]] * graph.stages + cells.stage[row]) * graph.microbatches
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        awaited_microbatch[base + u] = task


def _gather(s, stages, kinds, awaited_stage):
    """Return the slot of a gather: of the next passes or, if the stage is gathered already, of later passes."""
    gathered = (kinds + 1) * stages + s
    if awaited_stage[gathered] >= 0:
        return kinds * stages + s
    awaited_stage[gathered] = 1
    return GATHERS * stages + s


def _free(s, stages, kinds, awaited_stage):
    """Make later passes of a freed stage wait for its next gather, if there is one."""
    later = kinds * stages + s
    if awaited_stage[later] >= 0:
        awaited_stage[GATHERS * stages + s] = awaited_stage[later]
        awaited_stage[later] = -1
    else:
        awaited_stage[(kinds + 1) * stages + s] = -1


def _needs_later_result(row, index, rank, cells, graph, kinds, ends):
    """Return whether an action needs a result that its rank computes later."""
    direction, s = kinds.feeds[cells.kind[row]], cells.stage[row]
    ptr = graph.pred_ptr if direction == 0 else graph.succ_ptr
    neighbours = graph.pred if direction == 0 else graph.succ
    ranks = graph.stage_rank if direction == 0 else graph.backward_rank
    for e in range(ptr[s], ptr[s + 1]):
        base = (direction * graph.stages + neighbours[e]) * graph.microbatches
        for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
            peer_rank = ranks[graph.microbatch_route[u] * graph.stages + neighbours[e]]
            if peer_rank == rank and ends.made_at[base + u] > index:
                return True
    return False


def _launch(launch, launched, fork, rows, batch_next, pairs, n):
    """Start a batch after the previous batch and the rank's last computation; its join follows its launch."""
    if launched >= 0:
        batch_next[launched + 1 - rows] = launch
    batch_next[launch - rows] = launch + 1
    return _pair(pairs, n, fork, launch) if fork >= 0 else n


def _link_message(row, index, rows, ends, task, sender_row, pairs, n):
    """List the edges of one end of a message."""
    cells, graph, kinds, lanes, rules = rows.cells, rows.graph, rows.kinds, rows.lanes, rows.rules
    k = cells.kind[row]
    sends = kinds.role[k] == SENDS
    rendezvous = rules.receive == RENDEZVOUS and (rules.batched or task.size_bytes[index] > rules.eager_bytes)
    fork = task.fork[index]
    if not sends:
        # The receiver's side: its own task unless a rendezvous runs both.
        if rules.receive == RENDEZVOUS and not rendezvous:
            if fork >= 0:
                n = _pair(pairs, n, fork, index)
            n = link_consumers(row, index, -1, rows, ends, pairs, n)
        return n
    if rules.mode != ON_COMPUTE and not rules.batched and fork >= 0:
        n = _pair(pairs, n, fork, index)
    backward = 0 if kinds.direction[k] == FORWARD else graph.edges
    message = (backward + rows.edge[row]) * graph.microbatches + cells.microbatch[row]
    if rules.receive != NO_RECEIVE and not rendezvous:
        return _pair(pairs, n, index, -1 - ends.recv_at[message])
    if rules.batched:
        n = _pair(pairs, n, rules.rows + 2 * lanes.group[row], index)
        n = _pair(pairs, n, index, rules.rows + 2 * lanes.group[row] + 1)
    else:
        n = link_consumers(row, index, -1, rows, ends, pairs, n)
    if rendezvous:
        other = ends.recv_at[message]
        sender_row[other] = index
        if not rules.batched and task.fork[other] >= 0:
            n = _pair(pairs, n, task.fork[other], index)
    return n


def link_consumers(row, source, known, rows, ends, pairs, n):
    """List the edges from a message to its consumers, except the consumer ``known``."""
    cells, graph, edge = rows.cells, rows.graph, rows.edge[row]
    forward = rows.kinds.direction[cells.kind[row]] == FORWARD
    to = graph.edge_to[edge] if forward else graph.edge_from[edge]
    base = ((0 if forward else graph.stages) + to) * graph.microbatches
    last = -1
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        consumer = ends.made_at[base + u]
        if consumer != last and consumer != known:
            n = _pair(pairs, n, source, consumer)
        last = consumer
    return n


def join_batches(rows, place, ends, sender_row, n, pairs):
    """Append the edges of batches that receive to ``n`` edges; return the new count."""
    cells, kinds, lanes, rules = rows.cells, rows.kinds, rows.lanes, rows.rules
    for rank in range(rows.graph.ranks):
        for row in range(rows.row_ptr[rank], rows.row_ptr[rank + 1]):
            if kinds.role[cells.kind[row]] != RECEIVES:
                continue
            index = sender_row[place[row]]
            launch = rules.rows + 2 * lanes.group[row]
            n = _pair(pairs, n, launch, index)
            n = _pair(pairs, n, index, launch + 1)
            n = link_consumers(row, launch + 1, -1, rows, ends, pairs, n)
    return n


def chain_tasks(lane_first, lane_end, sender_row, one_sided, following, following_peer):
    """Chain each lane's tasks; a receiver's row chains its sender's row unless ``one_sided``.

    With receivers' rows, ``following`` is initialised with -1.
    """
    for lane in range(len(lane_first)):
        if lane_end[lane] > lane_first[lane]:
            following[lane_end[lane] - 1] = -1
        for row in range(lane_first[lane], lane_end[lane] - 1):
            successor = sender_row[row + 1] if sender_row[row + 1] >= 0 else row + 1
            if sender_row[row] < 0:
                append_chain(row, successor, True, following, following_peer)
            elif not one_sided:
                append_chain(sender_row[row], successor, False, following, following_peer)


def append_chain(task, successor, sends, following, following_peer):
    """Make a task follow another one on the sender's or the receiver's side, without duplicates."""
    if sends:
        following[task] = successor
        if following_peer[task] == successor:
            following_peer[task] = -1
    elif following[task] != successor:
        following_peer[task] = successor


def sort_edges(source, target, edges, ptr, sorted_target):
    """Group ``edges`` edges by source; ``ptr`` is initialised with 0 and has one entry more than tasks."""
    for i in range(edges):
        ptr[source[i] + 1] += 1
    for t in range(len(ptr) - 1):
        ptr[t + 1] += ptr[t]
    for i in range(edges):
        index = ptr[source[i]]
        sorted_target[index] = target[i]
        ptr[source[i]] = index + 1
    for t in range(len(ptr) - 1, 0, -1):
        ptr[t] = ptr[t - 1]
    ptr[0] = 0


LAUNCHED, JOINED = 1, 2
"""A call whose start, or end, is a separate task."""

SEVERAL = 4
"""A call with several ends of messages."""

FOLLOWS = 8
"""A call that follows the previous call of its communicator, with no computation that waits between them."""

OF_RECEIVER = 16
"""A call with one receiver's side and nothing else."""

OUTLASTED = 32
"""A call of one send that another call follows: successors of the later call need not wait for this one."""


def classify_calls(
    first_rank, end_rank, part, row_ptr, cells, kinds, calls, place, fork, waited, flags, tasks_of_part
):  # fmt: skip
    """Set the flags of each call of ranks ``first_rank:end_rank``; return an upper bound of their edges.

    ``waited`` becomes the first computation that waits for each call, -1 for none. ``flags`` are initialised for
    the further rows and calls that wait. Count the tasks that start or end these calls.
    """
    tasks = edges = 0
    for rank in range(first_rank, end_rank):
        first = opened = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            call = calls.of_row[row]
            if call < 0:
                continue
            sends = kinds.role[cells.kind[row]] == SENDS
            # Each end waits for its rank's computation and has a successor. A send may follow another send.
            edges += 3 if sends else 2 + cells.span[row] * calls.further[call]
            if call == opened:
                flags[call] |= SEVERAL
                continue
            opened = call
            if first < 0:
                first = call
            waited[call] = place[calls.waited[call]] if calls.waited[call] >= 0 else -1
            previous = calls.before[call]
            if previous >= 0 and (waited[previous] < 0 or waited[previous] > fork[place[row]]):
                flags[call] |= FOLLOWS | LAUNCHED
                flags[previous] |= JOINED | OUTLASTED
                edges += 1
            if not sends:
                flags[call] |= OF_RECEIVER
        for call in range(max(first, 0), opened + 1):
            call_flags = flags[call]
            if call_flags & (SEVERAL | OF_RECEIVER):
                call_flags &= ~OUTLASTED
            call_flags = call_flags & ~OF_RECEIVER if call_flags & SEVERAL else call_flags & ~(LAUNCHED | JOINED)
            flags[call] = call_flags
            tasks += (call_flags & LAUNCHED) + (call_flags & JOINED) // JOINED
    tasks_of_part[part] = tasks
    return edges + tasks


def link_calls(
    first_rank, end_rank, extra, n, part, rows, place, ends, task, sender_row, calls, known, first, last, sent,
    following, following_peer, pairs,
):  # fmt: skip
    """Append the edges of calls of ranks ``first_rank:end_rank`` to ``n`` edges; return the new count.

    Chain the calls of each communicator. ``extra`` is the first task that starts or ends these calls. ``first``
    and ``last`` become each call's first and last task. ``sent`` is scratch space per part and rank.
    """
    cells, kinds, lanes, ranks = rows.cells, rows.kinds, rows.lanes, rows.graph.ranks
    scratch = part * ranks
    for rank in range(first_rank, end_rank):
        for peer in range(ranks):
            sent[scratch + peer] = -1
        opened = -1
        for row in range(rows.row_ptr[rank], rows.row_ptr[rank + 1]):
            call = calls.of_row[row]
            if call < 0:
                continue
            index = place[row]
            if index % LINE == 0:
                fetch(index + AHEAD, sender_row, task.fork, task.duration_ns, following)
            sends = kinds.role[cells.kind[row]] == SENDS
            message, computed = index if sends else sender_row[index], task.fork[index]
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
                n = _begin(call, computed, calls, known, task, first, last, following, following_peer, pairs, n)
            if sends:
                n = _order_messages(calls.communicator[call], index, scratch + lanes.peer[row], sent, pairs, n)
            n = _end(call, message, computed, known, first, last, pairs, n)
            if not sends and calls.further[call]:
                over = last[call] if known.flags[call] & JOINED else message
                n = link_consumers(row, over, known.waited[call], rows, ends, pairs, n)
    return n


def _begin(call, computed, calls, known, task, first, last, following, following_peer, pairs, n):
    """List the edges to a call from its rank's computation and the previous call, and from it to its waiter."""
    flags, previous = known.flags[call], calls.before[call]
    if flags & LAUNCHED and computed >= 0:
        n = _pair(pairs, n, computed, first[call])
    if flags & FOLLOWS:
        sends = not known.flags[previous] & OF_RECEIVER
        append_chain(last[previous], first[call], sends, following, following_peer)
        if known.flags[previous] & OUTLASTED and not _is_outlasted(previous, call, known, task, first, last):
            n = _pair(pairs, n, last[previous], known.waited[previous])
    if flags & JOINED and known.waited[call] >= 0:
        n = _pair(pairs, n, last[call], known.waited[call])
    return n


def _is_outlasted(previous, call, known, task, first, last):
    """Return whether nothing waits for a call, or the next call on its communicator releases the waiter later."""
    if known.waited[previous] < 0:
        return True
    if known.flags[call] & SEVERAL or known.waited[call] != known.waited[previous]:
        return False
    message = first[call]
    return task.duration_ns[message] + task.lag_ns[message] > task.lag_ns[last[previous]]


def _order_messages(communicator, message, peer, sent, pairs, n):
    """Order the messages between two ranks that are on different communicators."""
    if sent[peer] >= 0 and sent[peer] != communicator:
        n = _pair(pairs, n, message - 1, message)
    sent[peer] = communicator
    return n


def _end(call, message, computed, known, first, last, pairs, n):
    """List the edges of one end of a message, except the edges to its consumers."""
    flags, waited = known.flags[call], known.waited[call]
    if flags & LAUNCHED:
        n = _pair(pairs, n, first[call], message)
    elif computed >= 0:
        n = _pair(pairs, n, computed, message)
    if flags & JOINED:
        return _pair(pairs, n, message, last[call])
    return _pair(pairs, n, message, waited) if waited >= 0 and not flags & OUTLASTED else n
