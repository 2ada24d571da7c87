"""Rows of a timeline by action, and both ends of each message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.steps.columns import unset
from pptrace.steps.kinds import COMPUTE, STAGE_ENDS, TABLE, KindSet, Stream
from pptrace.steps.schedule import Schedule, StageGraph, graph_of
from pptrace.timeline.actions import first_segments, folded, last_segments, segment_rows
from pptrace.timeline.kernels import rows as rows_kernels
from pptrace_kernel import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Rows by stage, microbatch, edge and direction; -1 where there is none."""

    graph: StageGraph
    """The stages' graph."""
    made: Int32s
    """Shape (2 x stages x microbatches,): forwards, then backwards that others need; of segments the last."""
    send: Int32s
    """Shape (2 x edges x microbatches,): the sender's row of each message, forward edges first."""
    recv: Int32s
    """Shape (2 x edges x microbatches,): the receiver's row of each message."""


def index_timeline(timeline: Timeline) -> RowIndex:
    """Index a timeline's rows."""
    placement = timeline.placement
    graph = graph_of(placement)
    cells = placement.stages * placement.microbatches
    made, send, recv = (unset(2 * size) for size in (cells, *2 * (graph.edges * placement.microbatches,)))
    run(
        rows_kernels.index_rows,
        (
            timeline.lane_ptr, timeline.lane_rank, timeline.lane_peer, timeline.cells, timeline.start_ns,
            timeline.size_bytes, graph, TABLE,
        ),
        (rows_kernels.Index(made, send, recv),),
        work=len(timeline),
    )  # fmt: skip
    if timeline.parts is not None:
        made = last_segments(timeline)[made]
    return RowIndex(graph=graph, made=made, send=send, recv=recv)


def lanes_of(timeline: Timeline, stream: Stream) -> Int32s:
    """Return each rank's first lane of a stream, -1 where it has none; shape (ranks,)."""
    found = np.full(timeline.ranks, -1, dtype=np.int32)
    lanes = np.flatnonzero(timeline.lane_stream == stream)[::-1]
    found[timeline.lane_rank[lanes]] = lanes
    return found


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

    @property
    def transfer(self) -> Int32s:
        """The sender's slice, the receiver's where the sender has none."""
        return np.where(self.send >= 0, self.send, self.recv)


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
    first = np.where(send >= 0, send, recv)
    if timeline.parts is not None:
        producer = _result_segments(timeline, producer, first)
        consumer = first_segments(timeline)[consumer]
    order = _order(timeline, first, consumer)
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


_IN_TABLES = KindSet(COMPUTE - STAGE_ENDS)


def compute_rows(timeline: Timeline) -> list[Int64s]:
    """Return, per rank, the rows of what a table holds, in the order in which they ran."""
    found = []
    for lane in lanes_of(timeline, Stream.COMPUTE):
        span = np.arange(timeline.lane_ptr[lane], timeline.lane_ptr[lane + 1]) if lane >= 0 else np.arange(0)
        found.append(span[_IN_TABLES.mask(timeline.kind[span])])
    return found


def computed_order(timeline: Timeline) -> Schedule:
    """Return the table of what each rank computed, one row per action."""
    timeline = folded(timeline)
    by_rank = compute_rows(timeline)
    rows = np.concatenate(by_rank) if by_rank else np.zeros(0, dtype=np.int64)
    return Schedule.of_cells(
        timeline.placement, np.cumsum([0, *(own.size for own in by_rank)]), timeline.cells.taken(rows)
    )
