"""Kernels that attribute the idle time of ranks to causes."""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kinds import Kind, Pass, Role

FILL, DRAIN, TRANSFER, CONTENTION, HEAD_OF_LINE, PEER_COMPUTE, REDUCTION, SLOWER_REPLICA = range(8)
CAUSES = 8
"""Causes of idle time, of which each rank has one value."""

COMPUTES, SENDS, RECEIVES = int(Role.COMPUTE), int(Role.SEND), int(Role.RECEIVE)
COPIES, COLLECTIVES = int(Role.COPY), int(Role.COLLECTIVE)
FORWARD = int(Pass.FORWARD)
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
    window_start, window_end, spent, waits,
):  # fmt: skip
    """Split the window of ranks ``first_rank:end_rank`` into busy time and idle time by cause.

    Return the number of waits. ``complete`` has the time when this replica's gradients of each stage were
    complete, -1 where unknown.
    """
    count = 0
    for rank in range(first_rank, end_rank):
        lane = reduce_lane[rank]
        first_reduction, end_reduction = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        for row in range(first_reduction, end_reduction):
            k = cells.kind[row]
            if k == REDUCE or k == REDUCE_GROUPS or k == SYNC:
                spent.reduction_ns[rank] += rows.end[row] - rows.start[row]
        lane = compute_lane[rank]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        first, last = _working(low, high, cells, kinds)
        idle_start = window_start
        for row in range(low, high + 1):
            idle_end = rows.start[row] if row < high else window_end
            if idle_end > idle_start:
                if first < row <= last:
                    count = _book_idle_before(
                        row, idle_start, idle_end, rank, cells, rows, graph, kinds, index, complete, count,
                        spent.idle_ns, waits,
                    )  # fmt: skip
                elif row <= first:
                    released = rows.cause[row] if row < high else -1
                    if len(compute_lane) == 1 and first_reduction <= released < end_reduction:
                        # Without a pipeline, the first action waits for its weights, not for other ranks.
                        gather = min(max(rows.start[released], idle_start), idle_end)
                        count = _book(rank, FILL, idle_start, gather, released, count, spent.idle_ns, waits)
                        count = _book(rank, REDUCTION, gather, idle_end, released, count, spent.idle_ns, waits)
                        idle_start = idle_end
                    count = _book(rank, FILL, idle_start, idle_end, released, count, spent.idle_ns, waits)
                else:
                    count = _book_idle_after(
                        rank, idle_start, idle_end, first_reduction, end_reduction, cells, rows, complete, count,
                        spent.idle_ns, waits,
                    )  # fmt: skip
            if row < high:
                count = _book_row(row, first, last, rank, cells, rows, kinds, count, spent, waits)
                idle_start = rows.end[row]
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


def _book(rank, cause, start, end, row, count, idle, waits):
    """Book a wait unless it is empty; return the new number of waits."""
    if end > start:
        idle[rank * CAUSES + cause] += end - start
        if count < len(waits.start):
            waits.rank[count] = rank
            waits.cause[count] = cause
            waits.start[count] = start
            waits.end[count] = end
            waits.row[count] = row
        count += 1
    return count


def _book_idle_after(
    rank, idle_start, idle_end, first_reduction, end_reduction, cells, rows, complete, count, idle, waits
):  # fmt: skip
    """Book the idle time after a rank's last action, with reductions ``first_reduction:end_reduction``.

    A reduction that no row of this replica released waits for slower replicas once its gradients are complete.
    """
    for reduction in range(first_reduction, end_reduction):
        start = min(max(rows.start[reduction], idle_start), idle_end)
        finish = min(max(rows.end[reduction], start), idle_end)
        complete_ns = start
        if rows.cause[reduction] < 0 and complete[cells.stage[reduction]] >= 0:
            complete_ns = min(max(complete[cells.stage[reduction]], idle_start), start)
        count = _book(rank, DRAIN, idle_start, complete_ns, -1, count, idle, waits)
        count = _book(rank, SLOWER_REPLICA, complete_ns, start, reduction, count, idle, waits)
        count = _book(rank, REDUCTION, start, finish, reduction, count, idle, waits)
        idle_start = max(finish, idle_start)
    return _book(rank, DRAIN, idle_start, idle_end, -1, count, idle, waits)


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
        uncontended_end = rows.start[row] + min(duration, rows.uncontended[row])
        count = _book(rank, TRANSFER, rows.start[row], uncontended_end, row, count, spent.idle_ns, waits)
        count = _book(rank, CONTENTION, uncontended_end, rows.end[row], row, count, spent.idle_ns, waits)
    return count


def _book_idle_before(
    row, idle_start, idle_end, rank, cells, rows, graph, kinds, index, complete, count, idle, waits
):  # fmt: skip
    """Book the idle time before a row between a rank's first and last action.

    The awaited data were computed at ``ready_ns`` and in transfer from ``transfer_start`` to ``arrived``. Time
    after ``ready_ns`` outside the transfer is head-of-line blocking. For sends, copies and collectives,
    ``ready_ns`` is the start of the idle time. Slower replicas extend it by issuing their collective later.
    """
    role = kinds.role[cells.kind[row]]
    transfer_cause, excess_cause = TRANSFER, CONTENTION
    producer = -1
    ending_row = rows.cause[row]
    ready_ns, transfer_start, arrived, uncontended_ns = idle_start, idle_end, idle_end, 0
    if role == RECEIVES:
        # On the compute stream: its sender was not ready.
        data_ns = _ready_ns(row, cells, rows, graph, kinds, index)
        ready_ns = min(max(data_ns, idle_start), idle_end) if data_ns >= 0 else idle_end
    elif role != SENDS:
        releasing_row = ending_row if ending_row >= 0 else row
        releasing_role = kinds.role[cells.kind[releasing_row]]
        if releasing_role == COPIES or releasing_role == COLLECTIVES:
            transfer_start = min(max(rows.start[releasing_row], idle_start), idle_end)
            uncontended_ns = rows.uncontended[releasing_row] + rows.lag[releasing_row]
            if releasing_role == COLLECTIVES:
                transfer_cause, excess_cause = REDUCTION, REDUCTION
                delay_ns = _replica_delay_ns(releasing_row, idle_start, cells, rows, kinds, complete)
                ready_ns = min(idle_start + delay_ns, idle_end)
                count = _book(rank, SLOWER_REPLICA, idle_start, ready_ns, releasing_row, count, idle, waits)
                idle_start, transfer_start = ready_ns, max(transfer_start, ready_ns)
        else:
            message, producer = _last_message(row, cells, rows, graph, kinds, index)
            if message < 0 and (releasing_role == SENDS or releasing_role == RECEIVES):
                message = releasing_row  # the action needs no message, but its rank waits for one
            ready_ns = idle_end
            if message >= 0:
                ending_row = message
                arrived = min(max(rows.end[message] + rows.lag[message], idle_start), idle_end)
                transfer_start = min(max(rows.start[message], idle_start), arrived)
                uncontended_ns = rows.uncontended[message] + rows.lag[message]
                computed_ns = rows.end[producer] if producer >= 0 else transfer_start
                ready_ns = min(max(computed_ns, idle_start), transfer_start)
    uncontended_end = min(transfer_start + uncontended_ns, arrived)
    computing_row = producer if producer >= 0 else ending_row
    count = _book(rank, PEER_COMPUTE, idle_start, ready_ns, computing_row, count, idle, waits)
    count = _book(rank, HEAD_OF_LINE, ready_ns, transfer_start, ending_row, count, idle, waits)
    count = _book(rank, transfer_cause, transfer_start, uncontended_end, ending_row, count, idle, waits)
    count = _book(rank, excess_cause, uncontended_end, arrived, ending_row, count, idle, waits)
    return _book(rank, HEAD_OF_LINE, arrived, idle_end, ending_row, count, idle, waits)


def _replica_delay_ns(row, idle_start, cells, rows, kinds, complete):
    """Return how long slower replicas delay a collective after ``idle_start``, also by those that it follows.

    No row of this replica releases a collective that another replica issues later.
    """
    delay_ns = 0
    while row >= 0 and kinds.role[cells.kind[row]] == COLLECTIVES and rows.end[row] > idle_start:
        if rows.cause[row] < 0 and complete[cells.stage[row]] >= 0:
            delay_ns += rows.start[row] - rows.enter[row]
        row = rows.cause[row] if rows.cause[row] < row else -1  # follows earlier rows of its lane only
    return delay_ns


def _ready_ns(row, cells, rows, graph, kinds, index):
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
