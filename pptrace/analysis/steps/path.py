"""The chain of computations that a step's end waited for, found from ends alone, measured ones too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.match import first_difference, same_stages
from pptrace.analysis.steps.releases import releases_of
from pptrace.analysis.steps.times import performed
from pptrace.model.kinds import Kind
from pptrace.timeline.why import why

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.analysis.steps.times import Performed
    from pptrace.timeline.timeline import Timeline

__all__ = ["BETWEEN", "MESSAGES", "Chain", "PathsDiffer", "chain_of", "explained", "paths_differ"]

BETWEEN = "between actions"
"""Time on the path in which nothing of it ran: a rank that does not go on, messages that nobody saw arrive."""
MESSAGES = "messages"
"""Time on the path in which a message was on its way between ranks, as far as a computation waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The computations on the path, first to last."""

    positions: tuple[int, ...]
    """Their positions in the step."""
    by_kind_ns: Mapping[str, int]
    """Their time by kind, and what lies between; together the step's pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsDiffer:
    """Where two paths, followed back from their ends, differ."""

    common: int
    """How many computations they share at the end."""
    first: str
    """What comes before those in the first step; empty for its beginning."""
    second: str
    """What comes before in the second."""


def chain_of(step: Performed) -> Chain:
    """Follow back, from the computation that ends last, what released each: whichever of its inputs came last."""
    if not len(step):
        return Chain(positions=(), by_kind_ns={})
    releases = releases_of(step)
    positions: list[int] = []
    at: int | None = int(step.end_ns.argmax())
    while at is not None:
        positions.append(at)
        at = releases.of(at)
    positions.reverse()
    by_kind = {Kind(kind).name: 0 for kind in np.unique(step.kind).tolist()}
    for index in positions:
        by_kind[Kind(int(step.kind[index])).name] += int(step.end_ns[index] - step.start_ns[index])
    by_kind[MESSAGES] = sum(releases.waited_ns(before, after) for before, after in pairwise(positions))
    whole = int(step.end_ns[positions[-1]] - step.start_ns.min())
    return Chain(positions=tuple(positions), by_kind_ns={**by_kind, BETWEEN: whole - sum(by_kind.values())})


def explained(timeline: Timeline) -> Timeline:
    """Add to a step why ranks wait and its critical path, found from ends where causes are missing."""
    step = performed(timeline)
    first = np.diff(step.rank, prepend=-1) != 0
    if not (timeline.cause[step.row[~first]] < 0).any():
        return replace(timeline, why=why(timeline))
    rows = step.row[list(chain_of(step).positions)].astype(np.int32)
    return replace(timeline, why=why(timeline, rows))


def paths_differ(a: Performed, b: Performed, chains: tuple[Chain, Chain]) -> PathsDiffer | None:
    """Return where two steps' paths differ; None where they are the same, or stages are not alike."""
    if not same_stages(a, b):
        return None
    names = [
        [f"rank {step.rank[i]}: {step.action(i)}" for i in reversed(chain.positions)]
        for step, chain in zip((a, b), chains, strict=True)
    ]
    common = first_difference(*names)
    if common is None:
        return None
    first, second = (path[common] if common < len(path) else "" for path in names)
    return PathsDiffer(common=common, first=first, second=second)
