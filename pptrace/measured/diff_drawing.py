"""Drawings of a diff: both steps by rank and time, bars of parts, and the ladder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pptrace.measured.sides import PART_LABELS
from pptrace.report import svg
from pptrace.report.document import Picture
from pptrace.report.numbers import BARELY_NS, change, ms
from pptrace.report.step_drawing import PART_COLORS
from pptrace.steps.kinds import PASSES, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from pptrace.measured.computations import Computations
    from pptrace.measured.diff import Rung, StepDiff
    from pptrace.steps.columns import Int64s

_STRIP_WIDTH, _STRIP_LEFT, _STRIP_RIGHT, _TOP, _STRIP_BAR, _BETWEEN = 1020, 66, 12, 6, 15, 9
_MOST = 3000
"""The most drawn actions; a larger diff omits ranks, then time."""
_FEWEST_RANKS = 8
_DIGIT = 5.9
"""The width of a digit in a label."""
_WIDEST = 6000
"""The largest width for which labels widen a picture."""
_TINTS = 4
"""Paler shades for later chunks of a rank."""
_CLASSES = {kind: kind.name.lower() for kind in sorted(PASSES)}
_MEANINGS = {**{name: kind.word for kind, name in _CLASSES.items()}, "x": "other"}


class _Extract(Struct, frozen=True, kw_only=True):
    """The drawn part of two steps."""

    ranks: list[int]
    until_ns: int
    """The end of the drawn time, from the start of each step."""
    note: str
    """A note on omitted ranks and time."""
    width: int
    """The width of the picture; microbatch numbers fit into most actions."""


def strips(findings: StepDiff) -> tuple[Picture, str]:
    """Return the picture of both steps and a note on omitted parts."""
    shown = _select(findings.steps)
    chunks = max(int(_chunks(step).max(initial=0)) for step in findings.steps)
    classes = {_CLASSES.get(Kind(kind), "x") for step in findings.steps for kind in np.unique(step.kind).tolist()}
    picture = Picture(
        draw=lambda: _draw_strips(findings, shown),
        keys=(
            ("one", "first"),
            ("two", "second"),
            *(key for key in _MEANINGS.items() if key[0] in classes),
            *([(f"f k{_TINTS}", "paler: later chunks of a rank")] if chunks else []),
        ),
    )
    return picture, shown.note


def _draw_strips(findings: StepDiff, shown: _Extract) -> Markup:
    scale = (shown.width - _STRIP_LEFT - _STRIP_RIGHT) / max(shown.until_ns, 1)
    tints = [_tints(step) for step in findings.steps]
    rows = [
        part
        for place, rank in enumerate(shown.ranks)
        for side in (0, 1)
        for part in _row(findings, side, rank, _y(place, side), shown.until_ns, scale, tints[side])
    ]
    bottom = _y(len(shown.ranks), 0)
    parts = (*_axis(shown.until_ns, bottom, scale), *rows, *_divergence(findings, shown, scale))
    return svg.drawing(shown.width, bottom + 26, "both steps by rank and time", *parts, least=shown.width)


def _chunks(step: Computations) -> Int64s:
    """Return the chunk of each action: the index of its stage on its rank."""
    chunk = np.zeros(len(step), dtype=np.int64)
    for rank in np.unique(step.rank).tolist():
        on_rank = step.rank == rank
        chunk[on_rank] = np.unique(step.stage[on_rank], return_inverse=True)[1]
    return chunk


def _tints(step: Computations) -> Int64s:
    """Return the shade of each action: 0 for the first chunk, the palest for the last."""
    chunk = _chunks(step)
    return -(-chunk * _TINTS // max(int(chunk.max(initial=0)), 1))


def _width(steps: Sequence[Computations], until_ns: int) -> int:
    """Return the width at which microbatch numbers fit into nine of ten actions."""
    known = [step.microbatch >= 0 for step in steps]
    numbers = np.concatenate([step.microbatch[mask] for step, mask in zip(steps, known, strict=True)])
    durations_ns = np.concatenate([
        (step.end_ns - step.start_ns)[mask] for step, mask in zip(steps, known, strict=True)
    ])  # fmt: skip
    if not numbers.size:
        return _STRIP_WIDTH
    digits = np.strings.str_len(numbers.astype(str))
    per_ns = np.quantile((digits * _DIGIT + 1.5) / np.maximum(durations_ns, 1), 0.9)
    return int(min(max(per_ns * until_ns + _STRIP_LEFT + _STRIP_RIGHT, _STRIP_WIDTH), _WIDEST))


def _select(steps: Sequence[Computations]) -> _Extract:
    """Select all ranks for few actions, else some ranks and the beginning of their time."""
    ranks = sorted({int(rank) for step in steps for rank in np.unique(step.rank)})
    span_ns = max((step.span_ns for step in steps), default=0)
    total = sum(map(len, steps))
    if total <= _MOST:
        return _Extract(ranks=ranks, until_ns=span_ns, note="", width=_width(steps, span_ns))
    count = min(max(_MOST * len(ranks) // total, _FEWEST_RANKS), len(ranks))
    kept = [ranks[index] for index in np.linspace(0, len(ranks) - 1, count).round().astype(int)]
    ends_ns = np.sort(np.concatenate([step.end_ns[np.isin(step.rank, kept)] - step.begin_ns for step in steps]))
    until_ns = span_ns if ends_ns.size <= _MOST else int(ends_ns[_MOST])
    drawn_ranks = f"{count} of {len(ranks)} ranks" if count < len(ranks) else "all ranks"
    drawn_time = f", the first {ms(until_ns)}" if until_ns < span_ns else ""
    note = f" Drawn: {drawn_ranks}{drawn_time}; a .pftrace shows all {total:,} actions."
    return _Extract(ranks=kept, until_ns=until_ns, note=note, width=_width(steps, until_ns))


def _y(place: int, side: int) -> int:
    return _TOP + place * (2 * _STRIP_BAR + _BETWEEN) + side * _STRIP_BAR


def _row(
    findings: StepDiff, side: int, rank: int, y: int, until: int, scale: float, tints: Int64s
) -> Iterator[Markup]:
    step, path = findings.steps[side], frozenset(findings.chains[side].positions)
    begin = step.begin_ns
    if side == 0:
        yield svg.text(_STRIP_LEFT - 18, y + _STRIP_BAR + 4, f"rank {rank}", anchor="end")
    yield svg.rectangle(_STRIP_LEFT - 12, y + 1, 5, _STRIP_BAR - 2, ("one", "two")[side])
    yield svg.rectangle(_STRIP_LEFT, y + 1, until * scale, _STRIP_BAR - 2, "row")
    for index in np.flatnonzero((step.rank == rank) & (step.start_ns - begin < until)).tolist():
        start, end = int(step.start_ns[index]) - begin, min(int(step.end_ns[index]) - begin, until)
        x, width = _STRIP_LEFT + start * scale, max((end - start) * scale - 0.5, 0.4)
        kind, microbatch = Kind(int(step.kind[index])), int(step.microbatch[index])
        title = f"{step.action(index)}, {ms(start)} to {ms(int(step.end_ns[index]) - begin)}"
        class_ = _CLASSES.get(kind, "x") + (f" k{tints[index]}" if tints[index] else "")
        yield svg.rectangle(x, y + 1, width, _STRIP_BAR - 2, f"{class_} path" if index in path else class_, title)
        if microbatch >= 0 and len(str(microbatch)) * _DIGIT < width:
            yield svg.text(x + width / 2, y + _STRIP_BAR - 4, str(microbatch), "on small", anchor="middle")


def _divergence(findings: StepDiff, shown: _Extract, scale: float) -> list[Markup]:
    divergence = findings.divergence
    if divergence is None or divergence.rank not in shown.ranks or divergence.start_ns >= shown.until_ns:
        return []
    step = findings.steps[1]
    begin = step.begin_ns
    actions = np.flatnonzero((step.rank == divergence.rank) & (step.start_ns - begin == divergence.start_ns))
    end = min(int(step.end_ns[actions[-1]]) - begin, shown.until_ns) if actions.size else divergence.start_ns
    y = _y(shown.ranks.index(divergence.rank), 1)
    width = max((end - divergence.start_ns) * scale, 3)
    return [svg.rectangle(_STRIP_LEFT + divergence.start_ns * scale - 1, y, width + 2, _STRIP_BAR, "mark")]


def _axis(until_ns: int, bottom: int, scale: float) -> Iterator[Markup]:
    """Yield about ten ticks at round times."""
    tick = 10 ** max(len(str(until_ns // 10)) - 1, 0)
    ticks = (tick * factor for factor in (1, 2, 5, 10))
    tick = next(step for step in ticks if until_ns / step <= 10)  # noqa: PLR2004 - about ten
    for time_ns in range(0, until_ns + 1, tick):
        x = _STRIP_LEFT + time_ns * scale
        yield svg.line(x, _TOP, x, bottom, "rule")
        yield svg.text(x, bottom + 14, f"{time_ns / 1e6:,g}", "soft small", anchor="middle")
    yield svg.text(_STRIP_LEFT - 18, bottom + 14, "ms", "soft small", anchor="end")


def part_bars(findings: StepDiff) -> Picture:
    """Return a bar per step, made of its parts."""
    rows = []
    for side, name in enumerate(("first", "second")):
        lengths = {PART_LABELS.get(part, part): pair[side].value for part, pair in findings.parts_ns.items()}
        parts = [(part, length, f"{part}: {ms(length)}") for part, length in lengths.items()]
        rows.append(svg.Bar(name, parts, ms(findings.step_ns[side].value)))
    longest_ns = max(figure.value for figure in findings.step_ns)
    return svg.stacked_bars("parts", rows, PART_COLORS, longest_ns)


_WATERFALL_WIDTH, _WATERFALL_LEFT, _WATERFALL_RIGHT, _WATERFALL_ROW, _WATERFALL_BAR = 1020, 230, 190, 26, 16
_BARELY = 1.5
"""The width of a bar without change."""


def waterfall(findings: StepDiff) -> Markup:
    """Return the drawing of the ladder; its scale begins near the shorter length."""
    first_ns, second_ns = (side.value for side in findings.step_ns)
    changing = [rung for rung in findings.ladder if abs(rung.change_ns.value) >= BARELY_NS] or findings.ladder
    lengths = [first_ns, *(rung.reached_ns for rung in changing)]
    low, high = min(lengths), max(lengths)
    margin = max((high - low) // 6, high // 1000, 1)
    low, high = max(low - 2 * margin, 0), high + margin
    scale = (_WATERFALL_WIDTH - _WATERFALL_LEFT - _WATERFALL_RIGHT) / (high - low)
    ends = [_WATERFALL_LEFT + (length - low) * scale for length in lengths]
    rows = len(changing) + 2
    bars = [
        part
        for row, (rung, start, end) in enumerate(zip(changing, ends, ends[1:], strict=False), 1)
        for part in _waterfall_bar(row, rung, start, end)
    ]
    same = [rung.name for rung in findings.ladder if rung not in changing]
    begin = "0" if low == 0 else f"the scale begins at {ms(low)}"
    unchanged = f"; nothing moves with: {', '.join(same)}" if same else ""
    return svg.drawing(
        _WATERFALL_WIDTH, _WATERFALL_ROW * rows + 22, "ladder",
        *_step_bar(0, "first step", first_ns, "one", ends[0]), *bars,
        _connector(ends[-1], rows - 1),
        *_step_bar(rows - 1, "second step", second_ns, "two", _WATERFALL_LEFT + (second_ns - low) * scale),
        svg.text(_WATERFALL_LEFT, _WATERFALL_ROW * rows + 18, f"{begin}{unchanged}", "soft small"),
    )  # fmt: skip


def _waterfall_bar(row: int, rung: Rung, start: float, end: float) -> Iterator[Markup]:
    y, longer = row * _WATERFALL_ROW, rung.change_ns.value
    class_ = "longer" if longer > 0 else "shorter" if longer < 0 else "x"
    width = max(abs(end - start), _BARELY)
    yield _connector(start, row)
    yield svg.text(_WATERFALL_LEFT - 10, y + 16, rung.name, anchor="end")
    yield svg.rectangle(
        min(start, end), y + 4, width, _WATERFALL_BAR, class_, f"{rung.name}: {change(rung.change_ns)}"
    )
    yield svg.text(max(start, end) + 8, y + 16, change(rung.change_ns))
    yield _length_label(y, rung.reached_ns)


def _step_bar(row: int, name: str, length_ns: float, class_: str, end: float) -> Iterator[Markup]:
    y = row * _WATERFALL_ROW
    yield svg.text(_WATERFALL_LEFT - 10, y + 16, name, "label strong", anchor="end")
    yield svg.rectangle(
        _WATERFALL_LEFT, y + 4, end - _WATERFALL_LEFT, _WATERFALL_BAR, class_, f"{name}: {ms(length_ns)}"
    )
    yield _length_label(y, length_ns)


def _length_label(y: int, length_ns: float) -> Markup:
    return svg.text(_WATERFALL_WIDTH - 4, y + 16, ms(length_ns), "soft", anchor="end")


def _connector(x: float, row: int) -> Markup:
    return svg.line(x, (row - 1) * _WATERFALL_ROW + 4, x, row * _WATERFALL_ROW + _WATERFALL_BAR + 4, "dash")
