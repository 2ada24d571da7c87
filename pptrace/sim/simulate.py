"""Simulate one step: a schedule, its costs, a network and a policy become a timeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.network.flat import ideal
from pptrace.schedule.validate import validate, validate_structure
from pptrace.sim.deadlock import explain_stuck
from pptrace.sim.epilogue import with_epilogue
from pptrace.sim.kernels import running
from pptrace.sim.limits import check_costs
from pptrace.sim.lower import lower
from pptrace.sim.policy import Policy
from pptrace.sim.sweep import run_graph
from pptrace.timeline.timeline import ROW_COLUMNS, Timeline

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.table import Schedule
    from pptrace.sim.graph import TaskGraph

__all__ = ["simulate"]


def simulate(
    schedule: Schedule,
    workload: Workload,
    network: Network | None = None,
    policy: Policy | None = None,
    *,
    overlap_reduction: bool = True,
) -> Timeline:
    """Simulate ``schedule`` and return its timeline.

    Args:
        schedule: the table; it is validated first.
        workload: what the actions cost.
        network: what lies between the ranks; ideal by default.
        policy: how messages are issued; ``async`` by default.
        overlap_reduction: whether a stage's gradients are reduced over its replicas as soon as they
            are whole, or only when every rank has finished.

    Raises:
        ScheduleError: the schedule breaks a law of tables, or the costs are not for it.
        DeadlockError: the schedule deadlocks, or does so under this policy.
    """
    policy = policy or Policy()
    # Streams find every deadlock but a braid's with itself: there its members follow one another.
    check = validate if (schedule.braid >= 0).any() else validate_structure
    check(schedule)
    check_costs(schedule, workload)
    whole = with_epilogue(schedule, workload, overlap=overlap_reduction)
    graph = lower(whole, workload, network or ideal(), policy, barrier=not overlap_reduction)
    start, end, cause, waiting, done = run_graph(graph)
    if done < graph.tasks - int((graph.twin >= 0).sum()):
        raise explain_stuck(whole, workload, network or ideal(), policy, graph, waiting)
    return _timeline(graph, start, end, cause)


def _timeline(graph: TaskGraph, start: Int64s, end: Int64s, cause: Int32s) -> Timeline:
    rows = graph.rows
    ghosts = graph.ghosts()
    duration, lag = graph.duration_ns[:rows], graph.lag_ns[:rows]
    start, end, cause = start[:rows], end[:rows], _row_causes(graph, cause)
    for column in (start, end, cause, duration, lag):
        column[ghosts] = column[graph.twin[ghosts]]
    enter = np.empty(rows, dtype=np.int64)
    run(running.enter_times, (graph.lane_ptr, graph.twin, graph.fork, start, end), (enter,), work=rows)
    timeline = Timeline(
        placement=graph.placement, lane_rank=graph.lane_rank, lane_stream=graph.lane_stream,
        lane_peer=graph.lane_peer, lane_ptr=graph.lane_ptr, kind=graph.kind, stage=graph.stage,
        unit=graph.unit, span=graph.span, enter_ns=enter, start_ns=start, end_ns=end, lag_ns=lag,
        uncontended_ns=duration, collective_ns=graph.collective_ns, size_bytes=graph.size_bytes,
        cause=cause, braid=graph.braid,
    )  # fmt: skip
    return _in_time_order(timeline) if graph.tasks > rows or ghosts.size else timeline


def _in_time_order(timeline: Timeline) -> Timeline:
    """Sort lanes that a batch filled in the order of launches into the order of time."""
    lane = timeline.lane_of_row()
    same = lane[1:] == lane[:-1]
    if not (same & (timeline.start_ns[1:] < timeline.start_ns[:-1])).any():
        return timeline
    order = np.lexsort((timeline.end_ns, timeline.start_ns, lane))
    renamed = np.empty(order.size + 1, dtype=np.int32)
    renamed[order] = np.arange(order.size)
    renamed[-1] = -1
    columns = {name: getattr(timeline, name)[order] for name in ROW_COLUMNS}
    columns["cause"] = renamed[columns["cause"]]
    return replace(timeline, **columns)


def _row_causes(graph: TaskGraph, cause: Int32s) -> Int32s:
    """Replace causes that are no rows (launches, joins, barriers) by the row that caused those."""
    rows = graph.rows
    own = cause[:rows]
    while graph.tasks > rows and (own >= rows).any():
        outside = own >= rows
        own[outside] = cause[own[outside]]
    return own
