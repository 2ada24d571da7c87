"""Findings of a diff: changes per stage, action and link, orders, and the first divergence."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pptrace.measured.computations import group_quantiles
from pptrace.measured.matching import first_difference, has_same_stages
from pptrace.measured.sides import group_medians, median_deviation_factor, values_over_steps
from pptrace.report.numbers import SIGMAS, Figure, Sides
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.measured.computations import Computations
    from pptrace.measured.dependencies import Releases
    from pptrace.measured.matching import MatchedActions
    from pptrace.steps.actions import Action
    from pptrace.steps.columns import Int64s


class KindRow(Struct, frozen=True, kw_only=True):
    """All actions of one kind on one stage."""

    kind: str
    stage: int
    count: tuple[int, int]
    """Their number on both sides."""
    median_ns: Sides
    """The median of their durations; 0 without actions."""
    ratio: Figure | None
    """The second median over the first; None where one of them is 0."""

    def is_equal(self, tolerance: float) -> bool:
        """Return whether both sides have actions, with equal medians within a relative tolerance."""
        if self.ratio is None:
            return all(self.count) and not any(median.value for median in self.median_ns)
        return abs(self.ratio.value - 1) <= tolerance


class Change(Struct, frozen=True, kw_only=True):
    """An action with a changed duration."""

    rank: int
    action: Action
    first_ns: int
    """Its duration in the first step."""
    second_ns: int
    """Its duration in the second step."""
    change_ns: Figure
    """The second duration minus the first."""
    start_ns: int
    """Its start in the second step."""


class OrderChange(Struct, frozen=True, kw_only=True):
    """The first difference of order on a rank."""

    rank: int
    position: int
    """The number of equal actions before it."""
    first: str
    """The next action in the first step; empty at its end."""
    second: str
    """The next action in the second step."""


class Link(Struct, frozen=True, kw_only=True):
    """All messages from one rank to another."""

    source: int
    target: int
    count: tuple[int, int]
    """Their number on both sides."""
    size_bytes: tuple[int, int]
    """Their total size."""
    median_ns: Sides
    """The median of observed transfer times; unknown without any."""
    seen: tuple[int, int]
    """The number of observed messages."""
    bytes_per_s: tuple[float | None, float | None]
    """Rate of a median message; None where unknown."""


def kinds(a: Computations, b: Computations) -> dict[tuple[str, int], KindRow]:
    """Return a row per kind and stage of either step; empty where stages differ."""
    if not has_same_stages(a, b):
        return {}
    stages = max(a.placement.stages, b.placement.stages)
    cells = [step.kind.astype(np.int64) * stages + step.stage for step in (a, b)]
    known = np.unique(np.concatenate(cells))
    sides = [
        group_medians(step.duration_ns, np.searchsorted(known, cell), known.size, absent=0)
        for step, cell in zip((a, b), cells, strict=True)
    ]
    rows = {}
    for cell, *pair in zip(known.tolist(), *(zip(*side, strict=True) for side in sides), strict=True):
        (first_count, first), (second_count, second) = pair
        kind, stage = Kind(cell // stages).name, cell % stages
        known_ratio = first.value and second.value
        rows[kind, stage] = KindRow(
            kind=kind, stage=stage, count=(first_count, second_count), median_ns=Sides(first, second),
            ratio=Figure(second.value / first.value) if known_ratio else None,
        )  # fmt: skip
    return rows


def rank_changes(
    a: Computations, b: Computations, matched: MatchedActions, deviations_ns: Int64s
) -> tuple[Int64s, int]:
    """Return the pairs that changed beyond noise, and the number of changes within noise; the largest is first.

    ``deviations_ns``, shape (pairs,), is the standard deviation of each difference from step to step.
    """
    delta_ns = b.duration_ns[matched.second] - a.duration_ns[matched.first]
    changed = np.abs(delta_ns) > SIGMAS * deviations_ns
    order = np.lexsort((b.start_ns[matched.second], -delta_ns, -np.abs(delta_ns)))
    return order[changed[order]], int(np.count_nonzero(delta_ns[~changed]))


def standard_deviations(
    step: Computations, other_steps: Sequence[Computations], name: str, *, pooled: bool
) -> Int64s:
    """Return, per action, the standard deviation of a column over this and other steps; 0 for one step.

    The estimate for a single action from a few steps is poor. Therefore the median deviation of its kind and stage
    is its lower bound.

    ``pooled`` values are medians over all steps.
    """
    values = values_over_steps(step, other_steps, name)
    if len(values) <= 1:
        return np.zeros(len(step), dtype=np.int64)
    known = (~np.isnan(values)).sum(axis=0)
    spread = np.sqrt(np.nansum((values - np.nanmean(values, axis=0)) ** 2, axis=0) / np.maximum(known - 1, 1))
    cells = step.kind.astype(np.int64) * step.placement.stages + step.stage
    spread = np.maximum(spread, group_quantiles(spread, cells)[0][cells])
    deviations: Int64s = (spread * (median_deviation_factor(len(values)) if pooled else 1)).astype(np.int64)
    return deviations


def orders(a: Computations, b: Computations) -> tuple[OrderChange, ...]:
    """Return the first difference of order per rank; empty where stages differ."""
    if not has_same_stages(a, b):
        return ()
    changed = []
    for rank in range(max(a.placement.ranks, b.placement.ranks)):
        rows = [np.flatnonzero(step.rank == rank) for step in (a, b)]
        position = first_difference(a, rows[0], b, rows[1])
        if position is not None:
            first, second = (
                str(step.action(row[position])) if position < row.size else ""
                for step, row in zip((a, b), rows, strict=True)
            )
            changed.append(OrderChange(rank=rank, position=position, first=first, second=second))
    return tuple(changed)


def links(a: Computations, b: Computations) -> dict[tuple[int, int], Link]:
    """Return the messages of either step by sender and receiver."""
    ranks = max(a.placement.ranks, b.placement.ranks)
    pairs = [step.transfers.source.astype(np.int64) * ranks + step.transfers.target for step in (a, b)]
    known = np.unique(np.concatenate(pairs))
    sides = []
    for step, pair in zip((a, b), pairs, strict=True):
        sent, index = step.transfers, np.searchsorted(known, pair)
        sizes = np.zeros(known.size, dtype=np.int64)
        np.add.at(sizes, index, sent.size_bytes)
        counts = np.bincount(index, minlength=known.size).tolist()
        times_ns = sent.duration_ns[sent.observed]
        observed_counts, medians_ns = group_medians(times_ns, index[sent.observed], known.size, absent=nan)
        rates = list(map(_rate, sizes.tolist(), counts, medians_ns))
        sides.append(list(zip(counts, sizes.tolist(), observed_counts, medians_ns, rates, strict=True)))
    rows = {}
    for pair, first, second in zip(known.tolist(), *sides, strict=True):
        count, size_bytes, seen, median_ns, rate = zip(first, second, strict=True)
        source, target = divmod(pair, ranks)
        rows[source, target] = Link(
            source=source, target=target, count=count, size_bytes=size_bytes, seen=seen,
            median_ns=Sides(*median_ns), bytes_per_s=rate,
        )  # fmt: skip
    return rows


def _rate(size_bytes: int, count: int, median_ns: Figure) -> float | None:
    return size_bytes / count / median_ns.value * 1e9 or None if median_ns.value > 0 and count else None


_LONGEST = 6


class Release(Struct, frozen=True, kw_only=True):
    """An action that another action depends on."""

    rank: int
    action: Action
    late_ns: int | None
    """The delay of its end against the first step; None where that step lacks it."""


class Divergence(Struct, frozen=True, kw_only=True):
    """The earliest action that ends early or late by more than the tolerance."""

    rank: int
    action: Action
    start_ns: int
    """Its start in the second step."""
    late_ns: Figure
    """The delay of its end against the first step, from the start of each step."""
    local_ns: int
    """The part from the duration of the action."""
    message_ns: int
    """The part from the transfer of its input; 0 where the same rank released it."""
    idle_ns: int
    """The part between the end of its last dependency and its start."""
    released_ns: int
    """The delay of the action that released it; the four parts sum to the delay."""
    source: int
    """The rank that released it; -1 for none."""
    predecessors: tuple[str, str]
    """The previous action of its rank in both steps; both empty where they are equal."""
    chain: tuple[Release, ...]
    """The chain of actions that released it, the last action first."""


def first_divergence(
    a: Computations,
    b: Computations,
    matched: MatchedActions,
    releases: Releases,
    tolerance: float,
    deviations_ns: Int64s,
) -> Divergence | None:
    """Return the first computation whose end differs by more than the noise and the tolerance of its duration.

    ``releases`` are dependencies of the second step. ``deviations_ns``, shape (pairs,), are standard
    deviations of differences of ends from step to step.
    """
    if not len(matched):
        return None
    late_ns = (b.end_ns[matched.second] - b.begin_ns) - (a.end_ns[matched.first] - a.begin_ns)
    diverges = np.abs(late_ns) > np.maximum(tolerance * a.duration_ns[matched.first], SIGMAS * deviations_ns)
    if not diverges.any():
        return None
    index = int(diverges.argmax())
    i, j, delay_ns = int(matched.first[index]), int(matched.second[index]), int(late_ns[index])
    delays_ns = dict(zip(matched.second.tolist(), late_ns.tolist(), strict=True))
    release = int(releases.position[j])
    local_ns = int((b.end_ns[j] - b.start_ns[j]) - (a.end_ns[i] - a.start_ns[i]))
    released_ns = delays_ns.get(release, 0)
    rest_ns = delay_ns - local_ns - released_ns
    source = int(b.rank[release]) if release >= 0 else -1
    idle_ns = int(b.gap_ns[j] - a.gap_ns[i]) if source not in {-1, int(b.rank[j])} else rest_ns
    chain: list[Release] = []
    while release >= 0 and len(chain) < _LONGEST:
        chain.append(Release(rank=int(b.rank[release]), action=b.action(release), late_ns=delays_ns.get(release)))
        release = int(releases.position[release])
    return Divergence(
        rank=int(b.rank[j]), action=b.action(j), start_ns=int(b.start_ns[j]) - b.begin_ns,
        late_ns=Figure(delay_ns, int(deviations_ns[index]) or None), local_ns=local_ns,
        message_ns=rest_ns - idle_ns,
        idle_ns=idle_ns, released_ns=released_ns, source=source, predecessors=_predecessors((a, i), (b, j)),
        chain=tuple(chain),
    )  # fmt: skip


def _predecessors(*places: tuple[Computations, int]) -> tuple[str, str]:
    """Return the actions before two computations on their ranks; both empty where they are equal."""
    first, second = (
        str(step.action(index - 1)) if index and step.rank[index - 1] == step.rank[index] else "its beginning"
        for step, index in places
    )
    return ("", "") if first == second else (first, second)
