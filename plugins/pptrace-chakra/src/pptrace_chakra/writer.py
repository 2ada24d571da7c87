"""Writer of Chakra execution traces, one file per rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import ConfigError, Kind, Stream, kinds, links_and_segments, placement_values
from pptrace_chakra.graph import graph_of
from pptrace_chakra.messages import SCHEMA, CollectiveType, NodeType, messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pptrace.plugin import Int64s, Timeline

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
_COLLECTIVES = {Kind.UNSHARD: CollectiveType.ALL_GATHER}
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
    """Write the nodes of the option ``rank``; dependencies are those of :func:`~pptrace_chakra.graph.graph_of`.

    ``data_deps`` has all nodes that must end before a node starts, including the previous node of its stream,
    which is also in ``ctrl_deps``: feeders before version 3 resolve ``data_deps`` only. The attributes
    ``pptrace.*`` have what :func:`~pptrace_chakra.reader.read` needs to build the same timeline.

    Raises:
        ConfigError: the timeline lacks the rank.
        OSError: the file cannot be written.
    """
    rank = int(options["rank"])
    if rank not in timeline.lane_rank:
        raise ConfigError(f"the timeline has no rank {rank}", key="rank")
    with path.open("wb") as file:
        for message in _messages(timeline, rank):
            body = message.SerializeToString()
            file.write(_varint(len(body)) + body)


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def _messages(timeline: Timeline, rank: int) -> Iterator[Any]:
    """Yield the metadata and the nodes."""
    yield _metadata(timeline, rank)
    yield from _Encoder(timeline, rank).nodes()


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
    metadata = messages().metadata(version=SCHEMA)
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
        node = messages().node(id=index + 1, start_time_micros=start_us)
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
        return next((found for name, found in _SEGMENTS.items() if name in letters), _GROUPS[stream])

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
