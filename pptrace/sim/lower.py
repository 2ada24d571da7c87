"""Lowering: an issue order, its costs and a network become a task graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.kernel import run
from pptrace.model.action import Kind
from pptrace.network.check import check_links, check_paths, check_reachable
from pptrace.schedule.deadlock import explain_deadlock
from pptrace.schedule.issue_order import IssueOrder, with_messages, with_sends
from pptrace.schedule.neighbours import neighbours
from pptrace.sim.graph import TaskGraph
from pptrace.sim.kernels import lowering
from pptrace.sim.lanes import Lanes, assign_lanes
from pptrace.sim.limits import check_total
from pptrace.sim.policy import Policy, PolicyName
from pptrace.timeline.timeline import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.model.columns import Int8s, Int32s, Int64s
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network, Paths
    from pptrace.schedule.table import Schedule
    from pptrace.sim.action_times import ActionTimes

__all__ = ["lower"]

_NONE = np.zeros(0, dtype=np.int32)
_NO_RECEIVE, _OWN_TASK, _RENDEZVOUS = 0, 1, 2
_RECEIVE = {PolicyName.BLOCKING: _OWN_TASK, PolicyName.ORDERED: _RENDEZVOUS, PolicyName.BATCHED: _RENDEZVOUS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Pairs of ranks with messages, and what lies between them."""

    source: Int32s
    target: Int32s
    first_path: Int32s
    paths: Paths


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Where the issued rows went, and their columns there."""

    place: Int32s
    pos_f: Int32s
    pos_g: Int32s
    recv_at: Int32s
    columns: dict[str, Any]


def lower(
    schedule: Schedule,
    workload: Workload,
    network: Network,
    policy: Policy,
    *,
    barrier: bool = False,
    stage_replicas: bool = False,
    times: ActionTimes | None = None,
) -> TaskGraph:
    """Return the task graph of a schedule that has been validated, as have its costs.

    With ``barrier``, no gradient is reduced before every rank has computed its last one; with ``stage_replicas``,
    none before all ranks that hold its stage have. Ranks meet when all have computed.

    Raises:
        DeadlockError: a rank needs what it computes later itself, or no order of messages exists.
        ScheduleError: the times could pass 2**62 ns.
        PluginError: the network's answer cannot be used.
    """
    issued = with_messages(schedule, policy.receive) if policy.has_receives else with_sends(schedule)
    lanes = assign_lanes(issued, policy)
    pairs = _pairs(issued, lanes, network)
    placed = _place(issued, lanes, workload, policy, pairs)
    if times is not None:
        times.laid_over(placed.columns, issued.placement)
    meetings = _meetings(lanes, placed.columns["kind"]) if workload.sync_ns else _NONE
    placed.columns["duration_ns"][meetings] = workload.sync_ns
    check_total(schedule.ranks, placed.columns["duration_ns"], placed.columns["lag_ns"])
    return _link(schedule, issued, lanes, placed, policy, pairs, meetings, barrier=barrier, holders=stage_replicas)


def _pairs(issued: IssueOrder, lanes: Lanes, network: Network) -> _Pairs:
    """Ask the network about every pair of ranks with a message."""
    ranks = issued.placement.ranks
    sends = np.flatnonzero((issued.kind == Kind.SEND_F) | (issued.kind == Kind.SEND_B))
    rank = np.searchsorted(issued.row_ptr, sends, side="right") - 1
    used = np.zeros(ranks * ranks, dtype=bool)
    used[rank * ranks + lanes.peer[sends]] = True
    pairs = np.flatnonzero(used)
    source, target = (pairs // ranks).astype(np.int32), (pairs % ranks).astype(np.int32)
    paths, links = network.paths(source, target), network.links
    check_links(links)
    check_paths(paths, pairs.size, len(links))
    check_reachable(paths, source, target)
    first_path = np.zeros(ranks * ranks, dtype=np.int32)
    first_path[pairs] = np.arange(pairs.size) * paths.ways
    return _Pairs(source=source, target=target, first_path=first_path, paths=paths)


def _place(issued: IssueOrder, lanes: Lanes, workload: Workload, policy: Policy, pairs: _Pairs) -> _Rows:
    placement, rows = issued.placement, len(issued)
    cells = placement.stages * placement.units
    edges, paths = placement.edges.shape[0], pairs.paths
    if paths.overhead_ns.size == 0:
        overhead = latency = rate = np.zeros(1, dtype=np.int64)
    else:
        overhead, latency, rate = paths.overhead_ns, paths.latency_ns, paths.rate_kbps
    messages = edges * placement.units * 2
    receive = _RECEIVE.get(policy.name, _NO_RECEIVE)
    place = np.empty(rows, dtype=np.int32)
    cursor = lanes.first.copy()
    positions = [
        np.full(size, -1, dtype=np.int32) for size in (cells, cells, messages, messages if receive else 0)
    ]
    columns: dict[str, Any] = {"kind": np.empty(rows, dtype=np.int8)}
    for name in ("stage", "unit", "span", "braid"):
        columns[name] = np.empty(rows, dtype=np.int32)
    columns["size_bytes"] = np.empty(rows, dtype=np.int64)
    for name in ("path", "fork"):
        columns[name] = np.empty(rows, dtype=np.int32)
    for name in ("collective_ns", "duration_ns", "lag_ns"):
        columns[name] = np.empty(rows, dtype=np.int64)
    run(
        lowering.place_rows,
        (
            issued.row_ptr, issued.kind, issued.stage, issued.unit, issued.span, issued.braid, issued.edge,
            lanes.key, lanes.peer, placement.stages, placement.units, edges,
            _durations(workload), _collectives(workload), workload.boundary_bytes,
            pairs.first_path, paths.ways, overhead, latency, rate, receive,
            policy.largest_eager,
        ),
        (cursor, place, *positions, *columns.values()),
        work=rows,
    )  # fmt: skip
    return _Rows(place=place, pos_f=positions[0], pos_g=positions[1], recv_at=positions[3], columns=columns)


def _durations(workload: Workload) -> Int64s:
    """Return durations by kind and stage, flat."""
    table = np.zeros((len(Kind), workload.stages), dtype=np.int64)
    table[Kind.F], table[Kind.B] = workload.f_ns, workload.b_ns
    table[Kind.I], table[Kind.W] = workload.i_ns, workload.w_ns
    table[Kind.REDUCE_GRAD], table[Kind.OPTIMIZER] = workload.reduce_ns, workload.optimizer_ns
    table[Kind.OFFLOAD], table[Kind.RELOAD] = workload.offload_ns, workload.reload_ns
    table[Kind.RECOMPUTE], table[Kind.UNSHARD] = workload.recompute_ns, workload.unshard_ns
    return table.ravel()


def _collectives(workload: Workload) -> Int64s:
    table = np.zeros((len(Kind), workload.stages), dtype=np.int64)
    table[Kind.F], table[Kind.B] = workload.f_collective_ns, workload.b_collective_ns
    table[Kind.I], table[Kind.W] = workload.i_collective_ns, workload.w_collective_ns
    return table.ravel()


def _link(
    schedule: Schedule,
    issued: IssueOrder,
    lanes: Lanes,
    placed: _Rows,
    policy: Policy,
    pairs: _Pairs,
    meetings: Int32s,
    *,
    barrier: bool,
    holders: bool,
) -> TaskGraph:
    rows, batched = len(issued), policy.name is PolicyName.BATCHED
    twin, launch_next, source, target = _edges(schedule, issued, lanes, placed, policy)
    tasks = rows + launch_next.size
    kind = placed.columns["kind"]
    behind = np.flatnonzero(kind == Kind.REDUCE_GRAD).astype(np.int32) if barrier else meetings
    if behind.size:
        before = _last_computations(lanes, kind)
        source = np.concatenate([source, before, np.full(behind.size, tasks, dtype=np.int32)])
        target = np.concatenate([target, np.full(before.size, tasks, dtype=np.int32), behind])
        tasks += 1
    if holders and not barrier:
        before, behind = _between_holders(issued, lanes, placed.columns)
        source, target = np.concatenate([source, before]), np.concatenate([target, behind])
    following = np.full(tasks, -1, dtype=np.int32)
    following_peer = following.copy()
    run(lowering.chain_tasks, (lanes.lane_ptr, twin, int(batched)), (following, following_peer), work=rows)
    following[rows : rows + launch_next.size] = launch_next
    ptr, edge = np.zeros(tasks + 1, dtype=np.int32), np.zeros(source.size, dtype=np.int32)
    run(lowering.sort_edges, (source, target, source.size), (ptr, edge), work=rows)
    if tasks > rows:
        extra = np.zeros(tasks - rows, dtype=np.int64)
        for name in ("duration_ns", "lag_ns"):
            placed.columns[name] = np.concatenate([placed.columns[name], extra])
    return TaskGraph(
        placement=issued.placement, paths=pairs.paths, source=pairs.source, target=pairs.target,
        lane_rank=lanes.lane_rank, lane_stream=lanes.lane_stream, lane_peer=lanes.lane_peer,
        lane_ptr=lanes.lane_ptr, twin=twin, next=following, next_peer=following_peer, edge_ptr=ptr, edge=edge,
        **placed.columns,
    )  # fmt: skip


def _meetings(lanes: Lanes, kind: Int8s) -> Int32s:
    """Return the row in which each rank meets the others: the last of its data-parallel stream."""
    streams = np.flatnonzero(lanes.lane_stream == Stream.DATA_PARALLEL)
    last = lanes.lane_ptr[streams + 1] - 1
    rows: Int32s = last[kind[last] == Kind.REDUCE_GRAD].astype(np.int32)
    return rows


def _last_computations(lanes: Lanes, kind: Int8s) -> Int32s:
    """Return each rank's last compute row of the pipeline."""
    compute = np.flatnonzero(lanes.lane_stream == Stream.COMPUTE)
    last: list[int] = []
    for lane in compute:
        low, high = int(lanes.lane_ptr[lane]), int(lanes.lane_ptr[lane + 1])
        while high > low and kind[high - 1] == Kind.OPTIMIZER:
            high -= 1
        if high > low:
            last.append(high - 1)
    return np.array(last, dtype=np.int32)


def _between_holders(issued: IssueOrder, lanes: Lanes, columns: Mapping[str, Any]) -> tuple[Int32s, Int32s]:
    """Return edges to reductions of a stage from the last backward of it on the other ranks that hold it."""
    kind, stage, stages = columns["kind"], columns["stage"], issued.placement.stages
    holders = issued.placement.copies()
    reductions = np.flatnonzero(kind == Kind.REDUCE_GRAD)
    reductions = reductions[holders.sum(axis=0)[stage[reductions]] > 1]
    if not reductions.size:
        return _NONE, _NONE
    rank = np.repeat(lanes.lane_rank, np.diff(lanes.lane_ptr))
    backward = np.flatnonzero((kind >= Kind.B) & (kind <= Kind.W))
    last = np.full(holders.shape, -1, dtype=np.int64)
    np.maximum.at(last.ravel(), rank[backward] * stages + stage[backward], backward)
    which, other = np.nonzero(last.T[stage[reductions]] >= 0)
    away = other != rank[reductions[which]]
    which, other = which[away], other[away]
    return last[other, stage[reductions[which]]].astype(np.int32), reductions[which].astype(np.int32)


def _edges(
    schedule: Schedule, issued: IssueOrder, lanes: Lanes, placed: _Rows, policy: Policy
) -> tuple[Int32s, Int32s, Int32s, Int32s]:
    """Return each row's twin, the chain of batches, and the source and target of every edge."""
    placement, rows, near = issued.placement, len(issued), neighbours(issued.placement)
    batched = policy.name is PolicyName.BATCHED
    tasks = rows + (2 * lanes.groups if batched else 0)
    copies = int(((issued.kind == Kind.OFFLOAD) | (issued.kind == Kind.RELOAD)).any())
    bound = _most_edges(issued, batched=batched)
    twin = np.full(rows, -1, dtype=np.int32)
    stage_scratch = np.zeros(placement.stages, dtype=np.int32)
    offload = np.full(placement.stages * placement.units if copies else 0, -1, dtype=np.int32)
    launch_next = np.full(tasks - rows, -1, dtype=np.int32)
    source, target = np.empty(bound, dtype=np.int32), np.empty(bound, dtype=np.int32)
    problem = np.zeros(1, dtype=np.int64)
    edges = run(
        lowering.link_rows,
        (
            issued.row_ptr, issued.kind, issued.stage, issued.unit, issued.span, issued.edge,
            lanes.group, placed.place, placed.pos_f, placed.pos_g, placed.recv_at,
            placed.columns["size_bytes"], placed.columns["fork"],
            placement.edges[:, 0].copy(), placement.edges[:, 1].copy(),
            near.pred_ptr, near.pred, near.succ_ptr, near.succ,
            placement.stage_rank.ravel(), placement.unit_route,
            placement.stages, placement.units, placement.edges.shape[0], rows, lanes.mode,
            _RECEIVE.get(policy.name, _NO_RECEIVE), int(batched), policy.largest_eager,
        ),
        (twin, stage_scratch, stage_scratch.copy(), offload, launch_next, source, target, problem),
        work=rows,
    )  # fmt: skip
    if problem[0]:
        raise explain_deadlock(schedule)
    return twin, launch_next, source[:edges], target[:edges]


def _most_edges(issued: IssueOrder, *, batched: bool) -> int:
    """Return a bound of the edges that no stream implies: forks, twins and consumers of each row."""
    away = issued.kind >= Kind.SEND_F
    rows = int(np.count_nonzero(away))
    widest = int(issued.span.max(initial=1))
    units = rows if widest == 1 else int(issued.span[away].sum())
    own = 0 if int(issued.kind.max(initial=0)) <= Kind.RECV_B else 2 * (len(issued) - rows)
    return 2 * rows + 2 * units + (2 * rows if batched else 0) + own
