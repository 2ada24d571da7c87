"""Reader of the Perfetto traces that pptrace writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.limits import UnpackedFile, check_events, gibibytes, memory_key, most_parsed
from pptrace.errors import TraceError
from pptrace.timeline.timeline import Counter
from pptrace.traces.assembly import StepPart, join_parts, links_of, named_damage
from pptrace.traces.perfetto.descriptors import (
    FIELD_NUMBERS,
    FORMAT_KEY,
    MESSAGE,
    PACKAGE,
    PROVENANCE_KEY,
    STEP_KEY,
    VERSION,
    descriptor_set,
    layout_of,
    renamed,
)
from pptrace.traces.perfetto.wire import BEGIN, COUNTER, END, check_packets, read_varint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int64s
    from pptrace.timeline.timeline import Timeline

_PACKET_TAG = 0x0A
_MOST_TRACKS = 1 << 24
_LARGEST = 2**62
_COLUMNS = 8
"""Columns that are allocated at once: numpy asks for huge pages from 4 MiB on, which are filled in less time."""
_LINK_FIELD = "transfer"
"""A field that only slices on links have."""


@dataclass(slots=True, kw_only=True)
class Begins:
    """Slice begins on lanes, by their rows."""

    first_row: int = 0
    """The row of the first slice of the file."""
    rows: int = 0
    """Number of rows."""
    tracks: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The track of each lane."""
    count: int = 0
    """Number of begins that were added."""
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    """``position``, ``lane``, ``start``, the typed fields that any of them has, and ``end`` where the end follows
    the begin; -1 for absent values."""
    _unused: dict[np.dtype[Any], list[NDArray[Any]]] = field(default_factory=dict)
    """Columns to be filled, by type."""

    def add(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add slice begins; begins on tracks without a lane are ignored, and the last begin of a row counts."""
        lane = _lanes(columns.pop("track"), self.tracks)
        row = columns.pop("row") - self.first_row if "row" in columns else np.full_like(lane, -1)
        self.count += int(np.count_nonzero(lane >= 0))
        columns["lane"] = lane
        inside = (row >= 0) & (row < self.rows) & (lane >= 0)
        if not inside.all():
            row, columns = row[inside], {name: values[inside] for name, values in columns.items()}
        for name, values in columns.items():
            column = self.column(name, values.dtype)
            if column.dtype != values.dtype:
                column = self.columns[name] = column.astype(np.int64)
            column[row] = values

    def column(self, name: str, dtype: Any = np.int32) -> NDArray[Any]:
        """Return a column, shape (rows,)."""
        if name not in self.columns:
            unused = self._unused.setdefault(np.dtype(dtype), [])
            if not unused:
                unused.extend(np.empty((_COLUMNS, self.rows), dtype=dtype))
            self.columns[name] = unused.pop()
            self.columns[name].fill(-1)
        return self.columns[name]


@dataclass(slots=True)
class Events:
    """Events of a file, in the order of the file."""

    step: Mapping[str, Any] = field(default_factory=dict)
    """The attribute :data:`~pptrace.traces.perfetto.descriptors.STEP_KEY`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The attribute :data:`~pptrace.traces.perfetto.descriptors.PROVENANCE_KEY`."""
    begins: Begins = field(default_factory=Begins)
    """Slice begins."""
    hops: list[dict[str, Int64s]] = field(default_factory=list)
    """Begins of slices on links: ``link``, ``transfer`` and ``hop``."""
    ends: list[dict[str, Int64s]] = field(default_factory=list)
    """Other slice ends: ``position``, ``track`` and ``end``."""
    points: list[dict[str, Int64s]] = field(default_factory=list)
    """Counter values: ``track``, ``at`` and ``value``."""
    single: dict[int, list[dict[str, int]]] = field(default_factory=lambda: {BEGIN: [], END: [], COUNTER: []})
    """Events from packets outside runs, by type."""


def scan(raw: memoryview, file: str) -> Events:
    """Return the events of one file.

    Raises:
        TraceError: the file is not a trace, ends too early, or is not pptrace's.
    """
    events = Events()
    offset, length = 0, len(raw)
    runs: list[Any] = []
    count = 0
    while offset < length:
        check_packets(count, raw, offset, file)
        count += 1
        if runs:
            offset += _decode_runs(raw, offset, runs, events, file)
            runs = []
            continue
        start, stop = _packet(raw, offset, file)
        known = bool(events.step)
        _add_packet(raw[start:stop], offset, events, file)
        if events.step and not known:
            runs = list(events.step["runs"])
            # A wrong number of slices takes no more memory than the file.
            rows, tracks = min(events.step["slices"], length), np.array(events.step["lanes"][3], dtype=np.int64)
            events.begins = Begins(first_row=events.step["first_row"], rows=rows, tracks=tracks)
        offset = stop
    if not events.step:
        raise TraceError("is not a trace that pptrace wrote, or is truncated", file=file)
    begins = events.single[BEGIN]
    for rows, add in (
        ([row for row in begins if _LINK_FIELD not in row], events.begins.add),
        ([row for row in begins if _LINK_FIELD in row], events.hops.append),
        (events.single[END], events.ends.append),
        (events.single[COUNTER], events.points.append),
    ):
        if rows:
            names = {name for row in rows for name in row}
            add({n: np.array([row.get(n, -1) for row in rows], dtype=np.int64) for n in sorted(names)})
    return events


def _decode_runs(raw: memoryview, begin: int, runs: list[Any], events: Events, file: str) -> int:
    """Decode the runs from an offset of the file; return their size in bytes."""
    decoded_bytes = 0
    for run in runs:
        layout, records = layout_of(run["parts"]), run["records"]
        size = records * layout.size
        check_events(records, file)
        offset = begin + decoded_bytes
        if offset + size > len(raw):
            return decoded_bytes
        matrix = np.frombuffer(raw, dtype=np.uint8, count=size, offset=offset).reshape(records, layout.size)
        for start in range(0, records, layout.chunk_rows):
            columns = layout.decode(matrix[start : start + layout.chunk_rows])
            if columns is None:
                return decoded_bytes
            count = next(iter(columns.values())).size
            columns["position"] = offset + (start + np.arange(count, dtype=np.int64)) * layout.size
            if "segment" in run:
                columns["segment"] = np.full(count, run["segment"], dtype=np.int32)
            _add_columns(columns, events)
            decoded_bytes += count * layout.size
    return decoded_bytes


def _add_columns(columns: dict[str, Int64s], events: Events) -> None:
    """Append a run's columns to the lists of their event types."""
    if "value" in columns:
        events.points.append(columns)
    if _LINK_FIELD in columns:
        events.hops.append(columns)
    elif "start" in columns:
        events.begins.add(columns)
    elif "end" in columns:
        events.ends.append(columns)


def _packet(raw: memoryview, offset: int, file: str) -> tuple[int, int]:
    """Return the start and the stop of the body of the packet at an offset of the file."""
    if raw[offset] != _PACKET_TAG:
        raise TraceError(f"is no Perfetto trace: byte {offset} starts no packet", file=file)
    size, start = read_varint(raw, offset + 1)
    if not start or start + size > len(raw):
        raise TraceError("is truncated; write it again", file=file)
    return start, start + size


def _add_packet(body: memoryview, offset: int, events: Events, file: str) -> None:
    from google.protobuf.message import DecodeError

    packet_class, _ = _messages()
    try:
        packet = packet_class.FromString(body)
    except DecodeError:
        message = f"is no Perfetto trace: the packet at byte {offset} cannot be decoded"
        raise TraceError(message, file=file) from None
    if packet.HasField("trace_attributes"):
        _add_attributes(packet, events, file)
    elif packet.HasField("track_event") and packet.track_event.type in events.single:
        events.single[packet.track_event.type].append(_event(packet, offset, events.step.get("segments", ())))


def _add_attributes(packet: Any, events: Events, file: str) -> None:
    for attribute in packet.trace_attributes.attribute:
        if attribute.key == FORMAT_KEY and attribute.long_value > VERSION:
            raise TraceError(f"has format {attribute.long_value}; this pptrace reads up to {VERSION}", file=file)
        if len(attribute.string_value) > most_parsed():
            message = f"describes its slices in more than {gibibytes(most_parsed())}: {memory_key()}"
            raise TraceError(message, file=file)
        if attribute.key == PROVENANCE_KEY:
            events.provenance = json.loads(attribute.string_value)
        elif attribute.key == STEP_KEY:
            events.step = renamed(json.loads(attribute.string_value))


def _event(packet: Any, offset: int, segments: Sequence[str]) -> dict[str, int]:
    """Return the values of an event; a segment's name becomes its index in ``segments``."""
    event = packet.track_event
    row = {"position": offset, "track": event.track_uuid}
    if event.type == COUNTER:
        return row | {"at": packet.timestamp, "value": event.counter_value}
    if event.type == END:
        return row | {"end": packet.timestamp}
    fields = {
        name: event.Extensions[extension]
        for name, extension in _messages()[1].items()
        if event.HasExtension(extension)
    }
    if "segment" in fields:
        fields["segment"] = segments.index(fields["segment"])
    return row | {"start": packet.timestamp} | fields


@cache
def _messages() -> tuple[Any, Mapping[str, Any]]:
    """Return Perfetto's TracePacket and the typed fields, in a separate descriptor pool."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    pool = DescriptorPool()
    pool.AddSerializedFile(perfetto_trace_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(descriptor_set().file[0].SerializeToString())
    packet_class = GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TracePacket"))
    scope = pool.FindMessageTypeByName(f"{PACKAGE}.{MESSAGE}").extensions_by_name
    return packet_class, {name: scope[name] for name in FIELD_NUMBERS}


_FIELDS = {
    "kind": "kind",
    "stage": "stage",
    "microbatch": "microbatch",
    "span": "span",
    "enter_ns": "enter_ns",
    "lag_ns": "lag_ns",
    "uncontended_ns": "uncontended_ns",
    "collective_ns": "collective_ns",
    "bytes": "size_bytes",
    "cause": "cause",
    "pair": "pair",
    "segment": "segment",
    "segment_number": "segment_number",
}
"""The column of each typed field."""
_DEFAULTS = {"span": 1, "lag_ns": 0, "collective_ns": 0, "bytes": 0}
"""Constant defaults of absent fields other than -1."""


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, one file for all ranks or one per rank.

    Raises:
        TraceError: a file is missing, truncated, not pptrace's or does not belong with the others.
    """
    return join_parts([_read_part(path) for path in paths])


def _read_part(path: Path) -> StepPart:
    raw = UnpackedFile.read_pages(path)
    with named_damage(path):
        return _part(scan(raw, str(path)), path)


def _part(events: Events, path: Path) -> StepPart:
    step = events.step
    begins = events.begins
    begin = {name: begins.column(name) for name in ("position", "lane", "start", "end", *_FIELDS)}
    end = {name: _concatenate(events.ends, name) for name in ("position", "track", "end")}
    end["lane"] = _lanes(end["track"], begins.tracks)
    if not begins.count == begins.rows == step["slices"] or (begin["lane"] < 0).any():
        raise TraceError(f"holds {begins.count} of its {step['slices']} slices; write it again", file=path)
    end_ns = _ends_by_row(begin, end)
    if end_ns is None:
        end_ns = _ends_by_time(begin, end, str(path))
    columns: dict[str, NDArray[Any]] = {column: begin[name] for name, column in _FIELDS.items()}
    columns |= {"start_ns": begin["start"], "end_ns": end_ns}
    _fill_defaults(columns)
    columns["row"] = np.arange(begins.rows, dtype=np.int32) + step["first_row"]
    slices = np.bincount(begin["lane"], minlength=begins.tracks.size)
    return StepPart(
        path=path, step=step, provenance=events.provenance, columns=columns, links=links_of(step),
        lanes=np.stack([*np.array(step["lanes"][:3], dtype=np.int64), slices], axis=1),
        counters=_read_counters(events, str(path)), hops=_hops(events, path),
    )  # fmt: skip


def _lanes(track: Int64s, tracks: Int64s) -> Int64s:
    """Return the lane of each track, -1 for a track without a lane."""
    if not 0 <= tracks.min(initial=0) <= tracks.max(initial=0) < _MOST_TRACKS:
        message = f"a track is not in 0 to {_MOST_TRACKS - 1}"
        raise ValueError(message)
    lane = np.full(tracks.max(initial=0) + 2, -1, dtype=np.int32)
    lane[tracks] = np.arange(tracks.size)
    return lane.take(track, mode="clip")


def _ends_by_row(begin: dict[str, Int64s], end: dict[str, Int64s]) -> Int64s | None:
    """Return the end of each row where slices of a lane follow one another in the order of rows; else None.

    The ends of a lane then have the order of its rows.
    """
    lane, start_ns, end_ns = begin["lane"], begin["start"], begin["end"].astype(np.int64)
    separate = np.flatnonzero(end_ns < 0)
    ends = np.flatnonzero(end["lane"] >= 0)
    ends = ends[_sorted_by(end["lane"][ends], end["end"][ends])]
    if not np.array_equal(end["lane"][ends], lane[separate]):
        return None
    end_ns[separate] = end["end"][ends]
    ordered = (lane[1:] >= lane[:-1]).all() and (start_ns <= end_ns).all()
    ordered = ordered and ((start_ns[1:] >= end_ns[:-1]) | (lane[1:] != lane[:-1])).all()
    return end_ns if ordered and (start_ns < end_ns)[separate].all() else None


def _sorted_by(lane: Int64s, time_ns: Int64s) -> NDArray[np.intp]:
    """Return the order by lane and time; a single key is several times faster, as runs of the file ascend."""
    first_ns, last_ns = int(time_ns.min(initial=0)), int(time_ns.max(initial=0))
    length_ns = last_ns - first_ns + 1
    if int(lane.max(initial=0) + 1) * length_ns < _LARGEST:
        return np.argsort(lane.astype(np.int64) * length_ns + (time_ns - first_ns), kind="stable")
    return np.lexsort((time_ns, lane))


def _ends_by_time(begin: dict[str, Int64s], end: dict[str, Int64s], file: str) -> Int64s:
    """Return the end of each row; begins and ends are paired as by a trace processor."""
    joint = np.flatnonzero(begin["end"] >= 0)
    lane = np.concatenate([begin["lane"], begin["lane"][joint], end["lane"]])
    time = np.concatenate([begin["start"], begin["end"][joint], end["end"]])
    position = np.concatenate([begin["position"], begin["position"][joint] + 1, end["position"]])
    events = np.flatnonzero(lane >= 0)
    order = events[np.lexsort((position[events], time[events], lane[events]))]
    first, second = order[0::2], order[1::2]
    begins = begin["lane"].size
    if (
        first.size != second.size
        or (first >= begins).any()
        or (second < begins).any()
        or (lane[first] != lane[second]).any()
    ):
        raise TraceError("has slices that overlap or never end; write it again", file=file)
    end_ns = np.full(begins, -1, dtype=np.int64)
    end_ns[first] = time[second]
    return end_ns


def _fill_defaults(columns: dict[str, Any]) -> None:
    """Replace absent values by their defaults."""
    for name, default in _DEFAULTS.items():
        column = columns[_FIELDS[name]]
        column[column < 0] = default
    for name, times_ns in (
        ("enter_ns", columns["start_ns"]),
        ("uncontended_ns", columns["end_ns"] - columns["start_ns"]),
    ):
        columns[name] = np.where(columns[name] < 0, times_ns, columns[name])


def _read_counters(events: Events, file: str) -> tuple[Counter, ...]:
    track, time_ns, value = (_concatenate(events.points, name) for name in ("track", "at", "value"))
    order = np.argsort(track, kind="stable")
    track, time_ns, value = track[order], time_ns[order], value[order]
    counters = []
    for rank, name, unit, uuid, points in events.step["counters"]:
        part = slice(np.searchsorted(track, uuid), np.searchsorted(track, uuid, side="right"))
        if time_ns[part].size != points:
            raise TraceError(f"holds {time_ns[part].size} of {points} values of {name}; write it again", file=file)
        counters.append(Counter(rank=rank, name=name, unit=unit, at_ns=time_ns[part], value=value[part]))
    return tuple(counters)


def _hops(events: Events, path: Path) -> Int64s:
    hops = np.stack([_concatenate(events.hops, name) for name in ("transfer", "hop", "link")], axis=1)
    count = events.step["routes"][2] if "routes" in events.step else 0
    if len(hops) != count:
        raise TraceError(f"holds {len(hops)} of its {count} slices on links; write it again", file=path)
    return hops


def _concatenate(parts: list[dict[str, Int64s]], name: str) -> Int64s:
    """Concatenate a column of all parts, -1 for parts without it."""
    arrays = [part[name] if name in part else np.full(part["track"].size, -1) for part in parts]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
