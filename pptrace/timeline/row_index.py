"""Where each stage and microbatch's compute and messages are among a timeline's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.model.columns import unset
from pptrace.model.kind_table import TABLE
from pptrace.record import dataclass
from pptrace.schedule.neighbours import StageGraph, graph_of
from pptrace.timeline.actions import last_segments
from pptrace.timeline.kernels import indexing

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.model.kinds import Stream
    from pptrace.timeline.timeline import Timeline

__all__ = ["RowIndex", "index_timeline", "lanes_of"]


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
        indexing.index_rows,
        (
            timeline.lane_ptr, timeline.lane_rank, timeline.lane_peer, timeline.cells, timeline.start_ns,
            timeline.size_bytes, graph, TABLE,
        ),
        (indexing.Index(made, send, recv),),
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
