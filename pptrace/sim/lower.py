"""Lowering: an issue order, its costs and a network become a task graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.model.cells import CellColumns
from pptrace.model.columns import passing, together, unset
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import COMMUNICATION, COMPUTE, KindSet, present
from pptrace.record import dataclass
from pptrace.schedule.deadlock import explain_deadlock
from pptrace.schedule.neighbours import StageGraph, graph_of
from pptrace.schedule.policy import Policy, PolicyName
from pptrace.sim.between import Between, between
from pptrace.sim.calling import Calling, calling
from pptrace.sim.chains import Linked, behind_sends, chained, sorted_edges, unchained
from pptrace.sim.cost_columns import cost_columns
from pptrace.sim.graph import TaskGraph
from pptrace.sim.kernels import linking, placing
from pptrace.sim.kernels import rules as codes
from pptrace.sim.kernels.calling import LAUNCHED, link_calls
from pptrace.sim.lanes import Lanes, assign_lanes
from pptrace.sim.late import issue, waiting
from pptrace.sim.limits import check_total
from pptrace.sim.needs import needs_of, with_further
from pptrace.sim.records import Found, Pairs, PartColumns, Rules, TaskColumns
from pptrace.sim.results import is_early
from pptrace.sim.segmented import Expansion, in_segments
from pptrace.timeline.timeline import LANE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.table import Schedule
    from pptrace.sim.action_times import ActionTimes

__all__ = ["lower"]

_RECEIVE = {
    PolicyName.BLOCKING: codes.OWN_TASK,
    PolicyName.ORDERED: codes.RENDEZVOUS,
    PolicyName.BATCHED: codes.RENDEZVOUS,
}


_IN_CALLS = KindSet(COMPUTE | COMMUNICATION)  # what has no edges but those of calls, where there are any


class _Rows(NamedTuple):
    """Where the issued rows went, and their columns there."""

    place: Int32s
    found: Found
    cells: CellColumns
    task: TaskColumns
    twin: Int32s  # by place, the sender's side that a receiver's side meets, else -1; but of calls, not known yet


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
    made_at: Int32s | None = None,
) -> TaskGraph:
    """Return the task graph of a schedule that has been validated, as have its costs.

    With ``barrier``, no gradient is reduced before every rank has computed its last one; with ``stage_replicas``,
    none before all ranks that hold its stage have. Ranks meet when all have computed. With ``slows``, computation
    and communication that run beside each other do so in rows of their own. ``made_at``: see :func:`issue`.

    Raises:
        DeadlockError: a rank needs what it computes later itself, or no order of messages exists.
        ScheduleError: the times could pass 2**62 ns.
        PluginError: the network's answer cannot be used.
    """
    issued = issue(schedule, policy, made_at)
    graph = graph_of(issued.placement)
    expansion = Expansion()
    if times is None:
        whole = issued
        issued, expansion = in_segments(issued, workload, policy, schedule.interleave, slows=slows)
        if expansion.names and is_early(whole):
            raise explain_deadlock(schedule)
        del whole
    lanes = assign_lanes(issued, policy, expansion.columns, graph, one_copy_stream=workload.one_copy_stream)
    rules = _rules(issued, lanes, policy)
    lowering_of = _Lowering(
        issued, expansion, graph, lanes, between(graph.ranks, lanes, network, expansion.links), rules
    )
    placed = lowering_of.place(workload)
    if times is not None:
        times.laid_over(placed.cells, placed.task, issued.placement)
    check_total(schedule.ranks, placed.task.duration_ns, placed.task.lag_ns)
    called = calling(issued, placed.place, placed.task.fork)
    needs = needs_of(
        schedule, workload.released_ns, placed.cells, lanes, lowering_of.tasks + called.tasks,
        barrier=barrier, stage_replicas=stage_replicas,
    )  # fmt: skip
    linked = lowering_of.link(placed, called, needs.edges, needs.tasks)
    if linked is None:
        raise explain_deadlock(schedule)
    if times is not None:
        times.shared(placed.task, linked.twin)
    edges = linked.edges
    if schedule.recompute_waits:
        edges = waiting(edges, placed.cells, placed.found.made_at, graph.stages)
    parts, found = expansion.placed(placed.place), lowering_of.between
    ends, cells, task = {name: getattr(lanes, name) for name in LANE_COLUMNS}, placed.cells, placed.task
    del issued, expansion, lanes, lowering_of, placed  # which take as much memory as the graph
    task = with_further(task, needs)
    following, following_peer = chained(ends, linked, needs.tasks, rules)
    if parts is not None and policy.blocks:
        edges = behind_sends(edges, task, following_peer)
    ptr, edge = sorted_edges(edges, needs.tasks)
    return TaskGraph(
        placement=schedule.placement, paths=found.paths, source=found.source, target=found.target,
        twin=linked.twin, next=following, next_peer=following_peer, edge_ptr=ptr, edge=edge, parts=parts,
        **ends, **cells._asdict(), **task._asdict(),
    )  # fmt: skip


def _rules(issued: IssueOrder, lanes: Lanes, policy: Policy) -> Rules:
    """Return what a policy means to the kernels."""
    return Rules(
        mode=lanes.mode, receive=_RECEIVE.get(policy.name, codes.NO_RECEIVE),
        batched=int(policy.name is PolicyName.BATCHED and issued.calls is None), eager_bytes=policy.largest_eager,
        rows=len(issued), called=int(issued.calls is not None),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lowering:
    """What the kernels are told of one step."""

    issued: IssueOrder
    expansion: Expansion
    graph: StageGraph
    lanes: Lanes
    between: Between
    rules: Rules

    @property
    def tasks(self) -> int:
        """Rows, and the launches and joins of batches."""
        return len(self.issued) + (2 * self.lanes.groups if self.rules.batched else 0)

    def place(self, workload: Workload) -> _Rows:
        """Give every row its place on its lane, and its costs."""
        rows, graph = len(self.issued), self.graph
        messages = 2 * graph.edges * graph.microbatches if self.rules.receive else 0
        found = Found(made_at=unset(2 * graph.stages * graph.microbatches), recv_at=unset(messages))
        out = CellColumns(*together(rows, *(values.dtype.type for values in self.issued.cells)))
        (place,), (path, fork) = passing(rows, np.int32), passing(rows, np.int32, np.int32)
        duration, lag, size, collective = together(self.tasks + 1, *[np.int64] * 4)
        # What has no row takes no time: batches, and the task behind which ranks meet.
        for values in (duration[rows:], lag, size, collective):
            values[:] = 0
        task = TaskColumns(
            size_bytes=size[:rows], path=path, fork=fork, collective_ns=collective[:rows], duration_ns=duration,
            lag_ns=lag,
        )  # fmt: skip
        placed = _Rows(place, found, out, task, unset(rows))
        run(
            placing.place_rows,
            (
                self.issued.row_ptr, self.issued.cells, self.issued.edge, graph, TABLE, self.expansion.columns,
                self.lanes.columns, cost_columns(workload, graph), self.between.columns, self.rules,
            ),
            (self.lanes.first.copy(), *placed),
            work=rows,
        )  # fmt: skip
        return placed

    def link(self, placed: _Rows, called: Calling, needs: Sequence[Pairs], tasks: int) -> Linked | None:
        """Collect what waits for what, ``needs`` too, among so many tasks.

        Returns:
            None where a rank needs what it computes later.
        """
        issued, rows, graph, rules, twin = self.issued, len(self.issued), self.graph, self.rules, placed.twin
        batch_next = np.full(2 * self.lanes.groups if rules.batched else 0, -1, dtype=np.int32)
        kinds = present(issued.kind)
        bound = _most_edges(issued, kinds, self.expansion.columns, rules) + called.edges
        bound += sum(more.source.size for more in needs) + self.expansion.needs[0].size
        pairs = Pairs(*passing(bound, np.int32, np.int32))  # not all of which is touched
        told = (
            issued.row_ptr, issued.cells, issued.edge, graph, TABLE, self.expansion.columns, self.lanes.columns,
            rules, placed.place, placed.found, placed.task,
        )  # fmt: skip
        edges = self._link_rows(told, kinds, twin, batch_next, pairs)
        if edges < 0:
            return None
        known = (*told[:5], *told[6:10])
        if rules.batched:
            edges = run(linking.join_batches, (*known, twin, edges), (pairs,), work=rows)
        chains, first = None, None
        if rules.called:
            edges, chains, first = self._link_calls((*known, placed.task, twin), called, edges, pairs, tasks)
        for more in (*needs, self._inside(placed.place, twin, called, first)):
            for side, added in zip(pairs, more, strict=True):
                side[edges : edges + added.size] = added
            edges += more.source.size
        return Linked(twin, batch_next, Pairs(*(side[:edges] for side in pairs)), chains)

    def _link_rows(
        self, told: tuple[Any, ...], kinds: NDArray[np.intp], twin: Int32s, batch_next: Int32s, pairs: Pairs
    ) -> int:
        """Write the edges that neither streams nor calls imply of rows of some kinds.

        Returns:
            How many there are; -1 where a rank needs what it computes later.
        """
        issued, graph = self.issued, self.graph
        awaited = kinds[TABLE.awaited[kinds] == 1]
        alone = (COMPUTE.mask(kinds) | COMMUNICATION.mask(kinds)).all() and not self.expansion.names
        if self.rules.called and alone and not awaited.size and not graph.nearby:
            return 0
        results = int(TABLE.result[awaited].max(initial=-1)) + 1
        problem = np.zeros(1, dtype=np.int64)
        edges = run(
            linking.link_rows,
            told,
            (
                twin, np.empty((len(TABLE.role) + 2) * graph.stages if awaited.size else 0, dtype=np.int32),
                np.full(results * graph.stages * graph.microbatches, -1, dtype=np.int32),
                batch_next, pairs, problem,
            ),
            work=len(issued),
        )  # fmt: skip
        return -1 if problem[0] else edges

    def _link_calls(
        self, known: tuple[Any, ...], called: Calling, edges: int, pairs: Pairs, tasks: int
    ) -> tuple[int, tuple[Int32s, Int32s], Int32s]:
        """Add the edges of calls behind ``edges`` others.

        Returns:
            How many there are, what chains the calls, and each call's first task.
        """
        following, following_peer = unchained(tasks)
        first, last = passing(called.known.flags.size, np.int32, np.int32)
        edges = run(
            link_calls,
            (*known, called.calls, called.known, edges),
            (
                first, last, np.empty(self.graph.ranks, dtype=np.int32), following, following_peer, pairs,
            ),
            work=len(self.issued),
        )  # fmt: skip
        return edges, (following, following_peer), first

    def _inside(self, place: Int32s, twin: Int32s, called: Calling, first: Int32s | None) -> Pairs:
        """Return the edges of actions in parts; ``first`` are the first tasks of a program's calls."""
        before, behind = self.expansion.needs
        at = place[behind]
        task, launch = np.where(twin[at] < 0, at, twin[at]), np.full(at.size, -1, dtype=np.int32)
        message = np.flatnonzero(COMMUNICATION.mask(self.issued.kind[behind]))
        if self.issued.calls is not None and first is not None:
            call = self.issued.calls.of_row[behind[message]]
            launch[message] = np.where(called.known.flags[call] & LAUNCHED, first[call], -1)
        elif self.rules.batched:
            launch[message] = self.rules.rows + 2 * self.lanes.columns.group[behind[message]]
        return Pairs(place[before], np.where(launch < 0, task, launch))


def _most_edges(issued: IssueOrder, kinds: NDArray[np.intp], parts: PartColumns, rules: Rules) -> int:
    """Return a bound of the edges that neither streams nor calls imply: forks, twins and consumers of each row."""
    apart = _IN_CALLS if rules.called else COMPUTE
    without = sum(int(np.count_nonzero(np.equal(issued.kind, one))) for one in kinds.tolist() if one in apart)
    rows = len(issued) - without + int(np.count_nonzero(parts.stream > codes.COMPUTE_STREAM))
    widest = int(issued.span.max(initial=1))
    microbatches = rows if widest == 1 else int(issued.span[~apart.mask(issued.kind)].sum())
    return 2 * rows + 2 * microbatches + (2 * rows if rules.batched else 0)
