"""A writer of Perfetto traces as PyTorch 2.15 writes them: packed, starts before ends, categories, render stages.

Source: PyTorch's torch/csrc/profiler/cuspy/cuspy_pftrace.cpp.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROCESS = 1


class Slice(NamedTuple):
    """A slice of the host, or an operation of a GPU."""

    category: str
    """Kineto's category."""
    name: str
    """Its name."""
    thread: int
    """Thread of the host."""
    start_ns: int
    """Start."""
    length_ns: int
    """Length."""
    args: Mapping[str, Any]
    """Arguments; ``stream`` and ``correlation`` of an operation."""


class _Interned(dict[str, int]):
    """Numbers of texts, each added to a table of interned data at its first use."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def __missing__(self, text: str) -> int:
        self[text] = len(self) + 1
        self.table.add(iid=self[text], name=text)
        return self[text]


_STAGES = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}


def write_native(path: Path, slices: Sequence[Slice]) -> Path:
    """Write the slices of a process."""
    trace = Trace()
    trace.packet.add(timestamp=1, trusted_packet_sequence_id=1).clock_snapshot.clocks.add(clock_id=6)
    for thread in dict.fromkeys(one.thread for one in slices if one.category not in _STAGES):
        track = trace.packet.add().track_descriptor
        track.uuid, track.thread.pid, track.thread.tid = _uuid(thread), PROCESS, thread
    interned = trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1).interned_data
    names, categories, stages = map(
        _Interned, (interned.event_names, interned.event_categories, interned.gpu_specifications)
    )
    launches = {"cuda_runtime", "cuda_driver"}
    for of_group in (False, True):
        group = [one for one in slices if one.category not in _STAGES and (one.category in launches) == of_group]
        for one in group:
            _add_start(trace, one, names[one.name], categories[one.category])
        for one in group:
            end = trace.packet.add(
                timestamp=one.start_ns + one.length_ns, trusted_packet_sequence_id=1
            ).track_event
            end.type, end.track_uuid = 2, _uuid(one.thread)
    for one in slices:
        if one.category in _STAGES:
            packet = trace.packet.add(timestamp=one.start_ns, trusted_packet_sequence_id=1, sequence_flags=2)
            stage = packet.gpu_render_stage_event
            stage.duration, stage.name_iid, stage.hw_queue_iid = one.length_ns, names[one.name], 100
            stage.stage_iid = stages[_STAGES[one.category]]
            for key, value in (("stream id", one.args["stream"]), ("correlation", one.args["correlation"])):
                stage.extra_data.add(name=key, value=str(value))
    path.write_bytes(gzip.compress(trace.SerializeToString(), mtime=0))
    return path


def _add_start(trace: Any, one: Slice, name: int, category: int) -> None:
    start = trace.packet.add(timestamp=one.start_ns, trusted_packet_sequence_id=1, sequence_flags=2).track_event
    start.type, start.track_uuid, start.name_iid = 1, _uuid(one.thread), name
    start.category_iids.append(category)
    for key, value in one.args.items():
        _annotate(start.debug_annotations.add(name=key), value)


def _annotate(annotation: Any, value: Any) -> None:
    """Set the value of an annotation by its type; a list is nested, and empty without elements."""
    if isinstance(value, list):
        for element in value:
            _annotate(annotation.array_values.add(), element)
    elif isinstance(value, int):
        annotation.int_value = value
    else:
        annotation.string_value = str(value)


def _uuid(thread: int) -> int:
    return 1000 + thread % 2**62
