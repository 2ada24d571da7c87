"""Rows of a timeline by action, and both ends of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pptrace.memo import memoized
from pptrace.steps.columns import unset
from pptrace.steps.kinds import COMPUTE, STAGE_ENDS, TABLE, KindSet, Stream
from pptrace.steps.schedule import StageGraph, graph_of
from pptrace.timeline.actions import first_segments, last_segments, segment_rows
from pptrace.timeline.kernels.rows import RowIndex, index_rows
from pptrace_kernel import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline


def index_timeline(timeline: Timeline, graph: StageGraph) -> RowIndex:
    """Index a timeline's rows. The producer of an action with segments is its last segment."""
    lanes = timeline.lane_ptr, timeline.lane_rank, timeline.lane_peer
    cells, sizes, messages = timeline.cells, timeline.size_bytes, 2 * graph.edges * graph.microbatches
    depends_on_times = False

    def index_all() -> RowIndex:
        nonlocal depends_on_times
        index = RowIndex(unset(2 * graph.stages * graph.microbatches), unset(messages), unset(messages))
        inputs = (*lanes, cells, timeline.start_ns, sizes, graph, TABLE)
        depends_on_times = bool(run(index_rows, inputs, (index,), work=len(timeline)))
        return index

    index = memoized(
        index_all,
        "row index",
        *lanes,
        *cells,
        sizes,
        graph,
        rows=len(timeline),
        may_keep=lambda: not depends_on_times,
    )
    return index if timeline.parts is None else index._replace(producer=last_segments(timeline)[index.producer])


def lanes_of(timeline: Timeline, stream: Stream) -> Int32s:
    """Return each rank's first lane of a stream, -1 where it has none; shape (ranks,)."""

    def find() -> Int32s:
        first_lane = np.full(timeline.ranks, -1, dtype=np.int32)
        lanes = np.flatnonzero(timeline.lane_stream == stream)[::-1]
        first_lane[timeline.lane_rank[lanes]] = lanes
        return first_lane

    key = "first lane", stream, timeline.ranks
    return memoized(find, key, timeline.lane_stream, timeline.lane_rank, rows=timeline.ranks)


class Messages(Struct, frozen=True):
    """One row per message, in the order of first slices; each column holds rows of the timeline."""

    send: Int32s
    """The sender's slice, -1 where only the receiver has one."""
    recv: Int32s
    """The receiver's slice, -1 where only the sender has one."""
    producer: Int32s
    """The compute slice whose result was sent, -1 where unknown."""
    consumer: Int32s
    """The compute slice that waited for the message, -1 where unknown."""

    @property
    def transfer(self) -> Int32s:
        """The sender's slice, or the receiver's slice where the sender has none."""
        return np.where(self.send >= 0, self.send, self.recv)


def messages(timeline: Timeline) -> Messages:
    """Match sends, receives, producers and consumers by stage, microbatch and direction.

    An action that spans several microbatches matches each of them. Where several consumers share a
    message, the first to start counts.
    """
    index, edges = index_timeline(timeline, graph_of(timeline.placement)), timeline.placement.edges
    stages, microbatches = timeline.placement.stages, timeline.placement.microbatches
    recorded = ((index.send >= 0) | (index.recv >= 0)).reshape(2 * len(edges), microbatches)
    ends = np.concatenate([edges, edges[:, ::-1] + stages]).astype(np.int64)
    offsets = (ends - np.arange(2 * len(edges))[:, None]) * microbatches
    cell, count = np.flatnonzero(recorded), np.count_nonzero(recorded, axis=1)
    send, recv = index.send[cell], index.recv[cell]
    producer, consumer = (index.producer[cell + np.repeat(offset, count)] for offset in offsets.T)
    first = np.where(send >= 0, send, recv)
    if timeline.parts is not None:
        producer = _result_segments(timeline, producer, first)
        consumer = first_segments(timeline)[consumer]
    order = _order(timeline, first, consumer)
    return Messages(send=send[order], recv=recv[order], producer=producer[order], consumer=consumer[order])


def _order(timeline: Timeline, first: Int32s, consumer: Int32s) -> NDArray[np.integer[Any]]:
    """Return the order of messages by their first slices; of messages with the same slice, one is kept."""
    message = np.full(len(timeline), -1, dtype=np.int32)
    message[first] = np.arange(first.size)
    order: NDArray[np.integer[Any]] = message[message >= 0]
    if order.size == first.size:
        return order
    starts = np.where(consumer >= 0, timeline.start_ns[consumer], 0)
    order = np.lexsort((starts, first))
    keep = np.ones(order.size, dtype=bool)
    keep[1:] = first[order][1:] != first[order][:-1]
    return order[keep]


def _result_segments(timeline: Timeline, rows: Int32s, messages: Int32s) -> Int32s:
    """Return each message's producing segment: the last segment of the producer that ends before the message."""
    segments, action = segment_rows(timeline)
    action_of_row = np.full(len(timeline) + 1, -1, dtype=np.int64)
    action_of_row[segments] = action
    queries = np.flatnonzero((action_of_row[rows] >= 0) & (messages >= 0))
    owner = np.concatenate([action, action_of_row[rows[queries]]])
    time_ns = np.concatenate([timeline.end_ns[segments], timeline.start_ns[messages[queries]]])
    order = np.lexsort((np.arange(owner.size), time_ns, owner))
    latest = np.maximum.accumulate(np.where(order < segments.size, np.arange(order.size), -1))
    preceding = order[latest[order >= segments.size]]
    queries = queries[order[order >= segments.size] - segments.size]
    ended = action[preceding] == action_of_row[rows[queries]] if preceding.size else np.zeros(0, dtype=bool)
    producer = rows.copy()
    producer[queries[ended]] = segments[preceding[ended]]
    return producer


_IN_TABLES = KindSet(COMPUTE - STAGE_ENDS)


def compute_rows(timeline: Timeline) -> list[Int64s]:
    """Return, per rank, the rows of the kinds that schedule tables contain, in the order of execution."""
    by_rank = []
    for lane in lanes_of(timeline, Stream.COMPUTE):
        rows = np.arange(timeline.lane_ptr[lane], timeline.lane_ptr[lane + 1]) if lane >= 0 else np.arange(0)
        by_rank.append(rows[_IN_TABLES.mask(timeline.kind[rows])])
    return by_rank
