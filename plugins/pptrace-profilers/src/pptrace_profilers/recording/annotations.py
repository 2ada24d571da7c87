"""Which annotation is around an instant: the innermost, on the instant's own thread where that has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pptrace.plugin import Int32s, Int64s

__all__ = ["Annotations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Annotations by start, the longer first where starts are equal."""

    start_ns: Int64s
    """When each starts."""
    end_ns: Int64s
    """When it ends."""
    thread: Int32s
    """Its thread's number."""
    row: Int64s
    """Its place in the file."""

    def around(self, at_ns: Int64s, thread: Int32s, row: Int64s) -> Int64s:
        """Return the innermost annotation around each instant, -1 for none.

        One of the instant's own thread goes before one of another: autograd launches from a thread without any.

        Args:
            at_ns: instants.
            thread: the thread of each.
            row: the place in the file of each, which tells empty annotations of one instant apart.
        """
        if not self.start_ns.size:
            return np.full(at_ns.size, -1, dtype=np.int64)
        everywhere = self._innermost(np.arange(self.start_ns.size), (self.start_ns, self.end_ns, at_ns), row)
        # Times of a thread follow all times of threads with lower numbers: one search serves all threads.
        count = self.start_ns.size
        _, time = np.unique(np.concatenate([self.start_ns, self.end_ns, at_ns]), return_inverse=True)
        time += np.concatenate([self.thread, self.thread, thread]).astype(np.int64) * time.size
        by_thread = np.argsort(self.thread, kind="stable")
        nearest = self._innermost(by_thread, (time[:count], time[count : 2 * count], time[2 * count :]), row)
        return np.where(nearest >= 0, nearest, everywhere)

    def _innermost(self, among: Int64s, times: tuple[Int64s, Int64s, Int64s], row: Int64s) -> Int64s:
        """Return the last annotation that started before each instant and did not end before it.

        Args:
            among: all annotations by start.
            times: of the annotations' starts and ends, and of the instants.
            row: the place in the file of each instant.
        """
        start, end, at_ns = times[0][among], times[1][among], times[2]
        at = np.searchsorted(start, at_ns, side="right") - 1
        if bool((start == end).any()):
            at = _last_before(start, np.where(start == end, self.row[among], -1), at_ns, row)
        outer = _outer(end)
        unsettled = np.flatnonzero(at >= 0)
        while unsettled.size:
            over = end[at[unsettled]] < at_ns[unsettled]
            unsettled = unsettled[over]
            at[unsettled] = outer[at[unsettled]]
            unsettled = unsettled[at[unsettled] >= 0]
        innermost: Int64s = np.where(at >= 0, among[at], -1)
        return innermost


def _last_before(start: Int64s, start_row: Int64s, at_ns: Int64s, row: Int64s) -> Int64s:
    """Return the last annotation before each instant, by time and then by place in the file."""
    count = start.size
    order = np.lexsort((
        np.concatenate([np.zeros(count, dtype=np.int8), np.ones(at_ns.size, dtype=np.int8)]),
        np.concatenate([start_row, row]),
        np.concatenate([start, at_ns]),
    ))  # fmt: skip
    passed = np.cumsum(order < count) - 1
    last = np.empty(at_ns.size, dtype=np.int64)
    instants = order >= count
    last[order[instants] - count] = passed[instants]
    return last


def _outer(end: Int64s) -> Int64s:
    """Return for each annotation the last one before it that ends later; -1 for none."""
    outer: list[int] = []
    enclosing: list[tuple[int, int]] = []
    for index, time in enumerate(end.tolist()):
        while enclosing and enclosing[-1][1] <= time:
            enclosing.pop()
        outer.append(enclosing[-1][0] if enclosing else -1)
        enclosing.append((index, time))
    return np.array(outer, dtype=np.int64)
