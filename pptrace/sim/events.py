"""Run a task graph in order of time, where links are shared or work slows what runs beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.sim.contention import Sharing
from pptrace.sim.jobs import FINER
from pptrace.sim.kernels import events
from pptrace.sim.sweep import Ran

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.sim.contention import Contention
    from pptrace.sim.graph import TaskGraph
    from pptrace.sim.jobs import Jobs
    from pptrace.sim.shared import SharedLinks

__all__ = ["Rates", "run_jobs"]

_EFFORT = 20
"""Rows of a sweep that one flow costs about as much as."""

_CHANGES = 24
"""Changes of rate per flow for which there is room at first; memory that is not written is not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Every change of a flow's rate, in order of time; a rate holds until the flow's next one, or its end."""

    task: Int32s
    """The flow's task, which is its row."""
    at_ns: Int64s
    """When the rate changed."""
    rate: Int64s
    """The rate of each of its members from then on, in 64ths of a kB/s; 0 while it waits for a link."""
    limit: Int32s
    """The link that set it, -1 where it went as fast as alone (or as work beside it let it)."""


def run_jobs(graph: TaskGraph, jobs: Jobs, shared: SharedLinks, contention: Contention) -> tuple[Ran, Rates]:
    """Run the event kernel; return what the sweep returns, and the flows' rates."""
    room = _CHANGES * jobs.flows + 1
    ran, changes, columns = _run(graph, jobs, shared, contention, room)
    if changes > room:
        ran, changes, columns = _run(graph, jobs, shared, contention, changes)
    job, at, rate, limit = columns
    number = np.append(shared.number, -1).astype(np.int32)
    return ran, Rates(
        task=jobs.task[job[:changes]],
        at_ns=at[:changes],
        rate=rate[:changes],
        limit=number[limit[:changes]],
    )


def _run(
    graph: TaskGraph, jobs: Jobs, shared: SharedLinks, contention: Contention, room: int
) -> tuple[Ran, int, tuple[Int32s, Int64s, Int64s, Int32s]]:
    tasks, count, links = graph.tasks, len(jobs), shared.rate_kbps.size
    width, ranks = shared.width, graph.placement.ranks
    job_of = np.full(tasks, -1, dtype=np.int32)
    job_of[jobs.task] = np.arange(count)
    start, end, least = (np.zeros(tasks, dtype=np.int64) for _ in range(3))
    waiting, cause = np.zeros(tasks, dtype=np.int32), np.full(tasks, -1, dtype=np.int32)
    log = (
        np.zeros(room, dtype=np.int32), np.zeros(room, dtype=np.int64),
        np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int32),
    )  # fmt: skip
    counts = np.zeros(2, dtype=np.int64)
    nodes = count * width
    sides = 2 * count if contention.slows else 1
    run(
        events.run_events,
        (
            graph.duration_ns, graph.lag_ns, graph.next, graph.next_peer, graph.edge_ptr, graph.edge,
            graph.twin, graph.rows,
            job_of, jobs.task, jobs.volume, jobs.full_rate, jobs.overhead_ns, jobs.path, jobs.sort,
            jobs.rank, jobs.peer,
            shared.ptr, shared.link, shared.weight, shared.rate_kbps * FINER, width,
            int(contention.links is Sharing.FIFO), contention.compute_permille, contention.communication_permille,
        ),
        (
            waiting, np.empty(tasks, dtype=np.int32), start, end, cause, least,
            _filled(count), _filled(count, -1), _filled(count, of=np.int64), _filled(count, -1),
            _filled(count), _filled(count), *(_filled(count, of=np.int64) for _ in range(5)),
            _filled(count), _filled(count), _filled(count, of=np.int8), _filled(count),
            _filled(links, -1), _filled(links, -1), _filled(nodes), _filled(nodes), _filled(nodes),
            *(_filled(links, of=np.int64) for _ in range(5)), _filled(links), _filled(links, of=np.int8),
            _filled(ranks, -1), _filled(sides), _filled(sides), _filled(ranks), _filled(ranks),
            *log, counts,
        ),
        work=tasks + _EFFORT * count,
    )  # fmt: skip
    return Ran(start, end, cause, waiting, int(counts[0])), int(counts[1]), log


def _filled(size: int, value: int = 0, of: type[np.integer] = np.int32) -> np.ndarray:
    # Zeros take no memory until they are written.
    return np.full(size or 1, value, dtype=of) if value else np.zeros(size or 1, dtype=of)
