"""What one record of a run is made of: the constant bytes and the cells of its packets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pptrace.export.perfetto.wire import Cell, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s

__all__ = ["BEGIN", "COUNTER", "END", "SEQUENCE", "Layout", "Part", "Run", "packet"]

BEGIN, END, COUNTER = 1, 2, 4
"""TrackEvent.Type."""

SEQUENCE = 1
"""The packet sequence that a trace has."""

_PACKET, _TRACK_EVENT, _TYPE, _SEQUENCE_ID, _SEQUENCE_FLAGS = 1, 11, 9, 10, 13
_NEEDS_INCREMENTAL_STATE = 2
_BYTES_PER_CHUNK = 1 << 21

Part: TypeAlias = bytes | Cell


@dataclass(frozen=True)
class Layout:
    """A record of constant bytes and cells; every record has the same size."""

    parts: tuple[Part, ...]
    """In the order of the bytes."""

    @cached_property
    def size(self) -> int:
        """Bytes of a record."""
        return sum(map(_size, self.parts))

    @property
    def chunk_rows(self) -> int:
        """Records that are encoded at once: as many as the processor's cache holds."""
        return max(1, _BYTES_PER_CHUNK // self.size)

    @cached_property
    def cells(self) -> tuple[tuple[int, Cell], ...]:
        """Each cell with its offset."""
        offsets = accumulate(map(_size, self.parts), initial=0)
        return tuple((at, part) for at, part in zip(offsets, self.parts, strict=False) if isinstance(part, Cell))

    @cached_property
    def template(self) -> NDArray[np.uint8]:
        """A record whose cells are empty."""
        raw = b"".join(part if isinstance(part, bytes) else bytes(part.size) for part in self.parts)
        return np.frombuffer(raw, dtype=np.uint8)

    def blank(self, rows: int) -> NDArray[np.uint8]:
        """Return records whose cells are empty, shape (rows, size)."""
        return np.tile(self.template, (rows, 1))

    def encode(self, columns: Mapping[str, NDArray[np.integer[Any]]], records: NDArray[np.uint8]) -> None:
        """Fill the cells of ``records``, shape (rows, size)."""
        for offset, cell in self.cells:
            for view, words in zip(_views(records, offset, cell), cell.encode(columns[cell.name]), strict=True):
                view[:] = words

    def decode(self, records: NDArray[np.uint8]) -> dict[str, Int64s] | None:
        """Return the columns of ``records``; None where they are not of this layout."""
        constant = records.copy()
        columns: dict[str, Int64s] = {}
        for offset, cell in self.cells:
            constant[:, offset : offset + cell.size] = 0
            words = [view.astype(np.uint64) for view in _views(records, offset, cell)]
            values = cell.decode(words)
            if values is None:
                return None
            columns[cell.name] = values
        return columns if (constant == self.template).all() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Records of one layout that follow each other."""

    place: int
    """Where it stands among the runs of a file: those of lower places come first."""
    layout: Layout
    """What each is made of."""
    rows: Int32s
    """The slice of each."""
    values: Callable[[Layout, Int32s], Mapping[str, NDArray[np.integer[Any]]]]
    """Returns the values of the layout's cells for some of the rows."""
    segment: int = -1
    """Which of the names of segments all of them have, which stands among the constant bytes; -1 for none."""


def packet(event: int, when: Cell, parts: Sequence[Part], *, interned: bool = False) -> list[Part]:
    """Return the parts of a packet of one track event."""
    body: list[Part] = [varint(_TYPE << 3) + varint(event), *parts]
    length = sum(map(_size, body))
    flags = varint(_SEQUENCE_FLAGS << 3) + varint(_NEEDS_INCREMENTAL_STATE) if interned else b""
    head: list[Part] = [
        varint(_SEQUENCE_ID << 3) + varint(SEQUENCE) + flags,
        when,
        varint(_TRACK_EVENT << 3 | 2) + varint(length),
    ]
    whole = sum(map(_size, head)) + length
    return [varint(_PACKET << 3 | 2) + varint(whole), *head, *body]


def _views(records: NDArray[np.uint8], offset: int, cell: Cell) -> list[NDArray[np.unsignedinteger]]:
    views = []
    for piece in cell.pieces:
        width = np.dtype(piece).itemsize
        views.append(
            np.ndarray(
                len(records), dtype=piece, buffer=records.data, offset=offset, strides=(records.strides[0],)
            )
        )
        offset += width
    return views


def _size(part: Part) -> int:
    return part.size if isinstance(part, Cell) else len(part)
