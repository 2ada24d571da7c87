"""Building blocks of V schedules: tables of one block per microbatch, and blocks packed at both ends.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362, sections 3 and 4.

A block gives the slots of one microbatch's actions on every rank. Microbatches repeat it every six slots. The
activations of a chunk are kept from its forward to its input gradient, so a rank holds the sum of these lifetimes
divided by six. V-Half moves forwards two slots per rank on the way down and one on the way up, V-Min one slot on
both ways; input gradients move in the opposite order. Where blocks would collide, the second half is shifted by a
few slots.

Repeated blocks leave free slots before each rank's first input gradients and after its last forward. Packing moves
actions into these slots, which shortens the table for real times too.
"""

from __future__ import annotations

from bisect import insort
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Placement, Schedule, fill_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s

    _Slots = list[list[list[int]]]  # slots as lists, shape (ranks, codes, microbatches)

INTERVAL = 6
"""Slots between two microbatches."""

CODES = "Ff Ii Ww"
"""Actions of a rank's chunk on the way down (capitals) and on the way up: forwards, input and weight gradients."""

F, UP, I, BACK, W = range(5)  # noqa: E741 - PyTorch's name
"""Codes of forwards on the way down and up, of their input gradients, and of weight gradients."""

_KIND = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W, Kind.W], dtype=np.int8)
_WAY_UP = np.array([False, True] * 3)
_CACHED = 16
"""Number of cached tables."""

_SOURCE_RANK = (-1, 1, 1, -1)
"""Per code, the offset of the neighbour rank whose result an action needs."""

_LOCAL_SOURCE = (None, F, BACK, UP)
"""Per code, the action of the same rank that precedes it."""


def half_blocks(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the slots of V-Half's forwards and input gradients on each rank."""
    shift = 3 if ranks % 2 == 0 else 0
    return tuple(
        (2 * r, 3 * ranks - r - 2, 6 * ranks + shift - r - 2, 3 * ranks + shift + 2 * r - 1) for r in range(ranks)
    )


def min_blocks(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the slots of V-Min's forwards and input gradients on each rank."""
    shift = 2 if ranks % 3 == 0 else 0
    return tuple((r, 2 * ranks - r - 1, 4 * ranks + shift - r - 1, 2 * ranks + shift + r) for r in range(ranks))


@lru_cache(maxsize=_CACHED)
def fill_blocks(blocks: tuple[tuple[int, ...], ...], microbatches: int, peak: int) -> Schedule:
    """Return the table of repeated blocks with weight gradients, for equal times."""
    rows = _repeat(blocks, microbatches)
    return fill_weights(rows, {Kind.F: 1, Kind.I: 1, Kind.W: 1}, taken=1, kept=1, room=peak).schedule


def in_order(rows: Sequence[Sequence[tuple[str, int]]], microbatches: int) -> Schedule:
    """Return the table of rows such as ``[("F", 7), ("fF", 2), …]``: letters of :data:`CODES`, and repetitions.

    The n-th occurrence of a letter is microbatch n; occurrences from ``microbatches`` on are omitted.
    """
    letters = CODES.replace(" ", "")
    codes = [
        np.concatenate([np.tile([letters.index(letter) for letter in group], count) for group, count in row])
        for row in rows
    ]
    return _table([_numbered(row, microbatches) for row in codes], microbatches)


def _repeat(blocks: Sequence[Sequence[int]], microbatches: int) -> Schedule:
    """Return the table of each rank's block, repeated for every microbatch."""
    start = INTERVAL * np.arange(microbatches)
    rows = []
    for block in blocks:
        order = np.argsort(np.add.outer(np.asarray(block), start).ravel(), kind="stable")
        rows.append(np.divmod(order, microbatches))
    return _table(rows, microbatches)


def _numbered(row: Int64s, microbatches: int) -> tuple[Int64s, Int64s]:
    """Return a row's codes, each with its microbatch."""
    number = np.empty(row.size, dtype=np.int64)
    for code in range(_KIND.size):
        positions = np.flatnonzero(row == code)
        number[positions] = np.arange(positions.size)
    kept = number < microbatches
    return row[kept], number[kept]


def _table(rows: Sequence[tuple[Int64s, Int64s]], microbatches: int) -> Schedule:
    """Return the table of rows of (codes, microbatches)."""
    ranks = len(rows)
    codes = [codes for codes, _ in rows]
    stage = [np.where(_WAY_UP, 2 * ranks - 1 - rank, rank).astype(np.int32)[row] for rank, row in enumerate(codes)]
    return Schedule.from_columns(
        Placement.v_shaped(ranks, microbatches, 2),
        np.cumsum([0, *(row.size for row in codes)]),
        _KIND[np.concatenate(codes)],
        np.concatenate(stage),
        np.concatenate([number for _, number in rows]),
    )


@lru_cache(maxsize=_CACHED)
def pack_blocks(blocks: tuple[tuple[int, ...], ...], microbatches: int, most: int, *, forwards: bool) -> Schedule:
    """Return the table of repeated blocks with weight gradients, packed at both ends.

    Args:
        blocks: per rank, the slots of microbatch 0's forwards and input gradients, in the order of the codes.
        microbatches: number of microbatches.
        most: chunks' activations that a rank may hold until their weight gradients, at least those of the blocks.
        forwards: whether packing at the end also moves forwards, after rank 0's last forward of its first stage.
    """
    block = np.asarray(blocks, dtype=np.int64)
    slots = np.add.outer(block, INTERVAL * np.arange(microbatches))
    # Slots before the first input gradients, and the most that ranks hold, depend on these microbatches alone.
    warm_up = 2 * (int(block.max()) // INTERVAL + 2)
    _pack_start(slots[:, :, :warm_up], most)
    _pack_end(slots, most, forwards=forwards)
    rows = []
    for rank_slots, weights in zip(slots, _weight_slots(slots), strict=True):
        code, number = np.divmod(np.argsort(rank_slots[I:], axis=None), microbatches)
        codes = np.concatenate([np.repeat(np.arange(W), microbatches), code + W])
        numbers = np.concatenate([np.tile(np.arange(microbatches), W), number])
        order = np.argsort(np.concatenate([rank_slots.ravel(), weights]))
        rows.append((codes[order], numbers[order]))
    return _table(rows, microbatches)


def _weight_slots(slots: Int64s) -> Int64s:
    """Return the slots of each rank's weight gradients: the first free slots after its input gradients."""
    weights = np.empty((slots.shape[0], 2 * slots.shape[2]), dtype=np.int64)
    count = np.arange(weights.shape[1])
    for rank, rank_slots in enumerate(slots):
        gradients = np.sort(rank_slots[I:], axis=None)
        taken = np.zeros(int(rank_slots.max()) + count.size + 2, dtype=bool)
        taken[rank_slots.ravel()] = True
        free = np.flatnonzero(~taken)
        first_free = np.searchsorted(free, gradients, side="right")
        weights[rank] = free[np.maximum.accumulate(first_free - count) + count]
    return weights


def _pack_start(slots: Int64s, most: int) -> None:
    """Move actions before rank 0's first input gradient of its first stage to earlier slots, as memory allows."""
    weights = _weight_slots(slots)
    ends = slots[0, I, 0]
    busy, held = _occupied(slots, weights)
    most = max(most, int(held.max()))
    gradients: list[list[int]] = [[] for _ in slots]
    new_slots, new_weights = slots.tolist(), weights.tolist()
    early = [(int(slots[rank, code, n]), rank, code, n) for rank, code, n in np.argwhere(slots < ends).tolist()]
    early += [(int(weights[rank, n]), rank, W, n) for rank, n in np.argwhere(weights < ends).tolist()]
    for slot, rank, code, number in sorted(early):
        if code < I:
            _move_forward(new_slots, busy, held, (rank, code, number), most)
            continue
        sequence = new_weights[rank] if code == W else new_slots[rank][code]
        ready = gradients[rank][number] if code == W else _ready_slot(new_slots, rank, code, number)
        moved = _move(busy[rank], sequence, number, max(ready, _previous_slot(sequence, number)))
        if code == W:
            held[rank, moved:slot] -= 1
        else:
            insort(gradients[rank], moved)
    slots[:] = new_slots


def _pack_end(slots: Int64s, most: int, *, forwards: bool) -> None:
    """Move input gradients after each rank's last forward, and possibly forwards, to earlier slots."""
    busy, _ = _occupied(slots, None)
    _, held = _occupied(slots, _weight_slots(slots))
    most = max(most, int(held.max()))
    last_forward = slots[0, F, -1] if forwards else slots[:, :I].max(axis=(1, 2), keepdims=True)
    late = np.argwhere(slots > last_forward)
    first = max(int(late[:, 2].min()) - 1, 0)
    last = slots[:, :, first:]
    new_slots = last.tolist()
    late[:, 2] -= first
    for rank, code, number in late[np.argsort(last[tuple(late.T)], kind="stable")].tolist():
        if code < I:
            _move_forward(new_slots, busy, held, (rank, code, number), most)
            continue
        sequence = new_slots[rank][code]
        ready = _ready_slot(new_slots, rank, code, number)
        _move(busy[rank], sequence, number, max(ready, _previous_slot(sequence, number)))
    last[:] = new_slots


def _move_forward(
    slots: _Slots, busy: list[bytearray], held: Int64s, action: tuple[int, int, int], most: int
) -> None:
    """Move a forward into the first free slot from which its rank has memory for it."""
    rank, code, number = action
    sequence = slots[rank][code]
    slot = sequence[number]
    low = max(_ready_slot(slots, rank, code, number), _previous_slot(sequence, number))
    full = np.flatnonzero(held[rank, low + 1 : slot] >= most)
    low += int(full[-1]) + 1 if full.size else 0
    held[rank, _move(busy[rank], sequence, number, low) : slot] += 1


def _occupied(slots: Int64s, weights: Int64s | None) -> tuple[list[bytearray], Int64s]:
    """Return the occupied slots of each rank, and the activations that it holds in each slot."""
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


def _ready_slot(slots: _Slots, rank: int, code: int, number: int) -> int:
    """Return the last slot of an action's dependencies, -1 for none."""
    dependencies = [-1]
    source_rank, local = rank + _SOURCE_RANK[code], _LOCAL_SOURCE[code]
    if 0 <= source_rank < len(slots):
        dependencies.append(slots[source_rank][code][number])
    if local is not None:
        dependencies.append(slots[rank][local][number])
    return max(dependencies)


def _previous_slot(sequence: list[int], number: int) -> int:
    return sequence[number - 1] if number else -1


def _move(busy: bytearray, sequence: list[int], number: int, low: int) -> int:
    """Move an action into the first free slot after ``low`` that is earlier than its slot; return its slot."""
    slot = sequence[number]
    free = busy.find(0, low + 1, slot)
    if free < 0:
        return slot
    busy[slot], busy[free] = 0, 1
    sequence[number] = free
    return free
