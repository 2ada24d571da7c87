"""Who is to blame: a rank, a stage or a way that is slow throughout, or single actions that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.figure import SIGMAS, Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.analysis.diff.findings import Way
    from pptrace.analysis.steps.match import Matched
    from pptrace.analysis.steps.times import Performed
    from pptrace.model.columns import Int64s

__all__ = ["Blame", "Culprit", "blame_of", "culprits", "spikes"]

_FEWEST = 3
_OUTLYING = 5
"""From how many median deviations above the median a single action is a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One slow or fast thing."""

    sort: str
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
    ways: Mapping[tuple[int, int], Figure]
    """Of messages by sender and receiver, where enough were seen on both sides, beyond what all have in common."""
    network: Figure
    """What all of those have in common at least."""
    before_ns: Mapping[tuple[int, int], float]
    """What each rank and stage took in the first step."""


def blame_of(a: Performed, b: Performed, matched: Matched, ways: Mapping[tuple[int, int], Way]) -> Blame:
    """Return by which share everything is slower."""
    network, slower = _network(ways)
    took = a.duration_ns[matched.first] > 0
    i, j = matched.first[took], matched.second[took]
    if i.size < _FEWEST:
        return Blame(common=Figure(0.0), ranks={}, stages={}, ways=slower, network=network, before_ns={})
    before = a.duration_ns[i].astype(np.float64)
    ratio = b.duration_ns[j] / before
    rank, stage = b.rank[j], b.stage[j]
    ranks = np.unique(rank).tolist()
    common = _common([float(np.median(ratio[rank == one])) for one in ranks])
    pairs = sorted(set(zip(rank.tolist(), stage.tolist(), strict=True)))
    masks = {pair: (rank == pair[0]) & (stage == pair[1]) for pair in pairs}
    return Blame(
        common=Figure(common - 1), ranks={one: _beyond(ratio[rank == one], common) for one in ranks},
        stages={pair: _beyond(ratio[mask], common) for pair, mask in masks.items()}, ways=slower, network=network,
        before_ns={pair: float(before[mask].sum()) for pair, mask in masks.items()},
    )  # fmt: skip


def culprits(blame: Blame, ways: Mapping[tuple[int, int], Way], tolerance: float) -> list[Culprit]:
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
        took = sum(ways[ends].median_ns.first.value * ways[ends].count[1] for ends in blame.ways)
        blamed.append(_culprit("network", f"all {len(blame.ways)} ways between ranks", blame.network, took))
    blamed += [_way(ways[ends], share, blame.network) for ends, share in blame.ways.items() if off(share)]
    return [one for one in blamed if not one.share.is_noise]


def _culprit(sort: str, what: str, share: Figure, before_ns: float) -> Culprit:
    sort = sort if sort == "drift" else f"{_speed(share)} {sort}"
    return Culprit(sort=sort, what=what, share=share, total_ns=int(share.value * before_ns))


def _way(way: Way, share: Figure, network: Figure) -> Culprit:
    longer_ns = way.median_ns.second.value - way.median_ns.first.value * (1 + network.value)
    return Culprit(
        sort=f"{_speed(share)} link", what=f"rank {way.source} to rank {way.target}", share=share,
        total_ns=int(longer_ns) * way.count[1],
    )  # fmt: skip


def _network(ways: Mapping[tuple[int, int], Way]) -> tuple[Figure, dict[tuple[int, int], Figure]]:
    """Return by which share all ways are slower or all are faster, and each of them beyond that."""
    ratio = {
        ends: way.median_ns.second.value / way.median_ns.first.value
        for ends, way in ways.items()
        if min(way.seen) >= _FEWEST and way.median_ns.first.value > 0
    }
    common = 1.0
    if len(ratio) > 1 and (min(ratio.values()) > 1 or max(ratio.values()) < 1):
        common = min(ratio.values(), key=_distance_from_equal)
    return Figure(common - 1), {ends: _less(one, common) for ends, one in ratio.items()}


def spikes(a: Performed, b: Performed, matched: Matched, tolerance: float, noise_ns: Int64s) -> list[Culprit]:
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
    return Culprit(sort="spikes", what=what, share=Figure(0.0), total_ns=int(out.sum()))


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
