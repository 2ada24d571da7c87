"""Which stream each issued row occupies under a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.sim.kernels import lowering
from pptrace.sim.policy import Policy, PolicyName, StreamPer
from pptrace.timeline.timeline import Stream

if TYPE_CHECKING:
    from pptrace.model.columns import Int8s, Int32s
    from pptrace.schedule.issue_order import IssueOrder

__all__ = ["Lanes", "assign_lanes"]

_STREAMS = {
    StreamPer.RANK: lowering.PER_RANK,
    StreamPer.PAIR: lowering.PER_PAIR,
    StreamPer.DIRECTION: lowering.PER_DIRECTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lanes of an issue order, and each row's."""

    mode: int
    """Where a message's two sides are (see the kernels)."""
    key: Int32s
    """Each row's lane key."""
    peer: Int32s
    """Each message's other rank, -1 for other rows."""
    group: Int32s
    """Each message's group of neighbours in its row, -1 for other rows."""
    groups: int
    """Number of groups."""
    first: Int32s
    """First task row of each lane key."""
    lane_rank: Int32s
    """As the timeline's, like the three below."""
    lane_stream: Int8s
    lane_peer: Int32s
    lane_ptr: Int32s


def assign_lanes(issued: IssueOrder, policy: Policy) -> Lanes:
    """Give every row its lane; every rank has a compute lane, and other lanes as needed."""
    placement, rows = issued.placement, len(issued)
    ranks = placement.ranks
    mode = _mode(policy)
    key, peer = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.int32)
    group = np.empty(rows, dtype=np.int32)
    count = np.zeros(ranks * (5 + 3 * ranks), dtype=np.int32)
    groups = run(
        lowering.key_lanes,
        (
            issued.row_ptr, issued.kind, issued.unit, issued.edge,
            placement.edges[:, 0].copy(), placement.edges[:, 1].copy(),
            placement.stage_rank.ravel(), placement.unit_route, placement.stages, mode,
        ),
        (key, peer, group, count),
        work=rows,
    )  # fmt: skip
    width = 5 + 3 * ranks
    count_of = count.reshape(ranks, width)
    occupied = count > 0
    occupied[::width] = True
    used = np.flatnonzero(occupied)
    lane_ptr = np.concatenate([[0], np.cumsum(count[used])]).astype(np.int32)
    first = np.zeros(count_of.size, dtype=np.int32)
    first[used] = lane_ptr[:-1]
    stream, peer_of_offset = _streams(ranks)
    return Lanes(
        mode=mode, key=key, peer=peer, group=group, groups=groups, first=first,
        lane_rank=(used // width).astype(np.int32), lane_stream=stream[used % width],
        lane_peer=peer_of_offset[used % width], lane_ptr=lane_ptr,
    )  # fmt: skip


def _mode(policy: Policy) -> int:
    if policy.name is PolicyName.ORDERED:
        return _STREAMS[policy.stream]
    blocks = policy.name in {PolicyName.BLOCKING, PolicyName.SENDER_BLOCKING}
    return lowering.ON_COMPUTE if blocks else lowering.PER_DIRECTION


def _streams(ranks: int) -> tuple[Int8s, Int32s]:
    """Return the stream and the peer of each lane key's offset within its rank."""
    peers = np.arange(ranks, dtype=np.int32)
    none = np.full(1, -1, dtype=np.int32)
    stream = np.repeat(
        [Stream.COMPUTE, Stream.COMM, Stream.COMM, Stream.SEND, Stream.RECV,
         Stream.COPY_OUT, Stream.COPY_IN, Stream.DATA_PARALLEL],
        [1, 1, ranks, ranks, ranks, 1, 1, 1],
    ).astype(np.int8)  # fmt: skip
    return stream, np.concatenate([none, none, peers, peers, peers, none, none, none])
