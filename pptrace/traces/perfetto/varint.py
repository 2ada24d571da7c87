"""Protobuf varints: seven bits per byte, the lowest first; the eighth bit marks continuation."""

from __future__ import annotations

__all__ = ["read_varint"]

_BYTES = 10
_CONTINUATION = 0x80


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number and the offset after it; the offset is 0 where the number is truncated.

    >>> read_varint(bytes([0x96, 0x01, 0x08]), 0), read_varint(bytes([0x96]), 0)
    ((150, 2), (0, 0))
    """
    value = 0
    for count, byte in enumerate(data[place : place + _BYTES]):
        value |= (byte & ~_CONTINUATION) << (7 * count)
        if byte < _CONTINUATION:
            return value, place + count + 1
    return 0, 0
