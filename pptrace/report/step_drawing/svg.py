"""A Gantt chart of a step as SVG, with tooltips."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import format_duration
from pptrace.report.step_drawing.chart import SMALLEST, Level, chart_of
from pptrace.report.svg import document, drawing, element, number
from pptrace.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from markupsafe import Markup

    from pptrace.report.step_drawing.chart import Bar, Chart
    from pptrace.timeline.timeline import Timeline

WIDTH = 1200
_LEFT, _RIGHT, _TOP, _AXIS, _KEYS = 64, 16, 34, 26, 22
_TALLEST, _LANES = 24, 1_600
"""The height of a lane, and the height of all lanes that narrows them, in pixels."""
_LETTER, _LETTERS = 5.8, 10
_EDGED = 2
"""The width from which a bar has a white edge, in pixels."""
_INK, _PALE = "#102030", "#6b7480"
PLACES = {Level.WAIT: (0.16, 0.62), Level.WORK: (0.06, 0.72), Level.BESIDE: (0.8, 0.12), Level.PATH: (0.0, 0.07)}
"""The top and the height of each level, relative to the lane."""


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write the Gantt chart of a step; the option ``title`` is its heading.

    Raises:
        OSError: the file cannot be written.
    """
    chart = chart_of(timeline)
    heading = str(options.get("title", "")) or title_of(timeline, chart)
    parts = [element("text", heading, x=_LEFT, y=20, font_size=14, font_weight="bold"), *_parts(chart)]
    path.write_text(document(WIDTH, _height(chart), _INK, *parts), encoding="utf-8")


def title_of(timeline: Timeline, chart: Chart) -> str:
    """Return the title of a chart: schedule, length and microbatches."""
    schedule = timeline.provenance.get("configuration", {}).get("schedule", {})
    name = schedule.get("name", "") if isinstance(schedule, dict) else ""
    took = f"{format_duration(chart.end_ns - chart.start_ns)}, {timeline.placement.microbatches} microbatches"
    return printable(f"{name}: {took}" if name else took)


def chart_svg(chart: Chart) -> str:
    """Return the chart as an SVG element that scales with its page."""
    return drawing(WIDTH, _height(chart), "the step in time, a lane per rank", *_parts(chart))


def _height(chart: Chart) -> int:
    """Return the height of the chart, with its axis and its legend."""
    return _TOP + round(_lane(chart) * len(chart.ranks)) + _AXIS + _KEYS * len(list(_key_lines(chart))) + 8


def _parts(chart: Chart) -> Iterator[Markup]:
    """Yield the lanes with their bars, the axis and the legend."""
    lane, place = _lane(chart), {rank: at for at, rank in enumerate(chart.ranks)}
    span = max(chart.end_ns - chart.start_ns, 1)
    scale = (WIDTH - _LEFT - _RIGHT) / span
    below = _TOP + lane * len(chart.ranks)
    for at, text in chart.ticks:
        x = _LEFT + (at - chart.start_ns) * scale
        yield element("path", d=f"M{number(x)} {_TOP}V{number(below + 4)}", stroke="#d5dbe2", stroke_width="0.8")
        yield element("text", text, x=x, y=below + 17, text_anchor="middle", font_size=10, fill=_PALE)
    every, letters = max(1, round(14 / lane)), chart.letters
    for at, rank in enumerate(chart.ranks):
        if at % every == 0:
            y = _TOP + at * lane + lane * 0.42 + 4
            yield element("text", f"rank {rank}", x=_LEFT - 8, y=y, text_anchor="end", font_size=11)
    for (rank, level), bars in groupby(chart.bars, key=lambda bar: (bar.rank, bar.level)):
        first, tall = PLACES[level]
        top, height = _TOP + (place[rank] + first) * lane, tall * lane
        boxes = [
            _box(
                bar,
                _LEFT + (bar.start_ns - chart.start_ns) * scale,
                top,
                height,
                scale,
                letters.get(bar.colour, 0),
            )
            for bar in bars
        ]
        yield element("g", *boxes)
    yield from _keys(chart, below + _AXIS)


def _box(bar: Bar, x: float, y: float, height: float, scale: float, letters: int) -> Markup:
    width = (bar.end_ns - bar.start_ns) * scale
    line = {"stroke": "#ffffff", "stroke_width": "0.5"} if bar.level == Level.WORK and width > _EDGED else {}
    box = element("rect", x=x, y=y, width=width, height=height, fill=bar.colour, **line)
    if not bar.title:
        return box
    parts = [element("title", bar.title), box]
    size = min((width - 0.5) / (max(letters, 1) * _LETTER), 1)
    if bar.label and height >= _LETTERS and size >= SMALLEST:
        middle, base, size = x + width / 2, y + height / 2 + _LETTERS * size * 0.36, round(_LETTERS * size, 1)
        parts.append(
            element("text", bar.label, x=middle, y=base, text_anchor="middle", font_size=size, class_="on")
        )
    return element("g", *parts)


def _lane(chart: Chart) -> float:
    return min(_TALLEST, max(_LANES / max(len(chart.ranks), 1), 3))


def _key_lines(chart: Chart) -> Iterator[list[tuple[float, str, str]]]:
    """Yield the lines of the legend: position, meaning and colour of each entry."""
    line: list[tuple[float, str, str]] = []
    x = float(_LEFT)
    for meaning, colour in chart.legend:
        wide = 32 + 7 * len(meaning)
        if line and x + wide > WIDTH:
            yield line
            line, x = [], float(_LEFT)
        line.append((x, meaning, colour))
        x += wide
    yield line


def _keys(chart: Chart, y: float) -> Iterator[Markup]:
    for at, line in enumerate(_key_lines(chart)):
        for x, meaning, colour in line:
            yield element("rect", x=x, y=y + at * _KEYS, width=12, height=12, fill=colour)
            yield element("text", meaning, x=x + 17, y=y + at * _KEYS + 10, font_size=11)
