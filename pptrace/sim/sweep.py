"""Run a task graph on which nothing is shared: one sweep in order of dependence, without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.sim.kernels import running

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.sim.graph import TaskGraph

__all__ = ["run_graph"]


def run_graph(graph: TaskGraph) -> tuple[Int64s, Int64s, Int32s, Int32s, int]:
    """Run the sweep; return start, end, cause and what is left to wait for of each task, and the tasks run."""
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
    return start, start + graph.duration_ns, cause, waiting, done
