"""Encode slices of a lane: each with its annotation, launch, kernel and flows, as lines of JSON.

A slice becomes five events, and one more per flow that touches it. The simulated host is free: annotations
and launches take no time, so they nest whatever the order of the launches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.export import kinds
from pptrace.export.kineto.arrows import Arrows
from pptrace.export.kineto.cells import Block, Choice, Part, alike, microseconds, number, words
from pptrace.export.kineto.flows import flow_points
from pptrace.export.kineto.lanes import HOST, process_of
from pptrace.export.kineto.names import Names, named
from pptrace.export.kineto.peers import Peers
from pptrace.export.kineto.words import COLORS, WORDS, collective, group_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.export.hops import Hops
    from pptrace.export.kineto.lanes import Lane
    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Encoder", "color_of", "shared_number"]

_LAUNCH = [b'"%s"' % word.launch.encode() for word in WORDS]
_CATEGORY = [b'"%s"' % word.category.encode() for word in WORDS]
_KIND = [b'"%s"' % name.encode() for name in kinds.NAMES]
_KERNEL = [b'"%s%s' % (word.name.encode(), b" " * bool(n)) for word, n in zip(WORDS, kinds.NUMBERED, strict=True)]
_UNNUMBERED = frozenset(np.flatnonzero(~kinds.NUMBERED).tolist())
_KIND_COLORS = [b'"%s"' % color.encode() for color in kinds.COLORS]
_COLORS = [b'"%s"' % color.encode() for color in COLORS]
_OPTIONAL = {
    "span": b',"span":',
    "lag_ns": b',"lag_ns":',
    "uncontended_ns": b',"uncontended_ns":',
    "collective_ns": b',"collective_ns":',
    "size_bytes": b',"bytes":',
    "pair": b',"pair":',
}
_FIRST = 100_000
"""The first row's correlation: HTA puts event numbers in a column that is as narrow as correlations need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Turns rows of a timeline into text."""

    timeline: Timeline
    """What is written; its causes count rows as the file does."""
    arrows: Arrows
    """Flows through the rows, and what the file adds to a row's number."""
    peers: Peers
    """Who talks to whom."""
    names: Names
    """How names of actions end."""
    kernels: Names
    """How names of kernels end."""
    whole: bool
    """Whether all times are whole microseconds."""
    color: str
    """``kind`` or ``microbatch``."""

    @classmethod
    def of(cls, timeline: Timeline, hops: Hops, first_row: int, color: str) -> Self:
        """Prepare to write a timeline; flows pass the hops of its messages."""
        times = (timeline.enter_ns, timeline.start_ns, timeline.end_ns)
        names = Names.of(timeline)
        return cls(
            timeline=timeline,
            arrows=Arrows(points=flow_points(timeline, hops, first_row), first=first_row + _FIRST),
            peers=Peers.of(timeline.placement),
            names=names,
            kernels=names if timeline.parts is None else Names.of(timeline, segments=True),
            whole=not any(bool((column % 1000).any()) for column in times),
            color=color,
        )

    def encode(self, lane: Lane, rows: slice) -> Iterator[Block]:
        """Yield the lines of some rows of one lane."""
        timeline = self.timeline
        kind, ends = Choice.of(timeline.kind[rows]), self.names.of_rows(rows)
        kernel, launch, category, facts = self._kernel(lane, rows, kind)
        row_id = number(np.arange(rows.start, rows.stop) + self.arrows.first)
        start = self._time(timeline.start_ns[rows])
        at_once = np.array_equal(timeline.enter_ns[rows], timeline.start_ns[rows])
        enter = start if at_once else self._time(timeline.enter_ns[rows])
        dur = self._time(timeline.end_ns[rows] - timeline.start_ns[rows])
        host = b',"pid":%d,"tid":%d,"ts":' % (process_of(lane.rank, timeline.ranks), HOST)
        device = b',"pid":%d,"tid":%d,"ts":' % (process_of(lane.rank, timeline.ranks), lane.thread)
        lines = [
            b'{"ph":"X","cat":"user_annotation","name":', *self._action(rows, ends), host, enter,
            b',"dur":0,"args":{"External id":', row_id, b"}},\n",
            b'{"ph":"X","cat":"cuda_runtime","name":', launch, host, enter,
            b',"dur":0,"args":{"External id":', row_id, b',"correlation":', row_id, b"}},\n",
            b'{"ph":"s","id":', row_id, host, enter, b',"cat":"ac2g","name":"ac2g"},\n',
            b'{"ph":"X","cat":', category, b',"name":', *kernel, device, start,
            b',"dur":', dur, b',"cname":', color_of(timeline, rows, self.color),
            b',"args":{"device":0,"stream":%d,"correlation":' % lane.thread, row_id,
            b',"kind":', kind.among(_KIND), *self._facts(rows), *facts, b"}},\n",
            b'{"ph":"f","id":', row_id, device, start, b',"cat":"ac2g","name":"ac2g","bp":"e"},',
        ]  # fmt: skip
        return self.arrows.behind(lines, device, rows)

    def _kernel(self, lane: Lane, rows: slice, kind: Choice) -> tuple[list[Part], Part, Part, list[Part]]:
        """Return the kernels' names, launches and categories, and what only some kernels have."""
        parts = self.timeline.parts
        facts = [self._message(lane, rows)]
        if parts is None:
            kernel = named(kind, _KERNEL, self.names.of_rows(rows), plain=_UNNUMBERED)
            return kernel, kind.among(_LAUNCH), kind.among(_CATEGORY), facts
        segment = Choice.of(parts.name[rows] + 1)
        number = parts.number[rows]
        if (number >= 0).any():
            texts = [b"", *(json.dumps(name).encode() for name in parts.names)]
            told = {
                c: b',"segment":%s,"segment_number":' % texts[c] if c else b',"segment_number":'
                for c in segment.used
            }
            facts += [segment.among(told), shared_number(number)]
        if not lane.stream.is_group or (number < 0).any():
            kernel = named(kind, _KERNEL, self.kernels.of_rows(rows), plain=_UNNUMBERED)
            return kernel, kind.among(_LAUNCH), kind.among(_CATEGORY), facts
        words = [group_word(lane.stream, name) for name in parts.names]
        shown = {c: words[c - 1] for c in segment.used}
        facts.append(segment.among({c: word.facts.encode() for c, word in shown.items()}))
        name, launch, category = (
            segment.among({c: b'"%s"' % getattr(word, field).encode() for c, word in shown.items()})
            for field in ("name", "launch", "category")
        )
        return [name], launch, category, facts

    def _time(self, times_ns: NDArray[np.int64]) -> Block:
        return microseconds(times_ns, whole=self.whole)

    def _action(self, rows: slice, ends: Block) -> list[Part]:
        stage = self.timeline.stage[rows].astype(np.int64) + 1  # which may be -1
        code = Choice.of(stage * len(WORDS) + self.timeline.kind[rows])
        texts = {c: b'"PP:%d%s' % (c // len(WORDS) - 1, kinds.NAMES[c % len(WORDS)].encode()) for c in code.used}
        return named(code, texts, ends)

    def _facts(self, rows: slice) -> list[Part]:
        timeline = self.timeline
        stage, microbatch = shared_number(timeline.stage[rows]), shared_number(timeline.microbatch[rows])
        parts: list[Part] = [b',"stage":', stage, b',"microbatch":', microbatch]
        cause = timeline.cause[rows].astype(np.int64)
        assumed = {"span": 1, "uncontended_ns": timeline.end_ns[rows] - timeline.start_ns[rows], "pair": -1}
        for name, key in _OPTIONAL.items():
            values = getattr(timeline, name)[rows]
            if (values != assumed.get(name, 0)).any():
                parts += [key, shared_number(values)]
        return [*parts, b',"cause":', shared_number(np.where(cause < 0, 0, cause + _FIRST))]

    def _message(self, lane: Lane, rows: slice) -> Part:
        """Return what NCCL's profiler hook tells of a send or receive."""
        timeline = self.timeline
        kind = timeline.kind[rows]
        if not kinds.CARRIES[kind].any():
            return b""
        peer = self.peers.among(timeline, rows) if lane.peer < 0 else np.full_like(kind, lane.peer, dtype=np.int32)
        size, sized = _distinct(timeline.size_bytes[rows])
        peer_count = timeline.ranks + 1
        keys, code = _distinct((sized * len(WORDS) + kind) * peer_count + peer + 1)
        texts = [
            collective(
                int(key) // peer_count % len(WORDS),
                size_bytes=int(size[int(key) // peer_count // len(WORDS)]),
                peer=int(key) % peer_count - 1,
                ranks=timeline.ranks,
            )
            for key in keys
        ]
        return words(code, texts)


def color_of(timeline: Timeline, rows: slice | Int32s, by: str) -> Part:
    """Return the colour of each row's slice."""
    if by == "kind":
        return words(timeline.kind[rows], _KIND_COLORS)
    return words(np.maximum(timeline.microbatch[rows], 0) % len(_COLORS), _COLORS)


def _distinct(values: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the distinct values and each one's place among them."""
    if alike(values):
        return values[:1], np.zeros(values.size, dtype=np.int64)
    return np.unique(values, return_inverse=True)


def shared_number(values: NDArray[np.integer]) -> Part:
    """Return a cell per line, or the one number that all lines share."""
    return b"%d" % values[0] if alike(values) else number(values)
