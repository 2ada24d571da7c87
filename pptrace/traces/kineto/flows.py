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

_CHUNK_MESSAGES = 1 << 14
"""Messages per chunk; a chunk fits into the processor's L2 cache."""
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
    """Number of the flow: the row of its transfer, or of its first slice for flows along the critical path."""
    on_path: NDArray[np.bool_]
    """Whether the flow is along the critical path; such flows are numbered separately."""

    def most_per_row(self, rows: slice) -> int:
        """Return the largest number of flows that touch a row of the given rows."""
        return int(np.diff(self.row_ptr[rows.start : rows.stop + 1]).max(initial=0))


def flow_points(scene: Scene) -> Points:
    """Return all flows that touch at least two slices; hop ``h`` counts as row ``rows + h``."""
    timeline, hops = scene.timeline, scene.hops
    message_points = _message_points(timeline, hops)
    path_points = _path_points(timeline, scene.first_row)
    on_path = np.repeat([False, True], [message_points[0].size, path_points[0].size])
    row, phase = (np.concatenate([message_points[column], path_points[column]]) for column in (0, 1))
    time_ns, flow = (np.concatenate([message_points[column], path_points[column]]) for column in (2, 3))
    order = np.argsort(row, kind="stable")
    return Points(
        row_ptr=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(timeline) + len(hops)))]),
        phase=phase[order], at_ns=time_ns[order], flow=flow[order], on_path=on_path[order],
    )  # fmt: skip


def _path_points(timeline: Timeline, first_row: int) -> tuple[Int32s, Int8s, Int64s, Int32s]:
    """Return rows, phases, times and numbers of flows between consecutive slices of the critical path.

    As with messages, a flow leaves its slice late and enters the next slice early. There is no flow where a
    part of the path in between is not in the timeline, or where clocks of measured ranks disagree.
    """
    path = None if timeline.why is None else timeline.why.path
    if path is None or not len(path):
        nothing = np.zeros(0, dtype=np.int32)
        return nothing, nothing.astype(np.int8), nothing.astype(np.int64), nothing
    turn = np.flatnonzero((path.row[1:] != path.row[:-1]) & (path.start_ns[1:] == path.end_ns[:-1]))
    source, target = path.row[turn] - np.int32(first_row), path.row[turn + 1] - np.int32(first_row)
    start_ns, end_ns = timeline.start_ns, timeline.end_ns
    # the order of points at the same time is that of the file, which is the order of rows
    leaves = np.minimum(np.maximum(start_ns[source], end_ns[source] - 1), start_ns[target] - (target < source))
    leaves = np.maximum(leaves, start_ns[source])
    enters = np.maximum(start_ns[target], leaves + (target < source))
    kept = enters <= np.maximum(start_ns[target], end_ns[target] - 1)
    row = np.concatenate([source[kept], target[kept]])
    phase = np.repeat(np.array([START, END], dtype=np.int8), int(kept.sum()))
    return row, phase, np.concatenate([leaves[kept], enters[kept]]), np.tile(source[kept], 2)


def _message_points(timeline: Timeline, hops: Hops) -> tuple[Int32s, Int8s, Int64s, Int32s]:
    """Return rows, phases, times and numbers of the flows of messages."""
    ends = messages(timeline)
    transfer = ends.transfer
    stops = [ends.producer, ends.send, *_message_hops(hops, ends, len(timeline)), ends.recv, ends.consumer]
    rows = np.stack([row for row in stops if (row >= 0).any()] or stops[:1])
    start_ns = np.concatenate([timeline.start_ns, timeline.start_ns[hops.row]])
    end_ns = np.concatenate([timeline.end_ns, timeline.end_ns[hops.row]])
    time_ns, kept = np.empty(rows.shape, dtype=np.int64), np.empty(rows.shape, dtype=bool)
    phase = np.empty(rows.shape, dtype=np.int8)
    for first in range(0, transfer.size, _CHUNK_MESSAGES):
        part = np.s_[:, first : first + _CHUNK_MESSAGES]
        rows[part] = _sort_by_start(rows[part], start_ns)
        time_ns[part], kept[part] = _times(rows[part], start_ns, end_ns)
        phase[part] = _phases(kept[part])
    return rows[kept], phase[kept], time_ns[kept], np.broadcast_to(transfer, rows.shape)[kept]


def _phases(kept: NDArray[np.bool_]) -> Int8s:
    """Return the phase of each point; single points of flows are removed from ``kept``."""
    count = kept.sum(axis=0, dtype=np.int16)
    kept &= count > 1
    position = np.cumsum(kept, axis=0, dtype=np.int16) - np.int16(1)
    return np.where(position == 0, np.int8(START), np.where(position < count - 1, np.int8(STEP), np.int8(END)))


def _message_hops(hops: Hops, ends: Messages, rows: int) -> Int32s:
    """Return the hops of each message, numbered from ``rows``: shape (longest route, messages), -1 for none."""
    longest = int(hops.place.max(initial=-1)) + 1
    hop_index = np.full((longest, hops.sent.size + 1), -1, dtype=np.int32)
    hop_index[hops.place, hops.message] = np.arange(rows, rows + len(hops))
    message_of_row = np.full(rows + 1, hops.sent.size, dtype=np.int32)
    message_of_row[hops.sent] = np.arange(hops.sent.size)
    sent, received = message_of_row[ends.send], message_of_row[ends.recv]
    message_hops: Int32s = hop_index[:, np.where(sent < hops.sent.size, sent, received)]
    return message_hops


def _sort_by_start(rows: Int32s, start_ns: Int64s) -> Int32s:
    """Sort each message's rows by their starts, because the clocks of measured ranks may disagree."""
    latest = np.full(rows.shape[1], np.iinfo(np.int64).min)
    unsorted = np.zeros(rows.shape[1], dtype=bool)
    for row in rows:
        start = np.where(row >= 0, start_ns[row], latest)
        unsorted |= start < latest
        latest = start
    if unsorted.any():
        rows = rows.copy()
        columns = rows[:, unsorted]
        key = np.where(columns >= 0, start_ns[columns], _NEVER)
        rows[:, unsorted] = np.take_along_axis(columns, np.argsort(key, axis=0, kind="stable"), axis=0)
    return rows


def _times(rows: Int32s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return a time within each slice, and whether the flow touches the slice.

    A flow leaves its first slice late and enters later slices early. Because viewers sort by time, each point is
    at least a nanosecond after the previous one. Slices without length may have equal times: then the order in
    the file counts, and the flow skips slices that are out of order.
    """
    time_ns = start_ns[rows]
    last_ns = np.maximum(time_ns, end_ns[rows] - 1)
    kept = rows >= 0
    following_ns = np.full(rows.shape[1], _NEVER)
    for stop in range(len(rows) - 1, 0, -1):
        following_ns = np.where(kept[stop], time_ns[stop], following_ns)
    previous_ns = np.full(rows.shape[1], -_NEVER)
    previous_row = np.full(rows.shape[1], -1)
    for stop in range(len(rows)):
        time_ns[stop] = np.where(
            previous_ns == -_NEVER,
            np.minimum(last_ns[stop], following_ns),
            np.clip(previous_ns + 1, time_ns[stop], last_ns[stop]),
        )
        kept[stop] &= (time_ns[stop] > previous_ns) | (
            (time_ns[stop] == previous_ns) & (rows[stop] > previous_row)
        )
        previous_ns = np.where(kept[stop], time_ns[stop], previous_ns)
        previous_row = np.where(kept[stop], rows[stop], previous_row)
    return time_ns, kept
