"""The accuracy of a simulator, as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.study.accuracy.figures import Errors, Figures

__all__ = ["accuracy_text", "figures_dict"]


def accuracy_text(figures: Figures, rows: Sequence[dict[str, Any]]) -> str:
    """Return tables of errors, choices and slowdowns, and why rows are missing."""
    lines = ["error in % of the measured step; negative: simulated is shorter", ""]
    lines += _table(
        ["source", "rows", "skipped", "mean absolute", "mean", "least", "most"],
        [*map(_cells, figures.sources), *map(_cells, figures.groups)],
    )
    if figures.memory:
        lines += ["", "peak memory, error in % of the printed one", ""]
        head = ["source", "rows", "skipped", "mean absolute", "mean", "least", "most"]
        lines += _table(head, map(_cells, figures.memory))
    if figures.series:
        lines += ["", "best microbatch", ""]
        lines += _table(
            ["series", "measured s by microbatch", "best", "chosen", "costs"],
            [
                [one.name, ", ".join(f"{micro}: {step:.1f}" for micro, step in one.measured), str(one.best),
                 str(one.chosen), f"{one.regret:+.1f}%"]
                for one in figures.series
            ],
        )  # fmt: skip
    if figures.scales:
        lines += ["", "slowdown by scale", ""]
        lines += _table(
            ["series", "devices", "measured", "simulated"],
            [
                [
                    one.name,
                    f"{one.devices[0]} to {one.devices[1]}",
                    f"{one.measured:+.1f}%",
                    f"{one.simulated:+.1f}%",
                ]
                for one in figures.scales
            ],
        )
    right, pairs = figures.ordered
    if pairs:
        lines += ["", f"{right} of {pairs} pairs that lie more than 2 % apart come in the measured order", ""]
        lines += _table(
            ["simulated steps apart by", "pairs", "in the measured order"],
            [["more" if one.most is None else f"up to {one.most:g}%", str(one.pairs), str(one.right)]
             for one in figures.near],
        )  # fmt: skip
    lines += _skipped(rows)
    return "\n".join(lines)


def figures_dict(figures: Figures) -> dict[str, Any]:
    """Return the figures as plain JSON values."""
    from dataclasses import asdict

    return asdict(figures)


def _cells(one: Errors) -> list[str]:
    if not one.rows:
        return [one.name, "0", str(one.skipped), "-", "-", "-", "-"]
    shown = [f"{one.mean_absolute:.1f}", f"{one.mean:+.1f}", f"{one.least:+.1f}", f"{one.most:+.1f}"]
    return [one.name, str(one.rows), str(one.skipped), *shown]


def _skipped(rows: Sequence[dict[str, Any]]) -> list[str]:
    reasons = Counter((str(row["source"]), str(row["skipped"])) for row in rows if row["skipped"])
    if not reasons:
        return []
    lines = ["", f"skipped, {sum(reasons.values())} rows", ""]
    return [*lines, *(f"{count:4} {source}: {reason}" for (source, reason), count in reasons.items())]


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    cells = [head, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]
