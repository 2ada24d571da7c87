"""Figures with their deviation, shares and short names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "BARELY_NS",
    "MARK",
    "SIGMAS",
    "Figure",
    "Sides",
    "change",
    "mean_of",
    "median_of",
    "ms",
    "several_steps",
    "share",
    "share_of",
    "unique_names",
    "with_deviations",
]

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


_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def unique_names(names: Iterable[str], longest: int) -> dict[str, str]:
    """Return each name as it is shown: cut at its end, else in its middle, else whole, whichever is its own.

    Args:
        names: all that are shown together.
        longest: letters from which a name is cut.

    >>> unique_names(["interleaved-1f1b:vp=2", "interleaved-1f1b:vp=4"], 12)
    {'interleaved-1f1b:vp=2': 'interl…:vp=2', 'interleaved-1f1b:vp=4': 'interl…:vp=4'}
    """
    different = list(dict.fromkeys(names))
    tail = (longest - 1) // 2
    shown = {name: name for name in different}
    for name in different:
        if len(name) <= longest:
            continue
        for end in (0, tail):
            if sum(_cut(other, longest, end) == _cut(name, longest, end) for other in different) == 1:
                shown[name] = _cut(name, longest, end)
                break
    return shown


def _cut(name: str, longest: int, end: int) -> str:
    """Return a name of so many letters, the last ``end`` of which are the name's own."""
    return f"{name[: longest - 1 - end]}{_ELLIPSIS}{name[len(name) - end :]}"


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


def share_of(value: object, key: str) -> float:
    """Return a share of 1.

    Args:
        value: ``"2%"``, ``"0.02"`` or ``0.02``.
        key: what to call it in an error.

    Raises:
        ConfigError: it is no finite share, or negative.

    >>> share_of("2%", "tolerance"), share_of(0.02, "tolerance")
    (0.02, 0.02)
    """
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 <= share < math.inf:
        raise ConfigError(f"{text!r} is no share: write such as 2% or 0.02", key=key)
    return share
