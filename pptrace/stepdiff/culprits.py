"""Who is to blame: a rank, a stage or a way that is slow throughout, or single actions that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pptrace.stepdiff.findings import Way
    from pptrace.stepdiff.match import Matched
    from pptrace.stepdiff.times import Performed

__all__ = ["Culprit", "culprits"]

_FEWEST = 3
_OUTLYING = 5
"""From how many median deviations above the median a single action is a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One slow thing."""

    sort: str
    """``drift`` (everything), ``slow rank``, ``slow stage``, ``slow link`` or ``spikes``."""
    what: str
    """Which."""
    share: float
    """By how much its times are longer, of 1; of spikes, 0."""
    total_ns: int
    """How much time that is in sum."""


def culprits(
    a: Performed, b: Performed, matched: Matched, ways: tuple[Way, ...], tolerance: float
) -> tuple[Culprit, ...]:
    """Return what is slower (or faster) throughout by more than the tolerance, and what stands out, worst first.

    A stage is blamed where its rank's other stages are not as slow, else the rank. What all ranks have in common
    is drift, and is taken off before ranks and stages are looked at.
    """
    found: list[Culprit] = []
    if len(matched) >= _FEWEST:
        found += _of_actions(a, b, matched, tolerance)
    for way in ways:
        before, after = way.median_ns
        if min(way.seen) >= _FEWEST and before > 0 and abs(after / before - 1) > tolerance and after - before > 0:
            what = f"rank {way.source} to rank {way.target}"
            total = (after - before) * way.count[1]
            found.append(Culprit(sort="slow link", what=what, share=after / before - 1, total_ns=total))
    return tuple(sorted(found, key=lambda one: (-abs(one.total_ns), one.sort, one.what)))


def _of_actions(a: Performed, b: Performed, matched: Matched, tolerance: float) -> list[Culprit]:
    i, j = matched.first, matched.second
    before, after = a.duration_ns[i].astype(np.float64), b.duration_ns[j].astype(np.float64)
    good = before > 0
    i, j, before, after = i[good], j[good], before[good], after[good]
    if before.size < _FEWEST:
        return []
    ratio = after / before
    change = after - before
    found = []
    common = float(np.median(ratio))
    if abs(common - 1) > tolerance:
        found.append(
            Culprit(sort="drift", what="all ranks", share=common - 1, total_ns=int(((common - 1) * before).sum()))
        )
    rank, stage = b.rank[j], b.stage[j]
    by_stage = {int(s): float(np.median(ratio[stage == s])) / common - 1 for s in np.unique(stage)}
    for one in np.unique(rank).tolist():
        stages = np.unique(stage[rank == one]).tolist()
        slow = [s for s in stages if abs(by_stage[s]) > tolerance]
        if slow and len(slow) == len(stages):
            own = rank == one
            share = float(np.median(ratio[own])) / common - 1
            what = f"rank {one}" if len(stages) > 1 else f"rank {one} (its one stage, {stages[0]})"
            found.append(
                Culprit(sort="slow rank", what=what, share=share, total_ns=int((share * before[own]).sum()))
            )
            continue
        for s in slow:
            own = (stage == s) & (rank == one)
            total = int((by_stage[s] * before[own]).sum())
            found.append(
                Culprit(sort="slow stage", what=f"stage {s} on rank {one}", share=by_stage[s], total_ns=total)
            )
    return found + _spikes(rank, stage, change)


def _spikes(rank: np.ndarray, stage: np.ndarray, change: np.ndarray) -> list[Culprit]:
    """Return ranks with single actions that stand out from their stage's."""
    out = np.zeros(change.size)
    for one in np.unique(stage):
        own = stage == one
        middle = np.median(change[own])
        deviation = np.median(np.abs(change[own] - middle))
        out[own] = np.where(change[own] - middle > _OUTLYING * max(deviation, 1000), change[own] - middle, 0)
    found = []
    for one in np.unique(rank[out > 0]).tolist():
        own = (rank == one) & (out > 0)
        what = f"{int(own.sum())} action{'s' if own.sum() > 1 else ''} of rank {one}"
        found.append(Culprit(sort="spikes", what=what, share=0.0, total_ns=int(out[own].sum())))
    return found
