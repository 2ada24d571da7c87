"""Where the lanes of a timeline go: processes, threads and stream ids of the dialect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.export.streams import stream_title
from pptrace.model.kinds import Stream
from pptrace.timeline.timeline import LANE_COLUMNS, ROW_COLUMNS

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = ["HOST", "Lane", "lanes_of", "part_of", "process_of"]

HOST = 1
"""Thread of each process that launches."""

_COMPUTE = 7
_OTHERS = 20
_TOWARDS = {Stream.SEND: "to", Stream.RECV: "from"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane and where its events go."""

    rank: int
    """Its rank."""
    stream: Stream
    """What it is."""
    peer: int
    """The peer that it serves alone, or -1."""
    thread: int
    """Its stream id, as PyTorch numbers them: 7 for compute, others from 20 on; also the thread."""
    rows: slice
    """Its rows in the timeline."""

    @property
    def title(self) -> str:
        """Say what the lane is, as its row in a viewer is called."""
        peer = f" {_TOWARDS.get(self.stream, 'with')} rank {self.peer}" if self.peer >= 0 else ""
        return f"stream {self.thread} {stream_title(self.stream)}{peer}"


def lanes_of(timeline: Timeline) -> list[Lane]:
    """Return the lanes in order."""
    lanes: list[Lane] = []
    others = 0
    for index in range(timeline.lanes):
        stream = Stream(int(timeline.lane_stream[index]))
        peer = int(timeline.lane_peer[index])
        if index and timeline.lane_rank[index] != timeline.lane_rank[index - 1]:
            others = 0
        main = stream == Stream.COMPUTE and peer < 0
        lanes.append(
            Lane(
                rank=int(timeline.lane_rank[index]),
                stream=stream,
                peer=peer,
                thread=_COMPUTE if main else _OTHERS + others,
                rows=slice(int(timeline.lane_ptr[index]), int(timeline.lane_ptr[index + 1])),
            )
        )
        others += not main
    return lanes


def part_of(timeline: Timeline, rank: int) -> tuple[Timeline, int]:
    """Return one rank's rows, whose causes still count the rows of all, and the first row's number.

    So do the rows that say why it waited.

    The links that its messages went over go with them; the cluster's counters go with the first rank.
    """
    first, last = np.searchsorted(timeline.lane_rank, [rank, rank + 1]).tolist()
    ptr = timeline.lane_ptr[first : last + 1]
    rows = slice(int(ptr[0]), int(ptr[-1]))
    owners = {rank, -1} if first == 0 else {rank}
    part = replace(
        timeline,
        lane_ptr=ptr - ptr[0],
        counters=tuple(counter for counter in timeline.counters if counter.rank in owners),
        routes=None if timeline.routes is None else timeline.routes.of_rows(np.arange(rows.start, rows.stop)),
        why=None if timeline.why is None else timeline.why.of_ranks({rank}, timeline.rank_of_row()),
        parts=None if timeline.parts is None else timeline.parts.of_rows(np.arange(rows.start, rows.stop)),
        **{name: getattr(timeline, name)[first:last] for name in LANE_COLUMNS[:3]},
        **{name: getattr(timeline, name)[rows] for name in ROW_COLUMNS},
    )
    return part, rows.start


def process_of(rank: int, ranks: int) -> int:
    """Return the process of a rank, or of the links behind the ranks for -1; viewers keep 0 for themselves."""
    return (rank if rank >= 0 else ranks) + 1
