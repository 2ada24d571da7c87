"""A Chrome JSON file in blocks of whole events, so that memory stays bounded however large the file is.

Source: the Trace Event Format (an object with ``traceEvents``, or a bare array whose end may be missing), and
Kineto's output_json.cpp, which writes what describes the file before and behind the events.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pptrace.plugin import TraceError, open_unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pptrace.plugin import UnpackedFile

__all__ = ["MOST_EVENT_BYTES", "Blocks"]

_BLOCK = 96 << 10  # larger ones leave the processor's cache, and at 128 KiB malloc maps each anew
MOST_EVENT_BYTES = 16 << 20
"""Bytes within which an event must end, and which the part before the events may have."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|bp|s|tts|tdur|sf|cname)"\s*:')
_EMPTY = re.compile(rb"(?:\s*\{\s*\}\s*,){16}")
_BLANK = b" \t\r\n"
_MARKS = (b'"ph"',)
_MOST_BROKEN = 100_000
"""Events that may be none, where most of a file's are none."""
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
    file: UnpackedFile | None = None
    """What is read, while it is."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield texts of whole events with commas between, without brackets.

        The last may hold the array's end and what stands behind it; :meth:`values` reads it.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unfolds without end.
        """
        with open_unpacked(self.path) as self.file:
            yield from self._split(self.file)

    def expect(self, events: int, bad: int) -> None:
        """Check how many events there were, whole and broken, and how many will be.

        Raises:
            TraceError: there are more than a trace may have, or most are broken.
        """
        if self.file is not None:
            self.file.expect(events + bad, _MARKS)
        if bad > max(events, _MOST_BROKEN):
            raise TraceError(f"holds {bad:,} broken events and {events:,} whole ones: not a trace", file=self.path)

    def values(self, block: bytes) -> Iterator[Any]:
        """Yield the values of a block one by one: of one that holds the array's end, or broken events."""
        text, at, decoder = block.decode("utf-8", errors="replace"), 0, json.JSONDecoder()
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            if at == len(text):
                return
            if text[at] == "]":
                self._ended(text[at + 1 :].encode(errors="replace"))
                return
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self.cut = True
                return
            yield value

    def _ended(self, rest: bytes) -> None:
        """Take what stands behind the array's end."""
        text = rest.strip(_BLANK).removeprefix(b",").strip(_BLANK)
        if text in {b"", b"}"}:
            return
        try:
            self.top |= json.loads(b"{" + text)
        except ValueError:
            self.cut = True

    def _split(self, file: UnpackedFile) -> Iterator[bytes]:
        held, searched = self._begin(file), 0
        while True:
            part = self._part(file, len(held))
            held += part
            if not part:
                break
            at, end = _last_start(held, searched)
            searched = len(held) - at
            if at > 0:
                yield held[:end]
                held = held[at:]
            elif len(held) > MOST_EVENT_BYTES:
                what = "all events are empty" if _EMPTY.match(held) else "no event ends"
                raise TraceError(f"{what} within {MOST_EVENT_BYTES >> 20} MiB: not a trace", file=self.path)
        # The end is read event by event, which is slow: so it is the last event alone.
        at, end = _last_start(held)
        if at > 0:
            yield held[:end]
        if held[at:].strip(_BLANK):
            yield held[at:]

    def _begin(self, file: UnpackedFile) -> bytes:
        """Read up to the first event, and return what was read of the events."""
        held = b""
        while len(held) <= MOST_EVENT_BYTES:
            part = self._part(file, len(held))
            held += part
            text = held.lstrip(b"\xef\xbb\xbf" + _BLANK)
            if text.startswith(b"["):
                return text[1:]
            if text[:1] not in {b"{", b""}:
                break
            array = _ARRAY.search(held)
            if array:
                self._describe(held[: array.start()])
                return held[array.end() :]
            if not part:
                break
        if not held.strip(_BLANK):
            raise TraceError("is empty", file=self.path)
        raise TraceError("is no Chrome JSON: there are no traceEvents", file=self.path)

    def _describe(self, head: bytes) -> None:
        try:
            self.top |= json.loads(head.strip(b"\xef\xbb\xbf" + _BLANK).removesuffix(b",") + b"}")
        except (ValueError, RecursionError) as error:
            raise TraceError(f"cannot be read before its events: {error}", file=self.path) from None

    def _part(self, file: UnpackedFile, held: int) -> bytes:
        """Return the next bytes, as many as are held where that is much: an event's end is soon found or never."""
        try:
            part = file.read(max(_BLOCK, held))
        except (EOFError, zlib.error):
            if not self.size:
                raise
            self.cut = True
            return b""
        self.size += len(part)
        return part


def _last_start(text: bytes, searched: int = 0) -> tuple[int, int]:
    """Return where the last event starts that another one comes before, and where that one ends; 0, 0 for none.

    Args:
        text: the text.
        searched: how much of its beginning was, in vain.
    """
    at, first = len(text), max(searched - _LONGEST_KEY, 0)
    while (at := text.rfind(b"{", first, at)) > 0:
        before = text[max(at - _MOST_BLANKS, 0) : at].rstrip(_BLANK)
        comma = max(at - _MOST_BLANKS, 0) + len(before) - 1
        closed = before.endswith(b",") and before[:-1].rstrip(_BLANK).endswith(b"}")
        if closed and _FIRST_KEY.match(text, at):
            return at, comma
    return 0, 0
