"""Rows of two chunks per rank in a V, from the order of their actions alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Placement, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s

__all__ = ["CODES", "forwards_first", "in_order", "repeated"]

CODES = "Ff Ii Ww"
"""Forwards of a rank's chunk on the way down and on the way up, input gradients, weight gradients."""

_KIND = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W, Kind.W], dtype=np.int8)
_WAY_UP = np.array([False, True] * 3)


def in_order(rows: Sequence[Sequence[tuple[str, int]]], microbatches: int) -> Schedule:
    """Return the table of rows like ``[("F", 7), ("fF", 2), …]``: letters of :data:`CODES`, how often they come.

    The n-th of a letter is of microbatch n; those of ``microbatches`` and beyond are left out.
    """
    letters = CODES.replace(" ", "")
    codes = [
        np.concatenate([np.tile([letters.index(one) for one in letters_], times) for letters_, times in row])
        for row in rows
    ]
    return _table([_numbered(row, microbatches) for row in codes], microbatches)


def repeated(blocks: Sequence[Sequence[int]], interval: int, microbatches: int) -> Schedule:
    """Return the table of each rank's building block, begun anew for every microbatch after an interval.

    Args:
        blocks: per rank, the slot of each action of microbatch 0, in the order of :data:`CODES`; the last of them
            may be left out.
        interval: slots between two microbatches.
        microbatches: how many there are.
    """
    after = interval * np.arange(microbatches)
    rows = []
    for block in blocks:
        order = np.argsort(np.add.outer(np.asarray(block), after).ravel(), kind="stable")
        rows.append(np.divmod(order, microbatches))
    return _table(rows, microbatches)


def forwards_first(rows: Schedule, most: int) -> Schedule:
    """Return a table of forwards and input gradients whose ranks start with more forwards of their first chunk.

    As many come first as a rank has time for before its first forward on the way up, hold no more than ``most``
    chunks' activations at any time, and are no more than on the rank before, which would wait for ever.
    """
    order, before = [], rows.microbatches
    for rank in range(rows.ranks):
        low, high = int(rows.row_ptr[rank]), int(rows.row_ptr[rank + 1])
        forward = rows.kind[low:high] == Kind.F
        own = np.flatnonzero(forward & (rows.stage[low:high] == rank))
        held = np.cumsum(np.where(forward, 1, -1))
        first = 1
        while first < min(2 * (rows.ranks - rank) - 1, before):
            moved = np.concatenate([held[first - 1 : first], held[first : own[first]]]) + 1
            if moved.max() > most:
                break
            held[first : own[first] + 1] = moved
            first += 1
        order.append(low + np.concatenate([own[:first], np.setdiff1d(np.arange(high - low), own[:first])]))
        before = first
    return Schedule.of_cells(rows.placement, rows.row_ptr, rows.cells.taken(np.concatenate(order)))


def _numbered(row: Int64s, microbatches: int) -> tuple[Int64s, Int64s]:
    """Return a row's codes with the number of each among its own kind."""
    number = np.empty(row.size, dtype=np.int64)
    for code in range(_KIND.size):
        own = np.flatnonzero(row == code)
        number[own] = np.arange(own.size)
    kept = number < microbatches
    return row[kept], number[kept]


def _table(rows: Sequence[tuple[Int64s, Int64s]], microbatches: int) -> Schedule:
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
