"""How much every figure of a diff varies by itself: each recorded step stands in once for the one compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.analysis.diff.findings import KindRow, Way
    from pptrace.analysis.diff.ladder import Rung
    from pptrace.analysis.diff.pair import Pair

__all__ = ["SIGMAS", "Replicates", "deviation", "within_noise"]

SIGMAS = 3
"""Within how many standard deviations of the steps' own variation something is noise."""


def within_noise(value: float, spread: float | None) -> bool:
    """Say whether a change is what the steps vary by anyway; never where that is not known."""
    return spread is not None and abs(value) <= SIGMAS * spread


def deviation(*spreads: float | None) -> float | None:
    """Return the standard deviation of a sum or difference of values that vary by themselves; None for none."""
    known = [one for one in spreads if one is not None]
    return math.hypot(*known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """The comparison made again with every other step of either side."""

    groups: tuple[Sequence[Pair], Sequence[Pair]]
    """Pairs with each of the first side's steps, and with each of the second's; none for a side of one step."""
    factors: tuple[float, float]
    """What a deviation counts: 1, and less where a side's steps are pooled."""

    def __bool__(self) -> bool:
        return any(self.groups)

    def side(self, side: int, value: Callable[[Pair], float | None], *, whole: bool = False) -> float | None:
        """Return the standard deviation of a figure over one side's steps; None where there is one step.

        Args:
            side: which.
            value: the figure, None where a pair lacks it.
            whole: for a figure that is one step's even where steps are pooled.
        """
        if not self.groups[side]:
            return None
        known = [found for pair in self.groups[side] if (found := value(pair)) is not None]
        spread = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
        return spread * (1.0 if whole else self.factors[side])

    def both(self, value: Callable[[Pair], float | None]) -> float | None:
        """Return the standard deviation that both sides' steps give a figure."""
        return deviation(*(self.side(side, value) for side in (0, 1)))

    def step_ns(self) -> tuple[int | None, int | None]:
        """Return those of the lengths."""
        return _each(lambda side: self.side(side, lambda pair: pair.step_ns[side]))

    def parts_ns(self, names: Sequence[str]) -> Mapping[str, tuple[int | None, int | None]]:
        """Return those of the parts."""

        def part(name: str) -> tuple[int | None, int | None]:
            return _each(lambda side: self.side(side, lambda pair: pair.parts.get(name, (0, 0))[side], whole=True))

        return {name: part(name) for name in names}

    def rungs(self, rungs: Sequence[Rung]) -> tuple[Rung, ...]:
        """Return rungs with theirs."""

        def rung(at: int) -> int | None:
            return _whole(self.both(lambda pair: pair.rungs[at].change_ns if pair.rungs else None))

        return tuple(replace(one, spread_ns=rung(at)) for at, one in enumerate(rungs))

    def kinds(self, rows: Sequence[KindRow]) -> tuple[KindRow, ...]:
        """Return kinds with theirs."""
        return tuple(self._kind(row) for row in rows)

    def ways(self, ways: Sequence[Way]) -> tuple[Way, ...]:
        """Return ways with theirs."""
        return tuple(self._way(way) for way in ways)

    def paths(self, pair: Pair) -> tuple[Mapping[str, int | None], Mapping[str, int | None]]:
        """Return those of the critical paths' times by kind."""

        def kind(side: int, name: str) -> int | None:
            return _whole(self.side(side, lambda one: one.chains[side].by_kind_ns.get(name, 0), whole=True))

        first, second = ({name: kind(side, name) for name in pair.chains[side].by_kind_ns} for side in (0, 1))
        return first, second

    def _kind(self, row: KindRow) -> KindRow:
        def own(pair: Pair) -> KindRow | None:
            return next((one for one in pair.kinds if (one.kind, one.stage) == (row.kind, row.stage)), None)

        def median(pair: Pair, side: int) -> int | None:
            one = own(pair)
            return None if one is None else one.median_ns[side]

        def ratio(pair: Pair) -> float | None:
            one = own(pair)
            return None if one is None else one.ratio

        varies = _each(lambda side: self.side(side, lambda pair: median(pair, side)))
        return replace(row, varies_ns=varies, ratio_varies=self.both(ratio))

    def _way(self, way: Way) -> Way:
        def took(pair: Pair, side: int) -> int | None:
            found = (one for one in pair.ways if (one.source, one.target) == (way.source, way.target))
            one = next(found, None)
            return one.median_ns[side] if one is not None and one.seen[side] else None

        return replace(way, varies_ns=_each(lambda side: self.side(side, lambda pair: took(pair, side))))


def _each(value: Callable[[int], float | None]) -> tuple[int | None, int | None]:
    return _whole(value(0)), _whole(value(1))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
