"""Kernels that say which tasks wait for which.

Columns are lists or arrays of integers, alike in use, hence without annotations. ``cells`` are
:class:`~pptrace.model.cells.CellColumns`, ``graph`` is a :class:`~pptrace.schedule.neighbours.StageGraph`,
``kinds`` the :class:`~pptrace.model.kind_table.KindTable`, ``parts`` are
:class:`~pptrace.sim.records.PartColumns`; the other records are in :mod:`pptrace.sim.records`.
"""

from pptrace.sim.kernels.rules import (
    COMPUTE_STREAM,
    COMPUTES,
    FORWARD,
    FREES,
    GATHERS,
    NO_RECEIVE,
    ON_COMPUTE,
    RECEIVES,
    RENDEZVOUS,
    SENDS,
)

__all__ = ["chain_behind", "chain_tasks", "join_batches", "link_consumers", "link_rows", "sort_edges"]


def link_rows(
    row_ptr, cells, edge, graph, kinds, parts, lanes, rules, place, found, task,
    twin, awaited_stage, awaited_microbatch, batch_next, pairs, problem,
):  # fmt: skip
    """List every edge between tasks that no stream or call implies; return how many.

    ``problem[0]`` becomes 1 + the row that needs a result which its own rank computes later; nobody looks for one
    where no rank holds neighbours, or where rows are segments, whose lanes differ.
    """
    n = 0
    kind, role, fork, in_parts = cells.kind, kinds.role, task.fork, len(parts.stream) > 0
    looks = graph.nearby and not in_parts
    for rank in range(graph.ranks):
        for i in range(len(awaited_stage)):
            awaited_stage[i] = -1
        launched = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            at = place[row]
            if role[k] == SENDS or role[k] == RECEIVES:
                if rules.called:
                    continue
                if rules.batched:
                    launch = rules.rows + 2 * lanes.group[row]
                    if launch != launched:
                        n = _launch(launch, launched, fork[at], rules.rows, batch_next, pairs, n)
                        launched = launch
                n = _link_message(row, at, cells, edge, graph, kinds, lanes, rules, found, task, twin, pairs, n)
                continue
            if len(awaited_stage) > 0 and (not in_parts or parts.number[row] < 1):  # of segments, the first waits
                n = _link_own(row, at, cells, graph, kinds, awaited_stage, awaited_microbatch, pairs, n)
            if role[k] != COMPUTES or (in_parts and parts.stream[row] > COMPUTE_STREAM):
                if fork[at] >= 0:
                    n = _pair(pairs, n, fork[at], at)
            elif looks and kinds.feeds[k] >= 0 and _is_early(row, at, rank, cells, graph, kinds, found):
                problem[0] = row + 1
                return n
    return n


def _pair(pairs, n, source, target):
    """Write one edge; return the number of edges."""
    pairs.source[n] = source
    pairs.target[n] = target
    return n + 1


def _link_own(row, at, cells, graph, kinds, awaited_stage, awaited_microbatch, pairs, n):
    """List the edges from what a row waits for on its rank's other streams, and note what others wait for."""
    k, s = cells.kind[row], cells.stage[row]
    for w in range(kinds.wait_ptr[k], kinds.wait_ptr[k + 1]):
        before = kinds.wait[w]
        if kinds.result[before] < 0:
            source = awaited_stage[before * graph.stages + s]
            awaited_stage[before * graph.stages + s] = -1
            if source >= 0:
                n = _pair(pairs, n, source, at)
        elif len(awaited_microbatch) > 0:
            base = (kinds.result[before] * graph.stages + s) * graph.microbatches
            for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                if awaited_microbatch[base + u] >= 0:
                    n = _pair(pairs, n, awaited_microbatch[base + u], at)
    if k == FREES:
        _free(s, graph.stages, len(kinds.role), awaited_stage)
    if kinds.awaited[k] == 1:
        if kinds.result[k] < 0:
            slot = k * graph.stages + s
            if k == GATHERS:
                slot = _gather(s, graph.stages, len(kinds.role), awaited_stage)
            awaited_stage[slot] = at
        else:
            base = (kinds.result[k] * graph.stages + s) * graph.microbatches
            for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                awaited_microbatch[base + u] = at
    return n


def _gather(s, stages, kinds, awaited_stage):
    """Return where a gather is noted: for the passes that follow, or, of a stage that is gathered, for later."""
    gathered = (kinds + 1) * stages + s
    if awaited_stage[gathered] >= 0:
        return kinds * stages + s
    awaited_stage[gathered] = 1
    return GATHERS * stages + s


def _free(s, stages, kinds, awaited_stage):
    """Let passes wait for the gather that was noted for behind the stage's being freed, if there is one."""
    later = kinds * stages + s
    if awaited_stage[later] >= 0:
        awaited_stage[GATHERS * stages + s] = awaited_stage[later]
        awaited_stage[later] = -1
    else:
        awaited_stage[(kinds + 1) * stages + s] = -1


def _is_early(row, at, rank, cells, graph, kinds, found):
    """Whether an action needs what its own rank computes later."""
    way, s = kinds.feeds[cells.kind[row]], cells.stage[row]
    ptr = graph.pred_ptr if way == 0 else graph.succ_ptr
    others = graph.pred if way == 0 else graph.succ
    for e in range(ptr[s], ptr[s + 1]):
        base = (way * graph.stages + others[e]) * graph.microbatches
        for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
            held = graph.stage_rank[graph.microbatch_route[u] * graph.stages + others[e]]
            if held == rank and found.made_at[base + u] > at:
                return True
    return False


def _launch(launch, launched, fork, rows, batch_next, pairs, n):
    """Begin a batch behind the one before and what its rank computed; its join follows its launch."""
    if launched >= 0:
        batch_next[launched + 1 - rows] = launch
    batch_next[launch - rows] = launch + 1
    return _pair(pairs, n, fork, launch) if fork >= 0 else n


def _link_message(row, at, cells, edge, graph, kinds, lanes, rules, found, task, twin, pairs, n):
    """List the edges of one end of a message."""
    k = cells.kind[row]
    sends = kinds.role[k] == SENDS
    rendezvous = rules.receive == RENDEZVOUS and (rules.batched or task.size_bytes[at] > rules.eager_bytes)
    fork = task.fork[at]
    if not sends:
        # The receiver's side: its own task unless a rendezvous runs both.
        if rules.receive == RENDEZVOUS and not rendezvous:
            if fork >= 0:
                n = _pair(pairs, n, fork, at)
            n = link_consumers(row, at, -1, cells, edge, graph, kinds, found, pairs, n)
        return n
    if rules.mode != ON_COMPUTE and not rules.batched and fork >= 0:
        n = _pair(pairs, n, fork, at)
    backward = 0 if kinds.direction[k] == FORWARD else graph.edges
    index = (backward + edge[row]) * graph.microbatches + cells.microbatch[row]
    if rules.receive != NO_RECEIVE and not rendezvous:
        return _pair(pairs, n, at, -1 - found.recv_at[index])
    if rules.batched:
        n = _pair(pairs, n, rules.rows + 2 * lanes.group[row], at)
        n = _pair(pairs, n, at, rules.rows + 2 * lanes.group[row] + 1)
    else:
        n = link_consumers(row, at, -1, cells, edge, graph, kinds, found, pairs, n)
    if rendezvous:
        other = found.recv_at[index]
        twin[other] = at
        if not rules.batched and task.fork[other] >= 0:
            n = _pair(pairs, n, task.fork[other], at)
    return n


def link_consumers(row, source, known, cells, edge, graph, kinds, found, pairs, n):
    """List the edges from a message to what computes with it, but for one that is ``known`` to wait for it."""
    forward = kinds.direction[cells.kind[row]] == FORWARD
    to = graph.edge_to[edge[row]] if forward else graph.edge_from[edge[row]]
    base = ((0 if forward else graph.stages) + to) * graph.microbatches
    last = -1
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        consumer = found.made_at[base + u]
        if consumer != last and consumer != known:
            n = _pair(pairs, n, source, consumer)
        last = consumer
    return n


def join_batches(row_ptr, cells, edge, graph, kinds, lanes, rules, place, found, twin, n, pairs):
    """List the edges by which batches receive, behind ``n`` others; return how many there are."""
    for rank in range(graph.ranks):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            if kinds.role[cells.kind[row]] != RECEIVES:
                continue
            at = twin[place[row]]
            launch = rules.rows + 2 * lanes.group[row]
            n = _pair(pairs, n, launch, at)
            n = _pair(pairs, n, at, launch + 1)
            n = link_consumers(row, launch + 1, -1, cells, edge, graph, kinds, found, pairs, n)
    return n


def chain_tasks(lane_first, lane_end, twin, one_sided, following, following_peer):
    """Chain each lane's tasks; a receiver's side chains its twin unless ``one_sided``."""
    for lane in range(len(lane_first)):
        for row in range(lane_first[lane], lane_end[lane] - 1):
            behind = twin[row + 1] if twin[row + 1] >= 0 else row + 1
            if twin[row] < 0:
                chain_behind(row, behind, True, following, following_peer)
            elif not one_sided:
                chain_behind(twin[row], behind, False, following, following_peer)


def chain_behind(task, behind, sends, following, following_peer):
    """Let a task follow another on its sender's side or its receiver's; once, where both say the same."""
    if sends:
        following[task] = behind
        if following_peer[task] == behind:
            following_peer[task] = -1
    elif following[task] != behind:
        following_peer[task] = behind


def sort_edges(source, target, edges, ptr, sorted_target):
    """Group ``edges`` edges by source; ``ptr`` comes zeroed with one entry more than tasks."""
    for i in range(edges):
        ptr[source[i] + 1] += 1
    for t in range(len(ptr) - 1):
        ptr[t + 1] += ptr[t]
    for i in range(edges):
        at = ptr[source[i]]
        sorted_target[at] = target[i]
        ptr[source[i]] = at + 1
    for t in range(len(ptr) - 1, 0, -1):
        ptr[t] = ptr[t - 1]
    ptr[0] = 0
