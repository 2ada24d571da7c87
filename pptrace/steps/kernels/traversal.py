"""Kernel that walks a schedule's ranks in rounds and inserts messages into their rows.

Columns are lists or arrays of integers, hence without annotations; :mod:`tables` describes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kernels.heap import Heap, pop, push
from pptrace.steps.kernels.tables import RECEIVE, SEND, copy_action, edges_fed, end_of_pair, receiver, write_end

COMPUTED, SENT = 1, 2
"""States of a result of a stage and microbatch."""


class Walk(NamedTuple):
    """Progress of ranks, and waits of blocked ranks. A cell is a result of a stage and microbatch."""

    head: Any
    """Per rank, the position of its next action."""
    write: Any
    """Per rank, the position to which its next action is written."""
    done: Any
    """Per cell, its state; activations first, then gradients."""
    needy: Any
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
    woken: Heap
    """Released ranks, by the round in which to visit them."""


def place_messages(row_ptr, cells, graph, kinds, out_ptr, emit, own, walk, out, out_edge):
    """Visit ranks in rounds, one ready action (or overlapped pair) per rank and round; return the visited rows.

    With ``emit``, each action is copied with its SENDs after it, and each RECV is appended to the receiver's row.
    With ``own``, the table contains its messages: a result of another rank is available after its SEND. A blocked
    rank is visited again when the missing result is available.
    """
    head, write, running, woken = walk.head, walk.write, walk.running, walk.woken
    ranks = graph.ranks
    for rank in range(ranks):
        head[rank] = row_ptr[rank]
        walk.needy[rank] = row_ptr[rank]
        write[rank] = out_ptr[rank]
        running[rank] = rank
    walked, turn = 0, 0
    this, other, count = 0, ranks, ranks
    while count > 0 or woken.size[0] > 0:
        visited, kept = 0, 0
        while True:
            rank = running[this + visited] if visited < count else ranks
            if woken.size[0] > 0 and woken.time[woken.item[0]] <= turn and woken.item[0] < rank:
                rank = pop(woken)
            elif visited < count:
                visited += 1
            else:
                break
            first = head[rank]
            if first == row_ptr[rank + 1]:
                continue
            end = end_of_pair(cells.pair, first, row_ptr[rank + 1])
            lacking = _lacking(rank, end, cells, graph, kinds, own, walk)
            if lacking >= 0:
                walk.next_waiting[rank] = walk.waiting[lacking]
                walk.waiting[lacking] = rank
                continue
            for row in range(first, end):
                _mark(row, cells, graph, kinds, walk, rank, turn)
                if emit:
                    copy_action(cells, row, out, out_edge, write[rank])
                    write[rank] += 1
            if emit:
                for row in range(first, end):
                    _emit_messages(row, rank, cells, graph, kinds, write, out, out_edge)
            head[rank] = end
            walked += end - first
            running[other + kept] = rank
            kept += 1
        this, other, count = other, this, kept
        turn += 1
    return walked


def _lacking(rank, end, cells, graph, kinds, own, walk):
    """Return the first missing cell that a rank's next actions need, -1 if all are available.

    The search continues at the dependency at which it last stopped.
    """
    stages, microbatches = graph.stages, graph.microbatches
    stage_rank, microbatch_route, done = graph.stage_rank, graph.microbatch_route, walk.done
    edge, offset = walk.edge[rank], walk.offset[rank]
    for row in range(walk.needy[rank], end):
        way = kinds.feeds[cells.kind[row]]
        if way < 0:
            continue
        ptr = graph.pred_ptr if way == 0 else graph.succ_ptr
        others = graph.pred if way == 0 else graph.succ
        low, high = ptr[cells.stage[row]], ptr[cells.stage[row] + 1]
        first, last = cells.microbatch[row], cells.microbatch[row] + cells.span[row]
        for e in range(low + edge, high):
            from_stage = (way * stages + others[e]) * microbatches
            for u in range(first + offset, last):
                peer = stage_rank[microbatch_route[u] * stages + others[e]]
                need = SENT if own and peer != rank else COMPUTED
                if peer >= 0 and done[from_stage + u] < need:
                    walk.needy[rank], walk.edge[rank], walk.offset[rank] = row, e - low, u - first
                    return from_stage + u
            offset = 0
        edge = 0
    walk.needy[rank], walk.edge[rank], walk.offset[rank] = end, 0, 0
    return -1


def _mark(row, cells, graph, kinds, walk, rank, turn):
    """Record an action's results for other stages, and release the ranks that wait for them.

    Ranks above the releasing rank are visited in the same round, ranks below it in the next round.
    """
    k = cells.kind[row]
    way = kinds.feeds[k]
    far = COMPUTED
    if k == SEND[0] or k == SEND[1]:
        way = 0 if k == SEND[0] else 1
        far = SENT
    if way >= 0:
        base = (way * graph.stages + cells.stage[row]) * graph.microbatches
        for cell in range(base + cells.microbatch[row], base + cells.microbatch[row] + cells.span[row]):
            walk.done[cell] = far
            other = walk.waiting[cell]
            walk.waiting[cell] = -1
            while other >= 0:
                push(walk.woken, other, turn if other > rank else turn + 1)
                other = walk.next_waiting[other]


def _emit_messages(row, rank, cells, graph, kinds, write, out, out_edge):
    """Write both ends of every message that carries an action's result."""
    way = kinds.feeds[cells.kind[row]]
    if way < 0:
        return
    s = cells.stage[row]
    low, high = edges_fed(graph, way, s)
    for e in range(low, high):
        peer = receiver(graph, way, e, cells.microbatch[row], rank)
        if peer >= 0:
            other = graph.succ[e] if way == 0 else graph.pred[e]
            write_end(cells, row, graph, way, e, SEND[way], s, out, out_edge, write[rank])
            write[rank] += 1
            write_end(cells, row, graph, way, e, RECEIVE[way], other, out, out_edge, write[peer])
            write[peer] += 1
