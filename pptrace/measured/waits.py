"""Waits for releases, and the chain of waits through a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.measured.computations import extract_computations
from pptrace.measured.matching import first_difference, has_same_stages
from pptrace.steps.kinds import TABLE, Kind, Pass
from pptrace.timeline.critical_path import why

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeAlias

    from pptrace.measured.computations import Computations
    from pptrace.timeline.timeline import Timeline

    Input: TypeAlias = tuple[bool, int, int]
    """Whether it goes forward, the stage that takes it, and the microbatch."""

__all__ = [
    "BETWEEN",
    "MESSAGES",
    "Chain",
    "PathsDiffer",
    "Releases",
    "explain_waits",
    "find_releases",
    "follow_chain",
    "paths_differ",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """A step, and where its inputs come from."""

    step: Computations
    """The step."""
    producers: Mapping[Input, int]
    """The position of what makes each input."""
    transfer_ns: Mapping[Input, int]
    """How long each input was on its way between ranks; what is not known is not there."""

    def of(self, index: int) -> int | None:
        """Return the position of what was there last of all that a computation needs; None for nothing."""
        step, candidates = self.step, []
        if index > 0 and step.rank[index - 1] == step.rank[index]:
            candidates.append((int(step.end_ns[index - 1]), index - 1))
        for key in self._inputs(index):
            producer = self.producers.get(key)
            # Clocks of ranks are off by some: what ends later than what it releases does not count.
            if producer is not None and producer != index and step.end_ns[producer] <= step.end_ns[index]:
                candidates.append((int(step.end_ns[producer]) + self.transfer_ns.get(key, 0), producer))
        return max(candidates)[1] if candidates else None

    def waited_ns(self, before: int, after: int) -> int:
        """Return for how long one computation's message was on its way before another, at most till that began."""
        ways = [self.transfer_ns.get(key, 0) for key in self._inputs(after) if self.producers.get(key) == before]
        between = int(self.step.start_ns[after] - self.step.end_ns[before])
        return max(min(max(ways, default=0), between), 0)

    def _inputs(self, index: int) -> Iterator[Input]:
        step = self.step
        stage, microbatch = int(step.stage[index]), int(step.microbatch[index])
        way = int(TABLE.feeds[step.kind[index]])
        for each in range(microbatch, microbatch + int(step.span[index])) if way >= 0 else ():
            yield way == 0, stage, each


def find_releases(step: Computations) -> Releases:
    """Return where a step's inputs come from."""
    made: dict[Input, int] = {}
    for index in range(len(step)):
        stage, microbatch = int(step.stage[index]), int(step.microbatch[index])
        way = int(TABLE.feeds[step.kind[index]])
        for each in range(microbatch, microbatch + int(step.span[index])) if way >= 0 else ():
            made[way == 0, stage + (1 if way == 0 else -1), each] = index
    sent = step.transfers
    ways: dict[Input, int] = {}
    columns = (sent.kind, sent.stage, sent.microbatch, sent.duration_ns, sent.blocked_ns)
    for kind, stage, microbatch, took, held in zip(*(column.tolist() for column in columns), strict=True):
        forward = Kind(kind).traits.direction is Pass.FORWARD
        if took >= 0:
            ways[forward, stage + (1 if forward else -1), microbatch] = took + held
    return Releases(step=step, producers=made, transfer_ns=ways)


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


def follow_chain(step: Computations) -> Chain:
    """Follow back, from the computation that ends last, what released each: whichever of its inputs came last."""
    if not len(step):
        return Chain(positions=(), by_kind_ns={})
    releases = find_releases(step)
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


def explain_waits(timeline: Timeline) -> Timeline:
    """Add to a step why ranks wait and its critical path, found from ends where causes are missing."""
    step = extract_computations(timeline)
    first = np.diff(step.rank, prepend=-1) != 0
    if not (timeline.cause[step.row[~first]] < 0).any():
        return replace(timeline, why=why(timeline))
    rows = step.row[list(follow_chain(step).positions)].astype(np.int32)
    return replace(timeline, why=why(timeline, rows))


def paths_differ(a: Computations, b: Computations, chains: tuple[Chain, Chain]) -> PathsDiffer | None:
    """Return where two steps' paths differ; None where they are the same, or stages are not alike."""
    if not has_same_stages(a, b):
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
