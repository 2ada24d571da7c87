"""Kernels that say where each rank's time went.

Columns are lists or arrays of integers, alike in use, hence without annotations. ``cells`` are
:class:`~pptrace.model.cells.CellColumns`, ``graph`` is a :class:`~pptrace.schedule.neighbours.StageGraph`,
``kinds`` the :class:`~pptrace.model.kind_table.KindTable`. What a stage *makes* are its forwards' results (0),
which the stages behind need, and its backwards' (1), which the stages before do.
"""

from typing import Any, NamedTuple

from pptrace.model.kinds import Kind, Pass, Role

__all__ = [
    "CONTENTION",
    "DRAIN",
    "FILL",
    "HEAD_OF_LINE",
    "PEER_COMPUTE",
    "REDUCTION",
    "TRANSFER",
    "Rows",
    "Spent",
    "attribute_idle",
]

FILL, DRAIN, TRANSFER, CONTENTION, HEAD_OF_LINE, PEER_COMPUTE, REDUCTION = range(7)
CAUSES = 7
"""Causes of idle time, of which each rank has one value."""

COMPUTES = int(Role.COMPUTE)
SENDS, RECEIVES = int(Role.SEND), int(Role.RECEIVE)
COPIES, MEETS = int(Role.COPY), int(Role.COLLECTIVE)
FORWARD = int(Pass.FORWARD)
REDUCE, SYNC = int(Kind.REDUCE_GRAD), int(Kind.SYNC)


class Rows(NamedTuple):
    """When a timeline's rows ran, and why."""

    start: Any
    end: Any
    lag: Any
    uncontended: Any
    cause: Any
    collective: Any


class Spent(NamedTuple):
    """Time of each rank."""

    busy: Any
    idle: Any
    """Shape (ranks x causes,)."""
    communicated: Any
    """Busy time in which its own group communicated."""
    reduced: Any


def attribute_idle(compute_lane, reduce_lane, lane_ptr, cells, rows, graph, kinds, index, opened, closed, spent):
    """Split each rank's window into busy time and idle time by cause."""
    for rank in range(len(compute_lane)):
        lane = reduce_lane[rank]
        begin, end = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        for r in range(begin, end):
            if cells.kind[r] == REDUCE or cells.kind[r] == SYNC:
                spent.reduced[rank] += rows.end[r] - rows.start[r]
        lane = compute_lane[rank]
        if lane < 0:
            spent.idle[rank * CAUSES + FILL] += closed - opened
            continue
        low, high = lane_ptr[lane], lane_ptr[lane + 1]
        first, last = _working(low, high, cells, kinds)
        free = opened
        for row in range(low, high + 1):
            until = rows.start[row] if row < high else closed
            if until > free:
                if first < row <= last:
                    _attribute_hole(row, free, until, rank * CAUSES, cells, rows, graph, kinds, index, spent.idle)
                else:
                    _attribute_edge(row <= first, free, until, begin, end, rank * CAUSES, rows, spent.idle)
            if row < high:
                _attribute_row(row, first, last, rank, cells, rows, kinds, spent)
                free = rows.end[row]


def _working(low, high, cells, kinds):
    """Return the first and the last row that computes for a microbatch."""
    first, last = high, low - 1
    for row in range(low, high):
        k = cells.kind[row]
        if kinds.role[k] == COMPUTES and kinds.result[k] >= 0:
            if first == high:
                first = row
            last = row
    return first, last


def _attribute_edge(before, free, until, begin, end, base, rows, idle):
    """Attribute a hole before a rank's first action or behind its last; reductions are ``begin`` to ``end``."""
    if before:
        idle[base + FILL] += until - free
        return
    reduced = 0
    for r in range(begin, end):
        reduced += max(min(rows.end[r], until) - max(rows.start[r], free), 0)
    idle[base + REDUCTION] += reduced
    idle[base + DRAIN] += until - free - reduced


def _attribute_row(row, first, last, rank, cells, rows, kinds, spent):
    """Attribute the time of a row of the compute stream: messages on it are no work."""
    base = rank * CAUSES
    took = rows.end[row] - rows.start[row]
    if kinds.role[cells.kind[row]] == COMPUTES:
        spent.busy[rank] += took
        spent.communicated[rank] += rows.collective[row]
    elif row < first:
        spent.idle[base + FILL] += took
    elif row > last:
        spent.idle[base + DRAIN] += took
    else:
        carried = min(took, rows.uncontended[row])
        spent.idle[base + TRANSFER] += carried
        spent.idle[base + CONTENTION] += took - carried


def _attribute_hole(row, free, until, base, cells, rows, graph, kinds, index, idle):
    """Attribute the hole before a row between a rank's first and last action."""
    role = kinds.role[cells.kind[row]]
    if role == SENDS:
        idle[base + HEAD_OF_LINE] += until - free
        return
    if role == RECEIVES:
        # On the compute stream: its sender was not ready.
        ready = _ready(row, cells, rows, graph, kinds, index)
        ready = min(max(ready, free), until) if ready >= 0 else until
        idle[base + HEAD_OF_LINE] += until - ready
        idle[base + PEER_COMPUTE] += ready - free
        return
    released = rows.cause[row] if rows.cause[row] >= 0 else row
    other = kinds.role[cells.kind[released]]
    if other == COPIES or other == MEETS:
        waited = until - min(max(rows.start[released], free), until)
        carried = min(waited, rows.uncontended[released] + rows.lag[released])
        idle[base + (TRANSFER if other == COPIES else REDUCTION)] += carried
        idle[base + (CONTENTION if other == COPIES else REDUCTION)] += waited - carried
        idle[base + HEAD_OF_LINE] += until - free - waited
        return
    message, producer = _last_message(row, cells, rows, graph, kinds, index)
    if message < 0:
        idle[base + PEER_COMPUTE] += until - free
    else:
        _attribute_message(message, producer, free, until, base, rows, idle)


def _attribute_message(message, producer, free, until, base, rows, idle):
    """Attribute a hole that a message ended: until it was made, until it began, under way, and after."""
    arrived = min(max(rows.end[message] + rows.lag[message], free), until)
    since = min(max(rows.start[message], free), arrived)
    carried = min(arrived - since, rows.uncontended[message] + rows.lag[message])
    ready = min(max(rows.end[producer] if producer >= 0 else since, free), since)
    idle[base + TRANSFER] += carried
    idle[base + CONTENTION] += arrived - since - carried
    idle[base + HEAD_OF_LINE] += until - arrived + since - ready
    idle[base + PEER_COMPUTE] += ready - free


def _ready(row, cells, rows, graph, kinds, index):
    """Return when what a receive brings was computed, -1 where that is not known."""
    s = cells.stage[row]
    way = 0 if kinds.direction[cells.kind[row]] == FORWARD else 1
    ptr = graph.pred_ptr if way == 0 else graph.succ_ptr
    ready = -1
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        for e in range(ptr[s], ptr[s + 1]):
            maker = _maker(way, e, u, graph, index)
            if index.recv[_place(way, e, u, graph)] == row and maker >= 0:
                ready = max(ready, rows.end[maker])
    return ready


def _last_message(row, cells, rows, graph, kinds, index):
    """Return the message that an action needs and that arrives last, and the row that makes it; -1 for none."""
    s = cells.stage[row]
    way = kinds.feeds[cells.kind[row]]
    message = producer = -1
    if way < 0:
        return message, producer
    ptr = graph.pred_ptr if way == 0 else graph.succ_ptr
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        for e in range(ptr[s], ptr[s + 1]):
            at = _place(way, e, u, graph)
            m = index.recv[at] if index.recv[at] >= 0 else index.send[at]
            if m >= 0 and (message < 0 or rows.end[m] + rows.lag[m] > rows.end[message] + rows.lag[message]):
                message = m
                producer = _maker(way, e, u, graph, index)
    return message, producer


def _place(way, e, microbatch, graph):
    """Return the place of a microbatch's message over an edge to a stage from what it needs."""
    edge = graph.pred_edge[e] if way == 0 else graph.edges + graph.succ_edge[e]
    return edge * graph.microbatches + microbatch


def _maker(way, e, microbatch, graph, index):
    """Return the row that makes that message."""
    stage = graph.pred[e] if way == 0 else graph.stages + graph.succ[e]
    return index.made[stage * graph.microbatches + microbatch]
