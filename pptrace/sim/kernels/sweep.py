"""Kernels of the sweep over tasks in topological order; columns are lists or arrays of integers."""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.sim.kernels.placement import AHEAD, LINE
from pptrace.steps.kernels.heap import Heap, push
from pptrace_kernel import fetch


class Graph(NamedTuple):
    """Tasks and their dependencies; see :class:`pptrace.sim.task_graph.TaskGraph`."""

    duration: Any
    lag: Any
    following: Any
    following_peer: Any
    edge_ptr: Any
    edge: Any
    """A task that waits for the end (plus lag); ``-1 - task`` for one that waits for the start."""
    sender_row: Any
    rows: int


class Tasks(NamedTuple):
    """Progress of each task."""

    waiting: Any
    """Predecessors that did not end: above zero after the run for tasks in a deadlock."""
    start: Any
    cause: Any
    """The predecessor that released it, the lowest on a tie; -1 for none."""
    ready: Any
    """A stack of tasks whose ends are known and whose successors are not released."""


def reach(tasks: Tasks, task: int, time: int, by: int) -> bool:
    """Record that a predecessor releases a task at a time; return whether it is the last predecessor."""
    waiting, start, cause = tasks.waiting, tasks.start, tasks.cause
    if time > start[task] or cause[task] < 0:
        start[task] = time
        cause[task] = by
    elif time == start[task] and by < cause[task]:
        cause[task] = by
    left = waiting[task] - 1
    waiting[task] = left
    return left == 0


def may_begin(graph: Graph, tasks: Tasks, task: int) -> bool:
    """Return whether a row is a task without predecessors left."""
    return tasks.waiting[task] == 0 and (task >= graph.rows or graph.sender_row[task] < 0)


def sweep(graph: Graph, rendezvous: int, tasks: Tasks) -> int:
    """Run every task when its last predecessor releases it; return the number of tasks that ran.

    Nothing is shared, so no clock is needed.
    """
    duration, lag, following, following_peer = graph.duration, graph.lag, graph.following, graph.following_peer
    edge_ptr, edge = graph.edge_ptr, graph.edge
    start, ready = tasks.start, tasks.ready
    count_waits(graph, tasks.waiting, rendezvous)
    top = _first_ready(graph, tasks)
    done = 0
    while top > 0:
        top -= 1
        task = ready[top]
        done += 1
        if task % LINE == 0:
            _fetch_ahead(graph, tasks, task)
        begun = start[task]
        ended = begun + duration[task]
        arrived = ended + lag[task]
        for i in range(edge_ptr[task], edge_ptr[task + 1]):
            other = edge[i]
            when = arrived
            if other < 0:
                other = -1 - other
                when = begun
            if reach(tasks, other, when, task):
                ready[top] = other
                top += 1
        other = following_peer[task] if rendezvous else -1
        if other >= 0 and reach(tasks, other, ended, task):
            ready[top] = other
            top += 1
        other = following[task]
        if other >= 0 and reach(tasks, other, ended, task):
            ready[top] = other
            top += 1
    return done


def _fetch_ahead(graph: Graph, tasks: Tasks, task: int) -> None:
    """Prefetch the columns of a task's lane two cache lines ahead."""
    fetch(
        task + AHEAD, tasks.start, tasks.waiting, tasks.cause,
        graph.duration, graph.lag, graph.following, graph.edge_ptr,
    )  # fmt: skip
    fetch(graph.edge_ptr[task] + 2 * AHEAD, graph.edge)


def count_waits(graph: Graph, waiting: Any, rendezvous: int) -> None:
    """Count the predecessors of each task."""
    following, following_peer, edge = graph.following, graph.following_peer, graph.edge
    tasks = len(following)
    for task in range(tasks):
        if following[task] >= 0:
            waiting[following[task]] += 1
        if rendezvous and following_peer[task] >= 0:
            waiting[following_peer[task]] += 1
    for i in range(graph.edge_ptr[tasks]):
        task = edge[i]
        waiting[task if task >= 0 else -1 - task] += 1


def _first_ready(graph: Graph, tasks: Tasks) -> int:
    """Push the tasks without predecessors; return the size of the stack."""
    top = 0
    for task in range(len(graph.duration) - 1, -1, -1):
        if may_begin(graph, tasks, task):
            tasks.ready[top] = task
            top += 1
    return top


def enter_times(lane_ptr, fork, sender_row, start, end, cause, enter):
    """Fill in when each row is launched: the end of the previous row of its lane and of its fork.

    First copy the times of each rendezvous from the sender's row to the receiver's; ``sender_row`` is empty if
    there is none. Return whether any row starts before the previous row of its lane.
    """
    disordered = 0
    meets = len(sender_row) > 0
    for lane in range(len(lane_ptr) - 1):
        free = before = 0
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            if meets and sender_row[row] >= 0:
                other = sender_row[row]
                start[row] = start[other]
                end[row] = end[other]
                cause[row] = cause[other]
            launched = free
            if fork[row] >= 0:
                launched = max(launched, end[fork[row]])
            enter[row] = min(launched, start[row])
            if start[row] < before:
                disordered = 1
            before = start[row]
            free = end[row]
    return disordered


FLOW, COMPUTATION, COMMUNICATION = 0, 1, 2
"""Kinds of jobs."""


class Jobs(NamedTuple):
    """Tasks whose speed depends on other running tasks, in their order; one value per job."""

    of_task: Any
    """Per task its job, -1 for none."""
    task: Any
    """The task of each job."""
    volume: Any
    """A flow's 64ths of a millionth of a byte; else thousandths of a nanosecond."""
    full_rate: Any
    """The uncontended speed: of a flow in 64ths of a kB/s, else 1000."""
    overhead_ns: Any
    """Launch overhead before a flow's bytes."""
    path: Any
    """A flow's path, else -1."""
    kind: Any
    """:data:`FLOW`, :data:`COMPUTATION`, or :data:`COMMUNICATION` that is no flow."""
    rank: Any
    """The rank that it runs on."""
    peer: Any
    """The rank at a message's other end, else -1."""


class Ends(NamedTuple):
    """When tasks end."""

    end: Any
    least: Any
    """Lower bound of the end: a receive ends after its send."""


class Step(NamedTuple):
    """State of the event engine that tasks read and change."""

    graph: Graph
    jobs: Jobs
    tasks: Tasks
    ends: Ends
    heap: Heap
    due: Any
    counts: Any


def start_all(step: Step) -> None:
    """Start every task without predecessors, and all successors that this releases."""
    graph, tasks = step.graph, step.tasks
    count_waits(graph, tasks.waiting, 1)
    for i in range(graph.edge_ptr[len(graph.duration)]):
        if graph.edge[i] < 0:
            # The task waits for the start of the other task, and its end for the end of the other task.
            tasks.waiting[-1 - graph.edge[i]] += 1
    for task in range(len(graph.duration)):
        # Tasks that were released have a cause.
        if tasks.cause[task] < 0 and may_begin(graph, tasks, task):
            settle(step, _begin(step, task, 0))


def _begin(step: Step, task: int, top: int) -> int:
    """Start a task: a job joins the heap, any other task ends at once. Return the size of the stack."""
    graph, tasks = step.graph, step.tasks
    job, start = step.jobs.of_task[task], tasks.start[task]
    if job < 0:
        step.ends.end[task] = max(start + graph.duration[task], step.ends.least[task])
        tasks.ready[top] = task
        return top + 1
    for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1]):
        if graph.edge[i] < 0:
            reach(tasks, -1 - graph.edge[i], start, task)
    step.due[job] = start + step.jobs.overhead_ns[job]
    push(step.heap, job, step.due[job])
    return top


def settle(step: Step, top: int) -> None:
    """Release the successors of the ``top`` tasks on the stack."""
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


def _follow_sender(step: Step, sender: int, receiver: int) -> bool:
    """Release a receive at the start of its send unless that is a job; return whether nothing else holds it."""
    duration, tasks, ends = step.graph.duration, step.tasks, step.ends
    if step.jobs.of_task[sender] < 0:
        reach(tasks, receiver, tasks.start[sender], sender)
    over = ends.end[sender] + duration[receiver] - duration[sender]
    ends.least[receiver] = max(ends.least[receiver], over)
    tasks.waiting[receiver] -= 1
    return tasks.waiting[receiver] == 0
