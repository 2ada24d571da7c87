"""What released each computation of a step: the one before it on its rank, or the maker of a late input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import Kind, Pass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeAlias

    from pptrace.analysis.steps.times import Performed

    Input: TypeAlias = tuple[bool, int, int]
    """Whether it goes forward, the stage that takes it, and the microbatch."""

__all__ = ["Releases", "releases_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """A step, and where its inputs come from."""

    step: Performed
    """The step."""
    producers: Mapping[Input, int]
    """The position of what makes each input."""
    ways_ns: Mapping[Input, int]
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
                candidates.append((int(step.end_ns[producer]) + self.ways_ns.get(key, 0), producer))
        return max(candidates)[1] if candidates else None

    def waited_ns(self, before: int, after: int) -> int:
        """Return for how long one computation's message was on its way before another, at most till that began."""
        ways = [self.ways_ns.get(key, 0) for key in self._inputs(after) if self.producers.get(key) == before]
        between = int(self.step.start_ns[after] - self.step.end_ns[before])
        return max(min(max(ways, default=0), between), 0)

    def _inputs(self, index: int) -> Iterator[Input]:
        step = self.step
        stage, microbatch = int(step.stage[index]), int(step.microbatch[index])
        way = int(TABLE.feeds[step.kind[index]])
        for each in range(microbatch, microbatch + int(step.span[index])) if way >= 0 else ():
            yield way == 0, stage, each


def releases_of(step: Performed) -> Releases:
    """Return where a step's inputs come from."""
    made: dict[Input, int] = {}
    for index in range(len(step)):
        stage, microbatch = int(step.stage[index]), int(step.microbatch[index])
        way = int(TABLE.feeds[step.kind[index]])
        for each in range(microbatch, microbatch + int(step.span[index])) if way >= 0 else ():
            made[way == 0, stage + (1 if way == 0 else -1), each] = index
    sent = step.transfers
    ways: dict[Input, int] = {}
    columns = (sent.kind, sent.stage, sent.microbatch, sent.took_ns, sent.held_ns)
    for kind, stage, microbatch, took, held in zip(*(column.tolist() for column in columns), strict=True):
        forward = Kind(kind).traits.direction is Pass.FORWARD
        if took >= 0:
            ways[forward, stage + (1 if forward else -1), microbatch] = took + held
    return Releases(step=step, producers=made, ways_ns=ways)
