"""Figures with deviations, and short names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

MARK = " ~"
"""The mark after changes within noise."""

BARELY_NS = 500
"""Times below this are shown as 0.000 ms."""


def ms(time_ns: Figure | float, *, sign: bool = False) -> str:
    """Return a time in milliseconds, with its standard deviation where known.

    >>> ms(1_500_000), ms(-250_000, sign=True), ms(Figure(1_500_000, 20_000))
    ('1.500 ms', '-0.250 ms', '1.500 ±0.020 ms')
    """
    figure = time_ns if isinstance(time_ns, Figure) else Figure(time_ns)
    varies = "" if figure.deviation is None else f" ±{figure.deviation / 1e6:,.3f}"
    return f"{figure.value / 1e6:{'+' if sign else ''},.3f}{varies} ms"


def change(time_ns: Figure) -> str:
    """Return a change in milliseconds, marked if it is noise.

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


def microbatches_text(microbatches: int, slices: int = 1) -> str:
    """Return the number of microbatches, and of the slices of each microbatch's sequence where it is cut.

    >>> microbatches_text(8, 2)
    '8 microbatches in 2 slices each'
    """
    return f"{microbatches} microbatches" + (f" in {slices} slices each" if slices > 1 else "")


_MOST_RANKS = 12
"""The most ranks that a text lists."""


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as words; of many, their number.

    >>> ranks_text([2]), ranks_text([0, 1, 3])
    ('rank 2', 'ranks 0, 1 and 3')
    """
    if len(ranks) > _MOST_RANKS:
        return f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def several_steps(lengths_ns: Iterable[int]) -> str:
    """Return the number of steps and their lengths.

    >>> several_steps([3_000_000, 1_000_000, 2_000_000])
    '3 steps, 1.000 ms to 3.000 ms, median 2.000 ms'
    """
    known = sorted(lengths_ns)
    return f"{len(known)} steps, {ms(known[0])} to {ms(known[-1])}, median {ms(known[(len(known) - 1) // 2])}"


_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def unique_names(names: Iterable[str], longest: int) -> dict[str, str]:
    """Return short unique names: cut at the end, else in the middle, else at the beginning, else cut and numbered.

    >>> unique_names(["interleaved-1f1b:vp=2", "interleaved-1f1b:vp=4"], 12)
    {'interleaved-1f1b:vp=2': 'interl…:vp=2', 'interleaved-1f1b:vp=4': 'interl…:vp=4'}
    """
    distinct = list(dict.fromkeys(names))
    tail = (longest - 1) // 2
    short_names = {name: name for name in distinct}
    for name in distinct:
        if len(name) <= longest:
            continue
        for end in (0, tail, longest - 1):
            if sum(_cut(other, longest, end) == _cut(name, longest, end) for other in distinct) == 1:
                short_names[name] = _cut(name, longest, end)
                break
        else:
            number = f"#{distinct.index(name) + 1}"
            short_names[name] = f"{_cut(name, longest - len(number), 0)}{number}"
    return short_names


def _cut(name: str, longest: int, end: int) -> str:
    """Return a name cut to ``longest`` letters that keeps its last ``end`` letters."""
    return f"{name[: longest - 1 - end]}{_ELLIPSIS}{name[len(name) - end :]}"


T = TypeVar("T")

SIGMAS = 3
"""Standard deviations within which a change is noise."""


class Figure(Struct, frozen=True):
    """A number and its deviation.

    >>> Figure(5, deviation=3.0) - Figure(1, deviation=4.0)
    Figure(value=4, deviation=5.0, spread=None)
    """

    value: float
    """The number; NaN where unknown."""
    deviation: float | None = None
    """The standard deviation from step to step; None for one step."""
    spread: int | None = None
    """The interquartile range of the times behind a median or mean; None for a single time."""

    def __sub__(self, other: Figure) -> Figure:
        known = [deviation for deviation in (self.deviation, other.deviation) if deviation is not None]
        return Figure(self.value - other.value, math.hypot(*known) if known else None)

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return not math.isnan(self.value)

    @property
    def is_noise(self) -> bool:
        """Whether this change is within the known variation from step to step."""
        return self.deviation is not None and abs(self.value) <= SIGMAS * self.deviation


class Sides(NamedTuple):
    """The same figure of two steps."""

    first: Figure
    """The figure of the first step."""
    second: Figure
    """The figure of the second step."""

    @property
    def change(self) -> Figure:
        """The second figure minus the first."""
        return self.second - self.first


def median_of(times: NDArray[Any]) -> Figure:
    """Return the median of at least one time with the interquartile range."""
    return Figure(int(np.median(times)), spread=int(np.subtract(*np.percentile(times, [75, 25]))))


def mean_of(times: NDArray[Any]) -> Figure:
    """Return the mean of at least one time with the interquartile range."""
    return Figure(round(float(np.mean(times))), spread=median_of(times).spread)


def with_deviations(value: T, *groups: Sequence[T], factors: Sequence[float] = (1.0, 1.0)) -> T:
    """Return a value whose figures have deviations over replicates of the value.

    Args:
        value: nested records, mappings and tuples with figures.
        groups: replicates, one per step of the first and of the second side; empty for one step.
        factors: factors of the deviations over each group; less than 1 for pooled steps.
    """
    result: T = _add_deviations(value, groups, factors) if any(groups) else value
    return result


def _add_deviations(value: Any, groups: Sequence[Sequence[Any]], factors: Sequence[float]) -> Any:
    def part(key: Any, get: Callable[[Any, Any], Any]) -> Any:
        replicates = [[None if whole is None else get(whole, key) for whole in group] for group in groups]
        return _add_deviations(get(value, key), replicates, factors)

    if isinstance(value, Figure):
        return replace(value, deviation=_deviation(value, groups, factors))
    if isinstance(value, Sides):
        sides = [[None if pair is None else pair[side] for pair in group] for side, group in enumerate(groups)]
        return Sides(
            _add_deviations(value.first, sides[:1], factors[:1]),
            _add_deviations(value.second, sides[1:], factors[1:]),
        )
    if isinstance(value, Struct):
        return replace(value, **{name: part(name, getattr) for name in value.__struct_fields__})
    if isinstance(value, Mapping):
        return {key: part(key, lambda mapping, key: mapping.get(key)) for key in value}
    if isinstance(value, tuple):
        return tuple(
            part(index, lambda items, index: items[index] if index < len(items) else None)
            for index in range(len(value))
        )
    return value


def _deviation(
    figure: Figure, groups: Sequence[Sequence[Figure | None]], factors: Sequence[float]
) -> float | None:
    """Return the root of the sum of squared deviations of both sides; None where each side has one step."""
    deviations = []
    for group, factor in zip(groups, factors, strict=False):
        known = [replicate.value for replicate in group if replicate is not None and replicate.known]
        if group:
            deviations.append(factor * float(np.std(known, ddof=1)) if len(known) > 1 else 0.0)
    if not deviations:
        return None
    deviation = math.hypot(*deviations)
    return round(deviation) if isinstance(figure.value, int) else deviation
