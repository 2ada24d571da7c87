"""The ladder as a waterfall: from one step's length to the other's, a bar per rung."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.steps.words import ms
from pptrace.present.diff_words import change_ms
from pptrace.present.elements import Markup, element, rectangle, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["waterfall"]

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 1020, 230, 190, 26, 16
_BARELY = 1.5
"""The width of a rung that changes nothing."""


def waterfall(found: StepDiff) -> Markup:
    """Return the drawing; its scale begins near the shorter length, since rungs are small against a step."""
    lengths = [found.step_ns[0], *(rung.reached_ns for rung in found.rungs)]
    low, high = min(lengths), max(lengths)
    margin = max((high - low) // 6, high // 1000, 1)
    low, high = max(low - 2 * margin, 0), high + margin
    scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)

    def at(length_ns: int) -> float:
        return _LEFT + (length_ns - low) * scale

    height = _ROW * (len(found.rungs) + 2) + 22
    drawn = [*_whole(0, "first step", found.step_ns[0], "one", at(found.step_ns[0]))]
    reached = found.step_ns[0]
    for row, rung in enumerate(found.rungs, 1):
        start, end = at(reached), at(rung.reached_ns)
        y = row * _ROW
        class_ = "longer" if rung.change_ns > 0 else "shorter" if rung.change_ns < 0 else "x"
        width = max(abs(end - start), _BARELY)
        drawn += [
            _joint(start, row),
            text(_LEFT - 10, y + 16, rung.name, anchor="end"),
            rectangle(
                min(start, end),
                y + 4,
                width,
                _BAR,
                class_,
                f"{rung.name}: {change_ms(rung.change_ns, rung.spread_ns)}",
            ),
            text(max(start, end) + 8, y + 16, change_ms(rung.change_ns, rung.spread_ns)),
            _reached(y, rung.reached_ns),
        ]
        reached = rung.reached_ns
    last = len(found.rungs) + 1
    drawn.append(_joint(at(reached), last))
    drawn += _whole(last, "second step", found.step_ns[1], "two", at(found.step_ns[1]))
    begin = "0" if low == 0 else f"the scale begins at {ms(low)}"
    drawn.append(text(_LEFT, height - 4, begin, "soft small"))
    return element("svg", *drawn, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label="ladder")


def _whole(row: int, name: str, length_ns: int, class_: str, end: float) -> Iterator[Markup]:
    y = row * _ROW
    yield text(_LEFT - 10, y + 16, name, "label strong", anchor="end")
    yield rectangle(_LEFT, y + 4, end - _LEFT, _BAR, class_, f"{name}: {ms(length_ns)}")
    yield _reached(y, length_ns)


def _reached(y: int, length_ns: int) -> Markup:
    return text(_WIDTH - 4, y + 16, ms(length_ns), "soft", anchor="end")


def _joint(x: float, row: int) -> Markup:
    """Return the line from the end of the bar above to where a row's bar begins."""
    return element("line", x1=x, y1=(row - 1) * _ROW + 4, x2=x, y2=row * _ROW + _BAR + 4, class_="dash")
