"""Messages of a timeline: which slice produced the data, which carried them, which consumed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.timeline.actions import actions_in_parts, segment_rows
from pptrace.timeline.row_index import index_timeline

if TYPE_CHECKING:
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
    """Match sends, receives, producers and consumers by stage, unit and direction.

    An action that spans several units is found by any of them; where several consumers share a
    message, the one that started first counts.
    """
    placement = timeline.placement
    index = index_timeline(timeline)
    edges, units = placement.edges.shape[0], placement.units
    cell = np.flatnonzero((index.send >= 0) | (index.recv >= 0))
    forward = cell < edges * units
    edge, unit = (cell % (edges * units)) // max(units, 1), cell % max(units, 1)
    low, high = placement.edges[edge, 0] * units + unit, placement.edges[edge, 1] * units + unit
    found = np.stack([
        index.send[cell],
        index.recv[cell],
        np.where(forward, index.forward[low], index.gradient[high]),
        np.where(forward, index.forward[high], index.gradient[low]),
    ])  # fmt: skip
    first = np.where(found[0] >= 0, found[0], found[1])
    starts = np.where(found[3] >= 0, timeline.start_ns[found[3]], 0) if len(timeline) else first
    found[3] = _first_segments(timeline, found[3])
    order = np.lexsort((starts, first))
    keep = np.ones(order.size, dtype=bool)
    keep[1:] = first[order][1:] != first[order][:-1]
    send, recv, producer, consumer = found[:, order[keep]].astype(np.int32)
    return Messages(send=send, recv=recv, producer=producer, consumer=consumer)


def _first_segments(timeline: Timeline, rows: Int32s) -> Int32s:
    """Return the first rows of the actions that some rows belong to."""
    if timeline.parts is None:
        return rows
    first = np.arange(len(timeline) + 1, dtype=np.int32)
    first[-1] = -1
    segments, action = segment_rows(timeline)
    first[segments] = actions_in_parts(timeline).first[action]
    found: Int32s = first[rows]
    return found
