"""Writes a timeline as a Perfetto trace: what describes it first, then its records in runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pptrace.errors import OutputError
from pptrace.export.perfetto_counters import CounterPoints
from pptrace.export.perfetto_extension import descriptor_set
from pptrace.export.perfetto_layout import BEGIN, END, SEQUENCE, Layout
from pptrace.export.perfetto_marker import (
    FORMAT_KEY,
    PROVENANCE_KEY,
    STEP_KEY,
    TITLE_KEY,
    VERSION,
    provenance_json,
    step_json,
)
from pptrace.export.perfetto_names import Names
from pptrace.export.perfetto_slices import Slices
from pptrace.export.perfetto_tracks import Tracks
from pptrace.timeline.phases import phases

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.timeline.phases import Phase
    from pptrace.timeline.timeline import Timeline

__all__ = ["write"]

_STATE_CLEARED = 1
_NOT_NEGATIVE = (
    "lane_rank", "span", "enter_ns", "start_ns", "end_ns",
    "lag_ns", "uncontended_ns", "collective_ns", "size_bytes",
)  # fmt: skip


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``timeline`` to ``path``.

    Options: ``color``, ``kind`` (the default) or ``microbatch``, says what slices of one colour have in
    common; ``title`` names the trace.

    Raises:
        OutputError: a value that the format cannot hold, or a file that cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    _check(timeline, path)
    head = Trace()
    names = Names.of(timeline, by_microbatch=options.get("color", "kind") == "microbatch")
    _write_attributes(head, timeline, str(options.get("title", "")))
    _write_interned(head, names)
    tracks, parts = Tracks(timeline, head), phases(timeline)
    tracks.write({phase.rank for phase in parts})
    _write_phases(head, parts, tracks.phases)
    slices = Slices(timeline, np.array(tracks.lanes, dtype=np.int64), names)
    runs = list(slices.runs())
    counters = CounterPoints.of(timeline.counters, tracks.counters)
    sizes = [(run.layout, run.rows.size) for run in runs] + [(counters.layout, counters.at_ns.size)]
    marker = step_json(timeline, tracks.lanes, tracks.counters, sizes)
    head.packet.add().trace_attributes.attribute.add(key=STEP_KEY, string_value=marker)
    try:
        with path.open("wb") as file:
            file.write(head.SerializeToString())
            for run in runs:
                _write_run(file, run.layout, run.rows, slices.columns)
            _write_run(file, counters.layout, np.arange(counters.at_ns.size), counters.columns)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", file=path) from None


def _write_attributes(head: Trace, timeline: Timeline, title: str) -> None:
    attributes = head.packet.add().trace_attributes.attribute
    attributes.add(key=FORMAT_KEY, long_value=VERSION)
    if title:
        attributes.add(key=TITLE_KEY, string_value=title)
    attributes.add(key=PROVENANCE_KEY, string_value=provenance_json(timeline.provenance))
    embedded = head.packet.add().extension_descriptor.extension_set
    embedded.ParseFromString(descriptor_set().SerializeToString())


def _write_interned(head: Trace, names: Names) -> None:
    packet = head.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=_STATE_CLEARED)
    names.write(packet.interned_data)


def _write_phases(head: Trace, parts: Sequence[Phase], tracks: Mapping[int, int]) -> None:
    for part in parts:
        begin = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=part.start_ns)
        begin.track_event.type, begin.track_event.track_uuid = BEGIN, tracks[part.rank]
        begin.track_event.name = part.name
        begin.track_event.categories.append("phase")
        end = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=part.end_ns)
        end.track_event.type, end.track_event.track_uuid = END, tracks[part.rank]


def _write_run(
    file: BinaryIO,
    layout: Layout,
    rows: NDArray[np.int64],
    columns: Callable[[Layout, NDArray[np.int64]], Mapping[str, NDArray[np.integer]]],
) -> None:
    records = layout.blank(min(layout.chunk_rows, rows.size))
    for start in range(0, rows.size, layout.chunk_rows):
        chosen = rows[start : start + layout.chunk_rows]
        layout.encode(columns(layout, chosen), records[: chosen.size])
        file.write(records[: chosen.size].data)


def _check(timeline: Timeline, path: Path) -> None:
    for name in _NOT_NEGATIVE:
        values = getattr(timeline, name)
        if values.size and values.min() < 0:
            row = int(np.argmin(values))
            raise OutputError(
                f"{name} of row {row} is {values[row]}; a Perfetto trace has no negative ones", file=path
            )
    early = [c for c in timeline.counters if c.at_ns.size and c.at_ns[0] < 0]
    if early:
        where = f"counter {early[0].name!r} of rank {early[0].rank}"
        raise OutputError(f"{where} starts before time 0; a Perfetto trace has no negative times", file=path)
