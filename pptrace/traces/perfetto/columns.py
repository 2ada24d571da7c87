"""Columns of packets: strings and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from pptrace.sanitize import printable
from pptrace.timeline.actions import in_group
from pptrace.traces.perfetto.descriptors import FIELD_NUMBERS
from pptrace.traces.perfetto.wire import BEGIN, END, Cell, cell_size, packet, varint
from pptrace.traces.scene import CATEGORY, COLLECTIVE, NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import InternedData

    from pptrace.steps.columns import Int8s, Int32s
    from pptrace.timeline.timeline import Timeline
    from pptrace.traces.perfetto.flows import FlowIds, Flows
    from pptrace.traces.perfetto.wire import Layout, Part

__all__ = [
    "CATEGORIES",
    "DIFFERENCE_CATEGORY",
    "KIND_CATEGORY",
    "LINK_CATEGORY",
    "PATH_CATEGORY",
    "WAIT_CATEGORY",
    "Column",
    "FlowColumn",
    "Names",
    "PlainColumn",
    "Records",
    "SparseColumn",
    "TakenColumn",
    "categories",
    "event_columns",
    "field_columns",
    "numbered",
]


class Column(Protocol):
    """Values of rows, -1 for a row that has none."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        ...

    @property
    def bounds(self) -> tuple[int, int]:
        """A value that no row is below, and one that none is above; both -1 where no row has one."""
        ...


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """Values as they are."""

    values: NDArray[np.integer[Any]]
    """Shape (rows,)."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        return self.values.take(rows)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        return (int(self.values.min()), int(self.values.max())) if self.values.size else (-1, -1)


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """Values that are absent where they are what a reader expects."""

    values: NDArray[np.integer[Any]]
    """Shape (rows,)."""
    expected: NDArray[np.integer[Any]] | int
    """One for all rows, or one per row."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        values = self.values.take(rows)
        expected = self.expected if isinstance(self.expected, int) else self.expected.take(rows)
        return np.where(values == expected, -1, values)

    @property
    def bounds(self) -> tuple[int, int]:
        """-1 and the largest value."""
        return -1, int(self.values.max()) if (self.values != self.expected).any() else -1


@dataclass(frozen=True, slots=True)
class FlowColumn:
    """The n-th flow id of each row."""

    ids: FlowIds
    """All of them."""
    place: int
    """Which, from 0."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' ids."""
        return self.ids.at(rows, self.place)

    @property
    def bounds(self) -> tuple[int, int]:
        """-1 and the largest id."""
        return -1, int(self.ids.ids.max(initial=-1))


@dataclass(frozen=True, slots=True)
class TakenColumn:
    """A column of other rows, some of them, several times."""

    column: Column
    """Their column."""
    rows: Int32s
    """Which of them each row is."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        return self.column.at(self.rows.take(rows))

    @property
    def bounds(self) -> tuple[int, int]:
        """Those of the whole column."""
        return self.column.bounds


def field_columns(timeline: Timeline, flows: Flows, first_row: int) -> dict[str, Column]:
    """Return the columns of the typed fields."""
    t = timeline
    columns: dict[str, Column] = {
        "row": PlainColumn(np.arange(first_row, first_row + len(t), dtype=np.int32)),
        "kind": PlainColumn(t.kind),
        "rank": PlainColumn(t.rank_of_row()),
        "stage": PlainColumn(t.stage),
        "microbatch": PlainColumn(t.microbatch),
        "span": SparseColumn(t.span, 1),
        "peer": PlainColumn(flows.peer),
        "bytes": SparseColumn(t.size_bytes, 0),
        "enter_ns": SparseColumn(t.enter_ns, t.start_ns),
        "lag_ns": SparseColumn(t.lag_ns, 0),
        "uncontended_ns": SparseColumn(t.uncontended_ns, t.end_ns - t.start_ns),
        "collective_ns": SparseColumn(t.collective_ns, 0),
        "cause": PlainColumn(t.cause),
        "pair": PlainColumn(t.pair),
    }
    if t.parts is not None:
        columns["segment_number"] = PlainColumn(t.parts.number)
    return columns


def event_columns(timeline: Timeline, lane_uuid: Int32s, names: Names) -> dict[str, Column]:
    """Return the columns of Perfetto's own fields."""
    columns: dict[str, Column] = {
        "start": PlainColumn(timeline.start_ns),
        "end": PlainColumn(timeline.end_ns),
        "track": PlainColumn(np.repeat(lane_uuid, np.diff(timeline.lane_ptr))),
        "name": PlainColumn(names.name),
        "category": PlainColumn(categories(timeline)),
    }
    if names.microbatch is not None:
        columns["correlation"] = PlainColumn(names.microbatch)
    return columns


_TIMESTAMP, _TRACK_UUID, _NAME_IID, _CATEGORY_IIDS = 8, 11, 10, 3
_FLOW_IDS, _TERMINATING_FLOW_IDS, _CORRELATION_ID_STR_IID = 47, 48, 54
_FLOW_CELL, _CATEGORY_CELL = 10, 2
_FIELD_TAG, _CORRELATION_TAG = 3, 2
_TEXT = 2


class Records:
    """Columns of slices: Perfetto's own (``start``, ``end``, ``track``, ``name``, …), typed fields and flows.

    A flow that leaves is in a column ``out 0`` (``out 1``, …), one that ends there in ``in 0``.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._column = columns
        self._known: dict[str, tuple[int, int]] = {}

    def values(self, layout: Layout, rows: Int32s) -> dict[str, NDArray[np.integer]]:
        """Return the values of a layout's cells."""
        return {cell.name: self._column[cell.name].at(rows) for _, cell in layout.cells}

    def begin(self, rows: Int32s, leaving: int, ending: int, segment: str | None = None) -> list[Part]:
        """Return the packet that begins a slice with so many flows, with the fields that any of the rows has.

        Where a ``segment`` is given, all of the rows are of that name.
        """
        parts: list[Part] = [
            self._cell("track", _TRACK_UUID),
            self._cell("name", _NAME_IID),
            Cell("category", _CATEGORY_IIDS, _CATEGORY_CELL),
        ]
        if "correlation" in self._column:
            parts += self._optional("correlation", _CORRELATION_ID_STR_IID, _CORRELATION_TAG, rows)
        for name, number in FIELD_NUMBERS.items():
            if name in self._column:
                parts += self._optional(name, number, _FIELD_TAG, rows)
        if segment is not None:
            text = segment.encode()
            parts.append(varint(FIELD_NUMBERS["segment"] << 3 | _TEXT) + varint(len(text)) + text)
        flows = [(f"out {place}", _FLOW_IDS) for place in range(leaving)]
        flows += [(f"in {place}", _TERMINATING_FLOW_IDS) for place in range(ending)]
        parts += [Cell(name, number, _FLOW_CELL, fixed=True, optional=True) for name, number in flows]
        return packet(BEGIN, self._cell("start", _TIMESTAMP), parts, interned=True)

    def end(self) -> list[Part]:
        """Return the packet that ends a slice."""
        return packet(END, self._cell("end", _TIMESTAMP), [self._cell("track", _TRACK_UUID)])

    def _cell(self, name: str, number: int) -> Cell:
        return Cell(name, number, cell_size(1, self._bounds(name)[1]))

    def _optional(self, name: str, number: int, tag_bytes: int, rows: Int32s) -> Iterator[Cell]:
        """Return the cell of a field that any of the rows has."""
        smallest, largest = self._bounds(name)
        if smallest < 0 <= largest:
            values = self._column[name].at(rows)
            smallest, found = int(values.min()), int(values.max())
            largest = largest if found >= 0 else -1
        if largest >= 0:
            yield Cell(name, number, cell_size(tag_bytes, largest), optional=smallest < 0)

    def _bounds(self, name: str) -> tuple[int, int]:
        if name not in self._known:
            self._known[name] = self._column[name].bounds
        return self._known[name]


CATEGORIES = ("compute", "communication", "copy", "collective")
"""Categories of slices on ranks; the number of one is its place, counted from 1."""

LINK_CATEGORY = len(CATEGORIES) + 1
"""The number of the category of slices on links."""

DIFFERENCE_CATEGORY = LINK_CATEGORY + 1
"""The number of the category of slices that tell two steps apart."""

WAIT_CATEGORY, PATH_CATEGORY = DIFFERENCE_CATEGORY + 1, DIFFERENCE_CATEGORY + 2
"""The numbers of the categories of waits and of the critical path."""

_DENSE = 1 << 24
"""Keys below this are numbered by marking them; above, by sorting them."""


KIND_CATEGORY = np.array([CATEGORIES.index(category) + 1 for category in CATEGORY], dtype=np.int8)
"""The category's number of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Slice names such as ``F 3`` and, where asked for, microbatches such as ``mb 3``."""

    names: tuple[str, ...]
    """Name of each number from 1."""
    name: Int32s
    """Each row's name."""
    microbatches: tuple[str, ...] = ()
    """Microbatch of each number from 1."""
    microbatch: Int32s | None = None
    """Each row's microbatch, -1 for none; None where slices are coloured by their names."""

    @classmethod
    def of(cls, timeline: Timeline, *, by_microbatch: bool = False) -> Self:
        """Number the names of a timeline's slices."""
        spans, span = numbered(timeline.span.astype(np.int64))
        microbatches = int(timeline.microbatch.max(initial=-1)) + 2
        pair = span.astype(np.int64) * microbatches + timeline.microbatch + 1
        whats, what = _whats(timeline)
        keys, name = numbered(pair * len(whats) + what)
        texts = _microbatches((keys // len(whats)).tolist(), microbatches, spans.tolist())
        chosen = [whats[key] for key in (keys % len(whats)).tolist()]
        names = tuple(f"{kind}{text}{part}" for (kind, part), text in zip(chosen, texts, strict=True))
        if not by_microbatch:
            return cls(names=names, name=name + np.int32(1))
        keys, place = numbered(pair)
        return cls(
            names=names,
            name=name + np.int32(1),
            microbatches=tuple(f"mb{text}" for text in _microbatches(keys.tolist(), microbatches, spans.tolist())),
            microbatch=np.where(timeline.microbatch < 0, np.int32(-1), place + np.int32(1)),
        )

    def write(self, interned: InternedData) -> None:
        """Add the strings to a packet's interned data."""
        for iid, text in enumerate(CATEGORIES, 1):
            interned.event_categories.add(iid=iid, name=text)
        for iid, text in enumerate(self.names, 1):
            interned.event_names.add(iid=iid, name=printable(text))
        for iid, text in enumerate(self.microbatches, 1):
            interned.correlation_id_str.add(iid=iid, str=text.encode())


def categories(timeline: Timeline) -> Int8s:
    """Return the number of each slice's category."""
    found = KIND_CATEGORY[timeline.kind]
    found[in_group(timeline)] = CATEGORIES.index(COLLECTIVE) + 1
    return found


def _whats(timeline: Timeline) -> tuple[list[tuple[str, str]], NDArray[np.integer[Any]]]:
    """Return what may stand before and behind a name's microbatch, kind and segment, and which each row has."""
    parts = timeline.parts
    if parts is None:
        return [(kind, "") for kind in NAMES], timeline.kind
    segments = ["", *(f" {name}" for name in parts.names)]
    whats = [(kind, segment) for segment in segments for kind in NAMES]
    return whats, (parts.name.astype(np.int64) + 1) * len(NAMES) + timeline.kind


def _microbatches(pairs: list[int], microbatches: int, spans: list[int]) -> list[str]:
    """Return the text behind each name: nothing, `` 3`` or `` 6+2``."""
    beyond = ["" if span == 1 else f"+{span}" for span in spans]
    return [
        f" {pair % microbatches - 1}{beyond[pair // microbatches]}" if pair % microbatches else ""
        for pair in pairs
    ]


def numbered(keys: NDArray[np.integer[Any]]) -> tuple[NDArray[Any], Int32s]:
    """Return the distinct keys, none below zero, and each row's place among them."""
    largest = int(keys.max(initial=0))
    if largest >= _DENSE:
        distinct, place = np.unique(keys, return_inverse=True)
        return distinct, place.astype(np.int32)
    present = np.zeros(largest + 1, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - np.int32(1))[keys]
