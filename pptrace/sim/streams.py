"""Streams of the rows of a table, and limits of their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from pptrace.config.choices import PolicyName, StreamPer
from pptrace.errors import CostError, ScheduleError
from pptrace.sim.kernels import edges as edges_kernels
from pptrace.sim.kernels import placement as placement_kernels
from pptrace.sim.kernels.placement import BYTE
from pptrace.steps.columns import empty_columns, uniform, unset
from pptrace.steps.kinds import COMMUNICATION, HOST_STATE, TABLE, Kind, Stream
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.steps.actions import CellColumns
    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.steps.kinds import KindTable
    from pptrace.steps.message_calls import IssueOrder, Policy
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule, StageGraph
    from pptrace.steps.workload import Workload


class LaneColumns(NamedTuple):
    """Lane of each issued row."""

    peer: Int32s
    """Each message's other rank, -1 for other rows."""
    group: Int32s
    """Each message's group of adjacent messages, -1 for other rows; empty without batches."""
    of_stream: Int32s
    """Lane of each stream, counted from the rank's first lane."""
    width: int
    """Most lanes of a rank: a lane's key is rank * width + its number."""


class CostColumns(NamedTuple):
    """Costs of actions, flat over microbatch class, kind and stage."""

    classes: int
    """Number of classes of microbatches."""
    width: int
    """Kinds times stages: values of one class."""
    class_of: Int32s
    """Shape (microbatches,): each microbatch's class; empty where there is one class."""
    duration_ns: Int64s
    """Duration of one microbatch."""
    collective_ns: Int64s
    """The part in which tensor, context or expert parallel groups communicate."""
    boundary_bytes: Int64s
    """Bytes of one microbatch over each edge, by class, direction (forward first) and edge."""


class RouteColumns(NamedTuple):
    """Paths between ranks."""

    pair_of: Int32s
    """Shape (ranks x ranks,): the first path from one rank to another."""
    first_link: int
    """The first path over a single link; segments name these paths by index."""
    per_pair: int
    """Paths of one pair, and of one link."""
    overhead_ns: Int64s
    """Launch overhead of each path."""
    latency_ns: Int64s
    """Wire latency of each path."""
    rate_kbps: Int64s
    """Rate of each path; 0 if bytes take no time."""


class Rules(NamedTuple):
    """A point-to-point policy."""

    mode: int
    """Streams of a message's two sides."""
    receive: int
    """Task of the receiver's side."""
    batched: int
    """Whether adjacent messages are one launch and one wait."""
    eager_bytes: int
    """The largest message that does not wait for its receiver, -1 for none."""
    rows: int
    """Number of issued rows; launches and joins of batches are the next tasks."""
    called: int = 0
    """Whether the calls of a program define which rows wait for messages."""


class Endpoints(NamedTuple):
    """Rows that are endpoints of edges, by stage, edge and microbatch."""

    made_at: Int32s
    """Shape (2 x stages x microbatches,): row of each activation, then of each gradient; the first segment."""
    recv_at: Int32s
    """Shape (2 x edges x microbatches,): the receiver's row of each message; empty without receives."""
    send_at: Int32s
    """The sender's row of each message, in the same shape; empty without calls."""


class TaskColumns(NamedTuple):
    """Durations and sizes of rows in the order of lanes."""

    size_bytes: Int64s
    path: Int32s
    fork: Int32s
    collective_ns: Int64s
    duration_ns: Int64s
    lag_ns: Int64s


class PartColumns(NamedTuple):
    """Segments, one value per issued row; empty columns if no action consists of segments."""

    number: Int32s
    """Index of the segment in its action; -1 for a row that is a whole action or a message."""
    stream: Int32s
    """Its stream; -1 as above."""
    duration_ns: Int64s
    """Its duration."""
    collective_ns: Int64s
    """The part of a computation's duration in which it communicates."""
    release: Int32s
    """Row of the computation after which it is issued; -1 for the previous one of its rank, -2 for none."""
    path: Int32s
    """Index of the path over a single link, -1 for none."""
    size_bytes: Int64s
    """Bytes that it transfers."""


class RowColumns(NamedTuple):
    """Issued rows, and the tables that kernels read with them."""

    row_ptr: Int32s
    """Shape (ranks + 1,): rows of each rank."""
    cells: CellColumns
    """Action of each row."""
    edge: Int32s
    """Edge between stages of each message."""
    graph: StageGraph
    """Stages and their edges."""
    kinds: KindTable
    """Properties of kinds of actions."""
    parts: PartColumns
    """Segments."""
    lanes: LaneColumns
    """Lane of each row."""
    rules: Rules
    """The point-to-point policy."""


class Pairs(NamedTuple):
    """Edges from a source to a target that waits for its end; ``-1 - target`` waits for its start."""

    source: Int32s
    target: Int32s


_STREAMS = {
    StreamPer.RANK: placement_kernels.PER_RANK,
    StreamPer.PAIR: placement_kernels.PER_PAIR,
    StreamPer.DIRECTION: placement_kernels.PER_DIRECTION,
}


_RANK_STREAMS = (
    Stream.COPY_OUT, Stream.COPY_IN, Stream.DATA_PARALLEL,
    Stream.TENSOR_PARALLEL, Stream.EXPERT_PARALLEL, Stream.CONTEXT_PARALLEL,
)  # fmt: skip
"""Streams that occur once per rank, in the order of their lanes after the lanes of peers."""


class Lanes(Struct, frozen=True):
    """The lanes of an issue order."""

    mode: int
    """Streams of a message's two sides (see the kernels)."""
    columns: LaneColumns
    """Each row's lane."""
    groups: int
    """Number of groups of adjacent messages."""
    sends_to: NDArray[np.bool_]
    """Shape (ranks x ranks,): whether one rank sends to another."""
    first: Int32s
    """First task row of each lane key."""
    lane_rank: Int32s
    """As in the timeline, like the next three columns."""
    lane_stream: Int8s
    lane_peer: Int32s
    lane_ptr: Int32s


def assign_lanes(
    issued: IssueOrder, kinds: NDArray[np.intp], policy: Policy, parts: PartColumns, graph: StageGraph, *,
    one_copy_stream: bool = False,
) -> Lanes:  # fmt: skip
    """Assign a lane to every row; every rank has a compute lane, and other lanes as needed.

    Rows have the given ``kinds``. With ``one_copy_stream``, copies to and from the host share a lane.
    """
    ranks, mode = graph.ranks, _mode(policy)
    lane_of_stream = np.zeros(len(Stream), dtype=np.int32)
    lane_of_stream[list(_RANK_STREAMS)] = 2 + 3 * ranks + np.arange(len(_RANK_STREAMS))
    if one_copy_stream:
        lane_of_stream[Stream.COPY_IN] = lane_of_stream[Stream.COPY_OUT]
    width = 2 + 3 * ranks + len(_RANK_STREAMS)
    if issued.sent.size and not parts.stream.size and mode == placement_kernels.PER_DIRECTION:
        columns = LaneColumns(issued.peer, unset(0), lane_of_stream, width)
        groups, count, sends_to = 0, _count_rows(issued, kinds, columns), issued.sent > 0
    else:
        columns, groups, count, sends_to = _key_lanes(issued, policy, parts, graph, lane_of_stream, width)
    occupied = count > 0
    occupied[::width] = True
    used = np.flatnonzero(occupied)
    lane_ptr = np.concatenate([[0], np.cumsum(count[used])]).astype(np.int32)
    first = np.zeros(count.size, dtype=np.int32)
    first[used] = lane_ptr[:-1]
    stream, peer_of_offset = _streams(ranks)
    return Lanes(
        mode=mode, columns=columns, groups=groups, sends_to=sends_to, first=first,
        lane_rank=(used // width).astype(np.int32), lane_stream=stream[used % width],
        lane_peer=peer_of_offset[used % width], lane_ptr=lane_ptr,
    )  # fmt: skip


def kinds_of(placement: Placement) -> KindTable:
    """Return the table of kinds for a placement, with the stream of each kind."""
    return HOST_STATE if placement.has_host_state else TABLE


def _key_lanes(
    issued: IssueOrder, policy: Policy, parts: PartColumns, graph: StageGraph, lane_of_stream: Int32s, width: int
) -> tuple[LaneColumns, int, Int32s, NDArray[np.bool_]]:
    """Return each row's lane, the number of message groups, rows per lane key, and rank pairs with messages."""
    rows, ranks = len(issued), graph.ranks
    grouped = policy.name is PolicyName.BATCHED and issued.calls is None
    (peer,), group = empty_columns(rows, np.int32), unset(rows if grouped else 0)
    columns = LaneColumns(peer, group, lane_of_stream, width)
    count, sends_to = np.zeros(ranks * width, dtype=np.int32), np.zeros(ranks * ranks, dtype=np.int8)
    groups = run(
        placement_kernels.key_lanes,
        (issued.row_ptr, issued.cells, issued.edge, graph, kinds_of(issued.placement), parts, _mode(policy)),
        (columns, count, sends_to),
        work=rows,
    )
    return columns, groups, count, sends_to.astype(bool)


def _count_rows(issued: IssueOrder, kinds: NDArray[np.intp], lanes: LaneColumns) -> Int32s:
    """Return the number of rows per lane key, with one lane per peer and direction, without a pass over rows."""
    ranks = issued.row_ptr.size - 1
    count, between = np.zeros((ranks, lanes.width), dtype=np.int32), issued.sent.reshape(ranks, ranks)
    sends = 2 + ranks
    count[:, sends : sends + ranks] = between
    if issued.calls is not None:  # only calls have rows of receivers
        count[:, sends + ranks : sends + 2 * ranks] = between.T
    lane = lanes.of_stream[kinds_of(issued.placement).stream]
    for kind in kinds[~COMMUNICATION.mask(kinds) & (lane[kinds] != lane[Kind.F])].tolist():
        rows = np.flatnonzero(np.equal(issued.kind, kind))
        ends = np.searchsorted(rows, issued.row_ptr)
        count[:, lane[kind]] += np.diff(ends).astype(np.int32)
    count[:, lane[Kind.F]] = np.diff(issued.row_ptr) - count.sum(axis=1)  # all other rows compute
    return count.ravel()


def _mode(policy: Policy) -> int:
    if policy.name is PolicyName.ORDERED:
        return _STREAMS[policy.stream]
    return placement_kernels.ON_COMPUTE if policy.blocks else placement_kernels.PER_DIRECTION


def _streams(ranks: int) -> tuple[Int8s, Int32s]:
    """Return the stream and the peer of each lane key's offset within its rank."""
    peers = np.arange(ranks, dtype=np.int32)
    none, no_peer = np.full(1, -1, dtype=np.int32), np.full(len(_RANK_STREAMS), -1, dtype=np.int32)
    stream = np.repeat(
        [Stream.COMPUTE, Stream.COMM, Stream.COMM, Stream.SEND, Stream.RECV, *_RANK_STREAMS],
        [1, 1, ranks, ranks, ranks, *(1 for _ in _RANK_STREAMS)],
    ).astype(np.int8)
    return stream, np.concatenate([none, none, peers, peers, peers, no_peer])


class Linked(Struct, frozen=True):
    """Dependencies between tasks."""

    sender_row: Int32s
    """The sender's row of each receiver's row."""
    batch_next: Int32s
    """The chain of batches."""
    edges: Pairs
    """Edges that no stream implies."""
    chains: tuple[Int32s, Int32s] | None
    """Per task the next call of its communicator, and that of the receiver; None without calls."""


def chain_streams(
    lanes: Mapping[str, NDArray[np.integer]], linked: Linked, tasks: int, rules: Rules
) -> tuple[Int32s, Int32s]:
    """Return each task's successor on its stream, and on the receiver's stream of a rendezvous; -1 for none."""
    if linked.chains is None:
        has_peers = rules.receive or rules.mode == placement_kernels.ON_COMPUTE
        (following,) = [unset(tasks)] if has_peers else empty_columns(tasks, np.int32)
        following_peer = unset(tasks) if has_peers else uniform(-1, tasks)
    else:
        following, following_peer = linked.chains
    first, end = lanes["lane_ptr"][:-1], lanes["lane_ptr"][1:]
    if linked.chains is not None:  # messages follow one another by communicator, not by lane
        has_no_message = ~np.isin(lanes["lane_stream"], (Stream.SEND, Stream.RECV))
        first, end = first[has_no_message], end[has_no_message]
    run(
        edges_kernels.chain_tasks,
        (first, end, linked.sender_row, rules.batched),
        (following, following_peer),
        work=rules.rows,
    )
    if linked.chains is None:
        following[rules.rows :] = -1
    following[rules.rows : rules.rows + linked.batch_next.size] = linked.batch_next
    return following, following_peer


def wait_for_sends(edges: Pairs, task: TaskColumns, following_peer: Int32s) -> Pairs:
    """Chain the row after a message that blocks the compute stream; return the remaining edges.

    An edge from a message releases its target when the data arrive; the sender continues when the data have left.
    """
    rows = task.fork.size
    blocking = (edges.target >= 0) & (edges.target < rows) & (edges.source < rows)
    source, target = edges.source[blocking], edges.target[blocking]
    blocking[blocking] = (task.fork[target] == source) & (task.lag_ns[source] > 0)
    sends, first = np.unique(edges.source[blocking], return_index=True)
    following_peer[sends] = edges.target[blocking][first]
    kept = np.ones(blocking.size, dtype=bool)
    kept[np.flatnonzero(blocking)[first]] = False
    return Pairs(edges.source[kept], edges.target[kept])


def sort_edges(edges: Pairs, tasks: int) -> tuple[Int32s, Int32s]:
    """Return the edges grouped by source: offsets and targets."""
    count = edges.source.size
    ptr, edge = empty_columns(max(tasks + 1, count), np.int32, np.int32)
    ptr, edge = ptr[: tasks + 1], edge[:count]
    ptr[:] = 0
    run(edges_kernels.sort_edges, (*edges, count), (ptr, edge), work=tasks)
    return ptr, edge


LARGEST = 2**62
"""Bound of sums of times and of sizes, so that no integer overflows."""

MOST_RANKS = 4096
"""Lanes are counted for each pair of ranks."""


def check_costs(schedule: Schedule, workload: Workload) -> None:
    """Check that the costs match the schedule, and that sums of them fit into 62 bits.

    Raises:
        ScheduleError: there are too many ranks, or the number of stages or boundaries differs.
        CostError: a cost is negative or too large.
    """
    if schedule.ranks > MOST_RANKS:
        raise ScheduleError(f"{schedule.ranks} pipeline ranks: at most {MOST_RANKS} are simulated")
    if workload.stages != schedule.stages:
        raise ScheduleError(f"the costs are for {workload.stages} stages, the schedule has {schedule.stages}")
    placement = schedule.placement
    boundaries = placement.edges.shape[0]
    if workload.boundary_bytes.size != boundaries:
        raise ScheduleError(
            f"the costs know {workload.boundary_bytes.size} boundaries between stages, "
            f"the schedule has {boundaries}"
        )
    widest = int(schedule.span.max(initial=1))
    columns = {
        name: values for name, values in asdict(workload).items() if isinstance(values, np.ndarray) and values.size
    }
    every_value = np.concatenate([*columns.values()])
    largest = int(every_value.max()) * widest
    if int(every_value.min()) < 0 or largest >= LARGEST:
        for name, values in columns.items():
            _check_column(name, values, widest)
    if largest * BYTE >= LARGEST:  # otherwise every message is small enough
        message = int(workload.edge_bytes.max(initial=0)) * widest
        if message * BYTE >= LARGEST:
            raise CostError(f"a message of {message} bytes is too large")
    values = (4 + placement.microbatches) * schedule.stages + 4 * placement.routes * boundaries
    may_be_large = values * largest + workload.reserved_bytes >= LARGEST
    if may_be_large and _most_bytes(schedule, workload) >= LARGEST:
        raise CostError("a rank's memory could pass 2**62 bytes (4 EiB)")


def check_total(ranks: int, duration_ns: Int64s, lag_ns: Int64s) -> None:
    """Check that the sum of all times of tasks fits into 62 bits.

    Raises:
        CostError: the sum could exceed 2**62 ns.
    """
    longest_ns = int(duration_ns.max(initial=0)) + int(lag_ns.max(initial=0))
    if longest_ns * duration_ns.size * ranks < LARGEST:
        return  # the usual case, without a sum
    total = float(duration_ns.sum(dtype=np.float64)) + float(lag_ns.sum(dtype=np.float64))
    if total * ranks >= LARGEST:
        raise CostError(f"the step's times on {ranks} ranks sum to more than 2**62 ns (146 years)")


def _check_column(name: str, values: Int64s, widest: int) -> None:
    low, high = int(np.argmin(values)), int(np.argmax(values))
    if int(values[low]) >= 0 and int(values[high]) * widest < LARGEST:
        return
    row, fault = (low, "below zero") if values[low] < 0 else (high, "too large")
    of = "boundary" if name.startswith("boundary") else "rank" if name.startswith("rank") else "stage"
    raise CostError(f"{name} of {of} {row} is {fault} ({values[row]})")


def _most_bytes(schedule: Schedule, workload: Workload) -> int:
    """Return the memory of a rank that holds all stages of all microbatches: an upper bound."""
    placement = schedule.placement
    columns = (
        workload.weights_bytes, workload.gradients_bytes, workload.optimizer_bytes, workload.transient_bytes,
    )  # fmt: skip
    # Sums of Python's integers do not overflow.
    static = sum(sum(column.tolist()) for column in columns) + workload.reserved_bytes
    buffers = 2 * placement.routes * sum(workload.buffer_bytes.ravel().tolist())
    activations = placement.microbatches * sum(workload.activation_bytes.tolist())
    return int(static + buffers + activations)
