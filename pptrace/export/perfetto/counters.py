"""Counters as one run of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.export.perfetto.layout import COUNTER, Layout, Run, packet
from pptrace.export.perfetto.wire import Cell, cell_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.counter import Counter

__all__ = ["counter_run"]

_TIMESTAMP, _TRACK_UUID, _COUNTER_VALUE = 8, 11, 30
_VALUE_TAG = 2
_WITH_SIGN = 12
"""Size of a cell whose values may be below zero."""
_BEHIND_SLICES = 1 << 8


def counter_run(counters: Sequence[Counter], tracks: Sequence[int]) -> Run:
    """Return the points of all counters, one counter behind the other."""
    sizes = [counter.at_ns.size for counter in counters]
    columns = {
        "at": _joined([counter.at_ns for counter in counters]),
        "track": np.repeat(np.array(tracks, dtype=np.int64), sizes),
        "value": _joined([counter.value for counter in counters]),
    }
    largest = {name: int(column.max(initial=0)) for name, column in columns.items()}
    value_size = _WITH_SIGN if columns["value"].min(initial=0) < 0 else cell_size(_VALUE_TAG, largest["value"])
    cells = [
        Cell("track", _TRACK_UUID, cell_size(1, largest["track"])),
        Cell("value", _COUNTER_VALUE, value_size),
    ]
    when = Cell("at", _TIMESTAMP, cell_size(1, largest["at"]))

    def values(_layout: Layout, rows: Int32s) -> dict[str, Int64s]:
        return {name: column[rows] for name, column in columns.items()}

    return Run(
        place=_BEHIND_SLICES,
        layout=Layout(tuple(packet(COUNTER, when, cells))),
        rows=np.arange(sum(sizes), dtype=np.int32),
        values=values,
    )


def _joined(arrays: list[Int64s]) -> Int64s:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
