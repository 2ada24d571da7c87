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
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

__all__ = ["MOST_EVENT_BYTES", "Blocks"]

_File: TypeAlias = "BufferedReader | gzip.GzipFile"

_BLOCK = 96 << 10  # larger ones leave the processor's cache, and at 128 KiB malloc maps each anew
MOST_EVENT_BYTES = 64 << 20
"""Bytes within which an event must end, and which the part before the events may have."""
_MOST_RATIO, _RATIO_FROM = 300, 256 << 20
"""How far a compressed file may unfold, and from which size on that is looked at; traces unfold 10 to 40 times."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|bp|s|tts|tdur|sf|cname)"\s*:')
_BLANK = b" \t\r\n"
_MOST_BLANKS = 256
"""Blanks that may stand between two events where a block is cut."""


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
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                yield from self._split(gzip.GzipFile(fileobj=raw) if packed else raw, raw if packed else None)
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

    def _split(self, file: _File, packed: BufferedReader | None) -> Iterator[bytes]:
        held = self._begin(file, packed)
        while True:
            more = self._more(file, packed)
            held += more
            if not more:
                break
            at, end = _last_start(held)
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

    def _begin(self, file: _File, packed: BufferedReader | None) -> bytes:
        """Read up to the first event, and return what was read of the events."""
        held = b""
        while len(held) <= MOST_EVENT_BYTES:
            more = self._more(file, packed)
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

    def _more(self, file: _File, packed: BufferedReader | None) -> bytes:
        try:
            more = file.read(_BLOCK)
        except (EOFError, zlib.error):
            if not self.size:
                raise
            self.cut = True
            return b""
        self.size += len(more)
        if packed is not None and self.size > max(_RATIO_FROM, _MOST_RATIO * packed.tell()):
            message = f"unfolds more than {_MOST_RATIO} times: unpack it first if it really is a trace"
            raise TraceError(message, file=self.path)
        return more


def _last_start(text: bytes) -> tuple[int, int]:
    """Return where the last event starts that another one comes before, and where that one ends; 0, 0 for none."""
    at = len(text)
    while (at := text.rfind(b"{", 0, at)) > 0:
        before = text[max(at - _MOST_BLANKS, 0) : at].rstrip(_BLANK)
        comma = max(at - _MOST_BLANKS, 0) + len(before) - 1
        closed = before.endswith(b",") and before[:-1].rstrip(_BLANK).endswith(b"}")
        if closed and _FIRST_KEY.match(text, at):
            return at, comma
    return 0, 0
