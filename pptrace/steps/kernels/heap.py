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
    """The time of each item, in the order of ``item``."""
    size: Any
    """One value: the number of items."""


def push(heap: Heap, item: int, time: int) -> None:
    """Add an item."""
    index = heap.size[0]
    heap.item[index] = item
    heap.time[index] = time
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
        heap.time[0] = heap.time[last]
        sift_first_down(heap)
    return first


def sift_up(heap: Heap, index: int) -> None:
    """Move the item at a place towards the top to restore the order."""
    items, place, times = heap.item, heap.place, heap.time
    item, time = items[index], times[index]
    while index > 0:
        above = (index - 1) >> 1
        other = items[above]
        if times[above] < time or (times[above] == time and other < item):
            break
        items[index] = other
        times[index] = times[above]
        place[other] = index
        index = above
    items[index] = item
    times[index] = time
    place[item] = index


def sift_first_down(heap: Heap) -> None:
    """Move the first item away from the top to restore the order."""
    items, place, times, size = heap.item, heap.place, heap.time, heap.size[0]
    index = 0
    item, time = items[index], times[index]
    while True:
        below = 2 * index + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            times[right] < times[below] or (times[right] == times[below] and items[right] < items[below])
        ):
            below = right
        other = items[below]
        if time < times[below] or (time == times[below] and item < other):
            break
        items[index] = other
        times[index] = times[below]
        place[other] = index
        index = below
    items[index] = item
    times[index] = time
    place[item] = index
