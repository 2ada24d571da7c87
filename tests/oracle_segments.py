"""A slow second implementation of overlapped pairs, written from their words.

It has queues: a rank's compute stream and a stream per own group, and a channel per pair of ranks. An entry runs
when it is at the head of its queue and all that it needs has ended. An action outside a pair is one block: its
rank starts no segment of a later action before the block's end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pptrace.steps.kinds import Kind, Stream

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from pptrace.steps.actions import Action
    from pptrace.steps.segments import Segment

__all__ = ["Part", "SegmentOracle"]


class Part(NamedTuple):
    """One segment of an action, or (number -1) its message."""

    kind: Kind
    stage: int
    microbatch: int
    number: int


@dataclass
class SegmentOracle:
    """Two or more ranks in a chain, one stage each, with messages that hold their channel and arrive later."""

    rows: Sequence[Sequence[Action]]
    segments: Mapping[Kind, Sequence[Sequence[Segment]]]
    turns: Sequence[int]
    message_ns: int = 0
    latency_ns: int = 0
    queues: dict[Hashable, deque[Part]] = field(default_factory=lambda: defaultdict(deque))
    needs: dict[Part, list[tuple[Part, int]]] = field(default_factory=lambda: defaultdict(list))
    took: dict[Part, int] = field(default_factory=dict)
    span: dict[Part, tuple[int, int]] = field(default_factory=dict)

    def run(self) -> dict[Part, tuple[int, int]]:
        """Return every entry's start and end."""
        for rank, row in enumerate(self.rows):
            block_end: Part | None = None
            for action in row:
                members = action.sub_actions or (action,)
                self._pair(rank, members) if len(members) > 1 else self._alone(rank, members[0])
                if block_end is not None:
                    for part in (part for member in members for part in self._of(member)):
                        self.needs[part].append((block_end, 0))
                if len(members) == 1:
                    block_end = self._of(members[0])[-1]
                for member in members:
                    self._feed(rank, member, alone=len(members) == 1)
        moved = True
        while moved:
            moved = False
            for queue in self.queues.values():
                while queue and self._try(queue):
                    moved = True
        assert not any(self.queues.values())
        return self.span

    def _of(self, action: Action) -> list[Part]:
        count = len(self.segments[action.kind][action.stage])
        return [Part(action.kind, action.stage, action.microbatch, number) for number in range(count)]

    def _segment(self, part: Part) -> Segment:
        return self.segments[part.kind][part.stage][part.number]

    def _stream(self, part: Part) -> Stream:
        return self._segment(part).stream

    def _queue(self, rank: int, part: Part) -> None:
        stream = self._stream(part)
        key = ("compute", rank) if stream is Stream.COMPUTE else ("group", rank, stream)
        self.queues[key].append(part)
        self.took[part] = self._segment(part).duration_ns

    def _alone(self, rank: int, action: Action) -> None:
        parts = self._of(action)
        self._behind_last_computation(rank, parts[0])
        for before, part in zip([None, *parts], parts, strict=False):
            self._queue(rank, part)
            if before is not None:
                self.needs[part].append((before, 0))

    def _pair(self, rank: int, members: Sequence[Action]) -> None:
        left = [
            deque(part for part in self._of(member) if self._stream(part) is Stream.COMPUTE) for member in members
        ]
        talk = [
            part for member in members for part in self._of(member) if self._stream(part) is not Stream.COMPUTE
        ]
        placed: list[Part] = []
        turn = 0
        for member in members:
            if (first := self._of(member)[0]) in talk:
                self._behind_last_computation(rank, first)
        self._talk(rank, talk, placed)
        while any(left):
            whose = self.turns[turn % len(self.turns)]
            turn += 1
            if not left[whose] and any(left[named] for named in set(self.turns)):
                continue
            part = (left[whose] or next(one for one in left if one)).popleft()
            self._queue(rank, part)
            placed.append(part)
            self._talk(rank, talk, placed)
        for member in members:
            for part in self._of(member):
                self.needs[part] += [(need, 0) for need in self._needs_of(part)]

    def _talk(self, rank: int, talk: Sequence[Part], placed: list[Part]) -> None:
        while ready := [p for p in talk if p not in placed and set(self._needs_of(p)) <= set(placed)]:
            self._queue(rank, ready[0])
            placed.append(ready[0])

    def _needs_of(self, part: Part) -> list[Part]:
        return [part._replace(number=need) for need in self._segment(part).needs_of(part.number)]

    def _behind_last_computation(self, rank: int, part: Part) -> None:
        """A group's first segment, alone, does not run ahead of what its rank computes before."""
        if self._stream(part) is not Stream.COMPUTE and self.queues["compute", rank]:
            self.needs[part].append((self.queues["compute", rank][-1], 0))

    def _feed(self, rank: int, action: Action, *, alone: bool) -> None:
        """Let an action's message leave behind its result, and its own rank's backward wait for its forward."""
        parts = self._of(action)
        needed = {need for part in parts for need in self._needs_of(part)}
        named = [part for part in parts if self._segment(part).result]
        results = [parts[-1]] if alone else (named or [part for part in parts if part not in needed])
        forward = action.kind is Kind.F
        to = rank + (1 if forward else -1)
        if 0 <= to < len(self.rows):
            message = Part(Kind.SEND_F if forward else Kind.SEND_B, action.stage, action.microbatch, -1)
            self.queues["channel", rank, to].append(message)
            self.took[message] = self.message_ns
            self.needs[message] += [(part, 0) for part in results]
            consumer = Part(action.kind, to, action.microbatch, 0)
            self.needs[consumer].append((message, self.latency_ns))
        if forward:
            self.needs[Part(Kind.B, action.stage, action.microbatch, 0)] += [(part, 0) for part in results]

    def _try(self, queue: deque[Part]) -> bool:
        part = queue[0]
        if any(need not in self.span for need, _ in self.needs[part]):
            return False
        free = self.span[part][1] if part in self.span else self._free.get(id(queue), 0)
        start = max([free, *(self.span[need][1] + lag for need, lag in self.needs[part])])
        self.span[part] = (start, start + self.took[part])
        self._free[id(queue)] = self.span[part][1]
        queue.popleft()
        return True

    def __post_init__(self) -> None:
        self._free: dict[int, int] = {}
