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


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The producers of the inputs of a step."""

    step: Computations
    """The step."""
    producers: Mapping[Input, int]
    """The position of the producer of each input."""
    transfer_ns: Mapping[Input, int]
    """The transfer time of each input between ranks, where known."""

    def of(self, index: int) -> int | None:
        """Return the position of the last dependency of a computation to finish; None without dependencies."""
        step, candidates = self.step, []
        if index > 0 and step.rank[index - 1] == step.rank[index]:
            candidates.append((int(step.end_ns[index - 1]), index - 1))
        for key in self._inputs(index):
            producer = self.producers.get(key)
            # Clocks of ranks are inexact: a producer that ends after its consumer does not count.
            if producer is not None and producer != index and step.end_ns[producer] <= step.end_ns[index]:
                candidates.append((int(step.end_ns[producer]) + self.transfer_ns.get(key, 0), producer))
        return max(candidates)[1] if candidates else None

    def waited_ns(self, before: int, after: int) -> int:
        """Return the transfer time between two computations, at most the time between them."""
        times = [self.transfer_ns.get(key, 0) for key in self._inputs(after) if self.producers.get(key) == before]
        between = int(self.step.start_ns[after] - self.step.end_ns[before])
        return max(min(max(times, default=0), between), 0)

    def _inputs(self, index: int) -> Iterator[Input]:
        step = self.step
        stage, microbatch = int(step.stage[index]), int(step.microbatch[index])
        direction = int(TABLE.feeds[step.kind[index]])
        for number in range(microbatch, microbatch + int(step.span[index])) if direction >= 0 else ():
            yield direction == 0, stage, number


def find_releases(step: Computations) -> Releases:
    """Return the producers and transfer times of the inputs of a step."""
    producers: dict[Input, int] = {}
    for index in range(len(step)):
        stage, microbatch = int(step.stage[index]), int(step.microbatch[index])
        direction = int(TABLE.feeds[step.kind[index]])
        for number in range(microbatch, microbatch + int(step.span[index])) if direction >= 0 else ():
            producers[direction == 0, stage + (1 if direction == 0 else -1), number] = index
    sent = step.transfers
    transfers: dict[Input, int] = {}
    columns = (sent.kind, sent.stage, sent.microbatch, sent.duration_ns, sent.blocked_ns)
    for kind, stage, microbatch, took, held in zip(*(column.tolist() for column in columns), strict=True):
        forward = Kind(kind).traits.direction is Pass.FORWARD
        if took >= 0:
            transfers[forward, stage + (1 if forward else -1), microbatch] = took + held
    return Releases(step=step, producers=producers, transfer_ns=transfers)


BETWEEN = "between actions"
"""Time on the path without computation: idle ranks and unobserved transfers."""
MESSAGES = "messages"
"""Time on the path in which a computation waited for a transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The computations on the critical path, first to last."""

    positions: tuple[int, ...]
    """Their positions in the step."""
    by_kind_ns: Mapping[str, int]
    """Their time by kind, and time between them; the sum is the span of the computations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsDiffer:
    """The last difference of two paths."""

    common: int
    """The number of common computations at the end."""
    first: str
    """The computation before them in the first step; empty for its beginning."""
    second: str
    """The computation before them in the second step."""


def follow_chain(step: Computations) -> Chain:
    """Follow last dependencies back from the computation that ends last."""
    if not len(step):
        return Chain(positions=(), by_kind_ns={})
    releases = find_releases(step)
    positions: list[int] = []
    position: int | None = int(step.end_ns.argmax())
    while position is not None:
        positions.append(position)
        position = releases.of(position)
    positions.reverse()
    by_kind = {Kind(kind).name: 0 for kind in np.unique(step.kind).tolist()}
    for index in positions:
        by_kind[Kind(int(step.kind[index])).name] += int(step.end_ns[index] - step.start_ns[index])
    by_kind[MESSAGES] = sum(releases.waited_ns(before, after) for before, after in pairwise(positions))
    whole = int(step.end_ns[positions[-1]] - step.start_ns.min())
    return Chain(positions=tuple(positions), by_kind_ns={**by_kind, BETWEEN: whole - sum(by_kind.values())})


def explain_waits(timeline: Timeline) -> Timeline:
    """Add wait causes and the critical path to a step, inferred from ends where it lacks causes."""
    step = extract_computations(timeline)
    first = np.diff(step.rank, prepend=-1) != 0
    if not (timeline.cause[step.row[~first]] < 0).any():
        return replace(timeline, why=why(timeline))
    rows = step.row[list(follow_chain(step).positions)].astype(np.int32)
    return replace(timeline, why=why(timeline, rows))


def paths_differ(a: Computations, b: Computations, chains: tuple[Chain, Chain]) -> PathsDiffer | None:
    """Return the last difference of the paths; None where they are equal, or stages differ."""
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
