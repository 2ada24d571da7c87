"""The two engines: a sweep in topological order, and events where links are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.config.choices import Sharing
from pptrace.network.contract import UNLIMITED
from pptrace.sim.kernels import events
from pptrace.sim.kernels import sweep as sweep_kernels
from pptrace.sim.kernels.fairness import Flows, LinkCapacities, Places
from pptrace.sim.rate_sharing import FINER, Contention, shared_links
from pptrace.steps.columns import empty_columns
from pptrace.steps.kernels.heap import OUTSIDE, Heap
from pptrace_kernel import run

if TYPE_CHECKING:
    from pptrace.network.contract import Links, Paths
    from pptrace.sim.task_graph import TaskGraph
    from pptrace.steps.columns import Int32s, Int64s

_EFFORT = 20
"""Cost of one flow in rows of a sweep, for the choice between interpreted and compiled."""

_CHANGES = 24
"""Initial capacity of the log, in changes of rate per flow. Memory that is not written is not allocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Every change of a flow's rate, in order of time; a rate holds until the flow's next one, or its end."""

    task: Int32s
    """The flow's task, which is its row."""
    time_ns: Int64s
    """Time of the change."""
    rate: Int64s
    """The rate of each of its members after the change, in 64ths of a kB/s; 0 while it waits for a link."""
    limit: Int32s
    """The link that set it, -1 where no link limits it."""


def run_jobs(
    graph: sweep_kernels.Graph,
    ranks: int,
    jobs: sweep_kernels.Jobs,
    shared: events.SharedLinks,
    contention: Contention,
) -> tuple[Ran, Rates]:
    """Run the event kernel; return the times of all tasks, and the flows' rates.

    Args:
        graph: all tasks.
        ranks: number of ranks.
        jobs: the tasks whose speed depends on other jobs.
        shared: the links on which flows meet.
        contention: effects of concurrent jobs on each other.
    """
    tasks, count = graph.duration.size, jobs.task.size
    rules = events.Rules(
        first_come=int(contention.links is Sharing.FIFO),
        slow_compute=contention.compute_permille,
        slow_communication=contention.communication_permille,
    )
    width = max(int(np.diff(shared.ptr).max(initial=0)), 1)
    sides = 2 * count if contention.slows else 1
    capacity = _CHANGES * int(np.count_nonzero(jobs.kind == sweep_kernels.FLOW)) + 1
    while True:
        progress = new_tasks(tasks)
        ends = sweep_kernels.Ends(_filled(tasks, of=np.int64), _filled(tasks, of=np.int64))
        log = events.Log(
            job=_filled(capacity), time=_filled(capacity, of=np.int64), rate=_filled(capacity, of=np.int64),
            limit=_filled(capacity), counts=np.zeros(2, np.int64),
        )  # fmt: skip
        busy = events.Ranks(_filled(ranks, -1), _filled(sides), _filled(sides), _filled(ranks), _filled(ranks))
        run(
            events.run_events,
            (graph, jobs, shared, rules),
            (
                progress, ends, _heap(count), _running(count), _flows(count), _places(count, width),
                _links(shared), busy, log,
            ),
            work=tasks + _EFFORT * count,
        )  # fmt: skip
        done, changes = log.counts.tolist()
        if changes <= capacity:
            break
        capacity = changes  # rare: the log is too short
    number = np.append(shared.number, -1).astype(np.int32)
    rates = Rates(
        task=jobs.task[log.job[:changes]],
        time_ns=log.time[:changes],
        rate=log.rate[:changes],
        limit=number[log.limit[:changes]],
    )
    return Ran(progress.start, ends.end, progress.cause, progress.waiting, done), rates


def _heap(count: int) -> Heap:
    return Heap(
        item=_filled(count), place=_filled(count, OUTSIDE), time=_filled(count, of=np.int64), size=_filled(1)
    )


def _running(count: int) -> events.Running:
    return events.Running(
        slot=_filled(count, -1), due=_filled(count, of=np.int64), job=_filled(count),
        remaining=_filled(count, of=np.int64), since=_filled(count, of=np.int64), unused=_filled(count),
        used=_filled(3),
    )  # fmt: skip


def _flows(count: int) -> Flows:
    return Flows(
        links=_filled(count), cap=_filled(count, of=np.int64), rate=_filled(count, of=np.int64),
        fair=_filled(count, of=np.int64), limit=_filled(count), free=_filled(count),
        mark=_filled(count, of=np.int8),
    )  # fmt: skip


def _places(count: int, width: int) -> Places:
    link, weight, flow, after, before = (_filled(count * width) for _ in range(5))
    return Places(link=link, weight=weight, flow=flow, after=after, before=before, width=width)


def _links(shared: events.SharedLinks) -> LinkCapacities:
    count = shared.rate_kbps.size
    load, members, room, wanted, share = (_filled(count, of=np.int64) for _ in range(5))
    return LinkCapacities(
        capacity=shared.rate_kbps * FINER, head=_filled(count, -1), tail=_filled(count, -1),
        load=load, members=members, room=room, wanted=wanted, share=share,
        touched=_filled(count), mark=_filled(count, of=np.int8),
    )  # fmt: skip


def _filled(size: int, value: int = 0, of: type[np.integer] = np.int32) -> np.ndarray:
    """Return a column of one value; zeros take no memory until they are written."""
    return np.full(size or 1, value, dtype=of) if value else np.zeros(size or 1, dtype=of)


class Ran(NamedTuple):
    """Times and causes of tasks, and how many ran."""

    start_ns: Int64s
    end_ns: Int64s
    cause: Int32s
    """The task whose end (or start) released it, -1 for none."""
    waiting: Int32s
    """Predecessors that did not end: above zero for tasks in a deadlock."""
    done: int


def run_graph(graph: TaskGraph) -> Ran:
    """Run the sweep."""
    tasks = new_tasks(graph.tasks)
    rendezvous = int((graph.next_peer >= 0).any())
    done = run(sweep_kernels.sweep, (graph_record(graph), rendezvous), (tasks,), work=graph.tasks)
    return Ran(tasks.start, tasks.start + graph.duration_ns, tasks.cause, tasks.waiting, done)


def graph_record(graph: TaskGraph) -> sweep_kernels.Graph:
    """Return the columns of a task graph as a record of kernels."""
    return sweep_kernels.Graph(
        duration=graph.duration_ns, lag=graph.lag_ns, following=graph.next, following_peer=graph.next_peer,
        edge_ptr=graph.edge_ptr, edge=graph.edge, sender_row=graph.sender_row, rows=graph.rows,
    )  # fmt: skip


def new_tasks(count: int) -> sweep_kernels.Tasks:
    """Return tasks of which none has begun."""
    waiting, ready = empty_columns(count, np.int32, np.int32)
    start, cause = empty_columns(count, np.int64, np.int32)
    waiting[:] = start[:] = 0
    cause[:] = -1
    return sweep_kernels.Tasks(waiting=waiting, start=start, cause=cause, ready=ready)


def steady_rates(paths: Paths, links: Links) -> Int64s:
    """Return the max-min fair rate in kB/s of one message on the first path of each pair, all at the same time.

    A pair that nothing limits has rate 0.
    """
    first = np.arange(0, len(paths), paths.ways, dtype=np.int32)
    alone = paths.rate_kbps[first]
    shared = shared_links(paths, links, Sharing.MAX_MIN, prune=False)
    moving = np.flatnonzero((alone != UNLIMITED) & (np.diff(shared.ptr)[first] > 0))
    count = moving.size
    rates = alone.copy()
    if not count:
        return rates
    zero, task = np.zeros(count, dtype=np.int64), np.arange(count, dtype=np.int32)
    none = np.full(count, -1, dtype=np.int32)
    graph = sweep_kernels.Graph(
        duration=zero, lag=zero, following=none, following_peer=none,
        edge_ptr=np.zeros(count + 1, dtype=np.int32), edge=none[:0], sender_row=none, rows=count,
    )  # fmt: skip
    jobs = sweep_kernels.Jobs(
        of_task=task, task=task, volume=zero + 2**60, full_rate=alone[moving] * FINER, overhead_ns=zero,
        path=first[moving], kind=zero.astype(np.int8), rank=zero.astype(np.int32), peer=zero.astype(np.int32),
    )  # fmt: skip
    _, changes = run_jobs(graph, 1, jobs, shared, Contention())
    initial = changes.time_ns == 0
    rates[moving[changes.task[initial]]] = changes.rate[initial] // FINER
    return rates
