"""Find where a sign changes along an axis of integers, by a coarse scan and bisection inside every change."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Bisection", "geometric", "rounded"]

_REACH = 4096
"""Integers that are tried around one that has no sign."""

_DIGITS = 4
"""Significant digits of the values that are tried where an axis is continuous, while they tell values apart."""

_DECADES = 1000
"""Where a range begins at 0, its grid's first positive value is this part of its last."""


@dataclass(slots=True, kw_only=True)
class Bisection:
    """A search for the changes of a sign.

    >>> search = Bisection(sign=lambda x: (x > 40) - (x < 40), whole=True)
    >>> search.changes(geometric(1, 100, 5))
    [(39, 40), (40, 41)]
    """

    sign: Callable[[int], int | None]
    """The sign at a value: -1, 0 or 1; None where there is none. Called once per value."""
    whole: bool
    """Whether the axis holds whole numbers, each of which counts, or stands for a continuous one."""
    tolerance: float = 0.01
    """Continuous: how far apart the two sides of a change may be, in parts of the upper one."""
    signs: dict[int, int | None] = field(default_factory=dict)
    """What has been asked so far."""

    def changes(self, grid: list[int]) -> list[tuple[int, int]]:
        """Return the two sides of every change that the grid shows, in order.

        Of whole numbers both sides are neighbours among those that have a sign. Two changes between one pair
        of the grid's points undo each other and are not seen.
        """
        points = self._with_sign(grid)
        return [change for low, high in pairwise(points) for change in self._between(low, high)]

    def at(self, value: int) -> int | None:
        """Return the sign at a value."""
        if value not in self.signs:
            self.signs[value] = self.sign(value)
        return self.signs[value]

    def _with_sign(self, grid: list[int]) -> list[int]:
        """Return the grid with each point that has no sign moved to the nearest that has one, or left out."""
        found: list[int] = []
        for index, value in enumerate(grid):
            after = grid[index - 1] if index else value - 1
            before = grid[index + 1] if index + 1 < len(grid) else value + 1
            near = self._nearest(value, max(after, found[-1] if found else after), before)
            if near is not None:
                found.append(near)
        return found

    def _between(self, low: int, high: int) -> list[tuple[int, int]]:
        if self.at(low) == self.at(high):
            return []
        middle = None if self._is_close(low, high) else self._nearest(self._middle(low, high), low, high)
        if middle is None:
            return [(low, high)]
        return [*self._between(low, middle), *self._between(middle, high)]

    def _nearest(self, value: int, after: int, before: int) -> int | None:
        """Return the value with a sign that is nearest, strictly between two others."""
        tried = _outward(value, after, before) if self.whole else iter([value])
        return next((near for near in tried if self.at(near) is not None), None)

    def _is_close(self, low: int, high: int) -> bool:
        return high - low <= (1 if self.whole else max(1, self.tolerance * high))

    def _middle(self, low: int, high: int) -> int:
        if self.whole:
            return (low + high) // 2
        middle = isqrt(low * high) if low else high // 2
        short = rounded(middle, _DIGITS)
        return short if low < short < high else (middle if low < middle < high else (low + high) // 2)


def geometric(low: int, high: int, points: int) -> list[int]:
    """Return integers from ``low`` to ``high`` whose ratios are about the same, each once.

    >>> geometric(1, 1000, 4), geometric(0, 1000, 3), geometric(3, 5, 9)
    ([1, 10, 100, 1000], [0, 1, 1000], [3, 4, 5])
    """
    if low == 0:
        return [0, *geometric(max(1, high // _DECADES), high, points - 1)] if high else [0]
    ratio = (high / low) ** (1 / max(1, points - 1))
    inner = {rounded(round(low * ratio**step), _DIGITS) for step in range(1, points - 1)}
    return sorted({low, high, *(value for value in inner if low < value < high)})


def rounded(value: int, digits: int) -> int:
    """Return an integer rounded to so many significant digits, exactly.

    >>> rounded(123_456, 3), rounded(7, 3)
    (123000, 7)
    """
    scale = 10 ** max(0, len(str(value)) - digits)
    return int((value + scale // 2) // scale * scale)


def _outward(value: int, after: int, before: int) -> Iterator[int]:
    for distance in range(min(max(value - after, before - value), _REACH)):
        for near in dict.fromkeys((value - distance, value + distance)):
            if after < near < before:
                yield near
