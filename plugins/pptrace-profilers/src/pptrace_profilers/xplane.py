"""XPlane files of JAX and TensorFlow (``.xplane.pb``): operations of the accelerators of one host.

Source: OpenXLA's tsl/profiler/protobuf/xplane.proto. A file is an ``XSpace`` of planes. The plane of a GPU
(``/device:GPU:0``) has a line per stream. The plane of a TPU has the lines ``XLA Ops`` and ``Async XLA Ops``; its
other lines repeat their times. A line starts at a time in nanoseconds, its events at offsets in picoseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pptrace.plugin import TraceError, UnpackedFile, check_events
from pptrace.traces.perfetto.wire import message_classes
from pptrace_profilers.events import EventBuilder
from pptrace_profilers.pytorch_process import recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

_DEVICE = re.compile(r"/device:(?P<sort>\w+):(?P<number>\d+)")
_STREAM = re.compile(r"Stream #(\d+)|((?:Async )?XLA Ops)$")
_COPY = re.compile(r"mem(?:cpy|set)", re.IGNORECASE)
_PS = 1000
"""Picoseconds of a nanosecond."""
_MESSAGES = {
    "XSpace": {"planes": (1, "XPlane*")},
    "XPlane": {"name": (2, "string"), "lines": (3, "XLine*"), "event_metadata": (4, "Entry*")},
    "XLine": {"name": (2, "string"), "timestamp_ns": (3, "int64"), "events": (4, "XEvent*")},
    "XEvent": {"metadata_id": (1, "int64"), "offset_ps": (2, "int64"), "duration_ps": (3, "int64")},
    "Entry": {"key": (1, "int64"), "value": (2, "Metadata")},
    "Metadata": {"name": (2, "string")},
}
"""Number and type of the fields that are read, as in :func:`~pptrace.traces.perfetto.wire.message_classes`."""


def read_xplane(path: Path, rules: Rules, first_rank: int = 0) -> list[Recording]:
    """Read one file.

    Returns:
        One recording per accelerator by rank, which is its number on the host plus that of the host's first rank.

    Raises:
        TraceError: the file cannot be read, or has no operation of an accelerator.
    """
    from google.protobuf.message import DecodeError

    try:
        space = message_classes("pptrace_xplane", _MESSAGES)["XSpace"].FromString(UnpackedFile.read_whole(path))
    except DecodeError:
        raise TraceError("is not a complete XPlane file", file=path) from None
    recordings, count = [], 0
    for plane in space.planes:
        device = _DEVICE.search(plane.name)
        lines = [(line, stream) for line in plane.lines if (stream := _STREAM.match(line.name))] if device else []
        count += sum(len(line.events) for line, _ in lines)
        check_events(count, path)
        builder = EventBuilder()
        names = {entry.key: entry.value.name for entry in plane.event_metadata} if lines else {}
        for number, (line, stream) in enumerate(lines):
            _add_line(builder, line, names, int(stream[1] or number))
        if device is not None and len(builder):
            rank = first_rank + int(device["number"])
            events = builder.events(path, {"distributedInfo": {"rank": rank}})
            recordings.append(replace(recording_of(events, rules), origin_ns=None))
    if not recordings:
        raise TraceError("holds no operation of an accelerator: record on a GPU or TPU", file=path)
    return sorted(recordings, key=lambda recording: recording.rank)


def _add_line(builder: EventBuilder, line: Any, names: dict[int, str], stream: int) -> None:
    for event in line.events:
        name = names.get(event.metadata_id, "operation")
        start_ns = line.timestamp_ns + event.offset_ps // _PS
        end_ns = line.timestamp_ns + (event.offset_ps + event.duration_ps) // _PS
        category = "gpu_memcpy" if _COPY.match(name) else "kernel"
        builder.add(name, category, (-1, stream), start_ns, end_ns, stream=stream)
