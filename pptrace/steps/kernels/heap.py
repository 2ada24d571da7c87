"""A binary heap of items by (time, item) with the place of each item.

Called by kernels; columns are lists or arrays of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

OUTSIDE = -1
"""The place of an item that is not in the heap."""


class Heap(NamedTuple):
    """Items by time; items of equal time by number."""

    item: Any
    """The items; the first ``size[0]`` are a heap."""
    place: Any
    """Per item, its index in ``item``, or :data:`OUTSIDE`."""
    time: Any
    """Per item, its time."""
    size: Any
    """One value: the number of items."""


def push(heap: Heap, item: int, time: int) -> None:
    """Add an item."""
    index = heap.size[0]
    heap.time[item] = time
    heap.item[index] = item
    heap.size[0] = index + 1
    sift_up(heap, index)


def pop(heap: Heap) -> int:
    """Remove and return the first item."""
    first: int = heap.item[0]
    last = heap.size[0] - 1
    heap.place[first] = OUTSIDE
    heap.size[0] = last
    if last > 0:
        heap.item[0] = heap.item[last]
        sift_first_down(heap)
    return first


def sift_up(heap: Heap, index: int) -> None:
    """Move the item at a place towards the top to restore the order."""
    items, place, times = heap.item, heap.place, heap.time
    item = items[index]
    time = times[item]
    while index > 0:
        above = (index - 1) >> 1
        other = items[above]
        if times[other] < time or (times[other] == time and other < item):
            break
        items[index] = other
        place[other] = index
        index = above
    items[index] = item
    place[item] = index


def sift_first_down(heap: Heap) -> None:
    """Move the first item away from the top to restore the order."""
    items, place, times, size = heap.item, heap.place, heap.time, heap.size[0]
    index = 0
    item = items[index]
    time = times[item]
    while True:
        below = 2 * index + 1
        if below >= size:
            break
        other = items[below]
        if below + 1 < size:
            right = items[below + 1]
            if times[right] < times[other] or (times[right] == times[other] and right < other):
                below += 1
                other = right
        if time < times[other] or (time == times[other] and item < other):
            break
        items[index] = other
        place[other] = index
        index = below
    items[index] = item
    place[item] = index
