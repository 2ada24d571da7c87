"""Events of other formats in the columns of a Chrome JSON file, so that what follows is the same for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace_profilers.events.table import Events

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace_profilers.events.table import Arguments

__all__ = ["EventBuilder"]

_FITS = 2**62


class EventBuilder:
    """Events of one process as they come."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: list[tuple[int, ...]] = []
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._arguments: dict[int, Arguments] = {}
        self.bad = 0
        """Events that were none: no time, a negative or an endless one."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, name: str, category: str, thread: tuple[int, int], start_ns: Any, end_ns: Any, *,
        correlation: int = -1, stream: int = -1, arguments: Arguments | None = None,
    ) -> None:  # fmt: skip
        """Take one event: its name, category, process and thread, and what Kineto's arguments would say."""
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
            correlation if -1 <= correlation < _FITS else -1,
            stream if -1 <= stream < _FITS else -1,
        ))  # fmt: skip

    def events(self, path: Path, top: dict[str, Any], *, cut: bool = False) -> Events:
        """Return the columns.

        Args:
            path: the file.
            top: what Kineto writes beside its events, such as ``distributedInfo``.
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
    return isinstance(value, int) and -_FITS < value < _FITS
