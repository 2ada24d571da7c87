"""A timeline is one training step that happened, simulated or measured: slices on lanes, in columns."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.model.cells import CELL, Cells
from pptrace.model.columns import Int8s, Int32s, Int64s, difference
from pptrace.model.kinds import Stream
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.model.action import Action
    from pptrace.model.placement import Placement
    from pptrace.timeline.counter import Counter
    from pptrace.timeline.parts import Parts
    from pptrace.timeline.routes import Routes
    from pptrace.timeline.why import Why

__all__ = ["LANE_COLUMNS", "ROW_COLUMNS", "Slice", "Timeline"]


LANE_COLUMNS = ("lane_rank", "lane_stream", "lane_peer", "lane_ptr")
ROW_COLUMNS = (
    *CELL, "enter_ns", "start_ns", "end_ns", "lag_ns", "uncontended_ns", "collective_ns", "size_bytes", "cause",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One row of a timeline, for reading and for tests."""

    rank: int
    """The rank whose stream it occupies."""
    stream: Stream
    """Which of the rank's streams."""
    action: Action
    """What ran."""
    start_ns: int
    """When it started to run."""
    end_ns: int
    """When it left its stream."""
    peer: int = -1
    """The peer of a stream that serves one only."""
    enter_ns: int = -1
    """When it was launched; -1 stands for its start."""
    lag_ns: int = 0
    """Wire latency behind its end."""
    uncontended_ns: int = -1
    """Its duration with nothing shared; -1 stands for its duration."""
    collective_ns: int = 0
    """The part in which the rank's own group communicated."""
    size_bytes: int = 0
    """Bytes moved."""
    cause: int = -1
    """Row whose end (or start) released it."""
    pair: int = -1
    """The overlapped pair that it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline(Cells):
    """Slices on lanes; lanes are sorted by (rank, stream, peer), slices within a lane by time.

    Times are integer nanoseconds from the step's start; slices of one lane never overlap.
    A message has a slice on each stream that it occupies: one (``SEND_F`` or ``SEND_B``, on the
    sender) where the receiver's streams are free of it, else one on each side.
    """

    placement: Placement
    """Where each stage of each microbatch's route is."""
    lane_rank: Int32s
    """Shape (lanes,): the rank of each lane."""
    lane_stream: Int8s
    """:class:`Stream` of each lane."""
    lane_peer: Int32s
    """The peer of a lane that serves one only, else -1."""
    lane_ptr: Int32s
    """Shape (lanes + 1,): lane ``l`` holds the rows ``lane_ptr[l]:lane_ptr[l + 1]``."""
    enter_ns: Int64s
    """When it was launched: all that its rank issued before it on its stream was done."""
    start_ns: Int64s
    """When it started to run."""
    end_ns: Int64s
    """When it left its stream."""
    lag_ns: Int64s
    """Wire latency behind ``end_ns`` until the data were there."""
    uncontended_ns: Int64s
    """What ``end_ns - start_ns`` would have been with nothing shared."""
    collective_ns: Int64s
    """The part of the slice in which the rank's own group communicated."""
    size_bytes: Int64s
    """Bytes moved, 0 for none."""
    cause: Int32s
    """Row whose end (or start) released this one; -1 for none or unknown."""
    counters: tuple[Counter, ...] = ()
    """Quantities over time, sorted by rank, then in the order of display."""
    parts: Parts | None = None
    """Which rows are segments of actions; None where each row is a whole action or a message."""
    routes: Routes | None = None
    """Which links each message went over; None where no links are known."""
    why: Why | None = None
    """Why ranks wait and what the critical path is; what follows from the rest, for those who show it."""
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Where the timeline comes from: version, plugins, configuration; plain JSON values."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.placement.ranks

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return int(self.lane_rank.size)

    def lane_of_row(self) -> Int32s:
        """Return each row's lane, shape (rows,)."""
        return np.repeat(np.arange(self.lanes, dtype=np.int32), np.diff(self.lane_ptr))

    def rank_of_row(self) -> Int32s:
        """Return each row's rank, shape (rows,)."""
        return np.repeat(self.lane_rank, np.diff(self.lane_ptr))

    def __getitem__(self, row: int) -> Slice:
        if not 0 <= row < len(self):
            msg = f"row {row} of {len(self)}"
            raise IndexError(msg)
        lane = int(np.searchsorted(self.lane_ptr, row, side="right")) - 1
        return Slice(
            rank=int(self.lane_rank[lane]),
            stream=Stream(int(self.lane_stream[lane])),
            peer=int(self.lane_peer[lane]),
            action=self.action(row),
            **{name: int(getattr(self, name)[row]) for name in ROW_COLUMNS[len(CELL) - 1 :]},
        )

    def difference(self, other: Timeline) -> str:
        """Say where two timelines first differ in their columns, or ``""``."""
        if self.placement != other.placement:
            return "the placements differ"
        if self.counters != other.counters:
            return "the counters differ"
        if self.routes != other.routes:
            return "the routes differ"
        if self.parts != other.parts:
            return "the segments of actions differ"
        return difference(self, other, (*LANE_COLUMNS, *ROW_COLUMNS))

    def __repr__(self) -> str:
        span = int(self.end_ns.max()) if len(self) else 0
        return f"<Timeline {self.ranks} ranks, {self.lanes} lanes, {len(self)} slices, {span} ns>"
