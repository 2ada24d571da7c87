"""Kernels of exports: lanes for slices that overlap.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

from __future__ import annotations


def first_free(ptr, start, end, until, place, lanes):
    """Put each slice of a group on the group's first lane that is free by then.

    Group ``g`` has the slices ``ptr[g]:ptr[g + 1]``, by their starts. ``until`` is room for the lanes of one
    group; ``place`` gets each slice's lane within its group, ``lanes`` the number of lanes of each group.
    """
    for group in range(len(ptr) - 1):
        used = 0
        for index in range(ptr[group], ptr[group + 1]):
            lane = 0
            while lane < used and until[lane] > start[index]:
                lane += 1
            used = max(used, lane + 1)
            until[lane] = end[index]
            place[index] = lane
        lanes[group] = used
