"""The part of a file that a ``Range`` header asks for (RFC 9110, section 14)."""

from __future__ import annotations

import re

__all__ = ["byte_range"]

_ONE_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.ASCII | re.IGNORECASE)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last, or ``None`` for the whole file.

    A header of another form, or of several ranges, stands for the whole file, as the standard allows.

    Raises:
        IndexError: the range lies outside the ``size`` bytes of the file.

    >>> byte_range("bytes=2-4", 10), byte_range("bytes=-3", 10), byte_range("lines=1-2", 10)
    ((2, 5), (7, 10), None)
    """
    match = _ONE_RANGE.fullmatch(header or "")
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if first and last and int(first) > int(last):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise IndexError(f"bytes {start} to {stop} of {size}")
    return start, stop
