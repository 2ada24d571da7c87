"""Dependencies that cross ranks: reductions, the end of the step, and calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.errors import ScheduleError
from pptrace.memo import memoized
from pptrace.sim.kernels.edges import JOINED, LAUNCHED, classify_calls
from pptrace.sim.streams import Pairs, sort_edges
from pptrace.steps.action_insertion import insert_stage_actions
from pptrace.steps.actions import group_ends, microbatches_of
from pptrace.steps.columns import distinct, empty_columns, unset
from pptrace.steps.kinds import BACKWARD, COMPUTE, STAGE_ENDS, TABLE, WAITS, Kind, KindSet, Stream
from pptrace_kernel import halves, run_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.sim.streams import Lanes, TaskColumns
    from pptrace.sim.task_graph import TaskGraph
    from pptrace.steps.actions import CellColumns
    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.steps.message_calls import IssueOrder
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload

_COMPUTED = [Stream.COMPUTE, *(stream for stream in Stream if stream.is_group)]
"""Streams of actions and of their segments."""
_PASSES = COMPUTE.mask(np.arange(len(Kind)))
_MEETINGS = KindSet({Kind.SYNC})
_ENDS = KindSet({Kind.SYNC, Kind.REDUCE_GRAD, Kind.REDUCE_GROUPS})
_EPILOGUE = KindSet({*STAGE_ENDS, Kind.WAIT_REDUCE_GRAD})
_AFTER_PASSES = KindSet({Kind.OPTIMIZER, *WAITS})


class CrossRankEdges(Struct, frozen=True):
    """Dependencies on other ranks and replicas."""

    edges: list[Pairs]
    tasks: int
    """Number of tasks, synchronization tasks included."""
    released_ns: Int64s
    """Durations of the last tasks, which replicas wait for; see :func:`find_cross_rank_edges`."""


def find_cross_rank_edges(
    schedule: Schedule,
    workload: Workload,
    cells: CellColumns,
    kinds: NDArray[np.intp],
    lanes: Lanes,
    tasks: int,
    *,
    barrier: bool,
    stage_replicas: bool,
) -> CrossRankEdges:
    """Return the dependencies of a schedule on other ranks, except messages.

    Args:
        schedule: the table.
        workload: costs; ``released_ns`` and ``meeting_ns`` become tasks that end at these times.
        cells: the rows, lane by lane.
        kinds: kinds of the rows.
        lanes: the rows of each lane.
        tasks: number of tasks so far; synchronization tasks get the next numbers.
        barrier: whether reductions wait for all computation.
        stage_replicas: whether reductions wait for all ranks that hold their stage.
    """
    ends = _ENDS if barrier else _MEETINGS
    hub = _wait_for_all_ranks(cells, ends, lanes, tasks) if ends.intersection(kinds.tolist()) else None
    between_ranks = stage_replicas and not barrier and not schedule.placement.has_host_state
    holders = _wait_for_holders(cells, lanes, schedule.placement) if between_ranks else None
    explicit = _wait_for_actions(cells, schedule.waits, schedule.placement.microbatches)
    offloads = _wait_for_offloads(cells, lanes) if schedule.placement.has_host_state else None
    tasks += hub is not None
    released_ns = workload.released_ns
    replicas = _wait_for_replicas(cells, released_ns, tasks, barrier=barrier)
    if workload.meeting_ns.size:
        released_ns = workload.meeting_ns
        replicas = _wait_for_meetings(cells, lanes, released_ns, tasks)
    edges = [pairs for pairs in (hub, holders, explicit, offloads, replicas) if pairs is not None]
    released = released_ns if replicas is not None else released_ns[:0]
    return CrossRankEdges(edges, tasks + released.size, released)


def add_cross_rank_tasks(task: TaskColumns, edges: CrossRankEdges) -> TaskColumns:
    """Append synchronization tasks. Tasks of other replicas end when these have computed their gradients."""
    task = task._replace(
        duration_ns=_pad_column(task.duration_ns, edges.tasks), lag_ns=_pad_column(task.lag_ns, edges.tasks)
    )
    if edges.released_ns.size:
        task.duration_ns[-edges.released_ns.size :] = edges.released_ns
    return task


def _pad_column(values: Int64s, tasks: int) -> Int64s:
    """Return one value per task: zero for tasks after the given ones."""
    more = np.zeros(max(0, tasks - values.size), dtype=np.int64)
    return np.concatenate([values, more]) if more.size else values[:tasks]


def _wait_for_all_ranks(cells: CellColumns, ends: KindSet, lanes: Lanes, hub: int) -> Pairs:
    """Return edges from all computation through the task ``hub`` to rows of the kinds ``ends``."""
    waiting = np.flatnonzero(ends.mask(cells.kind)).astype(np.int32)
    last = _last_computations(lanes, cells.kind)
    return Pairs(
        np.concatenate([last, np.full(waiting.size, hub, dtype=np.int32)]),
        np.concatenate([np.full(last.size, hub, dtype=np.int32), waiting]),
    )


def _last_computations(lanes: Lanes, kind: Int8s) -> Int32s:
    """Return each rank's last pipeline row, without waits, on its compute stream and the streams of segments."""
    last: list[int] = []
    for lane in np.flatnonzero(np.isin(lanes.lane_stream, _COMPUTED)).tolist():
        low, high = int(lanes.lane_ptr[lane]), int(lanes.lane_ptr[lane + 1])
        segments = lanes.lane_stream[lane] != Stream.COMPUTE
        while high > low and (kind[high - 1] in _AFTER_PASSES or (segments and not _PASSES[kind[high - 1]])):
            high -= 1
        if high > low:
            last.append(high - 1)
    return np.array(last, dtype=np.int32)


def _wait_for_holders(cells: CellColumns, lanes: Lanes, placement: Placement) -> Pairs | None:
    """Return edges from a stage's last backward on each rank to its reductions on the other ranks."""
    kind, stage = cells.kind, cells.stage
    reductions = np.flatnonzero(kind == Kind.REDUCE_GRAD)
    reductions = reductions[placement.copies().sum(axis=0)[stage[reductions]] > 1]
    if not reductions.size:
        return None
    lane = np.repeat(np.arange(lanes.lane_rank.size), np.diff(lanes.lane_ptr))
    backward = np.flatnonzero(BACKWARD.mask(kind))
    last = np.full((lanes.lane_rank.size, placement.stages), -1, dtype=np.int64)
    np.maximum.at(last.ravel(), lane[backward] * placement.stages + stage[backward], backward)
    index, holder = np.nonzero(last.T[stage[reductions]] >= 0)
    row = reductions[index]
    remote = lanes.lane_rank[holder] != lanes.lane_rank[lane[row]]
    row, holder = row[remote], holder[remote]
    return Pairs(last[holder, stage[row]].astype(np.int32), row.astype(np.int32))


def _wait_for_replicas(cells: CellColumns, released_ns: Int64s, first: int, *, barrier: bool) -> Pairs | None:
    """Return edges to reductions and synchronizations from one task per stage of the other replicas.

    ``released_ns`` is the time at which they have computed the stage's gradients, and ``first`` the first task.
    With ``barrier``, reductions wait for all computation.
    """
    if not released_ns.any():
        return None
    rows = np.flatnonzero(_ENDS.mask(cells.kind)).astype(np.int32)
    all_computed = barrier | (cells.kind[rows] == Kind.SYNC)
    stage = np.where(all_computed, int(np.argmax(released_ns)), cells.stage[rows])
    return Pairs((first + stage).astype(np.int32), rows)


def _wait_for_meetings(cells: CellColumns, lanes: Lanes, meeting_ns: Int64s, first: int) -> Pairs:
    """Return edges from one task per collective to the collectives of the only rank; ``first`` is the first task.

    Raises:
        ScheduleError: the number of times is not that of collectives.
    """
    rows = find_collectives(cells.kind, lanes.lane_stream, lanes.lane_ptr)
    if rows.size != meeting_ns.size:
        raise ScheduleError(f"{meeting_ns.size} times of replicas for {rows.size} collectives: one each")
    return Pairs(np.arange(first, first + rows.size, dtype=np.int32), rows)


def find_collectives(kind: Int8s, lane_stream: Int8s, lane_ptr: Int32s) -> Int32s:
    """Return the rows of collectives of data-parallel replicas, rank by rank in the order of issue."""
    is_data_parallel = np.repeat(lane_stream == Stream.DATA_PARALLEL, np.diff(lane_ptr))
    return np.flatnonzero(is_data_parallel & (kind != Kind.RESHARD)).astype(np.int32)


def with_meetings(graph: TaskGraph) -> TaskGraph:
    """Return a graph in which a collective starts when all ranks have issued it: each rank is a replica of a unit.

    All ranks have the same collectives in the same order. A task without a row follows all that the collectives
    of one number wait for, and precedes these collectives.
    """
    rows = find_collectives(graph.kind, graph.lane_stream, graph.lane_ptr)
    count = rows.size // graph.placement.ranks
    meeting = np.full(graph.tasks, -1, dtype=np.int32)
    meeting[rows] = graph.tasks + np.tile(np.arange(count, dtype=np.int32), graph.placement.ranks)
    source = np.repeat(np.arange(graph.tasks, dtype=np.int32), np.diff(graph.edge_ptr))
    awaited = (graph.edge >= 0) & (meeting[graph.edge] >= 0)
    follows = (graph.next >= 0) & (meeting[graph.next] >= 0)
    edges = Pairs(
        np.concatenate([source, source[awaited], np.flatnonzero(follows).astype(np.int32), meeting[rows]]),
        np.concatenate([graph.edge, meeting[graph.edge[awaited]], meeting[graph.next[follows]], rows]),
    )
    ptr, edge = sort_edges(edges, graph.tasks + count)
    return replace(
        graph, edge_ptr=ptr, edge=edge,
        duration_ns=np.append(graph.duration_ns, np.zeros(count, dtype=np.int64)),
        lag_ns=np.append(graph.lag_ns, np.zeros(count, dtype=np.int64)),
        next=np.append(graph.next, unset(count)), next_peer=np.append(graph.next_peer, unset(count)),
    )  # fmt: skip


def _wait_for_actions(cells: CellColumns, waits: Sequence[Int32s], microbatches: int) -> Pairs | None:
    """Return the edges of :attr:`Schedule.waits`, each to the first row of the action that waits."""
    if not waits:
        return None
    stages = int(cells.stage.max(initial=0)) + 1

    def number(kind: Int32s, stage: Int32s, microbatch: Int32s) -> NDArray[np.int64]:
        return (kind.astype(np.int64) * stages + stage) * microbatches + microbatch

    wait = np.concatenate(waits)
    kinds = distinct(wait[:, [0, 3]])
    rows = np.flatnonzero(np.isin(cells.kind, kinds) & (cells.microbatch >= 0)).astype(np.int32)
    action = number(cells.kind[rows], cells.stage[rows], cells.microbatch[rows])
    order = np.argsort(action, kind="stable")
    rows, action = rows[order], action[order]
    awaited = np.searchsorted(action, number(*wait[:, :3].T), side="right") - 1
    return Pairs(rows[awaited], rows[np.searchsorted(action, number(*wait[:, 3:].T))])


def _wait_for_offloads(cells: CellColumns, lanes: Lanes) -> Pairs:
    """Return edges from copies to the host to copies back on lower ranks.

    Rows are linked rank by rank, so all other copies back are linked already.
    """
    rank = np.repeat(lanes.lane_rank, np.diff(lanes.lane_ptr))
    out, back = (_rows_by_microbatch(cells, kind) for kind in (Kind.OFFLOAD, Kind.RELOAD))
    lower = rank[back] < rank[out]
    return Pairs(out[lower].astype(np.int32), back[lower].astype(np.int32))


def _rows_by_microbatch(cells: CellColumns, kind: Kind) -> NDArray[np.int64]:
    """Return the row of a kind for each of its microbatches, ordered by stage and microbatch."""
    rows = np.flatnonzero(cells.kind == kind)
    number, stage, microbatch = microbatches_of(cells, rows)
    return rows[number[np.lexsort((microbatch, stage))]]


_LATE = (Kind.SYNC, Kind.OPTIMIZER)
"""Kinds that follow all reductions of their rank, in this order."""


def with_epilogue(schedule: Schedule, workload: Workload, *, overlap: bool) -> Schedule:
    """Add the reductions, synchronizations and optimizer updates that take time and are not in the table.

    With ``overlap``, a stage's reduction is issued right after its last backward on the rank. Otherwise all
    reductions are at the end of the row, without waits for them. Each rank synchronizes once, before its updates.
    In a table with several updates, a reduction precedes each update, and ranks do not synchronize.
    """
    takes = {kind: workload.duration_ns(kind) > 0 for kind in (Kind.REDUCE_GRAD, *_LATE)}
    if schedule.updates > 1:
        return _with_reductions(schedule, takes[Kind.REDUCE_GRAD])
    if overlap and not any(stages.any() for stages in takes.values()):
        return schedule
    key = "epilogue", overlap, *(stages.tobytes() for stages in takes.values())
    return memoized(lambda: _with_epilogue(schedule, takes, overlap=overlap), key, schedule, rows=len(schedule))


def _with_reductions(schedule: Schedule, takes: NDArray[np.bool_]) -> Schedule:
    """Add a reduction before each update of the stages that ``takes`` has, unless the table has reductions."""
    if not takes.any() or (schedule.kind == Kind.REDUCE_GRAD).any():
        return schedule
    update = np.flatnonzero(schedule.kind == Kind.OPTIMIZER)
    update = update[takes[schedule.stage[update]]]
    rank = schedule.rank_of_row()[update]
    columns = (update, rank, np.full(update.size, Kind.REDUCE_GRAD), schedule.stage[update])
    return insert_stage_actions(schedule, np.stack(columns))


def _with_epilogue(schedule: Schedule, takes: Mapping[Kind, NDArray[np.bool_]], *, overlap: bool) -> Schedule:
    """Add the actions that end the stages of a table; ``takes`` has the stages on which each kind takes time."""
    table = schedule if overlap else schedule.selected(np.flatnonzero(~_EPILOGUE.mask(schedule.kind)))
    last, ends = table.last_rows(BACKWARD.mask(table.kind)), table.row_ptr[1:, None]
    added = []
    for kind in (Kind.REDUCE_GRAD, *_LATE):
        needed, in_table = (last >= 0) & takes[kind], schedule.last_rows(schedule.kind == kind) >= 0
        if kind is Kind.SYNC:
            needed[:, 1:] &= ~np.logical_or.accumulate(needed, axis=1)[:, :-1]
        elif table is schedule:
            needed &= ~in_table
        else:
            needed |= in_table
        early = overlap and kind is Kind.REDUCE_GRAD
        position = group_ends(table.pair, table.row_ptr)[last] if early else np.broadcast_to(ends, last.shape)
        rank, stage = np.nonzero(needed)
        added.append(np.stack([position[rank, stage], rank, np.full(rank.size, kind), stage]))
    return insert_stage_actions(table, np.concatenate(added, axis=1))


class CallPart(NamedTuple):
    """A range of ranks whose calls are linked together."""

    first_rank: int
    end_rank: int
    tasks: int
    """Number of tasks that start and end calls."""
    edges: int
    """Upper bound of the number of edges of calls."""


class CallStates(NamedTuple):
    """One value per call of a program; empty without a program."""

    waited: Int32s = np.zeros(0, dtype=np.int32)
    """The first computation that waits for it; -1 if only consumers of its messages wait."""
    flags: Int8s = np.zeros(0, dtype=np.int8)
    """Bits that :mod:`pptrace.sim.kernels.edges` defines."""


class CallTasks(NamedTuple):
    """Tasks of a program's calls."""

    states: CallStates = CallStates()
    parts: Sequence[CallPart] = ()
    """All ranks."""

    @property
    def tasks(self) -> int:
        """Number of tasks that start and end calls."""
        return sum(part.tasks for part in self.parts)


def find_call_tasks(issued: IssueOrder, place: Int32s, fork: Int32s) -> CallTasks:
    """Classify the calls of an issue order.

    ``place`` has the index of each issued row, and ``fork`` the computation before each of these indices.
    """
    calls = issued.calls
    if calls is None:
        return CallTasks()
    (waited,), (flags,) = empty_columns(calls.before.size, np.int32), empty_columns(calls.before.size, np.int8)
    flags[:] = 0
    flags[calls.awaited] = flags[calls.earlier] = JOINED
    flags[calls.later] |= LAUNCHED
    ranks, tasks = halves(issued.row_ptr.size - 1, work=len(issued)), np.zeros(2, dtype=np.int64)
    edges = run_parts(
        classify_calls,
        [(*part, number) for number, part in enumerate(ranks)],
        (issued.row_ptr, issued.cells, TABLE, calls, place, fork),
        (waited, flags, tasks),
        work=len(issued),
    )
    parts = [CallPart(*part) for part in zip(*zip(*ranks, strict=True), tasks.tolist(), edges, strict=False)]
    return CallTasks(CallStates(waited, flags), parts)
