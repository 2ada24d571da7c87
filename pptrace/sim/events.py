"""Run a task graph in order of time, where links are shared or work slows what runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.record import dataclass
from pptrace.schedule.kernels.heap import OUTSIDE, Heap
from pptrace.sim.contention import Sharing
from pptrace.sim.jobs import FINER
from pptrace.sim.kernels import events, meeting, settling
from pptrace.sim.kernels.fair import Flows, Links, Places
from pptrace.sim.sweep import Ran, graph_record, new_tasks

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
    ran, log = _run(graph, jobs, shared, contention, room)
    changes = int(log.counts[1])
    if changes > room:
        ran, log = _run(graph, jobs, shared, contention, changes)
    number = np.append(shared.number, -1).astype(np.int32)
    return ran, Rates(
        task=jobs.task[log.job[:changes]],
        at_ns=log.at[:changes],
        rate=log.rate[:changes],
        limit=number[log.limit[:changes]],
    )


def _run(
    graph: TaskGraph, jobs: Jobs, shared: SharedLinks, contention: Contention, room: int
) -> tuple[Ran, events.Log]:
    tasks, count, ranks = graph.tasks, len(jobs), graph.placement.ranks
    progress = new_tasks(tasks)
    ends = settling.Ends(_filled(tasks, of=np.int64), _filled(tasks, of=np.int64))
    log = events.Log(
        _filled(room), _filled(room, of=np.int64), _filled(room, of=np.int64), _filled(room), np.zeros(2, np.int64)
    )
    sides = 2 * count if contention.slows else 1
    busy = meeting.Ranks(_filled(ranks, -1), _filled(sides), _filled(sides), _filled(ranks), _filled(ranks))
    paths = meeting.Paths(shared.ptr, shared.link, shared.weight)
    run(
        events.run_events,
        (graph_record(graph), _job_record(jobs, tasks), paths, _rules(contention)),
        (
            progress, ends, _heap(count), _running(count), _flows(count), _places(count, shared.width),
            _links(shared), busy, log,
        ),
        work=tasks + _EFFORT * count,
    )  # fmt: skip
    return Ran(progress.start, ends.end, progress.cause, progress.waiting, int(log.counts[0])), log


def _job_record(jobs: Jobs, tasks: int) -> settling.Jobs:
    of_task = np.full(tasks, -1, dtype=np.int32)
    of_task[jobs.task] = np.arange(len(jobs))
    return settling.Jobs(
        of_task=of_task, task=jobs.task, volume=jobs.volume, full_rate=jobs.full_rate, overhead=jobs.overhead_ns,
        path=jobs.path, sort=jobs.sort, rank=jobs.rank, peer=jobs.peer,
    )  # fmt: skip


def _rules(contention: Contention) -> events.Rules:
    return events.Rules(
        first_come=int(contention.links is Sharing.FIFO),
        slow_compute=contention.compute_permille,
        slow_communication=contention.communication_permille,
    )


def _heap(count: int) -> Heap:
    return Heap(
        item=_filled(count), place=_filled(count, OUTSIDE), time=_filled(count, of=np.int64), size=_filled(1)
    )


def _running(count: int) -> meeting.Running:
    return meeting.Running(
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


def _links(shared: SharedLinks) -> Links:
    count = shared.rate_kbps.size
    load, members, room, wanted, share = (_filled(count, of=np.int64) for _ in range(5))
    return Links(
        capacity=shared.rate_kbps * FINER, head=_filled(count, -1), tail=_filled(count, -1),
        load=load, members=members, room=room, wanted=wanted, share=share,
        touched=_filled(count), mark=_filled(count, of=np.int8),
    )  # fmt: skip


def _filled(size: int, value: int = 0, of: type[np.integer] = np.int32) -> np.ndarray:
    # Zeros take no memory until they are written.
    return np.full(size or 1, value, dtype=of) if value else np.zeros(size or 1, dtype=of)
