"""The kernel that runs tasks in order of time, where links are shared or computation and communication interfere.

Tasks of fixed length are not events: the end is known as soon as the start is. Events are arrivals and ends of
*jobs*, tasks whose speed depends on other running jobs. A job is a flow over links (rate in parts of a kB/s,
volume in the same parts per ns) or, with interference, a computation or a communication of fixed length
(thousandths of a ns, per mille). All events of one instant precede the update of rates and are in order of job.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.sim.kernels.fairness import AT_CAP, FREE, KEPT, Flows, LinkCapacities, Places, refill, release
from pptrace.sim.kernels.sweep import COMPUTATION, Ends, Graph, Jobs, Step, Tasks, settle, start_all
from pptrace.steps.kernels.heap import OUTSIDE, Heap, pop, push, sift_first_down, sift_up
from pptrace_kernel import fetch

ENDED = -2
"""The limit of a job that has ended."""


class SharedLinks(NamedTuple):
    """The links on which flows contend, renumbered."""

    number: Any
    """Index of each link in the network."""
    rate_kbps: Any
    """Capacity of each link."""
    ptr: Any
    """Shape (paths + 1,): the shared links of path ``p`` are ``link[ptr[p]:ptr[p + 1]]``; by job in the kernel."""
    link: Any
    """Shared links along the paths, or the paths of the jobs."""
    weight: Any
    """Flows of a message on each of them."""


class Running(NamedTuple):
    """Slots of running jobs; few slots keep the columns in the caches.

    A slot is an index into :class:`~pptrace.sim.kernels.fairness.Flows`, whose caps, rates and limits hold for all
    jobs.
    """

    slot: Any
    """Per job its slot, -1 before it arrives."""
    due: Any
    """Per job, the time of its next event. Its time in the heap may be earlier and is never later."""
    job: Any
    """Per slot its job."""
    remaining: Any
    since: Any
    """Time at which ``remaining`` was last updated."""
    unused: Any
    """Slots of jobs that have ended."""
    used: Any
    """Three values: slots ever used, unused slots, and slots that were unused before this instant."""


class Ranks(NamedTuple):
    """Jobs on ranks: slot ``s`` has the places ``2 * s`` on its rank and ``2 * s + 1`` on its peer."""

    head: Any
    after: Any
    before: Any
    computing: Any
    communicating: Any


def arrive(jobs: Jobs, running: Running, flows: Flows, job: int, now: int) -> int:
    """Give a job a slot; return the slot."""
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
    return slot


def leave(running: Running, flows: Flows, slot: int) -> None:
    """Give up a slot."""
    flows.limit[slot] = ENDED
    running.unused[running.used[1]] = slot
    running.used[1] += 1


def enter_links(
    shared: SharedLinks, flows: Flows, places: Places, links: LinkCapacities, job: int, slot: int
) -> None:
    """Append a flow to the links of its job."""
    first = place = slot * places.width
    for entry in range(shared.ptr[job], shared.ptr[job + 1]):
        link = shared.link[entry]
        places.link[place] = link
        places.weight[place] = shared.weight[entry]
        places.flow[place] = slot
        last = links.tail[link]
        places.before[place] = last
        places.after[place] = -1
        if last >= 0:
            places.after[last] = place
        else:
            links.head[link] = place
        links.tail[link] = place
        place += 1
    flows.links[slot] = place - first


def leave_links(flows: Flows, places: Places, links: LinkCapacities, slot: int) -> None:
    """Take a flow off its links."""
    first = slot * places.width
    for place in range(first, first + flows.links[slot]):
        link = places.link[place]
        previous, following = places.before[place], places.after[place]
        if previous >= 0:
            places.after[previous] = following
        else:
            links.head[link] = following
        if following >= 0:
            places.before[following] = previous
        else:
            links.tail[link] = previous


def mark_changed(flows: Flows, slot: int, count: int) -> int:
    """Append a job to the ``count`` jobs whose rates change, once; return the new count."""
    if flows.mark[slot] != KEPT:
        return count
    flows.mark[slot] = FREE
    flows.free[count] = slot
    return count + 1


def mark_limited(flows: Flows, places: Places, links: LinkCapacities, slot: int, count: int) -> int:
    """Append the flows that the links of a flow limit; return the new count."""
    flow, after, limit = places.flow, places.after, flows.limit
    first = slot * places.width
    for entry in range(first, first + flows.links[slot]):
        link = places.link[entry]
        place = links.head[link]
        while place >= 0:
            if limit[flow[place]] == link:
                count = mark_changed(flows, flow[place], count)
            place = after[place]
    return count


def change_ranks(
    jobs: Jobs, running: Running, ranks: Ranks, flows: Flows, slot: int, arrives: int, count: int
) -> int:
    """Add a job to its ranks, or remove it, and append all jobs of these ranks; return the new count."""
    job = running.job[slot]
    for side in range(2):
        rank = jobs.rank[job] if side == 0 else jobs.peer[job]
        if rank < 0:
            continue
        if arrives:
            _chain_on_rank(ranks, rank, 2 * slot + side)
        else:
            _unchain_from_rank(ranks, rank, 2 * slot + side)
        busy = ranks.computing if jobs.kind[job] == COMPUTATION else ranks.communicating
        busy[rank] += 1 if arrives else -1
        place = ranks.head[rank]
        while place >= 0:
            count = mark_changed(flows, place >> 1, count)
            place = ranks.after[place]
    return count


def _chain_on_rank(ranks: Ranks, rank: int, place: int) -> None:
    first = ranks.head[rank]
    ranks.before[place] = -1
    ranks.after[place] = first
    if first >= 0:
        ranks.before[first] = place
    ranks.head[rank] = place


def _unchain_from_rank(ranks: Ranks, rank: int, place: int) -> None:
    previous, following = ranks.before[place], ranks.after[place]
    if previous >= 0:
        ranks.after[previous] = following
    else:
        ranks.head[rank] = following
    if following >= 0:
        ranks.before[following] = previous


PERMILLE = 1000
"""Full speed of a job that is no flow."""


class Rules(NamedTuple):
    """How concurrent jobs affect each other."""

    first_come: int
    """1 if a flow needs all its links exclusively, and waits until it is first in the queue of each."""
    slow_compute: int
    """Speed of a computation while its rank communicates, of :data:`PERMILLE`."""
    slow_communication: int
    """Speed of a communication while one of its ranks computes."""


class Log(NamedTuple):
    """Changes of flows' rates in order of time; a rate holds until the flow's next one, or its end."""

    task: Any
    """The flow's task, which is its row."""
    time: Any
    rate: Any
    """The rate of each of its members after the change, in 64ths of a kB/s; 0 while it waits for a link."""
    limit: Any
    """The link in the network that sets the rate, -1 for none."""
    counts: Any
    """Two values: tasks that ran, and changes of rate, which may exceed the capacity of the log."""


def run_events(
    graph: Graph, jobs: Jobs, shared: SharedLinks, rules: Rules,
    tasks: Tasks, ends: Ends, heap: Heap, running: Running, flows: Flows, places: Places, links: LinkCapacities,
    ranks: Ranks, log: Log,
) -> None:  # fmt: skip
    """Run every task; after the run, ``tasks.waiting`` is above zero for tasks in a deadlock."""
    step = Step(graph, jobs, tasks, ends, heap, running.due, log.counts)
    slows = int(rules.slow_compute != PERMILLE or rules.slow_communication != PERMILLE)
    start_all(step)
    now = _next_time(heap, running.due)
    while now >= 0:
        count = 0
        # A slot that was left in this instant is still listed as changed.
        running.used[2] = running.used[1]
        while _next_time(heap, running.due) == now:
            job = pop(heap)
            _fetch_job(graph, jobs, shared, tasks, ends, running, heap.item[0])  # likely the next event
            slot = running.slot[job]
            arrives = int(slot < 0)
            if arrives:
                slot = arrive(jobs, running, flows, job, now)
                enter_links(shared, flows, places, links, job, slot)
            else:
                leave_links(flows, places, links, slot)
                if rules.first_come:
                    count = mark_limited(flows, places, links, slot, count)
                else:
                    release(flows, places, links, slot, 0)
            if arrives:
                count = mark_changed(flows, slot, count)
            if slows:
                count = change_ranks(jobs, running, ranks, flows, slot, arrives, count)
            if not arrives:
                leave(running, flows, slot)
                ends.end[jobs.task[job]] = now
                tasks.ready[0] = jobs.task[job]
                settle(step, 1)
        count = _set_caps(jobs, rules, running, flows, places, links, ranks, heap, slows, now, count)
        if not rules.first_come:
            count = refill(flows, places, links, count)
        _update_rates(jobs, shared, running, flows, heap, log, count, now)
        now = _next_time(heap, running.due)


def _fetch_job(
    graph: Graph, jobs: Jobs, shared: SharedLinks, tasks: Tasks, ends: Ends, running: Running, job: int
) -> None:
    """Prefetch the columns of a job and its task."""
    fetch(job, running.slot, jobs.volume, jobs.full_rate, shared.ptr)
    fetch(
        jobs.task[job], graph.edge_ptr, graph.following, graph.following_peer, graph.duration, jobs.of_task,
        tasks.start, tasks.waiting, tasks.cause, ends.end, ends.least,
    )  # fmt: skip


def _next_time(heap: Heap, due: Any) -> int:
    """Return the time of the next event, which becomes the first in the heap; -1 if there is none.

    A job that got slower moves down the heap only when it is the first.
    """
    while heap.size[0] > 0:
        job = heap.item[0]
        if heap.time[0] == due[job]:
            return due[job]
        heap.time[0] = due[job]
        sift_first_down(heap)
    return -1


def _update_rates(
    jobs: Jobs, shared: SharedLinks, running: Running, flows: Flows, heap: Heap, log: Log, count: int, now: int
) -> None:
    """Apply the new rates of the listed flows that change or wait."""
    for i in range(count):
        slot = flows.free[i]
        if flows.fair[slot] != flows.rate[slot] or flows.fair[slot] == 0:
            limit = flows.limit[slot]
            link = shared.number[limit] if limit >= 0 else -1
            _log_change(log, jobs.task[running.job[slot]], now, flows.fair[slot], link)
            _retime(running, flows, heap, slot, now)


def _retime(running: Running, flows: Flows, heap: Heap, slot: int, now: int) -> None:
    """Apply a job's new rate. A job of rate 0 waits, and is not in the heap."""
    job, rate = running.job[slot], flows.fair[slot]
    remaining = running.remaining[slot] - flows.rate[slot] * (now - running.since[slot])
    running.remaining[slot] = remaining
    running.since[slot] = now
    flows.rate[slot] = rate
    if rate > 0:
        due = now + max((remaining + rate - 1) // rate, 0)
        running.due[job] = due
        place = heap.place[job]
        if place == OUTSIDE:
            push(heap, job, due)
        elif due < heap.time[place]:
            heap.time[place] = due
            sift_up(heap, place)


def _set_caps(
    jobs: Jobs, rules: Rules, running: Running, flows: Flows, places: Places, links: LinkCapacities, ranks: Ranks,
    heap: Heap, slows: int, now: int, changed: int,
) -> int:  # fmt: skip
    """Set the caps of the changed jobs; with first-come links, also the rates of flows.

    Move the flows to the front of the list and return their number; other jobs continue at once.
    """
    count = 0
    for i in range(changed):
        slot = flows.free[i]
        flows.mark[slot] = KEPT
        if flows.limit[slot] == ENDED:
            continue
        if slows:
            flows.cap[slot] = _speed_of(jobs, rules, ranks, running.job[slot])
        flows.fair[slot] = flows.cap[slot]
        if flows.links[slot] == 0:
            _retime(running, flows, heap, slot, now)
            continue
        if rules.first_come:
            _queue(flows, places, links, slot)
        flows.free[count] = slot
        count += 1
    return count


def _speed_of(jobs: Jobs, rules: Rules, ranks: Ranks, job: int) -> int:
    """Return the speed of a job, given the other jobs on its ranks."""
    rank, peer, full = jobs.rank[job], jobs.peer[job], jobs.full_rate[job]
    if jobs.kind[job] == COMPUTATION:
        concurrent, speed = ranks.communicating[rank], rules.slow_compute
    else:
        concurrent, speed = ranks.computing[rank], rules.slow_communication
        if peer >= 0:
            concurrent += ranks.computing[peer]
    return max(full * speed // PERMILLE, 1) if concurrent > 0 else full


def _queue(flows: Flows, places: Places, links: LinkCapacities, slot: int) -> None:
    """Block a flow on the first of its links where another flow is first."""
    flows.limit[slot] = AT_CAP
    first = slot * places.width
    for place in range(first, first + flows.links[slot]):
        if flows.limit[slot] == AT_CAP and places.flow[links.head[places.link[place]]] != slot:
            flows.limit[slot] = places.link[place]
            flows.fair[slot] = 0


def _log_change(log: Log, task: int, now: int, rate: int, limit: int) -> None:
    """Log a change of rate if the log has capacity left."""
    change = log.counts[1]
    if change < len(log.task):
        log.task[change] = task
        log.time[change] = now
        log.rate[change] = rate
        log.limit[change] = limit
    log.counts[1] = change + 1
