"""Text tables with aligned columns."""

from __future__ import annotations

from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

GAP = 2
"""Spaces between columns."""
_NARROWEST = 20
"""The least width of a wrapped column."""


def table_lines(rows: Sequence[Sequence[str]], left: Container[int] = (0,), width: int | None = None) -> list[str]:
    """Return rows as lines of aligned columns.

    Args:
        rows: cells, the heading first. The last cell of a shorter row spans the remaining columns.
        left: columns with text on the left; all other columns have it on the right.
        width: the width into which columns on the left are wrapped; None for no limit.

    >>> table_lines([("schedule", "step"), ("1f1b", "8 ms"), ("zb-v", "12 ms")])
    ['schedule   step', '1f1b       8 ms', 'zb-v      12 ms']
    """
    count = max(map(len, rows))
    aligned = [row if len(row) == count else row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in aligned if column < len(row)) for column in range(count)]
    if width is not None:
        _narrow(widths, left, width)
    lines = []
    for row, cells in zip(rows, aligned, strict=True):
        wrapped = [
            wrap(cell, size, break_on_hyphens=False) if len(cell) > size else [cell]
            for cell, size in zip(cells, widths, strict=False)
        ]
        for parts in zip_longest(*wrapped, fillvalue=""):
            texts = [
                part.ljust(size) if column in left else part.rjust(size)
                for column, (part, size) in enumerate(zip(parts, widths, strict=False))
            ]
            lines.append((" " * GAP).join(texts))
        if len(cells) < len(row):
            lines[-1] = (" " * GAP).join([lines[-1], row[-1]])
    return [line.rstrip() for line in lines]


def _narrow(widths: list[int], left: Container[int], width: int) -> None:
    """Reduce the widest columns on the left until all columns fit the width."""
    words = [column for column in range(len(widths)) if column in left]
    while words and sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(words, key=lambda column: widths[column])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
