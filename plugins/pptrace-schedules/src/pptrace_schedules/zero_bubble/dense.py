"""Building blocks packed: the first and the last actions of a table go into earlier slots that are free.

Repeated blocks leave slots free before each rank's first input gradients and behind its last forward. The order
that comes of filling them idles less for real times, too. Qi et al., Pipeline Parallelism with Controllable
Memory, NeurIPS 2024, arXiv:2405.15362, reorder both ends as well.
"""

from __future__ import annotations

from bisect import insort
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pptrace_schedules.zero_bubble.patterns import of_codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.plugin import Int64s, Schedule

    _Places = list[list[list[int]]]  # slots as lists, shape (ranks, codes, microbatches)

__all__ = ["dense"]

F, UP, I, BACK, W = range(5)  # noqa: E741 - PyTorch's name
"""Forwards on the way down and up, their input gradients, weight gradients: the order of patterns' codes."""

_KEPT = 16
"""Tables that are kept at once."""

_FROM = (-1, 1, 1, -1)
"""The neighbour, above or below, whose result each needs."""

_AFTER = (None, F, BACK, UP)
"""What comes before each on its own rank."""


@lru_cache(maxsize=_KEPT)
def dense(
    blocks: tuple[tuple[int, ...], ...], interval: int, microbatches: int, most: int, *, forwards: bool
) -> Schedule:
    """Return a table with weight gradients; costs that leave as much room share it.

    Args:
        blocks: per rank, the slots of microbatch 0's forwards and input gradients, in the order of the codes.
        interval: slots between two microbatches.
        microbatches: how many there are.
        most: chunks' activations that a rank may hold until their weight gradients; where blocks hold more, those.
        forwards: whether forwards move at the end too: all that follows rank 0's last forward of its first stage.
    """
    block = np.asarray(blocks, dtype=np.int64)
    slots = np.add.outer(block, interval * np.arange(microbatches))
    # Slots before the first input gradients, and the most that ranks hold, depend on these microbatches alone.
    warm_up = 2 * (int(block.max()) // interval + 2)
    _begin_early(slots[:, :, :warm_up], most)
    _end_early(slots, most, forwards=forwards)
    rows = []
    for own, weights in zip(slots, _weights(slots), strict=True):
        code, number = _gradients(own)
        codes = np.concatenate([np.repeat(np.arange(W), microbatches), code + 2])
        numbers = np.concatenate([np.tile(np.arange(microbatches), W), number])
        order = np.argsort(np.concatenate([own.ravel(), weights]))
        rows.append((codes[order], numbers[order]))
    return of_codes(rows, microbatches)


def _gradients(own: Int64s) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the codes and microbatches of a rank's input gradients in the order of their slots."""
    code, number = np.divmod(np.argsort(own[I:], axis=None), own.shape[1])
    return code + I, number


def _weights(slots: Int64s) -> Int64s:
    """Return the slots of each rank's weight gradients: the first free ones behind its input gradients."""
    found = np.empty((slots.shape[0], 2 * slots.shape[2]), dtype=np.int64)
    count = np.arange(found.shape[1])
    for rank, own in enumerate(slots):
        gradients = np.sort(own[I:], axis=None)
        taken = np.zeros(int(own.max()) + count.size + 2, dtype=bool)
        taken[own.ravel()] = True
        free = np.flatnonzero(~taken)
        behind = np.searchsorted(free, gradients, side="right")
        found[rank] = free[np.maximum.accumulate(behind - count) + count]
    return found


def _begin_early(slots: Int64s, most: int) -> None:
    """Move what comes before rank 0's first input gradient of its first stage, in place, as memory allows."""
    weights = _weights(slots)
    ends = slots[0, I, 0]
    busy, held = _occupied(slots, weights)
    most = max(most, int(held.max()))
    gradients: list[list[int]] = [[] for _ in slots]
    places, later = slots.tolist(), weights.tolist()
    early = [(int(slots[rank, code, at]), rank, code, at) for rank, code, at in np.argwhere(slots < ends).tolist()]
    early += [(int(weights[rank, at]), rank, W, at) for rank, at in np.argwhere(weights < ends).tolist()]
    for slot, rank, code, number in sorted(early):
        if code < I:
            _move_forward(places, busy, held, (rank, code, number), most)
            continue
        own = later[rank] if code == W else places[rank][code]
        ready = gradients[rank][number] if code == W else _ready(places, rank, code, number)
        moved = _move(busy[rank], own, number, max(ready, _before(own, number)))
        if code == W:
            held[rank, moved:slot] -= 1
        else:
            insort(gradients[rank], moved)
    slots[:] = places


def _end_early(slots: Int64s, most: int, *, forwards: bool) -> None:
    """Move the end of the table, in place: the input gradients behind each rank's last forward, or more."""
    busy, _ = _occupied(slots, None)
    _, held = _occupied(slots, _weights(slots))
    most = max(most, int(held.max()))
    last_forward = slots[0, F, -1] if forwards else slots[:, :I].max(axis=(1, 2), keepdims=True)
    late = np.argwhere(slots > last_forward)
    first = max(int(late[:, 2].min()) - 1, 0)
    last = slots[:, :, first:]
    places = last.tolist()
    late[:, 2] -= first
    for rank, code, number in late[np.argsort(last[tuple(late.T)], kind="stable")].tolist():
        if code < I:
            _move_forward(places, busy, held, (rank, code, number), most)
            continue
        own = places[rank][code]
        _move(busy[rank], own, number, max(_ready(places, rank, code, number), _before(own, number)))
    last[:] = places


def _move_forward(
    places: _Places, busy: list[bytearray], held: Int64s, action: tuple[int, int, int], most: int
) -> None:
    """Move a forward into the first free slot from which its rank has memory for it."""
    rank, code, number = action
    own = places[rank][code]
    slot = own[number]
    low = max(_ready(places, rank, code, number), _before(own, number))
    full = np.flatnonzero(held[rank, low + 1 : slot] >= most)
    low += int(full[-1]) + 1 if full.size else 0
    held[rank, _move(busy[rank], own, number, low) : slot] += 1


def _occupied(slots: Int64s, weights: Int64s | None) -> tuple[list[bytearray], Int64s]:
    """Return which slots of each rank are taken, and the activations that it holds in each."""
    ranks = slots.shape[0]
    length = int(slots.max() if weights is None else weights.max()) + 1
    busy, held = np.zeros((ranks, length), dtype=bool), np.zeros((ranks, length), dtype=np.int64)
    for rank in range(ranks):
        busy[rank, slots[rank].ravel()] = True
        held[rank, slots[rank, :I].ravel()] += 1
        if weights is not None:
            busy[rank, weights[rank]] = True
            held[rank, weights[rank]] -= 1
    return [bytearray(row) for row in busy], held.cumsum(axis=1)


def _ready(places: _Places, rank: int, code: int, number: int) -> int:
    """Return the slot behind which an action's inputs are there."""
    needs = [-1]
    if 0 <= rank + _FROM[code] < len(places):
        needs.append(places[rank + _FROM[code]][code][number])
    before = _AFTER[code]
    if before is not None:
        needs.append(places[rank][before][number])
    return max(needs)


def _before(own: list[int], number: int) -> int:
    return own[number - 1] if number else -1


def _move(busy: bytearray, own: list[int], number: int, low: int) -> int:
    """Move an action into the first free slot behind ``low``, if there is one before its own; return its slot."""
    slot = own[number]
    free = busy.find(0, low + 1, slot)
    if free < 0:
        return slot
    busy[slot], busy[free] = 0, 1
    own[number] = free
    return free
