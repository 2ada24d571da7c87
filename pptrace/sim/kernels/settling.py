"""How tasks of fixed length are settled: their ends are known as soon as all that they wait for is.

Called by the event kernel; columns are lists or arrays of integers, alike in use.
"""

from typing import Any, NamedTuple

from pptrace.schedule.kernels.heap import Heap, push
from pptrace.sim.kernels.running import Graph, Tasks, count_waits, may_begin, reach

__all__ = ["COMMUNICATION", "COMPUTATION", "FLOW", "Ends", "Jobs", "Step", "settle", "start_all"]

FLOW, COMPUTATION, COMMUNICATION = 0, 1, 2
"""Sorts of jobs."""


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


class Ends(NamedTuple):
    """When tasks end."""

    end: Any
    least: Any
    """The earliest possible: a receive ends after its send."""


class Step(NamedTuple):
    """What is looked at when tasks begin and end."""

    graph: Graph
    jobs: Jobs
    tasks: Tasks
    ends: Ends
    heap: Heap
    due: Any
    counts: Any


def start_all(step: Step) -> None:
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
            settle(step, _begin(step, task, 0))


def _begin(step: Step, task: int, top: int) -> int:
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


def settle(step: Step, top: int) -> None:
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


def _follow_sender(step: Step, sender: int, receiver: int) -> bool:
    """Let a receive begin where its send began, if that was no job, and end no earlier; return whether it may."""
    duration, tasks, ends = step.graph.duration, step.tasks, step.ends
    if step.jobs.of_task[sender] < 0:
        reach(tasks, receiver, tasks.start[sender], sender)
    over = ends.end[sender] + duration[receiver] - duration[sender]
    ends.least[receiver] = max(ends.least[receiver], over)
    tasks.waiting[receiver] -= 1
    return tasks.waiting[receiver] == 0
