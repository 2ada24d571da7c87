"""Flow ids of each slice: a message's producer, its transfer and its consumer share one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.timeline.messages import messages
from pptrace.traces.scene import CARRIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.steps.columns import Int32s
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Timeline

__all__ = ["PATH", "FlowIds", "Flows"]

PATH = 2**31 - 1
"""The flow that passes the slices of the critical path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowIds:
    """The flow ids of each row."""

    row_ptr: Int32s
    """Shape (rows + 1,): row ``r`` has ``ids[row_ptr[r]:row_ptr[r + 1]]``."""
    ids: Int32s
    """Ids, not zero."""

    @classmethod
    def of(cls, ends: Sequence[Int32s], ids: Int32s, size: int) -> Self:
        """Sort the ids by their rows; each array of ``ends`` has one end of each flow, -1 for none."""
        of_row = np.full(size + 1, -1, dtype=np.int32)
        for rows in ends:
            of_row[rows] = ids
        has = of_row[:-1] >= 0
        row_ptr = np.zeros(size + 1, dtype=np.int32)
        if np.count_nonzero(has) == sum(np.count_nonzero(rows >= 0) for rows in ends):
            np.cumsum(has, out=row_ptr[1:])
            return cls(row_ptr=row_ptr, ids=of_row[:-1][has])
        rows, repeated = np.concatenate(ends), np.tile(ids, len(ends))
        rows, repeated = rows[rows >= 0], repeated[rows >= 0]
        np.cumsum(np.bincount(rows, minlength=size), out=row_ptr[1:])
        return cls(row_ptr=row_ptr, ids=repeated[np.argsort(rows, kind="stable")])

    def passing(self, flow: int, rows: Int32s) -> Self:
        """Return the same with one more flow that passes some rows, in each of them last."""
        ends = self.row_ptr[rows + 1]
        order = np.argsort(ends, kind="stable")
        more = np.zeros(self.row_ptr.size, dtype=np.int32)
        np.add.at(more, rows + 1, 1)
        return replace(
            self, row_ptr=self.row_ptr + np.cumsum(more, dtype=np.int32),
            ids=np.insert(self.ids, ends[order], np.int32(flow)),
        )  # fmt: skip

    @property
    def per_row(self) -> Int32s:
        """How many each row has."""
        return np.diff(self.row_ptr)

    def at(self, rows: Int32s, place: int) -> Int32s:
        """Return the rows' ids at ``place``, -1 for rows that have fewer."""
        index = self.row_ptr.take(rows) + place
        inside = index < self.row_ptr[1:].take(rows)
        if inside.all():
            return self.ids.take(index)
        ids = np.full(rows.size, -1, dtype=np.int32)
        ids[inside] = self.ids[index[inside]]
        return ids


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
        leaving = FlowIds.of([found.producer, found.send, found.recv], ids, len(timeline))
        if timeline.why is not None:
            leaving = leaving.passing(PATH, np.unique(timeline.why.path.row - first_row))
        return cls(
            leaving=leaving,
            ending=FlowIds.of([found.consumer], ids, len(timeline)),
            peer=_peers(timeline, found),
        )


def _peers(timeline: Timeline, found: Messages) -> Int32s:
    """Take the lane's peer where it serves one only, else the rank of the message's other end."""
    rank, sizes = timeline.rank_of_row(), np.diff(timeline.lane_ptr)
    peer = np.repeat(timeline.lane_peer, sizes)
    open_ended = (peer < 0) & CARRIES[timeline.kind]
    if not open_ended.any():
        return peer
    other = np.full(len(timeline), -1, dtype=np.int32)
    for here, near, far in ((found.send, found.recv, found.consumer), (found.recv, found.send, found.producer)):
        there = np.where(near >= 0, near, far)
        known = (here >= 0) & (there >= 0)
        other[here[known]] = rank[there[known]]
    return np.where(open_ended, other, peer)
