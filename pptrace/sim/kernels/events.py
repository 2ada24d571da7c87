"""The kernel that runs tasks in order of time, where links are shared or computation and communication interfere.

Tasks of fixed length are not events: the end is known as soon as the start is. Events are arrivals and ends of
*jobs*, tasks whose speed depends on other running jobs. A job is a flow over links (rate in parts of a kB/s,
volume in the same parts per ns) or, with interference, a computation or a communication of fixed length
(thousandths of a ns, per mille). All events of one instant precede the update of rates and are in order of job.
"""

from typing import Any, NamedTuple

from pptrace.sim.kernels.fairness import AT_CAP, KEPT, Flows, LinkCapacities, Places, refill
from pptrace.sim.kernels.job_slots import (
    ENDED,
    Ranks,
    Running,
    SharedLinks,
    arrive,
    change_ranks,
    enter_links,
    leave,
    leave_links,
    mark_changed,
    mark_limited,
)
from pptrace.sim.kernels.sweep import COMPUTATION, Ends, Graph, Jobs, Step, Tasks, settle, start_all
from pptrace.steps.kernels.heap import OUTSIDE, Heap, lift, pop, push, sink_first

WHOLE = 1000
"""Full speed of a job that is no flow."""


class Rules(NamedTuple):
    """How concurrent jobs affect each other."""

    first_come: int
    """1 if a flow needs all its links exclusively, and waits until it is first in the queue of each."""
    slow_compute: int
    """Speed of a computation while its rank communicates, of :data:`WHOLE`."""
    slow_communication: int
    """Speed of a communication while one of its ranks computes."""


class Log(NamedTuple):
    """Changes of rate."""

    job: Any
    time: Any
    rate: Any
    limit: Any
    counts: Any
    """Two values: tasks that ran, and changes of rate, which may exceed the capacity of the log."""


def run_events(
    graph: Graph, jobs: Jobs, shared: SharedLinks, rules: Rules,
    tasks: Tasks, ends: Ends, heap: Heap, running: Running, flows: Flows, places: Places, links: LinkCapacities,
    ranks: Ranks, log: Log,
) -> None:  # fmt: skip
    """Run every task; after the run, ``tasks.waiting`` is above zero for tasks in a deadlock."""
    step = Step(graph, jobs, tasks, ends, heap, running.due, log.counts)
    slows = int(rules.slow_compute != WHOLE or rules.slow_communication != WHOLE)
    start_all(step)
    now = _next_time(heap, running.due)
    while now >= 0:
        count = 0
        # A slot that was left in this instant is still listed as changed.
        running.used[2] = running.used[1]
        while _next_time(heap, running.due) == now:
            job = pop(heap)
            slot = running.slot[job]
            arrives = int(slot < 0)
            if arrives:
                slot = arrive(jobs, running, flows, job, now)
                enter_links(shared, flows, places, links, jobs.path[job], slot)
            else:
                leave_links(flows, places, links, slot)
            if not (arrives and rules.first_come):
                count = mark_limited(flows, places, links, slot, count)
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
        _update_rates(running, flows, heap, log, count, now)
        now = _next_time(heap, running.due)


def _next_time(heap: Heap, due: Any) -> int:
    """Return the time of the next event, which becomes the first in the heap; -1 if there is none.

    A job that got slower moves down the heap only when it is the first.
    """
    while heap.size[0] > 0:
        job = heap.item[0]
        if heap.time[job] == due[job]:
            return due[job]
        heap.time[job] = due[job]
        sink_first(heap)
    return -1


def _update_rates(running: Running, flows: Flows, heap: Heap, log: Log, count: int, now: int) -> None:
    """Apply the new rates of the listed flows that change or wait."""
    for i in range(count):
        slot = flows.free[i]
        if flows.fair[slot] != flows.rate[slot] or flows.fair[slot] == 0:
            _log_change(log, running.job[slot], now, flows.fair[slot], flows.limit[slot])
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
        if heap.place[job] == OUTSIDE:
            push(heap, job, due)
        elif due < heap.time[job]:
            heap.time[job] = due
            lift(heap, heap.place[job])


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
    return max(full * speed // WHOLE, 1) if concurrent > 0 else full


def _queue(flows: Flows, places: Places, links: LinkCapacities, slot: int) -> None:
    """Block a flow on the first of its links where another flow is first."""
    flows.limit[slot] = AT_CAP
    first = slot * places.width
    for place in range(first, first + flows.links[slot]):
        if flows.limit[slot] == AT_CAP and places.flow[links.head[places.link[place]]] != slot:
            flows.limit[slot] = places.link[place]
            flows.fair[slot] = 0


def _log_change(log: Log, job: int, now: int, rate: int, limit: int) -> None:
    """Log a change of rate if the log has capacity left."""
    change = log.counts[1]
    if change < len(log.job):
        log.job[change] = job
        log.time[change] = now
        log.rate[change] = rate
        log.limit[change] = limit
    log.counts[1] = change + 1
