"""Perfetto's native format: typed fields, flows, counters; opens in ui.perfetto.dev."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

_PACKET = b"\n"
_MARK = b"pptrace.format"
_WITHIN = 64

_BYTES = 10
_CONTINUATION = 0x80


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``timeline`` to ``path``; see :func:`pptrace.traces.perfetto.writer.write`."""
    from pptrace.traces.perfetto import writer

    writer.write(timeline, path, options)


def read(paths: Sequence[Path]) -> Timeline:
    """Read what :func:`write` wrote; see :func:`pptrace.traces.perfetto.reader.read`."""
    from pptrace.traces.perfetto import reader

    return reader.read(paths)


def recognises(path: Path, head: bytes) -> bool:  # noqa: ARG001 - the importers' signature
    """Whether a file is a Perfetto trace that pptrace wrote."""
    return head.startswith(_PACKET) and _MARK in head[:_WITHIN]


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a protobuf varint and the offset after it; the offset is 0 where the number is truncated.

    Each byte has seven bits of the number, the lowest first, and a bit that marks continuation.

    >>> read_varint(bytes([0x96, 0x01, 0x08]), 0), read_varint(bytes([0x96]), 0)
    ((150, 2), (0, 0))
    """
    value = 0
    for count, byte in enumerate(data[place : place + _BYTES]):
        value |= (byte & ~_CONTINUATION) << (7 * count)
        if byte < _CONTINUATION:
            return value, place + count + 1
    return 0, 0
