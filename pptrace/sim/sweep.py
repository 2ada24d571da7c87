"""Run a task graph on which nothing is shared: one sweep in order of dependence, without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.model.columns import passing, together
from pptrace.sim.kernels import running

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.sim.graph import TaskGraph

__all__ = ["Ran", "graph_record", "new_tasks", "run_graph"]


class Ran(NamedTuple):
    """What a kernel found of each task, and how many ran."""

    start_ns: Int64s
    end_ns: Int64s
    cause: Int32s
    """The task whose end (or start) released it, -1 for none."""
    waiting: Int32s
    """What it still waits for: above zero where stuck."""
    done: int


def run_graph(graph: TaskGraph) -> Ran:
    """Run the sweep."""
    tasks = new_tasks(graph.tasks)
    rendezvous = int((graph.next_peer >= 0).any())
    done = run(running.sweep, (graph_record(graph), rendezvous), (tasks,), work=graph.tasks)
    return Ran(tasks.start, tasks.start + graph.duration_ns, tasks.cause, tasks.waiting, done)


def graph_record(graph: TaskGraph) -> running.Graph:
    """Return the columns of a task graph that kernels run."""
    return running.Graph(
        duration=graph.duration_ns, lag=graph.lag_ns, following=graph.next, following_peer=graph.next_peer,
        edge_ptr=graph.edge_ptr, edge=graph.edge, twin=graph.twin, rows=graph.rows,
    )  # fmt: skip


def new_tasks(count: int) -> running.Tasks:
    """Return tasks of which none has begun."""
    waiting, ready = passing(count, np.int32, np.int32)
    start, cause = together(count, np.int64, np.int32)
    waiting[:] = start[:] = 0
    cause[:] = -1
    return running.Tasks(waiting=waiting, start=start, cause=cause, ready=ready)
