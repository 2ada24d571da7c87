"""Writer of Kineto JSON.

Perfetto, chrome://tracing and Holistic Trace Analysis read it. An event is a line; blanks within a
line align its numbers. Lines are made by the thousand, from columns, and written while the next
thousands are made.

They stand side by side with their slices, because viewers bind a flow to the slice that came last before
it where times are equal.

A slice becomes five events, and one more per flow that touches it. The simulated host is free: annotations
and launches take no time, so they nest whatever the order of the launches.

They are of a process and a category of their own, and of no stream: readers of measured traces count the
kernels of a rank by their streams.

Waits are a thread of their rank, the path is a process of its own behind the links. Both have categories of
their own and no stream, as slices on links have none: readers of measured traces count kernels by their streams.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pptrace.errors import ConfigError
from pptrace.files import write_behind
from pptrace.steps.kinds import Stream
from pptrace.timeline.critical_path import PATH_PARTS
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import phases
from pptrace.timeline.timeline import LANE_COLUMNS, ROW_COLUMNS
from pptrace.traces import scene
from pptrace.traces.kineto.cells import (
    Block,
    Choice,
    Part,
    Some,
    alike,
    microseconds,
    number,
    pieces,
    stacked,
    words,
)
from pptrace.traces.kineto.flows import flow_points
from pptrace.traces.kineto.vocabulary import COLORS, WORDS, collective, group_word
from pptrace.traces.link_slices import Hops, Peers, link_title
from pptrace.traces.scene import NAMES, NUMBERED, stream_title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Counter, OnPath, Routes, Timeline, Waits
    from pptrace.traces.kineto.flows import Points

__all__ = [
    "COLOR_BY",
    "FORMAT",
    "HOST",
    "WAITS",
    "Arrows",
    "Encoder",
    "Lane",
    "LinkEncoder",
    "Names",
    "WhyEncoder",
    "color_of",
    "header",
    "lane_names",
    "lanes_of",
    "named",
    "part_of",
    "path_process",
    "process_of",
    "shared_number",
    "spans",
    "step_of",
    "thread_names",
    "thread_of",
    "write",
]

COLOR_BY = ("kind", "microbatch")
"""What slices may be coloured by, where the viewer heeds ``cname``; Perfetto goes by their names."""

_ROWS = 4096
_IN_FLIGHT = 2


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write all ranks to one file, or with ``rank`` that rank's alone; ``color`` is one of :data:`COLOR_BY`.

    Rows keep the numbers that they have in the whole timeline, so files written rank by rank can
    be read as one again. Flows between ranks are left out of such files.

    Raises:
        ConfigError: an option has no such value.
        OSError: the file cannot be written.
    """
    rank, color = _checked(timeline, options)
    part, first_row = (timeline, 0) if rank is None else part_of(timeline, rank)
    hops = Hops.of(part)
    encoder = LinkEncoder.of(Encoder.of(part, hops, first_row, color), hops)
    with path.open("wb") as file:
        write_behind(file, _texts(encoder, rank, first_row, step_of(timeline)), waiting=_IN_FLIGHT)


def _checked(timeline: Timeline, options: Mapping[str, Any]) -> tuple[int | None, str]:
    rank, color = options.get("rank"), options.get("color", COLOR_BY[0])
    if color not in COLOR_BY:
        raise ConfigError(f"{color!r} is none of {', '.join(COLOR_BY)}", key="color")
    if rank is not None and rank not in timeline.lane_rank:
        raise ConfigError(f"the timeline has no rank {rank}", key="rank")
    return rank, color


def _texts(
    links: LinkEncoder, rank: int | None, first_row: int, step: tuple[int, int]
) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece; a name comes last, for no comma may follow the last event."""
    encoder, hops = links.slices, links.hops
    timeline = encoder.timeline
    lanes = lanes_of(timeline)
    names = [json.dumps(event).encode() for event in lane_names(timeline, lanes, hops)]
    yield header(timeline, lanes, rank) + b"".join(name + b",\n" for name in names[:-1])
    for event, start, end in spans(timeline, lanes, step):
        yield _span(event, start, end, whole=encoder.whole)
    for lane in lanes:
        for rows in _steps(lane.rows, encoder.arrows.at_once(lane.rows)):
            yield from _flat(encoder.encode(lane, rows))
    for link, (start, stop) in enumerate(pairwise(hops.lane_ptr.tolist())):
        for rows in _steps(slice(start, stop)):
            yield from _flat(links.encode(link, rows))
    if timeline.why is not None:
        why = WhyEncoder(slices=encoder, first_row=first_row)
        yield from _flat(why.waits(timeline.why.waits))
        yield from _flat(why.path(timeline.why.path))
    for counter in timeline.counters:
        for rows in _steps(slice(0, counter.at_ns.size)):
            yield from _flat(_counted(counter, process_of(counter.rank, timeline.ranks), rows))
    yield b"".join(names[-1:]) + b"\n]}\n"


def _steps(rows: slice, width: int = 1) -> Iterator[slice]:
    """Cut rows into pieces of about the same size in bytes, where a row may have ``width`` flows."""
    step = max(1, _ROWS // max(1, width))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def _flat(blocks: Iterable[Block]) -> Iterator[memoryview]:
    return (block.data.cast("B") for block in blocks)


def _span(event: bytes, start: int, end: int, *, whole: bool) -> bytes:
    times = [microseconds(np.array([time]), whole=whole).tobytes() for time in (start, end - start)]
    return b"".join([event, times[0], b',"dur":', times[1], b',"args":{}},\n'])


def _counted(counter: Counter, process: int, rows: slice) -> Iterator[Block]:
    """Yield a line per step of a counter, with times in nanosecond precision."""
    at = counter.at_ns[rows]
    name, unit = json.dumps(counter.name).encode(), json.dumps(counter.unit).encode()
    head = b'{"ph":"C","name":%s,"pid":%d,"ts":' % (name, process)
    value = number(counter.value[rows])
    return pieces(at.size, [head, microseconds(at, whole=False), b',"args":{%s:' % unit, value, b"}},\n"])


_PHASES = [b'"s"', b'"t"', b'"f","bp":"e"']
_NAMED = [b'"p2p","name":"p2p"', b'"critical path","name":"critical path"']
_USUAL_FLOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrows:
    """Adds flows to the lines of slices."""

    points: Points
    """Where flows touch which rows."""
    first: int
    """What the file adds to a row's number, and so to a flow's."""

    def at_once(self, rows: slice) -> int:
        """Return the most flows that touch one of some rows."""
        ptr = self.points.row_ptr[rows.start : rows.stop + 1]
        return int(np.diff(ptr).max(initial=0))

    def behind(self, parts: list[Part], place: bytes, rows: slice) -> Iterator[Block]:
        """Yield the lines of some rows and of their flows; ``place`` is JSON up to the time."""
        count = rows.stop - rows.start
        ptr = self.points.row_ptr[rows.start : rows.stop + 1]
        per_row = np.diff(ptr)
        most = int(per_row.max(initial=0))
        if most <= _USUAL_FLOWS and most == per_row.min():
            flows = chain(*(self._parts(ptr[:-1] + slot, place) for slot in range(most)))
            yield from pieces(count, [*parts, *flows, b"\n"])
            return
        slots: list[Some] = []
        for slot in range(most):
            hit = np.flatnonzero(per_row > slot)
            slots.append(Some(stacked(hit.size, self._parts(ptr[hit] + slot, place)), hit))
        if most <= _USUAL_FLOWS:
            yield from pieces(count, [*parts, *slots, b"\n"])
            return
        block = stacked(count, [*parts, *slots, b"\n"])
        keep = np.ones(block.shape, dtype=bool)
        end = block.shape[1] - 1 - sum(cells.shape[1] for cells in slots)
        for index, cells in enumerate(slots):
            keep[:, end : end + cells.shape[1]] = (per_row > index)[:, None]
            end += cells.shape[1]
        yield block[keep]

    def _parts(self, points: NDArray[np.int64], place: bytes) -> list[Part]:
        flow = number(self.points.flow[points].astype(np.int64) + self.first)
        at = microseconds(self.points.at_ns[points], whole=False)
        phase = words(self.points.phase[points], _PHASES)
        named = words(self.points.on_path[points].astype(np.int8), _NAMED)
        return [b'\n{"ph":', phase, b',"id":', flow, place, at, b',"cat":', named, b"},"]


_BLANK = ord(" ")
_DENSE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The ends of a timeline's names, each written once: microbatch, span beyond one, segment, and a quote."""

    ends: Block
    """Shape (ends, width), blanks behind."""
    end: Int32s
    """Each row's end."""

    @classmethod
    def of(cls, timeline: Timeline, *, segments: bool = False) -> Self:
        """Collect the pairs of microbatch and span that occur, with ``segments`` by the names of segments too."""
        parts = timeline.parts if segments else None
        segment_names = [""] if parts is None else ["", *(f" {name}" for name in parts.names)]
        behind = [json.dumps(name)[1:] for name in segment_names]
        widest, count = int(timeline.span.max(initial=1)) + 1, len(behind)
        pair = (timeline.microbatch.astype(np.int64) + 1) * widest + timeline.span
        keys, end = _interned(pair if parts is None else pair * count + parts.name + 1)
        pairs = zip((keys // count // widest - 1).tolist(), (keys // count % widest).tolist(), strict=True)
        texts = [_end(*pair, behind[key % count]) for pair, key in zip(pairs, keys.tolist(), strict=True)]
        width = max(map(len, texts), default=1)
        padded = b"".join(text.ljust(width) for text in texts)
        return cls(ends=np.frombuffer(padded, dtype=np.uint8).reshape(-1, width), end=end)

    def of_rows(self, rows: slice) -> Block:
        """Return the ends of some rows."""
        width = self.ends.shape[1]
        return self.ends.view(f"V{width}").take(self.end[rows]).view(np.uint8).reshape(-1, width)


def named(
    prefix: Choice, texts: Sequence[bytes] | Mapping[int, bytes], ends: Block, plain: frozenset[int] = frozenset()
) -> list[Part]:
    """Return ``texts[prefix]`` and at once behind it an end, or for the ``plain`` prefixes only a quote."""
    heads = {code: texts[code] + b'"' * (code in plain) for code in prefix.used}
    longest = max(map(len, heads.values()))
    width = max(len(texts[code]) for code in heads) + ends.shape[1]
    if plain.isdisjoint(heads) and longest == min(map(len, heads.values())):
        return [prefix.among(heads), ends]
    if plain.issuperset(heads):
        return [prefix.among(heads), b" " * (width - longest)]
    block = np.full((len(ends), width), _BLANK, dtype=np.uint8)
    for code, head in heads.items():
        hit = np.flatnonzero(prefix.codes == code)
        block[hit, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        if code not in plain:
            block[hit, len(head) : len(head) + ends.shape[1]] = ends[hit]
    return [block]


def _end(microbatch: int, span: int, behind: str) -> bytes:
    text = ("" if microbatch < 0 else str(microbatch)) + (f"+{span}" if span > 1 else "")
    return (text + behind).encode()


def _interned(keys: Int64s) -> tuple[Int64s, Int32s]:
    """Return the distinct keys and each row's index among them."""
    if int(keys.max(initial=0)) >= _DENSE:
        distinct, index = np.unique(keys, return_inverse=True)
        return distinct, index.astype(np.int32)
    present = np.zeros(int(keys.max(initial=0)) + 1, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - 1)[keys]


_LAUNCH = [b'"%s"' % word.launch.encode() for word in WORDS]
_CATEGORY = [b'"%s"' % word.category.encode() for word in WORDS]
_KIND = [b'"%s"' % name.encode() for name in scene.NAMES]
_KERNEL = [b'"%s%s' % (word.name.encode(), b" " * bool(n)) for word, n in zip(WORDS, scene.NUMBERED, strict=True)]
_UNNUMBERED = frozenset(np.flatnonzero(~scene.NUMBERED).tolist())
_KIND_COLORS = [b'"%s"' % color.encode() for color in scene.COLORS]
_SLICE_COLORS = [b'"%s"' % color.encode() for color in COLORS]
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
        texts = {c: b'"PP:%d%s' % (c // len(WORDS) - 1, scene.NAMES[c % len(WORDS)].encode()) for c in code.used}
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
        if not scene.CARRIES[kind].any():
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
    return words(np.maximum(timeline.microbatch[rows], 0) % len(_SLICE_COLORS), _SLICE_COLORS)


def _distinct(values: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the distinct values and each one's place among them."""
    if alike(values):
        return values[:1], np.zeros(values.size, dtype=np.int64)
    return np.unique(values, return_inverse=True)


def shared_number(values: NDArray[np.integer]) -> Part:
    """Return a cell per line, or the one number that all lines share."""
    return b"%d" % values[0] if alike(values) else number(values)


_KINDS = [b'"%s"' % name.encode() for name in NAMES]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEncoder:
    """Turns hops into text."""

    slices: Encoder
    """What turns the rows of the same timeline into text."""
    hops: Hops
    """What is written."""
    rank: NDArray[np.int32]
    """Rank of each row of the timeline."""
    titles: Block
    """Shape (messages, width): what the slices of each message are called, with the closing quote."""

    @classmethod
    def of(cls, slices: Encoder, hops: Hops) -> Self:
        """Prepare to write the hops of the slices' timeline."""
        quoted = np.strings.add(hops.titles(slices.timeline), np.bytes_(b'"'))
        titles = quoted.view(np.uint8).reshape(hops.sent.size, quoted.itemsize)
        return cls(
            slices=slices,
            hops=hops,
            rank=slices.timeline.rank_of_row(),
            titles=np.where(titles == 0, np.uint8(_BLANK), titles),
        )

    def encode(self, lane: int, which: slice) -> Iterator[Block]:
        """Yield the lines of some hops of one lane."""
        timeline, hops, arrows = self.slices.timeline, self.hops, self.slices.arrows
        row, message = hops.row[which], hops.message[which]
        start, took = timeline.start_ns[row], timeline.end_ns[row] - timeline.start_ns[row]
        place = b',"pid":%d,"tid":%d,"ts":' % (process_of(-1, timeline.ranks), thread_of(lane, timeline.ranks))
        facts: dict[str, NDArray[np.integer]] = {
            "hop": hops.place[which],
            "rank": self.rank[row],
            "peer": hops.peer[message],
            "stage": timeline.stage[row],
            "microbatch": timeline.microbatch[row],
            "span": timeline.span[row],
            "bytes": timeline.size_bytes[row],
        }
        lines: list[Part] = [
            b'{"ph":"X","cat":"link","name":"', self.titles[message], place, self._time(start),
            b',"dur":', self._time(took), b',"cname":', color_of(timeline, row, self.slices.color),
            b',"args":{"link":%d,"transfer":' % hops.lane_link[lane], number(row.astype(np.int64) + arrows.first),
            b',"kind":', words(timeline.kind[row], _KINDS),
        ]  # fmt: skip
        for name, values in facts.items():
            lines += [b',"%s":' % name.encode(), shared_number(values)]
        lines.append(b"}},")
        rows = len(timeline)
        return arrows.behind(lines, place, slice(rows + which.start, rows + which.stop))

    def _time(self, times_ns: NDArray[np.int64]) -> Block:
        return microseconds(times_ns, whole=self.slices.whole)


def thread_of(lane: int, ranks: int) -> int:
    """Return the thread of a lane: above the process, for viewers take a thread of its number for the main one."""
    return process_of(-1, ranks) + 1 + lane


def thread_names(timeline: Timeline, hops: Hops) -> Iterator[tuple[int, str]]:
    """Yield the lanes' threads with their names: ``leaf0>spine2 (50 GB/s)``, and ``#2`` behind the second's."""
    if timeline.routes is None:
        return
    for lane, (link, copy) in enumerate(zip(hops.lane_link.tolist(), hops.lane_copy.tolist(), strict=True)):
        title = link_title(timeline.routes, link)
        yield thread_of(lane, timeline.ranks), f"{title} #{copy + 1}" if copy else title


WAITS = 2
"""Thread of each process that says why its rank waits."""

_CAUSES = [b'"%s"' % cause.word.encode() for cause in IdleCause]
_WAIT_COLORS = {
    IdleCause.FILL: b'"grey"', IdleCause.DRAIN: b'"grey"', IdleCause.TRANSFER: b'"rail_load"',
    IdleCause.CONTENTION: b'"terrible"', IdleCause.HEAD_OF_LINE: b'"bad"', IdleCause.PEER_COMPUTE: b'"white"',
    IdleCause.REDUCTION: b'"olive"', IdleCause.SLOWER_REPLICA: b'"bad"',
}  # fmt: skip
"""Names among the colours that viewers of this format know."""
_NAMES = [
    *(b'"%s%s' % (name.encode(), b" " * bool(n)) for name, n in zip(NAMES, NUMBERED, strict=True)),
    *(b'"%s' % name.encode() for name in PATH_PARTS[1:]),
]
_PLAIN = frozenset([*np.flatnonzero(~NUMBERED).tolist(), *range(len(NAMES), len(_NAMES))])
"""Which of them have no microbatch behind them."""


def path_process(ranks: int) -> int:
    """Return the process of the critical path."""
    return process_of(-1, ranks) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyEncoder:
    """Turns waits and the critical path into text."""

    slices: Encoder
    """What turns the rows of the same timeline into text."""
    first_row: int
    """The number of the timeline's first row, from which waits and path count."""

    def waits(self, waits: Waits) -> Iterator[Block]:
        """Yield a line per wait."""
        timeline = self.slices.timeline
        ranks, starts = np.unique(waits.rank, return_index=True)
        for rank, (start, stop) in zip(ranks.tolist(), pairwise([*starts.tolist(), len(waits)]), strict=True):
            part = slice(start, stop)
            cause = waits.cause[part]
            yield from pieces(stop - start, [
                b'{"ph":"X","cat":"wait","name":', words(cause, _CAUSES),
                b',"pid":%d,"tid":%d,"ts":' % (process_of(rank, timeline.ranks), WAITS),
                *self._times(waits.start_ns[part], waits.end_ns[part]),
                b',"cname":', words(cause, [_WAIT_COLORS[cause] for cause in IdleCause]),
                b',"args":{"rank":%d,"peer":' % rank, shared_number(waits.peer[part]),
                b',"cause":', shared_number(self._numbered(waits.row[part])), b"}},\n",
            ])  # fmt: skip

    def path(self, path: OnPath) -> Iterator[Block]:
        """Yield a line per part of the critical path."""
        if not len(path):
            return
        timeline, row = self.slices.timeline, path.row - np.int32(self.first_row)
        process = path_process(timeline.ranks)
        kind, part = timeline.kind[row].astype(np.int64), path.part
        what = Choice.of(np.where(part == 0, kind, len(NAMES) - 1 + part))
        names = self.slices.names
        yield from pieces(len(path), [
            b'{"ph":"X","cat":"critical path","name":', *named(what, _NAMES, names.ends[names.end[row]], _PLAIN),
            b',"pid":%d,"tid":%d,"ts":' % (process, process + 1), *self._times(path.start_ns, path.end_ns),
            b',"cname":', color_of(timeline, row, self.slices.color),
            b',"args":{"rank":', shared_number(timeline.rank_of_row()[row]),
            b',"stage":', shared_number(timeline.stage[row]),
            b',"microbatch":', shared_number(timeline.microbatch[row]),
            b',"shown":', number(self._numbered(path.row)), b"}},\n",
        ])  # fmt: skip

    def _times(self, start_ns: Int64s, end_ns: Int64s) -> list[Part]:
        return [microseconds(start_ns, whole=False), b',"dur":', microseconds(end_ns - start_ns, whole=False)]

    def _numbered(self, row: Int32s) -> Int64s:
        """Return what the file calls rows of the whole timeline, 0 for none."""
        return np.where(row < 0, 0, row.astype(np.int64) + self.slices.arrows.first - self.first_row)


FORMAT = 2
"""Version of what a file says beyond the dialect; 1 said ``unit_route`` and ``braid``."""


def header(timeline: Timeline, lanes: Sequence[Lane], rank: int | None) -> bytes:
    """Return everything up to the first event, on one line.

    ``distributedInfo`` comes first because Holistic Trace Analysis takes the first ``"rank": N``,
    and only with that blank.
    """
    ranks = list(range(timeline.ranks))
    distributed = {
        "rank": rank or 0,
        "world_size": len(ranks),
        "backend": "nccl",
        "pg_count": 1,
        "pg_config": [{"pg_name": "1", "pg_desc": "mesh_pp", "pg_size": len(ranks), "ranks": ranks}],
    }
    top = {
        "pptraceFormat": FORMAT,
        "distributedInfo": distributed,
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "simulated"}],
        "displayTimeUnit": "ms",
        "metadata": {"pptrace": _own(timeline, lanes)},
    }
    return json.dumps(top)[:-1].encode() + b', "traceEvents": [\n'


def lane_names(timeline: Timeline, lanes: Sequence[Lane], hops: Hops) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of processes and threads.

    Numbers are as wide as the last rank's, for viewers that sort by name.
    """
    width = len(str(timeline.ranks - 1))
    ranks = {lane.rank for lane in lanes} | {counter.rank for counter in timeline.counters}
    why = timeline.why
    waiting = set(why.waits.rank.tolist()) if why else set()
    for rank in sorted(ranks - {-1}):
        process = process_of(rank, timeline.ranks)
        yield from _name("process", process, HOST, f"rank {rank:0{width}}", rank)
        yield from _name("thread", process, HOST, "host", 0)
        if rank in waiting:
            yield from _name("thread", process, WAITS, f"why rank {rank} waits", WAITS)
    for lane in lanes:
        yield from _name("thread", process_of(lane.rank, timeline.ranks), lane.thread, lane.title, lane.thread)
    process = process_of(-1, timeline.ranks)
    if len(hops) or -1 in ranks:
        yield from _name("process", process, HOST, "links", timeline.ranks)
    for thread, name in thread_names(timeline, hops):
        yield from _name("thread", process, thread, name, thread)
    if why and len(why.path):
        process = path_process(timeline.ranks)
        yield from _name("process", process, HOST, "critical path", -1)
        yield from _name("thread", process, process + 1, "critical path", 0)


def _own(timeline: Timeline, lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return what a reader needs beyond the events."""
    placement = timeline.placement
    return {
        "placement": {
            "ranks": placement.ranks,
            "stage_rank": placement.stage_rank.tolist(),
            "microbatch_route": placement.microbatch_route.tolist(),
            "edges": placement.edges.tolist(),
        },
        "lanes": [[lane.rank, lane.stream, lane.peer, lane.rows.stop - lane.rows.start] for lane in lanes],
        "counters": [[c.rank, c.name, c.unit] for c in timeline.counters],
        **_routes(timeline.routes),
        **({} if timeline.parts is None else {"segments": timeline.parts.names}),
        "provenance": dict(timeline.provenance),
    }


def _routes(routes: Routes | None) -> dict[str, Any]:
    if routes is None:
        return {}
    return {"routes": [routes.name, routes.rate_kbps.tolist(), routes.link.size]}


def _name(what: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    for key, args in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": key, "pid": pid, "tid": tid, "ts": 0, "args": args}


HOST = 1
"""Thread of each process that launches."""

_COMPUTE = 7
_OTHERS = 20
_TOWARDS = {Stream.SEND: "to", Stream.RECV: "from"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane and where its events go."""

    rank: int
    """Its rank."""
    stream: Stream
    """What it is."""
    peer: int
    """The peer that it serves alone, or -1."""
    thread: int
    """Its stream id, as PyTorch numbers them: 7 for compute, others from 20 on; also the thread."""
    rows: slice
    """Its rows in the timeline."""

    @property
    def title(self) -> str:
        """Say what the lane is, as its row in a viewer is called."""
        peer = f" {_TOWARDS.get(self.stream, 'with')} rank {self.peer}" if self.peer >= 0 else ""
        return f"stream {self.thread} {stream_title(self.stream)}{peer}"


def lanes_of(timeline: Timeline) -> list[Lane]:
    """Return the lanes in order."""
    lanes: list[Lane] = []
    others = 0
    for index in range(timeline.lanes):
        stream = Stream(int(timeline.lane_stream[index]))
        peer = int(timeline.lane_peer[index])
        if index and timeline.lane_rank[index] != timeline.lane_rank[index - 1]:
            others = 0
        main = stream == Stream.COMPUTE and peer < 0
        lanes.append(
            Lane(
                rank=int(timeline.lane_rank[index]),
                stream=stream,
                peer=peer,
                thread=_COMPUTE if main else _OTHERS + others,
                rows=slice(int(timeline.lane_ptr[index]), int(timeline.lane_ptr[index + 1])),
            )
        )
        others += not main
    return lanes


def part_of(timeline: Timeline, rank: int) -> tuple[Timeline, int]:
    """Return one rank's rows, whose causes still count the rows of all, and the first row's number.

    So do the rows that say why it waited.

    The links that its messages went over go with them; the cluster's counters go with the first rank.
    """
    first, last = np.searchsorted(timeline.lane_rank, [rank, rank + 1]).tolist()
    ptr = timeline.lane_ptr[first : last + 1]
    rows = slice(int(ptr[0]), int(ptr[-1]))
    owners = {rank, -1} if first == 0 else {rank}
    part = replace(
        timeline,
        lane_ptr=ptr - ptr[0],
        counters=tuple(counter for counter in timeline.counters if counter.rank in owners),
        routes=None if timeline.routes is None else timeline.routes.of_rows(np.arange(rows.start, rows.stop)),
        why=None if timeline.why is None else timeline.why.of_ranks({rank}, timeline.rank_of_row()),
        parts=None if timeline.parts is None else timeline.parts.of_rows(np.arange(rows.start, rows.stop)),
        **{name: getattr(timeline, name)[first:last] for name in LANE_COLUMNS[:3]},
        **{name: getattr(timeline, name)[rows] for name in ROW_COLUMNS},
    )
    return part, rows.start


def process_of(rank: int, ranks: int) -> int:
    """Return the process of a rank, or of the links behind the ranks for -1; viewers keep 0 for themselves."""
    return (rank if rank >= 0 else ranks) + 1


def step_of(timeline: Timeline) -> tuple[int, int]:
    """Return the start and end of the step, which ranks written apart share."""
    if not len(timeline):
        return 0, 0
    start = min(int(timeline.enter_ns.min()), int(timeline.start_ns.min()))
    return start, max(int(timeline.end_ns.max()), int(timeline.enter_ns.max()))


def spans(timeline: Timeline, lanes: Sequence[Lane], step: tuple[int, int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield each span's event up to its ``ts``, its start and its end, in nanoseconds.

    Phases are GPU annotations without a stream, as the profiler writes them: readers would count
    them as kernels otherwise. One that would cut a slice in two is left out.
    """
    for process in sorted({process_of(lane.rank, timeline.ranks) for lane in lanes}):
        yield _event("user_annotation", "ProfilerStep#1", process, HOST), *step
    compute = {lane.rank: lane for lane in lanes if lane.stream == Stream.COMPUTE and lane.peer < 0}
    for phase in phases(timeline):
        lane = compute.get(phase.rank)
        if lane and not any(_within_slice(timeline, lane.rows, t) for t in (phase.start_ns, phase.end_ns)):
            event = _event("gpu_user_annotation", phase.name, process_of(lane.rank, timeline.ranks), lane.thread)
            yield event, phase.start_ns, phase.end_ns


def _within_slice(timeline: Timeline, rows: slice, at_ns: int) -> bool:
    ended = int(np.searchsorted(timeline.end_ns[rows], at_ns, side="right"))
    starts = timeline.start_ns[rows]
    return ended < starts.size and int(starts[ended]) < at_ns


def _event(category: str, name: str, pid: int, tid: int) -> bytes:
    return b'{"ph":"X","cat":"%s","name":"%s","pid":%d,"tid":%d,"ts":' % (
        category.encode(), name.encode(), pid, tid,
    )  # fmt: skip
