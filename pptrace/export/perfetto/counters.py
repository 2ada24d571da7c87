"""Counters as one run of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.export.perfetto.layout import COUNTER, Layout, packet
from pptrace.export.perfetto.wire import Cell, cell_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.counter import Counter

__all__ = ["CounterPoints"]

_TIMESTAMP, _TRACK_UUID, _COUNTER_VALUE = 8, 11, 30
_VALUE_TAG = 2
_WITH_SIGN = 12
"""Size of a cell whose values may be below zero."""


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

    @classmethod
    def of(cls, counters: Sequence[Counter], tracks: Sequence[int]) -> Self:
        """Collect the points."""
        at_ns = _joined([counter.at_ns for counter in counters])
        value = _joined([counter.value for counter in counters])
        sizes = [counter.at_ns.size for counter in counters]
        track = np.repeat(np.array(tracks, dtype=np.int64), sizes)
        size = _WITH_SIGN if value.min(initial=0) < 0 else cell_size(_VALUE_TAG, int(value.max(initial=0)))
        cells = [
            Cell("track", _TRACK_UUID, cell_size(1, int(track.max(initial=0)))),
            Cell("value", _COUNTER_VALUE, size),
        ]
        when = Cell("at", _TIMESTAMP, cell_size(1, int(at_ns.max(initial=0))))
        return cls(layout=Layout(tuple(packet(COUNTER, when, cells))), at_ns=at_ns, value=value, track=track)

    def columns(self, _layout: Layout, rows: Int32s) -> dict[str, Int64s]:
        """Return the values of the layout's cells."""
        return {"at": self.at_ns[rows], "track": self.track[rows], "value": self.value[rows]}


def _joined(arrays: list[Int64s]) -> Int64s:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
