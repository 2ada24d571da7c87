"""A Gantt chart of a step as PNG or PDF, with matplotlib."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from pptrace.report.charts import INK, MUTED, save_picture
from pptrace.report.step_drawing.chart import SMALLEST, Level, chart_of
from pptrace.report.step_drawing.svg import PLACES, title_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pptrace.report.step_drawing.chart import Chart
    from pptrace.timeline.timeline import Timeline

_WIDE, _LANE, _TALLEST = 11.0, 0.26, 24.0
"""Inches."""
_LETTER, _LETTERS = 0.0053, 6
"""The share of the picture's width that a letter takes, and its size in points."""


def write(timeline: Timeline, path: Path, suffix: str, options: Mapping[str, Any]) -> None:
    """Write the Gantt chart of a step in the format of a suffix; the option ``title`` is its heading.

    Raises:
        PptraceError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    chart = chart_of(timeline)
    title = str(options.get("title", "")) or title_of(timeline, chart)
    size = _WIDE, min(len(chart.ranks) * _LANE + 1.3, _TALLEST)
    save_picture(path, suffix, size, partial(_draw, chart=chart, title=title))


def _draw(figure: Any, *, chart: Chart, title: str) -> None:
    from matplotlib.patches import Rectangle

    axes = figure.add_subplot()
    place = {rank: at for at, rank in enumerate(chart.ranks)}
    spans: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
    for bar in chart.bars:
        spans[bar.rank, bar.level, bar.colour].append((bar.start_ns, bar.end_ns - bar.start_ns))
    for (rank, level, colour), bars in spans.items():
        first, tall = PLACES[level]
        edge = {"edgecolor": "white", "linewidth": 0.3} if level == Level.WORK and not chart.sampled else {}
        axes.broken_barh(bars, (place[rank] + first, tall), facecolors=colour, **{"linewidth": 0} | edge)
    _label(axes, chart, place)
    axes.set(
        xlim=(chart.start_ns, max(chart.end_ns, chart.start_ns + 1)), ylim=(len(chart.ranks), -0.1),
        xticks=[at for at, _ in chart.ticks], xticklabels=[text for _, text in chart.ticks],
    )  # fmt: skip
    every = max(1, round(len(chart.ranks) / 60))
    axes.set_yticks([at + 0.42 for at in range(0, len(chart.ranks), every)])
    axes.set_yticklabels([f"rank {rank}" for rank in chart.ranks[::every]])
    axes.tick_params(axis="both", length=0, labelsize=8, colors=INK)
    axes.grid(axis="x", color=MUTED, alpha=0.3, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    keys = [Rectangle((0, 0), 1, 1, fc=colour, label=meaning) for meaning, colour in chart.legend]
    figure.legend(handles=keys, loc="outside lower left", ncols=6, fontsize=8, frameon=False)


def _label(axes: Any, chart: Chart, place: Mapping[int, int]) -> None:
    span = max(chart.end_ns - chart.start_ns, 1)
    first, tall = PLACES[Level.WORK]
    letters = chart.letters
    for bar in chart.bars:
        size = min((bar.end_ns - bar.start_ns) / span / (max(letters.get(bar.colour, 0), 1) * _LETTER), 1)
        if bar.label and size >= SMALLEST:
            middle = (bar.start_ns + bar.end_ns) / 2
            y = place[bar.rank] + first + tall / 2
            axes.text(middle, y, bar.label, ha="center", va="center_baseline", fontsize=_LETTERS * size, color=INK)
