"""Perfetto traces (``.pftrace``) of PyTorch's profiler, with the slices of its Chrome JSON.

Sources: Kineto's PerfettoTraceBuilder.cpp, and PyTorch's torch/csrc/profiler: cupti/monitor_pftrace.cpp, and from
2.15 on cuspy/cuspy_pftrace.cpp. Kineto writes each event on a separate track below that of its thread. Its
arguments are one JSON text named ``metadata``, and the metadata of the file are instants named
``trace_metadata``. PyTorch writes separate arguments. From 2.15 on, it packs the file by gzip and names the
category of each slice. Its GPU operations are slices on the track of a stream, or ``GpuRenderStageEvent`` with
arguments as texts.

PyTorch writes all starts of a group of slices, and then their ends in the same order. So if times on a track are
not in order, the first end is that of the first start. Otherwise slices are nested.
"""

from __future__ import annotations

import json
import re
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.plugin import TraceError, UnpackedFile
from pptrace.traces.perfetto.wire import check_packets, read_varint
from pptrace_profilers.events import Arguments, EventBuilder, parse_integer
from pptrace_profilers.pytorch_process import recording_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace_profilers.events import Events
    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

_CALL = re.compile(r"(?:cuda|cu|hip)[A-Z]\w*")
_PACKET_TAG = 0x0A
_MOST_ANCESTORS = 8
_STAGES = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
"""Categories of render stages; all other stages are kernels."""
_NO_WORK = frozenset({"Annotation", "EventRecord", "HostNode"})
"""Render stages without work of the GPU."""
_DESCRIBED = frozenset({"Collective name", "Concrete Inputs", "Input Dims", "dtype"})
"""Arguments of messages and collectives."""
_SYNCHRONIZATION = "cuda_sync_kind"
"""Argument of waits of a stream, which are no work of the GPU."""
_BEGIN, _END, _INSTANT = 1, 2, 3


def read_pftrace(path: Path, rules: Rules) -> list[Recording]:
    """Read one process's file.

    Raises:
        TraceError: the file cannot be read, is no Perfetto trace, or has no slice.
    """
    return [replace(recording_of(read_slices(path, _DESCRIBED), rules), has_clock=True)]


def read_slices(path: Path, details: frozenset[str]) -> Events:
    """Read a file's slices; those with one of the arguments ``details`` keep their arguments.

    Raises:
        TraceError: as :func:`read_pftrace`.
    """
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    slices = _Slices(path, details)
    raw = UnpackedFile.read_whole(path)
    if not raw:
        raise TraceError("is empty", file=path)
    for count, (start, stop) in enumerate(_packets(raw, path, slices), 1):
        check_packets(count, raw, stop, path)
        try:
            slices.add(TracePacket.FromString(raw[start:stop]))
        except DecodeError:
            raise TraceError(f"is damaged: the packet at byte {start} is none", file=path) from None
    return slices.events()


def _packets(raw: bytes, path: Path, slices: _Slices) -> Iterator[tuple[int, int]]:
    offset = 0
    while offset < len(raw):
        if raw[offset] != _PACKET_TAG:
            raise TraceError(f"is no Perfetto trace: byte {offset} starts no packet", file=path)
        size, start = read_varint(raw, offset + 1)
        if not start or start + size > len(raw):
            slices.cut = True
            return
        yield start, start + size
        offset = start + size


_Begun = tuple[str, str, int, int, "Arguments | None"]
"""Name, category, correlation, stream and arguments of a slice that has begun."""


class _Track(Struct):
    """Slices of a track since the last instant without an open slice."""

    open: int = 0
    """Number of open slices."""
    pending: list[tuple[int, _Begun | None]] = field(default_factory=list)
    """Time and slice of each start, time and None of each end, in packet order."""


class _Slices:
    """Slices in packet order; interned strings are local to a packet sequence."""

    def __init__(self, path: Path, details: frozenset[str]) -> None:
        self.path, self.details, self.cut = path, details, False
        self.builder = EventBuilder()
        self.top: dict[str, Any] = {}
        self.parents: dict[int, int] = {}
        self.threads: dict[int, tuple[int, int]] = {}
        self.tracks: dict[int, _Track] = {}
        self.is_ordered = True
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

    def events(self) -> Events:
        """Return the slices as events of a process."""
        for uuid, track in self.tracks.items():
            self._close(uuid, track)
        if not len(self.builder):
            raise TraceError("holds no slice of PyTorch's profiler", file=self.path)
        self.top.pop("baseTimeNanoseconds", None)  # packets' times are integers
        return self.builder.events(self.path, self.top, cut=self.cut)

    def _describe(self, track: Any) -> None:
        if track.parent_uuid:
            self.parents[track.uuid] = track.parent_uuid
        if track.HasField("thread"):
            self.threads[track.uuid] = (track.thread.pid, track.thread.tid)

    def _intern(self, sequence: int, data: Any) -> None:
        for kind in ("event_names", "event_categories", "debug_annotation_names", "gpu_specifications"):
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
        if event.type not in {_BEGIN, _END, _INSTANT}:
            return
        track = self.tracks.setdefault(event.track_uuid, _Track())
        if event.type == _END:
            if not track.open:
                self.builder.bad += 1
                return
            track.open -= 1
            track.pending.append((time_ns, None))
            if not track.open:
                self._close(event.track_uuid, track)
            return
        name = _text(event.name) or self.names.get((sequence, "event_names", event.name_iid), "")
        fields = dict(self._annotations(sequence, event.debug_annotations))
        if event.type == _INSTANT:
            self.top |= _parsed(fields) if name == "trace_metadata" else {}
            return
        categories = [self.names.get((sequence, "event_categories", iid), "") for iid in event.category_iids]
        track.open += 1
        track.pending.append((time_ns, _begun(name, fields, [*event.categories, *categories], self.details)))

    def _close(self, uuid: int, track: _Track) -> None:
        """Add the slices of a track, and empty it."""
        times_ns = [time_ns for time_ns, _ in track.pending]
        self.is_ordered = self.is_ordered and all(first <= second for first, second in pairwise(times_ns))
        thread = self._thread(uuid)
        opened: deque[tuple[int, _Begun]] = deque()
        for time_ns, begun in track.pending:
            if begun is not None:
                opened.append((time_ns, begun))
                continue
            start_ns, (name, category, correlation, stream, arguments) = (
                opened.pop() if self.is_ordered else opened.popleft()
            )
            if category != _SYNCHRONIZATION:
                self.builder.add(
                    name, category, thread, start_ns, time_ns, correlation=correlation, stream=stream,
                    arguments=arguments,
                )  # fmt: skip
        self.builder.bad += len(opened)
        track.open, track.pending = 0, []

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

    def _add_gpu_stage(self, time_ns: int, sequence: int, stage: Any) -> None:
        fields = {_text(entry.name): _text(entry.value) for entry in stage.extra_data}
        kind = self.names.get((sequence, "gpu_specifications", stage.stage_iid), "")
        if kind in _NO_WORK:
            return
        interned = self.names.get((sequence, "event_names", stage.name_iid), "")
        name = _text(stage.name) or interned or kind or "kernel"
        stream = parse_integer(fields.get("stream id", fields.get("stream")), stage.hw_queue_iid)
        self.builder.add(
            name, _STAGES.get(kind, "kernel"), (-2 - stage.gpu_id, stream), time_ns, time_ns + stage.duration,
            correlation=parse_integer(fields.get("correlation"), -1), stream=stream,
            arguments=_arguments(_parsed(fields), self.details),
        )  # fmt: skip


def _begun(
    name: str, fields: Mapping[str, Any], categories: Sequence[str], details: frozenset[str]
) -> _Begun:  # fmt: skip
    """Return a slice that has begun, with its category, which is that of Kineto if the trace has none."""
    correlation = parse_integer(fields.get("correlation", fields.get("correlation_id")), -1)
    stream = parse_integer(fields.get("stream"), -1)
    if _SYNCHRONIZATION in fields:
        category = _SYNCHRONIZATION
    elif stream >= 0 and name != "" and "device" in fields:
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    elif categories:
        category = categories[0]
    else:
        category = "cuda_runtime" if _CALL.fullmatch(name) and correlation >= 0 else "user_annotation"
    is_annotation = category == "user_annotation"
    return name, category, correlation, -1 if is_annotation else stream, _arguments(fields, details)


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


def _arguments(fields: Mapping[str, Any], details: frozenset[str]) -> Arguments | None:
    """Return Kineto's arguments from the fields of an event; None if it has none of ``details``."""
    if details.isdisjoint(fields):
        return None
    try:
        return msgspec.json.decode(json.dumps(fields), type=Arguments)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return None
