"""How many packets a Perfetto trace holds, found before they are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.limits.keys import most_events
from pptrace.limits.reading import check_events

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_packets"]

_FIRST = 1 << 16
"""Packets that are read before the rest is looked at."""
_MORE, _VALUE, _LONGEST = 0x80, 0x7F, 10


def check_packets(count: int, raw: bytes, at: int, path: Path | str) -> None:
    """Check that a trace may have as many packets as were read, and as many as it will have.

    Whenever what was read doubled, and the rest, were it like that, had too many, their lengths are walked.

    Args:
        count: packets that were read.
        raw: the whole trace.
        at: where its next packet begins.
        path: what to call it.

    Raises:
        TraceError: there are more than the limit, or than memory holds.
    """
    if count % _FIRST or not count:
        return
    check_events(count, path)
    if not count & (count - 1) and count * len(raw) > most_events() * at:
        check_events(count + _packets(raw, at, most_events() - count + 1), path)


def _packets(raw: bytes, at: int, most: int) -> int:
    """Return how many packets follow, at most so many: each has a byte for its tag, its length, and that many."""
    count, end = 0, len(raw) - 1
    while at < end and count < most:
        size = raw[at + 1]
        if size < _MORE:
            at += 2 + size
        else:
            size, shift = size & _VALUE, 7
            for place in range(at + 2, min(at + 1 + _LONGEST, end + 1)):
                size |= (raw[place] & _VALUE) << shift
                shift += 7
                if raw[place] < _MORE:
                    at = place + 1 + size
                    break
            else:
                return count
        count += 1
    return count
