"""Rows of two chunks per rank in a V, from the order of their actions alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Placement, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s

__all__ = ["CODES", "in_order", "of_codes", "repeated"]

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
    return of_codes([_numbered(row, microbatches) for row in codes], microbatches)


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
    return of_codes(rows, microbatches)


def _numbered(row: Int64s, microbatches: int) -> tuple[Int64s, Int64s]:
    """Return a row's codes with the number of each among its own kind."""
    number = np.empty(row.size, dtype=np.int64)
    for code in range(_KIND.size):
        own = np.flatnonzero(row == code)
        number[own] = np.arange(own.size)
    kept = number < microbatches
    return row[kept], number[kept]


def of_codes(rows: Sequence[tuple[Int64s, Int64s]], microbatches: int) -> Schedule:
    """Return the table of rows like ``(codes, microbatches)``, codes as places among :data:`CODES`' letters."""
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
