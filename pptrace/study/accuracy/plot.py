"""Measured against simulated steps, as a scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.errors import PptraceError
from pptrace.export.picture import CYCLE, MUTED, write_picture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


__all__ = ["save_scatter"]

_SIZE = (7.0, 6.0)
_MARKERS = "osD^vP*X"


def save_scatter(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a picture with a point per simulated row, and lines of 5 % error.

    Raises:
        OutputError: another suffix than a picture's, or a file that cannot be written.
        PptraceError: no row was simulated, or matplotlib is not installed.
    """
    done = [row for row in rows if row["error_pct"] is not None]
    if not done:
        raise PptraceError(f"{path}: no row was simulated, so there is nothing to draw")
    write_picture(path, _SIZE, lambda figure: _draw(figure, done))


def _draw(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    axes = figure.add_subplot()
    steps = [float(row[name]) for row in rows for name in ("measured_s", "simulated_s")]
    ends = [min(steps) * 0.8, max(steps) * 1.25]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    for factor in (0.95, 1.05):
        axes.plot(ends, [factor * end for end in ends], color=MUTED, linewidth=0.6, linestyle="--")
    for place, source in enumerate(dict.fromkeys(str(row["source"]) for row in rows)):
        own = [row for row in rows if row["source"] == source]
        axes.plot(
            [float(row["measured_s"]) for row in own], [float(row["simulated_s"]) for row in own],
            linestyle="none", marker=_MARKERS[(place // len(CYCLE)) % len(_MARKERS)], markersize=5,
            color=CYCLE[place % len(CYCLE)], alpha=0.8, label=source,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured step (s)", ylabel="simulated step (s)"
    )
    axes.legend(frameon=False, fontsize=7, loc="upper left")
