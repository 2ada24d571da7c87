"""Kernels over timelines: index the rows, attribute idle time, follow memory.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

from pptrace.model.kinds import Role

__all__ = ["attribute_idle", "follow_causes", "follow_memory", "index_rows"]

COMPUTES, COPIES, MEETS = int(Role.COMPUTE), int(Role.COPY), int(Role.COLLECTIVE)


def index_rows(
    lane_ptr, lane_rank, lane_peer, kind, stage, unit, span, start, size,
    succ_ptr, succ, succ_edge, pred_ptr, pred, pred_edge, stage_rank, unit_route, stages, units, edges,
    forward, gradient, send, recv,
):  # fmt: skip
    """Note the row of each stage and unit's forward and gradient, and of each edge's messages.

    A receive does not say from which stage it is. Where it may be from several, a second pass gives it
    the message of its size that was sent first.
    """
    unsure = True
    for again in range(2):
        if not unsure:
            break
        unsure = False
        for lane in range(len(lane_ptr) - 1):
            rank = lane_rank[lane]
            peer = lane_peer[lane]
            for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
                k = kind[row]
                s = stage[row]
                if k > 7 or k == 3 or (again == 1 and k != 5 and k != 7):
                    continue
                if k <= 2:
                    for u in range(unit[row], unit[row] + span[row]):
                        if k == 0:
                            forward[s * units + u] = row
                        else:
                            gradient[s * units + u] = row
                    continue
                sends = k == 4 or k == 6
                down = k == 4 or k == 7
                low, high = (succ_ptr[s], succ_ptr[s + 1]) if down else (pred_ptr[s], pred_ptr[s + 1])
                base = unit_route[unit[row]] * stages
                offset = 0 if k <= 5 else edges
                found = -1
                several = False
                for e in range(low, high):
                    other = stage_rank[base + (succ[e] if down else pred[e])]
                    if other < 0 or other == rank or (peer >= 0 and other != peer):
                        continue
                    index = (offset + (succ_edge[e] if down else pred_edge[e])) * units + unit[row]
                    if sends:
                        if found < 0 and send[index] < 0:
                            found = index
                    elif again == 0:
                        several = several or found >= 0
                        found = index
                    elif (
                        recv[index] < 0
                        and send[index] >= 0
                        and size[send[index]] == size[row]
                        and (found < 0 or start[send[index]] < start[send[found]])
                    ):
                        found = index
                if again == 0 and several:
                    unsure = True
                    continue
                if found >= 0:
                    for u in range(span[row]):
                        if sends:
                            send[found + u] = row
                        elif recv[found + u] < 0:
                            recv[found + u] = row


def attribute_idle(
    role, result, compute_lane, reduce_lane,
    lane_ptr, kind, stage, unit, span, start, end, lag, uncontended, cause,
    succ_ptr, succ, succ_edge, pred_ptr, pred, pred_edge, unit_route, stage_rank,
    stages, units, edges, forward, gradient, send, recv, opened, closed,
    collective, busy, idle, communicated, reductions,
):  # fmt: skip
    """Split each rank's window into busy time and idle time by cause.

    ``idle`` holds seven causes per rank: fill, drain, transfer, contention, head-of-line, peer's
    compute, data-parallel reduction. ``role`` and ``result`` are columns of the table of kinds.
    """
    for rank in range(len(compute_lane)):
        lane = compute_lane[rank]
        base = rank * 7
        if reduce_lane[rank] >= 0:
            for r in range(lane_ptr[reduce_lane[rank]], lane_ptr[reduce_lane[rank] + 1]):
                if kind[r] == 10 or kind[r] == 15:
                    reductions[rank] += end[r] - start[r]
        if lane < 0:
            idle[base] += closed - opened
            continue
        low, high = lane_ptr[lane], lane_ptr[lane + 1]
        first, last = high, low - 1
        for row in range(low, high):
            k = kind[row]
            if role[k] == COMPUTES and result[k] >= 0:
                if first == high:
                    first = row
                last = row
        free = opened
        for row in range(low, high + 1):
            begin = start[row] if row < high else closed
            if begin > free:
                hole = begin - free
                if row <= first:
                    idle[base] += hole
                elif row > last:
                    reduced = 0
                    if reduce_lane[rank] >= 0:
                        for r in range(lane_ptr[reduce_lane[rank]], lane_ptr[reduce_lane[rank] + 1]):
                            a, b = max(start[r], free), min(end[r], begin)
                            if b > a:
                                reduced += b - a
                    idle[base + 6] += reduced
                    idle[base + 1] += hole - reduced
                else:
                    k = kind[row]
                    s = stage[row]
                    message = -1
                    producer = -1
                    arrived = free
                    if k == 5 or k == 7:
                        # The hole before a receive on the compute stream: its sender was not ready.
                        ready = -1
                        for u in range(unit[row], unit[row] + span[row]):
                            if k == 5:
                                a, b = pred_ptr[s], pred_ptr[s + 1]
                            else:
                                a, b = succ_ptr[s], succ_ptr[s + 1]
                            for e in range(a, b):
                                if k == 5:
                                    index = pred_edge[e] * units + u
                                    producer = forward[pred[e] * units + u]
                                else:
                                    index = (edges + succ_edge[e]) * units + u
                                    producer = gradient[succ[e] * units + u]
                                if recv[index] == row and producer >= 0:
                                    ready = max(ready, end[producer])
                        ready = min(max(ready, free), begin) if ready >= 0 else begin
                        idle[base + 4] += begin - ready
                        idle[base + 5] += ready - free
                    elif k == 4 or k == 6:
                        idle[base + 4] += hole
                    else:
                        if k <= 2:
                            for u in range(unit[row], unit[row] + span[row]):
                                if k == 0:
                                    a, b = pred_ptr[s], pred_ptr[s + 1]
                                else:
                                    a, b = succ_ptr[s], succ_ptr[s + 1]
                                for e in range(a, b):
                                    if k == 0:
                                        index = pred_edge[e] * units + u
                                        maker = forward[pred[e] * units + u]
                                    else:
                                        index = (edges + succ_edge[e]) * units + u
                                        maker = gradient[succ[e] * units + u]
                                    m = recv[index] if recv[index] >= 0 else send[index]
                                    if m >= 0 and (message < 0 or end[m] + lag[m] > arrived):
                                        message = m
                                        producer = maker
                                        arrived = end[m] + lag[m]
                        released = cause[row] if cause[row] >= 0 else row
                        other = role[kind[released]]
                        if other in (COPIES, MEETS):
                            waited = begin - min(max(start[released], free), begin)
                            carried = min(waited, uncontended[released] + lag[released])
                            idle[base + (2 if other == COPIES else 6)] += carried
                            idle[base + (3 if other == COPIES else 6)] += waited - carried
                            idle[base + 4] += hole - waited
                        elif message < 0:
                            idle[base + 5] += hole
                        else:
                            until = min(max(arrived, free), begin)
                            idle[base + 4] += begin - until
                            since = min(max(start[message], free), until)
                            carried = min(until - since, uncontended[message] + lag[message])
                            idle[base + 2] += carried
                            idle[base + 3] += until - since - carried
                            ready = end[producer] if producer >= 0 else since
                            ready = min(max(ready, free), since)
                            idle[base + 4] += since - ready
                            idle[base + 5] += ready - free
            if row == high:
                continue
            k = kind[row]
            took = end[row] - start[row]
            if role[k] == COMPUTES:
                busy[rank] += took
                communicated[rank] += collective[row]
            elif row < first:
                idle[base] += took
            elif row > last:
                idle[base + 1] += took
            else:
                carried = min(took, uncontended[row])
                idle[base + 2] += carried
                idle[base + 3] += took - carried
            free = end[row]


def follow_memory(
    compute_lane, lane_ptr, kind, stage, span, start, end, kept, kept_weight, stages,
    peak, peak_at, held_most,
):  # fmt: skip
    """Follow each rank's activations: bytes held, when they peak, and the most units held at once."""
    for rank in range(len(compute_lane)):
        lane = compute_lane[rank]
        if lane < 0:
            continue
        held = 0
        count = 0
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            k = kind[row]
            s = stage[row]
            n = span[row]
            if k == 0:
                held += kept[s] * n
                count += n
                if held > peak[rank]:
                    peak[rank] = held
                    peak_at[rank] = start[row]
                if count > held_most[rank]:
                    held_most[rank] = count
            elif k == 1:
                held -= kept[s] * n
                count -= n
            elif k == 2:
                # Full recomputation builds here what the weight gradient needs, so memory may rise.
                held -= (kept[s] - kept_weight[s]) * n
                if held > peak[rank]:
                    peak[rank] = held
                    peak_at[rank] = start[row]
            elif k == 3:
                held -= kept_weight[s] * n
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
