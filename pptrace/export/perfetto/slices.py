"""Slices as runs of records of one layout each, in an order that keeps equal times apart.

Trace processors sort by time and keep the file's order among equal times. So the file holds first
the ends of all slices that have a length, then slices without one, then the begins: of sends, of
receives, of the rest. Then no slice begins before its predecessor on the track has ended, and a flow
reaches sender, receiver and consumer in this order though all start at once. Within a class, slices
are grouped by their number of flow ids, so that records of one group have one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.export.perfetto.columns import FlowColumn, event_columns, field_columns
from pptrace.export.perfetto.extension import FIELD_NUMBERS
from pptrace.export.perfetto.flows import Flows
from pptrace.export.perfetto.layout import BEGIN, END, Layout, packet
from pptrace.export.perfetto.names import numbered
from pptrace.export.perfetto.wire import Cell, cell_size
from pptrace.model.action import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.export.perfetto.layout import Part
    from pptrace.export.perfetto.names import Names
    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Run", "Slices"]

_TIMESTAMP, _TRACK_UUID, _NAME_IID, _CATEGORY_IIDS = 8, 11, 10, 3
_FLOW_IDS, _TERMINATING_FLOW_IDS, _CORRELATION_ID_STR_IID = 47, 48, 54
_FLOW_CELL, _CATEGORY_CELL = 10, 2
_FIELD_TAG, _CORRELATION_TAG = 3, 2
_INT32 = 1 << 31
_SENDS, _RECEIVES = (Kind.SEND_F, Kind.SEND_B), (Kind.RECV_F, Kind.RECV_B)
_CLASS = np.array([0 if kind in _SENDS else 1 if kind in _RECEIVES else 2 for kind in Kind], dtype=np.int8)
"""Place of each kind among slices that begin at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Records of one layout that follow each other."""

    layout: Layout
    """What each is made of."""
    rows: Int32s
    """The slice of each."""


class Slices:
    """A timeline's slices with the tracks, names and flows that they refer to."""

    def __init__(self, timeline: Timeline, lane_uuid: Int32s, names: Names, first_row: int = 0) -> None:
        self._timeline = timeline
        self._flows = Flows.of(timeline, first_row)
        self._column = event_columns(timeline, lane_uuid, names) | field_columns(timeline, self._flows, first_row)
        self._bounds = {name: column.bounds for name, column in self._column.items()}

    def runs(self) -> Iterator[Run]:
        """Return all runs in the order of the file."""
        lasting = self._timeline.end_ns > self._timeline.start_ns
        if lasting.any():
            yield Run(layout=Layout(tuple(self._end())), rows=_places(lasting))
        out, into = _rounded(self._flows.leaving.per_row), _rounded(self._flows.ending.per_row)
        groups, group = numbered(_combined([lasting, _CLASS[self._timeline.kind], out, into]))
        for index in range(groups.size):
            rows = _places(group == index)
            parts = self._begin(rows, int(out[rows[0]]), int(into[rows[0]]))
            yield Run(layout=Layout(tuple(parts if lasting[rows[0]] else parts + self._end())), rows=rows)

    def columns(self, layout: Layout, rows: Int32s) -> dict[str, NDArray[np.integer]]:
        """Return the values of a layout's cells."""
        return {cell.name: self._column[cell.name].at(rows) for _, cell in layout.cells}

    def _begin(self, rows: Int32s, leaving: int, ending: int) -> list[Part]:
        parts: list[Part] = [
            self._cell("track", _TRACK_UUID),
            self._cell("name", _NAME_IID),
            Cell("category", _CATEGORY_IIDS, _CATEGORY_CELL),
        ]
        if "microbatch" in self._column:
            parts += self._optional("microbatch", _CORRELATION_ID_STR_IID, _CORRELATION_TAG, rows)
        for name, number in FIELD_NUMBERS.items():
            parts += self._optional(name, number, _FIELD_TAG, rows)
        for place in range(leaving):
            parts.append(self._flow("out", place, _FLOW_IDS))
        for place in range(ending):
            parts.append(self._flow("in", place, _TERMINATING_FLOW_IDS))
        return packet(BEGIN, self._cell("start", _TIMESTAMP), parts, interned=True)

    def _end(self) -> list[Part]:
        return packet(END, self._cell("end", _TIMESTAMP), [self._cell("track", _TRACK_UUID)])

    def _cell(self, name: str, number: int) -> Cell:
        return Cell(name, number, cell_size(1, self._bounds[name][1]))

    def _optional(self, name: str, number: int, tag_bytes: int, rows: Int32s) -> Iterator[Cell]:
        """Return the cell of a field that any of the rows has."""
        smallest, largest = self._bounds[name]
        if smallest < 0 <= largest:
            values = self._column[name].at(rows)
            smallest, found = int(values.min()), int(values.max())
            largest = largest if found >= 0 else -1
        if largest >= 0:
            yield Cell(name, number, cell_size(tag_bytes, largest), optional=smallest < 0)

    def _flow(self, way: str, place: int, number: int) -> Cell:
        ids = self._flows.leaving if way == "out" else self._flows.ending
        name = f"{way} {place}"
        self._column[name] = FlowColumn(ids, place)
        return Cell(name, number, _FLOW_CELL, fixed=True, optional=True)


def _places(chosen: NDArray[np.bool_]) -> Int32s:
    return np.flatnonzero(chosen).astype(np.int32)


def _combined(keys: list[NDArray[Any]]) -> NDArray[np.integer[Any]]:
    """Return numbers that are equal where all keys are, in the order of the keys."""
    bounds = [int(key.max(initial=0)) + 1 for key in keys]
    combined: NDArray[np.integer[Any]] = np.zeros(keys[0].size, np.int32 if prod(bounds) < _INT32 else np.int64)
    for key, bound in zip(keys, bounds, strict=True):
        combined *= bound
        combined += key
    return combined


def _rounded(count: Int32s) -> Int32s:
    """Round up to powers of two, so that there are few groups."""
    if count.max(initial=0) <= 2:  # noqa: PLR2004 - powers of two already
        return count
    powers = np.int64(1) << np.arange(31)
    return np.where(count == 0, 0, powers[np.searchsorted(powers, count)]).astype(np.int32)
