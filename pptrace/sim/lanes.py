"""Which stream each issued row occupies under a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.model.columns import passing, unset
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import COMMUNICATION, Kind, Stream, present
from pptrace.record import dataclass
from pptrace.schedule.policy import Policy, PolicyName, StreamPer
from pptrace.sim.kernels import placing, rules
from pptrace.sim.records import LaneColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int8s, Int32s
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.neighbours import StageGraph
    from pptrace.sim.records import PartColumns

__all__ = ["Lanes", "assign_lanes"]

_STREAMS = {
    StreamPer.RANK: rules.PER_RANK,
    StreamPer.PAIR: rules.PER_PAIR,
    StreamPer.DIRECTION: rules.PER_DIRECTION,
}


_BEHIND_PEERS = (
    Stream.COPY_OUT, Stream.COPY_IN, Stream.DATA_PARALLEL,
    Stream.TENSOR_PARALLEL, Stream.EXPERT_PARALLEL, Stream.CONTEXT_PARALLEL,
)  # fmt: skip
"""Streams of which a rank has one, in the order of lanes behind those of peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lanes of an issue order, and each row's."""

    mode: int
    """Where a message's two sides are (see the kernels)."""
    columns: LaneColumns
    """Each row's lane."""
    groups: int
    """Number of groups of neighbouring messages."""
    sends_to: NDArray[np.bool_]
    """Shape (ranks x ranks,): whether one rank sends to another."""
    first: Int32s
    """First task row of each lane key."""
    lane_rank: Int32s
    """As the timeline's, like the three below."""
    lane_stream: Int8s
    lane_peer: Int32s
    lane_ptr: Int32s


def assign_lanes(
    issued: IssueOrder, policy: Policy, parts: PartColumns, graph: StageGraph, *, one_copy_stream: bool = False
) -> Lanes:
    """Give every row its lane; every rank has a compute lane, and other lanes as needed.

    With ``one_copy_stream``, copies back from the host are on the lane of those out.
    """
    ranks, mode = graph.ranks, _mode(policy)
    lane_of_stream = np.zeros(len(Stream), dtype=np.int32)
    lane_of_stream[list(_BEHIND_PEERS)] = 2 + 3 * ranks + np.arange(len(_BEHIND_PEERS))
    if one_copy_stream:
        lane_of_stream[Stream.COPY_IN] = lane_of_stream[Stream.COPY_OUT]
    width = 2 + 3 * ranks + len(_BEHIND_PEERS)
    if issued.calls is not None and not parts.stream.size and mode == rules.PER_DIRECTION:
        columns = LaneColumns(issued.calls.peer, unset(0), lane_of_stream, width)
        groups, count, sends_to = 0, _count_calls(issued, issued.calls.sent, columns), issued.calls.sent > 0
    else:
        columns, groups, count, sends_to = _keyed(issued, policy, parts, graph, lane_of_stream, width)
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


def _keyed(
    issued: IssueOrder, policy: Policy, parts: PartColumns, graph: StageGraph, lane_of_stream: Int32s, width: int
) -> tuple[LaneColumns, int, Int32s, NDArray[np.bool_]]:
    """Return each row's lane, the groups of neighbouring messages, rows of each key, and who sends to whom."""
    rows, ranks = len(issued), graph.ranks
    grouped = policy.name is PolicyName.BATCHED and issued.calls is None
    (peer,), group = passing(rows, np.int32), unset(rows if grouped else 0)
    columns = LaneColumns(peer, group, lane_of_stream, width)
    count, sends_to = np.zeros(ranks * width, dtype=np.int32), np.zeros(ranks * ranks, dtype=np.int8)
    groups = run(
        placing.key_lanes,
        (issued.row_ptr, issued.cells, issued.edge, graph, TABLE, parts, _mode(policy)),
        (columns, count, sends_to),
        work=rows,
    )
    return columns, groups, count, sends_to.astype(bool)


def _count_calls(issued: IssueOrder, sent: Int32s, lanes: LaneColumns) -> Int32s:
    """Return the rows of each lane key of a program's calls, of whose messages it is known who sends to whom."""
    ranks = issued.row_ptr.size - 1
    count, between = np.zeros((ranks, lanes.width), dtype=np.int32), sent.reshape(ranks, ranks)
    first = 2 + ranks
    count[:, first : first + ranks], count[:, first + ranks : first + 2 * ranks] = between, between.T
    kinds = present(issued.kind)
    lane = lanes.of_stream[TABLE.stream]
    for kind in kinds[~COMMUNICATION.mask(kinds) & (lane[kinds] != lane[Kind.F])].tolist():
        rows = np.flatnonzero(np.equal(issued.kind, kind))
        ends = np.searchsorted(rows, issued.row_ptr)
        count[:, lane[kind]] += np.diff(ends).astype(np.int32)
    count[:, lane[Kind.F]] = np.diff(issued.row_ptr) - count.sum(axis=1)  # all else computes
    return count.ravel()


def _mode(policy: Policy) -> int:
    if policy.name is PolicyName.ORDERED:
        return _STREAMS[policy.stream]
    return rules.ON_COMPUTE if policy.blocks else rules.PER_DIRECTION


def _streams(ranks: int) -> tuple[Int8s, Int32s]:
    """Return the stream and the peer of each lane key's offset within its rank."""
    peers = np.arange(ranks, dtype=np.int32)
    none, behind = np.full(1, -1, dtype=np.int32), np.full(len(_BEHIND_PEERS), -1, dtype=np.int32)
    stream = np.repeat(
        [Stream.COMPUTE, Stream.COMM, Stream.COMM, Stream.SEND, Stream.RECV, *_BEHIND_PEERS],
        [1, 1, ranks, ranks, ranks, *(1 for _ in _BEHIND_PEERS)],
    ).astype(np.int8)
    return stream, np.concatenate([none, none, peers, peers, peers, behind])
