"""The kernel that runs tasks in order of time, where links are shared or work slows what runs beside it.

Tasks of fixed length are not events: their ends are known as soon as all that they wait for is, so they are
settled at once, ahead of time. Events are the arrivals and ends of *jobs*: tasks whose speed depends on what
else runs. A job is a flow over links (its rate in parts of a kB/s, its volume in as many per ns), or, where work
slows what runs beside it, a computation or a communication of fixed length (thousandths of a ns, per mille).
All events of one instant come before rates are computed again; events of one instant are in order of job.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

from pptrace.schedule.kernels.heap import lift, pop, push, sink
from pptrace.sim.kernels.fair import refill

__all__ = ["run_events"]

ENDED = -2
"""The limit of a job that has ended; -1 is that of one at its own cap."""


def _reach(task, when, by, start, cause, waiting):
    """Note that a predecessor lets a task start at a time; return whether it was the last one."""
    if when > start[task] or cause[task] < 0:
        start[task] = when
        cause[task] = by
    elif when == start[task] and by < cause[task]:
        cause[task] = by
    waiting[task] -= 1
    return waiting[task] == 0


def _begin(
    task, duration, edge_ptr, edge, job_of, overhead, waiting, start, end, cause, least, ready, top,
    heap, place, when, size,
):  # fmt: skip
    """Start a task that waits for nothing more: a job joins the heap, another task ends ahead of time.

    Returns the sizes of the stack and of the heap.
    """
    job = job_of[task]
    if job < 0:
        end[task] = max(start[task] + duration[task], least[task])
        ready[top] = task
        return top + 1, size
    for i in range(edge_ptr[task], edge_ptr[task + 1]):
        if edge[i] < 0:
            # Its receiver may start; that one's end waits for this one's.
            _reach(-1 - edge[i], start[task], task, start, cause, waiting)
    when[job] = start[task] + overhead[job]
    return top, push(heap, place, when, size, job)


def _settle(
    top, duration, lag, following, following_peer, edge_ptr, edge, job_of, overhead,
    waiting, start, end, cause, least, ready, heap, place, when, size, counts,
):  # fmt: skip
    """Tell all that follows from the ``top`` tasks on the stack, whose ends are known; return the heap's size."""
    while top > 0:
        top -= 1
        task = ready[top]
        counts[0] += 1
        ended = end[task]
        for i in range(edge_ptr[task], edge_ptr[task + 1] + 2):
            freed = False
            if i >= edge_ptr[task + 1]:
                other = following[task] if i == edge_ptr[task + 1] else following_peer[task]
                if other >= 0:
                    freed = _reach(other, ended, task, start, cause, waiting)
            else:
                other = edge[i]
                if other >= 0:
                    freed = _reach(other, ended + lag[task], task, start, cause, waiting)
                else:
                    other = -1 - other
                    if job_of[task] < 0:
                        _reach(other, start[task], task, start, cause, waiting)
                    least[other] = max(least[other], ended + duration[other] - duration[task])
                    waiting[other] -= 1
                    freed = waiting[other] == 0
            if freed:
                top, size = _begin(
                    other, duration, edge_ptr, edge, job_of, overhead, waiting, start, end, cause, least, ready,
                    top, heap, place, when, size,
                )  # fmt: skip
    return size


def _retime(slot, now, new_rate, job_at, remaining, since, rate, heap, place, when, size):
    """Let a running job go on at another rate; return the heap's size. One of rate 0 is not in the heap."""
    job = job_at[slot]
    remaining[slot] -= rate[slot] * (now - since[slot])
    since[slot] = now
    rate[slot] = new_rate
    if new_rate > 0:
        when[job] = now + max((remaining[slot] + new_rate - 1) // new_rate, 0)
        if place[job] < 0:
            size = push(heap, place, when, size, job)
        else:
            lift(heap, place, when, place[job])
            sink(heap, place, when, size, place[job])
    return size


def run_events(
    duration, lag, following, following_peer, edge_ptr, edge, twin, rows,
    job_of, task_of, volume, full_rate, overhead, path_of, sort, rank, peer,
    path_ptr, path_link, path_weight, capacity, width, first_come, slow_compute, slow_communication,
    waiting, ready, start, end, cause, least,
    heap, place, when, slot_of,
    job_at, path, remaining, rate, since, cap, fair, limit, free, is_free, unused,
    head, tail, after, before, owner, load, members, room, wanted, share, touched, is_touched,
    rank_head, rank_after, rank_before, computing, talking,
    log_job, log_at, log_rate, log_limit, counts,
):  # fmt: skip
    """Run every task; ``counts`` becomes the tasks run and the changes of rate (which may outgrow the log).

    A job's ``sort`` is 0 for a flow, 1 for a computation, 2 for another communication; its path is a row of
    ``path_ptr`` for a flow, else -1. With ``first_come``, a flow holds all its links, and waits until it is first
    in the queues of all of them; else rates are max-min fair. While it runs, a job has a slot, one of few, so
    that what is looked at often lies close together. ``waiting`` is left above zero where stuck.
    """
    tasks = len(duration)
    for t in range(tasks):
        if following[t] >= 0:
            waiting[following[t]] += 1
        if following_peer[t] >= 0:
            waiting[following_peer[t]] += 1
    for i in range(edge_ptr[tasks]):
        if edge[i] >= 0:
            waiting[edge[i]] += 1
        else:
            waiting[-1 - edge[i]] += 2
    slows = slow_compute != 1000 or slow_communication != 1000
    size = 0
    for t in range(tasks):
        # What starts first is told from what was released by its cause: those have one.
        if waiting[t] == 0 and cause[t] < 0 and (t >= rows or twin[t] < 0):
            top, size = _begin(
                t, duration, edge_ptr, edge, job_of, overhead, waiting, start, end, cause, least, ready, 0,
                heap, place, when, size,
            )  # fmt: skip
            size = _settle(
                top, duration, lag, following, following_peer, edge_ptr, edge, job_of, overhead,
                waiting, start, end, cause, least, ready, heap, place, when, size, counts,
            )  # fmt: skip
    slots = 0
    spare = 0
    while size > 0:
        now = when[heap[0]]
        changed = 0
        first_unused = spare
        while size > 0 and when[heap[0]] == now:
            job = heap[0]
            size = pop(heap, place, when, size)
            slot = slot_of[job]
            arrives = slot < 0
            if arrives:
                # A slot left in this instant is still listed as changed.
                if first_unused > 0:
                    first_unused -= 1
                    slot = unused[first_unused]
                    spare -= 1
                    unused[first_unused] = unused[spare]
                else:
                    slot = slots
                    slots += 1
                slot_of[job] = slot
                job_at[slot] = job
                path[slot] = path_of[job]
                rate[slot] = 0
                limit[slot] = -1
                remaining[slot] = volume[job]
                since[slot] = now
                cap[slot] = full_rate[job]
            if path[slot] >= 0:
                first = path_ptr[path[slot]]
                for e in range(first, path_ptr[path[slot] + 1]):
                    link = path_link[e]
                    node = slot * width + e - first
                    members[link] += path_weight[e] if arrives else -path_weight[e]
                    if arrives:
                        owner[node] = slot
                        before[node] = tail[link]
                        after[node] = -1
                        if tail[link] >= 0:
                            after[tail[link]] = node
                        else:
                            head[link] = node
                        tail[link] = node
                    else:
                        if before[node] >= 0:
                            after[before[node]] = after[node]
                        else:
                            head[link] = after[node]
                        if after[node] >= 0:
                            before[after[node]] = before[node]
                        else:
                            tail[link] = before[node]
                        load[link] -= path_weight[e] * rate[slot]
                    near = -1 if arrives and first_come else head[link]
                    while near >= 0:
                        other = owner[near]
                        if limit[other] == link and is_free[other] == 0:
                            is_free[other] = 1
                            free[changed] = other
                            changed += 1
                        near = after[near]
            if arrives and is_free[slot] == 0:
                is_free[slot] = 1
                free[changed] = slot
                changed += 1
            if slows:
                for side in range(2):
                    r = rank[job] if side == 0 else peer[job]
                    if r < 0:
                        continue
                    node = 2 * slot + side
                    if arrives:
                        rank_before[node] = -1
                        rank_after[node] = rank_head[r]
                        if rank_head[r] >= 0:
                            rank_before[rank_head[r]] = node
                        rank_head[r] = node
                    else:
                        if rank_before[node] >= 0:
                            rank_after[rank_before[node]] = rank_after[node]
                        else:
                            rank_head[r] = rank_after[node]
                        if rank_after[node] >= 0:
                            rank_before[rank_after[node]] = rank_before[node]
                    if sort[job] == 1:
                        computing[r] += 1 if arrives else -1
                    else:
                        talking[r] += 1 if arrives else -1
                    near = rank_head[r]
                    while near >= 0:
                        other = near >> 1
                        if is_free[other] == 0:
                            is_free[other] = 1
                            free[changed] = other
                            changed += 1
                        near = rank_after[near]
            if not arrives:
                limit[slot] = ENDED
                unused[spare] = slot
                spare += 1
                end[task_of[job]] = now
                ready[0] = task_of[job]
                size = _settle(
                    1, duration, lag, following, following_peer, edge_ptr, edge, job_of, overhead,
                    waiting, start, end, cause, least, ready, heap, place, when, size, counts,
                )  # fmt: skip
        flows = 0
        for i in range(changed):
            slot = free[i]
            is_free[slot] = 0
            if limit[slot] == ENDED:
                continue
            job = job_at[slot]
            if slows:
                beside = talking[rank[job]] if sort[job] == 1 else computing[rank[job]]
                if sort[job] != 1 and peer[job] >= 0:
                    beside += computing[peer[job]]
                cap[slot] = full_rate[job]
                if beside > 0:
                    slowed = slow_compute if sort[job] == 1 else slow_communication
                    cap[slot] = max(full_rate[job] * slowed // 1000, 1)
            fair[slot] = cap[slot]
            if path[slot] < 0:
                size = _retime(slot, now, cap[slot], job_at, remaining, since, rate, heap, place, when, size)
                continue
            if first_come:
                limit[slot] = -1
                for e in range(path_ptr[path[slot]], path_ptr[path[slot] + 1]):
                    if limit[slot] < 0 and owner[head[path_link[e]]] != slot:
                        limit[slot] = path_link[e]
                        fair[slot] = 0
            free[flows] = slot
            flows += 1
        if not first_come and flows > 0:
            flows = refill(
                flows, free, is_free, path, path_ptr, path_link, path_weight, capacity, cap,
                head, after, owner, width, load, members, room, wanted, share, touched, is_touched,
                rate, fair, limit,
            )  # fmt: skip
        for i in range(flows):
            slot = free[i]
            if fair[slot] != rate[slot] or fair[slot] == 0:
                if counts[1] < len(log_job):
                    log_job[counts[1]] = job_at[slot]
                    log_at[counts[1]] = now
                    log_rate[counts[1]] = fair[slot]
                    log_limit[counts[1]] = limit[slot]
                counts[1] += 1
                size = _retime(slot, now, fair[slot], job_at, remaining, since, rate, heap, place, when, size)
