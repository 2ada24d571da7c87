"""A plan as a picture: every simulated step against its memory, with the frontier of those that nothing beats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.export.picture import CYCLE, INK, MUTED, write_picture
from pptrace.study.plan.candidate import Fate
from pptrace.study.plan.question import gpus_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.study.plan.candidate import Candidate
    from pptrace.study.plan.result import Plan

__all__ = ["frontier", "save_frontier"]

_GIB = 2**30
_MARKERS = "osD^vP*X"
_NAMED = 8
"""Schedules with a colour of their own, the most frequent among the first."""


def frontier(points: Sequence[Candidate]) -> list[Candidate]:
    """Return those than which none has both a shorter step per sequence and less memory, by memory."""
    found: list[Candidate] = []
    for one in sorted(points, key=lambda one: (int(one.row["peak_memory_bytes"] or 0), _each(one), one.number)):
        if not found or _each(one) < _each(found[-1]):
            found.append(one)
    return found


def save_frontier(plan: Plan, path: Path) -> None:
    """Draw a plan into a .png, .svg or .pdf file; the same plan gives the same bytes.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    points = [one for one in plan.found.candidates if one.fate is Fate.SIMULATED]
    names = list(dict.fromkeys(one.schedule for one in (*plan.found.ranked, *points)))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for at, name in enumerate(names):
            own = [one for one in points if one.schedule == name]
            style = {"color": CYCLE[min(at, _NAMED - 1)], "marker": _MARKERS[min(at, _NAMED - 1)]}
            axes.scatter(*_places(own), s=26, label=name, alpha=0.8, linewidths=0, **style)
        edge = frontier(plan.found.ranked)
        axes.plot(*_places(edge), color=INK, lw=1.2, drawstyle="steps-post", label="frontier", zorder=0)
        limit = int(plan.best.row["device_memory_bytes"] or 0)
        if limit:
            axes.axvline(limit / _GIB, color="#d55e00", lw=1.2, ls="--", label="memory of a device")
        x, y = _places([plan.best])
        axes.annotate(f"#1 {plan.best.name}", (x[0], y[0]), xytext=(6, -12), textcoords="offset points",
                      fontsize=8, color=INK)  # fmt: skip
        axes.margins(0.06, 0.12)
        axes.set_xlabel("memory of the fullest rank (GiB)", fontsize=9, color=INK)
        axes.set_ylabel("step for as many sequences (s)", fontsize=9, color=INK)
        axes.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
        axes.grid(color="#eaeef2", lw=0.8)
        axes.set_axisbelow(True)
        axes.set_title(f"{len(points):,} simulated configurations on {gpus_text(plan.question.gpus)}", loc="left",
                       fontsize=10, fontweight="bold", color=INK)  # fmt: skip
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))

    write_picture(path, (9.0, 5.0), draw)


def _each(one: Candidate) -> float:
    return float(one.row["step_ns"] or 0) / one.layout.sequences


def _places(points: Sequence[Candidate]) -> tuple[list[float], list[float]]:
    scale = max((one.layout.sequences for one in points), default=1)
    memory = [int(one.row["peak_memory_bytes"] or 0) / _GIB for one in points]
    return memory, [_each(one) * scale / 1e9 for one in points]
