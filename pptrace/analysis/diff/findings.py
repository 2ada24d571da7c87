"""What tells two steps apart: per kind and stage, per action, per message, per order; where it began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.diff.replicates import within_noise
from pptrace.analysis.steps.match import same_stages
from pptrace.analysis.steps.pooled import over_steps, share_of_deviation
from pptrace.analysis.steps.times import action_at
from pptrace.model.action import Action, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.analysis.steps.match import Matched
    from pptrace.analysis.steps.times import Performed
    from pptrace.model.columns import Int64s

__all__ = [
    "Change",
    "KindRow",
    "OrderChange",
    "Way",
    "changes",
    "kinds",
    "orders",
    "spread_of",
    "ways",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """All actions of one kind on one stage."""

    kind: str
    """The kind."""
    stage: int
    """The stage."""
    count: tuple[int, int]
    """How many, on both sides."""
    median_ns: tuple[int, int]
    """Median of their times; 0 where there is none."""
    spread_ns: tuple[int, int]
    """From the lower to the upper quartile."""
    varies_ns: tuple[int | None, int | None] = (None, None)
    """Standard deviation of the median from step to step; None where a side has one step."""
    ratio_varies: float | None = None
    """That of the ratio."""

    @property
    def ratio(self) -> float | None:
        """The second median as a share of the first."""
        return self.median_ns[1] / self.median_ns[0] if all(self.median_ns) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One action that took another time."""

    rank: int
    """Its rank."""
    action: Action
    """What it is."""
    first_ns: int
    """What it took in the first step."""
    second_ns: int
    """What it took in the second."""
    at_ns: int
    """When it started in the second."""
    noise_ns: int
    """Standard deviation of the change by both sides' variation from step to step; 0 where each has one step."""

    @property
    def change_ns(self) -> int:
        """By how much it is longer."""
        return self.second_ns - self.first_ns

    @property
    def is_noise(self) -> bool:
        """Whether it varies that much by itself."""
        return within_noise(self.change_ns, self.noise_ns or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChange:
    """Where a rank's order parts."""

    rank: int
    """The rank."""
    position: int
    """How many actions are alike before."""
    first: str
    """What comes next in the first step; empty for nothing."""
    second: str
    """What comes next in the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """All messages from one rank to another."""

    source: int
    """The sender."""
    target: int
    """The receiver."""
    count: tuple[int, int]
    """How many, on both sides."""
    size_bytes: tuple[int, int]
    """Bytes of all."""
    median_ns: tuple[int, int]
    """Median of their times, of those whose arrival was seen; -1 for none."""
    seen: tuple[int, int]
    """How many those are."""
    varies_ns: tuple[int | None, int | None] = (None, None)
    """Standard deviation of the median from step to step; None where a side has one step."""

    def rate(self, side: int) -> float | None:
        """Return bytes per second of a median message; None where that is unknown."""
        if self.median_ns[side] <= 0 or not self.count[side]:
            return None
        return self.size_bytes[side] / self.count[side] / self.median_ns[side] * 1e9 or None


def kinds(a: Performed, b: Performed) -> tuple[KindRow, ...]:
    """Return a row per kind and stage of either step; none where stages are not the same parts of the model."""
    if not same_stages(a, b):
        return ()
    pairs = sorted({(int(k), int(s)) for one in (a, b) for k, s in zip(one.kind, one.stage, strict=True)})
    found = []
    for kind, stage in pairs:
        times = [one.duration_ns[(one.kind == kind) & (one.stage == stage)] for one in (a, b)]
        found.append(KindRow(
            kind=Kind(kind).name, stage=stage, count=(times[0].size, times[1].size),
            median_ns=(_median(times[0]), _median(times[1])),
            spread_ns=(_quartiles(times[0]), _quartiles(times[1])),
        ))  # fmt: skip
    return tuple(found)


def changes(a: Performed, b: Performed, matched: Matched, noise_ns: Int64s) -> tuple[Change, ...]:
    """Return every matched action, the one that changed most first.

    Args:
        a: the first step.
        b: the second.
        matched: the pairs.
        noise_ns: shape (pairs,): how much each pair's difference varies from step to step.
    """
    delta = b.duration_ns[matched.second] - a.duration_ns[matched.first]
    order = np.lexsort((b.start_ns[matched.second], -delta, -np.abs(delta)))
    columns = (matched.first, matched.second, noise_ns)
    return tuple(
        Change(
            rank=int(b.rank[j]), action=action_at(b, j), first_ns=int(a.duration_ns[i]),
            second_ns=int(b.duration_ns[j]), at_ns=int(b.start_ns[j]), noise_ns=noise,
        )
        for i, j, noise in zip(*(column[order].tolist() for column in columns), strict=True)
    )  # fmt: skip


def spread_of(
    step: Performed, others: Sequence[Performed], name: str = "duration_ns", *, pooled: bool = False
) -> Int64s:
    """Return, per action, the standard deviation of a column over this and other steps; 0 for one step.

    From a few steps a single action's deviation is known badly: the median one of its kind on its stage is the
    least that is taken for it.

    Args:
        step: the step.
        others: the others of its side.
        name: the column.
        pooled: whether the median over all of them is meant, and not one step.
    """
    values = over_steps(step, others, name)
    if len(values) <= 1:
        return np.zeros(len(step), dtype=np.int64)
    known = (~np.isnan(values)).sum(axis=0)
    spread = np.sqrt(np.nansum((values - np.nanmean(values, axis=0)) ** 2, axis=0) / np.maximum(known - 1, 1))
    cells = step.kind.astype(np.int64) * step.placement.stages + step.stage
    for cell in np.unique(cells):
        own = cells == cell
        spread[own] = np.maximum(spread[own], np.median(spread[own]))
    found: Int64s = (spread * (share_of_deviation(len(values)) if pooled else 1)).astype(np.int64)
    return found


def orders(a: Performed, b: Performed) -> tuple[OrderChange, ...]:
    """Return where each rank's order parts first; nothing where stages are not the same parts of the model."""
    if not same_stages(a, b):
        return ()
    found = []
    for rank in range(max(a.placement.ranks, b.placement.ranks)):
        rows = [[str(action_at(one, i)) for i in np.flatnonzero(one.rank == rank).tolist()] for one in (a, b)]
        alike = next(
            (i for i, pair in enumerate(zip(*rows, strict=False)) if pair[0] != pair[1]), min(map(len, rows))
        )
        if alike < max(map(len, rows)):
            first, second = (row[alike] if alike < len(row) else "" for row in rows)
            found.append(OrderChange(rank=rank, position=alike, first=first, second=second))
    return tuple(found)


def ways(a: Performed, b: Performed) -> tuple[Way, ...]:
    """Return the messages of either step by sender and receiver."""
    sides = (a.transfers, b.transfers)
    pairs = sorted({(int(s), int(t)) for one in sides for s, t in zip(one.source, one.target, strict=True)})
    found = []
    for source, target in pairs:
        own = [(one.source == source) & (one.target == target) for one in sides]
        seen = [mask & one.observed for one, mask in zip(sides, own, strict=True)]
        found.append(Way(
            source=source, target=target, count=_both(int(mask.sum()) for mask in own),
            size_bytes=_both(int(one.size_bytes[mask].sum()) for one, mask in zip(sides, own, strict=True)),
            median_ns=_both(_median(one.took_ns[mask], -1) for one, mask in zip(sides, seen, strict=True)),
            seen=_both(int(mask.sum()) for mask in seen),
        ))  # fmt: skip
    return tuple(found)


def _both(values: Iterable[int]) -> tuple[int, int]:
    first, second = values
    return first, second


def _median(times: Int64s, absent: int = 0) -> int:
    return int(np.median(times)) if times.size else absent


def _quartiles(times: Int64s) -> int:
    return int(np.subtract(*np.percentile(times, [75, 25]))) if times.size else 0
