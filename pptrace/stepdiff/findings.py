"""What tells two steps apart: per kind and stage, per action, per message, per order; where it began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import Action, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.model.columns import Int64s
    from pptrace.stepdiff.match import Matched
    from pptrace.stepdiff.times import Performed

__all__ = [
    "Change",
    "KindRow",
    "OrderChange",
    "Way",
    "action_at",
    "changes",
    "kinds",
    "orders",
    "spread_of",
    "ways",
]

_SIGMAS = 3
"""Within how many standard deviations of the steps' own spread a change is noise."""


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
    """How much it varies from step to step; 0 where there is one step."""

    @property
    def change_ns(self) -> int:
        """By how much it is longer."""
        return self.second_ns - self.first_ns

    @property
    def is_noise(self) -> bool:
        """Whether it varies that much by itself."""
        return abs(self.change_ns) <= _SIGMAS * self.noise_ns


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

    def rate(self, side: int) -> float | None:
        """Return bytes per second of a median message; None where that is unknown."""
        if self.median_ns[side] <= 0 or not self.count[side]:
            return None
        return self.size_bytes[side] / self.count[side] / self.median_ns[side] * 1e9 or None


def kinds(a: Performed, b: Performed) -> tuple[KindRow, ...]:
    """Return a row per kind and stage of either step."""
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
        noise_ns: shape (actions of b,): how much each varies from step to step.
    """
    delta = b.duration_ns[matched.second] - a.duration_ns[matched.first]
    order = np.lexsort((b.start_ns[matched.second], -delta, -np.abs(delta)))
    return tuple(
        Change(
            rank=int(b.rank[j]), action=action_at(b, j), first_ns=int(a.duration_ns[i]),
            second_ns=int(b.duration_ns[j]), at_ns=int(b.start_ns[j]), noise_ns=int(noise_ns[j]),
        )
        for i, j in zip(matched.first[order].tolist(), matched.second[order].tolist(), strict=True)
    )  # fmt: skip


def action_at(step: Performed, index: int) -> Action:
    """Return what one computation is."""
    return Action(
        kind=Kind(int(step.kind[index])), stage=int(step.stage[index]), unit=int(step.unit[index]),
        span=int(step.span[index]),
    )  # fmt: skip


def spread_of(step: Performed, others: Sequence[Performed]) -> Int64s:
    """Return, per action, the standard deviation of its time over this and other steps; 0 for one step."""
    if not others:
        return np.zeros(len(step), dtype=np.int64)
    times = [step.duration_ns.astype(np.float64)]
    for other in others:
        at = {int(cell): index for index, cell in enumerate(other.cells)}
        places = np.array([at.get(int(cell), -1) for cell in step.cells])
        times.append(np.where(places >= 0, other.duration_ns[places], np.nan))
    spread: Int64s = np.nan_to_num(np.nanstd(np.stack(times), axis=0)).astype(np.int64)
    return spread


def orders(a: Performed, b: Performed) -> tuple[OrderChange, ...]:
    """Return where each rank's order parts first."""
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
