"""Kernels over schedule tables: index actions, insert messages, and visit ranks in rounds.

Columns are lists or arrays of integers, hence without annotations. ``cells`` are
:class:`~pptrace.steps.actions.CellColumns`, ``graph`` is a :class:`~pptrace.steps.schedule.StageGraph`,
``kinds`` the :class:`~pptrace.steps.kinds.KindTable`. An action *feeds* the forwards of the next stages (0),
the backwards of the stages before (1), or neither (-1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import Heap, pop, push
from pptrace.steps.kinds import Kind, Role

OUT_OF_STAGES, OUT_OF_MICROBATCHES, TWICE, MISPLACED = 1, 2, 3, 4
"""Faults of an action."""

SEND = (int(Kind.SEND_F), int(Kind.SEND_B))
RECEIVE = (int(Kind.RECV_F), int(Kind.RECV_B))
"""Both ends of a message, by what it feeds."""

RECEIVE_ROLE = int(Role.RECEIVE)


def index_actions(first, end, row_ptr, cells, graph, kinds, flat, problem):
    """Fill ``flat`` with positions by result, stage and microbatch, of the actions of ranks ``first:end``.

    Return whether an action is invalid; ``problem`` gets its fault, its row, and the other row or rank.
    """
    size = graph.stages * graph.microbatches
    results = len(flat) // size if size > 0 else 0
    kind, stage = cells.kind, cells.stage
    result, second = kinds.result, kinds.second_result
    for rank in range(first, end):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            s = stage[row]
            k = kind[row]
            if s < 0 or s >= graph.stages:
                problem[0], problem[1] = OUT_OF_STAGES, row
                return 1
            if result[k] < 0:
                if not _holds(graph, rank, s):
                    problem[0], problem[1], problem[2] = MISPLACED, row, graph.stage_rank[s]
                    return 1
                continue
            ranks = graph.backward_rank if kinds.with_backward[k] else graph.stage_rank
            if not _index(row, rank, ranks, result[k], cells, graph, flat, problem):
                return 1
            if 0 <= second[k] < results and not _index(row, rank, ranks, second[k], cells, graph, flat, problem):
                return 1
    return 0


def _holds(graph, rank, stage):
    holds = False
    for route in range(graph.routes):
        cell = route * graph.stages + stage
        holds = holds or graph.stage_rank[cell] == rank or graph.backward_rank[cell] == rank
    return holds


def _index(row, rank, ranks, result, cells, graph, flat, problem):
    """Record the position of a result for each of an action's microbatches; return whether the action is valid.

    ``ranks`` are those of the action's pass.
    """
    stages, microbatches, microbatch_route = graph.stages, graph.microbatches, graph.microbatch_route
    s = cells.stage[row]
    first = cells.microbatch[row]
    if first < 0 or first + cells.span[row] > microbatches:
        problem[0], problem[1] = OUT_OF_MICROBATCHES, row
        return False
    for u in range(first, first + cells.span[row]):
        place = ranks[microbatch_route[u] * stages + s]
        if place != rank:
            problem[0], problem[1], problem[2] = MISPLACED, row, place
            return False
        index = (result * stages + s) * microbatches + u
        if flat[index] >= 0:
            problem[0], problem[1], problem[2] = TWICE, row, flat[index]
            return False
        flat[index] = row
    return True


def edges_fed(graph, direction, stage):
    """Return the range of the edges from a stage to its consumers."""
    ptr = graph.succ_ptr if direction == 0 else graph.pred_ptr
    return ptr[stage], ptr[stage + 1]


def receiver(graph, direction, edge, microbatch, rank):
    """Return the rank to which an edge of :func:`edges_fed` sends a microbatch's result, -1 for its own rank."""
    other = graph.succ[edge] if direction == 0 else graph.pred[edge]
    ranks = graph.stage_rank if direction == 0 else graph.backward_rank
    peer = ranks[graph.microbatch_route[microbatch] * graph.stages + other]
    return -1 if peer == rank else peer


def copy_action(cells, row, out, out_edge, index):
    """Copy an action."""
    out.kind[index] = cells.kind[row]
    out.stage[index] = cells.stage[row]
    out.microbatch[index] = cells.microbatch[row]
    out.span[index] = cells.span[row]
    out.pair[index] = cells.pair[row]
    out_edge[index] = -1


def write_end(cells, row, graph, direction, edge, kind, stage, out, out_edge, index):
    """Write one end of the message that carries an action's result over an edge."""
    out.kind[index] = kind
    out.stage[index] = stage
    out.microbatch[index] = cells.microbatch[row]
    out.span[index] = cells.span[row]
    out.pair[index] = -1
    out_edge[index] = graph.succ_edge[edge] if direction == 0 else graph.pred_edge[edge]


def end_of_pair(pair, first, last):
    """Return the position after an action, or after the overlapped pair that begins there."""
    end = first + 1
    if pair[first] >= 0:
        while end < last and pair[end] == pair[first]:
            end += 1
    return end


def insert_sends(first, end, index, row_ptr, cells, graph, kinds, out_ptr, out, out_edge, out_peer, sent):
    """Copy the rows of ranks ``first:end`` to ``index`` with each SEND right after its producer; return the end.

    ``sent``, initialised with 0, counts the messages from each rank to each other rank.
    """
    kind, stage, microbatch, feeds = cells.kind, cells.stage, cells.microbatch, kinds.feeds
    for rank in range(first, end):
        out_ptr[rank] = index
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            copy_action(cells, row, out, out_edge, index)
            out_peer[index] = -1
            index += 1
            direction = feeds[kind[row]]
            if direction < 0:
                continue
            low, high = edges_fed(graph, direction, stage[row])
            for e in range(low, high):
                peer = receiver(graph, direction, e, microbatch[row], rank)
                if peer >= 0:
                    write_end(cells, row, graph, direction, e, SEND[direction], stage[row], out, out_edge, index)
                    out_peer[index] = peer
                    sent[rank * graph.ranks + peer] += 1
                    index += 1
    return index


def defer_receives(row_ptr, cells, edge, graph, kinds, pending, order):
    """Reorder each row with every RECV right before its consumer, for a pair in the order of its members.

    A rank below its peer receives from it before it sends to it. ``order`` lists the old positions;
    ``pending`` is scratch of the longest row's length. Return the number of RECVs without a consumer.
    """
    index = 0
    orphans = 0
    for rank in range(graph.ranks):
        waiting = 0
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = cells.kind[row]
            if kinds.role[k] == RECEIVE_ROLE:
                pending[waiting] = row
                waiting += 1
                continue
            peer = -1
            if k == SEND[0] or k == SEND[1]:
                other = graph.edge_to[edge[row]] if k == SEND[0] else graph.edge_from[edge[row]]
                ranks = graph.stage_rank if k == SEND[0] else graph.backward_rank
                peer = ranks[graph.microbatch_route[cells.microbatch[row]] * graph.stages + other]
            end = row + 1 if peer >= 0 else end_of_pair(cells.pair, row, row_ptr[rank + 1])
            if rank < peer or kinds.feeds[k] >= 0 or end > row + 1:
                for m in range(row, end):
                    before = waiting
                    waiting = _flush(m, peer, cells, edge, graph, kinds, pending, waiting, order, index)
                    index += before - waiting
            order[index] = row
            index += 1
        for i in range(waiting):
            order[index] = pending[i]
            index += 1
        orphans += waiting
    return orphans


def _flush(member, peer, cells, edge, graph, kinds, pending, waiting, order, index):
    """Move the pending RECVs that precede an action to the order; return the number of pending RECVs left."""
    kind, first, span = cells.kind, cells.microbatch, cells.span
    direction = kinds.feeds[kind[member]]
    kept = 0
    for i in range(waiting):
        r = pending[i]
        flush = False
        if peer >= 0:
            source = graph.edge_from[edge[r]] if kind[r] == RECEIVE[0] else graph.edge_to[edge[r]]
            ranks = graph.stage_rank if kind[r] == RECEIVE[0] else graph.backward_rank
            flush = ranks[graph.microbatch_route[first[r]] * graph.stages + source] == peer
        elif direction >= 0 and cells.stage[r] == cells.stage[member] and kind[r] == RECEIVE[direction]:
            flush = first[r] < first[member] + span[member] and first[member] < first[r] + span[r]
        if flush:
            order[index] = r
            index += 1
        else:
            pending[kept] = r
            kept += 1
    return kept


COMPUTED, SENT = 1, 2
"""States of a result of a stage and microbatch."""


class Traversal(NamedTuple):
    """Progress of ranks, and waits of blocked ranks. A cell is a result of a stage and microbatch."""

    head: Any
    """Per rank, the position of its next action."""
    write: Any
    """Per rank, the position to which its next action is written."""
    done: Any
    """Per cell, its state; activations first, then gradients."""
    dependency_row: Any
    edge: Any
    offset: Any
    """Per rank, its first unchecked dependency: position of the action, index of the edge of its stage, and index
    of its microbatch."""
    waiting: Any
    """Per cell, the last rank that waits for it, -1 for none."""
    next_waiting: Any
    """Per rank, the previous rank that waits for the same cell, -1 for none."""
    running: Any
    """Shape (2 x ranks,): the ranks to visit in this round, ascending, and in the next round."""
    released: Heap
    """Released ranks, by the round in which to visit them."""


def place_messages(row_ptr, cells, graph, kinds, out_ptr, emit, has_messages, traversal, out, out_edge):
    """Visit ranks in rounds, one ready action (or overlapped pair) per rank and round; return the visited rows.

    With ``emit``, each action is copied with its SENDs after it, and each RECV is appended to the receiver's row.
    With ``own``, the table contains its messages: a result of another rank is available after its SEND. A blocked
    rank is visited again when the missing result is available.
    """
    head, write, running, released = traversal.head, traversal.write, traversal.running, traversal.released
    ranks = graph.ranks
    for rank in range(ranks):
        head[rank] = row_ptr[rank]
        traversal.dependency_row[rank] = row_ptr[rank]
        write[rank] = out_ptr[rank]
        running[rank] = rank
    placed, turn = 0, 0
    this, other, count = 0, ranks, ranks
    while count > 0 or released.size[0] > 0:
        visited, kept = 0, 0
        while True:
            rank = running[this + visited] if visited < count else ranks
            if released.size[0] > 0 and released.time[0] <= turn and released.item[0] < rank:
                rank = pop(released)
            elif visited < count:
                visited += 1
            else:
                break
            first = head[rank]
            if first == row_ptr[rank + 1]:
                continue
            end = end_of_pair(cells.pair, first, row_ptr[rank + 1])
            lacking = _lacking(rank, end, cells, graph, kinds, has_messages, traversal)
            if lacking >= 0:
                traversal.next_waiting[rank] = traversal.waiting[lacking]
                traversal.waiting[lacking] = rank
                continue
            for row in range(first, end):
                _mark(row, cells, graph, kinds, traversal, rank, turn)
                if emit:
                    copy_action(cells, row, out, out_edge, write[rank])
                    write[rank] += 1
            if emit:
                for row in range(first, end):
                    _emit_messages(row, rank, cells, graph, kinds, write, out, out_edge)
            head[rank] = end
            placed += end - first
            running[other + kept] = rank
            kept += 1
        this, other, count = other, this, kept
        turn += 1
    return placed


def _lacking(rank, end, cells, graph, kinds, has_messages, traversal):
    """Return the first missing cell that a rank's next actions need, -1 if all are available.

    The search continues at the dependency at which it last stopped.
    """
    stages, microbatches = graph.stages, graph.microbatches
    microbatch_route, done = graph.microbatch_route, traversal.done
    edge, offset = traversal.edge[rank], traversal.offset[rank]
    for row in range(traversal.dependency_row[rank], end):
        direction = kinds.feeds[cells.kind[row]]
        if direction < 0:
            continue
        ptr = graph.pred_ptr if direction == 0 else graph.succ_ptr
        neighbors = graph.pred if direction == 0 else graph.succ
        ranks = graph.stage_rank if direction == 0 else graph.backward_rank
        low, high = ptr[cells.stage[row]], ptr[cells.stage[row] + 1]
        first, last = cells.microbatch[row], cells.microbatch[row] + cells.span[row]
        for e in range(low + edge, high):
            from_stage = (direction * stages + neighbors[e]) * microbatches
            for u in range(first + offset, last):
                peer = ranks[microbatch_route[u] * stages + neighbors[e]]
                need = SENT if has_messages and peer != rank else COMPUTED
                if peer >= 0 and done[from_stage + u] < need:
                    traversal.dependency_row[rank], traversal.edge[rank], traversal.offset[rank] = (
                        row,
                        e - low,
                        u - first,
                    )
                    return from_stage + u
            offset = 0
        edge = 0
    traversal.dependency_row[rank], traversal.edge[rank], traversal.offset[rank] = end, 0, 0
    return -1


def _mark(row, cells, graph, kinds, traversal, rank, turn):
    """Record an action's results for other stages, and release the ranks that wait for them.

    Ranks above the releasing rank are visited in the same round, ranks below it in the next round.
    """
    k = cells.kind[row]
    direction = kinds.feeds[k]
    far = COMPUTED
    if k == SEND[0] or k == SEND[1]:
        direction = 0 if k == SEND[0] else 1
        far = SENT
    if direction >= 0:
        base = (direction * graph.stages + cells.stage[row]) * graph.microbatches
        for cell in range(base + cells.microbatch[row], base + cells.microbatch[row] + cells.span[row]):
            traversal.done[cell] = far
            other = traversal.waiting[cell]
            traversal.waiting[cell] = -1
            while other >= 0:
                push(traversal.released, other, turn if other > rank else turn + 1)
                other = traversal.next_waiting[other]


def _emit_messages(row, rank, cells, graph, kinds, write, out, out_edge):
    """Write both ends of every message that carries an action's result."""
    direction = kinds.feeds[cells.kind[row]]
    if direction < 0:
        return
    s = cells.stage[row]
    low, high = edges_fed(graph, direction, s)
    for e in range(low, high):
        peer = receiver(graph, direction, e, cells.microbatch[row], rank)
        if peer >= 0:
            other = graph.succ[e] if direction == 0 else graph.pred[e]
            write_end(cells, row, graph, direction, e, SEND[direction], s, out, out_edge, write[rank])
            write[rank] += 1
            write_end(cells, row, graph, direction, e, RECEIVE[direction], other, out, out_edge, write[peer])
            write[peer] += 1
