"""Numbers as protobuf writes them: seven bits a byte, the least first, the eighth says that more follow."""

from __future__ import annotations

__all__ = ["read_varint"]

_BYTES = 10
_MORE = 0x80


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number and the place after it; that place is 0 where the number does not end.

    >>> read_varint(bytes([0x96, 0x01, 0x08]), 0), read_varint(bytes([0x96]), 0)
    ((150, 2), (0, 0))
    """
    value = 0
    for count, byte in enumerate(data[place : place + _BYTES]):
        value |= (byte & ~_MORE) << (7 * count)
        if byte < _MORE:
            return value, place + count + 1
    return 0, 0
