"""Counters as one run of records; a counter that goes below zero, whose varints are longer, apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.export.perfetto_layout import COUNTER, SEQUENCE, Layout, packet
from pptrace.export.perfetto_wire import Cell, cell_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.model.columns import Int64s
    from pptrace.timeline.counter import Counter

__all__ = ["CounterPoints"]

_TIMESTAMP, _TRACK_UUID, _COUNTER_VALUE = 8, 11, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterPoints:
    """The points of all counters, one counter behind the other."""

    layout: Layout
    """The record of a point."""
    at_ns: Int64s
    """Time of each point."""
    value: Int64s
    """Value from then on."""
    track: Int64s
    """Track of the counter."""
    negative: tuple[tuple[int, Counter], ...]
    """Counters that go below zero, with their tracks; not among the points."""

    @classmethod
    def of(cls, counters: Sequence[Counter], tracks: Sequence[int]) -> Self:
        """Collect the points."""
        pairs = list(zip(tracks, counters, strict=True))
        plain = [(track, c) for track, c in pairs if c.value.min(initial=0) >= 0]
        at_ns = _joined([c.at_ns for _, c in plain])
        value = _joined([c.value for _, c in plain])
        track = _joined([np.full(c.value.size, track) for track, c in plain])
        cells = [
            Cell("track", _TRACK_UUID, cell_size(1, int(track.max(initial=0)))),
            Cell("value", _COUNTER_VALUE, cell_size(2, int(value.max(initial=0)))),
        ]
        when = Cell("at", _TIMESTAMP, cell_size(1, int(at_ns.max(initial=0))))
        return cls(
            layout=Layout(tuple(packet(COUNTER, when, cells))),
            at_ns=at_ns,
            value=value,
            track=track,
            negative=tuple(pair for pair in pairs if pair[1].value.min(initial=0) < 0),
        )

    def columns(self, _layout: Layout, rows: Int64s) -> dict[str, Int64s]:
        """Return the values of the layout's cells."""
        return {"at": self.at_ns[rows], "track": self.track[rows], "value": self.value[rows]}

    def write_negative(self, head: Trace) -> None:
        """Write the counters that are not among the points, packet by packet."""
        for track, counter in self.negative:
            for at_ns, value in zip(counter.at_ns.tolist(), counter.value.tolist(), strict=True):
                point = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=at_ns).track_event
                point.type, point.track_uuid, point.counter_value = COUNTER, track, value


def _joined(arrays: list[Int64s]) -> Int64s:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
