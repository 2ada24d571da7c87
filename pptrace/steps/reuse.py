"""Memory for the columns of a simulation, kept for the next ones.

The system clears each page that it hands out, which costs as much as filling it. What a step returns is lent
again: to the rest of that step, and to later ones; so are a timeline's largest columns when the timeline is gone.
What nobody has borrowed goes back to the system beyond :data:`MOST`.
"""

from __future__ import annotations

import os
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LEAST", "MAPPED", "MOST", "Store", "borrowed", "lasting"]

LEAST = 2**20
"""Bytes from which memory is kept: less than that, the allocator keeps itself."""

MAPPED = 2**23
"""Bytes from which what lasts is lent, too. Whether the allocator keeps such pieces or has the system clear new
pages each time hangs on what else was given back before (mallopt(3), ``M_MMAP_THRESHOLD``)."""

MOST = 2**29
"""Bytes that are kept at most while nobody uses them."""

_LINE = 64
"""Bytes of a line of the processor's caches."""


class _Segment:
    """A piece of the system's memory; ``free`` are the ranges that nobody has borrowed, in order."""

    __slots__ = ("first", "free", "memory", "size")

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size + _LINE, dtype=np.uint8)
        self.first = -(-self.memory.ctypes.data // _LINE) * _LINE
        self.size, self.free = size, [(0, size)]

    @property
    def is_whole(self) -> bool:
        return self.free == [(0, self.size)]

    def take(self, place: tuple[int, int], size: int) -> int:
        """Take the first part of a free range; return where it begins."""
        begin, end = place
        at = self.free.index(place)
        self.free[at : at + 1] = [(begin + size, end)] if begin + size < end else []
        return begin

    def put(self, begin: int, end: int) -> None:
        """Return a range, and join it with its free neighbours."""
        ranges = sorted([*self.free, (begin, end)])
        joined = ranges[:1]
        for low, high in ranges[1:]:
            if low == joined[-1][1]:
                joined[-1] = joined[-1][0], high
            else:
                joined.append((low, high))
        self.free = joined


class _Lent:
    """What a borrowed array holds on to: with the last of its views the memory comes back."""

    __slots__ = ("__array_interface__", "begin", "end", "segment", "store")

    def __init__(self, store: Store, segment: _Segment, begin: int, end: int) -> None:
        self.store, self.segment, self.begin, self.end = store, segment, begin, end
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (end - begin,), "data": (segment.first + begin, False),
        }  # fmt: skip

    def __del__(self) -> None:
        self.store.give_back(self.segment, self.begin, self.end)


class Store:
    """Memory that is lent and comes back, from any thread."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._segments: list[_Segment] = []
        self._returned: deque[tuple[_Segment, int, int]] = deque()
        self._lock = Lock()

    @property
    def unused(self) -> int:
        """Bytes of the segments of which nothing is borrowed."""
        return sum(segment.size for segment in self._segments if segment.is_whole)

    def borrowed(self, size: int) -> NDArray[np.uint8]:
        """Return so many bytes with anything in them, at a cache line; they come back when the array is gone."""
        size = -(-size // _LINE) * _LINE
        with self._lock:
            self._settle()
            fitting = (
                (end - begin, number, (begin, end))
                for number, segment in enumerate(self._segments)
                for begin, end in segment.free if end - begin >= size
            )  # fmt: skip
            _, number, place = min(fitting, default=(0, -1, (0, size)))
            if number < 0:
                self._segments.append(_Segment(size))
            segment = self._segments[number]
            begin = segment.take(place, size)
        return np.asarray(_Lent(self, segment, begin, begin + size))

    def give_back(self, segment: _Segment, begin: int, end: int) -> None:
        """Take a range back; one that comes while another thread, or this one, is at it waits for the next."""
        self._returned.append((segment, begin, end))
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """Leave all to whoever has borrowed it, as a forked process does: what is unused is its parent's."""
        self._lock, self._segments = Lock(), []
        self._returned.clear()

    def _settle(self) -> None:
        """Put what came back in its place, and let go of as little as brings the rest below what may be kept."""
        while self._returned:
            segment, begin, end = self._returned.popleft()
            segment.put(begin, end)
        excess = self.unused - self.most
        while excess > 0:
            whole = [segment for segment in self._segments if segment.is_whole]
            gone = min(whole, key=lambda one: (one.size < excess, abs(one.size - excess)))
            self._segments.remove(gone)
            excess -= gone.size


_store = Store()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_store.forget)


def borrowed(size: int) -> NDArray[np.uint8]:
    """Return so many bytes with anything in them; what is large is lent again when the array is gone."""
    return np.empty(size, dtype=np.uint8) if size < LEAST else _store.borrowed(size)


def lasting(size: int) -> NDArray[np.uint8]:
    """Return so many bytes for what others may hold on to: new ones, but lent where the system would map them."""
    return np.empty(size, dtype=np.uint8) if size < MAPPED else _store.borrowed(size)
