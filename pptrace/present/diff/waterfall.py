"""The ladder as a waterfall: from one step's length to the other's, a bar per step of the ladder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.present import svg
from pptrace.present.figures import BARELY_NS, change, ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from pptrace.analysis.diff.ladder import LadderStep
    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["waterfall"]

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 1020, 230, 190, 26, 16
_BARELY = 1.5
"""The width of a bar that changes nothing."""


def waterfall(findings: StepDiff) -> Markup:
    """Return the drawing; its scale begins near the shorter length, since changes are small against a step."""
    first_ns, second_ns = (side.value for side in findings.step_ns)
    changing = [one for one in findings.ladder if abs(one.change_ns.value) >= BARELY_NS] or findings.ladder
    lengths = [first_ns, *(one.reached_ns for one in changing)]
    low, high = min(lengths), max(lengths)
    margin = max((high - low) // 6, high // 1000, 1)
    low, high = max(low - 2 * margin, 0), high + margin
    scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)
    ends = [_LEFT + (length - low) * scale for length in lengths]
    rows = len(changing) + 2
    bars = [
        part
        for row, (one, start, end) in enumerate(zip(changing, ends, ends[1:], strict=False), 1)
        for part in _bar(row, one, start, end)
    ]
    same = [one.name for one in findings.ladder if one not in changing]
    begin = "0" if low == 0 else f"the scale begins at {ms(low)}"
    unmoved = f"; nothing moves with: {', '.join(same)}" if same else ""
    return svg.drawing(
        _WIDTH, _ROW * rows + 22, "ladder", *_whole(0, "first step", first_ns, "one", ends[0]), *bars,
        _connector(ends[-1], rows - 1),
        *_whole(rows - 1, "second step", second_ns, "two", _LEFT + (second_ns - low) * scale),
        svg.text(_LEFT, _ROW * rows + 18, f"{begin}{unmoved}", "soft small"),
    )  # fmt: skip


def _bar(row: int, one: LadderStep, start: float, end: float) -> Iterator[Markup]:
    y, longer = row * _ROW, one.change_ns.value
    class_ = "longer" if longer > 0 else "shorter" if longer < 0 else "x"
    width = max(abs(end - start), _BARELY)
    yield _connector(start, row)
    yield svg.text(_LEFT - 10, y + 16, one.name, anchor="end")
    yield svg.rectangle(min(start, end), y + 4, width, _BAR, class_, f"{one.name}: {change(one.change_ns)}")
    yield svg.text(max(start, end) + 8, y + 16, change(one.change_ns))
    yield _length_label(y, one.reached_ns)


def _whole(row: int, name: str, length_ns: float, class_: str, end: float) -> Iterator[Markup]:
    y = row * _ROW
    yield svg.text(_LEFT - 10, y + 16, name, "label strong", anchor="end")
    yield svg.rectangle(_LEFT, y + 4, end - _LEFT, _BAR, class_, f"{name}: {ms(length_ns)}")
    yield _length_label(y, length_ns)


def _length_label(y: int, length_ns: float) -> Markup:
    return svg.text(_WIDTH - 4, y + 16, ms(length_ns), "soft", anchor="end")


def _connector(x: float, row: int) -> Markup:
    """Return the line from the end of the bar above to where a row's bar begins."""
    return svg.line(x, (row - 1) * _ROW + 4, x, row * _ROW + _BAR + 4, "dash")
