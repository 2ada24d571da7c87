"""A number with what it varies by, and how several recorded steps say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["SIGMAS", "Figure", "Sides", "mean_of", "median_of", "with_deviations"]

T = TypeVar("T")

SIGMAS = 3
"""Within how many standard deviations of the steps' own variation something is noise."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and by how much it varies.

    >>> Figure(5, deviation=3.0) - Figure(1, deviation=4.0)
    Figure(value=4, deviation=5.0, spread=None)
    """

    value: float
    """The number; NaN where it is not known."""
    deviation: float | None = None
    """Standard deviation from step to step; None where there is one step."""
    spread: int | None = None
    """From the lower to the upper quartile of the times that the number stands for; None for a single one."""

    def __sub__(self, other: Figure) -> Figure:
        known = [one for one in (self.deviation, other.deviation) if one is not None]
        return Figure(self.value - other.value, math.hypot(*known) if known else None)

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return not math.isnan(self.value)

    @property
    def is_noise(self) -> bool:
        """Whether this change is what steps vary by anyway; never where that is not known."""
        return self.deviation is not None and abs(self.value) <= SIGMAS * self.deviation


class Sides(NamedTuple):
    """The same figure of two steps."""

    first: Figure
    """The first step's."""
    second: Figure
    """The second's."""

    @property
    def change(self) -> Figure:
        """By how much the second is larger."""
        return self.second - self.first


def median_of(times: NDArray[Any], absent: float = math.nan) -> Figure:
    """Return the median of times with the distance of their quartiles; ``absent`` where there is none."""
    if not times.size:
        return Figure(absent, spread=0)
    return Figure(int(np.median(times)), spread=int(np.subtract(*np.percentile(times, [75, 25]))))


def mean_of(times: NDArray[Any]) -> Figure:
    """Return the mean of times, at least one, with the distance of their quartiles."""
    return Figure(round(float(np.mean(times))), spread=median_of(times).spread)


def with_deviations(value: T, *groups: Sequence[T], factors: Sequence[float] = (1.0, 1.0)) -> T:
    """Return a value whose figures, wherever in it, have the deviations that replicates of it say.

    Args:
        value: dataclasses, mappings and tuples that hold figures.
        groups: replicates of it, one for every step of the first side, and of the second; none for one step.
        factors: what a deviation over each group counts: less than 1 where steps are pooled.
    """
    deviating: T = _varied(value, groups, factors) if any(groups) else value
    return deviating


def _varied(value: Any, groups: Sequence[Sequence[Any]], factors: Sequence[float]) -> Any:
    def part(at: Any, get: Callable[[Any, Any], Any]) -> Any:
        inner = [[None if one is None else get(one, at) for one in group] for group in groups]
        return _varied(get(value, at), inner, factors)

    if isinstance(value, Figure):
        return replace(value, deviation=_deviation(value, groups, factors))
    if isinstance(value, Sides):
        sides = [[None if pair is None else pair[at] for pair in group] for at, group in enumerate(groups)]
        return Sides(_varied(value[0], sides[:1], factors[:1]), _varied(value[1], sides[1:], factors[1:]))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: part(field.name, getattr) for field in fields(value)})
    if isinstance(value, Mapping):
        return {key: part(key, lambda one, at: one.get(at)) for key in value}
    if isinstance(value, tuple):
        return tuple(part(at, lambda one, at: one[at] if at < len(one) else None) for at in range(len(value)))
    return value


def _deviation(
    figure: Figure, groups: Sequence[Sequence[Figure | None]], factors: Sequence[float]
) -> float | None:
    """Return the root of the summed squares of what each side's steps vary by; None where each has one step."""
    deviations = []
    for group, factor in zip(groups, factors, strict=False):
        known = [one.value for one in group if one is not None and one.known]
        if group:
            deviations.append(factor * float(np.std(known, ddof=1)) if len(known) > 1 else 0.0)
    if not deviations:
        return None
    both = math.hypot(*deviations)
    return round(both) if isinstance(figure.value, int) else both
