"""Gantt charts of a step: a lane per rank, waits colored by cause, and the critical path."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate, count, groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pptrace.config.quantities import format_duration
from pptrace.report.svg import darker, document, drawing, element, number, write_drawing
from pptrace.sanitize import printable
from pptrace.steps.kinds import BACKWARD, COMPUTE, KINDS, Kind, Stream
from pptrace.timeline.actions import in_group
from pptrace.timeline.critical_path import why
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.timeline import window
from pptrace.timeline.trim import step_microbatches
from pptrace.traces.scene import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from markupsafe import Markup
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline, Waits

CAUSE_COLORS = {
    IdleCause.FILL: "#e4e7eb", IdleCause.DRAIN: "#d4d9df", IdleCause.TRANSFER: "#8f7fd0",
    IdleCause.CONTENTION: "#d0485f", IdleCause.HEAD_OF_LINE: "#e08a3c", IdleCause.PEER_COMPUTE: "#f3dd8a",
    IdleCause.REDUCTION: "#b98a9c", IdleCause.SLOWER_REPLICA: "#7d5a2e",
}  # fmt: skip
"""Colors of waits; their hues differ from the hues of computation, and their lightness differs."""

PATH = "#102030"
"""The color of the critical path."""

_GROUP = "#6f8a94"
"""The color of communication within groups."""

PART_COLORS = {
    "compute": "#9cc3f0", "launch": "#5fae9b", "kernel gaps": "#a8b25c", "TP, CP and EP collectives": _GROUP,
    **{cause.word: color for cause, color in CAUSE_COLORS.items()},
}  # fmt: skip
"""Colors of the parts of a step in bars."""

_MOST_BARS = 6_000
"""The most bars; larger charts sample each lane at :data:`_COLUMNS` instants."""
_COLUMNS = 1_600
_TICKS = 8

_MOST_ACTIONS = 240
"""The length of the longest step that is drawn whole, in median actions; an action then has about five pixels."""
_MARGIN = 12
"""The length of the steady phase next to warm-up and drain, and half of the steady part, in median actions."""
_LONGEST_SHARE = 0.6
"""The largest share of a step that is drawn in parts."""

_SMALLEST = 0.55
"""The smallest relative size of labels in bars; smaller labels are omitted."""

_WIDTH = 1200
_LEFT, _RIGHT, _TOP, _AXIS, _KEYS = 64, 16, 34, 26, 22
_BREAK = 48
"""The width of the gap between two windows, in pixels."""
_TALLEST, _LANES = 24, 1_600
"""The maximum height of a lane, and the maximum height of all lanes, in pixels."""
_LETTER, _LETTERS, _PADDING = 5.8, 10, 2.5
_EDGED = 2
"""The minimum width of bars with a white edge, in pixels."""
_INK, _PALE = "#102030", "#6b7480"


class Level:
    """The vertical position of a bar in its lane."""

    WORK, WAIT, CONCURRENT, PATH = range(4)


class Bar(Struct, frozen=True, kw_only=True):
    """A bar of a chart."""

    rank: int
    """The lane."""
    level: int
    """The position in the lane, a :class:`Level`."""
    start_ns: int
    """The start."""
    end_ns: int
    """The end."""
    color: str
    """The color."""
    label: str = ""
    """The text, shown where it fits."""
    title: str = ""
    """The tooltip; empty in sampled charts."""


class Chart(Struct, frozen=True, kw_only=True):
    """A Gantt chart of a step."""

    ranks: tuple[int, ...]
    """The lanes, top to bottom."""
    start_ns: int
    """The step's start."""
    end_ns: int
    """The step's end."""
    windows: tuple[tuple[int, int], ...]
    """The drawn parts of the step, as start and end in ns: the whole step, or warm-up, a steady part and drain."""
    bars: tuple[Bar, ...]
    """The bars by lane and level, then time."""
    legend: tuple[tuple[str, str], ...]
    """Meanings and their colors."""
    sampled: bool
    """Whether bars are samples, because there are too many actions."""

    @property
    def drawn_ns(self) -> int:
        """The length of all windows."""
        return sum(end - start for start, end in self.windows)

    @property
    def ticks(self) -> tuple[tuple[int, str], ...]:
        """Round times in the windows, with their labels, from the start of the step."""
        span = max(self.drawn_ns, 1)
        steps = (factor * 10**power for power in count() for factor in (1, 2, 5))
        step = next(step for step in steps if span <= step * _TICKS)
        times = (
            time_ns
            for start, end in self.windows
            for time_ns in range(-(-(start - self.start_ns) // step) * step, end - self.start_ns + 1, step)
        )
        return tuple((self.start_ns + time_ns, format_duration(time_ns) if time_ns else "0") for time_ns in times)


_BESIDE = (Stream.DATA_PARALLEL, Stream.COPY_OUT, Stream.COPY_IN)
"""Streams that are drawn beside computations."""


def chart_of(timeline: Timeline) -> Chart:
    """Lay out a step: computations, waits, communication within groups, and the critical path."""
    reasons = timeline.why or why(timeline)
    rank, span = timeline.rank_of_row(), _visible_window(timeline, reasons.waits)
    stream = np.repeat(timeline.lane_stream, np.diff(timeline.lane_ptr))
    work = np.flatnonzero((stream == Stream.COMPUTE) & COMPUTE.mask(timeline.kind))
    concurrent = np.flatnonzero(in_group(timeline) | np.isin(stream, _BESIDE))
    colors, color = _colors_of(timeline)
    drawn = reasons.path.part == 0
    layers = [
        _Layer(Level.WAIT, reasons.waits.rank, reasons.waits.start_ns, reasons.waits.end_ns,
               [CAUSE_COLORS[IdleCause(cause)] for cause in range(len(IdleCause))], reasons.waits.cause,
               lambda index: ("", _wait_title(reasons.waits, index))),
        _Layer(Level.WORK, rank[work], timeline.start_ns[work], timeline.end_ns[work], colors,
               color[work], lambda index: _text_of(timeline, int(work[index]))),
        _Layer(Level.CONCURRENT, rank[concurrent], timeline.start_ns[concurrent], timeline.end_ns[concurrent],
               [_GROUP], np.zeros(concurrent.size, dtype=np.int32),
               lambda index: ("", _text_of(timeline, int(concurrent[index]))[1])),
        _Layer(Level.PATH, rank[reasons.path.row[drawn]], reasons.path.start_ns[drawn], reasons.path.end_ns[drawn],
               [PATH], np.zeros(int(drawn.sum()), dtype=np.int32), lambda _: ("", "critical path")),
    ]  # fmt: skip
    windows = _windows(timeline, work, span)
    drawn_ns = sum(end - start for start, end in windows)
    counts = [np.count_nonzero(layer.is_within(*window)) for layer in layers for window in windows]
    sampled = sum(map(int, counts)) > _MOST_BARS
    bars = [
        bar
        for layer in layers
        for window in windows
        for bar in (layer.samples(*window, drawn_ns) if sampled else layer.bars(*window))
    ]
    return Chart(
        ranks=tuple(np.unique(timeline.lane_rank).tolist()), start_ns=span[0], end_ns=span[1], windows=windows,
        bars=tuple(sorted(bars, key=lambda bar: (bar.rank, bar.level, bar.start_ns))),
        legend=_legend(timeline, work, reasons.waits.cause, has_groups=bool(concurrent.size),
                       has_chunks=bool((color[work] % 2).any())),
        sampled=sampled,
    )  # fmt: skip


def _windows(timeline: Timeline, work: Int64s, span: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the parts of a step to draw, so that an action has some pixels: the whole step if it is short.

    A long step has three parts. The first ends some actions after the last rank starts its first backward. The
    last starts some actions before the first rank ends its last forward. The second is in the middle between them.
    """
    kind, rank = timeline.kind[work], timeline.rank_of_row()[work]
    start_ns, end_ns = timeline.start_ns[work], timeline.end_ns[work]
    forwards, backwards = kind == Kind.F, BACKWARD.mask(kind)
    if not forwards.any() or not backwards.any():
        return (span,)
    action_ns = int(np.median((end_ns - start_ns)[forwards | backwards]))
    if span[1] - span[0] <= _MOST_ACTIONS * action_ns:
        return (span,)
    ranks = np.unique(rank)
    warm_ns = max(int(start_ns[backwards & (rank == each)].min(initial=span[1])) for each in ranks)
    drain_ns = min(int(end_ns[forwards & (rank == each)].max(initial=span[0])) for each in ranks)
    middle_ns, margin_ns = (warm_ns + drain_ns) // 2, _MARGIN * action_ns
    steady = middle_ns - margin_ns, middle_ns + margin_ns
    windows = (span[0], warm_ns + margin_ns), steady, (drain_ns - margin_ns, span[1])
    is_shorter = sum(end - start for start, end in windows) < _LONGEST_SHARE * (span[1] - span[0])
    apart = all(end < start for (_, end), (start, _) in pairwise(windows))
    return windows if is_shorter and apart else (span,)


def _visible_window(timeline: Timeline, waits: Waits) -> tuple[int, int]:
    """Return the window, extended by the waits of a trimmed step."""
    start, end = window(timeline)
    if not len(waits):
        return start, end
    return min(start, int(waits.start_ns.min())), max(end, int(waits.end_ns.max()))


class _Layer(Struct, frozen=True):
    """Bars of a level in columns, ordered by time within a lane."""

    level: int
    rank: Int32s
    start_ns: Int64s
    end_ns: Int64s
    colors: Sequence[str]
    color: NDArray[np.integer]
    """The index of the color of each bar."""
    texts: Callable[[int], tuple[str, str]]
    """Returns the label and the tooltip of a bar."""

    def bars(self, opened_ns: int, closed_ns: int) -> Iterator[Bar]:
        """Yield each bar with a length in a window, cut at the edges of the window."""
        for index in np.flatnonzero(self.is_within(opened_ns, closed_ns)).tolist():
            label, title = self.texts(index)
            yield Bar(
                rank=int(self.rank[index]), level=self.level, start_ns=max(int(self.start_ns[index]), opened_ns),
                end_ns=min(int(self.end_ns[index]), closed_ns), color=self.colors[int(self.color[index])],
                label=label, title=title,
            )  # fmt: skip

    def is_within(self, opened_ns: int, closed_ns: int) -> NDArray[np.bool_]:
        """Return which bars have a length in a window."""
        return (self.end_ns > self.start_ns) & (self.end_ns > opened_ns) & (self.start_ns < closed_ns)

    def samples(self, opened_ns: int, closed_ns: int, drawn_ns: int) -> Iterator[Bar]:
        """Yield the bars at the middle of each column of a window, with equal neighbours merged.

        ``drawn_ns`` is the length of all windows, which have :data:`_COLUMNS` columns.
        """
        columns = max(round(_COLUMNS * (closed_ns - opened_ns) / max(drawn_ns, 1)), 1)
        edges = np.linspace(opened_ns, closed_ns, columns + 1).astype(np.int64)
        middle = (edges[:-1] + edges[1:]) // 2
        for rank in np.unique(self.rank).tolist():
            rows = np.flatnonzero(self.rank == rank)
            rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
            latest = np.searchsorted(self.start_ns[rows], middle, side="right") - 1
            running = (latest >= 0) & (self.end_ns[rows][latest] > middle)
            sample = np.where(running, self.color[rows][latest].astype(np.int64), -1)
            changes = np.flatnonzero(np.diff(sample, prepend=-2, append=-2))
            for first, stop in zip(changes[:-1].tolist(), changes[1:].tolist(), strict=True):
                if sample[first] >= 0:
                    color = self.colors[int(sample[first])]
                    start, end = int(edges[first]), int(edges[stop])
                    yield Bar(rank=rank, level=self.level, start_ns=start, end_ns=end, color=color)


def _colors_of(timeline: Timeline) -> tuple[list[str], NDArray[np.integer]]:
    """Return the colors of computations, and the index of each row's color."""
    placement = timeline.placement
    microbatch = np.clip(timeline.microbatch, 0, None)
    route = placement.microbatch_route[np.minimum(microbatch, max(placement.microbatches - 1, 0))]
    colors = [shade for kind in KINDS for color in kind.traits.color for shade in (color, darker(color))]
    odd = placement.chunk_of_stage()[route, timeline.stage] % 2
    return colors, timeline.kind.astype(np.int64) * 4 + np.minimum(route, 1) * 2 + odd


def _text_of(timeline: Timeline, row: int) -> tuple[str, str]:
    """Return the label and the title of a row."""
    action, part = timeline.action(row), timeline.parts
    name = f" {part.names[part.name[row]]}" if part is not None and part.name[row] >= 0 else ""
    label = str(action.microbatch) if action.microbatch >= 0 else NAMES[action.kind][:2]
    duration = format_duration(int(timeline.end_ns[row] - timeline.start_ns[row]))
    return label, f"{action}{name}: {duration} from {format_duration(int(timeline.start_ns[row]))}"


def _wait_title(waits: Waits, index: int) -> str:
    cause, peer = IdleCause(int(waits.cause[index])), int(waits.peer[index])
    return f"waits: {cause.word}" + (f", for rank {peer}" if peer >= 0 else "")


def _legend(
    timeline: Timeline, work: Int64s, causes: NDArray[np.integer], *, has_groups: bool, has_chunks: bool
) -> tuple[tuple[str, str], ...]:
    kinds = [Kind(kind) for kind in np.unique(timeline.kind[work]).tolist()]
    entries = [(kind.traits.meaning or kind.name.lower(), kind.traits.color[0]) for kind in kinds]
    entries += [("darker: every other chunk", darker(KINDS[Kind.F].color[0]))] if has_chunks else []
    entries += [(IdleCause(cause).word, CAUSE_COLORS[IdleCause(cause)]) for cause in np.unique(causes).tolist()]
    entries += [("collectives and copies", _GROUP)] if has_groups else []
    return (*entries, ("critical path", PATH))


_PLACES = {
    Level.WAIT: (0.16, 0.62),
    Level.WORK: (0.06, 0.72),
    Level.CONCURRENT: (0.8, 0.12),
    Level.PATH: (0.0, 0.07),
}
"""The top and the height of each level, relative to the lane."""


def write(timeline: Timeline, path: Path, options: Mapping[str, Any], suffix: str) -> None:
    """Write the Gantt chart of a step in the format of a suffix; the option ``title`` is its heading.

    Raises:
        OSError: the file cannot be written.
    """
    chart = chart_of(timeline)
    heading = str(options.get("title", "")) or _title(timeline, chart)
    parts = [element("text", heading, x=_LEFT, y=20, font_size=14, font_weight="bold"), *_parts(chart)]
    write_drawing(path, suffix, document(_WIDTH, _height(chart), _INK, *parts))


def _title(timeline: Timeline, chart: Chart) -> str:
    """Return the title of a chart: schedule, length and microbatches."""
    schedule = timeline.provenance.get("configuration", {}).get("schedule", {})
    name = schedule.get("name", "") if isinstance(schedule, dict) else ""
    size = f"{format_duration(chart.end_ns - chart.start_ns)}, {step_microbatches(timeline)} microbatches"
    return printable(f"{name}: {size}" if name else size)


def chart_svg(chart: Chart) -> Markup:
    """Return the chart as an SVG element that scales with its page."""
    return drawing(_WIDTH, _height(chart), "the step in time, a lane per rank", *_parts(chart))


def _height(chart: Chart) -> int:
    return _TOP + round(_lane(chart) * len(chart.ranks)) + _AXIS + _KEYS * len(list(_key_lines(chart))) + 8


def _parts(chart: Chart) -> Iterator[Markup]:
    lane, lane_index = _lane(chart), {rank: index for index, rank in enumerate(chart.ranks)}
    places = _Places(chart)
    below = _TOP + lane * len(chart.ranks)
    gaps = [(left_ns, right_ns) for (_, left_ns), (right_ns, _) in pairwise(chart.windows)]
    breaks = [(places.x(left_ns) + _BREAK / 2, right_ns - left_ns) for left_ns, right_ns in gaps]
    for time_ns, text in chart.ticks:
        x = places.x(time_ns)
        yield element("path", d=f"M{number(x)} {_TOP}V{number(below + 4)}", stroke="#d5dbe2", stroke_width="0.8")
        if all(abs(x - middle) > _BREAK for middle, _ in breaks):
            yield element("text", text, x=x, y=below + 17, text_anchor="middle", font_size=10, fill=_PALE)
    for x, omitted_ns in breaks:
        yield from _break(x, below, omitted_ns)
    every = max(1, round(14 / lane))
    letters: Counter[str] = Counter()
    for bar in chart.bars:
        letters[bar.color] = max(letters[bar.color], len(bar.label))
    for index, rank in enumerate(chart.ranks):
        if index % every == 0:
            y = _TOP + index * lane + lane * 0.42 + 4
            yield element("text", f"rank {rank}", x=_LEFT - 8, y=y, text_anchor="end", font_size=11)
    for (rank, level), bars in groupby(chart.bars, key=lambda bar: (bar.rank, bar.level)):
        relative_top, relative_height = _PLACES[level]
        top, height = _TOP + (lane_index[rank] + relative_top) * lane, relative_height * lane
        boxes = [_box(bar, places.x(bar.start_ns), top, height, places.scale, letters[bar.color]) for bar in bars]
        yield element("g", *boxes)
    yield from _keys(chart, below + _AXIS)


class _Places:
    """Horizontal positions of the times in a chart's windows, in pixels."""

    def __init__(self, chart: Chart) -> None:
        width = _WIDTH - _LEFT - _RIGHT - _BREAK * (len(chart.windows) - 1)
        self.scale = width / max(chart.drawn_ns, 1)
        """Pixels per ns."""
        self._starts = [start for start, _ in chart.windows]
        lengths = accumulate((end - start for start, end in chart.windows), initial=0)
        self._lefts = [_LEFT + length * self.scale + index * _BREAK for index, length in enumerate(lengths)]

    def x(self, time_ns: int) -> float:
        window = bisect_right(self._starts, time_ns) - 1
        return self._lefts[window] + (time_ns - self._starts[window]) * self.scale


def _break(x: float, below: float, omitted_ns: int) -> Iterator[Markup]:
    """Yield the mark of a gap between two windows, with the omitted time."""
    for left in (x - 3, x + 3):
        d = f"M{number(left - 2)} {number(below + 4)}L{number(left + 2)} {_TOP - 4}"
        yield element("path", d=d, stroke=_PALE, stroke_width="1.2")
    text = f"+ {format_duration(omitted_ns)}"
    yield element("text", text, x=x, y=below + 17, text_anchor="middle", font_size=10, fill=_PALE)


def _box(bar: Bar, x: float, y: float, height: float, scale: float, letters: int) -> Markup:
    width = (bar.end_ns - bar.start_ns) * scale
    line = {"stroke": "#ffffff", "stroke_width": "0.5"} if bar.level == Level.WORK and width > _EDGED else {}
    box = element("rect", x=x, y=y, width=width, height=height, fill=bar.color, **line)
    if not bar.title:
        return box
    parts = [element("title", bar.title), box]
    size = min((width - _PADDING) / (max(letters, 1) * _LETTER), 1)
    if bar.label and height >= _LETTERS and size >= _SMALLEST:
        middle, base, size = x + width / 2, y + height / 2 + _LETTERS * size * 0.36, round(_LETTERS * size, 1)
        parts.append(
            element("text", bar.label, x=middle, y=base, text_anchor="middle", font_size=size, class_="on")
        )
    return element("g", *parts)


def _lane(chart: Chart) -> float:
    return min(_TALLEST, max(_LANES / max(len(chart.ranks), 1), 3))


def _key_lines(chart: Chart) -> Iterator[list[tuple[float, str, str]]]:
    """Yield the lines of the legend: position, meaning and color of each entry."""
    line: list[tuple[float, str, str]] = []
    x = float(_LEFT)
    for meaning, color in chart.legend:
        entry_width = 32 + 7 * len(meaning)
        if line and x + entry_width > _WIDTH:
            yield line
            line, x = [], float(_LEFT)
        line.append((x, meaning, color))
        x += entry_width
    yield line


def _keys(chart: Chart, y: float) -> Iterator[Markup]:
    for line_index, line in enumerate(_key_lines(chart)):
        for x, meaning, color in line:
            yield element("rect", x=x, y=y + line_index * _KEYS, width=12, height=12, fill=color)
            yield element("text", meaning, x=x + 17, y=y + line_index * _KEYS + 10, font_size=11)
