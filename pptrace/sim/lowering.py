"""Lowering of an issue order to a task graph."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.memo import is_memoizing, memoized
from pptrace.network.contract import check_links, check_paths, check_reachable
from pptrace.sim.cross_rank import CallTasks, add_cross_rank_tasks, find_call_tasks, find_cross_rank_edges
from pptrace.sim.engines import order_tasks
from pptrace.sim.kernels import edges as edges_kernels
from pptrace.sim.kernels import placement as placement_kernels
from pptrace.sim.kernels.edges import FOLLOWS, LAUNCHED, link_calls
from pptrace.sim.overlapped_pairs import Expansion, expand_segments
from pptrace.sim.streams import (
    CostColumns,
    Endpoints,
    Lanes,
    Linked,
    Pairs,
    RouteColumns,
    RowColumns,
    Rules,
    TaskColumns,
    assign_lanes,
    chain_streams,
    check_total,
    kinds_of,
    sort_edges,
    wait_for_sends,
)
from pptrace.sim.task_graph import TaskGraph
from pptrace.steps.actions import microbatches_of
from pptrace.steps.columns import column, distinct, distinct_rows, empty_columns, uniform, unset
from pptrace.steps.dependencies import explain_deadlock
from pptrace.steps.kinds import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    GRADIENTS,
    RECOMPUTES,
    SEND_WAITS,
    SENDS,
    SHARDING,
    TABLE,
    TIMED,
    Kind,
    KindSet,
    present,
)
from pptrace.steps.message_calls import in_calls, with_messages, with_sends
from pptrace.steps.schedule import StageGraph, graph_of
from pptrace.steps.workload import COLLECTIVE
from pptrace.timeline.timeline import LANE_COLUMNS
from pptrace_kernel import fixed, halves, run, run_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.network.contract import Network, Paths
    from pptrace.steps.actions import CellColumns
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.message_calls import CallGroups, IssueOrder, Policy
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


class RankRoutes(Struct, frozen=True):
    """Pairs of ranks that exchange messages, and their paths; after these, the paths over single links."""

    source: Int32s
    target: Int32s
    paths: Paths
    columns: RouteColumns

    def of_network(self, network: Network) -> RankRoutes:
        """Return the paths of the same pairs in another network."""
        paths = _checked_paths(network, self.source, self.target)
        columns = self.columns._replace(
            per_pair=paths.per_pair, overhead_ns=paths.overhead_ns, latency_ns=paths.latency_ns,
            rate_kbps=paths.rate_kbps,
        )  # fmt: skip
        return replace(self, paths=paths, columns=columns)


def find_routes(ranks: int, lanes: Lanes, network: Network, links: Sequence[str]) -> RankRoutes:
    """Query the network once for all pairs of ranks with a message; append paths over single ``links``."""
    pairs = np.flatnonzero(lanes.sends_to)
    source, target = (pairs // ranks).astype(np.int32), (pairs % ranks).astype(np.int32)
    paths = _checked_paths(network, source, target)
    first_path = np.zeros(ranks * ranks, dtype=np.int32)
    first_path[pairs] = np.arange(pairs.size) * paths.per_pair
    if links:
        paths = paths.with_links(network.links, [network.links.name.index(name) for name in links])
        nobody = np.full(len(links), -1, dtype=np.int32)
        source, target = np.concatenate([source, nobody]), np.concatenate([target, nobody])
    routes = RouteColumns(
        first_path, pairs.size * paths.per_pair, paths.per_pair, paths.overhead_ns, paths.latency_ns,
        paths.rate_kbps,
    )  # fmt: skip
    return RankRoutes(source=source, target=target, paths=paths, columns=routes)


def _checked_paths(network: Network, source: Int32s, target: Int32s) -> Paths:
    paths = network.paths(source, target)
    check_links(network.links)
    check_paths(paths, source.size, len(network.links))
    check_reachable(paths, source, target)
    return paths


_RECEIVE = {
    PolicyName.BLOCKING: placement_kernels.OWN_TASK,
    PolicyName.ORDERED: placement_kernels.RENDEZVOUS,
    PolicyName.BATCHED: placement_kernels.RENDEZVOUS,
}


_AWAITED_RESULTS = int(TABLE.result[TABLE.awaited == 1].max()) + 1

_IN_CALLS = KindSet(COMPUTE | COMMUNICATION)  # kinds whose edges are those of calls, with a program


class _Rows(Struct, frozen=True):
    """Issued rows in the order of lanes, and their columns."""

    place: Int32s
    """Index of each issued row."""
    ends: Endpoints
    cells: CellColumns
    task: TaskColumns
    sender_row: Int32s
    """The sender's row for the receiver's row of a message of a call, which linking fills in, else -1."""

    def without_times(self) -> _Rows:
        """Return the rows with no time, for which linking omits no edge that depends on times."""
        no_time = np.zeros_like(self.task.duration_ns)
        return replace(self, task=self.task._replace(duration_ns=no_time, lag_ns=no_time))


def lower(
    schedule: Schedule,
    workload: Workload,
    network: Network,
    policy: Policy,
    *,
    barrier: bool = False,
    stage_replicas: bool = False,
    slows: bool = False,
    segmented: bool = True,
) -> TaskGraph:
    """Return the task graph of a validated schedule with validated costs.

    With ``barrier``, no gradient is reduced before every rank has computed its last one. With ``stage_replicas``,
    no gradient is reduced before all ranks that hold its stage have computed it. With ``slows``, concurrent
    computation and communication get separate rows. Without ``segmented``, each action is one row. Steps that
    share results (:mod:`pptrace.memo`) share tasks and dependencies.

    Raises:
        DeadlockError: a rank needs a result that it computes later, or no order of messages exists.
        ScheduleError: the times could exceed 2**62 ns.
        PluginError: the network returns invalid paths.
    """
    lower_all = partial(
        _lower, schedule, workload, network, policy, barrier=barrier, stage_replicas=stage_replicas, slows=slows,
        segmented=segmented,
    )  # fmt: skip
    if is_memoizing() and not (
        slows or workload.segments or workload.released_ns.any() or workload.meeting_ns.size
    ):
        eager = workload.edge_bytes.tobytes() if policy.largest_eager >= 0 else b""
        classes = len(workload.classes), workload.microbatch_class.tobytes()
        key = policy, barrier, stage_replicas, workload.one_copy_stream, eager, classes
        # A graph for other costs takes longer to build, so only the second step with a table builds it.
        earlier: list[None] = memoized(list, ("steps", key), schedule, rows=len(schedule))
        if earlier:
            rows = _ROWS_PER_ACTION * len(schedule)
            graph, costs = memoized(partial(lower_all, reusable=True), ("graph", key), schedule, rows=rows)
            reused = costs.with_costs(graph, workload, network) if costs else None
            if reused is not None:
                return reused
        else:
            earlier.append(None)
    return lower_all()[0]


def lower_for_costs(
    schedule: Schedule, workload: Workload, network: Network, policy: Policy
) -> tuple[TaskGraph, DistinctCostRows]:
    """Return the task graph of whole actions without its times, and the rows whose costs determine them.

    Raises:
        DeadlockError: as :func:`lower`.
        PluginError: the network returns invalid paths.
    """
    graph, costs = _lower(schedule, workload, network, policy, segmented=False, reusable=True)
    return graph, cast("DistinctCostRows", costs)


_ROWS_PER_ACTION = 3
"""At most about as many rows have an action and its messages."""


def _lower(
    schedule: Schedule,
    workload: Workload,
    network: Network,
    policy: Policy,
    *,
    barrier: bool = False,
    stage_replicas: bool = False,
    slows: bool = False,
    segmented: bool = True,
    reusable: bool = False,
) -> tuple[TaskGraph, DistinctCostRows | None]:
    """Return the task graph and, for ``reusable`` dependencies, the rows whose costs determine all costs."""
    issued = issue(schedule, policy)
    graph = graph_of(issued.placement)
    expansion = Expansion()
    if segmented:
        issued, expansion = expand_segments(schedule, issued, workload, policy, slows=slows)
    kinds = present(issued.kind)
    lanes = assign_lanes(issued, kinds, policy, expansion.columns, graph, one_copy_stream=workload.one_copy_stream)
    routes = find_routes(graph.ranks, lanes, network, expansion.links)
    rules = _rules(issued, lanes, policy)
    rows = RowColumns(
        issued.row_ptr, issued.cells, issued.edge, graph, kinds_of(issued.placement), expansion.columns,
        lanes.columns, rules,
    )  # fmt: skip
    lowering = _Lowering(schedule, issued, kinds, expansion, lanes, routes, rows)
    placed = lowering.place(workload)
    check_total(graph.ranks, placed.task.duration_ns, placed.task.lag_ns)
    costs = None
    if reusable:
        costs = DistinctCostRows.of(lowering, placed.place, workload)
        placed = placed.without_times()
    called = find_call_tasks(issued, placed.place, placed.task.fork)
    cross_rank = find_cross_rank_edges(
        schedule, workload, placed.cells, kinds, lanes, lowering.tasks + called.tasks,
        barrier=barrier, stage_replicas=stage_replicas,
    )  # fmt: skip
    linked = lowering.link(placed, called, cross_rank.edges, cross_rank.tasks)
    edges = linked.edges
    if schedule.recompute_waits:
        edges = add_recompute_edges(edges, placed.cells, placed.ends.made_at, graph.stages)
    parts = expansion.parts(placed.place)
    lane_columns = {name: getattr(lanes, name) for name in LANE_COLUMNS}
    cells, task = placed.cells, placed.task
    del issued, expansion, lanes, rows, lowering, placed  # frees as much memory as the graph takes
    task = add_cross_rank_tasks(task, cross_rank)
    following, following_peer = chain_streams(lane_columns, linked, cross_rank.tasks, rules)
    if parts is not None and policy.blocks:
        edges = wait_for_sends(edges, task, following_peer)
    ptr, edge = sort_edges(edges, cross_rank.tasks)
    tasks = TaskGraph(
        placement=schedule.placement, paths=routes.paths, source=routes.source, target=routes.target,
        sender_row=linked.sender_row, next=following, next_peer=following_peer, edge_ptr=ptr, edge=edge,
        parts=parts, **lane_columns, **cells._asdict(), **task._asdict(),
    )  # fmt: skip
    if costs is not None:
        tasks = replace(tasks, ordered=order_tasks(tasks, costs.row))
        tasks.lock()
    return tasks, costs


def _rules(issued: IssueOrder, lanes: Lanes, policy: Policy) -> Rules:
    """Return a policy as a record of kernels."""
    return Rules(
        mode=lanes.mode, receive=_RECEIVE.get(policy.name, placement_kernels.NO_RECEIVE),
        batched=int(policy.name is PolicyName.BATCHED and issued.calls is None), eager_bytes=policy.largest_eager,
        rows=len(issued), called=int(issued.calls is not None),
    )  # fmt: skip


class _Lowering(Struct, frozen=True):
    """Inputs of the lowering kernels for one step."""

    schedule: Schedule
    issued: IssueOrder
    kinds: NDArray[np.intp]
    """Kinds of the issued rows."""
    expansion: Expansion
    lanes: Lanes
    routes: RankRoutes
    rows: RowColumns

    @property
    def tasks(self) -> int:
        """Number of rows, batch launches and batch joins."""
        return len(self.issued) + (2 * self.lanes.groups if self.rows.rules.batched else 0)

    def place(self, workload: Workload, earlier: _Rows | None = None) -> _Rows:
        """Assign every row its index on its lane, and its costs.

        Args:
            workload: the costs.
            earlier: the same rows with other costs, which then share all columns except those of tasks.
        """
        rows, graph = len(self.issued), self.rows.graph
        path, fork = empty_columns(rows, np.int32, np.int32)
        duration, lag, size = empty_columns(self.tasks + 1, *[np.int64] * 3)
        # Tasks without a row take no time: batches and synchronizations.
        duration[rows:] = lag[rows:] = 0
        costs = cost_columns(workload, graph, self.kinds)
        collective = np.zeros(rows, np.int64) if costs.collective_ns.any() else uniform(0, rows, np.int64)
        task = TaskColumns(
            size_bytes=size[:rows], path=path, fork=fork, collective_ns=collective, duration_ns=duration,
            lag_ns=lag,
        )  # fmt: skip
        placed = replace(earlier, task=task) if earlier else self._unplaced(task)
        run_parts(
            placement_kernels.place_rows,
            halves(graph.ranks, work=rows),
            (self.rows, costs, self.routes.columns),
            (self.lanes.first.copy(), placed.place, placed.ends, placed.cells, task),
            work=rows,
        )
        return placed

    def _unplaced(self, task: TaskColumns) -> _Rows:
        """Return columns of rows that the kernel fills in."""
        rows, graph, rules = len(self.issued), self.rows.graph, self.rows.rules
        messages = 2 * graph.edges * graph.microbatches
        sides = [messages if has_side else 0 for has_side in (rules.receive, rules.called)]
        ends = Endpoints(unset(2 * graph.stages * graph.microbatches), *map(unset, sides))
        (place,) = empty_columns(rows, np.int32)
        sender_row = unset(rows) if rules.receive else uniform(-1, rows)
        return _Rows(place, ends, self.issued.cells.empty(rows), task, sender_row)

    def link(self, placed: _Rows, called: CallTasks, cross_rank_edges: Sequence[Pairs], tasks: int) -> Linked:
        """Return the dependencies among ``tasks`` tasks, ``cross_rank_edges`` included.

        Raises:
            DeadlockError: a rank needs a result that it computes later.
        """
        issued, rows, rules, sender_row = self.issued, len(self.issued), self.rows.rules, placed.sender_row
        if rules.called:
            messages = placed.ends.send_at.size
            parts = halves(messages, work=rows)
            run_parts(placement_kernels.match_sides, parts, (placed.ends,), (sender_row,), work=messages)
        batch_next = np.full(2 * self.lanes.groups if rules.batched else 0, -1, dtype=np.int32)
        kinds = self.kinds
        awaited = kinds[TABLE.awaited[kinds] == 1]
        if not SEND_WAITS.mask(kinds).any():
            awaited = awaited[~SENDS.mask(awaited)]
        ranks = self.rows.graph.ranks
        parts = [(0, ranks)] if awaited.size else halves(ranks, work=rows)  # ranks share space for awaited rows
        alone = (COMPUTE.mask(kinds) | COMMUNICATION.mask(kinds)).all() and not self.expansion.names
        if rules.called and alone and not awaited.size and not self.rows.graph.nearby:
            parts = []  # only calls have edges
        most = [self._most_edges(slice(*issued.row_ptr[[*part]].tolist())) for part in parts]
        calls = issued.calls
        further = 0 if calls is None else calls.row.size + calls.later.size
        bound = sum(most) + sum(part.edges for part in called.parts) + further
        bound += sum(more.source.size for more in cross_rank_edges) + self.expansion.needs[0].size
        pairs = Pairs(*empty_columns(bound, np.int32, np.int32))  # an upper bound; unused memory is not touched
        begins = [(*part, begin) for part, begin in zip(parts, (0, *most), strict=False)]
        edges = self._link_rows(placed, awaited, begins, batch_next, pairs) if parts else 0
        if rules.batched:
            edges = run(
                edges_kernels.join_batches,
                (self.rows, placed.place, placed.ends, sender_row, edges),
                (pairs,),
                work=rows,
            )
        chains, first = None, None
        if calls is not None:
            edges, chains, first, waits = self._link_calls(placed, calls, called, edges, pairs, tasks)
            cross_rank_edges = *cross_rank_edges, *waits
        for more in (*cross_rank_edges, self._segment_edges(placed.place, sender_row, called, first)):
            for side, added in zip(pairs, more, strict=True):
                side[edges : edges + added.size] = added
            edges += more.source.size
        return Linked(sender_row, batch_next, Pairs(*(side[:edges] for side in pairs)), chains)

    def _link_rows(
        self, placed: _Rows, awaited: NDArray[np.intp], parts: list[tuple[int, int, int]], batch_next: Int32s,
        pairs: Pairs,
    ) -> int:  # fmt: skip
        """Write the edges of rows that neither streams nor calls imply; return their number.

        ``parts`` are ranges of ranks, and where the edges of each begin.
        """
        issued, graph = self.issued, self.rows.graph
        results = _AWAITED_RESULTS if (TABLE.result[awaited] >= 0).any() else 0
        problem = np.zeros(1, dtype=np.int64)
        by_stage = np.empty((len(TABLE.role) + 2) * graph.stages if awaited.size else 0, dtype=np.int32)
        ends = run_parts(
            edges_kernels.link_rows,
            parts,
            (self.rows, placed.place, placed.ends, placed.task),
            (
                placed.sender_row, by_stage,
                np.full(results * graph.stages * graph.microbatches, -1, dtype=np.int32),
                batch_next, pairs, problem,
            ),
            work=len(issued),
        )  # fmt: skip
        if problem[0]:
            raise explain_deadlock(self.schedule)
        return _join_parts(pairs, [begin for _, _, begin in parts], ends)

    def _most_edges(self, rows: slice) -> int:
        """Return an upper bound of the edges of rows that neither streams nor calls imply.

        These are edges to forks, receivers and consumers.
        """
        kind, span, stream = self.issued.kind[rows], self.issued.span[rows], self.expansion.columns.stream[rows]
        excluded = _IN_CALLS if self.rows.rules.called else COMPUTE
        count = kind.size + int(np.count_nonzero(stream > placement_kernels.COMPUTE_STREAM))
        count -= sum(
            int(np.count_nonzero(np.equal(kind, each))) for each in self.kinds.tolist() if each in excluded
        )
        microbatches = count if span.max(initial=1) == 1 else int(span[~excluded.mask(kind)].sum())
        return 2 * count + 2 * microbatches + (2 * count if self.rows.rules.batched else 0)

    def _link_calls(
        self, placed: _Rows, calls: CallGroups, called: CallTasks, edges: int, pairs: Pairs, tasks: int
    ) -> tuple[int, tuple[Int32s, Int32s], Int32s, tuple[Pairs, Pairs]]:
        """Append the edges of calls after the first ``edges`` edges.

        Returns:
            The number of edges, the chains of calls, each call's first task, and the edges that are not appended:
            those to further rows, and those to calls that wait.
        """
        follows = bool((called.states.flags & FOLLOWS).any())
        following, following_peer = unset(tasks), unset(tasks) if follows else uniform(-1, tasks)
        first, last = empty_columns(called.states.flags.size, np.int32, np.int32)
        parts, extra = [], self.rows.rules.rows
        for number, part in enumerate(called.parts):
            parts.append((part.first_rank, part.end_rank, extra, edges, number))
            extra, edges = extra + part.tasks, edges + part.edges
        ends = run_parts(
            link_calls,
            parts,
            (self.rows, placed.place, placed.ends, placed.task, placed.sender_row, calls, called.states),
            (first, last, np.empty(2 * self.rows.graph.ranks, dtype=np.int32), following, following_peer, pairs),
            work=len(self.issued),
        )  # fmt: skip
        edges = _join_parts(pairs, [begin for _, _, _, begin, _ in parts], ends)
        row = placed.place[calls.row]
        other = row != called.states.waited[calls.awaited]
        waits = Pairs(last[calls.awaited[other]], row[other]), Pairs(last[calls.earlier], first[calls.later])
        return edges, (following, following_peer), first, waits

    def _segment_edges(self, place: Int32s, sender_row: Int32s, called: CallTasks, first: Int32s | None) -> Pairs:
        """Return the edges between segments; ``first`` are the first tasks of a program's calls."""
        awaited, waiting = self.expansion.needs
        row = place[waiting]
        task, launch = np.where(sender_row[row] < 0, row, sender_row[row]), np.full(row.size, -1, dtype=np.int32)
        message = np.flatnonzero(COMMUNICATION.mask(self.issued.kind[waiting]))
        if self.issued.calls is not None and first is not None:
            call = self.issued.calls.of_row[waiting[message]]
            launch[message] = np.where(called.states.flags[call] & LAUNCHED, first[call], -1)
        elif self.rows.rules.batched:
            launch[message] = self.rows.rules.rows + 2 * self.lanes.columns.group[waiting[message]]
        return Pairs(place[awaited], np.where(launch < 0, task, launch))


def _join_parts(pairs: Pairs, begins: Sequence[int], ends: Sequence[int]) -> int:
    """Move the edges that each part wrote from its begin on after those of the previous part; return their end."""
    edges = begins[0]
    for begin, end in zip(begins, ends, strict=True):
        if begin > edges:
            for side in pairs:
                side[edges : edges + end - begin] = side[begin:end]
        edges += end - begin
    return edges


class DistinctCostRows(NamedTuple):
    """Rows with different costs, from which the costs of all rows follow."""

    lowering: _Lowering
    """A lowering of these rows alone."""
    placed: _Rows
    """These rows with the costs of the first step."""
    row: NDArray[np.intp]
    """Shape (rows of the graph,): the row among these that has equal costs."""

    @classmethod
    def of(cls, lowering: _Lowering, place: Int32s, workload: Workload) -> DistinctCostRows:
        """Find the rows of a lowering that can differ in costs; ``place`` is the place of each of its rows."""
        issued, rows = lowering.issued, lowering.rows
        rank = np.repeat(np.arange(rows.graph.ranks), np.diff(issued.row_ptr))
        columns = np.stack([rank, issued.kind, issued.stage, issued.span, issued.edge, rows.lanes.peer], axis=1)
        if workload.classes or lowering.routes.columns.per_pair > 1:
            columns = np.column_stack([columns, issued.microbatch])
        first, number = distinct_rows(columns.astype(np.int32))
        places = np.sort(place[first])
        kept = replace(issued.selected(first), calls=None)
        peer = rows.lanes.peer[first]
        group = rows.lanes.group[first] if rows.lanes.group.size else rows.lanes.group
        alone = replace(
            lowering, issued=kept,
            lanes=replace(lowering.lanes, first=np.searchsorted(places, lowering.lanes.first).astype(np.int32)),
            rows=fixed(rows._replace(
                row_ptr=kept.row_ptr, cells=kept.cells, edge=kept.edge,
                lanes=rows.lanes._replace(peer=peer, group=group),
            )),
        )  # fmt: skip
        row = np.empty(len(issued), dtype=np.intp)
        row[place] = np.searchsorted(places, place[first])[number]
        return cls(alone, alone.place(workload), row)

    def times(self, costs: Sequence[Workload]) -> tuple[Int64s, Int64s]:
        """Return duration and lag of each of these rows, shape (rows + 1, costs); the last row takes no time."""
        duration_ns, lag_ns = np.zeros((2, len(self.lowering.issued) + 1, len(costs)), dtype=np.int64)
        for number, each in enumerate(costs):
            task = self.lowering.place(each, self.placed).task
            duration_ns[:-1, number] = task.duration_ns[: len(duration_ns) - 1]
            lag_ns[:-1, number] = task.lag_ns[: len(lag_ns) - 1]
        return duration_ns, lag_ns

    def with_costs(self, graph: TaskGraph, workload: Workload, network: Network) -> TaskGraph | None:
        """Return a graph with other costs; None if messages spread over another number of paths.

        Raises:
            ScheduleError: the times could exceed 2**62 ns.
            PluginError: the network returns invalid paths.
        """
        ranks, routes = graph.placement.ranks, self.lowering.routes
        other_routes = memoized(lambda: routes.of_network(network), "routes", routes, network, rows=ranks * ranks)
        if other_routes.columns.per_pair != routes.columns.per_pair:
            return None
        task = replace(self.lowering, routes=other_routes).place(workload, self.placed).task
        duration, lag = np.zeros((2, graph.tasks), dtype=np.int64)
        for times, of_rows in ((duration, task.duration_ns), (lag, task.lag_ns)):
            of_rows.take(self.row, out=times[: graph.rows], mode="clip")  # other modes copy the output
        check_total(ranks, duration, lag)
        ordered = graph.ordered
        if ordered is not None:
            end_ns, lag_ns = (times[: len(self.lowering.issued) + 1] for times in (task.duration_ns, task.lag_ns))
            ordered = ordered._replace(wait_ns=np.concatenate([end_ns, end_ns + lag_ns]))
        return replace(
            graph, ordered=ordered, paths=other_routes.paths, path=self._of_all_rows("path", task.path),
            size_bytes=self._of_all_rows("size", task.size_bytes),
            collective_ns=self._of_all_rows("collectives", task.collective_ns), duration_ns=duration, lag_ns=lag,
        )  # fmt: skip

    def _of_all_rows(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all rows; graphs with equal values share the column."""
        key = "column", name, values.tobytes()
        return memoized(
            lambda: column(values.take(self.row), values.dtype.type), key, self.row, rows=self.row.size
        )


def cost_columns(workload: Workload, graph: StageGraph, kinds: NDArray[np.intp]) -> CostColumns:
    """Return the costs of actions of these kinds, flat over class, kind and stage."""
    classes, issued = (workload, *workload.classes), {*map(Kind, kinds.tolist())}
    duration_ns, collective_ns = np.zeros((2, len(classes), len(Kind), graph.stages), dtype=np.int64)
    for index, costs in enumerate(classes):
        for kind in issued & {*TIMED, *costs.segments}:
            duration_ns[index, kind] = costs.duration_ns(kind)
        for kind in issued & COLLECTIVE:
            collective_ns[index, kind] = costs.collective_ns(kind)
    return CostColumns(
        classes=len(classes), width=len(Kind) * graph.stages,
        class_of=workload.microbatch_class if len(classes) > 1 else np.zeros(0, dtype=np.int32),
        duration_ns=duration_ns.ravel(), collective_ns=collective_ns.ravel(),
        boundary_bytes=np.concatenate([costs.edge_bytes.ravel() for costs in classes]),
    )  # fmt: skip


def issue(schedule: Schedule, policy: Policy) -> IssueOrder:
    """Insert messages into the issue order. Recomputed forwards stay adjacent to their backward.

    Actions that do not affect the position of messages are removed before, and inserted after it. These are copies
    and reductions within a row, and gathers unless the policy has a lowering. So are recomputed forwards that wait
    for gradients, or that a program ignores.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    independent = COPIES if policy.lowering is not None else KindSet({*SHARDING, *COPIES})
    rows, waits = _message_independent_rows(schedule, independent), False
    if not rows.size and (schedule.recompute_waits or policy.program is not None):
        rows, waits = np.flatnonzero(RECOMPUTES.mask(schedule.kind)), schedule.recompute_waits
    if rows.size:
        kept = np.delete(np.arange(len(schedule)), rows)
        issued = issue(schedule.selected(kept), policy)
        computed = np.searchsorted(kept[COMPUTE.mask(schedule.kind[kept])], rows)
        return _insert_rows(issued, schedule.cells.taken(rows), computed, waits=waits)
    if policy.program is not None:
        return in_calls(schedule, policy.program, policy.label)
    if policy.lowering is not None:
        schedule = policy.lowering(schedule)
    return with_messages(schedule, policy.placing) if policy.has_receives else with_sends(schedule)


def _message_independent_rows(schedule: Schedule, independent: KindSet) -> NDArray[np.int64]:
    """Return actions of some kinds, and reductions of microbatches, that a computation of their rank follows.

    Reductions between shard groups follow those of microbatches.
    """
    kind = schedule.kind
    if not independent.union({Kind.REDUCE_GRAD, Kind.REDUCE_GROUPS}).intersection(present(kind).tolist()):
        return np.zeros(0, dtype=np.int64)
    reduces = np.equal(kind, int(Kind.REDUCE_GRAD))  # a member itself would widen the column
    reduced = np.flatnonzero(reduces)
    cells = _ranks_of(schedule, reduced) * schedule.stages + schedule.stage[reduced]
    per_microbatch = distinct(cells).size < cells.size
    between_groups = np.equal(kind, int(Kind.REDUCE_GROUPS))
    candidate = independent.mask(kind) | ((reduces | between_groups) & per_microbatch)
    if not candidate.any() or schedule.has_communication:
        return np.zeros(0, dtype=np.int64)
    computed = np.append(np.flatnonzero(COMPUTE.mask(kind)), len(schedule))
    rows = np.flatnonzero(candidate)
    next_computation = computed[np.searchsorted(computed, rows)]
    ends = schedule.row_ptr[1:][_ranks_of(schedule, rows)]
    return np.asarray(rows[next_computation < ends])


def _ranks_of(schedule: Schedule, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(schedule.row_ptr, rows, side="right") - 1


def _insert_rows(
    issued: IssueOrder, inserted: CellColumns, computed: NDArray[np.integer], *, waits: bool
) -> IssueOrder:
    """Insert each action before the computation with index ``computed``.

    With ``waits``, the actions are recomputed forwards that have the dependencies of their backwards.
    """
    successor = np.flatnonzero(COMPUTE.mask(issued.kind))[computed]
    position = successor + np.arange(successor.size)
    row = np.insert(np.arange(len(issued)), successor, successor)
    cells, edge = issued.cells.taken(row), issued.edge[row]
    peer = issued.peer[row] if issued.peer.size else issued.peer
    for cell, values in zip(cells, inserted, strict=True):
        cell[position] = values
    edge[position] = -1
    begin = np.flatnonzero(~np.isin(np.arange(row.size), position))
    if waits:
        begin[_backwards(issued, inserted)] = position
    rank = np.searchsorted(issued.row_ptr, successor, side="right") - 1
    shift = np.cumsum([0, *np.bincount(rank, minlength=issued.row_ptr.size - 1)])
    calls = None if issued.calls is None else issued.calls.with_rows(row, begin)
    return replace(issued, row_ptr=issued.row_ptr + shift, edge=edge, peer=peer, calls=calls, **cells._asdict())


def _backwards(issued: IssueOrder, recomputes: CellColumns) -> NDArray[np.int64]:
    """Return the row of the backward of each recomputed forward."""
    width = issued.placement.microbatches
    backward = np.flatnonzero(GRADIENTS.mask(issued.kind))
    row_of = np.full(issued.placement.stages * width, -1, dtype=np.int64)
    number, stage, microbatch = microbatches_of(issued, backward)
    row_of[stage * width + microbatch] = backward[number]
    backward_rows: NDArray[np.int64] = row_of[recomputes.stage * width + recomputes.microbatch]
    return backward_rows


def add_recompute_edges(edges: Pairs, cells: CellColumns, made_at: Int32s, stages: int) -> Pairs:
    """Add edges from the predecessors of backwards to the recomputed forwards before them.

    Args:
        edges: all edges that no stream implies.
        cells: the action of each task.
        made_at: the task of each activation, then of each gradient.
        stages: number of stages.
    """
    microbatches = made_at.size // (2 * stages)
    # In reverse order: of several segments, the first is written last.
    recomputes = np.flatnonzero(RECOMPUTES.mask(cells.kind))[::-1]
    first = np.full(max(int(made_at.max(initial=-1)), int(edges.target.max(initial=-1))) + 1, -1, dtype=np.int32)
    gradient_row = made_at.reshape(2, stages, microbatches)[1]
    number, stage, microbatch = microbatches_of(cells, recomputes)
    first[gradient_row[stage, microbatch]] = recomputes[number]
    waits_for_end = edges.target >= 0
    recompute = np.where(waits_for_end, first[np.where(waits_for_end, edges.target, 0)], -1)
    added = np.flatnonzero(recompute >= 0)
    return Pairs(
        np.concatenate([edges.source, edges.source[added]]), np.concatenate([edges.target, recompute[added]])
    )
