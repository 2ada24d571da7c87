"""Track events of a trace file as columns: whole runs at once, other packets one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import TraceError
from pptrace.export.perfetto.extension import FIELD_NUMBERS, MESSAGE, PACKAGE, descriptor_set
from pptrace.export.perfetto.layout import BEGIN, COUNTER, END
from pptrace.export.perfetto.marker import FORMAT_KEY, PROVENANCE_KEY, STEP_KEY, VERSION, layout_of, renamed
from pptrace.limits.memory import gibibytes, memory_key
from pptrace.limits.packets import check_packets
from pptrace.limits.reading import check_events, most_parsed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.export.perfetto.layout import Layout
    from pptrace.model.columns import Int64s

__all__ = ["Events", "scan"]

_PACKET_TAG = 0x0A
_LONGEST_VARINT = 10
_MORE = 0x80
_OF_LINKS = "transfer"
"""The field that tells a slice on a link from its message's."""
_TRUNCATED = "is truncated; write it again"


@dataclass(slots=True)
class Events:
    """What a file holds, in the order of the file."""

    step: Mapping[str, Any] = field(default_factory=dict)
    """The attribute :data:`~pptrace.export.perfetto.marker.STEP_KEY`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The attribute :data:`~pptrace.export.perfetto.marker.PROVENANCE_KEY`."""
    begins: list[dict[str, Int64s]] = field(default_factory=list)
    """Slice begins: ``position``, ``track``, ``start`` and the typed fields that any of them has."""
    hops: list[dict[str, Int64s]] = field(default_factory=list)
    """Begins of slices on links: ``link``, ``transfer`` and ``hop``."""
    ends: list[dict[str, Int64s]] = field(default_factory=list)
    """Slice ends: ``position``, ``track`` and ``end``."""
    points: list[dict[str, Int64s]] = field(default_factory=list)
    """Counter values: ``track``, ``at`` and ``value``."""
    single: dict[int, list[dict[str, int]]] = field(default_factory=lambda: {BEGIN: [], END: [], COUNTER: []})
    """Events from packets that are not of a run, by type."""


def scan(raw: bytes, file: str) -> Events:
    """Return the events of one file.

    Raises:
        TraceError: the file is no trace, ends too early, or is not pptrace's.
    """
    events = Events()
    at, length = 0, len(raw)
    runs: list[Any] = []
    count = 0
    while at < length:
        check_packets(count, raw, at, file)
        count += 1
        if runs:
            taken = _take_runs(raw, at, runs, events, file)
            runs = []
            at += taken
            continue
        start, stop = _packet(raw, at, file)
        known = bool(events.step)
        _add_packet(raw[start:stop], at, events, file)
        if events.step and not known:
            runs = list(events.step["runs"])
        at = stop
    if not events.step:
        raise TraceError("is no trace that pptrace wrote, or a truncated one", file=file)
    begins = events.single[BEGIN]
    for rows, found in (
        ([row for row in begins if _OF_LINKS not in row], events.begins),
        ([row for row in begins if _OF_LINKS in row], events.hops),
        (events.single[END], events.ends),
        (events.single[COUNTER], events.points),
    ):
        if rows:
            names = {name for row in rows for name in row}
            found.append({n: np.array([row.get(n, -1) for row in rows], dtype=np.int64) for n in sorted(names)})
    return events


def _take_runs(raw: bytes, at: int, runs: list[Any], events: Events, file: str) -> int:
    """Decode the runs at a place of the file; return the bytes that were theirs."""
    taken = 0
    for run in runs:
        layout, records = layout_of(run["parts"]), run["records"]
        size = records * layout.size
        check_events(records, file)
        if at + taken + size > len(raw):
            return taken
        columns = _decode(raw, at + taken, layout, records)
        if columns is None:
            return taken
        columns["position"] = at + taken + np.arange(records, dtype=np.int64) * layout.size
        if "segment" in run:
            columns["segment"] = np.full(records, run["segment"], dtype=np.int64)
        _sort_in(columns, events)
        taken += size
    return taken


def _decode(raw: bytes, at: int, layout: Layout, records: int) -> dict[str, Int64s] | None:
    matrix = np.frombuffer(raw, dtype=np.uint8, count=records * layout.size, offset=at).reshape(
        records, layout.size
    )
    chunks = []
    for start in range(0, records, layout.chunk_rows):
        columns = layout.decode(matrix[start : start + layout.chunk_rows])
        if columns is None:
            return None
        chunks.append(columns)
    names = [cell.name for _, cell in layout.cells]
    return {name: np.concatenate([c[name] for c in chunks] or [np.zeros(0, dtype=np.int64)]) for name in names}


def _sort_in(columns: dict[str, Int64s], events: Events) -> None:
    if "value" in columns:
        events.points.append(columns)
    if _OF_LINKS in columns:
        events.hops.append(columns)
    elif "start" in columns:
        events.begins.append(columns)
    if "end" in columns:
        same = {name: columns[name] for name in ("position", "track", "end")}
        events.ends.append(same | ({"position": same["position"] + 1} if "start" in columns else {}))


def _packet(raw: bytes, at: int, file: str) -> tuple[int, int]:
    """Return where the packet at a place of the file starts and stops."""
    if raw[at] != _PACKET_TAG:
        raise TraceError(f"is no Perfetto trace: byte {at} starts no packet", file=file)
    size = shift = 0
    for place in range(at + 1, min(at + 1 + _LONGEST_VARINT, len(raw))):
        size |= (raw[place] & 0x7F) << shift
        shift += 7
        if not raw[place] & _MORE:
            if place + 1 + size > len(raw):
                break
            return place + 1, place + 1 + size
    raise TraceError(_TRUNCATED, file=file)


def _add_packet(body: bytes, at: int, events: Events, file: str) -> None:
    from google.protobuf.message import DecodeError

    packet_class, _ = _messages()
    try:
        packet = packet_class.FromString(body)
    except DecodeError:
        raise TraceError(f"is no Perfetto trace: the packet at byte {at} cannot be decoded", file=file) from None
    if packet.HasField("trace_attributes"):
        _add_attributes(packet, events, file)
    elif packet.HasField("track_event") and packet.track_event.type in events.single:
        events.single[packet.track_event.type].append(_event(packet, at, events.step.get("segments", ())))


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


def _event(packet: Any, at: int, segments: Sequence[str]) -> dict[str, int]:
    """Return one event's values; a segment's name is its place among all of them."""
    event = packet.track_event
    row = {"position": at, "track": event.track_uuid}
    if event.type == COUNTER:
        return row | {"at": packet.timestamp, "value": event.counter_value}
    if event.type == END:
        return row | {"end": packet.timestamp}
    fields = ((name, extension) for name, extension in _messages()[1].items() if event.HasExtension(extension))
    found = {name: event.Extensions[extension] for name, extension in fields}
    if "segment" in found:
        found["segment"] = segments.index(found["segment"])
    return row | {"start": packet.timestamp} | found


@cache
def _messages() -> tuple[Any, Mapping[str, Any]]:
    """Return Perfetto's TracePacket and the typed fields, in a pool of their own."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    pool = DescriptorPool()
    pool.AddSerializedFile(perfetto_trace_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(descriptor_set().file[0].SerializeToString())
    packet_class = GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TracePacket"))
    scope = pool.FindMessageTypeByName(f"{PACKAGE}.{MESSAGE}").extensions_by_name
    return packet_class, {name: scope[name] for name in FIELD_NUMBERS}
