"""Columns of events as they grow: numbers for names, nanoseconds for times.

Whole and fractional microseconds are converted apart: a double holds no nanoseconds of this century.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pptrace_profilers.events.records import MEMORY, NO_ARGUMENTS, Arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s
    from pptrace_profilers.events.records import Event, Marks, Number

__all__ = ["Columns"]

_LARGEST_US, _LONGEST_US = 2**51, 2**40
"""71 years, so that a time since 1970 is one, and 12 days, so that sums of many lengths fit 62 bits."""
_LARGEST_ID, _LONGEST_ID = 2**63, 19
_COLUMNS = 7
_MOST_THREADS = 1 << 31
_ENTRY = 120
"""Bytes that an entry of a dictionary takes beside its key, about."""


@dataclass(slots=True, kw_only=True)
class Columns:
    """Columns as they grow, block by block."""

    bad: int = 0
    """Events that are none."""
    names: dict[str, int] = field(default_factory=dict)
    """Numbers of names."""
    categories: dict[str, int] = field(default_factory=dict)
    """Numbers of categories."""
    processes: dict[Number, int] = field(default_factory=dict)
    """Numbers of processes."""
    arguments: dict[int, Arguments] = field(default_factory=dict)
    """Arguments by event."""
    labels: dict[Number, dict[str, None]] = field(default_factory=dict)
    """What processes are called, each name once."""
    held: int = 0
    """Bytes of texts and of arguments that are kept beside the columns, about."""
    allocated: dict[int, int] = field(default_factory=dict)
    """Most bytes that were allocated at once, by type of device."""
    blocks: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    """The columns' parts."""
    count: int = 0
    """Events so far."""
    threads_of: dict[int, int] = field(default_factory=dict)
    """Numbers of pairs of a process and a thread."""
    _tids: dict[Number, int] = field(default_factory=dict)

    def add(self, events: Sequence[Event]) -> None:
        """Take events; of names whose arguments are wanted, those with all of them."""
        for event in [e for e in events if e.ph == "M"]:
            self._label(event)
        for marks in [e.args for e in events if e.name == MEMORY and e.args is not None]:
            self._allocated(marks)
        events = [e for e in events if e.ph == "X"]
        names = self._interned(self.names, [e.name for e in events])
        categories = self._interned(self.categories, [e.cat for e in events])
        start, length = _times([e.ts for e in events]), _times([e.dur for e in events], absent=0.0)
        good = (np.abs(start) < _LARGEST_US) & (length >= 0) & (length < _LONGEST_US)
        self.bad += len(events) - int(good.sum())
        start_ns = _nanoseconds(np.where(good, start, 0.0))
        arguments = [e.args or NO_ARGUMENTS for e in events]
        processes = self._interned(self.processes, [e.pid for e in events])
        block: tuple[NDArray[Any], ...] = (
            names, categories, self._threads(processes, [e.tid for e in events]), start_ns,
            start_ns + _nanoseconds(np.where(good, length, 0.0)), _ids([a.correlation for a in arguments]),
            _ids([a.stream for a in arguments]),
        )  # fmt: skip
        if not good.all():
            arguments = [arguments[index] for index in np.flatnonzero(good).tolist()]
            block = tuple(column[good] for column in block)
        self.blocks.append(block)
        detailed = {
            self.count + index: given for index, given in enumerate(arguments) if isinstance(given, Arguments)
        }
        self.arguments |= detailed
        self.held += sum(map(_size, detailed.values()))
        self.count += len(arguments)

    def _threads(self, processes: Int32s, tids: Sequence[Number]) -> Int32s:
        """Return the numbers of pairs of a process and a thread of it."""
        pairs, index = np.unique(
            processes.astype(np.int64) * _MOST_THREADS + self._interned(self._tids, tids), return_inverse=True
        )
        return self._interned(self.threads_of, pairs.tolist())[index]

    def _interned(self, known: dict[Any, int], values: Sequence[Any]) -> Int32s:
        """Return the numbers of values; new ones take the next."""
        for value in [value for value in dict.fromkeys(values) if value not in known]:
            known[value] = len(known)
            self.held += sys.getsizeof(value) + _ENTRY
        return np.fromiter(map(known.__getitem__, values), dtype=np.int32, count=len(values))

    @property
    def threads(self) -> list[tuple[Number, Number]]:
        """Return process and thread of each thread's number."""
        processes, tids = list(self.processes), list(self._tids)
        return [(processes[pair // _MOST_THREADS], tids[pair % _MOST_THREADS]) for pair in self.threads_of]

    def _label(self, event: Event) -> None:
        if event.name in {"process_name", "process_labels"} and event.args is not None:
            labels = self.labels.setdefault(event.pid, {})
            text = str(event.args.name or event.args.labels or "")
            if text not in labels:
                labels[text] = None
                self.held += sys.getsizeof(text) + _ENTRY

    def _allocated(self, marks: Marks) -> None:
        total, device = marks.allocated, marks.device_type
        if isinstance(total, int) and isinstance(device, int) and 0 < total < _LARGEST_ID:
            self.allocated[device] = max(self.allocated.get(device, 0), total)

    def arrays(self) -> list[NDArray[Any]]:
        """Return names, categories, threads, starts, ends, correlations and streams."""
        if not self.blocks:
            return [np.zeros(0, dtype=np.int64)] * _COLUMNS
        return [np.concatenate(parts) for parts in zip(*self.blocks, strict=True)]


def _size(arguments: Arguments) -> int:
    """Return the memory that an event's arguments take, about."""
    values = [getattr(arguments, name) for name in Arguments.__struct_fields__]
    raw = sum(len(one) for one in values if isinstance(one, msgspec.Raw))  # which know no size of their own
    texts = sum(sys.getsizeof(one) for one in values if isinstance(one, str))
    return sys.getsizeof(arguments) + _ENTRY + raw + texts


def _times(values: Sequence[Any], absent: float = math.nan) -> NDArray[np.float64]:
    """Return microseconds; what is no number is not one here either."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_time(value, absent) for value in values], dtype=np.float64)


def _time(value: Number, absent: float) -> float:
    if value is None:
        return absent
    return math.nan if isinstance(value, str) or abs(value) > _LARGEST_US else float(value)


def _nanoseconds(times: NDArray[np.float64]) -> Int64s:
    whole = np.floor(times)
    nanoseconds: Int64s = whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
    return nanoseconds


def _ids(values: Sequence[Number]) -> Int64s:
    """Return ids, -1 for what is none."""
    plain = [-1 if value is None else value if value.__class__ is int else _id(value) for value in values]
    try:
        return np.array(plain, dtype=np.int64)
    except OverflowError:
        return np.array([value if abs(value) < _LARGEST_ID else -1 for value in plain], dtype=np.int64)


def _id(value: Number) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_ID else -1
