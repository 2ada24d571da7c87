"""Who is to blame: a rank, a stage or a way that is slow throughout, or single actions that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.diff.replicates import SIGMAS, within_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from pptrace.analysis.diff.findings import Way
    from pptrace.analysis.steps.match import Matched
    from pptrace.analysis.steps.times import Performed
    from pptrace.model.columns import Int64s

    Varies: TypeAlias = Callable[[Callable[["Blame"], float | None]], float | None]

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
    share: float
    """By how much its times are longer, of 1; of spikes, 0."""
    total_ns: int
    """How much time that is in sum."""
    share_varies: float | None = None
    """Standard deviation of the share from step to step; None where each side has one step, or of spikes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """By which share times are longer, 0 for none: medians over actions, what is common taken off."""

    common: float = 0.0
    """What ranks have in common."""
    ranks: Mapping[int, float]
    """Of each rank beyond that."""
    stages: Mapping[tuple[int, int], float]
    """Of each rank and stage of it beyond that."""
    ways: Mapping[tuple[int, int], float]
    """Of messages by sender and receiver, where enough were seen on both sides, beyond what all have in common."""
    network: float = 0.0
    """What all of those have in common at least."""
    before_ns: Mapping[tuple[int, int], float]
    """What each rank and stage took in the first step."""


def blame_of(a: Performed, b: Performed, matched: Matched, ways: tuple[Way, ...]) -> Blame:
    """Return by which share everything is slower."""
    network, slower = _network(ways)
    i, j = matched.first, matched.second
    good = a.duration_ns[i] > 0
    i, j = i[good], j[good]
    if i.size < _FEWEST:
        return Blame(ranks={}, stages={}, ways=slower, network=network, before_ns={})
    before = a.duration_ns[i].astype(np.float64)
    ratio = b.duration_ns[j] / before
    rank, stage = b.rank[j], b.stage[j]
    common = _common([float(np.median(ratio[rank == one])) for one in np.unique(rank)])
    pairs = sorted(set(zip(rank.tolist(), stage.tolist(), strict=True)))
    own = {pair: (rank == pair[0]) & (stage == pair[1]) for pair in pairs}
    return Blame(
        common=common - 1,
        ranks={r: _beyond(ratio[rank == r], common) for r in sorted(set(rank.tolist()))},
        stages={pair: _beyond(ratio[mask], common) for pair, mask in own.items()},
        ways=slower, network=network, before_ns={pair: float(before[mask].sum()) for pair, mask in own.items()},
    )  # fmt: skip


def culprits(blame: Blame, ways: tuple[Way, ...], tolerance: float, varies: Varies) -> tuple[Culprit, ...]:
    """Return what is slower or faster throughout by more than the tolerance and the steps' own noise.

    A stage is blamed where its rank's other stages are not as slow, else the rank.

    Args:
        blame: by which share everything is slower.
        ways: the messages.
        tolerance: which share counts as equal.
        varies: the standard deviation of a share from step to step.
    """
    found = [_drift(blame, varies)] if abs(blame.common) > tolerance else []
    for rank in blame.ranks:
        own = [pair for pair in blame.stages if pair[0] == rank]
        off = [pair for pair in own if abs(blame.stages[pair]) > tolerance]
        if off and len(off) == len(own):
            found.append(_rank(blame, rank, own, varies))
        else:
            found += [_stage(blame, pair, varies) for pair in off]
    if abs(blame.network) > tolerance:
        found.append(_whole_network(blame, ways, varies))
    found += [_way(way, blame, varies) for way in ways if abs(blame.ways.get(_ends(way), 0.0)) > tolerance]
    return tuple(one for one in found if not within_noise(one.share, one.share_varies))


def _drift(blame: Blame, varies: Varies) -> Culprit:
    return Culprit(
        sort="drift", what="all ranks", share=blame.common,
        total_ns=int(blame.common * sum(blame.before_ns.values())), share_varies=varies(lambda one: one.common),
    )  # fmt: skip


def _rank(blame: Blame, rank: int, own: Sequence[tuple[int, int]], varies: Varies) -> Culprit:
    share = blame.ranks[rank]
    stage = "" if len(own) > 1 else f" (its one stage, {own[0][1]})"
    return Culprit(
        sort=_sort(share, "rank"), what=f"rank {rank}{stage}",
        share=share, total_ns=int(share * sum(blame.before_ns[pair] for pair in own)),
        share_varies=varies(lambda one: one.ranks.get(rank)),
    )  # fmt: skip


def _stage(blame: Blame, pair: tuple[int, int], varies: Varies) -> Culprit:
    share = blame.stages[pair]
    return Culprit(
        sort=_sort(share, "stage"), what=f"stage {pair[1]} on rank {pair[0]}", share=share,
        total_ns=int(share * blame.before_ns[pair]), share_varies=varies(lambda one: one.stages.get(pair)),
    )  # fmt: skip


def _way(way: Way, blame: Blame, varies: Varies) -> Culprit:
    share = blame.ways[_ends(way)]
    return Culprit(
        sort=_sort(share, "link"), what=f"rank {way.source} to rank {way.target}", share=share,
        total_ns=int(way.median_ns[1] - way.median_ns[0] * (1 + blame.network)) * way.count[1],
        share_varies=varies(lambda one: one.ways.get(_ends(way))),
    )  # fmt: skip


def _whole_network(blame: Blame, ways: tuple[Way, ...], varies: Varies) -> Culprit:
    before = sum(way.median_ns[0] * way.count[1] for way in ways if _ends(way) in blame.ways)
    what = f"all {len(blame.ways)} ways between ranks"
    return Culprit(
        sort=_sort(blame.network, "network"), what=what, share=blame.network,
        total_ns=int(blame.network * before), share_varies=varies(lambda one: one.network),
    )  # fmt: skip


def _network(ways: tuple[Way, ...]) -> tuple[float, dict[tuple[int, int], float]]:
    """Return by which share all ways are slower or all are faster, and each of them beyond that."""
    ratio = {
        _ends(way): way.median_ns[1] / way.median_ns[0]
        for way in ways
        if min(way.seen) >= _FEWEST and way.median_ns[0] > 0
    }
    common = 1.0
    if len(ratio) > 1 and (min(ratio.values()) > 1 or max(ratio.values()) < 1):
        common = min(ratio.values(), key=lambda one: abs(one - 1))
    return common - 1, {ends: one / common - 1 if common else 0.0 for ends, one in ratio.items()}


def _ends(way: Way) -> tuple[int, int]:
    return way.source, way.target


def spikes(a: Performed, b: Performed, matched: Matched, tolerance: float, noise_ns: Int64s) -> list[Culprit]:
    """Return ranks with single actions that stand out of their kind's on their stage.

    They do so by more than the tolerance of their own time and than the steps' own noise.
    """
    i, j = matched.first, matched.second
    allowed = np.maximum(tolerance * a.duration_ns[i], SIGMAS * noise_ns)
    change = (b.duration_ns[j] - a.duration_ns[i]).astype(np.float64)
    rank, cells = b.rank[j], b.kind[j].astype(np.int64) * b.placement.stages + b.stage[j]
    out = np.zeros(change.size)
    for one in np.unique(cells) if change.size >= _FEWEST else ():
        own = cells == one
        beyond = change[own] - np.median(change[own])
        least = np.maximum(_OUTLYING * max(float(np.median(np.abs(beyond))), 1000), allowed[own])
        out[own] = np.where(beyond > least, beyond, 0)
    found = []
    for one in np.unique(rank[out > 0]).tolist():
        own = (rank == one) & (out > 0)
        what = f"{int(own.sum())} action{'s' if own.sum() > 1 else ''} of rank {one}"
        found.append(Culprit(sort="spikes", what=what, share=0.0, total_ns=int(out[own].sum())))
    return found


def _common(ratios: Sequence[float]) -> float:
    """Return the middle rank's ratio; of two, as where one of two ranks is slow, the one nearer to 1."""
    ordered = sorted(ratios)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(middle, key=lambda one: abs(one - 1))


def _beyond(ratio: NDArray[np.float64], common: float) -> float:
    return float(np.median(ratio)) / common - 1 if common else 0.0


def _sort(share: float, what: str) -> str:
    return f"{'slow' if share > 0 else 'fast'} {what}"
