"""A sweep in words: its rows as a table of text, and its failures by what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import DURATION, SIZE
from pptrace.study.names import told_apart

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

_OF_MODELS = {"tokens_per_s_per_gpu": "tok/s/GPU", "mfu": "MFU"}
"""Columns that are printed where a model gives them."""

_MOST_ROWS = 100
_MOST_MESSAGES = 20
_LONGEST = 60


def rows_text(sweep: Sweep) -> str:
    """Return a line per point: its axes, and the figures that studies are about."""
    shown = {key: told_apart([str(row[key]) for row in sweep.rows], _LONGEST) for key in sweep.over}
    figures = _figures(sweep)
    rows = [[*sweep.over, *figures.values()]]
    for row in sweep.rows[:_MOST_ROWS]:
        own = [_brief(str(row["error"]))] if row["error"] else [_figure(row, key) for key in figures]
        rows.append([*(shown[key][str(row[key])] for key in sweep.over), *own])
    left = len(sweep.over)
    whole = [row for row in rows if len(row) > left + 1]
    widths = [max(len(row[column]) for row in whole) for column in range(len(rows[0]))]
    widths[:left] = [max(len(row[column]) for row in rows) for column in range(left)]
    lines = [_line(row, widths, left) for row in rows]
    more = len(sweep.rows) - _MOST_ROWS
    return "\n".join(lines + [f"and {more:,} more: write them with -o results.csv"] * (more > 0))


def _figures(sweep: Sweep) -> dict[str, str]:
    """Return the columns with their headings: GPUs where they differ, rates where they are known."""
    differ = len({row.get("gpus") for row in sweep.rows if not row["error"]}) > 1
    known = {key for row in sweep.rows for key in _OF_MODELS if row.get(key) is not None}
    return (
        ({"gpus": "GPUs"} if differ else {})
        | _FIGURES
        | {key: name for key, name in _OF_MODELS.items() if key in known}
    )


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
    if key in {"gpus", "tokens_per_s_per_gpu"}:
        return f"{value:,.0f}"
    if key.endswith("_ns"):
        return DURATION.rounded(int(value))
    if key.endswith("_bytes"):
        return f"{SIZE.rounded(int(value))}{' !' if row.get('fits') is False else ''}"
    return f"{100 * value:.2f}%"


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = [cell.ljust(width) if place < left else cell.rjust(width)
             for place, (cell, width) in enumerate(zip(row, widths, strict=False))]  # fmt: skip
    return "  ".join(cells).rstrip()


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
