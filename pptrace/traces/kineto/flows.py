"""Flows from a message's producer through its transfer to its consumer, and along the critical path, as points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.timeline.messages import messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Timeline
    from pptrace.traces.scene import Hops, Scene

START, STEP, END = range(3)
"""Phases ``s``, ``t`` and ``f`` of a flow."""

_AT_ONCE = 1 << 14
"""Messages that are taken at once: as many as the processor's nearer caches hold."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of flows, sorted by their row of the timeline; points on hops follow those on rows."""

    row_ptr: Int64s
    """Shape (rows + hops + 1,): row ``r`` has the points ``row_ptr[r]:row_ptr[r + 1]``."""
    phase: Int8s
    """:data:`START`, :data:`STEP` or :data:`END`."""
    at_ns: Int64s
    """A time within the row's slice."""
    flow: Int32s
    """What the points of one flow share: the row of its transfer, or on the critical path of its first slice."""
    on_path: NDArray[np.bool_]
    """Whether it is a flow along the critical path, whose numbers are not those of messages."""

    def at_once(self, rows: slice) -> int:
        """Return the most flows that touch one of some rows."""
        return int(np.diff(self.row_ptr[rows.start : rows.stop + 1]).max(initial=0))


def flow_points(scene: Scene) -> Points:
    """Return all flows that touch two slices at least; hop ``h`` counts as row ``rows + h``."""
    timeline, hops = scene.timeline, scene.hops
    row, phase, at, flow = _of_messages(timeline, hops)
    along = _of_path(timeline, scene.first_row)
    on_path = np.repeat([False, True], [row.size, along[0].size])
    row, phase = np.concatenate([row, along[0]]), np.concatenate([phase, along[1]])
    at, flow = np.concatenate([at, along[2]]), np.concatenate([flow, along[3]])
    order = np.argsort(row, kind="stable")
    return Points(
        row_ptr=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(timeline) + len(hops)))]),
        phase=phase[order], at_ns=at[order], flow=flow[order], on_path=on_path[order],
    )  # fmt: skip


def _of_path(timeline: Timeline, first_row: int) -> tuple[Int32s, Int8s, Int64s, Int32s]:
    """Return rows, phases, times and numbers of arrows between slices that follow each other on the critical path.

    An arrow leaves its slice late and enters the next early, as those of messages do. There is none where a part
    of the path in between is not in the timeline, or where clocks of measured ranks disagree.
    """
    path = None if timeline.why is None else timeline.why.path
    if path is None or not len(path):
        nothing = np.zeros(0, dtype=np.int32)
        return nothing, nothing.astype(np.int8), nothing.astype(np.int64), nothing
    turn = np.flatnonzero((path.row[1:] != path.row[:-1]) & (path.start_ns[1:] == path.end_ns[:-1]))
    source, target = path.row[turn] - np.int32(first_row), path.row[turn + 1] - np.int32(first_row)
    start_ns, end_ns = timeline.start_ns, timeline.end_ns
    # where both points are at one time the order in the file decides, and that is the rows'
    leaves = np.minimum(np.maximum(start_ns[source], end_ns[source] - 1), start_ns[target] - (target < source))
    leaves = np.maximum(leaves, start_ns[source])
    enters = np.maximum(start_ns[target], leaves + (target < source))
    kept = enters <= np.maximum(start_ns[target], end_ns[target] - 1)
    row = np.concatenate([source[kept], target[kept]])
    phase = np.repeat(np.array([START, END], dtype=np.int8), int(kept.sum()))
    return row, phase, np.concatenate([leaves[kept], enters[kept]]), np.tile(source[kept], 2)


def _of_messages(timeline: Timeline, hops: Hops) -> tuple[Int32s, Int8s, Int64s, Int32s]:
    """Return rows, phases, times and numbers of the flows of messages."""
    ends = messages(timeline)
    transfer = ends.transfer
    along = [ends.producer, ends.send, *_along(hops, ends, len(timeline)), ends.recv, ends.consumer]
    rows = np.stack([row for row in along if (row >= 0).any()] or along[:1])
    start_ns = np.concatenate([timeline.start_ns, timeline.start_ns[hops.row]])
    end_ns = np.concatenate([timeline.end_ns, timeline.end_ns[hops.row]])
    at, kept = np.empty(rows.shape, dtype=np.int64), np.empty(rows.shape, dtype=bool)
    phase = np.empty(rows.shape, dtype=np.int8)
    for first in range(0, transfer.size, _AT_ONCE):
        part = np.s_[:, first : first + _AT_ONCE]
        rows[part] = _in_time(rows[part], start_ns)
        at[part], kept[part] = _times(rows[part], start_ns, end_ns)
        phase[part] = _phases(kept[part])
    return rows[kept], phase[kept], at[kept], np.broadcast_to(transfer, rows.shape)[kept]


def _phases(kept: NDArray[np.bool_]) -> Int8s:
    """Return the phase of each point; flows with one point only lose it."""
    count = kept.sum(axis=0, dtype=np.int16)
    kept &= count > 1
    position = np.cumsum(kept, axis=0, dtype=np.int16) - np.int16(1)
    return np.where(position == 0, np.int8(START), np.where(position < count - 1, np.int8(STEP), np.int8(END)))


def _along(hops: Hops, ends: Messages, rows: int) -> Int32s:
    """Return the hops of each message, counted behind the rows: shape (longest route, messages), -1 for none."""
    longest = int(hops.place.max(initial=-1)) + 1
    along = np.full((longest, hops.sent.size + 1), -1, dtype=np.int32)
    along[hops.place, hops.message] = np.arange(rows, rows + len(hops))
    of_row = np.full(rows + 1, hops.sent.size, dtype=np.int32)
    of_row[hops.sent] = np.arange(hops.sent.size)
    sent, received = of_row[ends.send], of_row[ends.recv]
    passed: Int32s = along[:, np.where(sent < hops.sent.size, sent, received)]
    return passed


def _in_time(rows: Int32s, start_ns: Int64s) -> Int32s:
    """Order each message's rows by their starts: the clocks of measured ranks may disagree."""
    latest = np.full(rows.shape[1], np.iinfo(np.int64).min)
    wrong = np.zeros(rows.shape[1], dtype=bool)
    for row in rows:
        start = np.where(row >= 0, start_ns[row], latest)
        wrong |= start < latest
        latest = start
    if wrong.any():
        rows = rows.copy()
        several = rows[:, wrong]
        key = np.where(several >= 0, start_ns[several], _NEVER)
        rows[:, wrong] = np.take_along_axis(several, np.argsort(key, axis=0, kind="stable"), axis=0)
    return rows


def _times(rows: Int32s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return a time on each slice and whether the flow touches it.

    A flow leaves its first slice late and enters the others early, each a nanosecond behind the one
    before, as viewers sort by time. Where slices without length leave no room for that, the order in
    the file decides, and a slice that it puts wrong is passed over.
    """
    at = start_ns[rows]
    last = np.maximum(at, end_ns[rows] - 1)
    kept = rows >= 0
    following = np.full(rows.shape[1], _NEVER)
    for column in range(len(rows) - 1, 0, -1):
        following = np.where(kept[column], at[column], following)
    begun = np.full(rows.shape[1], -_NEVER)
    before = np.full(rows.shape[1], -1)
    for column in range(len(rows)):
        first = begun == -_NEVER
        at[column] = np.where(
            first, np.minimum(last[column], following), np.clip(begun + 1, at[column], last[column])
        )
        kept[column] &= (at[column] > begun) | ((at[column] == begun) & (rows[column] > before))
        begun = np.where(kept[column], at[column], begun)
        before = np.where(kept[column], rows[column], before)
    return at, kept
