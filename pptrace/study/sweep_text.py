"""A sweep in words: its rows as a table of text, and its failures by what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import DURATION, SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.row import Cell, Row
    from pptrace.study.sweep import Sweep

__all__ = ["failures_text", "rows_text"]

_FIGURES = {
    "step_ns": "step",
    "formula_bubble": "formula",
    "table_bubble": "table",
    "idle": "idle",
    "peak_memory_bytes": "memory",
}
"""Columns that are printed, with their headings."""

_MOST_ROWS = 100
_MOST_MESSAGES = 20
_LONGEST = 60


def rows_text(sweep: Sweep) -> str:
    """Return a line per point: its axes, and the figures that studies are about."""
    rows = [[*sweep.over, *_FIGURES.values()]]
    for row in sweep.rows[:_MOST_ROWS]:
        figures = [_brief(str(row["error"]))] if row["error"] else [_figure(row, key) for key in _FIGURES]
        rows.append([*(_brief(str(row[key])) for key in sweep.over), *figures])
    left = len(sweep.over)
    whole = [row for row in rows if len(row) > left + 1]
    widths = [max(len(row[column]) for row in whole) for column in range(len(rows[0]))]
    widths[:left] = [max(len(row[column]) for row in rows) for column in range(left)]
    lines = [_line(row, widths, left) for row in rows]
    more = len(sweep.rows) - _MOST_ROWS
    return "\n".join(lines + [f"and {more:,} more: write them with -o results.csv"] * (more > 0))


def failures_text(sweep: Sweep) -> str:
    """Return what went wrong, each message once with the points that it is about; nothing where nothing did."""
    groups: dict[str, list[Row]] = {}
    for row in sweep.failed:
        groups.setdefault(str(row["error"]), []).append(row)
    lines = [f"{len(sweep.failed):,} of {len(sweep.rows):,} points failed:"] * bool(groups)
    for message, rows in list(groups.items())[:_MOST_MESSAGES]:
        first = " ".join(f"{key}={rows[0][key]}" for key in sweep.over)
        others = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        lines.append(f"  {first}{others}: {message}")
    more = len(groups) - _MOST_MESSAGES
    lines += [f"  and {more:,} more messages, in the column error"] * (more > 0)
    return "".join(f"{line}\n" for line in lines)


def _figure(row: Row, key: str) -> str:
    value: Cell = row.get(key)
    if not isinstance(value, int | float):
        return "-"
    if key.endswith("_ns"):
        return DURATION.rounded(int(value))
    return SIZE.rounded(int(value)) if key.endswith("_bytes") else f"{100 * value:.2f}%"


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = [cell.ljust(width) if place < left else cell.rjust(width)
             for place, (cell, width) in enumerate(zip(row, widths, strict=False))]  # fmt: skip
    return "  ".join(cells).rstrip()


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
