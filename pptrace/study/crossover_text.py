"""A crossover as plain text."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.crossover import Crossover, Point, Skipped

__all__ = ["crossover_lines"]

_SECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SHOWN = 6
"""Runs of skipped values that are listed."""

_FINE = 0.1
"""The percentage below which a margin has two significant digits instead of two decimals."""


def crossover_lines(found: Crossover) -> list[str]:
    """Return the lines: what was asked, both sides of every flip and both ends, who is faster where."""
    first, second = (entry.label for entry in found.between)
    ends = f"{found.span.shown(found.span.low)} to {found.span.shown(found.span.high)}"
    flips = f"{len(found.flips) or 'no'} flip{'s' if len(found.flips) != 1 else ''}"
    stretches = [list(points) for _, points in groupby(found.points, key=lambda point: point.sign)]
    return [
        *found.heading,
        f"{first} against {second} over {found.span.key}, {ends}: {flips}",
        "",
        *_table(found, stretches),
        "",
        _sentence(found, stretches),
        f"ran at {len(found.points)} values; flips that undo each other between two of them take more --points",
        *_skipped(found),
        *_memory(found),
        *found.notes,
    ]


def _table(found: Crossover, stretches: Sequence[Sequence[Point]]) -> list[str]:
    """Return both ends of every stretch that one schedule wins, with a rule where the ranking flips."""
    first, second = (entry.label for entry in found.between)
    rows = [(found.span.word, first, second, "faster")]
    rules = set()
    for stretch in stretches:
        ends = (stretch[0], stretch[-1])[: len(stretch)]
        rows += [_row(found, point) for point in ends]
        rules.add(len(rows) - 1)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for index, row in enumerate(rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)]
        lines.append(f"{'  '.join(cells)}  {row[3]}")
        if index in rules and index + 1 < len(rows):
            lines.append(f"{'-' * (sum(widths) + 4)}  flip")
    return lines


def _row(found: Crossover, point: Point) -> tuple[str, str, str, str]:
    steps = [f"{_time(step)}{'' if fits else ' !'}" for step, fits in zip(point.step_ns, point.fits, strict=True)]
    name = found.name(point)
    return point.text, steps[0], steps[1], f"{name} by {_margin(point)}" if name else "tie"


def _sentence(found: Crossover, stretches: Sequence[Sequence[Point]]) -> str:
    if len(stretches) == 1:
        (stretch,) = stretches
        name = found.name(stretch[0])
        if len(stretch) == 1:
            return f"{name or 'a tie'} at {stretch[0].text}, the only value that both take"
        if name is None:
            return "a tie throughout"
        sides = [f"by {_margin(point)} at {point.text}" for point in (stretch[0], stretch[-1])]
        return f"{name} is faster throughout: {', '.join(sides)}"
    return "faster: " + ", ".join(
        f"{found.name(stretch[0]) or 'a tie'} {_extent(stretch, index, len(stretches))}"
        for index, stretch in enumerate(stretches)
    )


def _extent(stretch: Sequence[Point], index: int, count: int) -> str:
    low, high = stretch[0].text, stretch[-1].text
    if index == 0:
        return f"up to {high}"
    if index == count - 1:
        return f"from {low}"
    return f"at {low}" if low == high else f"from {low} to {high}"


def _skipped(found: Crossover) -> list[str]:
    """Return a line per schedule that could not take some of the values."""
    lines = []
    for entry in found.between:
        own = [one for one in found.skipped if one.schedule == entry.label]
        if own:
            runs = _runs(own, whole=found.span.scale.whole)
            shown = ", ".join(runs[:_SHOWN]) + (", …" if len(runs) > _SHOWN else "")
            lines.append(f"skipped, for {entry.label} cannot take them: {shown} ({own[0].reason})")
    return lines


def _runs(skipped: Sequence[Skipped], *, whole: bool) -> list[str]:
    """Return values as texts, neighbouring whole numbers joined: ``1 to 3``."""
    if not whole:
        return [one.text for one in skipped]
    values = [one.value for one in skipped]
    joined = groupby(enumerate(values), key=lambda pair: pair[1] - pair[0])
    ends = [(group[0][1], group[-1][1]) for _, pairs in joined if (group := list(pairs))]
    return [str(low) if low == high else f"{low} to {high}" for low, high in ends]


def _memory(found: Crossover) -> list[str]:
    over = [
        entry.label
        for index, entry in enumerate(found.between)
        if not all(point.fits[index] for point in found.points)
    ]
    need = "need" if len(over) > 1 else "needs"
    return [f"!: {' and '.join(over)} {need} more memory than the device has"] if over else []


def _time(step_ns: int) -> str:
    """Return a time with digits enough to tell neighbours apart."""
    unit = next((unit for unit, scale in _SECONDS.items() if step_ns >= scale), "ns")
    return f"{step_ns / _SECONDS[unit]:.6g} {unit}"


def _margin(point: Point) -> str:
    percent = 100 * point.margin
    return f"{percent:.2f}%" if percent >= _FINE else f"{percent:.2g}%"
