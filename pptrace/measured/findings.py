"""Findings of a diff: changes per stage and action, culprits and the first divergence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pptrace.measured.matching import first_difference, has_same_stages
from pptrace.measured.sides import median_deviation_factor, values_over_steps
from pptrace.measured.waits import find_releases
from pptrace.report.numbers import SIGMAS, Figure, Sides, median_of
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations, Transfers
    from pptrace.measured.matching import MatchedActions
    from pptrace.measured.waits import Releases
    from pptrace.steps.actions import Action
    from pptrace.steps.columns import Int64s

__all__ = [
    "Blame",
    "Change",
    "Culprit",
    "Divergence",
    "KindRow",
    "Link",
    "OrderChange",
    "Release",
    "attribute_slowdown",
    "changes",
    "culprits",
    "first_divergence",
    "kinds",
    "links",
    "orders",
    "spikes",
    "standard_deviations",
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
    start_ns: int = field(metadata={"json": "at_ns"})
    """Its start in the second step."""


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
class Link:
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


def kinds(a: Computations, b: Computations) -> dict[tuple[str, int], KindRow]:
    """Return a row per kind and stage of either step; none where stages are not the same parts of the model."""
    if not has_same_stages(a, b):
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


def changes(a: Computations, b: Computations, matched: MatchedActions, noise_ns: Int64s) -> tuple[Change, ...]:
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
            second_ns=int(b.duration_ns[j]), change_ns=Figure(change, noise or None), start_ns=int(b.start_ns[j]),
        )
        for i, j, noise, change in zip(*(column[order].tolist() for column in columns), strict=True)
    )  # fmt: skip


def standard_deviations(
    step: Computations, others: Sequence[Computations], name: str = "duration_ns", *, pooled: bool = False
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
    values = values_over_steps(step, others, name)
    if len(values) <= 1:
        return np.zeros(len(step), dtype=np.int64)
    known = (~np.isnan(values)).sum(axis=0)
    spread = np.sqrt(np.nansum((values - np.nanmean(values, axis=0)) ** 2, axis=0) / np.maximum(known - 1, 1))
    cells = step.kind.astype(np.int64) * step.placement.stages + step.stage
    for cell in np.unique(cells):
        alike = cells == cell
        spread[alike] = np.maximum(spread[alike], np.median(spread[alike]))
    whole: Int64s = (spread * (median_deviation_factor(len(values)) if pooled else 1)).astype(np.int64)
    return whole


def orders(a: Computations, b: Computations) -> tuple[OrderChange, ...]:
    """Return where each rank's order differs first; nothing where stages are not the same parts of the model."""
    if not has_same_stages(a, b):
        return ()
    changed = []
    for rank in range(max(a.placement.ranks, b.placement.ranks)):
        rows = [[str(one.action(i)) for i in np.flatnonzero(one.rank == rank).tolist()] for one in (a, b)]
        position = first_difference(*rows)
        if position is not None:
            first, second = (row[position] if position < len(row) else "" for row in rows)
            changed.append(OrderChange(rank=rank, position=position, first=first, second=second))
    return tuple(changed)


def links(a: Computations, b: Computations) -> dict[tuple[int, int], Link]:
    """Return the messages of either step by sender and receiver."""
    sides = (a.transfers, b.transfers)
    pairs = sorted({(int(s), int(t)) for one in sides for s, t in zip(one.source, one.target, strict=True)})
    return {(source, target): _compare_link(source, target, *sides) for source, target in pairs}


def _compare_link(source: int, target: int, *sides: Transfers) -> Link:
    sent = [(one.source == source) & (one.target == target) for one in sides]
    seen = [mask & one.observed for one, mask in zip(sides, sent, strict=True)]
    count = _both(int(mask.sum()) for mask in sent)
    size = _both(int(one.size_bytes[mask].sum()) for one, mask in zip(sides, sent, strict=True))
    median = Sides(*(median_of(one.duration_ns[mask]) for one, mask in zip(sides, seen, strict=True)))
    return Link(
        source=source, target=target, count=count, size_bytes=size, median_ns=median,
        seen=_both(int(mask.sum()) for mask in seen), bytes_per_s=_both(map(_rate, size, count, median)),
    )  # fmt: skip


def _rate(size_bytes: int, count: int, median_ns: Figure) -> float | None:
    return size_bytes / count / median_ns.value * 1e9 or None if median_ns.value > 0 and count else None


def _both(values: Iterable[T]) -> tuple[T, T]:
    first, second = values
    return first, second


_FEWEST = 3
_OUTLYING = 5
"""From how many median deviations above the median a single action is a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One slow or fast thing."""

    kind: str = field(metadata={"json": "sort"})
    """``drift`` (everything), ``slow rank``, ``slow stage``, ``slow network`` (all links), ``slow link``;
    ``fast`` for slow likewise; ``spikes``."""
    what: str
    """Which."""
    share: Figure
    """By how much its times are longer, of 1; of spikes, 0."""
    total_ns: int
    """How much time that is in sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """By which share times are longer, 0 for none: medians over actions, what is common taken off."""

    common: Figure
    """What ranks have in common."""
    ranks: Mapping[int, Figure]
    """Of each rank beyond that."""
    stages: Mapping[tuple[int, int], Figure]
    """Of each rank and stage of it beyond that."""
    links: Mapping[tuple[int, int], Figure]
    """Of messages by sender and receiver, where enough were seen on both sides, beyond what all have in common."""
    network: Figure
    """What all of those have in common at least."""
    before_ns: Mapping[tuple[int, int], float]
    """What each rank and stage took in the first step."""


def attribute_slowdown(
    a: Computations, b: Computations, matched: MatchedActions, links: Mapping[tuple[int, int], Link]
) -> Blame:
    """Return by which share everything is slower."""
    network, slower = _network(links)
    took = a.duration_ns[matched.first] > 0
    i, j = matched.first[took], matched.second[took]
    if i.size < _FEWEST:
        return Blame(common=Figure(0.0), ranks={}, stages={}, links=slower, network=network, before_ns={})
    before = a.duration_ns[i].astype(np.float64)
    ratio = b.duration_ns[j] / before
    rank, stage = b.rank[j], b.stage[j]
    ranks = np.unique(rank).tolist()
    common = _common([float(np.median(ratio[rank == one])) for one in ranks])
    pairs = sorted(set(zip(rank.tolist(), stage.tolist(), strict=True)))
    masks = {pair: (rank == pair[0]) & (stage == pair[1]) for pair in pairs}
    return Blame(
        common=Figure(common - 1), ranks={one: _beyond(ratio[rank == one], common) for one in ranks},
        stages={pair: _beyond(ratio[mask], common) for pair, mask in masks.items()}, links=slower, network=network,
        before_ns={pair: float(before[mask].sum()) for pair, mask in masks.items()},
    )  # fmt: skip


def culprits(blame: Blame, links: Mapping[tuple[int, int], Link], tolerance: float) -> list[Culprit]:
    """Return what is slower or faster throughout by more than the tolerance and the steps' own noise.

    A stage is blamed where its rank's other stages are not as slow, else the rank.
    """

    def off(share: Figure) -> bool:
        return abs(share.value) > tolerance

    before = blame.before_ns
    blamed = [_culprit("drift", "all ranks", blame.common, sum(before.values()))] if off(blame.common) else []
    for rank, share in blame.ranks.items():
        stages = [pair for pair in before if pair[0] == rank]
        slow = [pair for pair in stages if off(blame.stages[pair])]
        if slow == stages:
            which = "" if len(stages) > 1 else f" (its one stage, {stages[0][1]})"
            blamed.append(_culprit("rank", f"rank {rank}{which}", share, sum(before[pair] for pair in stages)))
        else:
            blamed += [
                _culprit("stage", f"stage {pair[1]} on rank {rank}", blame.stages[pair], before[pair])
                for pair in slow
            ]
    if off(blame.network):
        took = sum(links[ends].median_ns.first.value * links[ends].count[1] for ends in blame.links)
        blamed.append(_culprit("network", f"all {len(blame.links)} ways between ranks", blame.network, took))
    blamed += [
        _link_culprit(links[ends], share, blame.network) for ends, share in blame.links.items() if off(share)
    ]
    return [one for one in blamed if not one.share.is_noise]


def _culprit(kind: str, what: str, share: Figure, before_ns: float) -> Culprit:
    kind = kind if kind == "drift" else f"{_speed(share)} {kind}"
    return Culprit(kind=kind, what=what, share=share, total_ns=int(share.value * before_ns))


def _link_culprit(link: Link, share: Figure, network: Figure) -> Culprit:
    longer_ns = link.median_ns.second.value - link.median_ns.first.value * (1 + network.value)
    return Culprit(
        kind=f"{_speed(share)} link", what=f"rank {link.source} to rank {link.target}", share=share,
        total_ns=int(longer_ns) * link.count[1],
    )  # fmt: skip


def _network(links: Mapping[tuple[int, int], Link]) -> tuple[Figure, dict[tuple[int, int], Figure]]:
    """Return by which share all links are slower or all are faster, and each of them beyond that."""
    ratio = {
        ends: link.median_ns.second.value / link.median_ns.first.value
        for ends, link in links.items()
        if min(link.seen) >= _FEWEST and link.median_ns.first.value > 0
    }
    common = 1.0
    if len(ratio) > 1 and (min(ratio.values()) > 1 or max(ratio.values()) < 1):
        common = min(ratio.values(), key=_distance_from_equal)
    return Figure(common - 1), {ends: _less(one, common) for ends, one in ratio.items()}


def spikes(
    a: Computations, b: Computations, matched: MatchedActions, tolerance: float, noise_ns: Int64s
) -> list[Culprit]:
    """Return ranks with single actions that stand out of their kind's on their stage.

    They do so by more than the tolerance of their own time and than the steps' own noise.
    """
    i, j = matched.first, matched.second
    allowed = np.maximum(tolerance * a.duration_ns[i], SIGMAS * noise_ns)
    change = (b.duration_ns[j] - a.duration_ns[i]).astype(np.float64)
    rank, cells = b.rank[j], b.kind[j].astype(np.int64) * b.placement.stages + b.stage[j]
    out = np.zeros(change.size)
    for cell in np.unique(cells) if change.size >= _FEWEST else ():
        alike = cells == cell
        beyond = change[alike] - np.median(change[alike])
        least = np.maximum(_OUTLYING * max(float(np.median(np.abs(beyond))), 1000), allowed[alike])
        out[alike] = np.where(beyond > least, beyond, 0)
    return [_spike(one, out[rank == one]) for one in np.unique(rank[out > 0]).tolist()]


def _spike(rank: int, out: NDArray[np.float64]) -> Culprit:
    count = int((out > 0).sum())
    what = f"{count} action{'s' if count > 1 else ''} of rank {rank}"
    return Culprit(kind="spikes", what=what, share=Figure(0.0), total_ns=int(out.sum()))


def _common(ratios: Sequence[float]) -> float:
    """Return the middle rank's ratio; of two, as where one of two ranks is slow, the one nearer to 1."""
    ordered = sorted(ratios)
    return min(ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2], key=_distance_from_equal)


def _distance_from_equal(ratio: float) -> float:
    return abs(ratio - 1)


def _beyond(ratio: NDArray[np.float64], common: float) -> Figure:
    return _less(float(np.median(ratio)), common)


def _less(ratio: float, common: float) -> Figure:
    return Figure(ratio / common - 1 if common else 0.0)


def _speed(share: Figure) -> str:
    return "slow" if share.value > 0 else "fast"


_LONGEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An action that released another."""

    rank: int
    """Its rank."""
    action: Action
    """What it is."""
    late_ns: int | None
    """By how much it ended later than in the first step; None where that lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The earliest action that is off by more than the tolerance."""

    rank: int
    """Its rank."""
    action: Action
    """What it is."""
    start_ns: int = field(metadata={"json": "at_ns"})
    """Its start in the second step."""
    late_ns: Figure
    """By how much it ended later than in the first, both steps starting together."""
    local_ns: int = field(metadata={"json": "own_ns"})
    """The part of that which is its own duration."""
    message_ns: int
    """The part that its input took longer from the rank that released it; 0 where its own rank did."""
    idle_ns: int
    """The part that its rank left between its release and its start."""
    released_ns: int
    """By how much what released it ended later than in the first; these four sum to the lateness."""
    source: int
    """The rank that released it; -1 for none."""
    predecessors: tuple[str, str] = field(metadata={"json": "behind"})
    """What ran before it on its rank in both steps, where that is not the same; both empty where it is."""
    chain: tuple[Release, ...]
    """What released it, one after another, the last one first."""


def first_divergence(
    a: Computations, b: Computations, matched: MatchedActions, tolerance: float, noise_ns: Int64s
) -> Divergence | None:
    """Return the first computation that ends off by more than noise, and than the tolerance of its own time.

    Args:
        a: the first step.
        b: the second.
        matched: the pairs.
        tolerance: which share of an action's time counts as equal.
        noise_ns: shape (pairs,): how much the difference of the ends varies from step to step.

    Returns:
        None where all end in time.
    """
    if not len(matched):
        return None
    begin_a, begin_b = int(a.start_ns.min()), int(b.start_ns.min())
    late = (b.end_ns[matched.second] - begin_b) - (a.end_ns[matched.first] - begin_a)
    allowed = np.maximum(tolerance * a.duration_ns[matched.first], SIGMAS * noise_ns)
    off = np.abs(late) > allowed
    if not off.any():
        return None
    at = int(off.argmax())
    i, j = int(matched.first[at]), int(matched.second[at])
    ended = dict(zip(matched.second.tolist(), late.tolist(), strict=True))
    releases = find_releases(b)
    by = releases.of(j)
    local_ns = int((b.end_ns[j] - b.start_ns[j]) - (a.end_ns[i] - a.start_ns[i]))
    released = ended.get(by, 0) if by is not None else 0
    rest = int(late[at]) - local_ns - released
    source = -1 if by is None else int(b.rank[by])
    idle = int(b.gap_ns[j] - a.gap_ns[i]) if source not in {-1, int(b.rank[j])} else rest
    return Divergence(
        rank=int(b.rank[j]), action=b.action(j), start_ns=int(b.start_ns[j]) - begin_b,
        late_ns=Figure(int(late[at]), int(noise_ns[at]) or None),
        local_ns=local_ns, message_ns=rest - idle, idle_ns=idle, released_ns=released, source=source,
        predecessors=_predecessors((a, i), (b, j)), chain=tuple(_chain(releases, j, ended)),
    )  # fmt: skip


def _predecessors(*places: tuple[Computations, int]) -> tuple[str, str]:
    """Return what ran before two computations on their ranks, where that is not the same."""
    first, second = (
        str(step.action(at - 1)) if at and step.rank[at - 1] == step.rank[at] else "its beginning"
        for step, at in places
    )
    return ("", "") if first == second else (first, second)


def _chain(releases: Releases, index: int, ended: Mapping[int, int]) -> Iterator[Release]:
    """Yield what released an action, link by link."""
    step, at = releases.step, releases.of(index)
    for _ in range(_LONGEST):
        if at is None:
            return
        yield Release(rank=int(step.rank[at]), action=step.action(at), late_ns=ended.get(at))
        at = releases.of(at)
