"""Messages of a timeline: which slice produced the data, which carried them, which consumed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.record import dataclass
from pptrace.timeline.actions import segment_rows
from pptrace.timeline.row_index import index_timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Messages", "messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """One row per message, in the order of its first slice; each column holds a row of the timeline."""

    send: Int32s
    """The sender's slice, -1 where only the receiver has one."""
    recv: Int32s
    """The receiver's slice, -1 where only the sender has one."""
    producer: Int32s
    """The compute slice whose result was sent, -1 where unknown."""
    consumer: Int32s
    """The compute slice that waited for it, -1 where unknown."""


def messages(timeline: Timeline) -> Messages:
    """Match sends, receives, producers and consumers by stage, microbatch and direction.

    An action that spans several microbatches is found by any of them; where several consumers share a
    message, the one that started first counts.
    """
    index, edges = index_timeline(timeline), timeline.placement.edges
    stages, microbatches = timeline.placement.stages, timeline.placement.microbatches
    shown = ((index.send >= 0) | (index.recv >= 0)).reshape(2 * len(edges), microbatches)
    ends = np.concatenate([edges, edges[:, ::-1] + stages]).astype(np.int64)
    away = (ends - np.arange(2 * len(edges))[:, None]) * microbatches
    cell, count = np.flatnonzero(shown), np.count_nonzero(shown, axis=1)
    send, recv = index.send[cell], index.recv[cell]
    producer, consumer = (index.made[cell + np.repeat(column, count)] for column in away.T)
    if timeline.parts is not None:
        producer = _result_segments(timeline, producer, np.where(send >= 0, send, recv))
        consumer = _first_segments(timeline, consumer)
    order = _order(timeline, np.where(send >= 0, send, recv), consumer)
    return Messages(send=send[order], recv=recv[order], producer=producer[order], consumer=consumer[order])


def _order(timeline: Timeline, first: Int32s, consumer: Int32s) -> NDArray[np.integer[Any]]:
    """Return messages by their first slices, each slice once."""
    place = np.full(len(timeline), -1, dtype=np.int32)
    place[first] = np.arange(first.size)
    order: NDArray[np.integer[Any]] = place[place >= 0]
    if order.size == first.size:
        return order
    starts = np.where(consumer >= 0, timeline.start_ns[consumer], 0)
    order = np.lexsort((starts, first))
    keep = np.ones(order.size, dtype=bool)
    keep[1:] = first[order][1:] != first[order][:-1]
    return order[keep]


def _first_segments(timeline: Timeline, rows: Int32s) -> Int32s:
    """Return the first segments of the actions that some rows belong to."""
    segments, action = segment_rows(timeline)
    number = np.zeros(0) if timeline.parts is None else timeline.parts.number
    order = np.lexsort((segments, number[segments], action))
    leads = segments[order][np.diff(action[order], prepend=-1) != 0]
    first = np.append(np.arange(len(timeline), dtype=np.int32), np.int32(-1))
    first[segments] = leads[action]
    found: Int32s = first[rows]
    return found


def _result_segments(timeline: Timeline, rows: Int32s, messages: Int32s) -> Int32s:
    """Return the segments that messages left behind: of each producer, the last to end before its message."""
    segments, action = segment_rows(timeline)
    of_row = np.full(len(timeline) + 1, -1, dtype=np.int64)
    of_row[segments] = action
    asks = np.flatnonzero((of_row[rows] >= 0) & (messages >= 0))
    owner = np.concatenate([action, of_row[rows[asks]]])
    at_ns = np.concatenate([timeline.end_ns[segments], timeline.start_ns[messages[asks]]])
    order = np.lexsort((np.arange(owner.size), at_ns, owner))
    latest = np.maximum.accumulate(np.where(order < segments.size, np.arange(order.size), -1))
    before = order[latest[order >= segments.size]]
    asks = asks[order[order >= segments.size] - segments.size]
    ended = action[before] == of_row[rows[asks]] if before.size else np.zeros(0, dtype=bool)
    found = rows.copy()
    found[asks[ended]] = segments[before[ended]]
    return found
