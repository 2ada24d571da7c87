"""Columns of packets: names, flow ids and typed fields, and records built from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.steps.columns import distinct
from pptrace.timeline.actions import in_group
from pptrace.traces.perfetto.descriptors import CATEGORY_NUMBERS, FIELD_NUMBERS
from pptrace.traces.perfetto.wire import BEGIN, END, Cell, RecordLayout, RecordRun, cell_size, packet, varint
from pptrace.traces.scene import (
    CATEGORY,
    COLLECTIVE,
    COLOR_NUMBERS,
    COLOR_TEXTS,
    NAMES,
    column_defaults,
    labels_of,
    numbered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s
    from pptrace.timeline.timeline import Timeline
    from pptrace.traces.perfetto.wire import Part
    from pptrace.traces.scene import Scene


class Column(Struct, frozen=True):
    """Values of rows, -1 for a row without a value."""

    take: Callable[[Int32s], NDArray[np.integer[Any]]]
    """Returns the values of the given rows."""
    bounds: tuple[int, int]
    """A lower and an upper bound of all values; both -1 where no row has a value."""

    @classmethod
    def of(
        cls, values: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]] | int | None = None
    ) -> Column:
        """Return values as a column; values equal to ``expected``, the reader's default, are absent."""
        if expected is None:
            return cls(values.take, (int(values.min()), int(values.max())) if values.size else (-1, -1))

        def take(rows: Int32s) -> NDArray[np.integer[Any]]:
            chosen = values.take(rows)
            default = expected if isinstance(expected, int) else expected.take(rows)
            return np.where(chosen == default, -1, chosen)

        return cls(take, (-1, int(values.max()) if (values != expected).any() else -1))

    def of_rows(self, rows: Int32s) -> Column:
        """Return the values of the given rows, which may repeat, as a column."""
        return Column(lambda chosen: self.take(rows.take(chosen)), self.bounds)


PATH_FLOW = 2**31 - 1
"""The flow through the slices of the critical path."""


class FlowIds(Struct, frozen=True):
    """The flow ids of each row."""

    row_ptr: Int32s
    """Shape (rows + 1,): row ``r`` has ``ids[row_ptr[r]:row_ptr[r + 1]]``."""
    ids: Int32s
    """Ids, not zero."""

    @classmethod
    def of(cls, ends: Sequence[Int32s], ids: Int32s, size: int) -> Self:
        """Sort the ids by their rows; each array of ``ends`` has a row per flow, -1 for none."""
        id_of_row = np.full(size + 1, -1, dtype=np.int32)
        for rows in ends:
            id_of_row[rows] = ids
        has_id = id_of_row[:-1] >= 0
        row_ptr = np.zeros(size + 1, dtype=np.int32)
        if np.count_nonzero(has_id) == sum(np.count_nonzero(rows >= 0) for rows in ends):
            np.cumsum(has_id, out=row_ptr[1:])
            return cls(row_ptr=row_ptr, ids=id_of_row[:-1][has_id])
        rows, repeated = np.concatenate(ends), np.tile(ids, len(ends))
        rows, repeated = rows[rows >= 0], repeated[rows >= 0]
        np.cumsum(np.bincount(rows, minlength=size), out=row_ptr[1:])
        return cls(row_ptr=row_ptr, ids=repeated[np.argsort(rows, kind="stable")])

    def add_flow(self, flow: int, rows: Int32s) -> Self:
        """Return the ids with an additional flow, as the last id of each of the rows."""
        ends = self.row_ptr[rows + 1]
        order = np.argsort(ends, kind="stable")
        added = np.zeros(self.row_ptr.size, dtype=np.int32)
        np.add.at(added, rows + 1, 1)
        return replace(
            self,
            row_ptr=self.row_ptr + np.cumsum(added, dtype=np.int32),
            ids=np.insert(self.ids, ends[order], np.int32(flow)),
        )  # fmt: skip

    def per_row(self) -> Int32s:
        """Return the number of ids of each row, rounded up to powers of two for fewer groups."""
        count = np.diff(self.row_ptr)
        if count.max(initial=0) <= 2:  # noqa: PLR2004 - powers of two already
            return count
        powers = np.int64(1) << np.arange(31)
        return np.where(count == 0, 0, powers[np.searchsorted(powers, count)]).astype(np.int32)

    def take(self, rows: Int32s, place: int) -> Int32s:
        """Return the rows' ids at index ``place``, -1 for rows with fewer ids."""
        index = self.row_ptr.take(rows) + place
        inside = index < self.row_ptr[1:].take(rows)
        if inside.all():
            return self.ids.take(index)
        ids = np.full(rows.size, -1, dtype=np.int32)
        ids[inside] = self.ids[index[inside]]
        return ids

    def column(self, place: int) -> Column:
        """Return the ids at index ``place`` as a column."""
        return Column(lambda rows: self.take(rows, place), (-1, int(self.ids.max(initial=-1))))


def flow_ids(scene: Scene) -> tuple[FlowIds, FlowIds]:
    """Return the ids of outgoing flows, and the ids of incoming flows.

    A message's producer, transfer and consumer share an id: the row number of the transfer over all ranks, from 1.
    """
    timeline, ends = scene.timeline, scene.messages
    ids = ends.transfer + np.int32(scene.first_row + 1)
    leaving = FlowIds.of([ends.producer, ends.send, ends.recv], ids, len(timeline))
    if timeline.why is not None:
        leaving = leaving.add_flow(PATH_FLOW, distinct(timeline.why.path.row - scene.first_row))
    return leaving, FlowIds.of([ends.consumer], ids, len(timeline))


class Names(Struct, frozen=True):
    """Slice names such as ``F 3``, and texts from which the Perfetto UI derives colors."""

    names: list[str]
    """Names, numbered from 1."""
    name: Int32s
    """Number of each row's name."""
    correlations: Sequence[str]
    """Texts for colors by kind or by microbatch, such as ``mb 3``, numbered from 1."""
    correlation: Int32s
    """Number of each row's text for its color, -1 for the color of its name."""

    @classmethod
    def of(cls, scene: Scene) -> Self:
        """Number the names of a scene's slices."""
        labels = labels_of(scene.timeline)
        keys, name = numbered(labels.of_row * np.int64(len(NAMES)) + scene.timeline.kind)
        pairs = [divmod(key, len(NAMES)) for key in keys.tolist()]
        names = [f"{NAMES[kind]}{labels.microbatch[label]}{labels.segment[label]}" for label, kind in pairs]
        name += np.int32(1)
        if scene.color_by != "microbatch":
            parts, kind = scene.timeline.parts, scene.timeline.kind
            in_segment = np.zeros(kind.size, dtype=bool) if parts is None else parts.name >= 0
            correlation = np.where(in_segment, np.int32(-1), COLOR_NUMBERS[kind] + np.int32(1))
            return cls(names=names, name=name, correlations=COLOR_TEXTS, correlation=correlation)
        number = {text: number for number, text in enumerate(dict.fromkeys(labels.microbatch), 1)}
        number_of_label = np.array([number[text] for text in labels.microbatch], dtype=np.int32)
        microbatch = np.where(scene.timeline.microbatch < 0, np.int32(-1), number_of_label[labels.of_row])
        correlations = [f"mb{text}" for text in number]
        return cls(names=names, name=name, correlations=correlations, correlation=microbatch)


def row_columns(scene: Scene, lane_uuid: Int32s, names: Names) -> dict[str, Column]:
    """Return the columns of the timeline's rows: Perfetto's fields and the typed fields."""
    t = scene.timeline
    columns = {
        "start": Column.of(t.start_ns),
        "end": Column.of(t.end_ns),
        "track": Column.of(np.repeat(lane_uuid, np.diff(t.lane_ptr))),
        "name": Column.of(names.name),
        "category": Column.of(_categories(t)),
        "row": Column.of(np.arange(scene.first_row, scene.first_row + len(t), dtype=np.int32)),
        "kind": Column.of(t.kind),
        "rank": Column.of(t.rank_of_row()),
        "stage": Column.of(t.stage),
        "microbatch": Column.of(t.microbatch),
        "peer": Column.of(scene.peer),
        "enter_ns": Column.of(t.enter_ns, t.start_ns),
        "cause": Column.of(t.cause),
        "correlation": Column.of(names.correlation),
    }
    for name, default in column_defaults(t.end_ns - t.start_ns).items():
        columns[name.removeprefix("size_")] = Column.of(getattr(t, name), default)
    if scene.loads.size:
        columns["load"] = Column.of(scene.loads)
    if t.parts is not None:
        columns["segment_number"] = Column.of(t.parts.number)
    return columns


_KIND_CATEGORIES = np.array([CATEGORY_NUMBERS[category] for category in CATEGORY], dtype=np.int8)


def _categories(timeline: Timeline) -> Int8s:
    numbers = _KIND_CATEGORIES[timeline.kind]
    numbers[in_group(timeline)] = CATEGORY_NUMBERS[COLLECTIVE]
    return numbers


_TIMESTAMP, _TRACK_UUID, _NAME_IID, _CATEGORY_IIDS = 8, 11, 10, 3
_FLOW_IDS, _TERMINATING_FLOW_IDS, _CORRELATION_ID_STR_IID = 47, 48, 54
_FLOW_CELL, _CATEGORY_CELL = 10, 2
_FIELD_TAG, _CORRELATION_TAG = 3, 2
_TEXT = 2
_LASTING = 8
"""Offset of the places of slices with a length, which follow slices without a length."""


class Records(NamedTuple):
    """Columns of slices: Perfetto's fields (``start``, ``end``, ``track``, ``name``, …), typed fields and flows.

    Outgoing flows are in columns ``out 0``, ``out 1``, …, and incoming flows in ``in 0``, ``in 1``, ….
    """

    columns: Mapping[str, Column]
    """Columns by name."""

    def run(self, place: int, parts: Sequence[Part], rows: Int32s, segment: int = -1) -> RecordRun:
        """Return a run of the given rows."""
        return RecordRun(
            place=place, layout=RecordLayout(tuple(parts)), rows=rows, values=self._values, segment=segment
        )

    def runs(self, rows: Int32s, order: int, *, leaving: int = 0, lasting: bool = True) -> Iterator[RecordRun]:
        """Yield the runs of slices with the given ``order``: ends and begins, or a joint run if without length."""
        if not rows.size:
            return
        begin = self.begin(rows, leaving, 0)
        if lasting:
            yield self.run(0, self.end(), rows)
            yield self.run(begin_place(order, lasting=True), begin, rows)
        else:
            yield self.run(begin_place(order, lasting=False), begin + self.end(), rows)

    def begin(self, rows: Int32s, leaving: int, ending: int, segment: str | None = None) -> list[Part]:
        """Return the packet of a slice's begin, with the fields that any of the rows has.

        Args:
            rows: the slices.
            leaving: number of outgoing flows of each slice.
            ending: number of incoming flows of each slice.
            segment: name of the segment of all rows, if any.
        """
        parts: list[Part] = [
            self._cell("track", _TRACK_UUID),
            self._cell("name", _NAME_IID),
            Cell("category", _CATEGORY_IIDS, _CATEGORY_CELL),
        ]
        parts += self._optional("correlation", _CORRELATION_ID_STR_IID, _CORRELATION_TAG, rows)
        for name, number in FIELD_NUMBERS.items():
            parts += self._optional(name, number, _FIELD_TAG, rows)
        if segment is not None:
            text = segment.encode()
            parts.append(varint(FIELD_NUMBERS["segment"] << 3 | _TEXT) + varint(len(text)) + text)
        flows = [(f"out {place}", _FLOW_IDS) for place in range(leaving)]
        flows += [(f"in {place}", _TERMINATING_FLOW_IDS) for place in range(ending)]
        parts += [Cell(name, number, _FLOW_CELL, fixed=True, optional=True) for name, number in flows]
        return packet(BEGIN, self._cell("start", _TIMESTAMP), parts, interned=True)

    def end(self) -> list[Part]:
        """Return the packet of a slice's end."""
        return packet(END, self._cell("end", _TIMESTAMP), [self._cell("track", _TRACK_UUID)])

    def _values(self, layout: RecordLayout, rows: Int32s) -> dict[str, NDArray[np.integer]]:
        return {cell.name: self.columns[cell.name].take(rows) for _, cell in layout.cells}

    def _cell(self, name: str, number: int) -> Cell:
        return Cell(name, number, cell_size(1, self.columns[name].bounds[1]))

    def _optional(self, name: str, number: int, tag_bytes: int, rows: Int32s) -> Iterator[Cell]:
        """Yield the cell of an optional field, if any row has a value."""
        if name not in self.columns:
            return
        smallest, largest = self.columns[name].bounds
        if smallest < 0 <= largest:
            values = self.columns[name].take(rows)
            smallest = int(values.min())
            if values.max() < 0:
                return
        if largest >= 0:
            yield Cell(name, number, cell_size(tag_bytes, largest), optional=smallest < 0)


def begin_place(order: int, *, lasting: bool) -> int:
    """Return the place of begins: 1 for sends, 2 for links, 3 for receives, 5 for all other slices."""
    return 1 + order + _LASTING * lasting
