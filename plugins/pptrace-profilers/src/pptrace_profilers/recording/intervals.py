"""Many intervals at once: in sum by key, how long at least one of a group lasts, which is around an instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s

__all__ = ["covered_ns", "totals", "uncovered_ns", "window_around"]


def covered_ns(group: Int64s, start_ns: Int64s, end_ns: Int64s, groups: int) -> Int64s:
    """Return the length of each group's union, shape (groups,).

    Args:
        group: each interval's group, ascending.
        start_ns: starts, ascending within a group.
        end_ns: ends.
        groups: how many groups there are.

    >>> covered_ns(np.array([0, 0, 1]), np.array([0, 2, 5]), np.array([3, 4, 6]), 2).tolist()
    [4, 1]
    """
    total = np.zeros(groups, dtype=np.int64)
    if not group.size:
        return total
    zero = np.zeros(groups, dtype=np.int64)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    zero[group[first]] = start_ns[first]
    # One axis for all groups, each beyond the longest before it, so that one running maximum serves them all.
    room = int((end_ns - zero[group]).max()) + 1
    begin, end = start_ns - zero[group] + group * room, end_ns - zero[group] + group * room
    reached = np.maximum.accumulate(end)
    before = np.concatenate([begin[:1], reached[:-1]])
    np.add.at(total, group, np.maximum(end - np.maximum(begin, before), 0))
    return total


def totals(key: NDArray[Any], amount: Int64s) -> tuple[NDArray[Any], Int64s, Int64s]:
    """Return the keys, each once and ascending, how often each comes and its amount in sum.

    >>> [column.tolist() for column in totals(np.array([7, 3, 7]), np.array([1, 2, 3]))]
    [[3, 7], [1, 2], [2, 4]]
    """
    keys, group = np.unique(key, return_inverse=True)
    total = np.zeros(keys.size, dtype=np.int64)
    np.add.at(total, group, amount)
    return keys, np.bincount(group, minlength=keys.size), total


def uncovered_ns(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> int:
    """Return for how long nothing else ran within a span.

    >>> uncovered_ns((0, 10), [(-2, 3), (2, 4), (8, 12)])
    4
    """
    alone, reached = 0, span[0]
    for start, end in sorted(others):
        alone += max(min(start, span[1]) - reached, 0)
        reached = max(reached, min(end, span[1]))
    return alone + span[1] - reached


def window_around(windows: Sequence[tuple[int, int]], at_ns: Sequence[int]) -> Int64s:
    """Return the last window that starts before each instant where it ends behind it, else -1.

    Args:
        windows: starts and ends, by start.
        at_ns: instants.

    >>> window_around([(0, 4), (5, 9)], [0, 4, 7, 10]).tolist()
    [0, 0, 1, -1]
    """
    starts, ends = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    instants = np.array(at_ns, dtype=np.int64)
    around = np.searchsorted(starts, instants, side="right") - 1
    inside: Int64s = np.where((around >= 0) & (instants <= ends[around]), around, -1)
    return inside
