"""Where each stage and microbatch's compute and messages are among a timeline's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.schedule.neighbours import StageGraph, graph_of
from pptrace.timeline import kernels
from pptrace.timeline.actions import last_segments

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
    forward: Int32s
    """Shape (stages x microbatches,): the forward's row; of one in segments, that of the last to end."""
    gradient: Int32s
    """Shape (stages x microbatches,): the full or input-gradient backward's row."""
    send: Int32s
    """Shape (2 x edges x microbatches,): the sender's row of each message, forward edges first."""
    recv: Int32s
    """Shape (2 x edges x microbatches,): the receiver's row of each message."""


def index_timeline(timeline: Timeline) -> RowIndex:
    """Index a timeline's rows."""
    placement = timeline.placement
    graph = graph_of(placement)
    cells, edges = placement.stages * placement.units, placement.edges.shape[0]
    forward, gradient = np.full(cells, -1, dtype=np.int32), np.full(cells, -1, dtype=np.int32)
    send = np.full(2 * edges * placement.units, -1, dtype=np.int32)
    recv = send.copy()
    run(
        kernels.index_rows,
        (
            timeline.lane_ptr, timeline.lane_rank, timeline.lane_peer,
            timeline.kind, timeline.stage, timeline.unit, timeline.span, timeline.start_ns, timeline.size_bytes,
            *graph[9:],
            placement.stage_rank.ravel(), placement.unit_route, placement.stages, placement.units, edges,
        ),
        (forward, gradient, send, recv),
        work=len(timeline),
    )  # fmt: skip
    last = last_segments(timeline)
    return RowIndex(graph=graph, forward=last[forward], gradient=last[gradient], send=send, recv=recv)


def lanes_of(timeline: Timeline, stream: Stream) -> Int32s:
    """Return each rank's first lane of a stream, -1 where it has none; shape (ranks,)."""
    found = np.full(timeline.ranks, -1, dtype=np.int32)
    lanes = np.flatnonzero(timeline.lane_stream == stream)[::-1]
    found[timeline.lane_rank[lanes]] = lanes
    return found
