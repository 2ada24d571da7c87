"""Writer of Kineto JSON.

Perfetto, chrome://tracing and Holistic Trace Analysis read it. Each event is a line, with numbers aligned by
blanks. Columns are encoded in chunks of some thousand lines. Chunks are written while the next are encoded.

Flow events directly follow their slice, because viewers bind a flow to the last slice before it where times are
equal. They follow a message from its producer through its transfer to its consumer, and the critical path.

A slice becomes five events, plus an event per flow that touches it. Annotations and launches on the simulated host
have no duration, so they nest for any order of launches.

Slices on links, waits and the critical path have separate categories and no stream, because readers of measured
traces count a rank's kernels by stream. Waits are a thread of their rank, links are a process after the ranks, and
the path is the process after the links.
"""

from __future__ import annotations

import json
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from pptrace.files import write_behind
from pptrace.steps.kinds import KINDS, Stream
from pptrace.timeline.critical_path import PATH_PARTS
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import phases
from pptrace.traces.kineto.cells import (
    Block,
    Choice,
    Part,
    Some,
    all_equal,
    microseconds,
    number,
    pieces,
    stacked,
    words,
)
from pptrace.traces.scene import (
    CARRIES,
    CATEGORY,
    COLORS,
    IS_RECEIVING,
    NAMES,
    NUMBERED,
    Scene,
    column_defaults,
    labels_of,
    link_title,
    links_and_segments,
    rank_name,
    stream_title,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Counter, OnPath, Timeline, Waits
    from pptrace.traces.scene import Hops

_ROWS = 4096
_IN_FLIGHT = 2


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write all ranks to a file, or only the rank of the option ``rank``.

    ``color`` is one of :data:`~pptrace.traces.scene.COLOR_BY`. Rows keep their numbers in the full timeline, so a
    reader can join files of single ranks. Such files have no flows between ranks.

    Raises:
        ConfigError: an option has an unknown value.
        OSError: the file cannot be written.
    """
    formatter = LineFormatter(Scene.of(timeline, options))
    with path.open("wb") as file:
        write_behind(file, _texts(formatter, options.get("rank"), _step_of(timeline)), waiting=_IN_FLIGHT)


def _texts(formatter: LineFormatter, rank: int | None, step: tuple[int, int]) -> Iterator[bytes | memoryview]:
    """Yield the file in pieces. The name of a lane is the last event, which has no comma after it."""
    timeline, hops = formatter.scene.timeline, formatter.scene.hops
    lanes = _lanes_of(timeline)
    names = [json.dumps(event).encode() for event in _lane_names(formatter.scene, lanes)]
    yield _header(timeline, lanes, rank) + b"".join(name + b",\n" for name in names[:-1])
    yield from _spans(timeline, lanes, step, integers=formatter.integers)
    for lane in lanes:
        for rows in _chunks(lane.rows, formatter.points.most_per_row(lane.rows)):
            yield from formatter.slices(lane, rows)
    for lane_index, (start, stop) in enumerate(pairwise(hops.lane_ptr.tolist())):
        for chunk in _chunks(slice(start, stop)):
            yield from formatter.hops(lane_index, chunk)
    if timeline.why is not None:
        yield from formatter.waits(timeline.why.waits)
        yield from formatter.path(timeline.why.path)
    for counter in timeline.counters:
        for rows in _chunks(slice(0, counter.at_ns.size)):
            yield from _counter_lines(counter, process_of(counter.rank, timeline.ranks), rows)
    yield b"".join(names[-1:]) + b"\n]}\n"


def _chunks(rows: slice, width: int = 1) -> Iterator[slice]:
    """Split rows into chunks of similar size in bytes; a row has up to ``width`` flows."""
    step = max(1, _ROWS // max(1, width))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def _counter_lines(counter: Counter, process: int, rows: slice) -> Iterator[memoryview]:
    """Yield a line per step of a counter, with times in nanosecond precision."""
    time_ns = counter.at_ns[rows]
    name, unit = json.dumps(counter.name).encode(), json.dumps(counter.unit).encode()
    head = b'{"ph":"C","name":%s,"pid":%d,"ts":' % (name, process)
    value = number(counter.value[rows])
    time = microseconds(time_ns, integers=False)
    return pieces(time_ns.size, [head, time, b',"args":{%s:' % unit, value, b"}},\n"])


_PHASES = [b'"s"', b'"t"', b'"f","bp":"e"']
_FLOW_NAMES = [b'"p2p","name":"p2p"', b'"critical path","name":"critical path"']
_USUAL_FLOWS = 2

_BLANK = ord(" ")


def _ends(texts: Sequence[str]) -> Block:
    """Return the JSON of the ends of names, each with its closing quote and trailing blanks."""
    quoted = [json.dumps(text)[1:] for text in texts]
    width = max(map(len, quoted), default=1)
    return np.frombuffer("".join(text.ljust(width) for text in quoted).encode(), dtype=np.uint8).reshape(-1, width)


def _join_names(
    prefix: Choice, texts: Sequence[bytes] | Mapping[int, bytes], ends: Block, plain: frozenset[int] = frozenset()
) -> list[Part]:
    """Return ``texts[prefix]`` directly followed by an end, or only by a quote for ``plain`` prefixes."""
    heads = {code: texts[code] + b'"' * (code in plain) for code in prefix.used}
    longest = max(map(len, heads.values()))
    width = max(len(texts[code]) for code in heads) + ends.shape[1]
    if plain.isdisjoint(heads) and longest == min(map(len, heads.values())):
        return [prefix.among(heads), ends]
    if plain.issuperset(heads):
        return [prefix.among(heads), b" " * (width - longest)]
    block = np.full((len(ends), width), _BLANK, dtype=np.uint8)
    for code, head in heads.items():
        lines = np.flatnonzero(prefix.codes == code)
        block[lines, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        if code not in plain:
            block[lines, len(head) : len(head) + ends.shape[1]] = ends[lines]
    return [block]


_LISTED_RANKS = 30
"""Length at which PyTorch truncates its list of a group's ranks."""
_SEND_RECV, _ALL_REDUCE = "SendRecv", "AllReduce_Sum_f32_RING_LL"
_NCCL_LAUNCH = "cudaLaunchKernelExC"
"""The runtime call that launches NCCL's kernels."""
_COLLECTIVES = {
    "UNSHARD": "AllGather_RING_LL", "UNSHARD_SUBGROUP": "AllGather_RING_LL", "REDUCE_GRAD": _ALL_REDUCE,
    "REDUCE_GROUPS": _ALL_REDUCE, "SYNC": _ALL_REDUCE,
}  # fmt: skip
"""NCCL's kernels of collective kinds."""
_COPIES = {Stream.COPY_OUT: "Memcpy DtoH (Device -> Pinned)", Stream.COPY_IN: "Memcpy HtoD (Pinned -> Device)"}
"""CUDA's names of operations on copy streams."""
_SEGMENTS = {
    "allreduce": ("allreduce", _ALL_REDUCE),
    "allgather": ("allgather", "AllGather_RING_LL"),
    "reducescatter": ("reduce_scatter", "ReduceScatter_Sum_f32_RING_LL"),
    "alltoall": ("all_to_allv", _SEND_RECV),
    "dispatch": ("all_to_allv", _SEND_RECV),
    "combine": ("all_to_allv", _SEND_RECV),
}
"""PyTorch's name and NCCL's kernel of collectives inside actions, by a substring of their names' letters."""
_GROUPS = {
    Stream.TENSOR_PARALLEL: ("mesh_tp", "allreduce"),
    Stream.EXPERT_PARALLEL: ("mesh_ep", "alltoall"),
    Stream.CONTEXT_PARALLEL: ("mesh_cp", "alltoall"),
}
"""PyTorch's name of each group, and its default collective for segments with another name."""


class _ProfilerNames(NamedTuple):
    """Names in the profiler for a kind of action."""

    name: str
    """The kernel's name, without the microbatch of numbered kinds."""
    category: str = "kernel"
    """The value of ``cat``."""
    launch: str = "cudaLaunchKernel"
    """The runtime call that launches the kernel."""


def _kind_names(name: str, category: str, stream: Stream) -> _ProfilerNames:
    """Return the profiler's names for a kind; the default is the name of the kind."""
    if category == "copy":
        return _ProfilerNames(_COPIES.get(stream, name), "gpu_memcpy", "cudaMemcpyAsync")
    kernel = _SEND_RECV if category == "communication" else _COLLECTIVES.get(name)
    if kernel is None:
        return _ProfilerNames(name)
    return _ProfilerNames(f"ncclDevKernel_{kernel}", launch=_NCCL_LAUNCH)


_KIND_NAMES = tuple(map(_kind_names, NAMES, CATEGORY, (traits.stream for traits in KINDS.values())))
"""Names per kind, in the order of kinds."""

_MICROBATCH_COLORS = (
    "thread_state_running",
    "rail_response",
    "rail_animation",
    "rail_idle",
    "rail_load",
    "startup",
    "thread_state_runnable",
    "thread_state_iowait",
    "generic_work",
    "olive",
)
"""Colors of microbatches, in rotation."""


def _group_names(stream: Stream, segment: str) -> tuple[bytes, bytes]:
    """Return the kernel of a collective inside an action in JSON, and additional arguments of the kernel's event.

    >>> _group_names(Stream.TENSOR_PARALLEL, "all-reduce")[0]
    b'"ncclDevKernel_AllReduce_Sum_f32_RING_LL"'
    """
    letters = "".join(filter(str.isalpha, segment.lower()))
    group, default = _GROUPS[stream]
    name, kernel = next((words for key, words in _SEGMENTS.items() if key in letters), _SEGMENTS[default])
    facts = f',"Collective name":"{name}","Process Group Description":"{group}"'
    return f'"ncclDevKernel_{kernel}"'.encode(), facts.encode()


def _collective_facts(kind: int, *, size_bytes: int, peer: int, ranks: int) -> bytes:
    """Return the arguments that PyTorch adds to the kernel of a send or receive; empty for other kinds.

    >>> _collective_facts(NAMES.index("SEND_F"), size_bytes=8, peer=1, ranks=2)[:52]
    b',"Collective name":"send","In msg nelems":8,"Out msg'
    """
    if not CARRIES[kind]:
        return b""
    name, key = ("recv", "Src Rank") if IS_RECEIVING[kind] else ("send", "Dst Rank")
    listed = ", ".join(map(str, range(min(ranks, _LISTED_RANKS))))
    group = f"[{listed}{', ...' if ranks > _LISTED_RANKS else ''}]"
    with_peer = f',"{key}":{peer}' if peer >= 0 else ""
    return (
        f',"Collective name":"{name}","In msg nelems":{size_bytes},"Out msg nelems":{size_bytes},'
        f'"Group size":{ranks},"dtype":"Byte","Process Group Name":"1","Process Group Description":"mesh_pp",'
        f'"Process Group Ranks":"{group}"{with_peer}'
    ).encode()


_LAUNCH = [b'"%s"' % word.launch.encode() for word in _KIND_NAMES]
_CATEGORY = [b'"%s"' % word.category.encode() for word in _KIND_NAMES]
_KIND = [b'"%s"' % name.encode() for name in NAMES]
_KERNEL = [b'"%s%s' % (word.name.encode(), b" " * bool(n)) for word, n in zip(_KIND_NAMES, NUMBERED, strict=True)]
_UNNUMBERED = frozenset(np.flatnonzero(~NUMBERED).tolist())
_KIND_COLORS = [b'"%s"' % color.encode() for color in COLORS]
_SLICE_COLORS = [b'"%s"' % color.encode() for color in _MICROBATCH_COLORS]
_FIRST = 100_000
"""Correlation of the first row. HTA chooses the integer type of event numbers by the size of correlations."""


_CAUSES = [b'"%s"' % cause.word.encode() for cause in IdleCause]
_WAIT_COLORS = {
    IdleCause.FILL: "grey", IdleCause.DRAIN: "grey", IdleCause.TRANSFER: "rail_load",
    IdleCause.CONTENTION: "terrible", IdleCause.HEAD_OF_LINE: "bad", IdleCause.PEER_COMPUTE: "white",
    IdleCause.REDUCTION: "olive", IdleCause.SLOWER_REPLICA: "bad",
}  # fmt: skip
"""Reserved color names of chrome://tracing."""
_CAUSE_COLORS = [b'"%s"' % _WAIT_COLORS[cause].encode() for cause in IdleCause]
_PATH_NAMES = [
    *(b'"%s%s' % (name.encode(), b" " * bool(n)) for name, n in zip(NAMES, NUMBERED, strict=True)),
    *(b'"%s' % name.encode() for name in PATH_PARTS[1:]),
]
_PLAIN_PATH_NAMES = frozenset([*_UNNUMBERED, *range(len(NAMES), len(_PATH_NAMES))])
"""Indices of path names without a microbatch."""


class LineFormatter:
    """Formats the slices, messages on links, waits and critical path of a scene as lines."""

    def __init__(self, scene: Scene) -> None:
        timeline, labels = scene.timeline, labels_of(scene.timeline)
        self.scene = scene
        self.points = flow_points(scene)
        self._first = scene.first_row + _FIRST
        """The difference between numbers of rows and flows in the file and in the scene."""
        self._rank = timeline.rank_of_row()
        microbatches = [text[1:] for text in labels.microbatch]
        kernels = [text + segment for text, segment in zip(microbatches, labels.segment, strict=True)]
        self._label, self._actions, self._kernels = labels.of_row, _ends(microbatches), _ends(kernels)
        """The label of each row; the ends of names of its action and its kernel, by label."""
        quoted = np.strings.add(scene.hop_titles(), np.bytes_(b'"'))
        titles = quoted.view(np.uint8).reshape(quoted.size, quoted.itemsize)
        self._titles = np.where(titles == 0, np.uint8(_BLANK), titles)
        """The title of each message with hops, with its closing quote and trailing blanks."""
        times = (timeline.enter_ns, timeline.start_ns, timeline.end_ns)
        self.integers = not any(bool((column % 1000).any()) for column in times)
        """Whether all times are integer microseconds."""

    def slices(self, lane: Lane, rows: slice) -> Iterator[memoryview]:
        """Yield the lines of some rows of a lane."""
        timeline = self.scene.timeline
        kind, ends = Choice.of(timeline.kind[rows]), self._row_ends(self._actions, rows)
        kernel, launch, category, facts = self._kernel(lane, rows, kind, ends)
        row_id = number(np.arange(rows.start, rows.stop) + self._first)
        start = self._time(timeline.start_ns[rows])
        immediate = np.array_equal(timeline.enter_ns[rows], timeline.start_ns[rows])
        enter = start if immediate else self._time(timeline.enter_ns[rows])
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
            b',"dur":', dur, b',"cname":', self._color(rows),
            b',"args":{"device":0,"stream":%d,"correlation":' % lane.thread, row_id,
            b',"kind":', kind.among(_KIND), *self._facts(rows), *facts, b"}},\n",
            b'{"ph":"f","id":', row_id, device, start, b',"cat":"ac2g","name":"ac2g","bp":"e"},',
        ]  # fmt: skip
        return self._with_flows(lines, device, rows)

    def hops(self, lane: int, chunk: slice) -> Iterator[memoryview]:
        """Yield the lines of some messages on a lane of a link."""
        timeline, hops = self.scene.timeline, self.scene.hops
        row = hops.row[chunk]
        start, duration = timeline.start_ns[row], timeline.end_ns[row] - timeline.start_ns[row]
        place = b',"pid":%d,"tid":%d,"ts":' % (process_of(-1, timeline.ranks), _link_thread(lane, timeline.ranks))
        facts: dict[str, NDArray[np.integer]] = {
            "hop": hops.place[chunk],
            "rank": self._rank[row],
            "peer": self.scene.peer[row],
            "stage": timeline.stage[row],
            "microbatch": timeline.microbatch[row],
            "span": timeline.span[row],
            "bytes": timeline.size_bytes[row],
        }
        lines: list[Part] = [
            b'{"ph":"X","cat":"link","name":"', self._titles[hops.message[chunk]], place, self._time(start),
            b',"dur":', self._time(duration), b',"cname":', self._color(row),
            b',"args":{"link":%d,"transfer":' % hops.lane_link[lane], number(row.astype(np.int64) + self._first),
            b',"kind":', words(timeline.kind[row], _KIND),
        ]  # fmt: skip
        for name, values in facts.items():
            lines += [b',"%s":' % name.encode(), _shared_number(values)]
        lines.append(b"}},")
        rows = len(timeline)
        return self._with_flows(lines, place, slice(rows + chunk.start, rows + chunk.stop))

    def waits(self, waits: Waits) -> Iterator[memoryview]:
        """Yield a line per wait."""
        ranks, starts = np.unique(waits.rank, return_index=True)
        for rank, (start, stop) in zip(ranks.tolist(), pairwise([*starts.tolist(), len(waits)]), strict=True):
            part = slice(start, stop)
            cause = waits.cause[part]
            yield from pieces(stop - start, [
                b'{"ph":"X","cat":"wait","name":', words(cause, _CAUSES),
                b',"pid":%d,"tid":%d,"ts":' % (process_of(rank, self.scene.timeline.ranks), WAITS),
                *_exact_times(waits.start_ns[part], waits.end_ns[part]), b',"cname":', words(cause, _CAUSE_COLORS),
                b',"args":{"rank":%d,"peer":' % rank, _shared_number(waits.peer[part]),
                b',"cause":', _shared_number(_row_ids(waits.row[part])), b"}},\n",
            ])  # fmt: skip

    def path(self, path: OnPath) -> Iterator[memoryview]:
        """Yield a line per part of the critical path."""
        if not len(path):
            return
        timeline, row = self.scene.timeline, path.row - np.int32(self.scene.first_row)
        process = _path_process(timeline.ranks)
        kind = timeline.kind[row].astype(np.int64)
        name = Choice.of(np.where(path.part == 0, kind, len(NAMES) - 1 + path.part))
        yield from pieces(len(path), [
            b'{"ph":"X","cat":"critical path","name":',
            *_join_names(name, _PATH_NAMES, self._row_ends(self._actions, row), _PLAIN_PATH_NAMES),
            b',"pid":%d,"tid":%d,"ts":' % (process, process + 1), *_exact_times(path.start_ns, path.end_ns),
            b',"cname":', self._color(row),
            b',"args":{"rank":', _shared_number(self._rank[row]),
            b',"stage":', _shared_number(timeline.stage[row]),
            b',"microbatch":', _shared_number(timeline.microbatch[row]),
            b',"shown":', number(_row_ids(path.row)), b"}},\n",
        ])  # fmt: skip

    def _row_ends(self, ends: Block, rows: slice | Int32s) -> Block:
        width = ends.shape[1]
        return ends.view(f"V{width}").take(self._label[rows]).view(np.uint8).reshape(-1, width)

    def _kernel(
        self, lane: Lane, rows: slice, kind: Choice, ends: Block
    ) -> tuple[list[Part], Part, Part, list[Part]]:
        """Return the names, launches, categories and additional arguments of the rows' kernels."""
        parts = self.scene.timeline.parts
        facts = [self._message(rows)]
        if parts is not None:
            segment = Choice.of(parts.name[rows] + 1)
            segment_number = parts.number[rows]
            if (segment_number >= 0).any():
                texts = [b"", *(json.dumps(name).encode() for name in parts.names)]
                described = {
                    c: b',"segment":%s,"segment_number":' % texts[c] if c else b',"segment_number":'
                    for c in segment.used
                }
                facts += [segment.among(described), _shared_number(segment_number)]
            if lane.stream.is_group and (segment_number >= 0).all():
                names = {c: _group_names(lane.stream, parts.names[c - 1]) for c in segment.used}
                kernel, group_facts = (segment.among({c: names[c][index] for c in names}) for index in (0, 1))
                return [kernel], b'"%s"' % _NCCL_LAUNCH.encode(), b'"kernel"', [*facts, group_facts]
            ends = self._row_ends(self._kernels, rows)
        names_of_kinds = _join_names(kind, _KERNEL, ends, plain=_UNNUMBERED)
        return names_of_kinds, kind.among(_LAUNCH), kind.among(_CATEGORY), facts

    def _time(self, times_ns: NDArray[np.int64]) -> Block:
        return microseconds(times_ns, integers=self.integers)

    def _color(self, rows: slice | Int32s) -> Part:
        timeline = self.scene.timeline
        if self.scene.color_by == "kind":
            return words(timeline.kind[rows], _KIND_COLORS)
        return words(np.maximum(timeline.microbatch[rows], 0) % len(_SLICE_COLORS), _SLICE_COLORS)

    def _action(self, rows: slice, ends: Block) -> list[Part]:
        timeline = self.scene.timeline
        stage = timeline.stage[rows].astype(np.int64) + 1  # a stage may be -1
        code = Choice.of(stage * len(_KIND_NAMES) + timeline.kind[rows])
        stage_and_kind = {c: divmod(c, len(_KIND_NAMES)) for c in code.used}
        texts = {c: b'"PP:%d%s' % (stage - 1, NAMES[kind].encode()) for c, (stage, kind) in stage_and_kind.items()}
        return _join_names(code, texts, ends)

    def _facts(self, rows: slice) -> list[Part]:
        timeline = self.scene.timeline
        stage, microbatch = _shared_number(timeline.stage[rows]), _shared_number(timeline.microbatch[rows])
        parts: list[Part] = [b',"stage":', stage, b',"microbatch":', microbatch]
        for name, default in column_defaults(timeline.end_ns[rows] - timeline.start_ns[rows]).items():
            values = getattr(timeline, name)[rows]
            if (values != default).any():
                parts += [b',"%s":' % name.removeprefix("size_").encode(), _shared_number(values)]
        if self.scene.loads.size and (self.scene.loads[rows] >= 0).any():
            parts += [b',"load":', _shared_number(self.scene.loads[rows])]
        return [*parts, b',"cause":', _shared_number(_row_ids(timeline.cause[rows]))]

    def _message(self, rows: slice) -> Part:
        """Return the additional arguments of sends and receives, as PyTorch's profiler writes them."""
        timeline = self.scene.timeline
        kind = timeline.kind[rows]
        if not CARRIES[kind].any():
            return b""
        size, sized = _distinct(timeline.size_bytes[rows])
        peer_count = timeline.ranks + 1
        keys, code = _distinct((sized * len(_KIND_NAMES) + kind) * peer_count + self.scene.peer[rows] + 1)
        sizes, kinds, peers = np.unravel_index(keys, (size.size, len(_KIND_NAMES), peer_count))
        columns = (size[sizes].tolist(), kinds.tolist(), peers.tolist())
        texts = [
            _collective_facts(kind, size_bytes=size_bytes, peer=peer - 1, ranks=timeline.ranks)
            for size_bytes, kind, peer in zip(*columns, strict=True)
        ]
        return words(code, texts)

    def _with_flows(self, parts: list[Part], place: bytes, rows: slice) -> Iterator[memoryview]:
        """Yield the lines of some rows and of their flows; ``place`` is the JSON of process and thread."""
        count = rows.stop - rows.start
        ptr = self.points.row_ptr[rows.start : rows.stop + 1]
        per_row = np.diff(ptr)
        most = int(per_row.max(initial=0))
        if most <= _USUAL_FLOWS and most == per_row.min():
            flows = chain(*(self._flow(ptr[:-1] + slot, place) for slot in range(most)))
            yield from pieces(count, [*parts, *flows, b"\n"])
            return
        slots: list[Some] = []
        for slot in range(most):
            lines = np.flatnonzero(per_row > slot)
            slots.append(Some(stacked(lines.size, self._flow(ptr[lines] + slot, place)), lines))
        if most <= _USUAL_FLOWS:
            yield from pieces(count, [*parts, *slots, b"\n"])
            return
        block = stacked(count, [*parts, *slots, b"\n"])
        keep = np.ones(block.shape, dtype=bool)
        end = block.shape[1] - 1 - sum(cells.shape[1] for cells in slots)
        for index, cells in enumerate(slots):
            keep[:, end : end + cells.shape[1]] = (per_row > index)[:, None]
            end += cells.shape[1]
        yield block[keep].data

    def _flow(self, points: NDArray[np.int64], place: bytes) -> list[Part]:
        flow = number(self.points.flow[points].astype(np.int64) + self._first)
        time = microseconds(self.points.at_ns[points], integers=False)
        phase = words(self.points.phase[points], _PHASES)
        name = words(self.points.on_path[points].astype(np.int8), _FLOW_NAMES)
        return [b'\n{"ph":', phase, b',"id":', flow, place, time, b',"cat":', name, b"},"]


def _exact_times(start_ns: Int64s, end_ns: Int64s) -> list[Part]:
    return [microseconds(start_ns, integers=False), b',"dur":', microseconds(end_ns - start_ns, integers=False)]


def _row_ids(row: Int32s) -> Int64s:
    """Return the numbers in the file of rows of the full step, 0 for none."""
    return np.where(row < 0, 0, row.astype(np.int64) + _FIRST)


def _distinct(values: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the distinct values, and the index of each value among them."""
    if all_equal(values):
        return values[:1], np.zeros(values.size, dtype=np.int64)
    return np.unique(values, return_inverse=True)


def _shared_number(values: NDArray[np.integer]) -> Part:
    """Return a cell per line, or a single number if all lines share it."""
    return b"%d" % values[0] if all_equal(values) else number(values)


def _link_thread(lane: int, ranks: int) -> int:
    """Return the thread of a lane; viewers treat a thread with the number of its process as the main thread."""
    return process_of(-1, ranks) + 1 + lane


def _path_process(ranks: int) -> int:
    return process_of(-1, ranks) + 1


FORMAT = 2
"""Version of pptrace's additions to the dialect."""


def _header(timeline: Timeline, lanes: Sequence[Lane], rank: int | None) -> bytes:
    """Return the top-level keys before the first event, as a single line.

    ``distributedInfo`` comes first because Holistic Trace Analysis searches for the first ``"rank": N``,
    including the blank.
    """
    ranks = list(range(timeline.ranks))
    placement = timeline.placement
    distributed = {
        "rank": rank or 0,
        "world_size": len(ranks),
        "backend": "nccl",
        "pg_count": 1,
        "pg_config": [{"pg_name": "1", "pg_desc": "mesh_pp", "pg_size": len(ranks), "ranks": ranks}],
    }
    step = {
        "placement": {
            "ranks": placement.ranks,
            "stage_rank": placement.stage_rank.tolist(),
            "microbatch_route": placement.microbatch_route.tolist(),
            "edges": placement.edges.tolist(),
            **({"backward_rank": placement.backward_rank.tolist()} if placement.backward_rank.size else {}),
        },
        "lanes": [[lane.rank, lane.stream, lane.peer, lane.rows.stop - lane.rows.start] for lane in lanes],
        "counters": [[c.rank, c.name, c.unit] for c in timeline.counters],
        **links_and_segments(timeline),
        "provenance": dict(timeline.provenance),
    }
    top = {
        "pptraceFormat": FORMAT,
        "distributedInfo": distributed,
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "simulated"}],
        "displayTimeUnit": "ms",
        "metadata": {"pptrace": step},
    }
    return json.dumps(top)[:-1].encode() + b', "traceEvents": [\n'


def _lane_names(scene: Scene, lanes: Sequence[Lane]) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of processes and threads."""
    timeline, hops, why = scene.timeline, scene.hops, scene.timeline.why
    width = len(str(timeline.ranks - 1))
    ranks = {lane.rank for lane in lanes} | {counter.rank for counter in timeline.counters}
    waiting = set(why.waits.rank.tolist()) if why else set()
    for rank in sorted(ranks - {-1}):
        process = process_of(rank, timeline.ranks)
        yield from _name("process", process, HOST, rank_name(timeline, rank, width), rank)
        yield from _name("thread", process, HOST, "host", 0)
        if rank in waiting:
            yield from _name("thread", process, WAITS, f"why rank {rank} waits", WAITS)
    for lane in lanes:
        yield from _name("thread", process_of(lane.rank, timeline.ranks), lane.thread, lane.title, lane.thread)
    process = process_of(-1, timeline.ranks)
    if len(hops) or -1 in ranks:
        yield from _name("process", process, HOST, "links", timeline.ranks)
    if timeline.routes is not None:
        for index, (link, copy) in enumerate(zip(hops.lane_link.tolist(), hops.lane_copy.tolist(), strict=True)):
            title, thread = link_title(timeline.routes, link), _link_thread(index, timeline.ranks)
            yield from _name("thread", process, thread, f"{title} #{copy + 1}" if copy else title, thread)
    if why and len(why.path):
        process = _path_process(timeline.ranks)
        yield from _name("process", process, HOST, "critical path", -1)
        yield from _name("thread", process, process + 1, "critical path", 0)


def _name(what: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    for key, args in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": key, "pid": pid, "tid": tid, "ts": 0, "args": args}


HOST, WAITS = 1, 2
"""Threads of each process: the host thread, and the causes of the rank's waits."""

_COMPUTE_STREAM = 7
_OTHER_STREAMS = 20
_TOWARDS = {Stream.SEND: "to", Stream.RECV: "from"}


class Lane(Struct, frozen=True, kw_only=True):
    """A lane and the thread of its events."""

    rank: int
    stream: Stream
    peer: int
    """The peer of a lane for a single peer, else -1."""
    thread: int
    """The thread and stream id, as PyTorch numbers streams: 7 for compute, other streams from 20 on."""
    rows: slice
    """Rows of the lane in the timeline."""

    @property
    def title(self) -> str:
        """The name of the lane's track in a viewer."""
        peer = f" {_TOWARDS.get(self.stream, 'with')} rank {self.peer}" if self.peer >= 0 else ""
        return f"stream {self.thread} {stream_title(self.stream)}{peer}"


def _lanes_of(timeline: Timeline) -> list[Lane]:
    """Return the lanes in the order of the timeline."""
    lanes: list[Lane] = []
    columns = (timeline.lane_rank, timeline.lane_stream, timeline.lane_peer)
    stream_count, last_rank = 0, -1
    for (rank, stream, peer), rows in zip(
        np.stack(columns, axis=1).tolist(), pairwise(timeline.lane_ptr.tolist()), strict=True
    ):
        if rank != last_rank:
            stream_count, last_rank = 0, rank
        main = stream == Stream.COMPUTE and peer < 0
        thread = _COMPUTE_STREAM if main else _OTHER_STREAMS + stream_count
        lanes.append(Lane(rank=rank, stream=Stream(stream), peer=peer, thread=thread, rows=slice(*rows)))
        stream_count += not main
    return lanes


def process_of(rank: int, ranks: int) -> int:
    """Return the process of a rank, or of the links for -1; viewers reserve process 0."""
    return (rank if rank >= 0 else ranks) + 1


def _step_of(timeline: Timeline) -> tuple[int, int]:
    """Return the start and end of the step, which files of single ranks share."""
    if not len(timeline):
        return 0, 0
    start = min(int(timeline.enter_ns.min()), int(timeline.start_ns.min()))
    return start, max(int(timeline.end_ns.max()), int(timeline.enter_ns.max()))


def _spans(timeline: Timeline, lanes: Sequence[Lane], step: tuple[int, int], *, integers: bool) -> Iterator[bytes]:
    """Yield the lines of the step and of the phases.

    Phases are GPU annotations without a stream, as the profiler writes them, so readers do not count them as
    kernels. A phase with a boundary inside a slice is omitted.
    """
    for process in sorted({process_of(lane.rank, timeline.ranks) for lane in lanes}):
        yield _span("user_annotation", "ProfilerStep#1", process, HOST, step, integers=integers)
    compute = {lane.rank: lane for lane in lanes if lane.stream == Stream.COMPUTE and lane.peer < 0}
    for phase in phases(timeline):
        lane, ends_ns = compute.get(phase.rank), (phase.start_ns, phase.end_ns)
        if lane and not any(_within_slice(timeline, lane.rows, time_ns) for time_ns in ends_ns):
            process = process_of(lane.rank, timeline.ranks)
            yield _span("gpu_user_annotation", phase.name, process, lane.thread, ends_ns, integers=integers)


def _within_slice(timeline: Timeline, rows: slice, time_ns: int) -> bool:
    ended = int(np.searchsorted(timeline.end_ns[rows], time_ns, side="right"))
    starts = timeline.start_ns[rows]
    return ended < starts.size and int(starts[ended]) < time_ns


def _span(category: str, name: str, pid: int, tid: int, ends_ns: tuple[int, int], *, integers: bool) -> bytes:
    head = f'{{"ph":"X","cat":"{category}","name":"{name}","pid":{pid},"tid":{tid},"ts":'.encode()
    start, duration = (
        microseconds(np.array([time_ns]), integers=integers).tobytes()
        for time_ns in (ends_ns[0], ends_ns[1] - ends_ns[0])
    )
    return b"".join([head, start, b',"dur":', duration, b',"args":{}},\n'])


START, STEP, END = range(3)
"""Phases ``s``, ``t`` and ``f`` of a flow."""

_CHUNK_MESSAGES = 1 << 14
"""Messages per chunk; a chunk fits into the processor's L2 cache."""
_NEVER = np.iinfo(np.int64).max


class Points(Struct, frozen=True, kw_only=True):
    """Points of flows, sorted by their row of the timeline; points on hops follow those on rows."""

    row_ptr: Int64s
    """Shape (rows + hops + 1,): row ``r`` has the points ``row_ptr[r]:row_ptr[r + 1]``."""
    phase: Int8s
    """:data:`START`, :data:`STEP` or :data:`END`."""
    at_ns: Int64s
    """A time within the row's slice."""
    flow: Int32s
    """Number of the flow: the row of its transfer, or of its first slice for flows along the critical path."""
    on_path: NDArray[np.bool_]
    """Whether the flow is along the critical path; such flows are numbered separately."""

    def most_per_row(self, rows: slice) -> int:
        """Return the largest number of flows that touch a row of the given rows."""
        return int(np.diff(self.row_ptr[rows.start : rows.stop + 1]).max(initial=0))


def flow_points(scene: Scene) -> Points:
    """Return all flows that touch at least two slices; hop ``h`` counts as row ``rows + h``."""
    timeline, hops = scene.timeline, scene.hops
    message_points = _message_points(scene)
    path_points = _path_points(timeline, scene.first_row)
    on_path = np.repeat([False, True], [message_points[0].size, path_points[0].size])
    row, phase = (np.concatenate([message_points[column], path_points[column]]) for column in (0, 1))
    time_ns, flow = (np.concatenate([message_points[column], path_points[column]]) for column in (2, 3))
    order = np.argsort(row, kind="stable")
    return Points(
        row_ptr=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(timeline) + len(hops)))]),
        phase=phase[order], at_ns=time_ns[order], flow=flow[order], on_path=on_path[order],
    )  # fmt: skip


def _path_points(timeline: Timeline, first_row: int) -> tuple[Int32s, Int8s, Int64s, Int32s]:
    """Return rows, phases, times and numbers of flows between consecutive slices of the critical path.

    As with messages, a flow leaves its slice late and enters the next slice early. There is no flow where a
    part of the path in between is not in the timeline, or where clocks of measured ranks disagree.
    """
    path = None if timeline.why is None else timeline.why.path
    if path is None or not len(path):
        nothing = np.zeros(0, dtype=np.int32)
        return nothing, nothing.astype(np.int8), nothing.astype(np.int64), nothing
    turn = np.flatnonzero((path.row[1:] != path.row[:-1]) & (path.start_ns[1:] == path.end_ns[:-1]))
    source, target = path.row[turn] - np.int32(first_row), path.row[turn + 1] - np.int32(first_row)
    start_ns, end_ns = timeline.start_ns, timeline.end_ns
    # the order of points at the same time is that of the file, which is the order of rows
    leaves = np.minimum(np.maximum(start_ns[source], end_ns[source] - 1), start_ns[target] - (target < source))
    leaves = np.maximum(leaves, start_ns[source])
    enters = np.maximum(start_ns[target], leaves + (target < source))
    kept = enters <= np.maximum(start_ns[target], end_ns[target] - 1)
    row = np.concatenate([source[kept], target[kept]])
    phase = np.repeat(np.array([START, END], dtype=np.int8), int(kept.sum()))
    return row, phase, np.concatenate([leaves[kept], enters[kept]]), np.tile(source[kept], 2)


def _message_points(scene: Scene) -> tuple[Int32s, Int8s, Int64s, Int32s]:
    """Return rows, phases, times and numbers of the flows of messages."""
    timeline, hops, ends = scene.timeline, scene.hops, scene.messages
    transfer = ends.transfer
    stops = [ends.producer, ends.send, *_message_hops(hops, ends, len(timeline)), ends.recv, ends.consumer]
    rows = np.stack([row for row in stops if (row >= 0).any()] or stops[:1])
    start_ns = np.concatenate([timeline.start_ns, timeline.start_ns[hops.row]])
    end_ns = np.concatenate([timeline.end_ns, timeline.end_ns[hops.row]])
    time_ns, kept = np.empty(rows.shape, dtype=np.int64), np.empty(rows.shape, dtype=bool)
    phase = np.empty(rows.shape, dtype=np.int8)
    for first in range(0, transfer.size, _CHUNK_MESSAGES):
        part = np.s_[:, first : first + _CHUNK_MESSAGES]
        rows[part] = _sort_by_start(rows[part], start_ns)
        time_ns[part], kept[part] = _times(rows[part], start_ns, end_ns)
        phase[part] = _phases(kept[part])
    return rows[kept], phase[kept], time_ns[kept], np.broadcast_to(transfer, rows.shape)[kept]


def _phases(kept: NDArray[np.bool_]) -> Int8s:
    """Return the phase of each point; single points of flows are removed from ``kept``."""
    count = kept.sum(axis=0, dtype=np.int16)
    kept &= count > 1
    position = np.cumsum(kept, axis=0, dtype=np.int16) - np.int16(1)
    return np.where(position == 0, np.int8(START), np.where(position < count - 1, np.int8(STEP), np.int8(END)))


def _message_hops(hops: Hops, ends: Messages, rows: int) -> Int32s:
    """Return the hops of each message, numbered from ``rows``: shape (longest route, messages), -1 for none."""
    longest = int(hops.place.max(initial=-1)) + 1
    hop_index = np.full((longest, hops.sent.size + 1), -1, dtype=np.int32)
    hop_index[hops.place, hops.message] = np.arange(rows, rows + len(hops))
    message_of_row = np.full(rows + 1, hops.sent.size, dtype=np.int32)
    message_of_row[hops.sent] = np.arange(hops.sent.size)
    sent, received = message_of_row[ends.send], message_of_row[ends.recv]
    message_hops: Int32s = hop_index[:, np.where(sent < hops.sent.size, sent, received)]
    return message_hops


def _sort_by_start(rows: Int32s, start_ns: Int64s) -> Int32s:
    """Sort each message's rows by their starts, because the clocks of measured ranks may disagree."""
    latest = np.full(rows.shape[1], np.iinfo(np.int64).min)
    unsorted = np.zeros(rows.shape[1], dtype=bool)
    for row in rows:
        start = np.where(row >= 0, start_ns[row], latest)
        unsorted |= start < latest
        latest = start
    if unsorted.any():
        rows = rows.copy()
        columns = rows[:, unsorted]
        key = np.where(columns >= 0, start_ns[columns], _NEVER)
        rows[:, unsorted] = np.take_along_axis(columns, np.argsort(key, axis=0, kind="stable"), axis=0)
    return rows


def _times(rows: Int32s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return a time within each slice, and whether the flow touches the slice.

    A flow leaves its first slice late and enters later slices early. Because viewers sort by time, each point is
    at least a nanosecond after the previous one. Slices without length may have equal times: then the order in
    the file counts, and the flow skips slices that are out of order.
    """
    time_ns = start_ns[rows]
    last_ns = np.maximum(time_ns, end_ns[rows] - 1)
    kept = rows >= 0
    following_ns = np.full(rows.shape[1], _NEVER)
    for stop in range(len(rows) - 1, 0, -1):
        following_ns = np.where(kept[stop], time_ns[stop], following_ns)
    previous_ns = np.full(rows.shape[1], -_NEVER)
    previous_row = np.full(rows.shape[1], -1)
    for stop in range(len(rows)):
        time_ns[stop] = np.where(
            previous_ns == -_NEVER,
            np.minimum(last_ns[stop], following_ns),
            np.clip(previous_ns + 1, time_ns[stop], last_ns[stop]),
        )
        kept[stop] &= (time_ns[stop] > previous_ns) | (
            (time_ns[stop] == previous_ns) & (rows[stop] > previous_row)
        )
        previous_ns = np.where(kept[stop], time_ns[stop], previous_ns)
        previous_row = np.where(kept[stop], rows[stop], previous_row)
    return time_ns, kept
