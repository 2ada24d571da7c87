"""Run a task graph on which nothing is shared: one sweep in order of dependence, without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.sim.kernels import running

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.sim.graph import TaskGraph

__all__ = ["Ran", "run_graph"]


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
    tasks = graph.tasks
    waiting, ready = np.zeros(tasks, dtype=np.int32), np.empty(tasks, dtype=np.int32)
    start = np.zeros(tasks, dtype=np.int64)
    cause = np.full(tasks, -1, dtype=np.int32)
    done = run(
        running.sweep,
        (
            graph.duration_ns, graph.lag_ns, graph.next, graph.next_peer,
            graph.edge_ptr, graph.edge, graph.twin, graph.rows, int((graph.next_peer >= 0).any()),
        ),
        (waiting, ready, start, cause),
        work=tasks,
    )  # fmt: skip
    return Ran(start, start + graph.duration_ns, cause, waiting, done)
