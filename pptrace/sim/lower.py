"""Lowering: an issue order, its costs and a network become a task graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.model.cells import CellColumns
from pptrace.model.columns import together
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import COMPUTE, Kind, present
from pptrace.model.workload import Workload
from pptrace.network.check import check_links, check_paths, check_reachable
from pptrace.schedule.deadlock import explain_deadlock
from pptrace.schedule.issue_order import IssueOrder, with_messages, with_sends
from pptrace.schedule.neighbours import StageGraph, graph_of
from pptrace.sim.graph import TaskGraph
from pptrace.sim.kernels import linking, placing
from pptrace.sim.kernels import rules as codes
from pptrace.sim.lanes import Lanes, assign_lanes
from pptrace.sim.limits import check_total
from pptrace.sim.needs import behind_all_ranks, behind_holders
from pptrace.sim.policy import Policy, PolicyName
from pptrace.sim.records import CostColumns, Found, Pairs, PartColumns, RouteColumns, Rules, TaskColumns
from pptrace.sim.segmented import Expansion, in_segments
from pptrace.timeline.timeline import LANE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s
    from pptrace.network.contract import Network, Paths
    from pptrace.schedule.table import Schedule
    from pptrace.sim.action_times import ActionTimes

__all__ = ["lower"]

_RECEIVE = {
    PolicyName.BLOCKING: codes.OWN_TASK,
    PolicyName.ORDERED: codes.RENDEZVOUS,
    PolicyName.BATCHED: codes.RENDEZVOUS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """Pairs of ranks with messages, what lies between them, and the paths of bytes over single links behind."""

    source: Int32s
    target: Int32s
    paths: Paths
    columns: RouteColumns


class _Rows(NamedTuple):
    """Where the issued rows went, and their columns there."""

    place: Int32s
    found: Found
    cells: CellColumns
    task: TaskColumns


class _Linked(NamedTuple):
    """What waits for what."""

    twin: Int32s
    """Each row's twin."""
    batch_next: Int32s
    """The chain of batches."""
    edges: Pairs
    """Those that no stream implies."""


def lower(
    schedule: Schedule,
    workload: Workload,
    network: Network,
    policy: Policy,
    *,
    barrier: bool = False,
    stage_replicas: bool = False,
    slows: bool = False,
    times: ActionTimes | None = None,
) -> TaskGraph:
    """Return the task graph of a schedule that has been validated, as have its costs.

    With ``barrier``, no gradient is reduced before every rank has computed its last one; with ``stage_replicas``,
    none before all ranks that hold its stage have. Ranks meet when all have computed. With ``slows``, computation
    and communication that run beside each other do so in rows of their own.

    Raises:
        DeadlockError: a rank needs what it computes later itself, or no order of messages exists.
        ScheduleError: the times could pass 2**62 ns.
        PluginError: the network's answer cannot be used.
    """
    issued = with_messages(schedule, policy.receive) if policy.has_receives else with_sends(schedule)
    graph = graph_of(issued.placement)
    expansion = Expansion()
    if times is None:
        issued, expansion = in_segments(issued, workload, policy, schedule.interleave, slows=slows)
    lanes = assign_lanes(issued, policy, expansion.columns, graph)
    rules = Rules(
        mode=lanes.mode, receive=_RECEIVE.get(policy.name, codes.NO_RECEIVE),
        batched=int(policy.name is PolicyName.BATCHED), eager_bytes=policy.largest_eager, rows=len(issued),
    )  # fmt: skip
    lowering_of = _Lowering(
        issued, expansion, graph, lanes, _messages(graph.ranks, lanes, network, expansion.links), rules
    )
    placed = lowering_of.place(workload)
    if times is not None:
        times.laid_over(placed.cells, placed.task, issued.placement)
    check_total(schedule.ranks, placed.task.duration_ns, placed.task.lag_ns)
    hub = behind_all_ranks(placed.cells, lanes, lowering_of.tasks, barrier=barrier)
    holders = behind_holders(placed.cells, lanes, issued.placement) if stage_replicas and not barrier else None
    inside = Pairs(*(placed.place[side] for side in expansion.needs))
    needs = [edges for edges in (hub, holders, inside) if edges is not None]
    linked = lowering_of.link(placed, needs)
    if linked is None:
        raise explain_deadlock(schedule)
    parts, between, tasks = expansion.placed(placed.place), lowering_of.between, lowering_of.tasks
    ends = {name: getattr(lanes, name) for name in LANE_COLUMNS}
    cells, task = placed.cells, placed.task
    # What was issued takes as much memory as the graph, and is not needed any more.
    del issued, expansion, lanes, lowering_of, placed
    tasks += hub is not None
    task = task._replace(duration_ns=task.duration_ns[:tasks], lag_ns=task.lag_ns[:tasks])
    following, following_peer = _chained(ends["lane_ptr"], linked, tasks, rules)
    ptr, edge = _sorted(linked.edges, tasks)
    return TaskGraph(
        placement=schedule.placement, paths=between.paths, source=between.source, target=between.target,
        twin=linked.twin, next=following, next_peer=following_peer, edge_ptr=ptr, edge=edge, parts=parts,
        **ends, **cells._asdict(), **task._asdict(),
    )  # fmt: skip


def _messages(ranks: int, lanes: Lanes, network: Network, links: Sequence[str]) -> _Messages:
    """Ask the network about every pair of ranks with a message; put paths over single ``links`` behind."""
    pairs = np.flatnonzero(lanes.sends_to)
    source, target = (pairs // ranks).astype(np.int32), (pairs % ranks).astype(np.int32)
    paths = network.paths(source, target)
    check_links(network.links)
    check_paths(paths, pairs.size, len(network.links))
    check_reachable(paths, source, target)
    first_path = np.zeros(ranks * ranks, dtype=np.int32)
    first_path[pairs] = np.arange(pairs.size) * paths.ways
    if links:
        paths = paths.with_links(network.links, [network.links.name.index(name) for name in links])
        nobody = np.full(len(links), -1, dtype=np.int32)
        source, target = np.concatenate([source, nobody]), np.concatenate([target, nobody])
    known = paths.overhead_ns.size > 0
    none = np.zeros(1, dtype=np.int64)
    columns = (paths.overhead_ns, paths.latency_ns, paths.rate_kbps) if known else (none, none, none)
    routes = RouteColumns(first_path, pairs.size * paths.ways, paths.ways, *columns)
    return _Messages(source=source, target=target, paths=paths, columns=routes)


@dataclass(frozen=True, slots=True)
class _Lowering:
    """What the kernels are told of one step."""

    issued: IssueOrder
    expansion: Expansion
    graph: StageGraph
    lanes: Lanes
    between: _Messages
    rules: Rules

    @property
    def tasks(self) -> int:
        """Rows, and the launches and joins of batches."""
        return len(self.issued) + (2 * self.lanes.groups if self.rules.batched else 0)

    def place(self, workload: Workload) -> _Rows:
        """Give every row its place on its lane, and its costs."""
        rows, graph = len(self.issued), self.graph
        messages = 2 * graph.edges * graph.microbatches if self.rules.receive else 0
        made_at = np.full(2 * graph.stages * graph.microbatches, -1, dtype=np.int32)
        found = Found(made_at=made_at, recv_at=np.full(messages, -1, dtype=np.int32))
        out = CellColumns(*together(rows, *(values.dtype.type for values in self.issued.cells)))
        place, path, fork = together(rows, np.int32, np.int32, np.int32)
        task = TaskColumns(
            size_bytes=np.empty(rows, dtype=np.int64), path=path, fork=fork,
            collective_ns=np.empty(rows, dtype=np.int64),
            duration_ns=np.empty(self.tasks + 1, dtype=np.int64), lag_ns=np.empty(self.tasks + 1, dtype=np.int64),
        )  # fmt: skip
        for column in (task.duration_ns, task.lag_ns):
            column[rows:] = 0  # what has no row takes no time: batches, and the one task behind which ranks meet
        placed = _Rows(place, found, out, task)
        run(
            placing.place_rows,
            (
                self.issued.row_ptr, self.issued.cells, self.issued.edge, graph, TABLE, self.expansion.columns,
                self.lanes.columns, _costs(workload, graph), self.between.columns, self.rules,
            ),
            (self.lanes.first.copy(), *placed),
            work=rows,
        )  # fmt: skip
        return placed

    def link(self, placed: _Rows, needs: Sequence[Pairs]) -> _Linked | None:
        """Collect what waits for what, ``needs`` too; None where a rank needs what it computes later."""
        issued, rows, graph = self.issued, len(self.issued), self.graph
        twin = np.full(rows, -1, dtype=np.int32)
        batch_next = np.full(2 * self.lanes.groups if self.rules.batched else 0, -1, dtype=np.int32)
        bound = _most_edges(issued, self.expansion.columns, batched=bool(self.rules.batched))
        bound += sum(more.source.size for more in needs)
        pairs = Pairs(*together(bound, np.int32, np.int32))
        kinds = present(issued.kind)
        awaited = kinds[TABLE.awaited[kinds] == 1]
        results = int(TABLE.result[awaited].max(initial=-1)) + 1
        problem = np.zeros(1, dtype=np.int64)
        told = (
            issued.row_ptr, issued.cells, issued.edge, graph, TABLE, self.expansion.columns, self.lanes.columns,
            self.rules, placed.place, placed.found, placed.task,
        )  # fmt: skip
        edges = run(
            linking.link_rows,
            told,
            (
                twin, np.empty(len(TABLE.role) * graph.stages if awaited.size else 0, dtype=np.int32),
                np.full(results * graph.stages * graph.microbatches, -1, dtype=np.int32),
                batch_next, pairs, problem,
            ),
            work=rows,
        )  # fmt: skip
        if problem[0]:
            return None
        if self.rules.batched:
            edges = run(
                linking.join_batches,
                (*told[:5], *told[6:10], twin, edges),
                (pairs,),
                work=rows,
            )
        for more in needs:
            for side, added in zip(pairs, more, strict=True):
                side[edges : edges + added.size] = added
            edges += more.source.size
        return _Linked(twin, batch_next, Pairs(*(side[:edges] for side in pairs)))


def _chained(lane_ptr: Int32s, linked: _Linked, tasks: int, rules: Rules) -> tuple[Int32s, Int32s]:
    """Return the task behind each on its stream, and behind a rendezvous on the receiver's; -1 for none."""
    following, following_peer = together(tasks, np.int32, np.int32)
    following[:] = following_peer[:] = -1
    run(
        linking.chain_tasks,
        (lane_ptr, linked.twin, rules.batched),
        (following, following_peer),
        work=rules.rows,
    )
    following[rules.rows : rules.rows + linked.batch_next.size] = linked.batch_next
    return following, following_peer


def _sorted(edges: Pairs, tasks: int) -> tuple[Int32s, Int32s]:
    """Return where each task's edges begin, and what they lead to."""
    count = edges.source.size
    ptr, edge = together(max(tasks + 1, count), np.int32, np.int32)
    ptr, edge = ptr[: tasks + 1], edge[:count]
    ptr[:] = 0
    run(linking.sort_edges, (*edges, count), (ptr, edge), work=tasks)
    return ptr, edge


def _costs(workload: Workload, graph: StageGraph) -> CostColumns:
    """Return what actions cost, by class, kind and stage, flat."""
    classes = (workload, *workload.classes)
    by_kind = [
        [np.concatenate([per(one, kind) for kind in Kind]) for one in classes]
        for per in (Workload.duration_ns, Workload.collective_ns)
    ]
    return CostColumns(
        classes=len(classes), width=len(Kind) * graph.stages,
        class_of=workload.microbatch_class if len(classes) > 1 else np.zeros(0, dtype=np.int32),
        duration_ns=np.concatenate(by_kind[0]), collective_ns=np.concatenate(by_kind[1]),
        boundary_bytes=np.concatenate([one.boundary_bytes for one in classes]),
    )  # fmt: skip


def _most_edges(issued: IssueOrder, parts: PartColumns, *, batched: bool) -> int:
    """Return a bound of the edges that no stream implies: forks, twins and consumers of each row."""
    away = ~COMPUTE.mask(issued.kind)
    rows = int(np.count_nonzero(away)) + int(np.count_nonzero(parts.stream > codes.COMPUTE_STREAM))
    widest = int(issued.span.max(initial=1))
    microbatches = rows if widest == 1 else int(issued.span[away].sum())
    return 2 * rows + 2 * microbatches + (2 * rows if batched else 0)
