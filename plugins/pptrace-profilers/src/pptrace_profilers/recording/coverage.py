"""How long at least one of some intervals lasts, for many groups of intervals at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s

__all__ = ["covered_ns"]


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
