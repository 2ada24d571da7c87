"""The protobuf encoding of records of fixed width, varints of files that are read, and classes of messages.

A decoder accepts varints with redundant bytes, and keeps the last value of a repeated field. So every value is
padded to the width of its cell, and a second copy of the event's ``type`` takes the place of an absent value.
All records of a layout have equal length.
"""

from __future__ import annotations

from functools import cache, cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct

from pptrace.config.limits import check_events, most_events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s

_PIECES = {2: ("<u2",), 4: ("<u4",), 8: ("<u8",), 10: ("<u8", "<u2"), 12: ("<u8", "<u4")}
_LOW = 0x007F007F007F007F
_STEPS = (
    (28, 0x00FFFFFFF0000000, 0x000000000FFFFFFF, 4),
    (14, 0x0FFFC0000FFFC000, 0x00003FFF00003FFF, 2),
    (7, 0x3F803F803F803F80, _LOW, 1),
)
_LARGEST_TABLE = 1 << 12
"""Size limit of lookup tables; a lookup of many small values is faster than their computation."""
_FULL = 8
"""Bytes of a varint in one machine word: 56 bits of the value."""
_LONGEST_FILLER = 11
_SMALL = 4
"""Bytes of cells whose values have at most 21 bits."""
_EVENT_TYPE = 9
"""TrackEvent.type, whose second copy fills the place of an absent value."""


def varint(value: int, width: int = 0) -> bytes:
    """Return a varint, padded to ``width`` bytes.

    >>> varint(300).hex(), varint(1, 3).hex()
    ('ac02', '818000')
    """
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1, 7 * width), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def cell_size(tag_bytes: int, largest: int) -> int:
    """Return the size of the smallest cell whose values reach ``largest``."""
    bits = min(largest.bit_length(), 63)
    return next(size for size in (4, 8, 10 if tag_bytes == 1 else 12) if bits <= 7 * (size - tag_bytes))


class Cell(Struct, frozen=True, dict=True):
    """A field of a record: its tag, and a value that every record pads to the same size.

    In an optional cell, -1 is an absent value. Only a varint of ten bytes, which is a cell of 12 bytes with a tag
    of two, represents negative values.
    """

    name: str
    """The column that fills it."""
    number: int
    size: int
    """Bytes of tag and value: 2, 4, 8, 10 or 12."""
    fixed: bool = False
    """Whether the value is a fixed64; else a varint."""
    optional: bool = False
    """Whether a record may lack it."""
    event: int = 1
    """TrackEvent.Type of the record; it fills the place of an absent value."""

    @cached_property
    def tag(self) -> bytes:
        """The field's number and wire type."""
        return varint(self.number << 3 | (1 if self.fixed else 0))

    @property
    def pieces(self) -> tuple[str, ...]:
        """The machine words that make up the cell."""
        return ("<u2", "<u8") if self.fixed else _PIECES[self.size]

    @property
    def word(self) -> type[np.unsignedinteger[Any]]:
        """Type of its words in computations."""
        return np.uint32 if self.size <= _SMALL else np.uint64

    @property
    def dtype(self) -> type[np.signedinteger[Any]]:
        """Smallest type of its values."""
        return np.int32 if self.size <= _SMALL else np.int64

    @cached_property
    def filler(self) -> tuple[int, ...]:
        """The words of an absent value."""
        parts = (self.size,) if self.size <= _LONGEST_FILLER else (4, self.size - 4)
        return self._words(b"".join(varint(_EVENT_TYPE << 3) + varint(self.event, part - 1) for part in parts))

    @cached_property
    def constant(self) -> tuple[bytes, bytes]:
        """A mask of the bits that do not depend on the value, and their values."""
        width = self.size - len(self.tag)
        if self.fixed:
            mask, bits = bytes(width), bytes(width)
        else:
            mask, bits = b"\x80" * width, b"\x80" * (width - 1) + b"\0"
        if width > _FULL + 1 and not self.fixed:  # only the lowest bit of the tenth byte: the sign
            mask = mask[:-1] + (b"\xff" if self.optional else b"\xfe")
        return b"\xff" * len(self.tag) + mask, self.tag + bits

    def _words(self, raw: bytes) -> tuple[int, ...]:
        ends = [*accumulate(np.dtype(piece).itemsize for piece in self.pieces)]
        return tuple(
            int.from_bytes(raw[start:end], "little") for start, end in zip([0, *ends], ends, strict=False)
        )

    def encode(self, values: NDArray[np.integer[Any]]) -> list[NDArray[np.unsignedinteger]]:
        """Return the words of each record's cell."""
        largest = int(values.max(initial=0))
        entries = (1 << largest.bit_length()) + 1
        if len(self.pieces) == 1 and entries <= min(values.size, _LARGEST_TABLE):
            return [_table(self, entries).take(values, mode="wrap")]
        return self.computed(values, largest)

    def computed(self, values: NDArray[np.integer[Any]], largest: int) -> list[NDArray[np.uint64]]:
        """Return the words of each record's cell; no value is above ``largest``."""
        raw = values.astype(np.uint64)
        tag = np.uint64(int.from_bytes(self.tag, "little"))
        words = [np.full_like(raw, tag), raw] if self.fixed else self._varints(raw, tag, largest)
        absent = values < 0
        if self.optional and absent.any():
            words = [np.where(absent, np.uint64(f), w) for f, w in zip(self.filler, words, strict=True)]
        return words

    def decode(self, words: list[NDArray[Any]]) -> NDArray[np.signedinteger] | None:
        """Return the values, -1 for an absent value; None where an optional cell has another encoding."""
        values = (words[1] if self.fixed else self._values(words)).view(self.dtype)
        if not self.optional:
            return values
        differing = np.zeros(values.size, dtype=np.uint64)
        for word, mask, bits in zip(words, *map(self._words, self.constant), strict=True):
            differing |= (word & word.dtype.type(mask)) ^ word.dtype.type(bits)
        if differing.any():
            absent = np.logical_and.reduce([w == np.uint64(f) for f, w in zip(self.filler, words, strict=True)])
            if not absent[differing != 0].all():
                return None
            values[absent] = -1
        return values

    def _varints(self, raw: NDArray[np.uint64], tag: np.uint64, largest: int) -> list[NDArray[np.uint64]]:
        width = self.size - len(self.tag)
        shift = np.uint64(8 * len(self.tag))
        inner = min(width, _FULL)
        continuation = 0x8080808080808080 >> 8 * (_FULL - inner)
        if width == inner:
            continuation &= ~(0x80 << 8 * (inner - 1))
        word = raw if width == inner else raw & np.uint64(2**56 - 1)
        _spread(word, largest.bit_length() if width == inner else 7 * _FULL)
        word |= np.uint64(continuation)
        if len(self.pieces) == 1:
            word <<= shift
            word |= tag
            return [word]
        low = (word << shift) | tag
        high = word >> (np.uint64(64) - shift)
        return [low, high | (self._above(raw) << shift)]

    def _above(self, raw: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the bytes of a varint after its first eight: one, or two if a sign may follow."""
        ninth = raw >> np.uint64(56)
        if self.size - len(self.tag) == _FULL + 1:
            return ninth
        return (ninth & np.uint64(0x7F)) | np.uint64(0x80) | ((raw >> np.uint64(63)) << np.uint64(8))

    def _values(self, words: list[NDArray[Any]]) -> NDArray[Any]:
        shift = words[0].dtype.type(8 * len(self.tag))
        word = words[0] >> shift
        if len(words) == 1:
            return _gather(word, 7 * (self.size - len(self.tag)))
        word = word | (words[1] << (np.uint64(64) - shift))
        above = words[1] >> shift
        sign: NDArray[np.uint64] = (above >> np.uint64(8)) << np.uint64(63)
        ninth: NDArray[np.uint64] = (above & np.uint64(0x7F)) << np.uint64(56)
        return _gather(word, 7 * _FULL) | ninth | sign


@cache
def _table(cell: Cell, entries: int) -> NDArray[np.unsignedinteger]:
    """Return the word of each value from 0 to ``entries`` - 2; index -1 has the word of an absent value."""
    values = np.arange(entries)
    values[-1] = -1 if cell.optional else 0
    words = cell.computed(values, entries)[0]
    return words.astype(cell.pieces[0])


def _spread(word: NDArray[np.uint64], bits: int) -> None:
    """Move each group of 7 bits to a separate byte."""
    for reach, high, low, shift in _STEPS:
        if bits > reach:
            upper = word & np.uint64(high)
            upper <<= np.uint64(shift)
            word &= np.uint64(low)
            word |= upper


def _gather(word: NDArray[Any], bits: int) -> NDArray[Any]:
    """Undo :func:`_spread` and drop the continuation bits."""
    number, mask = word.dtype.type, (1 << 8 * word.itemsize) - 1
    word = word & number(0x7F7F7F7F7F7F7F7F & mask)
    for reach, high, low, shift in reversed(_STEPS):
        if bits > reach:
            upper = word >> number(shift)
            upper &= number(high & mask)
            word &= number(low & mask)
            word |= upper
    return word


BEGIN, END, COUNTER = 1, 2, 4
"""TrackEvent.Type."""

SEQUENCE = 1
"""The packet sequence of all slices and counters of a trace."""

_PACKET, _TRACK_EVENT, _TYPE, _SEQUENCE_ID, _SEQUENCE_FLAGS = 1, 11, 9, 10, 13
_NEEDS_INCREMENTAL_STATE = 2
_BYTES_PER_CHUNK = 1 << 21

Part: TypeAlias = bytes | Cell


class RecordLayout(Struct, frozen=True, dict=True):
    """A record of constant bytes and cells; every record has the same size."""

    parts: tuple[Part, ...]
    """Constant bytes and cells, in the order of the record."""

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (0, *accumulate(map(_size, self.parts)))

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return self._ends[-1]

    @property
    def chunk_rows(self) -> int:
        """Number of records per encoded chunk; a chunk fits into the processor's cache."""
        return max(1, _BYTES_PER_CHUNK // self.size)

    @cached_property
    def cells(self) -> tuple[tuple[int, Cell], ...]:
        """Each cell with its offset."""
        return tuple(
            (offset, part) for offset, part in zip(self._ends, self.parts, strict=False) if isinstance(part, Cell)
        )

    def blank(self, rows: int) -> NDArray[np.uint8]:
        """Return records without values, shape (rows, size)."""
        template = np.frombuffer(b"".join(_constant(part)[1] for part in self.parts), dtype=np.uint8)
        return np.tile(template, (rows, 1))

    def encode(self, columns: Mapping[str, NDArray[np.integer[Any]]], records: NDArray[np.uint8]) -> None:
        """Fill the cells of ``records``, shape (rows, size)."""
        for offset, cell in self.cells:
            for view, words in zip(_views(records, offset, cell), cell.encode(columns[cell.name]), strict=True):
                view[:] = words

    def shared_bits(self, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return a mask of the bits that all records share, and their values, each repeated ``rows`` times."""
        masks, values = (b"".join(parts) for parts in zip(*map(_constant, self.parts), strict=True))
        return (
            np.tile(np.frombuffer(masks, dtype=np.uint8), rows),
            np.tile(np.frombuffer(values, dtype=np.uint8), rows),
        )

    def decode(
        self, records: NDArray[np.uint8], shared: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    ) -> dict[str, NDArray[np.signedinteger]] | None:
        """Return the columns of ``records``; None where they have another layout.

        ``shared`` are the :meth:`shared_bits` of as many records or more.
        """
        mask, values = shared
        differing = records.ravel() ^ values[: records.size]
        differing &= mask[: records.size]
        if differing.max(initial=0):
            return None
        columns: dict[str, NDArray[np.signedinteger]] = {}
        for offset, cell in self.cells:
            column = cell.decode([view.astype(cell.word) for view in _views(records, offset, cell)])
            if column is None:
                return None
            columns[cell.name] = column
        return columns


class RecordRun(Struct, frozen=True):
    """Consecutive records with the same layout."""

    place: int
    """Sort key of the run in the file, ascending."""
    layout: RecordLayout
    rows: Int32s
    """The row of each record."""
    values: Callable[[RecordLayout, Int32s], Mapping[str, NDArray[np.integer[Any]]]]
    """Returns the values of the layout's cells for the given rows."""
    segment: int = -1
    """Index of the segment name of all records, which is part of the constant bytes; -1 for none."""


def packet(event: int, timestamp: Cell, parts: Sequence[Part], *, interned: bool = False) -> list[Part]:
    """Return the parts of a packet with one track event."""
    body: list[Part] = [varint(_TYPE << 3) + varint(event), *parts]
    length = sum(map(_size, body))
    flags = varint(_SEQUENCE_FLAGS << 3) + varint(_NEEDS_INCREMENTAL_STATE) if interned else b""
    head: list[Part] = [
        varint(_SEQUENCE_ID << 3) + varint(SEQUENCE) + flags,
        timestamp,
        varint(_TRACK_EVENT << 3 | 2) + varint(length),
    ]
    packet_bytes = sum(map(_size, head)) + length
    return [varint(_PACKET << 3 | 2) + varint(packet_bytes), *head, *body]


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


def _constant(part: Part) -> tuple[bytes, bytes]:
    """Return a mask of the bits that all records share, and their values."""
    if isinstance(part, bytes):
        return b"\xff" * len(part), part
    return (bytes(part.size), bytes(part.size)) if part.optional else part.constant


def _size(part: Part) -> int:
    return part.size if isinstance(part, Cell) else len(part)


def message_classes(package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    r"""Return classes of protobuf messages by name, in a separate descriptor pool.

    Args:
        package: the package of the messages.
        messages: number and type of each field by name, by message. ``*`` follows a repeated type, ``?`` the types
            of a oneof ``value``. A parser skips other fields. An enum has the encoding of an int32.

    >>> message_classes("example", {"Point": {"x": (1, "int64")}})["Point"](x=3).SerializeToString()
    b'\x08\x03'
    """
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, text) in fields.items():
            kind = text.rstrip("*?")
            field = message.field.add(name=field_name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if text.endswith("*"):
                field.label = FieldDescriptorProto.LABEL_REPEATED
            elif text.endswith("?"):
                field.oneof_index = 0
            if kind in messages:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
        if any(text.endswith("?") for _, text in fields.values()):
            message.oneof_decl.add(name="value")
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


_BYTES = 10
_CONTINUATION = 0x80
_FIRST = 1 << 16
"""Packets between two checks."""


def read_varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return a number and the offset after it; the offset is 0 where the number is truncated.

    A varint has seven bits per byte, the lowest first; the eighth bit marks continuation.

    >>> read_varint(bytes([0x96, 0x01, 0x08]), 0), read_varint(bytes([0x96]), 0)
    ((150, 2), (0, 0))
    """
    value = 0
    for count, byte in enumerate(data[place : place + _BYTES]):
        value |= (byte & ~_CONTINUATION) << (7 * count)
        if byte < _CONTINUATION:
            return value, place + count + 1
    return 0, 0


def check_packets(count: int, raw: bytes | memoryview, offset: int, path: Path | str) -> None:
    """Check that a trace has no more packets than the limit, from the packets that were read so far.

    At powers of two of packets, where an estimate for the rest is above the limit, the other packets are counted.

    Args:
        count: packets that were read.
        raw: the whole trace.
        offset: offset of the next packet.
        path: the file, for errors.

    Raises:
        TraceError: there are more than the limit, or than memory holds.
    """
    if count % _FIRST or not count:
        return
    check_events(count, path)
    most = most_events()
    if count & (count - 1) or count * len(raw) <= most * offset:
        return
    while offset < len(raw) - 1 and count <= most:
        size, start = read_varint(raw, offset + 1)
        if not start:
            break
        offset, count = start + size, count + 1
    check_events(count, path)
