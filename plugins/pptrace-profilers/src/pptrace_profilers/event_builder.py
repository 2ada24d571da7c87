"""Builder of event tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pptrace.plugin import check_events
from pptrace_profilers.events import Blocks, Events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pptrace_profilers.events import Arguments

_LARGEST = 2**62


class EventBuilder:
    """Events of one process in the order of their records."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: list[tuple[int, ...]] = []
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._arguments: dict[int, Arguments] = {}
        self.bad = 0
        """Dropped events: without a time, or with a negative or infinite duration."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, name: str, category: str, thread: tuple[int, int], start_ns: Any, end_ns: Any, *,
        correlation: int = -1, stream: int = -1, arguments: Arguments | None = None,
    ) -> None:  # fmt: skip
        """Append an event; ``thread`` is its process and thread, ``arguments`` are in Kineto's terms."""
        if not (_is_time(start_ns) and _is_time(end_ns)) or end_ns < start_ns:
            self.bad += 1
            return
        if arguments is not None:
            self._arguments[len(self._rows)] = arguments
        self._rows.append((
            self._names.setdefault(name, len(self._names)),
            self._categories.setdefault(category, len(self._categories)),
            self._threads.setdefault(thread, len(self._threads)),
            start_ns, end_ns,
            correlation if -1 <= correlation < _LARGEST else -1,
            stream if -1 <= stream < _LARGEST else -1,
        ))  # fmt: skip

    def events(self, path: Path, top: dict[str, Any], *, cut: bool = False) -> Events:
        """Return the columns.

        Args:
            path: the file.
            top: Kineto's metadata, such as ``distributedInfo``.
            cut: whether the file ends in the middle.
        """
        table = np.array(self._rows, dtype=np.int64).reshape(len(self._rows), 7)
        name, category, thread = (np.ascontiguousarray(table[:, at], dtype=np.int32) for at in range(3))
        start, end, correlation, stream = (np.ascontiguousarray(table[:, at]) for at in range(3, 7))
        return Events(
            path=path, top=top, names=list(self._names), categories=list(self._categories),
            name=name, category=category, thread=thread, start_ns=start, end_ns=end,
            correlation=correlation, stream=stream, arguments=self._arguments,
            threads=list(self._threads), cut=cut, bad=self.bad,
        )  # fmt: skip


def _is_time(value: object) -> bool:
    return isinstance(value, int) and -_LARGEST < value < _LARGEST


_DECODER = msgspec.json.Decoder(list[dict[str, Any]])


class PlainEvents:
    """Events in the order of the file; ``cut`` and ``bad`` are final after the last event.

    The reader accepts an array without an end, a final empty object and extra commas.
    """

    def __init__(self, path: Path, mend: Callable[[bytes], bytes] | None = None) -> None:
        """Read ``path``; ``mend`` repairs the writer's invalid JSON."""
        self._blocks, self._mend = Blocks(path), mend
        self.bad = 0
        """Number of values that are not objects."""

    @property
    def cut(self) -> bool:
        """Whether the file ends in the middle of an event."""
        return self._blocks.cut

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unfolds without end.
        """
        count = 0
        for block in self._blocks:
            text = self._mend(block) if self._mend is not None else block
            try:
                events = _DECODER.decode(b"[" + text + b"]")
                count += len(events)
                check_events(count, self._blocks.path)
                self._blocks.expect(count - self.bad, self.bad)
                yield from events
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                for event in self._blocks.values(text):
                    count += 1
                    if isinstance(event, dict):
                        yield event
                    else:
                        self.bad += 1
                check_events(count, self._blocks.path)
                self._blocks.expect(count - self.bad, self.bad)


_LARGEST_US = 2**51
"""71 years: a time since 1970 is below, and the sum of two in nanoseconds below 2**63."""
_DIGITS = 19
"""Digits of the largest number; longer text is not converted."""


def whole(value: object, absent: int) -> int:
    """Return a whole number of at most 62 bits, ``absent`` for anything else.

    >>> whole(7, -1), whole("7", -1), whole(7.5, -1), whole(2**70, -1), whole(True, -1)
    (7, 7, -1, -1, -1)
    """
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None
    if not isinstance(value, int) or isinstance(value, bool):
        return absent
    return value if -_LARGEST < value < _LARGEST else absent


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
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if abs(value) >= _LARGEST_US:
        return None
    floor = math.floor(value)
    return floor * 1000 + round((value - floor) * 1000)
