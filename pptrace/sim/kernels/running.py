"""Kernels that run tasks on which nothing is shared.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

__all__ = ["enter_times", "sweep"]


def sweep(
    duration, lag, following, following_peer, edge_ptr, edge, twin, rows, rendezvous,
    waiting, ready, start, cause,
):  # fmt: skip
    """Run every task as soon as all that it waits for has happened; return the tasks run.

    Nothing is shared, so the order of the walk does not matter and no clock is kept. On a tie the
    cause is the predecessor with the lowest number. ``waiting`` is left above zero where stuck.
    """
    tasks = len(duration)
    for t in range(tasks):
        if following[t] >= 0:
            waiting[following[t]] += 1
        if rendezvous and following_peer[t] >= 0:
            waiting[following_peer[t]] += 1
    for i in range(edge_ptr[tasks]):
        t = edge[i]
        waiting[t if t >= 0 else -1 - t] += 1
    top = 0
    for t in range(tasks - 1, -1, -1):
        if waiting[t] == 0 and (t >= rows or twin[t] < 0):
            ready[top] = t
            top += 1
    done = 0
    while top > 0:
        top -= 1
        t = ready[top]
        while t >= 0:
            done += 1
            begun = start[t]
            ended = begun + duration[t]
            arrived = ended + lag[t]
            for i in range(edge_ptr[t], edge_ptr[t + 1]):
                d = edge[i]
                when = arrived
                if d < 0:
                    d = -1 - d
                    when = begun
                if when > start[d] or cause[d] < 0:
                    start[d] = when
                    cause[d] = t
                elif when == start[d] and t < cause[d]:
                    cause[d] = t
                waiting[d] -= 1
                if waiting[d] == 0:
                    ready[top] = d
                    top += 1
            d = following_peer[t] if rendezvous else -1
            if d >= 0:
                if ended > start[d] or cause[d] < 0:
                    start[d] = ended
                    cause[d] = t
                elif ended == start[d] and t < cause[d]:
                    cause[d] = t
                waiting[d] -= 1
                if waiting[d] == 0:
                    ready[top] = d
                    top += 1
            d = following[t]
            freed = t
            t = -1
            if d >= 0:
                if ended > start[d] or cause[d] < 0:
                    start[d] = ended
                    cause[d] = freed
                elif ended == start[d] and freed < cause[d]:
                    cause[d] = freed
                waiting[d] -= 1
                if waiting[d] == 0:
                    t = d
    return done


def enter_times(lane_ptr, twin, fork, start, end, enter):
    """Note when each row was launched: the row before it on its lane and its fork were done."""
    for lane in range(len(lane_ptr) - 1):
        free = 0
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            launched = free
            if fork[row] >= 0:
                launched = max(launched, end[fork[row]])
            enter[row] = min(launched, start[row])
            free = end[row]
