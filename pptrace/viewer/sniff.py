"""Tells by its content whether a file is a trace that the Perfetto UI opens."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from pptrace.errors import TraceError
from pptrace.limits.reading import UnpackedFile
from pptrace.viewer.varint import read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["check"]

_ACCEPTED = "a Perfetto trace (.pftrace) or a Chrome JSON trace (.json), either also with .gz"
_BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 20
_EVENTS = b'"traceEvents"'
_PHASE = b'"ph"'
"""The key that every Chrome event has, whether in an object or in a bare array."""
_PACKET = 0x0A
"""The tag of ``Trace.packet``, the only field of Perfetto's outermost message."""
_WIRE_TYPES = (0, 1, 2, 5)


def check(path: Path) -> None:
    """Do nothing for a trace that the UI opens.

    Raises:
        TraceError: the file is missing, no regular file, unreadable, empty, damaged or no trace.
    """
    try:
        _require_file(path)
        with _opened(path) as file:
            head = file.read(_CHUNK_BYTES)
            if not head:
                raise TraceError(f"is empty; expected {_ACCEPTED}", file=path)
            if not (_is_perfetto(head) or _is_chrome_json(head, file)):
                raise TraceError(f"is no trace; expected {_ACCEPTED}", file=path)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError("is a truncated or damaged gzip file; write it again", file=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=path) from None


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise TraceError("is a folder; name a file in it", file=path)
    if not path.exists():
        raise TraceError("there is no such file; check the path", file=path)
    if not path.is_file():
        raise TraceError("is no regular file; save it to one first", file=path)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        yield cast("IO[bytes]", UnpackedFile(path, file))


def _is_perfetto(head: bytes) -> bool:
    """Tell whether packets follow each other to the end of ``head``; the last may be cut."""
    place = 0
    while place < len(head):
        if head[place] != _PACKET:
            return False
        size, start = read_varint(head, place + 1)
        if start == 0:
            return place > 0 and len(head) == _CHUNK_BYTES
        if size and start < len(head) and not _is_tag(head[start]):
            return False
        place = start + size
    return place == len(head) or len(head) == _CHUNK_BYTES


def _is_tag(byte: int) -> bool:
    return byte & 7 in _WIRE_TYPES and byte >> 3 > 0


def _is_chrome_json(head: bytes, rest: IO[bytes]) -> bool:
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip().startswith(b"{") and _PHASE in text
    return text.startswith(b"{") and _names_events(head, rest)


def _names_events(head: bytes, rest: IO[bytes]) -> bool:
    # a profiler may write megabytes about its job before the events
    overlap = len(_EVENTS) - 1
    window = head
    while _EVENTS not in window:
        chunk = rest.read(_CHUNK_BYTES)
        if not chunk:
            return False
        window = window[-overlap:] + chunk
    return True
