"""A Chrome JSON file in blocks of whole events, so that memory stays bounded however large the file is.

Source: the Trace Event Format (an object with ``traceEvents``, or a bare array whose end may be missing), and
Kineto's output_json.cpp, which writes what describes the file before and behind the events.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pptrace.errors import TraceError
from pptrace_profilers.events.unpacking import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pptrace_profilers.events.unpacking import Unpacked

__all__ = ["MOST_EVENT_BYTES", "Blocks"]

_BLOCK = 96 << 10  # larger ones leave the processor's cache, and at 128 KiB malloc maps each anew
MOST_EVENT_BYTES = 16 << 20
"""Bytes within which an event must end, and which the part before the events may have."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|bp|s|tts|tdur|sf|cname)"\s*:')
_BLANK = b" \t\r\n"
_LONGEST_KEY, _MOST_BLANKS = 4096, 256
"""Bytes before an event's first key is whole, and blanks between two events, where a block is cut."""


@dataclass(slots=True)
class Blocks:
    """A file's events in blocks; ``top`` and ``cut`` are whole once all blocks were taken."""

    path: Path
    """The file."""
    top: dict[str, Any] = field(default_factory=dict)
    """What stands beside the events."""
    cut: bool = False
    """Whether the file ends in the middle."""
    size: int = 0
    """Bytes read, unpacked."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield texts of whole events with commas between, without brackets.

        The last may hold the array's end and what stands behind it; whoever reads its events hands that to
        :meth:`ended`.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unfolds without end.
        """
        try:
            with unpacked(self.path) as file:
                yield from self._split(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"cannot be unpacked: {error}", file=self.path) from None
        except OSError as error:
            raise TraceError(f"cannot be read: {error.strerror or error}", file=self.path) from None

    def ended(self, rest: bytes) -> None:
        """Take what stands behind the array's end."""
        text = rest.strip(_BLANK).removeprefix(b",").strip(_BLANK)
        if text in {b"", b"}"}:
            return
        try:
            self.top |= json.loads(b"{" + text)
        except ValueError:
            self.cut = True

    def _split(self, file: Unpacked) -> Iterator[bytes]:
        held, seen = self._begin(file), 0
        while True:
            more = self._more(file, len(held))
            held += more
            if not more:
                break
            at, end = _last_start(held, seen)
            seen = len(held) - at
            if at > 0:
                yield held[:end]
                held = held[at:]
            elif len(held) > MOST_EVENT_BYTES:
                raise TraceError(f"no event ends within {MOST_EVENT_BYTES >> 20} MiB: not a trace", file=self.path)
        # The end is read event by event, which is slow: so it is the last event alone.
        at, end = _last_start(held)
        if at > 0:
            yield held[:end]
        if held[at:].strip(_BLANK):
            yield held[at:]

    def _begin(self, file: Unpacked) -> bytes:
        """Read up to the first event, and return what was read of the events."""
        held = b""
        while len(held) <= MOST_EVENT_BYTES:
            more = self._more(file, len(held))
            held += more
            text = held.lstrip(b"\xef\xbb\xbf" + _BLANK)
            if text.startswith(b"["):
                return text[1:]
            if text[:1] not in {b"{", b""}:
                break
            found = _ARRAY.search(held)
            if found:
                self._describe(held[: found.start()])
                return held[found.end() :]
            if not more:
                break
        if not held.strip(_BLANK):
            raise TraceError("is empty", file=self.path)
        raise TraceError("is no Chrome JSON: there are no traceEvents", file=self.path)

    def _describe(self, head: bytes) -> None:
        try:
            self.top |= json.loads(head.strip(b"\xef\xbb\xbf" + _BLANK).removesuffix(b",") + b"}")
        except (ValueError, RecursionError) as error:
            raise TraceError(f"cannot be read before its events: {error}", file=self.path) from None

    def _more(self, file: Unpacked, held: int) -> bytes:
        """Return the next bytes, as many as are held where that is much: an event's end is soon found or never."""
        try:
            more = file.read(max(_BLOCK, held))
        except (EOFError, zlib.error):
            if not self.size:
                raise
            self.cut = True
            return b""
        self.size += len(more)
        return more


def _last_start(text: bytes, seen: int = 0) -> tuple[int, int]:
    """Return where the last event starts that another one comes before, and where that one ends; 0, 0 for none.

    Args:
        text: the text.
        seen: how much of its beginning was searched in vain before.
    """
    at, first = len(text), max(seen - _LONGEST_KEY, 0)
    while (at := text.rfind(b"{", first, at)) > 0:
        before = text[max(at - _MOST_BLANKS, 0) : at].rstrip(_BLANK)
        comma = max(at - _MOST_BLANKS, 0) + len(before) - 1
        closed = before.endswith(b",") and before[:-1].rstrip(_BLANK).endswith(b"}")
        if closed and _FIRST_KEY.match(text, at):
            return at, comma
    return 0, 0
