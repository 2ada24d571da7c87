"""Events of one process in columns, and their builder for all file formats."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s

Number: TypeAlias = int | float | str | None


class Arguments(msgspec.Struct, gc=False):
    """The arguments that importers read, in the profilers' spelling."""

    correlation: Number = None
    stream: Number = None
    allocated: Number = msgspec.field(name="Total Allocated", default=None)
    device_type: Number = msgspec.field(name="Device Type", default=None)
    collective: Number = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: Number = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    group_description: Number = msgspec.field(name="Process Group Description", default=None)
    target: Number = msgspec.field(name="Dst Rank", default=None)
    source: Number = msgspec.field(name="Src Rank", default=None)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    sequence_number: Number = msgspec.field(name="Sequence number", default=None)
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=None)


class Event(msgspec.Struct, gc=False):
    """One event with the text of its arguments."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = 0
    tid: Number = 0
    ts: Number = None
    dur: Number = None
    args: msgspec.Raw = msgspec.Raw(b"null")


class Events(Struct, kw_only=True):
    """Selected complete events of one file; columns have one value per event, in file order."""

    path: Path
    top: dict[str, Any]
    """Metadata of the file."""
    names: list[str]
    """Distinct names."""
    categories: list[str]
    """Distinct categories."""
    name: Int32s
    """Number of each event's name."""
    category: Int32s
    """Number of each event's category."""
    thread: Int32s
    """Number of each event's thread among ``threads``."""
    start_ns: Int64s
    """Start, since the epoch or since the origin of the file."""
    end_ns: Int64s
    correlation: Int64s
    """Correlation id of a launch and its kernel; -1 for none."""
    stream: Int64s
    """The GPU's stream; -1 for none."""
    arguments: dict[int, Arguments]
    """Arguments by event, of events with further arguments."""
    threads: list[tuple[Number, Number]]
    """Distinct pairs of process and thread id."""
    allocated: dict[int, int] = field(default_factory=dict)
    """Peak of allocated bytes by device type (0 is the host)."""
    cut: bool = False
    """Whether the file ends in the middle of an event, which is left out."""
    bad: int = 0
    """Number of invalid events: no time, a negative or infinite one, fields of another type."""

    def __len__(self) -> int:
        return int(self.name.size)

    def of(self, categories: Collection[str]) -> NDArray[np.bool_]:
        """Return whether each event has one of the categories, shape (events,)."""
        wanted = np.array([name in categories for name in self.categories], dtype=bool)
        chosen: NDArray[np.bool_] = wanted[self.category] if wanted.size else np.zeros(len(self), dtype=bool)
        return chosen

    def named(self, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return whether the name of each event satisfies ``wanted``, shape (events,)."""
        return np.isin(self.name, [number for number, name in enumerate(self.names) if wanted(name)])

    def by_start(self, chosen: NDArray[np.bool_]) -> Int64s:
        """Return the chosen events by start."""
        rows = np.flatnonzero(chosen)
        return rows[np.argsort(self.start_ns[rows], kind="stable")]

    def name_of(self, event: int) -> str:
        """Return an event's name."""
        return self.names[int(self.name[event])]


LARGEST_NS, _LARGEST_ID = 2**62, 2**63
"""Bounds of times and of ids."""
_BATCH = 1024
"""Events that are converted to columns at a time."""
_ENTRY = 120
"""Approximate bytes of an entry of a dictionary without its key."""


class EventBuilder:
    """Columns of the events of one process, which grow in the order of their records."""

    def __init__(self) -> None:
        self.bad = 0
        """Dropped events: without a time, or with a negative or infinite duration."""
        self.held_bytes = 0
        """Approximate bytes of names and arguments, without the columns."""
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._threads: dict[tuple[Number, Number], int] = {}
        self._arguments: dict[int, Arguments] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._blocks: list[tuple[NDArray[Any], ...]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._rows)

    def add(
        self, name: str, category: str, thread: tuple[Number, Number], start_ns: Any, end_ns: Any, *,
        correlation: int = -1, stream: int = -1, arguments: Arguments | None = None,
    ) -> None:  # fmt: skip
        """Append an event; ``thread`` is its process and thread, ``arguments`` are in Kineto's terms."""
        if not (_is_time(start_ns) and _is_time(end_ns)) or end_ns < start_ns:
            self.bad += 1
            return
        self._rows.append((name, category, thread, start_ns, end_ns, correlation, stream, arguments))
        if len(self._rows) == _BATCH:
            self._add_rows()

    def _add_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            *identities, start, end, correlation, stream, arguments = zip(*rows, strict=True)
            (names, name), (categories, category), (threads, thread) = map(numbered, identities)
            start_ns, end_ns = np.array([start, end], dtype=np.int64)
            self.extend(
                names, categories, threads, name, category, thread, start_ns, end_ns,
                integers(correlation), integers(stream),
                {row: value for row, value in enumerate(arguments) if value is not None},
            )  # fmt: skip

    def extend(
        self, names: Sequence[str], categories: Sequence[str], threads: Sequence[tuple[Number, Number]],
        name: Int32s, category: Int32s, thread: Int32s, start_ns: Int64s, end_ns: Int64s,
        correlation: Int64s, stream: Int64s, arguments: Mapping[int, Arguments],
    ) -> None:  # fmt: skip
        """Append events in columns as those of :class:`Events`; names may be in any order, also of no event."""
        self._blocks.append((
            self._number(self._names, names, name), self._number(self._categories, categories, category),
            self._number(self._threads, threads, thread), start_ns, end_ns, correlation, stream,
        ))  # fmt: skip
        self._arguments |= {self._count + row: value for row, value in arguments.items()}
        self.held_bytes += sum(map(_size, arguments.values()))
        self._count += len(name)

    def _number(self, known: dict[Any, int], values: Sequence[Hashable], position: Int32s) -> Int32s:
        """Return the number of each event's value; assigns the next numbers to new values, in events' order."""
        used, first = np.unique(position, return_index=True)
        for place in position[np.sort(first)].tolist():
            value = values[place]
            if value not in known:
                known[value] = len(known)
                parts = value if isinstance(value, tuple) else (value,)
                self.held_bytes += sum(map(sys.getsizeof, parts)) + _ENTRY
        numbers = np.zeros(len(values), dtype=np.int32)
        numbers[used] = [known[values[place]] for place in used.tolist()]
        return numbers[position]

    def events(self, path: Path, top: dict[str, Any], *, base_ns: int = 0, cut: bool = False) -> Events:
        """Return the columns.

        Args:
            path: the file.
            top: Kineto's metadata, such as ``distributedInfo``.
            base_ns: origin of the events' times.
            cut: whether the file ends in the middle.
        """
        self._add_rows()
        columns = list(zip(*self._blocks, strict=True)) or [(np.zeros(0, dtype=np.int64),)] * 7
        self._blocks.clear()
        # Each column is freed before the next is copied, so that the events do not take twice their memory.
        name, category, thread, start, end, correlation, stream = [
            np.concatenate(columns.pop(0)) for _ in range(len(columns))
        ]
        start += base_ns
        end += base_ns
        return Events(
            path=path, top=top, names=list(self._names), categories=list(self._categories),
            name=name, category=category, thread=thread, start_ns=start, end_ns=end,
            correlation=correlation, stream=stream, arguments=self._arguments,
            threads=list(self._threads), cut=cut, bad=self.bad,
        )  # fmt: skip


def numbered(values: Sequence[Any]) -> tuple[list[Any], Int32s]:
    """Return the distinct values, and the position of each value among them.

    >>> numbered("abca")
    (['a', 'b', 'c'], array([0, 1, 2, 0], dtype=int32))
    """
    position = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return list(position), np.fromiter(map(position.__getitem__, values), dtype=np.int32, count=len(values))


def _is_time(value: object) -> bool:
    return isinstance(value, int) and -LARGEST_NS < value < LARGEST_NS


def _size(arguments: Arguments) -> int:
    """Return the approximate bytes of an event's arguments."""
    values = [getattr(arguments, name) for name in Arguments.__struct_fields__]
    raw = sum(len(value) for value in values if isinstance(value, msgspec.Raw))  # without a size in Python
    texts = sum(sys.getsizeof(value) for value in values if isinstance(value, str))
    return sys.getsizeof(arguments) + _ENTRY + raw + texts


def integers(values: Sequence[Number]) -> Int64s:
    """Return ids, -1 for an invalid id."""
    # Most values are integers or missing, so only others are parsed.
    plain = [-1 if v is None else v if v.__class__ is int else parse_integer(v, -1) for v in values]
    try:
        return np.array(plain, dtype=np.int64)
    except OverflowError:
        return np.array([value if abs(value) < _LARGEST_ID else -1 for value in plain], dtype=np.int64)


LARGEST_US = 2**51
"""71 years: larger than times since 1970; sums of two such times in nanoseconds are below 2**63."""
_DIGITS = 19
"""Digits of the largest number; longer text is not converted."""


def parse_integer(value: object, absent: int) -> int:
    """Return an integer of at most 62 bits, ``absent`` for any other value.

    >>> [parse_integer(value, -1) for value in (7, "7", 7.5, 2**70, True)]
    [7, 7, -1, -1, -1]
    """
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None
    if not isinstance(value, int) or isinstance(value, bool):
        return absent
    return value if -LARGEST_NS < value < LARGEST_NS else absent


def microseconds(value: object) -> int | None:
    """Convert microseconds to nanoseconds, None for an invalid time; the fraction is converted separately.

    >>> microseconds(1.5), microseconds("2.001"), microseconds(float("nan")), microseconds(None)
    (1500, 2001, None, None)
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) < LARGEST_US:  # also for NaN
        return None
    floor = math.floor(value)
    return floor * 1000 + round((value - floor) * 1000)
