"""Times as words, and rows of words as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MARK", "aligned", "ms"]

MARK = " ~"
"""Behind what lies within the steps' own noise."""


def ms(time_ns: float, spread_ns: float | None = None, *, sign: bool = False) -> str:
    """Return a time in milliseconds, with the standard deviation by which it varies where that is known.

    >>> ms(1_500_000), ms(-250_000, sign=True), ms(1_500_000, 20_000)
    ('1.500 ms', '-0.250 ms', '1.500 ±0.020 ms')
    """
    varies = "" if spread_ns is None else f" ±{spread_ns / 1e6:,.3f}"
    return f"{time_ns / 1e6:{'+' if sign else ''},.3f}{varies} ms"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows with aligned columns, the first to the left; marks stand behind their column's figures."""
    columns = [_column(cells, right=at > 0) for at, cells in enumerate(zip(*rows, strict=True))]
    return ["  ".join(["", *row]).rstrip() for row in zip(*columns, strict=True)]


def _column(cells: Sequence[str], *, right: bool) -> list[str]:
    marked = any(cell.endswith(MARK) for cell in cells)
    padded = [cell if cell.endswith(MARK) or not marked else f"{cell}{' ' * len(MARK)}" for cell in cells]
    width = max(map(len, padded), default=0)
    return [cell.rjust(width) if right else cell.ljust(width) for cell in padded]
