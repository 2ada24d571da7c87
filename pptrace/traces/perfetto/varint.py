"""Protobuf varints, and the number of packets of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.limits import check_events, most_events

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_packets", "read_varint"]

_BYTES = 10
_CONTINUATION = 0x80
_FIRST = 1 << 16
"""Packets between two checks."""


def read_varint(data: bytes, place: int) -> tuple[int, int]:
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


def check_packets(count: int, raw: bytes, offset: int, path: Path | str) -> None:
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
