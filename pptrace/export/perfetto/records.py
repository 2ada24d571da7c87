"""Records of slices: columns, and the cells of begin and end packets that their values need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.export.perfetto.extension import FIELD_NUMBERS
from pptrace.export.perfetto.layout import BEGIN, END, packet
from pptrace.export.perfetto.wire import Cell, cell_size, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pptrace.export.perfetto.columns import Column
    from pptrace.export.perfetto.layout import Layout, Part
    from pptrace.model.columns import Int32s

__all__ = ["Records"]

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
