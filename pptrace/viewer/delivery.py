"""How much of the trace has been handed over, and how long nothing has been asked for."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Delivery"]


class Delivery:
    """Counts requests in progress and the parts of the trace sent; shared by all their threads.

    >>> delivery = Delivery()
    >>> delivery.sent(0, 4, size=10), delivery.complete
    (None, False)
    >>> delivery.sent(4, 10, size=10), delivery.complete
    (None, True)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: set[tuple[int, int]] = set()
        self._in_progress = 0
        self._last = clock()
        self.complete = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request as in progress."""
        with self._lock:
            self._in_progress += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_progress -= 1
                self._last = self._clock()

    def sent(self, start: int, stop: int, *, size: int) -> None:
        """Note that bytes ``start`` to ``stop`` of the trace's ``size`` went out."""
        with self._lock:
            self._parts.add((start, stop))
            reached = 0
            for first, after in sorted(self._parts):
                reached = max(reached, after) if first <= reached else reached
            self.complete = self.complete or reached >= size

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while one is in progress."""
        with self._lock:
            return 0.0 if self._in_progress else self._clock() - self._last
