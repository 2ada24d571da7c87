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

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One action with another duration."""

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
    """Their sizes in sum."""
    median_ns: Sides
    """The median of observed transfer times; unknown without any."""
    seen: tuple[int, int]
    """The number of observed messages."""
    bytes_per_s: tuple[float | None, float | None]
    """Rate of a median message; None where that is unknown."""


def kinds(a: Computations, b: Computations) -> dict[tuple[str, int], KindRow]:
    """Return a row per kind and stage of either step; empty where stages differ."""
    if not has_same_stages(a, b):
        return {}
    pairs = sorted({pair for step in (a, b) for pair in zip(step.kind.tolist(), step.stage.tolist(), strict=True)})
    rows = {}
    for kind, stage in pairs:
        first, second = (step.duration_ns[(step.kind == kind) & (step.stage == stage)] for step in (a, b))
        median = Sides(median_of(first, absent=0), median_of(second, absent=0))
        before, after = median.first.value, median.second.value
        rows[Kind(kind).name, stage] = KindRow(
            kind=Kind(kind).name, stage=stage, count=(first.size, second.size), median_ns=median,
            ratio=Figure(after / before) if before and after else None,
        )  # fmt: skip
    return rows


def changes(a: Computations, b: Computations, matched: MatchedActions, noise_ns: Int64s) -> tuple[Change, ...]:
    """Return every matched action, the largest change first.

    Args:
        a: the first step.
        b: the second.
        matched: the pairs.
        noise_ns: shape (pairs,): the deviation of each difference from step to step.
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

    A few steps estimate the deviation of a single action badly. The median deviation of its kind and stage is its
    lower bound.

    Args:
        step: the step.
        others: the other steps of its side.
        name: the column.
        pooled: whether values are medians over all steps.
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
    """Return the first difference of order per rank; empty where stages differ."""
    if not has_same_stages(a, b):
        return ()
    changed = []
    for rank in range(max(a.placement.ranks, b.placement.ranks)):
        rows = [[str(step.action(i)) for i in np.flatnonzero(step.rank == rank).tolist()] for step in (a, b)]
        position = first_difference(*rows)
        if position is not None:
            first, second = (row[position] if position < len(row) else "" for row in rows)
            changed.append(OrderChange(rank=rank, position=position, first=first, second=second))
    return tuple(changed)


def links(a: Computations, b: Computations) -> dict[tuple[int, int], Link]:
    """Return the messages of either step by sender and receiver."""
    sides = (a.transfers, b.transfers)
    pairs = sorted({pair for one in sides for pair in zip(one.source.tolist(), one.target.tolist(), strict=True)})
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
"""Median deviations above the median from which a single action is a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A slow or fast rank, stage or link, or outliers of a rank."""

    kind: str = field(metadata={"json": "sort"})
    """``drift`` (everything), ``slow rank``, ``slow stage``, ``slow network`` (all links), ``slow link``;
    ``fast`` for slow likewise; ``spikes``."""
    what: str
    """The name of the rank, stage or link."""
    share: Figure
    """The relative change of its times; 0 for spikes."""
    total_ns: int
    """The change of its times in sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Relative slowdowns: medians over actions, divided by the common slowdown."""

    common: Figure
    """The common slowdown of ranks."""
    ranks: Mapping[int, Figure]
    """The slowdown of each rank beyond the common one."""
    stages: Mapping[tuple[int, int], Figure]
    """The slowdown of each stage of a rank beyond the common one."""
    links: Mapping[tuple[int, int], Figure]
    """The slowdown of links beyond the common one, by sender and receiver, with enough observed messages."""
    network: Figure
    """The common slowdown of links."""
    before_ns: Mapping[tuple[int, int], float]
    """The time of each rank and stage in the first step."""


def attribute_slowdown(
    a: Computations, b: Computations, matched: MatchedActions, links: Mapping[tuple[int, int], Link]
) -> Blame:
    """Return the slowdowns of ranks, stages and links."""
    network, slower = _network(links)
    took = a.duration_ns[matched.first] > 0
    i, j = matched.first[took], matched.second[took]
    if i.size < _FEWEST:
        return Blame(common=Figure(0.0), ranks={}, stages={}, links=slower, network=network, before_ns={})
    before = a.duration_ns[i].astype(np.float64)
    ratio = b.duration_ns[j] / before
    rank, stage = b.rank[j], b.stage[j]
    ranks = np.unique(rank).tolist()
    common = _common([float(np.median(ratio[rank == number])) for number in ranks])
    pairs = sorted(set(zip(rank.tolist(), stage.tolist(), strict=True)))
    masks = {pair: (rank == pair[0]) & (stage == pair[1]) for pair in pairs}
    return Blame(
        common=Figure(common - 1), ranks={number: _beyond(ratio[rank == number], common) for number in ranks},
        stages={pair: _beyond(ratio[mask], common) for pair, mask in masks.items()}, links=slower, network=network,
        before_ns={pair: float(before[mask].sum()) for pair, mask in masks.items()},
    )  # fmt: skip


def culprits(blame: Blame, links: Mapping[tuple[int, int], Link], tolerance: float) -> list[Culprit]:
    """Return ranks, stages and links whose slowdown exceeds the tolerance and the noise.

    A rank counts where all its stages are slow, else the slow stages.
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
    return [culprit for culprit in blamed if not culprit.share.is_noise]


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
    """Return the common slowdown of links, and the slowdown of each link beyond it."""
    ratio = {
        ends: link.median_ns.second.value / link.median_ns.first.value
        for ends, link in links.items()
        if min(link.seen) >= _FEWEST and link.median_ns.first.value > 0
    }
    common = 1.0
    if len(ratio) > 1 and (min(ratio.values()) > 1 or max(ratio.values()) < 1):
        common = min(ratio.values(), key=_distance_from_equal)
    return Figure(common - 1), {ends: _less(value, common) for ends, value in ratio.items()}


def spikes(
    a: Computations, b: Computations, matched: MatchedActions, tolerance: float, noise_ns: Int64s
) -> list[Culprit]:
    """Return ranks with outliers among actions of one kind and stage, beyond the tolerance and the noise."""
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
    return [_spike(number, out[rank == number]) for number in np.unique(rank[out > 0]).tolist()]


def _spike(rank: int, out: NDArray[np.float64]) -> Culprit:
    count = int((out > 0).sum())
    what = f"{count} action{'s' if count > 1 else ''} of rank {rank}"
    return Culprit(kind="spikes", what=what, share=Figure(0.0), total_ns=int(out.sum()))


def _common(ratios: Sequence[float]) -> float:
    """Return the median ratio; of two middle ones, the one nearer to 1."""
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
    """An action that another one depends on."""

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
    """The part from its own duration."""
    message_ns: int
    """The part from the transfer of its input; 0 where its own rank released it."""
    idle_ns: int
    """The part between its release and its start."""
    released_ns: int
    """The delay of the action that released it; the four parts sum to the delay."""
    source: int
    """The rank that released it; -1 for none."""
    predecessors: tuple[str, str] = field(metadata={"json": "behind"})
    """The previous action of its rank in both steps; both empty where it is the same."""
    chain: tuple[Release, ...]
    """The actions that released it, one after another, the last one first."""


def first_divergence(
    a: Computations, b: Computations, matched: MatchedActions, tolerance: float, noise_ns: Int64s
) -> Divergence | None:
    """Return the first computation whose end differs by more than the noise and the tolerance of its duration.

    Args:
        a: the first step.
        b: the second.
        matched: the pairs.
        tolerance: the relative tolerance.
        noise_ns: shape (pairs,): the deviation of the difference of ends from step to step.
    """
    if not len(matched):
        return None
    begin_a, begin_b = int(a.start_ns.min()), int(b.start_ns.min())
    late = (b.end_ns[matched.second] - begin_b) - (a.end_ns[matched.first] - begin_a)
    allowed = np.maximum(tolerance * a.duration_ns[matched.first], SIGMAS * noise_ns)
    off = np.abs(late) > allowed
    if not off.any():
        return None
    index = int(off.argmax())
    i, j = int(matched.first[index]), int(matched.second[index])
    ended = dict(zip(matched.second.tolist(), late.tolist(), strict=True))
    releases = find_releases(b)
    by = releases.of(j)
    local_ns = int((b.end_ns[j] - b.start_ns[j]) - (a.end_ns[i] - a.start_ns[i]))
    released = ended.get(by, 0) if by is not None else 0
    rest = int(late[index]) - local_ns - released
    source = -1 if by is None else int(b.rank[by])
    idle = int(b.gap_ns[j] - a.gap_ns[i]) if source not in {-1, int(b.rank[j])} else rest
    return Divergence(
        rank=int(b.rank[j]), action=b.action(j), start_ns=int(b.start_ns[j]) - begin_b,
        late_ns=Figure(int(late[index]), int(noise_ns[index]) or None),
        local_ns=local_ns, message_ns=rest - idle, idle_ns=idle, released_ns=released, source=source,
        predecessors=_predecessors((a, i), (b, j)), chain=tuple(_chain(releases, j, ended)),
    )  # fmt: skip


def _predecessors(*places: tuple[Computations, int]) -> tuple[str, str]:
    """Return the actions before two computations on their ranks; both empty where they are the same."""
    first, second = (
        str(step.action(index - 1)) if index and step.rank[index - 1] == step.rank[index] else "its beginning"
        for step, index in places
    )
    return ("", "") if first == second else (first, second)


def _chain(releases: Releases, index: int, ended: Mapping[int, int]) -> Iterator[Release]:
    """Yield the actions that released an action, one after another."""
    step, position = releases.step, releases.of(index)
    for _ in range(_LONGEST):
        if position is None:
            return
        yield Release(rank=int(step.rank[position]), action=step.action(position), late_ns=ended.get(position))
        position = releases.of(position)
