"""The parts of both steps as two stacked bars on one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.present import svg
from pptrace.present.figures import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from markupsafe import Markup

    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["part_bars"]

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _COLOURS = 1020, 90, 100, 34, 24, 10
_NARROWEST = 60
"""Width from which a part is named in its bar."""


def part_bars(findings: StepDiff) -> tuple[Callable[[], Markup], tuple[tuple[str, str], ...]]:
    """Return what draws the bars, and each part's colour: the same in every report, whichever others there are."""
    colour = {
        name: f"p{at % _COLOURS}"
        for at, (name, pair) in enumerate(findings.parts_ns.items())
        if any(one.value for one in pair)
    }

    def drawn() -> Markup:
        scale = (_WIDTH - _LEFT - _RIGHT) / max(*(one.value for one in findings.step_ns), 1)
        bars = [part for side in (0, 1) for part in _bar(findings, side, colour, scale)]
        return svg.drawing(_WIDTH, 2 * _ROW, "parts", *bars)

    return drawn, tuple((class_, name) for name, class_ in colour.items())


def _bar(findings: StepDiff, side: int, colour: dict[str, str], scale: float) -> Iterator[Markup]:
    y, x = side * _ROW, float(_LEFT)
    yield svg.text(_LEFT - 10, y + 17, ("first", "second")[side], anchor="end")
    for name, class_ in colour.items():
        length = findings.parts_ns[name][side]
        width = length.value * scale
        if width > 0:
            yield svg.rectangle(x, y, width, _BAR, class_, f"{name}: {ms(length.value)}")
            if width >= _NARROWEST and len(name) * 7 < width:
                yield svg.text(x + width / 2, y + 17, name, "on small", anchor="middle")
        x += width
    yield svg.text(x + 8, y + 17, ms(findings.step_ns[side].value), "soft")
