"""Writes a timeline as a Perfetto trace: what describes it first, then its records in runs."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import ConfigError, OutputError
from pptrace.export.hops import Hops
from pptrace.export.kineto.lanes import part_of
from pptrace.export.perfetto.counters import counter_run
from pptrace.export.perfetto.extension import descriptor_set
from pptrace.export.perfetto.layout import BEGIN, END, SEQUENCE
from pptrace.export.perfetto.links import link_runs, spelt_names
from pptrace.export.perfetto.marker import (
    FORMAT_KEY,
    PROVENANCE_KEY,
    STEP_KEY,
    TITLE_KEY,
    VERSION,
    provenance_json,
    step_json,
)
from pptrace.export.perfetto.names import LINK_CATEGORY, PATH_CATEGORY, WAIT_CATEGORY, Names
from pptrace.export.perfetto.slices import Slices
from pptrace.export.perfetto.tracks import Tracks
from pptrace.export.perfetto.why import NAMES as WHY_NAMES
from pptrace.export.perfetto.why import path_runs, wait_runs
from pptrace.export.write_behind import write_behind
from pptrace.printable import printable
from pptrace.timeline.phases import phases

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.export.perfetto.layout import Run
    from pptrace.timeline.phases import Phase
    from pptrace.timeline.timeline import Timeline

__all__ = ["COLOR_BY", "write", "write_packets"]

_BY_MICROBATCH = "microbatch"
COLOR_BY = ("kind", _BY_MICROBATCH)
"""What slices may be coloured by."""

_STATE_CLEARED = 1
_NOT_NEGATIVE = (
    "lane_rank", "span", "enter_ns", "start_ns", "end_ns",
    "lag_ns", "uncontended_ns", "collective_ns", "size_bytes",
)  # fmt: skip


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write all ranks to one file, or with the option ``rank`` that rank's alone.

    ``color``, one of :data:`COLOR_BY`, says what slices of one colour have in common; ``title`` names the
    trace. Rows keep the numbers that they have in the whole timeline, so files written rank by rank can be
    read as one again.

    Raises:
        ConfigError: an option has no such value.
        OutputError: a value that the format cannot hold.
        OSError: the file cannot be written.
    """
    color = _checked(timeline, options)
    first_row = 0
    if options.get("rank") is not None:
        timeline, first_row = part_of(timeline, options["rank"])
    head, runs = _encoded(timeline, first_row, color, str(options.get("title", "")))
    write_packets(path, head, runs)


def write_packets(path: Path, head: bytes, runs: Sequence[Run]) -> None:
    """Write packets that describe a trace, and behind them its runs of records."""
    with path.open("wb") as file:
        file.write(head)
        write_behind(file, (piece for run in runs for piece in _pieces(run)), waiting=1)


def _encoded(timeline: Timeline, first_row: int, color: str, title: str) -> tuple[bytes, list[Run]]:
    """Return the packets that describe a trace, and its runs of records."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head = Trace()
    names, hops = Names.of(timeline, by_microbatch=color == _BY_MICROBATCH), Hops.of(timeline)
    _write_attributes(head, timeline, title)
    behind = _write_interned(head, timeline, names, hops)
    tracks, parts = Tracks(timeline, head, hops), phases(timeline)
    tracks.write({phase.rank for phase in parts})
    _write_phases(head, parts, tracks.phases)
    slices = Slices(timeline, np.array(tracks.lanes, dtype=np.int32), names, first_row)
    runs = list(slices.runs())
    if len(hops):
        links = np.array(tracks.links, dtype=np.int32)
        runs += link_runs(timeline, hops, slices, links, len(names.names) + 1)
    if timeline.why is not None:
        runs += wait_runs(timeline.why.waits, tracks.waits, behind)
        runs += path_runs(timeline.why.path, slices, tracks.path, behind, first_row)
    runs.sort(key=lambda run: run.place)
    runs.append(counter_run(timeline.counters, tracks.counters))
    marker = step_json(timeline, tracks.lanes, tracks.counters, runs, first_row)
    head.packet.add().trace_attributes.attribute.add(key=STEP_KEY, string_value=marker)
    whole: bytes = head.SerializeToString()
    return whole, runs


def _write_attributes(head: Trace, timeline: Timeline, title: str) -> None:
    attributes = head.packet.add().trace_attributes.attribute
    attributes.add(key=FORMAT_KEY, long_value=VERSION)
    if title:
        attributes.add(key=TITLE_KEY, string_value=printable(title))
    attributes.add(key=PROVENANCE_KEY, string_value=provenance_json(timeline.provenance))
    embedded = head.packet.add().extension_descriptor.extension_set
    links = timeline.routes is not None and timeline.routes.link.size > 0
    descriptor = descriptor_set(links=links, segments=timeline.parts is not None, why=timeline.why is not None)
    embedded.ParseFromString(descriptor.SerializeToString())


def _write_interned(head: Trace, timeline: Timeline, names: Names, hops: Hops) -> int:
    """Write what slices are called; return the number of the first name behind those of actions and messages."""
    packet = head.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=_STATE_CLEARED)
    names.write(packet.interned_data)
    if len(hops):
        packet.interned_data.event_categories.add(iid=LINK_CATEGORY, name="link")
        packet.interned_data.MergeFromString(spelt_names(hops.titles(timeline), len(names.names) + 1))
    behind = len(names.names) + hops.sent.size + 1
    if timeline.why is not None:
        packet.interned_data.event_categories.add(iid=WAIT_CATEGORY, name="wait")
        packet.interned_data.event_categories.add(iid=PATH_CATEGORY, name="critical path")
        for iid, name in enumerate(WHY_NAMES, behind):
            packet.interned_data.event_names.add(iid=iid, name=name)
    return behind


def _write_phases(head: Trace, parts: Sequence[Phase], tracks: Mapping[int, int]) -> None:
    for part in parts:
        begin = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=part.start_ns)
        begin.track_event.type, begin.track_event.track_uuid = BEGIN, tracks[part.rank]
        begin.track_event.name = part.name
        begin.track_event.categories.append("phase")
        end = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=part.end_ns)
        end.track_event.type, end.track_event.track_uuid = END, tracks[part.rank]


def _pieces(run: Run) -> Iterator[memoryview]:
    """Yield a run's records in pieces, each valid until the next but one is made."""
    layout, rows = run.layout, run.rows
    size = min(layout.chunk_rows, rows.size)
    buffers = cycle([layout.blank(size) for _ in range(1 if size == rows.size else 2)])
    for start in range(0, rows.size, layout.chunk_rows):
        records = next(buffers)
        chosen = rows[start : start + layout.chunk_rows]
        layout.encode(run.values(layout, chosen), records[: chosen.size])
        yield records[: chosen.size].data


def _checked(timeline: Timeline, options: Mapping[str, Any]) -> str:
    """Return the option ``color``; refuse options and values that cannot be written."""
    rank, color = options.get("rank"), str(options.get("color", COLOR_BY[0]))
    if color not in COLOR_BY:
        raise ConfigError(f"{color!r} is none of {', '.join(COLOR_BY)}", key="color")
    if rank is not None and rank not in timeline.lane_rank:
        raise ConfigError(f"the timeline has no rank {rank}", key="rank")
    for name in _NOT_NEGATIVE:
        values = getattr(timeline, name)
        if values.size and values.min() < 0:
            row = int(np.argmin(values))
            raise OutputError(f"{name} of row {row} is {values[row]}; a Perfetto trace has no negative ones")
    for counter in timeline.counters:
        if counter.at_ns.size and counter.at_ns[0] < 0:
            which = f"counter {counter.name!r} of {f'rank {counter.rank}' if counter.rank >= 0 else 'the cluster'}"
            raise OutputError(f"{which} starts before time 0; a Perfetto trace has no negative times")
    return color
