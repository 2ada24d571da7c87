"""Kernels over schedule tables: index the actions, put messages in place, defer receives.

Columns are lists or arrays of integers, alike in use, hence without annotations. ``cells`` are
:class:`~pptrace.model.cells.CellColumns`, ``graph`` is a :class:`~pptrace.schedule.neighbours.StageGraph`,
``kinds`` the :class:`~pptrace.model.kind_table.KindTable`. An action *feeds* the forwards of the next stages (0),
the backwards of the stages before (1), or neither (-1).
"""

from pptrace.model.kinds import Kind, Role

__all__ = ["count_messages", "defer_receives", "index_actions", "insert_sends", "place_messages"]

OUT_OF_STAGES, OUT_OF_MICROBATCHES, TWICE, MISPLACED = 1, 2, 3, 4
"""What may be wrong with an action."""

SEND = (int(Kind.SEND_F), int(Kind.SEND_B))
RECEIVE = (int(Kind.RECV_F), int(Kind.RECV_B))
"""Both ends of a message, by what it feeds."""

RECEIVES = int(Role.RECEIVE)
COMPUTED, SENT = 1, 2
"""How far a result of a stage and microbatch has come."""


def index_actions(row_ptr, cells, graph, kinds, flat, problem):
    """Fill ``flat`` with positions by result, stage and microbatch; ``problem`` with code, row and other."""
    size = graph.stages * graph.microbatches
    results = len(flat) // size if size > 0 else 0
    kind, stage = cells.kind, cells.stage
    result, second = kinds.result, kinds.second_result
    for rank in range(graph.ranks):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            s = stage[row]
            k = kind[row]
            if s < 0 or s >= graph.stages:
                problem[0], problem[1] = OUT_OF_STAGES, row
                return
            if result[k] < 0:
                if not _holds(graph, rank, s):
                    problem[0], problem[1], problem[2] = MISPLACED, row, graph.stage_rank[s]
                    return
                continue
            if not _index(row, rank, result[k], cells, graph, flat, problem):
                return
            if 0 <= second[k] < results and not _index(row, rank, second[k], cells, graph, flat, problem):
                return


def _holds(graph, rank, stage):
    held = False
    for route in range(graph.routes):
        held = held or graph.stage_rank[route * graph.stages + stage] == rank
    return held


def _index(row, rank, result, cells, graph, flat, problem):
    """Note where a result of each of an action's microbatches is made; return whether that can be."""
    stages, microbatches = graph.stages, graph.microbatches
    stage_rank, microbatch_route = graph.stage_rank, graph.microbatch_route
    s = cells.stage[row]
    first = cells.microbatch[row]
    if first < 0 or first + cells.span[row] > microbatches:
        problem[0], problem[1] = OUT_OF_MICROBATCHES, row
        return False
    for u in range(first, first + cells.span[row]):
        place = stage_rank[microbatch_route[u] * stages + s]
        if place != rank:
            problem[0], problem[1], problem[2] = MISPLACED, row, place
            return False
        at = (result * stages + s) * microbatches + u
        if flat[at] >= 0:
            problem[0], problem[1], problem[2] = TWICE, row, flat[at]
            return False
        flat[at] = row
    return True


def _fed(graph, way, stage):
    """Return the range of a stage's edges to what it feeds."""
    ptr = graph.succ_ptr if way == 0 else graph.pred_ptr
    return ptr[stage], ptr[stage + 1]


def _peer(graph, way, edge, stage, microbatch, rank):
    """Return the rank to which an edge of :func:`_fed` sends a microbatch's result, -1 for none but its own."""
    other = graph.succ[edge] if way == 0 else graph.pred[edge]
    peer = graph.stage_rank[graph.microbatch_route[microbatch] * graph.stages + other]
    return -1 if peer == rank else peer


def count_messages(row_ptr, cells, graph, kinds, sent, received):
    """Count the messages that each rank sends and receives."""
    kind, stage, microbatch, feeds = cells.kind, cells.stage, cells.microbatch, kinds.feeds
    for rank in range(graph.ranks):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            way = feeds[kind[row]]
            if way < 0:
                continue
            low, high = _fed(graph, way, stage[row])
            for e in range(low, high):
                peer = _peer(graph, way, e, stage[row], microbatch[row], rank)
                if peer >= 0:
                    sent[rank] += 1
                    received[peer] += 1


def _copy(cells, row, out, out_edge, at):
    """Copy an action."""
    out.kind[at] = cells.kind[row]
    out.stage[at] = cells.stage[row]
    out.microbatch[at] = cells.microbatch[row]
    out.span[at] = cells.span[row]
    out.pair[at] = cells.pair[row]
    out_edge[at] = -1


def _write(cells, row, graph, way, edge, kind, stage, out, out_edge, at):
    """Write one end of the message that carries an action's result over an edge."""
    out.kind[at] = kind
    out.stage[at] = stage
    out.microbatch[at] = cells.microbatch[row]
    out.span[at] = cells.span[row]
    out.pair[at] = -1
    out_edge[at] = graph.succ_edge[edge] if way == 0 else graph.pred_edge[edge]


def insert_sends(row_ptr, cells, graph, kinds, out_ptr, out, out_edge):
    """Copy the rows with each SEND right behind its producer."""
    at = 0
    kind, stage, microbatch, feeds = cells.kind, cells.stage, cells.microbatch, kinds.feeds
    for rank in range(graph.ranks):
        out_ptr[rank] = at
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            _copy(cells, row, out, out_edge, at)
            at += 1
            way = feeds[kind[row]]
            if way < 0:
                continue
            low, high = _fed(graph, way, stage[row])
            for e in range(low, high):
                if _peer(graph, way, e, stage[row], microbatch[row], rank) >= 0:
                    _write(cells, row, graph, way, e, SEND[way], stage[row], out, out_edge, at)
                    at += 1
    out_ptr[graph.ranks] = at


def place_messages(row_ptr, cells, graph, kinds, out_ptr, emit, own, head, write, done, out, out_edge):
    """Walk the ranks in rounds, one ready action (or overlapped pair) a rank and round; return the rows walked.

    With ``emit``, each action is copied, its SENDs follow it, and each RECV goes at once to the
    receiver's row. With ``own``, the table holds its messages: what comes from another rank is there once
    its SEND has been walked. ``head`` ends as the position of each rank's next action. ``done`` holds how far each
    stage and microbatch's activation has come, then its gradient.
    """
    ranks = graph.ranks
    for rank in range(ranks):
        head[rank] = row_ptr[rank]
        write[rank] = out_ptr[rank]
    walked = 0
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            first = head[rank]
            if first == row_ptr[rank + 1]:
                continue
            end = _end_of(cells.pair, first, row_ptr[rank + 1])
            if not _are_ready(first, end, cells, graph, kinds, own, rank, done):
                continue
            moved = True
            for row in range(first, end):
                _mark(row, cells, graph, kinds, done)
                if emit:
                    _copy(cells, row, out, out_edge, write[rank])
                    write[rank] += 1
            if emit:
                for row in range(first, end):
                    _emit_messages(row, rank, cells, graph, kinds, write, out, out_edge)
            head[rank] = end
            walked += end - first
    return walked


def _end_of(pair, first, last):
    """Return the position behind an action, or behind the overlapped pair that begins there."""
    end = first + 1
    if pair[first] >= 0:
        while end < last and pair[end] == pair[first]:
            end += 1
    return end


def _are_ready(first, end, cells, graph, kinds, own, rank, done):
    """Whether all that some actions need of other stages is there."""
    stages, microbatches = graph.stages, graph.microbatches
    stage_rank, microbatch_route = graph.stage_rank, graph.microbatch_route
    kind, stage, microbatch, span, feeds = cells.kind, cells.stage, cells.microbatch, cells.span, kinds.feeds
    for row in range(first, end):
        way = feeds[kind[row]]
        if way < 0:
            continue
        ptr = graph.pred_ptr if way == 0 else graph.succ_ptr
        others = graph.pred if way == 0 else graph.succ
        for e in range(ptr[stage[row]], ptr[stage[row] + 1]):
            from_stage = (way * stages + others[e]) * microbatches
            for u in range(microbatch[row], microbatch[row] + span[row]):
                at = stage_rank[microbatch_route[u] * stages + others[e]]
                need = SENT if own and at != rank else COMPUTED
                if at >= 0 and done[from_stage + u] < need:
                    return False
    return True


def _mark(row, cells, graph, kinds, done):
    """Note what an action leaves for other stages."""
    k = cells.kind[row]
    way = kinds.feeds[k]
    far = COMPUTED
    if k == SEND[0] or k == SEND[1]:
        way = 0 if k == SEND[0] else 1
        far = SENT
    if way >= 0:
        base = (way * graph.stages + cells.stage[row]) * graph.microbatches
        for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
            done[base + u] = far


def _emit_messages(row, rank, cells, graph, kinds, write, out, out_edge):
    """Write both ends of every message that carries an action's result."""
    way = kinds.feeds[cells.kind[row]]
    if way < 0:
        return
    s = cells.stage[row]
    low, high = _fed(graph, way, s)
    for e in range(low, high):
        peer = _peer(graph, way, e, s, cells.microbatch[row], rank)
        if peer >= 0:
            other = graph.succ[e] if way == 0 else graph.pred[e]
            _write(cells, row, graph, way, e, SEND[way], s, out, out_edge, write[rank])
            write[rank] += 1
            _write(cells, row, graph, way, e, RECEIVE[way], other, out, out_edge, write[peer])
            write[peer] += 1


def defer_receives(row_ptr, cells, edge, graph, kinds, pending, order):
    """Order each row anew with every RECV right before its consumer, a pair's in its members' order.

    A rank below its peer receives from it before it sends to it. ``order`` lists the old positions;
    ``pending`` is scratch of the longest row's length. Returns the RECVs that nothing consumes.
    """
    at = 0
    orphans = 0
    for rank in range(graph.ranks):
        waiting = 0
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = cells.kind[row]
            if kinds.role[k] == RECEIVES:
                pending[waiting] = row
                waiting += 1
                continue
            peer = -1
            if k == SEND[0] or k == SEND[1]:
                other = graph.edge_to[edge[row]] if k == SEND[0] else graph.edge_from[edge[row]]
                peer = graph.stage_rank[graph.microbatch_route[cells.microbatch[row]] * graph.stages + other]
            end = row + 1 if peer >= 0 else _end_of(cells.pair, row, row_ptr[rank + 1])
            if rank < peer or kinds.feeds[k] >= 0 or end > row + 1:
                for m in range(row, end):
                    before = waiting
                    waiting = _flush(m, peer, cells, edge, graph, kinds, pending, waiting, order, at)
                    at += before - waiting
            order[at] = row
            at += 1
        for i in range(waiting):
            order[at] = pending[i]
            at += 1
        orphans += waiting
    return orphans


def _flush(member, peer, cells, edge, graph, kinds, pending, waiting, order, at):
    """Put the pending RECVs that come before an action into the order; return how many are left."""
    kind, first, span = cells.kind, cells.microbatch, cells.span
    way = kinds.feeds[kind[member]]
    kept = 0
    for i in range(waiting):
        r = pending[i]
        flush = False
        if peer >= 0:
            source = graph.edge_from[edge[r]] if kind[r] == RECEIVE[0] else graph.edge_to[edge[r]]
            flush = graph.stage_rank[graph.microbatch_route[first[r]] * graph.stages + source] == peer
        elif way >= 0 and cells.stage[r] == cells.stage[member] and kind[r] == RECEIVE[way]:
            flush = first[r] < first[member] + span[member] and first[member] < first[r] + span[r]
        if flush:
            order[at] = r
            at += 1
        else:
            pending[kept] = r
            kept += 1
    return kept
