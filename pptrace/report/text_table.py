"""Text tables with aligned columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


def table_lines(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Return rows as lines of aligned columns.

    Args:
        rows: cells, the heading first. The last cell of a shorter row spans the remaining columns.
        left: columns with text on the left; all other columns have it on the right.

    >>> table_lines([("schedule", "step"), ("1f1b", "8 ms"), ("zb-v", "12 ms")])
    ['schedule   step', '1f1b       8 ms', 'zb-v      12 ms']
    """
    count = max(map(len, rows))
    aligned = [row if len(row) == count else row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in aligned if column < len(row)) for column in range(count)]
    lines = []
    for row, cells in zip(rows, aligned, strict=True):
        texts = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        lines.append("  ".join([*texts, *row[len(cells) :]]).rstrip())
    return lines
