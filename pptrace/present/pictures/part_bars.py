"""The parts of both steps as two stacked bars on one scale, and as figures that sum to the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.diff.replicates import deviation
from pptrace.analysis.steps.words import ms
from pptrace.present.diff_words import change_ms
from pptrace.present.elements import Markup, element, joined, rectangle, table, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["part_bars"]

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _COLOURS = 1020, 90, 100, 34, 24, 10
_NARROWEST = 60
"""Width from which a part is named in its bar."""


def part_bars(found: StepDiff) -> Markup:
    """Return bars and table."""
    # A part has its colour in every report, whichever others there are.
    colour = {name: f"p{at % _COLOURS}" for at, (name, pair) in enumerate(found.parts.items()) if any(pair)}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(*found.step_ns, 1)
    bars = [one for side in (0, 1) for one in _bar(found, side, colour, scale)]
    drawing = element("svg", *bars, viewBox=f"0 0 {_WIDTH} {2 * _ROW}", role="img", aria_label="parts")
    rows = [
        (
            joined([element("i", class_=f"key {colour[name]}"), name]),
            *_figures(found.parts[name], found.parts_vary_ns[name]),
        )
        for name in colour
    ]
    rows.append((element("b", "the step"), *_figures(found.step_ns, found.step_varies_ns)))
    return joined([drawing, table(("part", "first", "second", "change"), rows)])


def _bar(found: StepDiff, side: int, colour: dict[str, str], scale: float) -> Iterator[Markup]:
    y, x = side * _ROW, float(_LEFT)
    yield text(_LEFT - 10, y + 17, ("first", "second")[side], anchor="end")
    for name, class_ in colour.items():
        length = found.parts[name][side]
        width = length * scale
        if length > 0:
            yield rectangle(x, y, width, _BAR, class_, f"{name}: {ms(length)}")
            if width >= _NARROWEST and len(name) * 7 < width:
                yield text(x + width / 2, y + 17, name, "on small", anchor="middle")
        x += width
    yield text(x + 8, y + 17, ms(found.step_ns[side]), "soft")


def _figures(lengths: tuple[int, int], varies: tuple[int | None, int | None]) -> tuple[str, str, str]:
    first, second = lengths
    return ms(first, varies[0]), ms(second, varies[1]), change_ms(second - first, deviation(*varies))
