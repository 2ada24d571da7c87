"""Kernels over timelines: index rows, attribute idle time, follow causes, sum memory, and spread rows over lanes.

Columns are lists or arrays of integers with the same operations, hence without annotations. ``cells`` are
:class:`~pptrace.steps.actions.CellColumns`, ``graph`` is a :class:`~pptrace.steps.schedule.StageGraph`,
``kinds`` the :class:`~pptrace.steps.kinds.KindTable`. The results of a stage are its forwards' (0),
which the next stages need, and its backwards' (1), which the previous stages need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kinds import Kind, Pass, Result, Role

SENDS, RECEIVES = int(Role.SEND), int(Role.RECEIVE)
FORWARD = int(Pass.FORWARD)
SEVERAL = -2
"""A receive with several candidate messages."""


class Index(NamedTuple):
    """Rows by stage, edge and microbatch, -1 for none."""

    producer: Any
    """Shape (2 x stages x microbatches,): forwards, then the backwards whose result other stages need."""
    send: Any
    """Shape (2 x edges x microbatches,): the sender's row of each message, forward edges first."""
    recv: Any
    """The receiver's row of each message, in the same shape."""


def index_rows(first, end, lane_ptr, lane_rank, lane_peer, cells, start, size, graph, kinds, index):
    """Index the rows of forwards and gradients by stage and microbatch, and of messages by edge and microbatch.

    A receive has no source stage. Where several are possible, a second pass assigns it the message of its
    size that was sent first. Return whether the ranks ``first:end`` cannot be indexed without the other ranks:
    a receive needs the second pass, or a row is on another rank than that of its stage.
    """
    feeds, role = kinds.feeds, kinds.role
    is_part = end - first < graph.ranks
    unsure = False
    for lane in range(len(lane_ptr) - 1):
        rank, home = lane_rank[lane], -1
        if rank < first or rank >= end:
            continue
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            k = cells.kind[row]
            is_message = role[k] == SENDS or role[k] == RECEIVES
            if is_part and (graph.routes > 1 or cells.stage[row] != home) and (feeds[k] >= 0 or is_message):
                if not _is_home(row, rank, cells, graph):
                    return 1
                home = cells.stage[row]
            if feeds[k] >= 0:
                base = (feeds[k] * graph.stages + cells.stage[row]) * graph.microbatches
                for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                    index.producer[base + u] = row
            elif is_message:
                match = _find_message(row, rank, lane_peer[lane], cells, graph, kinds, index)
                unsure = unsure or match == SEVERAL
                _index_message(row, match, cells, kinds, index)
    if not unsure or is_part:
        return unsure
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            if role[cells.kind[row]] == RECEIVES:
                match = _first_sent(row, lane_rank[lane], lane_peer[lane], cells, start, size, graph, kinds, index)
                _index_message(row, match, cells, kinds, index)
    return 0


def _is_home(row, rank, cells, graph):
    """Return whether a row is on the rank of its stage."""
    first, home = cells.microbatch[row], True
    for u in range(first, first + cells.span[row]):
        home = home and graph.stage_rank[graph.microbatch_route[u] * graph.stages + cells.stage[row]] == rank
    return first >= 0 and home


def _index_message(row, match, cells, kinds, index):
    """Store a message's row, from the slot ``match`` on."""
    if match < 0:
        return
    sends = kinds.role[cells.kind[row]] == SENDS
    for slot in range(match, match + cells.span[row]):
        if sends:
            index.send[slot] = row
        elif index.recv[slot] < 0:
            index.recv[slot] = row


def _find_message(row, rank, peer, cells, graph, kinds, index):
    """Return the slot of a send, or of a receive with a single candidate message; -1 for none."""
    k, s, u = cells.kind[row], cells.stage[row], cells.microbatch[row]
    sends = kinds.role[k] == SENDS
    forward = kinds.direction[k] == FORWARD
    down = sends == forward
    ptr = graph.succ_ptr if down else graph.pred_ptr
    ranks = graph.stage_rank if forward else graph.backward_rank
    match = -1
    for e in range(ptr[s], ptr[s + 1]):
        other = ranks[graph.microbatch_route[u] * graph.stages + (graph.succ[e] if down else graph.pred[e])]
        if other < 0 or other == rank or (peer >= 0 and other != peer):
            continue
        edge = graph.succ_edge[e] if down else graph.pred_edge[e]
        slot = ((0 if forward else graph.edges) + edge) * graph.microbatches + u
        if not sends:
            if match >= 0:
                return SEVERAL
            match = slot
        elif match < 0 and index.send[slot] < 0:
            match = slot
    return match


def _first_sent(row, rank, peer, cells, start, size, graph, kinds, index):
    """Return the slot of a receive: the message of its size that was sent first; -1 for none."""
    s, u = cells.stage[row], cells.microbatch[row]
    send = index.send
    forward = kinds.direction[cells.kind[row]] == FORWARD
    ptr = graph.pred_ptr if forward else graph.succ_ptr
    ranks = graph.stage_rank if forward else graph.backward_rank
    match = -1
    for e in range(ptr[s], ptr[s + 1]):
        other = ranks[graph.microbatch_route[u] * graph.stages + (graph.pred[e] if forward else graph.succ[e])]
        if other < 0 or other == rank or (peer >= 0 and other != peer):
            continue
        edge = graph.pred_edge[e] if forward else graph.edges + graph.succ_edge[e]
        slot = edge * graph.microbatches + u
        if index.recv[slot] >= 0 or send[slot] < 0 or size[send[slot]] != size[row]:
            continue
        if match < 0 or start[send[slot]] < start[send[match]]:
            match = slot
    return match


ACTIVATION, WEIGHT_GRADIENT = int(Result.ACTIVATION), int(Result.WEIGHT_GRADIENT)


def follow_memory(
    first, end, compute_lane, lane_ptr, cells, start, class_ptr, kept, kept_weight, kinds, held, route, stages,
    moved, peak, peak_time, peak_count,
):  # fmt: skip
    """Follow the activations of ranks ``first:end``: peak in bytes, its time, and peak number of microbatches.

    ``class_ptr`` has the place of a microbatch's class in ``kept`` and ``kept_weight``, from microbatch -1 on.
    ``held`` has the microbatches of each rank at the start. A kind can allocate the input of a weight gradient, as
    in full recomputation; its memory change is positive. ``moved``, empty where all are 0, has 1 for each of the
    ``stages`` of a route whose backward is on another rank: a microbatch counts there during its passes.
    """
    for rank in range(first, end):
        lane = compute_lane[rank]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        allocated = 0
        count = held[rank]
        peak_count[rank] = count
        for row in range(low, high):
            k, n = cells.kind[row], cells.span[row]
            s = class_ptr[cells.microbatch[row] + 1] + cells.stage[row]
            allocated += (kinds.activation[k] * kept[s] + kinds.weight_activation[k] * kept_weight[s]) * n
            if allocated > peak[rank]:
                peak[rank] = allocated
                peak_time[rank] = start[row]
            enters = kinds.result[k] == ACTIVATION and kinds.activation[k] > 0
            leaves = kinds.result[k] == WEIGHT_GRADIENT or kinds.second_result[k] == WEIGHT_GRADIENT
            if enters or leaves:
                passes = len(moved) > 0 and moved[route[cells.microbatch[row]] * stages + cells.stage[row]] == 1
                if enters or passes:
                    count += n
                    peak_count[rank] = max(peak_count[rank], count)
                if leaves or passes:
                    count -= n


class Computations(NamedTuple):
    """Rows of compute lanes."""

    kind: Any
    start: Any
    end: Any
    collective: Any
    """Waits for the rank's groups at the start of computations."""


def hide_rows(group_lane, compute_lane, excludes_waits, lane_ptr, rows, kinds, total, hidden, of_row):
    """Sum the time of groups' lanes, and the part of it in which a compute lane computed; -1 for no such lane.

    Waits for groups do not count as computation of lanes that exclude them. ``of_row`` gets the hidden time of
    each row, unless it is empty.
    """
    for index in range(len(group_lane)):
        lane, excluded = compute_lane[index], excludes_waits[index]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        done = 0
        for row in range(lane_ptr[group_lane[index]], lane_ptr[group_lane[index] + 1]):
            low, done, before = _computed(rows.start[row], low, high, done, excluded, rows, kinds)
            low, done, after = _computed(rows.end[row], low, high, done, excluded, rows, kinds)
            total[index] += rows.end[row] - rows.start[row]
            hidden[index] += after - before
            if len(of_row) > 0:
                of_row[row] = after - before


def _computed(until, low, high, done, excluded, rows, kinds):
    """Return the next row that computes, and the computation time before this row and until a time."""
    while low < high and (kinds.role[rows.kind[low]] != COMPUTES or rows.end[low] <= until):
        if kinds.role[rows.kind[low]] == COMPUTES:
            done += rows.end[low] - rows.start[low] - excluded * rows.collective[low]
        low += 1
    running = max(0, until - rows.start[low] - excluded * rows.collective[low]) if low < high else 0
    return low, done, done + running


def follow_causes(cause, last, path):
    """Walk back from ``last`` along the causes; return how many rows the path holds, last first."""
    length = 0
    row = last
    while row >= 0 and length < len(path):
        path[length] = row
        length += 1
        row = cause[row]
    return length


def first_free(ptr, start, end, until, place, lanes):
    """Put each slice of a group on the group's first lane that is free at the slice's start.

    Group ``g`` has the slices ``ptr[g]:ptr[g + 1]``, by their starts. ``until`` is scratch space with an entry per
    lane; ``place`` receives each slice's lane within its group, ``lanes`` the number of lanes of each group.
    """
    for group in range(len(ptr) - 1):
        used = 0
        for index in range(ptr[group], ptr[group + 1]):
            lane = 0
            while lane < used and until[lane] > start[index]:
                lane += 1
            used = max(used, lane + 1)
            until[lane] = end[index]
            place[index] = lane
        lanes[group] = used


FILL, DRAIN, TRANSFER, CONTENTION, HEAD_OF_LINE, PEER_COMPUTE, REDUCTION, SLOWER_REPLICA = range(8)
CAUSES = 8
"""Causes of idle time, of which each rank has one value."""

COMPUTES = int(Role.COMPUTE)
COPIES, MEETS = int(Role.COPY), int(Role.COLLECTIVE)
REDUCE, REDUCE_GROUPS, SYNC = int(Kind.REDUCE_GRAD), int(Kind.REDUCE_GROUPS), int(Kind.SYNC)


class Rows(NamedTuple):
    """Times and causes of a timeline's rows."""

    enter: Any
    start: Any
    end: Any
    lag: Any
    uncontended: Any
    cause: Any
    collective: Any


class TimeSpent(NamedTuple):
    """Time of each rank in one window for all ranks."""

    busy_ns: Any
    """Shape (ranks,): time in which the compute stream computed."""
    idle_ns: Any
    """Shape (ranks, causes), flat in kernels: idle time by cause."""
    collective_ns: Any
    """Shape (ranks,): busy time in which a group of the rank communicated."""
    reduction_ns: Any
    """Shape (ranks,): time in which gradients were reduced, overlapped or not."""


class WaitBuffer(NamedTuple):
    """Buffer for intervals in which ranks idled, by rank and time; intervals beyond its size are only counted."""

    rank: Any
    cause: Any
    start: Any
    end: Any
    row: Any
    """The row that ended the wait, -1 where unknown."""


def attribute_idle(
    first_rank, end_rank, compute_lane, reduce_lane, lane_ptr, cells, rows, graph, kinds, index, complete,
    opened, closed, spent, waits,
):  # fmt: skip
    """Split the window of ranks ``first_rank:end_rank`` into busy time and idle time by cause.

    Return the number of waits. ``complete`` has the time when this replica's gradients of each stage were
    complete, -1 where unknown.
    """
    count = 0
    for rank in range(first_rank, end_rank):
        lane = reduce_lane[rank]
        begin, end = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        for r in range(begin, end):
            if cells.kind[r] == REDUCE or cells.kind[r] == REDUCE_GROUPS or cells.kind[r] == SYNC:
                spent.reduction_ns[rank] += rows.end[r] - rows.start[r]
        lane = compute_lane[rank]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        first, last = _working(low, high, cells, kinds)
        free = opened
        for row in range(low, high + 1):
            until = rows.start[row] if row < high else closed
            if until > free:
                if first < row <= last:
                    count = _book_idle_before(
                        row, free, until, rank, cells, rows, graph, kinds, index, complete, count,
                        spent.idle_ns, waits,
                    )  # fmt: skip
                elif row <= first:
                    released = rows.cause[row] if row < high else -1
                    if len(compute_lane) == 1 and begin <= released < end:
                        # Without a pipeline, the first action waits for its weights, not for other ranks.
                        gather = min(max(rows.start[released], free), until)
                        count = _book(rank, FILL, free, gather, released, count, spent.idle_ns, waits)
                        count = _book(rank, REDUCTION, gather, until, released, count, spent.idle_ns, waits)
                        free = until
                    count = _book(rank, FILL, free, until, released, count, spent.idle_ns, waits)
                else:
                    count = _book_end(
                        rank, free, until, begin, end, cells, rows, complete, count, spent.idle_ns, waits
                    )
            if row < high:
                count = _book_row(row, first, last, rank, cells, rows, kinds, count, spent, waits)
                free = rows.end[row]
    return count


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


def _book(rank, cause, since, until, row, count, idle, waits):
    """Book a wait unless it is empty; return the new number of waits."""
    if until > since:
        idle[rank * CAUSES + cause] += until - since
        if count < len(waits.start):
            waits.rank[count] = rank
            waits.cause[count] = cause
            waits.start[count] = since
            waits.end[count] = until
            waits.row[count] = row
        count += 1
    return count


def _book_end(rank, free, until, begin, end, cells, rows, complete, count, idle, waits):
    """Book a hole after a rank's last action; its reductions are the rows ``begin:end``.

    A reduction that no row of this replica released waits for slower replicas once its gradients are complete.
    """
    for r in range(begin, end):
        since = min(max(rows.start[r], free), until)
        done = min(max(rows.end[r], since), until)
        ready = since
        if rows.cause[r] < 0 and complete[cells.stage[r]] >= 0:
            ready = min(max(complete[cells.stage[r]], free), since)
        count = _book(rank, DRAIN, free, ready, -1, count, idle, waits)
        count = _book(rank, SLOWER_REPLICA, ready, since, r, count, idle, waits)
        count = _book(rank, REDUCTION, since, done, r, count, idle, waits)
        free = max(done, free)
    return _book(rank, DRAIN, free, until, -1, count, idle, waits)


def _book_row(row, first, last, rank, cells, rows, kinds, count, spent, waits):
    """Book the time of a row of the compute stream; messages on it count as idle time."""
    duration = rows.end[row] - rows.start[row]
    if kinds.role[cells.kind[row]] == COMPUTES:
        spent.busy_ns[rank] += duration
        spent.collective_ns[rank] += rows.collective[row]
    elif row < first:
        count = _book(rank, FILL, rows.start[row], rows.end[row], row, count, spent.idle_ns, waits)
    elif row > last:
        count = _book(rank, DRAIN, rows.start[row], rows.end[row], row, count, spent.idle_ns, waits)
    else:
        carried = rows.start[row] + min(duration, rows.uncontended[row])
        count = _book(rank, TRANSFER, rows.start[row], carried, row, count, spent.idle_ns, waits)
        count = _book(rank, CONTENTION, carried, rows.end[row], row, count, spent.idle_ns, waits)
    return count


def _book_idle_before(
    row, free, until, rank, cells, rows, graph, kinds, index, complete, count, idle, waits
):  # fmt: skip
    """Book the hole before a row between a rank's first and last action.

    The data that ended it were computed at ``ready`` and in transfer from ``since`` to ``arrived``. Time after
    ``ready`` outside the transfer is head-of-line blocking. For sends, copies and collectives, ``ready`` is
    the start of the hole. The hole before a collective is longer by the time that slower replicas issue it later.
    """
    role = kinds.role[cells.kind[row]]
    under_way, longer = TRANSFER, CONTENTION
    producer = -1
    by = rows.cause[row]
    ready, since, arrived, alone = free, until, until, 0
    if role == RECEIVES:
        # On the compute stream: its sender was not ready.
        ready_ns = _ready(row, cells, rows, graph, kinds, index)
        ready = min(max(ready_ns, free), until) if ready_ns >= 0 else until
    elif role != SENDS:
        released = by if by >= 0 else row
        other = kinds.role[cells.kind[released]]
        if other == COPIES or other == MEETS:
            since = min(max(rows.start[released], free), until)
            alone = rows.uncontended[released] + rows.lag[released]
            if other == MEETS:
                under_way, longer = REDUCTION, REDUCTION
                ready = min(free + _late_ns(released, free, cells, rows, kinds, complete), until)
                count = _book(rank, SLOWER_REPLICA, free, ready, released, count, idle, waits)
                free, since = ready, max(since, ready)
        else:
            message, producer = _last_message(row, cells, rows, graph, kinds, index)
            if message < 0 and (other == SENDS or other == RECEIVES):
                message = released  # the action needs no message, but its rank waits for one
            ready = until
            if message >= 0:
                by = message
                arrived = min(max(rows.end[message] + rows.lag[message], free), until)
                since = min(max(rows.start[message], free), arrived)
                alone = rows.uncontended[message] + rows.lag[message]
                ready = min(max(rows.end[producer] if producer >= 0 else since, free), since)
    carried = min(since + alone, arrived)
    count = _book(rank, PEER_COMPUTE, free, ready, producer if producer >= 0 else by, count, idle, waits)
    count = _book(rank, HEAD_OF_LINE, ready, since, by, count, idle, waits)
    count = _book(rank, under_way, since, carried, by, count, idle, waits)
    count = _book(rank, longer, carried, arrived, by, count, idle, waits)
    return _book(rank, HEAD_OF_LINE, arrived, until, by, count, idle, waits)


def _late_ns(row, free, cells, rows, kinds, complete):
    """Return how long slower replicas delay a collective after ``free``, also by those that it follows.

    No row of this replica releases a collective that another replica issues later.
    """
    late_ns = 0
    while row >= 0 and kinds.role[cells.kind[row]] == MEETS and rows.end[row] > free:
        if rows.cause[row] < 0 and complete[cells.stage[row]] >= 0:
            late_ns += rows.start[row] - rows.enter[row]
        row = rows.cause[row] if rows.cause[row] < row else -1  # follows earlier rows of its lane only
    return late_ns


def _ready(row, cells, rows, graph, kinds, index):
    """Return when the data of a receive were computed, -1 where unknown."""
    s = cells.stage[row]
    direction = 0 if kinds.direction[cells.kind[row]] == FORWARD else 1
    ptr = graph.pred_ptr if direction == 0 else graph.succ_ptr
    ready = -1
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        for e in range(ptr[s], ptr[s + 1]):
            producer = _producer(direction, e, u, graph, index)
            if index.recv[_message_index(direction, e, u, graph)] == row and producer >= 0:
                ready = max(ready, rows.end[producer])
    return ready


def _last_message(row, cells, rows, graph, kinds, index):
    """Return the last message to arrive that an action needs, and the row that produces it; -1 for none."""
    s = cells.stage[row]
    direction = kinds.feeds[cells.kind[row]]
    message = producer = -1
    if direction < 0:
        return message, producer
    ptr = graph.pred_ptr if direction == 0 else graph.succ_ptr
    for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
        for e in range(ptr[s], ptr[s + 1]):
            slot = _message_index(direction, e, u, graph)
            m = index.recv[slot] if index.recv[slot] >= 0 else index.send[slot]
            if m >= 0 and (message < 0 or rows.end[m] + rows.lag[m] > rows.end[message] + rows.lag[message]):
                message = m
                producer = _producer(direction, e, u, graph, index)
    return message, producer


def _message_index(direction, e, microbatch, graph):
    """Return the index of a microbatch's message over an edge between a stage and its predecessor."""
    edge = graph.pred_edge[e] if direction == 0 else graph.edges + graph.succ_edge[e]
    return edge * graph.microbatches + microbatch


def _producer(direction, e, microbatch, graph, index):
    """Return the row that produces a microbatch's message over an edge."""
    stage = graph.pred[e] if direction == 0 else graph.stages + graph.succ[e]
    return index.producer[stage * graph.microbatches + microbatch]
