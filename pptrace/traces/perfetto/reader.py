"""Reader of the Perfetto traces that pptrace writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from pptrace.config.limits import UnpackedFile, check_events, gibibytes, memory_key, most_parsed
from pptrace.errors import TraceError
from pptrace.timeline.timeline import Counter
from pptrace.traces.assembly import StepPart, join_parts, links_of, named_damage
from pptrace.traces.perfetto.descriptors import (
    FORMAT_KEY,
    PROVENANCE_KEY,
    STEP_KEY,
    VERSION,
    layout_of,
)
from pptrace.traces.perfetto.wire import check_packets, read_varint
from pptrace.traces.scene import column_defaults

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


class Begins(Struct, kw_only=True):
    """Slice begins on lanes, by their rows."""

    first_row: int = 0
    """The row of the first slice of the file."""
    rows: int = 0
    tracks: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The track of each lane."""
    count: int = 0
    """Number of begins that were added."""
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    """``lane``, ``start``, the typed fields that any of them has, and ``end`` where the end follows the begin; -1
    for absent values."""
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


class Events(Struct):
    """Events of a file, in the order of the file."""

    step: Mapping[str, Any] = field(default_factory=dict)
    """The attribute :data:`~pptrace.traces.perfetto.descriptors.STEP_KEY`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The attribute :data:`~pptrace.traces.perfetto.descriptors.PROVENANCE_KEY`."""
    begins: Begins = field(default_factory=Begins)
    hops: list[dict[str, Int64s]] = field(default_factory=list)
    """Begins of slices on links: ``link``, ``transfer`` and ``hop``."""
    ends: list[dict[str, Int64s]] = field(default_factory=list)
    """Slice ends that do not follow their begins: ``track`` and ``end``."""
    points: list[dict[str, Int64s]] = field(default_factory=list)
    """Counter values: ``track``, ``at`` and ``value``."""


def scan(raw: memoryview, file: str) -> Events:
    """Return the events of one file: packets up to the description of the step, then its runs of records.

    Raises:
        TraceError: the file is not a trace, ends too early, or another program changed it.
    """
    events, offset, count = Events(), 0, 0
    while offset < len(raw) and not events.step:
        check_packets(count, raw, offset, file)
        count += 1
        start, stop = _packet(raw, offset, file)
        _add_attributes(raw[start:stop], offset, events, file)
        offset = stop
    if not events.step:
        raise TraceError("is not a trace that pptrace wrote, or is truncated", file=file)
    step = events.step
    # A wrong number of slices takes no more memory than the file.
    rows, tracks = min(step["slices"], len(raw)), np.array(step["lanes"][3], dtype=np.int64)
    events.begins = Begins(first_row=step["first_row"], rows=rows, tracks=tracks)
    for run in step["runs"]:
        offset += _decode_run(raw, offset, run, events, file)
    if offset < len(raw):
        raise TraceError(_CHANGED, file=file)
    return events


_CHANGED = "holds other packets than pptrace wrote; write it again"


def _decode_run(raw: memoryview, offset: int, run: Mapping[str, Any], events: Events, file: str) -> int:
    """Decode the run at an offset of the file; return its size in bytes."""
    layout, records = layout_of(run["parts"]), run["records"]
    size: int = records * layout.size
    check_events(records, file)
    if offset + size > len(raw):
        raise TraceError("is truncated; write it again", file=file)
    matrix = np.frombuffer(raw, dtype=np.uint8, count=size, offset=offset).reshape(records, layout.size)
    shared = layout.shared_bits(min(records, layout.chunk_rows))
    for start in range(0, records, layout.chunk_rows):
        part = matrix[start : start + layout.chunk_rows]
        columns = layout.decode(part, shared)
        if columns is None:
            raise TraceError(_CHANGED, file=file)
        if "segment" in run:
            columns["segment"] = np.full(len(part), run["segment"], dtype=np.int32)
        _add_columns(columns, events)
    return size


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


def _add_attributes(body: memoryview, offset: int, events: Events, file: str) -> None:
    """Read the attributes of the packet at an offset of the file, if it has any."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    try:
        attributes = TracePacket.FromString(body).trace_attributes.attribute
    except DecodeError:
        message = f"is no Perfetto trace: the packet at byte {offset} cannot be decoded"
        raise TraceError(message, file=file) from None
    for attribute in attributes:
        if attribute.key == FORMAT_KEY and attribute.long_value != VERSION:
            raise TraceError(f"has format {attribute.long_value}; this pptrace reads {VERSION}", file=file)
        if len(attribute.string_value) > most_parsed():
            message = f"describes its slices in more than {gibibytes(most_parsed())}: {memory_key()}"
            raise TraceError(message, file=file)
        if attribute.key == PROVENANCE_KEY:
            events.provenance = json.loads(attribute.string_value)
        elif attribute.key == STEP_KEY:
            events.step = json.loads(attribute.string_value)


_FIELDS = (
    "kind", "stage", "microbatch", "span", "enter_ns", "lag_ns", "uncontended_ns", "collective_ns", "bytes",
    "cause", "pair", "segment", "segment_number",
)  # fmt: skip
"""Typed fields with a column of the timeline."""


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
    begin = {name: begins.column(name) for name in ("lane", "start", "end", *_FIELDS)}
    end = {name: _concatenate(events.ends, name) for name in ("track", "end")}
    end["lane"] = _lanes(end["track"], begins.tracks)
    if not begins.count == begins.rows == step["slices"] or (begin["lane"] < 0).any():
        raise TraceError(f"holds {begins.count} of its {step['slices']} slices; write it again", file=path)
    end_ns = _ends_by_row(begin, end)
    if end_ns is None:
        raise TraceError("has slices that overlap or never end; write it again", file=path)
    columns: dict[str, NDArray[Any]] = {name: begin[name] for name in _FIELDS}
    columns |= {"start_ns": begin["start"], "end_ns": end_ns}
    columns["size_bytes"] = columns.pop("bytes")
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


def _fill_defaults(columns: dict[str, Any]) -> None:
    """Replace absent values by their defaults."""
    defaults = {"enter_ns": columns["start_ns"], **column_defaults(columns["end_ns"] - columns["start_ns"])}
    for name, default in defaults.items():
        columns[name] = np.where(columns[name] < 0, default, columns[name])


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
