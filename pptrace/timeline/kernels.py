"""Kernels over timelines: index the rows, attribute idle time, follow memory.

Columns are lists or arrays of integers, alike in use, hence without annotations. ``cells`` are
:class:`~pptrace.model.cells.CellColumns`, ``graph`` is a :class:`~pptrace.schedule.neighbours.StageGraph`,
``kinds`` the :class:`~pptrace.model.kinds.KindTable`. What a stage *makes* are its forwards' results (0), which
the stages behind need, and its backwards' (1), which the stages before do.
"""

from typing import Any, NamedTuple

from pptrace.model.kinds import Kind, Pass, Result, Role

__all__ = ["Index", "Rows", "Spent", "attribute_idle", "follow_causes", "follow_memory", "index_rows"]

FILL, DRAIN, TRANSFER, CONTENTION, HEAD_OF_LINE, PEER_COMPUTE, REDUCTION = range(7)
CAUSES = 7
"""Causes of idle time, of which each rank has one value."""

COMPUTES, SENDS, RECEIVES = int(Role.COMPUTE), int(Role.SEND), int(Role.RECEIVE)
FORWARD = int(Pass.FORWARD)
ACTIVATION, WEIGHT_GRADIENT = int(Result.ACTIVATION), int(Result.WEIGHT_GRADIENT)
UNSHARD, REDUCE, SYNC, RELOAD = int(Kind.UNSHARD), int(Kind.REDUCE_GRAD), int(Kind.SYNC), int(Kind.RELOAD)
SEVERAL = -2


class Rows(NamedTuple):
    """When a timeline's rows ran, and why."""

    start: Any
    end: Any
    lag: Any
    uncontended: Any
    cause: Any
    collective: Any


class Index(NamedTuple):
    """Rows by where they are in the model, -1 for none."""

    made: Any
    """Shape (2 x stages x units,): forwards, then the backwards whose result other stages need."""
    send: Any
    """Shape (2 x edges x units,): the sender's row of each message, forward edges first."""
    recv: Any
    """The receiver's."""


class Spent(NamedTuple):
    """Time of each rank."""

    busy: Any
    idle: Any
    """Shape (ranks x causes,)."""
    communicated: Any
    """Busy time in which its own group communicated."""
    reduced: Any


def index_rows(lane_ptr, lane_rank, lane_peer, cells, start, size, graph, kinds, index):
    """Note the row of each stage and unit's forward and gradient, and of each edge's messages.

    A receive does not say from which stage it is. Where it may be from several, a second pass gives it
    the message of its size that was sent first.
    """
    feeds, role = kinds.feeds, kinds.role
    unsure = False
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            k = cells.kind[row]
            if feeds[k] >= 0:
                base = (feeds[k] * graph.stages + cells.stage[row]) * graph.units
                for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
                    index.made[base + u] = row
            elif role[k] == SENDS or role[k] == RECEIVES:
                found = _find_message(row, lane_rank[lane], lane_peer[lane], cells, graph, kinds, index)
                unsure = unsure or found == SEVERAL
                _index_message(row, found, cells, kinds, index)
    if not unsure:
        return
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            if role[cells.kind[row]] == RECEIVES:
                found = _first_sent(row, lane_rank[lane], lane_peer[lane], cells, start, size, graph, kinds, index)
                _index_message(row, found, cells, kinds, index)


def _index_message(row, found, cells, kinds, index):
    """Note a message's row from a place on."""
    if found < 0:
        return
    sends = kinds.role[cells.kind[row]] == SENDS
    for at in range(found, found + cells.span[row]):
        if sends:
            index.send[at] = row
        elif index.recv[at] < 0:
            index.recv[at] = row


def _find_message(row, rank, peer, cells, graph, kinds, index):
    """Return the place of a send, or of a receive that can be of one message only; -1 for none."""
    k, s, u = cells.kind[row], cells.stage[row], cells.unit[row]
    sends = kinds.role[k] == SENDS
    forward = kinds.direction[k] == FORWARD
    down = sends == forward
    ptr = graph.succ_ptr if down else graph.pred_ptr
    found = -1
    for e in range(ptr[s], ptr[s + 1]):
        other = graph.stage_rank[graph.unit_route[u] * graph.stages + (graph.succ[e] if down else graph.pred[e])]
        if other < 0 or other == rank or (peer >= 0 and other != peer):
            continue
        edge = graph.succ_edge[e] if down else graph.pred_edge[e]
        at = ((0 if forward else graph.edges) + edge) * graph.units + u
        if not sends:
            if found >= 0:
                return SEVERAL
            found = at
        elif found < 0 and index.send[at] < 0:
            found = at
    return found


def _first_sent(row, rank, peer, cells, start, size, graph, kinds, index):
    """Return the place of a receive: of the messages of its size, the one that was sent first; -1 for none."""
    s, u = cells.stage[row], cells.unit[row]
    send = index.send
    forward = kinds.direction[cells.kind[row]] == FORWARD
    ptr = graph.pred_ptr if forward else graph.succ_ptr
    found = -1
    for e in range(ptr[s], ptr[s + 1]):
        other = graph.stage_rank[
            graph.unit_route[u] * graph.stages + (graph.pred[e] if forward else graph.succ[e])
        ]
        if other < 0 or other == rank or (peer >= 0 and other != peer):
            continue
        edge = graph.pred_edge[e] if forward else graph.edges + graph.succ_edge[e]
        at = edge * graph.units + u
        if index.recv[at] >= 0 or send[at] < 0 or size[send[at]] != size[row]:
            continue
        if found < 0 or start[send[at]] < start[send[found]]:
            found = at
    return found


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
    other = cells.kind[released]
    if other == RELOAD or other == UNSHARD or other == REDUCE or other == SYNC:
        waited = until - min(max(rows.start[released], free), until)
        carried = min(waited, rows.uncontended[released] + rows.lag[released])
        idle[base + (TRANSFER if other == RELOAD else REDUCTION)] += carried
        idle[base + (CONTENTION if other == RELOAD else REDUCTION)] += waited - carried
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
    for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
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
    for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
        for e in range(ptr[s], ptr[s + 1]):
            at = _place(way, e, u, graph)
            m = index.recv[at] if index.recv[at] >= 0 else index.send[at]
            if m >= 0 and (message < 0 or rows.end[m] + rows.lag[m] > rows.end[message] + rows.lag[message]):
                message = m
                producer = _maker(way, e, u, graph, index)
    return message, producer


def _place(way, e, unit, graph):
    """Return the place of a unit's message over an edge to a stage from what it needs."""
    edge = graph.pred_edge[e] if way == 0 else graph.edges + graph.succ_edge[e]
    return edge * graph.units + unit


def _maker(way, e, unit, graph, index):
    """Return the row that makes that message."""
    stage = graph.pred[e] if way == 0 else graph.stages + graph.succ[e]
    return index.made[stage * graph.units + unit]


def follow_memory(compute_lane, lane_ptr, cells, start, kept, kept_weight, kinds, peak, peak_at, held_most):
    """Follow each rank's activations: bytes held, when they peak, and the most units held at once.

    Where a kind takes what a weight gradient needs, full recomputation builds it there, so memory may rise.
    """
    for rank in range(len(compute_lane)):
        lane = compute_lane[rank]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        held = 0
        count = 0
        for row in range(low, high):
            k, s, n = cells.kind[row], cells.stage[row], cells.span[row]
            held += (kinds.activation[k] * kept[s] + kinds.weight_activation[k] * kept_weight[s]) * n
            if held > peak[rank]:
                peak[rank] = held
                peak_at[rank] = start[row]
            if kinds.result[k] == ACTIVATION:
                count += n
                held_most[rank] = max(held_most[rank], count)
            elif kinds.result[k] == WEIGHT_GRADIENT or kinds.second_result[k] == WEIGHT_GRADIENT:
                count -= n


def follow_causes(cause, last, path):
    """Walk back from ``last`` along the causes; return how many rows the path holds, last first."""
    found = 0
    row = last
    while row >= 0 and found < len(path):
        path[found] = row
        found += 1
        row = cause[row]
    return found
