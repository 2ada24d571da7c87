"""The kernel that runs tasks in order of time, where links are shared or work slows what runs beside it.

Tasks of fixed length are not events: their ends are known as soon as all that they wait for is, so they are
settled at once, ahead of time. Events are the arrivals and ends of *jobs*: tasks whose speed depends on what
else runs. A job is a flow over links (its rate in parts of a kB/s, its volume in as many per ns), or, where work
slows what runs beside it, a computation or a communication of fixed length (thousandths of a ns, per mille).
All events of one instant come before rates are computed again; events of one instant are in order of job.

Columns are lists or arrays of integers, alike in use.
"""

from typing import Any, NamedTuple

from pptrace.schedule.kernels.heap import OUTSIDE, Heap, lift, pop, push, sink
from pptrace.sim.kernels.fair import AT_CAP, FREE, KEPT, Flows, Links, Places, refill
from pptrace.sim.kernels.running import Graph, Tasks, count_waits, may_begin, reach

__all__ = [
    "COMMUNICATION", "COMPUTATION", "FLOW", "WHOLE", "Ends", "Jobs", "Log", "Paths", "Ranks", "Rules", "Running",
    "run_events",
]  # fmt: skip

FLOW, COMPUTATION, COMMUNICATION = 0, 1, 2
"""Sorts of jobs."""

WHOLE = 1000
"""Full speed of a job that is no flow."""

ENDED = -2
"""The limit of a job that has ended."""


class Jobs(NamedTuple):
    """Tasks whose speed depends on what else runs; see :class:`pptrace.sim.jobs.Jobs`."""

    of_task: Any
    """Per task its job, -1 for none."""
    task: Any
    volume: Any
    full_rate: Any
    overhead: Any
    path: Any
    sort: Any
    rank: Any
    peer: Any


class Paths(NamedTuple):
    """The links of path ``p`` are ``link[ptr[p]:ptr[p + 1]]``."""

    ptr: Any
    link: Any
    weight: Any


class Rules(NamedTuple):
    """What jobs that meet do to each other."""

    first_come: int
    """1 where a flow holds all its links, and waits until it is first in the queues of all of them."""
    slow_compute: int
    """Speed of a computation while its rank communicates, of :data:`WHOLE`."""
    slow_communication: int
    """Speed of a communication while one of its ranks computes."""


class Running(NamedTuple):
    """Jobs that run have slots, of which there are few, so that what is looked at often lies close together.

    A slot is the number of its flow in :class:`~pptrace.sim.kernels.fair.Flows`, whose caps, rates and limits
    serve all jobs.
    """

    slot: Any
    """Per job its slot, -1 before it arrives."""
    due: Any
    """Per job, when its next event is; its time in the heap may be earlier, and never is later."""
    job: Any
    """Per slot its job."""
    remaining: Any
    since: Any
    """When ``remaining`` was so much."""
    unused: Any
    """Slots of jobs that have ended."""
    used: Any
    """Three values: slots ever used, how many of those are unused, and since before this instant."""


class Ranks(NamedTuple):
    """Jobs on ranks: slot ``s`` has the places ``2 * s`` on its rank and ``2 * s + 1`` on its peer."""

    head: Any
    after: Any
    before: Any
    computing: Any
    communicating: Any


class Log(NamedTuple):
    """Changes of rate."""

    job: Any
    at: Any
    rate: Any
    limit: Any
    counts: Any
    """Two values: tasks run, and changes of rate, which may outgrow the log."""


class Ends(NamedTuple):
    """When tasks end."""

    end: Any
    least: Any
    """The earliest possible: a receive ends after its send."""


class _Step(NamedTuple):
    """What is looked at when tasks begin and end."""

    graph: Graph
    jobs: Jobs
    tasks: Tasks
    ends: Ends
    heap: Heap
    due: Any
    counts: Any


def run_events(
    graph: Graph, jobs: Jobs, paths: Paths, rules: Rules,
    tasks: Tasks, ends: Ends, heap: Heap, running: Running, flows: Flows, places: Places, links: Links,
    ranks: Ranks, log: Log,
) -> None:  # fmt: skip
    """Run every task; ``tasks.waiting`` is left above zero where stuck."""
    step = _Step(graph, jobs, tasks, ends, heap, running.due, log.counts)
    slows = int(rules.slow_compute != WHOLE or rules.slow_communication != WHOLE)
    _start_all(step)
    now = _next_time(heap, running.due)
    while now >= 0:
        count = 0
        # A slot left in this instant is still listed as changed.
        running.used[2] = running.used[1]
        while _next_time(heap, running.due) == now:
            job = pop(heap)
            slot = running.slot[job]
            arrives = int(slot < 0)
            if arrives:
                slot = _arrive(jobs, running, flows, job, now)
                _enter_links(paths, flows, places, links, jobs.path[job], slot)
            else:
                _leave_links(flows, places, links, slot)
            if not (arrives and rules.first_come):
                count = _free_limited(flows, places, links, slot, count)
            if arrives:
                count = _set_free(flows, slot, count)
            if slows:
                count = _meet(jobs, running, ranks, flows, slot, arrives, count)
            if not arrives:
                _leave(running, flows, slot)
                ends.end[jobs.task[job]] = now
                tasks.ready[0] = jobs.task[job]
                _settle(step, 1)
        count = _aim(jobs, rules, running, flows, places, links, ranks, heap, slows, now, count)
        if not rules.first_come:
            count = refill(flows, places, links, count)
        for i in range(count):
            slot = flows.free[i]
            if flows.fair[slot] != flows.rate[slot] or flows.fair[slot] == 0:
                _note(log, running.job[slot], now, flows.fair[slot], flows.limit[slot])
                _retime(running, flows, heap, slot, now)
        now = _next_time(heap, running.due)


def _start_all(step: _Step) -> None:
    """Start every task that waits for nothing, and what follows from it."""
    graph, tasks = step.graph, step.tasks
    count_waits(graph, tasks.waiting, 1)
    for i in range(graph.edge_ptr[len(graph.duration)]):
        if graph.edge[i] < 0:
            tasks.waiting[-1 - graph.edge[i]] += (
                1  # such a task waits for the other's start, and its own end for its end
            )
    for task in range(len(graph.duration)):
        # What starts first is told from what was released by its cause: those have one.
        if tasks.cause[task] < 0 and may_begin(graph, tasks, task):
            _settle(step, _begin(step, task, 0))


def _begin(step: _Step, task: int, top: int) -> int:
    """Start a task that waits for nothing more: a job joins the heap, another task ends ahead of time.

    Returns the size of the stack.
    """
    graph, tasks = step.graph, step.tasks
    job, start = step.jobs.of_task[task], tasks.start[task]
    if job < 0:
        step.ends.end[task] = max(start + graph.duration[task], step.ends.least[task])
        tasks.ready[top] = task
        return top + 1
    for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1]):
        if graph.edge[i] < 0:
            reach(tasks, -1 - graph.edge[i], start, task)
    step.due[job] = start + step.jobs.overhead[job]
    push(step.heap, job, step.due[job])
    return top


def _settle(step: _Step, top: int) -> None:
    """Tell all that follows from the ``top`` tasks on the stack, whose ends are known."""
    graph, tasks = step.graph, step.tasks
    while top > 0:
        top -= 1
        task = tasks.ready[top]
        step.counts[0] += 1
        ended = step.ends.end[task]
        for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1] + 2):
            if i == graph.edge_ptr[task + 1]:
                other = graph.following[task]
                freed = other >= 0 and reach(tasks, other, ended, task)
            elif i > graph.edge_ptr[task + 1]:
                other = graph.following_peer[task]
                freed = other >= 0 and reach(tasks, other, ended, task)
            elif graph.edge[i] >= 0:
                other = graph.edge[i]
                freed = reach(tasks, other, ended + graph.lag[task], task)
            else:
                other = -1 - graph.edge[i]
                freed = _follow_sender(step, task, other)
            if freed:
                top = _begin(step, other, top)


def _follow_sender(step: _Step, sender: int, receiver: int) -> bool:
    """Let a receive begin where its send began, if that was no job, and end no earlier; return whether it may."""
    duration, tasks, ends = step.graph.duration, step.tasks, step.ends
    if step.jobs.of_task[sender] < 0:
        reach(tasks, receiver, tasks.start[sender], sender)
    over = ends.end[sender] + duration[receiver] - duration[sender]
    ends.least[receiver] = max(ends.least[receiver], over)
    tasks.waiting[receiver] -= 1
    return tasks.waiting[receiver] == 0  # type: ignore[no-any-return]


def _next_time(heap: Heap, due: Any) -> int:
    """Return when the next event is, and have it first in the heap; -1 where there is none.

    A job that got slower is left where it was: only once it comes first is its place set right.
    """
    while heap.size[0] > 0:
        job = heap.item[0]
        if heap.time[job] == due[job]:
            return due[job]  # type: ignore[no-any-return]
        heap.time[job] = due[job]
        sink(heap, 0)
    return -1


def _retime(running: Running, flows: Flows, heap: Heap, slot: int, now: int) -> None:
    """Let a job go on at the rate that it should have. One of rate 0 waits, and is not in the heap."""
    job, rate = running.job[slot], flows.fair[slot]
    remaining = running.remaining[slot] - flows.rate[slot] * (now - running.since[slot])
    running.remaining[slot] = remaining
    running.since[slot] = now
    flows.rate[slot] = rate
    if rate > 0:
        due = now + max((remaining + rate - 1) // rate, 0)
        running.due[job] = due
        if heap.place[job] == OUTSIDE:
            push(heap, job, due)
        elif due < heap.time[job]:
            heap.time[job] = due
            lift(heap, heap.place[job])


def _arrive(jobs: Jobs, running: Running, flows: Flows, job: int, now: int) -> int:
    """Give a job a slot, which is returned."""
    unused, used = running.unused, running.used
    if used[2] > 0:
        used[2] -= 1
        used[1] -= 1
        slot = unused[used[2]]
        unused[used[2]] = unused[used[1]]
    else:
        slot = used[0]
        used[0] += 1
    running.slot[job] = slot
    running.job[slot] = job
    running.remaining[slot] = jobs.volume[job]
    running.since[slot] = now
    flows.cap[slot] = jobs.full_rate[job]
    flows.rate[slot] = 0
    flows.limit[slot] = AT_CAP
    return slot  # type: ignore[no-any-return]


def _leave(running: Running, flows: Flows, slot: int) -> None:
    """Give up a slot."""
    flows.limit[slot] = ENDED
    running.unused[running.used[1]] = slot
    running.used[1] += 1


def _enter_links(paths: Paths, flows: Flows, places: Places, links: Links, path: int, slot: int) -> None:
    """Put a flow last on the links of its path; what has no path is on none."""
    first = at = slot * places.width
    if path >= 0:
        for entry in range(paths.ptr[path], paths.ptr[path + 1]):
            link, weight = paths.link[entry], paths.weight[entry]
            places.link[at] = link
            places.weight[at] = weight
            places.flow[at] = slot
            links.members[link] += weight
            last = links.tail[link]
            places.before[at] = last
            places.after[at] = -1
            if last >= 0:
                places.after[last] = at
            else:
                links.head[link] = at
            links.tail[link] = at
            at += 1
    flows.links[slot] = at - first


def _leave_links(flows: Flows, places: Places, links: Links, slot: int) -> None:
    """Take a flow off its links."""
    first = slot * places.width
    for at in range(first, first + flows.links[slot]):
        link, weight = places.link[at], places.weight[at]
        links.members[link] -= weight
        links.load[link] -= weight * flows.rate[slot]
        before, after = places.before[at], places.after[at]
        if before >= 0:
            places.after[before] = after
        else:
            links.head[link] = after
        if after >= 0:
            places.before[after] = before
        else:
            links.tail[link] = before


def _set_free(flows: Flows, slot: int, count: int) -> int:
    """List a job among the ``count`` whose rates change, once; return how many those are."""
    if flows.mark[slot] != KEPT:
        return count
    flows.mark[slot] = FREE
    flows.free[count] = slot
    return count + 1


def _free_limited(flows: Flows, places: Places, links: Links, slot: int, count: int) -> int:
    """List the flows that the links of a flow limit; return how many are listed."""
    flow, after, limit = places.flow, places.after, flows.limit
    first = slot * places.width
    for own in range(first, first + flows.links[slot]):
        link = places.link[own]
        at = links.head[link]
        while at >= 0:
            if limit[flow[at]] == link:
                count = _set_free(flows, flow[at], count)
            at = after[at]
    return count


def _meet(jobs: Jobs, running: Running, ranks: Ranks, flows: Flows, slot: int, arrives: int, count: int) -> int:
    """Put a job on its ranks, or take it off, and list all that is there; return how many are listed."""
    job = running.job[slot]
    for side in range(2):
        rank = jobs.rank[job] if side == 0 else jobs.peer[job]
        if rank < 0:
            continue
        if arrives:
            _stand_first(ranks, rank, 2 * slot + side)
        else:
            _stand_off(ranks, rank, 2 * slot + side)
        busy = ranks.computing if jobs.sort[job] == COMPUTATION else ranks.communicating
        busy[rank] += 1 if arrives else -1
        at = ranks.head[rank]
        while at >= 0:
            count = _set_free(flows, at >> 1, count)
            at = ranks.after[at]
    return count


def _stand_first(ranks: Ranks, rank: int, at: int) -> None:
    """Chain a place on a rank."""
    first = ranks.head[rank]
    ranks.before[at] = -1
    ranks.after[at] = first
    if first >= 0:
        ranks.before[first] = at
    ranks.head[rank] = at


def _stand_off(ranks: Ranks, rank: int, at: int) -> None:
    """Unchain a place on a rank."""
    before, after = ranks.before[at], ranks.after[at]
    if before >= 0:
        ranks.after[before] = after
    else:
        ranks.head[rank] = after
    if after >= 0:
        ranks.before[after] = before


def _aim(
    jobs: Jobs, rules: Rules, running: Running, flows: Flows, places: Places, links: Links, ranks: Ranks,
    heap: Heap, slows: int, now: int, changed: int,
) -> int:  # fmt: skip
    """Let the changed jobs have their caps, flows as far as it is their turn.

    Leaves the flows in front of the list, and returns how many they are; other jobs go on at once.
    """
    count = 0
    for i in range(changed):
        slot = flows.free[i]
        flows.mark[slot] = KEPT
        if flows.limit[slot] == ENDED:
            continue
        if slows:
            flows.cap[slot] = _slowed(jobs, rules, ranks, running.job[slot])
        flows.fair[slot] = flows.cap[slot]
        if flows.links[slot] == 0:
            _retime(running, flows, heap, slot, now)
            continue
        if rules.first_come:
            _queue(flows, places, links, slot)
        flows.free[count] = slot
        count += 1
    return count


def _slowed(jobs: Jobs, rules: Rules, ranks: Ranks, job: int) -> int:
    """Return the speed of a job beside what runs on its ranks."""
    rank, peer, full = jobs.rank[job], jobs.peer[job], jobs.full_rate[job]
    if jobs.sort[job] == COMPUTATION:
        beside, speed = ranks.communicating[rank], rules.slow_compute
    else:
        beside, speed = ranks.computing[rank], rules.slow_communication
        if peer >= 0:
            beside += ranks.computing[peer]
    return max(full * speed // WHOLE, 1) if beside > 0 else full  # type: ignore[no-any-return]


def _queue(flows: Flows, places: Places, links: Links, slot: int) -> None:
    """Let a flow wait for the first of its links on which it is not the first."""
    flows.limit[slot] = AT_CAP
    first = slot * places.width
    for at in range(first, first + flows.links[slot]):
        if flows.limit[slot] == AT_CAP and places.flow[links.head[places.link[at]]] != slot:
            flows.limit[slot] = places.link[at]
            flows.fair[slot] = 0


def _note(log: Log, job: int, now: int, rate: int, limit: int) -> None:
    """Note a change of rate, as long as there is room."""
    at = log.counts[1]
    if at < len(log.job):
        log.job[at] = job
        log.at[at] = now
        log.rate[at] = rate
        log.limit[at] = limit
    log.counts[1] = at + 1
