"""Flow ids of each slice: a message's producer, its transfer and its consumer share one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.model.action import COMMUNICATION
from pptrace.timeline.messages import messages

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Timeline

__all__ = ["FlowIds", "Flows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowIds:
    """The flow ids of each row."""

    row_ptr: Int32s
    """Shape (rows + 1,): row ``r`` has ``ids[row_ptr[r]:row_ptr[r + 1]]``."""
    ids: Int32s
    """Ids, not zero."""

    @classmethod
    def of(cls, rows: Int32s, ids: Int32s, size: int) -> Self:
        """Sort pairs of row and id by row; rows of -1 are left out."""
        rows, ids = rows[rows >= 0], ids[rows >= 0]
        per_row = np.bincount(rows, minlength=size)
        if per_row.max(initial=0) > 1:
            ids = ids[np.argsort(rows, kind="stable")]
        else:
            place = np.zeros(size, dtype=np.int32)
            place[rows] = ids
            ids = place[per_row > 0]
        return cls(row_ptr=np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32), ids=ids)

    @property
    def per_row(self) -> Int32s:
        """How many each row has."""
        return np.diff(self.row_ptr)

    def at(self, rows: Int32s, place: int) -> Int32s:
        """Return the rows' ids at ``place``, -1 for rows that have fewer."""
        index = self.row_ptr[rows] + place
        inside = index < self.row_ptr[rows + 1]
        found = np.full(rows.size, -1, dtype=np.int32)
        found[inside] = self.ids[index[inside]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """What a timeline's messages give to its slices."""

    leaving: FlowIds
    """``flow_ids``: of producers and transfers."""
    ending: FlowIds
    """``terminating_flow_ids``: of consumers."""
    peer: Int32s
    """The rank at a transfer's other end, -1 where there is none or none known."""

    @classmethod
    def of(cls, timeline: Timeline, first_row: int) -> Self:
        """Find them; a flow's id is its transfer's row, counted from 1 over all ranks."""
        found = messages(timeline)
        ids = np.where(found.send >= 0, found.send, found.recv) + np.int32(first_row + 1)
        rows = np.concatenate([found.producer, found.send, found.recv])
        return cls(
            leaving=FlowIds.of(rows, np.tile(ids, 3), len(timeline)),
            ending=FlowIds.of(found.consumer, ids, len(timeline)),
            peer=_peers(timeline, found),
        )


def _peers(timeline: Timeline, found: Messages) -> Int32s:
    """Take the lane's peer where it serves one only, else the rank of the message's other end."""
    rank, sizes = timeline.rank_of_row(), np.diff(timeline.lane_ptr)
    peer = np.repeat(timeline.lane_peer, sizes)
    open_ended = (peer < 0) & np.isin(timeline.kind, tuple(COMMUNICATION))
    if not open_ended.any():
        return peer
    other = np.full(len(timeline), -1, dtype=np.int32)
    for here, near, far in ((found.send, found.recv, found.consumer), (found.recv, found.send, found.producer)):
        there = np.where(near >= 0, near, far)
        known = (here >= 0) & (there >= 0)
        other[here[known]] = rank[there[known]]
    return np.where(open_ended, other, peer)
