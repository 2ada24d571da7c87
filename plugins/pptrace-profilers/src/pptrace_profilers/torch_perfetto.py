"""Perfetto traces (``.pftrace``) of PyTorch's profiler, with the slices of its Chrome JSON.

Sources: Kineto's PerfettoTraceBuilder.cpp and PyTorch's torch/csrc/profiler/cupti/monitor_pftrace.cpp. Kineto
writes each event on a separate track below that of its thread. Its arguments are one JSON text named ``metadata``,
and the metadata of the file are instants named ``trace_metadata``. PyTorch writes separate arguments. Its GPU
operations are slices on the track of a stream, or ``GpuRenderStageEvent`` with arguments as texts.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from pptrace.plugin import TraceError, UnpackedFile, check_packets, read_varint
from pptrace_profilers.events import Arguments, EventBuilder, parse_integer
from pptrace_profilers.pytorch_process import recording_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

_CALL = re.compile(r"(?:cuda|cu|hip)[A-Z]\w*")
_PACKET_TAG, _LONGEST_VARINT = 0x0A, 10
_MOST_OPEN, _MOST_ANCESTORS = 10_000, 8
_BEGIN, _END, _INSTANT = 1, 2, 3


def read_pftrace(path: Path, rules: Rules) -> Recording:
    """Read one process's file.

    Raises:
        TraceError: the file cannot be read, is no Perfetto trace, or has no slice.
    """
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    slices = _Slices(path)
    raw = UnpackedFile.read_whole(path)
    if not raw:
        raise TraceError("is empty", file=path)
    for count, (start, stop) in enumerate(_packets(raw, path, slices), 1):
        check_packets(count, raw, stop, path)
        try:
            slices.add(TracePacket.FromString(raw[start:stop]))
        except DecodeError:
            raise TraceError(f"is damaged: the packet at byte {start} is none", file=path) from None
    return slices.recording(rules)


def _packets(raw: bytes, path: Path, slices: _Slices) -> Iterator[tuple[int, int]]:
    offset = 0
    while offset < len(raw):
        if raw[offset] != _PACKET_TAG:
            raise TraceError(f"is no Perfetto trace: byte {offset} starts no packet", file=path)
        size, length = read_varint(raw[offset + 1 : offset + 1 + _LONGEST_VARINT], 0)
        start = offset + 1 + length
        if not length or start + size > len(raw):
            slices.cut = True
            return
        yield start, start + size
        offset = start + size


class _Slices:
    """Slices in packet order; interned strings are local to a packet sequence."""

    def __init__(self, path: Path) -> None:
        self.path, self.cut = path, False
        self.builder = EventBuilder()
        self.top: dict[str, Any] = {}
        self.parents: dict[int, int] = {}
        self.threads: dict[int, tuple[int, int]] = {}
        self.open_slices: dict[int, list[tuple[int, str, dict[str, Any]]]] = {}
        self.names: dict[tuple[int, str, int], str] = {}

    def add(self, packet: Any) -> None:
        """Add the next packet."""
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("track_descriptor"):
            self._describe(packet.track_descriptor)
        if packet.HasField("interned_data"):
            self._intern(sequence, packet.interned_data)
        if packet.HasField("track_event"):
            self._add_event(packet.timestamp, sequence, packet.track_event)
        elif packet.HasField("gpu_render_stage_event"):
            self._add_gpu_stage(packet.timestamp, sequence, packet.gpu_render_stage_event)

    def recording(self, rules: Rules) -> Recording:
        """Return the recording of the process."""
        self.builder.bad += sum(map(len, self.open_slices.values()))
        if not len(self.builder):
            raise TraceError("holds no slice of PyTorch's profiler", file=self.path)
        self.top.pop("baseTimeNanoseconds", None)  # packets' times are integers
        recording = recording_of(self.builder.events(self.path, self.top, cut=self.cut), rules)
        return replace(recording, has_clock=True)

    def _describe(self, track: Any) -> None:
        if track.parent_uuid:
            self.parents[track.uuid] = track.parent_uuid
        if track.HasField("thread"):
            self.threads[track.uuid] = (track.thread.pid, track.thread.tid)

    def _intern(self, sequence: int, data: Any) -> None:
        for kind in ("event_names", "debug_annotation_names", "gpu_specifications"):
            self.names |= {(sequence, kind, entry.iid): _text(entry.name) for entry in getattr(data, kind)}
        for entry in data.debug_annotation_string_values:
            self.names[sequence, "texts", entry.iid] = entry.str.decode("utf-8", errors="replace")

    def _thread(self, track: int) -> tuple[int, int]:
        """Return the process and thread of a track or of its nearest ancestor with a thread."""
        ancestor = track
        for _ in range(_MOST_ANCESTORS):
            if ancestor in self.threads:
                return self.threads[ancestor]
            ancestor = self.parents.get(ancestor, 0)
        return (-1, track % 2**62)

    def _add_event(self, time_ns: int, sequence: int, event: Any) -> None:
        opened = self.open_slices.setdefault(event.track_uuid, [])
        if event.type == _END:
            if opened:
                start, name, fields = opened.pop()
                self._add_slice(name, fields, self._thread(event.track_uuid), start, time_ns)
            else:
                self.builder.bad += 1
            return
        if event.type not in {_BEGIN, _INSTANT}:
            return
        name = _text(event.name) or self.names.get((sequence, "event_names", event.name_iid), "")
        fields = dict(self._annotations(sequence, event.debug_annotations))
        if event.type == _INSTANT:
            self.top |= _parsed(fields) if name == "trace_metadata" else {}
        elif len(opened) < _MOST_OPEN:
            opened.append((time_ns, name, fields))

    def _annotations(self, sequence: int, annotations: Any) -> Iterator[tuple[str, Any]]:
        for annotation in annotations:
            interned = self.names.get((sequence, "debug_annotation_names", annotation.name_iid), "")
            name, value = _text(annotation.name) or interned, _value(annotation)
            if annotation.HasField("string_value_iid"):
                value = self.names.get((sequence, "texts", annotation.string_value_iid))
            if name == "metadata" and isinstance(value, str):
                # Kineto writes JSON without the outer braces.
                values = _json("{" + value.strip().strip("{}") + "}")
                yield from values.items() if isinstance(values, dict) else ()
            else:
                yield name, value

    def _add_slice(
        self, name: str, fields: Mapping[str, Any], thread: tuple[int, int], start: int, end: int
    ) -> None:
        correlation = parse_integer(fields.get("correlation", fields.get("correlation_id")), -1)
        stream = parse_integer(fields.get("stream"), -1)
        if stream >= 0 and name != "" and "device" in fields:
            category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        else:
            category = "cuda_runtime" if _CALL.fullmatch(name) and correlation >= 0 else "user_annotation"
        self.builder.add(
            name, category, thread, start, end,
            correlation=correlation, arguments=_arguments(fields),
            stream=stream if category != "user_annotation" else -1,
        )  # fmt: skip

    def _add_gpu_stage(self, time_ns: int, sequence: int, stage: Any) -> None:
        fields = {_text(entry.name): _text(entry.value) for entry in stage.extra_data}
        category = self.names.get((sequence, "gpu_specifications", stage.stage_iid), "")
        if category == "Annotation":
            return
        interned = self.names.get((sequence, "event_names", stage.name_iid), "")
        name = _text(stage.name) or interned or category or "kernel"
        stream = parse_integer(fields.get("stream id", fields.get("stream")), stage.hw_queue_iid)
        self.builder.add(
            name, "kernel", (-2 - stage.gpu_id, stream), time_ns, time_ns + stage.duration,
            correlation=parse_integer(fields.get("correlation"), -1), stream=stream,
            arguments=_arguments(_parsed(fields)),
        )  # fmt: skip


def _text(value: str | bytes) -> str:
    """Return text; protobuf returns bytes if it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def _value(annotation: Any) -> Any:
    which = annotation.WhichOneof("value")
    if annotation.array_values:
        return [_value(entry) for entry in annotation.array_values]
    return (
        getattr(annotation, which)
        if which in {"string_value", "int_value", "uint_value", "double_value"}
        else None
    )


def _parsed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _json(value) if isinstance(value, str) else value for key, value in fields.items()}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _arguments(fields: Mapping[str, Any]) -> Arguments | None:
    """Return Kineto's arguments from the fields of an event; None if importers need none of them."""
    if not any(key in fields for key in ("Collective name", "Concrete Inputs", "Input Dims", "dtype")):
        return None
    try:
        return msgspec.json.decode(json.dumps(fields), type=Arguments)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return None
