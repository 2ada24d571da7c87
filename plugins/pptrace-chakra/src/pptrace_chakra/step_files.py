"""Chakra execution traces of steps, one file per rank: dependency graph, messages, writer and reader.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra, schema 1.0.0. A file is a GlobalMetadata and Node
messages, each after its length as a varint. Other fields and types of attribute values are unknown here, and a
parser skips them.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_right
from collections import defaultdict
from enum import IntEnum
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pptrace.plugin import (
    ConfigError,
    Counter,
    Kind,
    Stream,
    TraceError,
    UnpackedFile,
    check_events,
    kinds,
    messages,
)
from pptrace.traces.assembly import StepPart, join_parts, links_of, named_damage, placement_values
from pptrace.traces.perfetto.wire import message_classes, read_varint
from pptrace.traces.scene import links_and_segments, peers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s, Messages, Timeline


SCHEMA = "1.0.0"
"""Version in GlobalMetadata of written files."""


class NodeType(IntEnum):
    """Values of ``Node.type``."""

    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """Values of the attribute ``comm_type``."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7


_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Int64List": {"values": (1, "int64*")},
    "AttributeProto": {
        "name": (1, "string"), "int32_val": (7, "int32?"), "int64_val": (9, "int64?"),
        "int64_list": (10, "Int64List?"), "uint64_val": (13, "uint64?"), "bool_val": (27, "bool?"),
        "string_val": (29, "string?"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto*")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"), "ctrl_deps": (4, "uint64*"),
        "data_deps": (5, "uint64*"), "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"),
        "attr": (10, "AttributeProto*"),
    },
}  # fmt: skip
"""Number and type of each field by message, as in :func:`~pptrace.traces.perfetto.wire.message_classes`."""


@cache
def message_types() -> dict[str, Any]:
    """Return the classes of messages by name."""
    return message_classes("ChakraProtoMsg", _FIELDS)


def value_of(attribute: Any) -> Any:
    """Return the value of an attribute, a list for lists; None for another type."""
    name = attribute.WhichOneof("value")
    if name is None:
        return None
    value = getattr(attribute, name)
    return list(value.values) if name.endswith("_list") else value


def attributes_of(message: Any) -> dict[str, Any]:
    """Return the values of the attributes of a GlobalMetadata or Node by name."""
    return {attribute.name: value_of(attribute) for attribute in message.attr}


def parse(raw: bytes, path: Path) -> Iterator[Any]:
    """Yield the GlobalMetadata of a file, then its nodes.

    Raises:
        TraceError: the file is truncated or no Chakra trace, or has more nodes than the limit.
    """
    from google.protobuf.message import DecodeError

    message_class, offset, count = message_types()["GlobalMetadata"], 0, 0
    while offset < len(raw):
        size, start = read_varint(raw, offset)
        if not start or start + size > len(raw):
            raise TraceError(f"is truncated after {max(count - 1, 0):,} nodes; write it again", file=path)
        try:
            yield message_class.FromString(raw[start : start + size])
        except DecodeError:
            raise TraceError(
                f"is not a Chakra trace: the message at byte {offset} cannot be decoded", file=path
            ) from None
        message_class, offset, count = message_types()["Node"], start + size, count + 1
        check_events(count, path)


_OTHER_END = np.arange(len(Kind))
_OTHER_END[[Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B]] = [
    Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B,
]  # fmt: skip


class Graph(Struct, frozen=True, kw_only=True):
    """Nodes of a rank in topological order; columns have shape (nodes,)."""

    row: Int64s
    """Row of the slice in the timeline; of the message's other end for a node without a slice."""
    has_slice: NDArray[np.bool_]
    """Whether the node is a slice; else it is the end of a message that occupies no stream of this rank."""
    kind: Int64s
    peer: Int64s
    """Rank at the other end of a message; -1 for other nodes, or where unknown."""
    tag: Int64s
    """Number of the message in the step, the same on both ranks; -1 for other nodes."""
    start_ns: Int64s
    """Start of the slice; arrival of the message for a receive without a slice."""
    previous: tuple[int, ...]
    """The previous node of the stream, -1 for none."""
    needs: tuple[tuple[int, ...], ...]
    """Nodes whose results the node needs, ascending."""


def graph_of(timeline: Timeline, rank: int) -> Graph:
    """Return the graph of a rank.

    A node needs the results that its action needs (activations, gradients, gathered weights, received messages),
    and the slice that released it. Nodes are ordered by dependencies, then by time.
    """
    lanes, rows = timeline.rank_slices(rank)
    row = np.arange(rows.start, rows.stop)
    ends, peer_of_row = messages(timeline), peers_of(timeline, np.arange(len(timeline)))
    peer = np.where(kinds.COMMUNICATION.mask(timeline.kind[row]), peer_of_row[row], -1)
    single = np.flatnonzero((ends.send < 0) | (ends.recv < 0))
    single = single[peer_of_row[ends.transfer[single]] == rank]
    other_end = ends.transfer[single]
    start_ns = np.append(timeline.start_ns[row], (timeline.end_ns + timeline.lag_ns)[other_end])
    needs = [
        *_message_needs(ends, rows, single),
        *_result_needs(timeline, row),
        *_stage_needs(timeline, row),
        *_releases(timeline, row),
    ]
    streams = [
        pair for a, b in pairwise(timeline.lane_ptr[lanes.start : lanes.stop + 1].tolist())
        for pair in pairwise(range(a - rows.start, b - rows.start))
    ]  # fmt: skip
    order, position = _topological_order(start_ns, [*streams, *needs])
    before: list[set[int]] = [set() for _ in order]
    for a, b in needs:
        if position[a] < position[b]:
            before[position[b]].add(position[a])
    previous = [-1] * len(order)
    for a, b in streams:
        previous[position[b]] = position[a]
    return Graph(
        row=np.append(row, other_end)[order],
        has_slice=(np.arange(start_ns.size) < row.size)[order],
        kind=np.append(timeline.kind[row], _OTHER_END[timeline.kind[other_end]])[order],
        peer=np.append(peer, timeline.rank_of_row()[other_end])[order],
        tag=np.append(_tags(row, ends), single)[order],
        start_ns=start_ns[order],
        previous=tuple(previous),
        needs=tuple(tuple(sorted(nodes)) for nodes in before),
    )


_Needs = list[tuple[int, int]]
"""Pairs of a node and a node that needs it, as indices before the order."""


def _tags(row: Int64s, ends: Messages) -> Int64s:
    """Return the tag of each slice, -1 where it is no message or unknown."""
    tag = np.full(row.size, -1, dtype=np.int64)
    for end in (ends.send, ends.recv):
        message = np.flatnonzero(np.isin(end, row))
        tag[np.searchsorted(row, end[message])] = message
    return tag


def _message_needs(ends: Messages, rows: slice, single: Int64s) -> _Needs:
    """Return producer and send, and receive and consumer, of all messages of the rank.

    Args:
        ends: all messages.
        rows: the rows of the rank.
        single: messages whose end at this rank is no slice, in the order of their nodes.
    """
    needs: _Needs = []
    for end, action, sends in ((ends.send, ends.producer, True), (ends.recv, ends.consumer, False)):
        node = np.where(end >= 0, end - rows.start, -1)
        node[single] = np.where(end[single] < 0, rows.stop - rows.start + np.arange(single.size), node[single])
        known = np.flatnonzero((action >= rows.start) & (action < rows.stop) & (node >= 0))
        pair = (action[known] - rows.start, node[known])
        needs += zip(*(side.tolist() for side in (pair if sends else pair[::-1])), strict=True)
    return needs


def _result_needs(timeline: Timeline, row: Int64s) -> _Needs:
    """Return the needs among results of the rank: of an action's last segment by another action's first."""
    last: dict[tuple[int, int, int], int] = {}
    first: dict[tuple[int, int, int], int] = {}
    end_ns, start_ns = timeline.end_ns[row].tolist(), timeline.start_ns[row].tolist()
    columns = (timeline.kind[row], timeline.stage[row], timeline.microbatch[row], timeline.span[row])
    for node, (kind, stage, microbatch, span) in enumerate(np.stack(columns, axis=1).tolist()):
        for result in kinds.KINDS[Kind(kind)].results:
            for each in range(microbatch, microbatch + span):
                key = int(result), stage, each
                if key not in last or end_ns[last[key]] < end_ns[node]:
                    last[key] = node
                if key not in first or start_ns[node] < start_ns[first[key]]:
                    first[key] = node
    needs: _Needs = []
    following = defaultdict(list)
    for result_before, result_after in kinds.ORDER:
        following[int(result_before)].append(int(result_after))
    onward = defaultdict(list)  # between stages of the rank
    activation, gradient = int(kinds.Result.ACTIVATION), int(kinds.Result.GRADIENT)
    for source, target in timeline.placement.edges.tolist():
        onward[activation, source].append((activation, target))
        onward[gradient, target].append((gradient, source))
    for (produced, stage, microbatch), node in last.items():
        keys = [(after, stage) for after in following[produced]] + onward[produced, stage]
        consumers = (first.get((after, next_stage, microbatch), node) for after, next_stage in keys)
        needs += [(node, consumer) for consumer in consumers if consumer != node]
    return needs


def _stage_needs(timeline: Timeline, row: Int64s) -> _Needs:
    """Return the needs of collectives of a stage, and of actions that wait for them."""
    columns = (timeline.kind[row], timeline.stage[row], timeline.start_ns[row], timeline.end_ns[row])
    slices = [(Kind(kind), *values) for kind, *values in np.stack(columns, axis=1).tolist()]
    ended: dict[tuple[Kind | None, int], list[tuple[int, int]]] = defaultdict(list)
    for node, (kind, stage, _, end_ns) in enumerate(slices):
        if kind in kinds.PER_STAGE:
            ended[kind, stage].append((end_ns, node))
        if kind in kinds.COMPUTE:  # of any kind, on the stage or on any
            ended[None, stage].append((end_ns, node))
            ended[None, -1].append((end_ns, node))
    for nodes in ended.values():
        nodes.sort()
    needs: _Needs = []
    for node, (kind, stage, start_ns, _) in enumerate(slices):
        traits = kinds.KINDS[kind]
        keys: list[tuple[Kind | None, int]] = [(Kind[name], stage) for name in traits.waits_for]
        if traits.role is kinds.Role.COLLECTIVE and kind not in _COLLECTIVES:
            keys.append((None, -1 if kind is Kind.SYNC else stage))
        for key in keys:
            before = bisect_right(ended[key], (start_ns, len(slices))) - 1
            if before >= 0 and ended[key][before][1] != node:
                needs.append((ended[key][before][1], node))
    return needs


def _releases(timeline: Timeline, row: Int64s) -> _Needs:
    """Return the slices of the rank whose end released another."""
    cause = timeline.cause[row].astype(np.int64)
    released = np.flatnonzero(np.isin(cause, row))
    released = released[timeline.end_ns[cause[released]] <= timeline.start_ns[row[released]]]
    return list(zip(np.searchsorted(row, cause[released]).tolist(), released.tolist(), strict=True))


def _topological_order(start_ns: Int64s, pairs: _Needs) -> tuple[list[int], list[int]]:
    """Return nodes by dependencies, then by time, and each node's position.

    Recorded times can contradict dependencies. Nodes of a cycle follow by time.
    """
    after: list[list[int]] = [[] for _ in range(start_ns.size)]
    missing = [0] * start_ns.size
    for a, b in set(pairs):
        after[a].append(b)
        missing[b] += 1
    times = start_ns.tolist()
    ready = [(times[node], node) for node, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for consumer in after[node]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heapq.heappush(ready, (times[consumer], consumer))
    order += sorted(set(range(len(times))).difference(order), key=lambda node: (times[node], node))
    position = [0] * len(order)
    for index, node in enumerate(order):
        position[node] = index
    return order, position


FORMAT = 1
"""Version of the attributes that pptrace adds; it increases with changes that older readers cannot read."""
FORMAT_KEY, STEP_KEY, PROVENANCE_KEY = "pptrace.format", "pptrace.step", "pptrace.provenance"
COUNTER_KEY, SLICE_KEY, LINKS_KEY = "pptrace.counter", "pptrace.slice", "pptrace.links"
COLLECTIVE_KEY = "pptrace.collective"
"""True type of a collective whose other ranks have no file.

They cannot take part in a simulation, and a simulated step has no size for it. So its ``comm_type`` is BROADCAST,
whose duration ASTRA-sim replays (``issue_coll_comm`` in its ``Workload.cc``).
"""
COLUMNS = (
    "row", "kind", "stage", "microbatch", "span", "pair", "enter_ns", "start_ns", "end_ns", "lag_ns",
    "uncontended_ns", "collective_ns", "size_bytes", "cause", "segment", "segment_number",
)  # fmt: skip
"""Columns of the values of the attribute :data:`SLICE_KEY`."""

_MICROSECOND, _HALF = 1000, 500
_NORM_BYTES = 4
"""Bytes that SYNC reduces over all ranks: the norm of the gradients in float32."""
_MEMORY = {Kind.OFFLOAD: NodeType.MEM_STORE, Kind.RELOAD: NodeType.MEM_LOAD}
_COLLECTIVES = dict.fromkeys((Kind.UNSHARD, Kind.UNSHARD_SUBGROUP), CollectiveType.ALL_GATHER)
_SEGMENTS = {
    "allreduce": CollectiveType.ALL_REDUCE, "allgather": CollectiveType.ALL_GATHER,
    "reducescatter": CollectiveType.REDUCE_SCATTER, "alltoall": CollectiveType.ALL_TO_ALL,
    "dispatch": CollectiveType.ALL_TO_ALL, "combine": CollectiveType.ALL_TO_ALL,
}  # fmt: skip
"""Type of a collective inside an action, by a substring of its segment's letters."""
_GROUPS = {
    Stream.TENSOR_PARALLEL: CollectiveType.ALL_REDUCE, Stream.EXPERT_PARALLEL: CollectiveType.ALL_TO_ALL,
    Stream.CONTEXT_PARALLEL: CollectiveType.ALL_TO_ALL,
}  # fmt: skip
"""Type of all other collectives inside an action, by their stream."""


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write the nodes of the option ``rank``; dependencies are those of :func:`graph_of`.

    ``data_deps`` has all nodes that must end before a node starts, including the previous node of its stream,
    which is also in ``ctrl_deps``: feeders before version 3 resolve ``data_deps`` only. The attributes
    ``pptrace.*`` have what :func:`read` needs to build the same timeline.

    Raises:
        ConfigError: the timeline lacks the rank.
        OSError: the file cannot be written.
    """
    rank = int(options["rank"])
    if rank not in timeline.lane_rank:
        raise ConfigError(f"the timeline has no rank {rank}", key="rank")
    with path.open("wb") as file:
        for message in chain([_metadata(timeline, rank)], _Encoder(timeline, rank).nodes()):
            body = message.SerializeToString()
            file.write(_varint(len(body)) + body)


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def _metadata(timeline: Timeline, rank: int) -> Any:
    """Return the GlobalMetadata: the version, and the description of the step for the reader."""
    lanes, _ = timeline.rank_slices(rank)
    counters = [
        counter for counter in timeline.counters if counter.rank == rank or (counter.rank < 0 and lanes.start == 0)
    ]
    columns = (timeline.lane_rank, timeline.lane_stream, timeline.lane_peer, np.diff(timeline.lane_ptr))
    step = {
        "rank": rank,
        "placement": placement_values(timeline.placement),
        "lanes": np.stack(columns, axis=1)[lanes].tolist(),
        "counters": [[counter.rank, counter.name, counter.unit] for counter in counters],
        "columns": COLUMNS,
        **links_and_segments(timeline),
    }
    metadata = message_types()["GlobalMetadata"](version=SCHEMA)
    metadata.attr.add(name=FORMAT_KEY, int64_val=FORMAT)
    metadata.attr.add(name=STEP_KEY, string_val=json.dumps(step))
    metadata.attr.add(name=PROVENANCE_KEY, string_val=json.dumps(dict(timeline.provenance)))
    for counter in counters:
        attribute = metadata.attr.add(name=COUNTER_KEY)
        attribute.int64_list.values.extend(np.concatenate([counter.at_ns, counter.value]).tolist())
    return metadata


class _Encoder:
    """Encoder of the nodes of a rank."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self._timeline, self._rank, self._graph = timeline, rank, graph_of(timeline, rank)
        lanes, self._rows = timeline.rank_slices(rank)
        self._lane = np.repeat(np.arange(lanes.stop - lanes.start), np.diff(timeline.lane_ptr)[lanes])
        self._streams = [Stream(int(stream)) for stream in timeline.lane_stream[lanes]]
        self._duration_us = _durations(timeline, lanes)
        self._values = _slice_values(timeline, self._rows)
        self._origin_ns = min(int(timeline.start_ns.min(initial=0)), 0)

    def nodes(self) -> Iterator[Any]:
        """Yield the nodes in topological order; ids start at 1."""
        for index in range(self._graph.row.size):
            yield self._node(index)

    def _node(self, index: int) -> Any:
        graph, row = self._graph, int(self._graph.row[index])
        kind, action = Kind(int(graph.kind[index])), self._timeline.action(row)
        start_us = (int(graph.start_ns[index]) - self._origin_ns + _HALF) // _MICROSECOND
        node = message_types()["Node"](id=index + 1, start_time_micros=start_us)
        before = [*graph.needs[index]]
        if (previous := graph.previous[index]) >= 0:
            node.ctrl_deps.append(previous + 1)
            before.append(previous)
        node.data_deps.extend(sorted({each + 1 for each in before}))
        node.name = str(action) if graph.has_slice[index] else f"{kind.name} of {action}"
        if kind in kinds.COMMUNICATION:
            self._set_message(node, index)
        else:
            self._set_type(node, row, kind)
        if graph.has_slice[index]:
            self._add_slice(node, row)
        return node

    def _add_slice(self, node: Any, row: int) -> None:
        """Add duration, stream, and the values from which the reader builds the slice."""
        timeline, place = self._timeline, row - self._rows.start
        if timeline.parts is not None and (segment := timeline.parts.name_of(row)):
            node.name += f" {segment}"
        node.duration_micros = self._duration_us[place]
        node.attr.add(name="stream", int64_val=int(self._lane[place]))
        node.attr.add(name=SLICE_KEY).int64_list.values.extend(self._values[place].tolist())
        if timeline.routes is not None:
            links = timeline.routes.link[timeline.routes.ptr[row] : timeline.routes.ptr[row + 1]]
            if links.size:
                node.attr.add(name=LINKS_KEY).int64_list.values.extend(links.tolist())

    def _set_type(self, node: Any, row: int, kind: Kind) -> None:
        """Set the type of a slice that is no message, with the attributes of the type."""
        stream, size_bytes = self._streams[self._lane[row - self._rows.start]], int(self._timeline.size_bytes[row])
        traits = kinds.KINDS[kind]
        node.attr.add(name="is_cpu_op", bool_val=False)
        if kind in _MEMORY:
            node.type = _MEMORY[kind]
            node.attr.add(name="tensor_size", uint64_val=size_bytes)
        elif kind is Kind.SYNC:
            _set_collective(node, CollectiveType.ALL_REDUCE, max(size_bytes, _NORM_BYTES))
        elif stream.is_group or (traits.role is kinds.Role.COLLECTIVE and traits.cost):
            _set_collective(node, CollectiveType.BROADCAST, size_bytes)
            node.attr.add(name=COLLECTIVE_KEY, string_val=self._collective(row, kind, stream).name)
        else:
            node.type = NodeType.COMP

    def _collective(self, row: int, kind: Kind, stream: Stream) -> CollectiveType:
        if not stream.is_group:
            return _COLLECTIVES.get(kind, CollectiveType.ALL_REDUCE)
        parts = self._timeline.parts
        segment = "" if parts is None else parts.name_of(row)
        letters = "".join(filter(str.isalpha, segment.lower()))
        return next((collective for name, collective in _SEGMENTS.items() if name in letters), _GROUPS[stream])

    def _set_message(self, node: Any, index: int) -> None:
        graph = self._graph
        sends = int(graph.kind[index]) in kinds.SENDS
        node.type = NodeType.COMM_SEND if sends else NodeType.COMM_RECV
        ends = (self._rank, int(graph.peer[index])) if sends else (int(graph.peer[index]), self._rank)
        for name, end in zip(("comm_src", "comm_dst"), ends, strict=True):
            if end >= 0:
                node.attr.add(name=name, int32_val=end)
        node.attr.add(name="is_cpu_op", bool_val=False)
        node.attr.add(name="comm_tag", int32_val=int(graph.tag[index]))
        node.attr.add(name="comm_size", int64_val=int(self._timeline.size_bytes[graph.row[index]]))


def _set_collective(node: Any, collective: CollectiveType, size_bytes: int) -> None:
    node.type = NodeType.COMM_COLL
    node.attr.add(name="comm_type", int64_val=collective)
    node.attr.add(name="comm_size", int64_val=size_bytes)


def _durations(timeline: Timeline, lanes: slice) -> list[int]:
    """Return the microseconds of the slices of lanes, rounded such that all sums from a lane's first are exact."""
    rounded = []
    for lane in range(lanes.start, lanes.stop):
        rows = slice(int(timeline.lane_ptr[lane]), int(timeline.lane_ptr[lane + 1]))
        total_ns = np.cumsum(timeline.end_ns[rows] - timeline.start_ns[rows])
        rounded += np.diff((total_ns + _HALF) // _MICROSECOND, prepend=0).tolist()
    return rounded


def _slice_values(timeline: Timeline, rows: slice) -> Int64s:
    """Return the values of :data:`COLUMNS` of each slice."""
    parts, absent = timeline.parts, np.full(rows.stop - rows.start, -1, dtype=np.int64)
    columns = {
        "row": np.arange(rows.start, rows.stop),
        "segment": absent if parts is None else parts.name[rows],
        "segment_number": absent if parts is None else parts.number[rows],
    }
    values = [columns[name] if name in columns else getattr(timeline, name)[rows] for name in COLUMNS]
    stacked: Int64s = np.stack(values, axis=1).astype(np.int64)
    return stacked


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, compressed or not.

    Rows of ranks without a file are missing, and a ``cause`` among them becomes -1.

    Raises:
        TraceError: a file cannot be read, is truncated, was not written by pptrace, or is of another run.
    """
    return join_parts([_read_part(path) for path in paths])


def _read_part(path: Path) -> StepPart:
    raw = UnpackedFile.read_whole(path)
    with named_damage(path):
        messages = parse(raw, path)
        metadata = next(messages)
        described = attributes_of(metadata)
        if described[FORMAT_KEY] != FORMAT:
            raise TraceError(f"has format {described[FORMAT_KEY]}; this pptrace reads {FORMAT}", file=path)
        step = json.loads(described[STEP_KEY])
        values, hops = [], []
        for node in messages:
            attributes = attributes_of(node)
            if SLICE_KEY in attributes:
                values.append(attributes[SLICE_KEY])
                row = attributes[SLICE_KEY][0]
                hops += [[row, place, link] for place, link in enumerate(attributes.get(LINKS_KEY, ()))]
        table = np.array(values, dtype=np.int64).reshape(-1, len(step["columns"]))
        table = table[np.argsort(table[:, 0], kind="stable")]
        lanes = np.array(step["lanes"], dtype=np.int64).reshape(-1, 4)
        if lanes[:, 3].sum() != len(table):
            raise TraceError(f"holds {len(table)} of its {lanes[:, 3].sum()} slices; write it again", file=path)
        return StepPart(
            path=path, step=step, provenance=json.loads(described[PROVENANCE_KEY]), lanes=lanes,
            columns=dict(zip(step["columns"], table.T, strict=True)), links=links_of(step),
            counters=tuple(_counters(step, metadata)), hops=np.array(hops, dtype=np.int64).reshape(-1, 3),
        )  # fmt: skip


def _counters(step: Mapping[str, Any], metadata: Any) -> Iterator[Counter]:
    points = [value_of(attribute) for attribute in metadata.attr if attribute.name == COUNTER_KEY]
    for (rank, name, unit), values in zip(step["counters"], points, strict=True):
        at_ns, value = np.array(values, dtype=np.int64).reshape(2, -1)
        yield Counter(rank=rank, name=name, unit=unit, at_ns=at_ns, value=value)
