"""What tells two steps apart: per kind and stage, per action, per message, per order; where it began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pptrace.analysis.figure import Figure, Sides, median_of
from pptrace.analysis.steps.match import first_difference, same_stages
from pptrace.analysis.steps.medians import over_steps, share_of_deviation
from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.analysis.steps.match import Matched
    from pptrace.analysis.steps.times import Performed, Transfers
    from pptrace.model.action import Action
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """All actions of one kind on one stage."""

    kind: str
    """The kind."""
    stage: int
    """The stage."""
    count: tuple[int, int]
    """How many, on both sides."""
    median_ns: Sides
    """Median of their times; 0 where there is none."""
    ratio: Figure | None
    """The second median as a share of the first; None where a side has none."""


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
    change_ns: Figure
    """By how much it is longer."""
    at_ns: int
    """When it started in the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChange:
    """Where a rank's order differs."""

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
    median_ns: Sides
    """Median of their times, of those whose arrival was seen; unknown for none."""
    seen: tuple[int, int]
    """How many those are."""
    bytes_per_s: tuple[float | None, float | None]
    """Rate of a median message; None where that is unknown."""


def kinds(a: Performed, b: Performed) -> dict[tuple[str, int], KindRow]:
    """Return a row per kind and stage of either step; none where stages are not the same parts of the model."""
    if not same_stages(a, b):
        return {}
    pairs = sorted({(int(k), int(s)) for one in (a, b) for k, s in zip(one.kind, one.stage, strict=True)})
    rows = {}
    for kind, stage in pairs:
        first, second = (one.duration_ns[(one.kind == kind) & (one.stage == stage)] for one in (a, b))
        median = Sides(median_of(first, absent=0), median_of(second, absent=0))
        before, after = median.first.value, median.second.value
        rows[Kind(kind).name, stage] = KindRow(
            kind=Kind(kind).name, stage=stage, count=(first.size, second.size), median_ns=median,
            ratio=Figure(after / before) if before and after else None,
        )  # fmt: skip
    return rows


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
    columns = (matched.first, matched.second, noise_ns, delta)
    return tuple(
        Change(
            rank=int(b.rank[j]), action=b.action(j), first_ns=int(a.duration_ns[i]),
            second_ns=int(b.duration_ns[j]), change_ns=Figure(change, noise or None), at_ns=int(b.start_ns[j]),
        )
        for i, j, noise, change in zip(*(column[order].tolist() for column in columns), strict=True)
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
        alike = cells == cell
        spread[alike] = np.maximum(spread[alike], np.median(spread[alike]))
    whole: Int64s = (spread * (share_of_deviation(len(values)) if pooled else 1)).astype(np.int64)
    return whole


def orders(a: Performed, b: Performed) -> tuple[OrderChange, ...]:
    """Return where each rank's order differs first; nothing where stages are not the same parts of the model."""
    if not same_stages(a, b):
        return ()
    changed = []
    for rank in range(max(a.placement.ranks, b.placement.ranks)):
        rows = [[str(one.action(i)) for i in np.flatnonzero(one.rank == rank).tolist()] for one in (a, b)]
        position = first_difference(*rows)
        if position is not None:
            first, second = (row[position] if position < len(row) else "" for row in rows)
            changed.append(OrderChange(rank=rank, position=position, first=first, second=second))
    return tuple(changed)


def ways(a: Performed, b: Performed) -> dict[tuple[int, int], Way]:
    """Return the messages of either step by sender and receiver."""
    sides = (a.transfers, b.transfers)
    pairs = sorted({(int(s), int(t)) for one in sides for s, t in zip(one.source, one.target, strict=True)})
    return {(source, target): _way(source, target, *sides) for source, target in pairs}


def _way(source: int, target: int, *sides: Transfers) -> Way:
    sent = [(one.source == source) & (one.target == target) for one in sides]
    seen = [mask & one.observed for one, mask in zip(sides, sent, strict=True)]
    count = _both(int(mask.sum()) for mask in sent)
    size = _both(int(one.size_bytes[mask].sum()) for one, mask in zip(sides, sent, strict=True))
    median = Sides(*(median_of(one.took_ns[mask]) for one, mask in zip(sides, seen, strict=True)))
    return Way(
        source=source, target=target, count=count, size_bytes=size, median_ns=median,
        seen=_both(int(mask.sum()) for mask in seen), bytes_per_s=_both(map(_rate, size, count, median)),
    )  # fmt: skip


def _rate(size_bytes: int, count: int, median_ns: Figure) -> float | None:
    return size_bytes / count / median_ns.value * 1e9 or None if median_ns.value > 0 and count else None


def _both(values: Iterable[T]) -> tuple[T, T]:
    first, second = values
    return first, second
