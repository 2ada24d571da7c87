"""Findings of a diff: changes per stage and action, culprits and the first divergence."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from pptrace.measured.computations import group_quantiles
from pptrace.measured.matching import first_difference, has_same_stages
from pptrace.measured.sides import group_medians, median_deviation_factor, values_over_steps
from pptrace.report.numbers import SIGMAS, Figure, Sides
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations
    from pptrace.measured.dependencies import Releases
    from pptrace.measured.matching import MatchedActions
    from pptrace.steps.actions import Action
    from pptrace.steps.columns import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """All actions of one kind on one stage."""

    kind: str
    """The kind."""
    stage: int
    """The stage."""
    count: tuple[int, int]
    """Their number on both sides."""
    median_ns: Sides
    """The median of their durations; 0 without actions."""
    ratio: Figure | None
    """The second median over the first; None where a side has none."""

    def is_equal(self, tolerance: float) -> bool:
        """Return whether the medians are equal within a relative tolerance."""
        return self.ratio is not None and abs(self.ratio.value - 1) <= tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An action with a changed duration."""

    rank: int
    """Its rank."""
    action: Action
    """The action."""
    first_ns: int
    """Its duration in the first step."""
    second_ns: int
    """Its duration in the second step."""
    change_ns: Figure
    """The second duration minus the first."""
    start_ns: int = field(metadata={"json": "at_ns"})
    """Its start in the second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChange:
    """The first difference of order on a rank."""

    rank: int
    """The rank."""
    position: int
    """The number of equal actions before it."""
    first: str
    """The next action in the first step; empty at its end."""
    second: str
    """The next action in the second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """All messages from one rank to another."""

    source: int
    """The sender."""
    target: int
    """The receiver."""
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


def standard_deviations(step: Computations, others: Sequence[Computations], name: str, *, pooled: bool) -> Int64s:
    """Return, per action, the standard deviation of a column over this and other steps; 0 for one step.

    The estimate for a single action from a few steps is poor. Therefore the median deviation of its kind and stage
    is its lower bound.

    ``pooled`` values are medians over all steps.
    """
    values = values_over_steps(step, others, name)
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


_FEWEST = 3
_OUTLIER_FACTOR = 5
"""Median deviations above the median from which a single action is a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A slow or fast rank, stage or link, or outliers of a rank."""

    kind: str = field(metadata={"json": "sort"})
    """``drift`` (everything), ``slow rank``, ``slow stage``, ``slow network`` (all links), ``slow link``;
    the same with ``fast``; ``spikes``."""
    what: str
    """The name of the rank, stage or link."""
    share: Figure
    """The relative change of its times; 0 for spikes."""
    total_ns: int
    """The total change of its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Relative slowdowns: medians over actions, divided by the common slowdown."""

    common: Figure
    """The common slowdown of ranks: the median; of two middle values, the value nearer to 0."""
    ranks: Mapping[int, Figure]
    """The slowdown of each rank beyond the common slowdown."""
    stages: Mapping[tuple[int, int], Figure]
    """The slowdown of each stage of a rank beyond the common slowdown."""
    links: Mapping[tuple[int, int], Figure]
    """The slowdown of links with enough observed messages beyond ``network``, by sender and receiver."""
    network: Figure
    """The common slowdown of links."""
    before_ns: Mapping[tuple[int, int], float]
    """The time of each rank and stage in the first step."""


def attribute_slowdown(
    a: Computations, b: Computations, matched: MatchedActions, links: Mapping[tuple[int, int], Link]
) -> Blame:
    """Return the slowdowns of ranks, stages and links."""
    network, link_slowdowns = _network(links)
    nonzero = a.duration_ns[matched.first] > 0
    i, j = matched.first[nonzero], matched.second[nonzero]
    if i.size < _FEWEST:
        return Blame(common=Figure(0.0), ranks={}, stages={}, links=link_slowdowns, network=network, before_ns={})
    before = a.duration_ns[i].astype(np.float64)
    ratio = b.duration_ns[j] / before
    ranks, by_rank = np.unique(b.rank[j], return_inverse=True)
    cells, by_cell = np.unique(b.rank[j].astype(np.int64) * b.placement.stages + b.stage[j], return_inverse=True)
    pairs = [divmod(cell, b.placement.stages) for cell in cells.tolist()]
    (rank_ratios,), (cell_ratios,) = group_quantiles(ratio, by_rank), group_quantiles(ratio, by_cell)
    ordered = sorted(rank_ratios.tolist())
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    common = min(middle, key=_distance_from_equal)
    return Blame(
        common=Figure(common - 1),
        ranks=dict(zip(ranks.tolist(), _relative_slowdowns(rank_ratios, common), strict=True)),
        stages=dict(zip(pairs, _relative_slowdowns(cell_ratios, common), strict=True)),
        links=link_slowdowns, network=network,
        before_ns=dict(zip(pairs, np.bincount(by_cell, before).tolist(), strict=True)),
    )  # fmt: skip


def culprits(blame: Blame, links: Mapping[tuple[int, int], Link], tolerance: float) -> list[Culprit]:
    """Return ranks, stages and links whose slowdown exceeds the tolerance and the noise.

    A rank is reported if all its stages are slow; otherwise each slow stage is reported.
    """

    def exceeds(share: Figure) -> bool:
        return abs(share.value) > tolerance

    before = blame.before_ns
    blamed = []
    if exceeds(blame.common):
        blamed.append(_culprit("drift", "all ranks", blame.common, blame.common.value * sum(before.values())))
    for rank, share in blame.ranks.items():
        stages = [pair for pair in before if pair[0] == rank]
        slow = [pair for pair in stages if exceeds(blame.stages[pair])]
        if slow == stages:
            stage_note = "" if len(stages) > 1 else f" (its one stage, {stages[0][1]})"
            before_ns = sum(before[pair] for pair in stages)
            blamed.append(_culprit("rank", f"rank {rank}{stage_note}", share, share.value * before_ns))
        else:
            blamed += [
                _culprit("stage", f"stage {pair[1]} on rank {rank}", share, share.value * before[pair])
                for pair, share in ((pair, blame.stages[pair]) for pair in slow)
            ]
    if exceeds(blame.network):
        what = f"all {len(blame.links)} links between ranks"
        before_ns = sum(links[ends].median_ns.first.value * links[ends].count[1] for ends in blame.links)
        blamed.append(_culprit("network", what, blame.network, blame.network.value * before_ns))
    for (source, target), share in blame.links.items():
        if exceeds(share):
            link = links[source, target]
            longer_ns = link.median_ns.second.value - link.median_ns.first.value * (1 + blame.network.value)
            what = f"rank {source} to rank {target}"
            blamed.append(_culprit("link", what, share, int(longer_ns) * link.count[1]))
    return [culprit for culprit in blamed if not culprit.share.is_noise]


def _culprit(kind: str, what: str, share: Figure, total_ns: float) -> Culprit:
    speed = "" if kind == "drift" else "slow " if share.value > 0 else "fast "
    return Culprit(kind=f"{speed}{kind}", what=what, share=share, total_ns=int(total_ns))


def _network(links: Mapping[tuple[int, int], Link]) -> tuple[Figure, dict[tuple[int, int], Figure]]:
    """Return the common slowdown of links, and the additional slowdown of each link."""
    ratio = {
        ends: link.median_ns.second.value / link.median_ns.first.value
        for ends, link in links.items()
        if min(link.seen) >= _FEWEST and link.median_ns.first.value > 0
    }
    common = 1.0
    if len(ratio) > 1 and (min(ratio.values()) > 1 or max(ratio.values()) < 1):
        common = min(ratio.values(), key=_distance_from_equal)
    slowdowns = _relative_slowdowns(np.array(list(ratio.values()), dtype=np.float64), common)
    return Figure(common - 1), dict(zip(ratio, slowdowns, strict=True))


def spikes(
    a: Computations, b: Computations, matched: MatchedActions, tolerance: float, deviations_ns: Int64s
) -> list[Culprit]:
    """Return ranks with outliers among actions of one kind and stage, beyond the tolerance and the noise."""
    i, j = matched.first, matched.second
    if i.size < _FEWEST:
        return []
    change_ns = (b.duration_ns[j] - a.duration_ns[i]).astype(np.float64)
    cells = np.unique(b.kind[j].astype(np.int64) * b.placement.stages + b.stage[j], return_inverse=True)[1]
    deviation_ns = change_ns - group_quantiles(change_ns, cells)[0][cells]
    median_deviation_ns = group_quantiles(np.abs(deviation_ns), cells)[0][cells]
    allowed_ns = np.maximum(tolerance * a.duration_ns[i], SIGMAS * deviations_ns)
    is_spike = deviation_ns > np.maximum(_OUTLIER_FACTOR * np.maximum(median_deviation_ns, 1000), allowed_ns)
    counts = np.bincount(b.rank[j][is_spike])
    total_ns = np.bincount(b.rank[j][is_spike], deviation_ns[is_spike])
    return [
        Culprit(
            kind="spikes", what=f"{counts[rank]} action{'s' if counts[rank] > 1 else ''} of rank {rank}",
            share=Figure(0.0), total_ns=int(total_ns[rank]),
        )
        for rank in np.flatnonzero(counts).tolist()
    ]  # fmt: skip


def _distance_from_equal(ratio: float) -> float:
    return abs(ratio - 1)


def _relative_slowdowns(ratios: NDArray[np.float64], common: float) -> list[Figure]:
    """Return the slowdowns beyond a common slowdown."""
    return [Figure(share) for share in (ratios / common - 1 if common else np.zeros_like(ratios)).tolist()]


_LONGEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An action that another action depends on."""

    rank: int
    """Its rank."""
    action: Action
    """The action."""
    late_ns: int | None
    """The delay of its end against the first step; None where that step lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The earliest action that ends early or late by more than the tolerance."""

    rank: int
    """Its rank."""
    action: Action
    """The action."""
    start_ns: int = field(metadata={"json": "at_ns"})
    """Its start in the second step."""
    late_ns: Figure
    """The delay of its end against the first step, from the start of each step."""
    local_ns: int = field(metadata={"json": "own_ns"})
    """The part from the duration of the action."""
    message_ns: int
    """The part from the transfer of its input; 0 where the same rank released it."""
    idle_ns: int
    """The part between the end of its last dependency and its start."""
    released_ns: int
    """The delay of the action that released it; the four parts sum to the delay."""
    source: int
    """The rank that released it; -1 for none."""
    predecessors: tuple[str, str] = field(metadata={"json": "behind"})
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
