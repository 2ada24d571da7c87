"""Figures as words: times, shares and rates, each with what it varies by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BARELY_NS", "MARK", "change", "ms", "several_steps", "share"]

MARK = " ~"
"""Behind what lies within the steps' own noise."""

BARELY_NS = 500
"""A time that is shown as 0.000 ms."""


def ms(time_ns: Figure | float, *, sign: bool = False) -> str:
    """Return a time in milliseconds, with the standard deviation by which it varies where that is known.

    >>> ms(1_500_000), ms(-250_000, sign=True), ms(Figure(1_500_000, 20_000))
    ('1.500 ms', '-0.250 ms', '1.500 ±0.020 ms')
    """
    figure = time_ns if isinstance(time_ns, Figure) else Figure(time_ns)
    varies = "" if figure.deviation is None else f" ±{figure.deviation / 1e6:,.3f}"
    return f"{figure.value / 1e6:{'+' if sign else ''},.3f}{varies} ms"


def change(time_ns: Figure) -> str:
    """Return a change in milliseconds, marked where it lies within the steps' own noise.

    >>> change(Figure(1_500_000, 20_000)), change(Figure(50_000, 20_000))
    ('+1.500 ±0.020 ms', '+0.050 ±0.020 ms ~')
    """
    return f"{ms(time_ns, sign=True)}{MARK if time_ns.is_noise and time_ns.deviation else ''}"


def share(figure: Figure, digits: int = 1, *, sign: bool = False) -> str:
    """Return a share in percent.

    >>> share(Figure(0.25)), share(Figure(0.25, 0.01), sign=True)
    ('25.0%', '+25.0% ±1.0%')
    """
    varies = "" if figure.deviation is None else f" ±{figure.deviation:.{digits}%}"
    return f"{figure.value:{'+' if sign else ''}.{digits}%}{varies}"


def several_steps(lengths_ns: Iterable[int]) -> str:
    """Return how many steps there are, and how long.

    >>> several_steps([3_000_000, 1_000_000, 2_000_000])
    '3 steps, 1.000 ms to 3.000 ms, median 2.000 ms'
    """
    known = sorted(lengths_ns)
    return f"{len(known)} steps, {ms(known[0])} to {ms(known[-1])}, median {ms(known[(len(known) - 1) // 2])}"
