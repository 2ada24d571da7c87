"""Simulation of a table with costs, a network and a message policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import PolicyName, Receive
from pptrace.errors import DeadlockError, ScheduleError
from pptrace.memo import memoized
from pptrace.network.contract import Flat, Paths, transfer_ns
from pptrace.sim.cross_rank import with_epilogue
from pptrace.sim.engines import (
    FINER,
    Contention,
    find_jobs,
    graph_record,
    new_log,
    run_graph,
    run_jobs,
    run_replicas,
    shared_links,
)
from pptrace.sim.kernels import sweep as sweep_kernels
from pptrace.sim.lowering import lower, lower_for_costs
from pptrace.sim.streams import check_costs, check_total
from pptrace.steps.columns import count_set, empty_columns
from pptrace.steps.dependencies import cycle_text
from pptrace.steps.kinds import SENDS, WEIGHT_GRADIENTS
from pptrace.steps.message_calls import Policy
from pptrace.steps.validation import validate, validate_partial, validate_structure
from pptrace.timeline.idle import WHOLE_KEY
from pptrace.timeline.timeline import ROW_COLUMNS, Timeline
from pptrace.timeline.trim import steady_step
from pptrace_kernel import halves, run_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.network.contract import Links, Network
    from pptrace.sim.engines import Ran
    from pptrace.sim.kernels.events import Log
    from pptrace.sim.task_graph import ActionTimes, TaskGraph
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload
    from pptrace.timeline.link_use import Traffic


class Simulated(NamedTuple):
    """A simulated step with the traffic of its messages."""

    timeline: Timeline
    """Every slice; of a table with several updates, the slices between two of them."""
    traffic: Traffic | None
    """Links and rates of the messages; None if the network has no links."""


def simulate(
    schedule: Schedule,
    workload: Workload,
    network: Network | None = None,
    policy: Policy | None = None,
    *,
    contention: Contention | None = None,
    overlap_reduction: bool = True,
    stage_replicas: bool = False,
    times: ActionTimes | None = None,
    partial: bool = False,
) -> Timeline:
    """Simulate ``schedule`` and return its timeline.

    Args:
        schedule: the table; it is validated first.
        workload: costs of the actions.
        network: network between the ranks; ideal by default.
        policy: how messages are issued; ``async`` by default.
        contention: how messages share links, and how computation and communication slow each other; by default
            messages share links max-min fairly, and nothing slows computation.
        overlap_reduction: whether a stage's gradients are reduced over its replicas as soon as they
            are complete, or only when every rank has finished.
        stage_replicas: whether ranks that hold the same stage reduce its gradients between them.
        times: times of single actions, which override the workload and the network.
        partial: whether actions of unrecorded ranks may be missing; their results are available at time 0.

    Raises:
        ScheduleError: the schedule is invalid, or the costs do not match it.
        DeadlockError: the schedule deadlocks, alone or under this policy.
        PluginError: the network returns invalid paths.
    """
    lowered = lower_step(
        schedule, workload, network, policy, contention=contention, overlap_reduction=overlap_reduction,
        stage_replicas=stage_replicas, segmented=times is None, partial=partial,
    )  # fmt: skip
    return lowered.run(times).timeline


class LoweredStep(Struct, frozen=True):
    """A task graph that runs with one set of times after another."""

    schedule: Schedule
    """The table, with the end of the step."""
    workload: Workload
    """Costs of actions."""
    network: Network
    """The network between ranks."""
    policy: Policy
    """The message policy."""
    contention: Contention
    """Effects of simultaneous messages and computations on each other."""
    overlap_reduction: bool
    """Whether gradients are reduced as soon as they are complete."""
    graph: TaskGraph
    """The tasks."""

    def run(self, times: ActionTimes | None = None) -> Simulated:
        """Run the tasks, with other times of single actions where given, and return the step.

        Raises:
            CostError: the times could exceed 2**62 ns.
            DeadlockError: the schedule deadlocks.
        """
        simulated = self.run_table(times)
        if self.schedule.updates == 1:
            return simulated
        part, traffic = steady_step(simulated.timeline), simulated.traffic
        if traffic is not None:
            traffic = traffic.of_rows(part.rows, part.start_ns, part.end_ns)
        return Simulated(timeline=part.timeline, traffic=traffic)

    def run_table(self, times: ActionTimes | None = None) -> Simulated:
        """Run the tasks and return all slices, those of each update; otherwise as :meth:`run`."""
        graph, links = self.graph, self.network.links
        if times is not None:
            graph = graph.with_times(times)
            check_total(graph.placement.ranks, graph.duration_ns, graph.lag_ns)
        ran, log = _run(graph, links, self.contention)
        receiver_rows = count_set(graph.sender_row)
        if ran.done < graph.tasks - receiver_rows:
            raise explain_stuck(self.schedule, self.workload, self.network, self.policy, graph, ran.waiting)
        ran = replace(ran, waiting=ran.waiting[:0].copy())  # its memory becomes a column of the timeline
        timeline, in_order = _timeline(graph, ran, has_receiver_rows=receiver_rows > 0)
        if self.workload.released_ns.any() or self.workload.meeting_ns.size:
            complete_ns = _complete_ns(timeline, overlap=self.overlap_reduction)
            timeline = replace(timeline, provenance={WHOLE_KEY: complete_ns})
        order = None if in_order else np.lexsort((timeline.end_ns, timeline.start_ns, timeline.lane_of_row()))
        return Simulated(
            timeline=timeline if order is None else _reorder_rows(timeline, order),
            traffic=_traffic(graph, links, log, order) if len(links) else None,
        )


def lower_step(
    schedule: Schedule,
    workload: Workload,
    network: Network | None = None,
    policy: Policy | None = None,
    *,
    contention: Contention | None = None,
    overlap_reduction: bool = True,
    stage_replicas: bool = False,
    segmented: bool = True,
    partial: bool = False,
) -> LoweredStep:
    """Validate and lower a schedule; see :func:`simulate`. Without ``segmented``, each action is one row."""
    policy, network = policy or Policy(), network or Flat()
    contention = contention or Contention()
    # Streams reveal every deadlock except that of a pair with itself.
    check = validate_partial if partial else validate if schedule.has_pairs else validate_structure
    memoized(lambda: check(schedule), ("validated", partial), schedule, rows=len(schedule))
    workload = _with_link_times(workload, network.links)
    check_costs(schedule, workload)
    overlap_reduction |= schedule.updates > 1  # else a reduction would wait for backwards that follow it
    table = with_epilogue(schedule, workload, overlap=overlap_reduction)
    graph = lower(
        table, workload, network, policy, barrier=not overlap_reduction, stage_replicas=stage_replicas,
        slows=contention.slows, segmented=segmented,
    )  # fmt: skip
    return LoweredStep(
        schedule=table, workload=workload, network=network, policy=policy, contention=contention,
        overlap_reduction=overlap_reduction, graph=graph,
    )  # fmt: skip


_MOST_TOGETHER = 2**20
"""Actions of a table up to which times of eight replicas take less memory than a step."""


def run_together(
    schedule: Schedule,
    costs: Sequence[Workload],
    columns: Int32s,
    network: Network,
    policy: Policy,
    contention: Contention,
) -> tuple[Timeline, Int64s] | None:
    """Run replicas of a table that differ only in the times of actions and messages.

    Args:
        schedule: the table.
        costs: costs of equal microbatches.
        columns: the costs of each microbatch, and of actions without one, shape (replicas, microbatches + 1).
        network: as for :func:`simulate`.
        policy: as for :func:`simulate`.
        contention: as for :func:`simulate`.

    Returns:
        The timeline of any of them, without times, and when the gradients of each stage are complete, shape
        (replicas, stages). None if tasks depend on times: with segments, actions of several microbatches, shared
        links, or messages that wait for receivers by their size. None if the schedule deadlocks, or is too large.

    Raises:
        ScheduleError: as for :func:`simulate`.
        PluginError: the network returns invalid paths.
    """
    if (
        any(each.segments for each in costs) or schedule.has_pairs or (schedule.span > 1).any()
        or schedule.updates > 1 or contention.slows or policy.largest_eager >= 0
        or len(schedule) > _MOST_TOGETHER
    ):  # fmt: skip
        return None
    validate_structure(schedule)
    for each in costs:
        check_costs(schedule, each)
    graph, rows = lower_for_costs(with_epilogue(schedule, costs[0], overlap=True), costs[0], network, policy)
    if np.diff(shared_links(graph.paths, network.links, contention.links).ptr).any():
        return None
    duration_ns, lag_ns = times = rows.times(costs)
    longest_ns, longest_lag_ns = duration_ns.max(axis=1)[rows.row], lag_ns.max(axis=1)[rows.row]
    check_total(schedule.ranks, longest_ns, longest_lag_ns)
    stage = np.where(WEIGHT_GRADIENTS.mask(graph.kind), graph.stage, -1)
    gradients_ns = run_replicas(graph, rows.row, times, columns, stage)
    if gradients_ns is None:
        return None
    lowered = LoweredStep(
        schedule=schedule, workload=costs[0], network=network, policy=policy, contention=contention,
        overlap_reduction=True, graph=graph,
    )  # fmt: skip
    return lowered.run().timeline, gradients_ns


_NO_CHANGES = new_log(0)


def _run(graph: TaskGraph, links: Links, contention: Contention) -> tuple[Ran, Log]:
    """Run the event kernel where anything is shared or slowed, else the sweep."""
    if contention.slows or len(links):
        shared = shared_links(graph.paths, links, contention.links)
        jobs = find_jobs(graph, shared, contention)
        if jobs.task.size:
            return run_jobs(graph_record(graph), graph.placement.ranks, jobs, shared, contention)
    return run_graph(graph), _NO_CHANGES


def _timeline(graph: TaskGraph, ran: Ran, *, has_receiver_rows: bool) -> tuple[Timeline, bool]:
    """Return the timeline in the order of the graph, and whether its rows are in the order of time.

    Rows of batches are in the order of launches, which may differ.
    """
    rows = graph.rows
    duration, lag = graph.duration_ns[:rows], graph.lag_ns[:rows]
    start, end, cause = ran.start_ns[:rows], ran.end_ns[:rows], _row_causes(graph, ran.cause)
    (enter,) = empty_columns(rows, np.int64)
    sender_row = graph.sender_row if has_receiver_rows else graph.sender_row[:0]
    changed = (start, end, cause, enter)
    lanes, ranks = (graph.lane_rank, graph.lane_ptr), halves(graph.placement.ranks, work=rows)
    disordered = run_parts(sweep_kernels.enter_times, ranks, (*lanes, graph.fork, sender_row), changed, work=rows)
    in_order = not any(disordered)
    timeline = Timeline(
        placement=graph.placement, lane_rank=graph.lane_rank, lane_stream=graph.lane_stream,
        lane_peer=graph.lane_peer, lane_ptr=graph.lane_ptr, **graph.cells._asdict(),
        enter_ns=enter, start_ns=start, end_ns=end, lag_ns=lag, uncontended_ns=duration,
        collective_ns=graph.collective_ns, size_bytes=graph.size_bytes, cause=cause, parts=graph.parts,
    )  # fmt: skip
    return timeline, in_order or (graph.tasks == rows and not has_receiver_rows)


def _complete_ns(timeline: Timeline, *, overlap: bool) -> list[int]:
    """Return when the gradients of each stage were complete or, without overlap, those of all stages."""
    complete_ns = np.zeros(timeline.placement.stages, dtype=np.int64)
    rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(timeline.kind))
    np.maximum.at(complete_ns, timeline.stage[rows], timeline.end_ns[rows])
    times: list[int] = (complete_ns if overlap else np.full_like(complete_ns, complete_ns.max())).tolist()
    return times


def _reorder_rows(timeline: Timeline, order: Int64s) -> Timeline:
    number = _new_row_numbers(order)
    columns = {name: getattr(timeline, name)[order] for name in ROW_COLUMNS}
    columns["cause"] = number[columns["cause"]]
    parts = None if timeline.parts is None else timeline.parts.of_rows(order)
    return replace(timeline, parts=parts, **columns)


def _new_row_numbers(order: Int64s) -> Int32s:
    """Return each row's new number, and -1 for -1."""
    number = np.empty(order.size + 1, dtype=np.int32)
    number[order] = np.arange(order.size)
    number[-1] = -1
    return number


def _traffic(graph: TaskGraph, links: Links, log: Log, order: Int64s | None) -> Traffic:
    from pptrace.timeline.link_use import Traffic

    path = np.where(SENDS.mask(graph.kind), graph.path, -1).astype(np.int32)
    if order is not None:
        path = path[order]
    row = log.task if order is None else _new_row_numbers(order)[log.task]
    by_row = np.argsort(row, kind="stable")
    return Traffic(
        links=links, paths=graph.paths, source=graph.source, target=graph.target, path=path,
        row=row[by_row], at_ns=log.time[by_row], rate_kbps=log.rate[by_row] // FINER, limit=log.limit[by_row],
    )  # fmt: skip


def _row_causes(graph: TaskGraph, cause: Int32s) -> Int32s:
    """Replace causes without a row (launches, joins, barriers) by the row that caused them."""
    rows = graph.rows
    row_cause = cause[:rows]
    while graph.tasks > rows and (row_cause >= rows).any():
        outside = row_cause >= rows
        row_cause[outside] = cause[row_cause[outside]]
    return row_cause


_SHOWN = 8


def _with_link_times(workload: Workload, links: Links) -> Workload:
    """Return the costs with the uncontended time of segments over links, latency included.

    Raises:
        ScheduleError: the network has no link of that name.
    """

    def over(segment: Segment) -> Segment:
        if not segment.link:
            return segment
        if segment.link not in links.name:
            known = f"known: {', '.join(links.name[:_SHOWN])}" if len(links) else "it has none"
            raise ScheduleError(
                f"segment {segment.name} goes over link {segment.link!r}, which the network lacks; {known}"
            )
        link = links.name.index(segment.link)
        path = Paths.along(links, [0, 1], [link])
        transfer = transfer_ns(np.array([segment.size_bytes]), path.overhead_ns, path.rate_kbps)
        return replace(segment, duration_ns=int(transfer[0] + path.latency_ns[0]))

    by_kind = workload.segments
    if not any(part.link for stages in by_kind.values() for parts in stages for part in parts):
        return workload
    segments = {kind: [tuple(map(over, parts)) for parts in stages] for kind, stages in by_kind.items()}
    classes = tuple(_with_link_times(costs, links) for costs in workload.classes)
    return replace(workload, segments={}, classes=classes).segmented(segments)


def explain_stuck(
    schedule: Schedule, workload: Workload, network: Network, policy: Policy, graph: TaskGraph, waiting: Int32s
) -> DeadlockError:
    """Return the error for a graph in which tasks with ``waiting`` above zero did not run."""
    cycle = [name for task in _cycle(graph, waiting) if (name := _name(graph, task))]
    remedy = "; change the order on one of these ranks"
    if policy.name is PolicyName.ORDERED and not policy.title:  # a plugin's policy has no eager size
        remedy = _eager_remedy(schedule, workload, network, policy, graph)
    elif policy.name is PolicyName.BATCHED and policy.program is None and policy.placing is Receive.DEFERRED:
        remedy += ", or receive earlier: --set p2p.receive=asap"
    elif policy.name is not PolicyName.ASYNC:
        remedy += ", or try p2p async"
    return DeadlockError(
        f"the schedule deadlocks under p2p policy {policy.label}: {cycle_text(cycle)}{remedy}",
        cycle=cycle,
        policy=policy.label,
    )


def _cycle(graph: TaskGraph, waiting: Int32s) -> list[int]:
    """Return tasks of which each waits for the next, and the last for the first."""
    tasks = np.arange(graph.tasks, dtype=np.int64)
    by_edge = np.repeat(tasks, np.diff(graph.edge_ptr))
    target = np.concatenate([graph.next, graph.next_peer, np.where(graph.edge < 0, ~graph.edge, graph.edge)])
    source = np.concatenate([tasks, tasks, by_edge])
    stuck = (target >= 0) & (waiting[target] > 0) & (waiting[source] > 0)
    predecessor = np.full(graph.tasks, -1, dtype=np.int64)
    predecessor[target[stuck]] = source[stuck]
    task = int(np.flatnonzero(waiting > 0)[0])
    seen: dict[int, int] = {}
    chain: list[int] = []
    while task not in seen:
        seen[task] = len(chain)
        chain.append(task)
        task = int(predecessor[task])
    return chain[seen[task] :]


def _name(graph: TaskGraph, task: int) -> str:
    """Return the rows of a task as text, ``""`` for a task without rows."""
    rows = [task, *np.flatnonzero(graph.sender_row == task).tolist()] if task < graph.rows else []
    ranks = graph.lane_rank[np.searchsorted(graph.lane_ptr, rows, side="right") - 1].tolist()
    return " with ".join(f"rank {rank}: {graph.action(row)}" for rank, row in zip(ranks, rows, strict=True))


def _eager_remedy(
    schedule: Schedule, workload: Workload, network: Network, policy: Policy, graph: TaskGraph
) -> str:
    for size in np.unique(graph.size_bytes[graph.path >= 0]).tolist():
        if size <= policy.eager_bytes:
            continue
        eager_graph = lower(schedule, workload, network, replace(policy, eager_bytes=size))
        if run_graph(eager_graph).done == eager_graph.tasks - eager_graph.receiver_rows().size:
            return f"; messages up to {size} B eager let it run: --set p2p.eager='{size} B'"
    return "; no eager size lets it run: reorder the receives (p2p.receive: asap) or use another policy"
