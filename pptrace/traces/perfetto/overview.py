"""A step in few slices, where it is too large for viewers: how busy ranks are in each part of it, and why not.

Beside that stand the phases, the critical path by rank, and each rank's counters at their highest. A step of any
length becomes some hundred slices and values per rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.sanitize import printable
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import phases
from pptrace.timeline.timeline import Counter, window
from pptrace.traces.link_slices import Hops
from pptrace.traces.perfetto.descriptors import PROVENANCE_KEY, TITLE_KEY, Tracks, provenance_json
from pptrace.traces.perfetto.wire import BEGIN, END, SEQUENCE
from pptrace.traces.perfetto.writer import counter_run, write_packets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor

    from pptrace.steps.columns import Int64s
    from pptrace.timeline.timeline import Timeline, Waits

__all__ = ["WINDOWS", "busy_percent", "write_overview"]

WINDOWS = 500
"""Into how many equal parts a step is divided."""

_WORDS = ((95, "busy"), (70, "mostly busy"), (30, "half idle"), (0, "idle"))
"""From how many percent on a part of a rank's step is called so."""


def write_overview(
    timeline: Timeline,
    path: Path,
    title: str,
    about: Mapping[int, str],
    replicas: Iterable[tuple[str, Timeline]] = (),
) -> None:
    """Write the overview of a step that says why its ranks wait.

    Args:
        timeline: the step.
        path: the file.
        title: what the trace is called.
        about: what is said of ranks, such as which GPUs they are.
        replicas: those that differ, with names, as long as the step; each becomes a track of how busy its ranks
            are in the mean.

    Raises:
        OSError: the file cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head = Trace()
    attributes = head.packet.add().trace_attributes.attribute
    attributes.add(key=TITLE_KEY, string_value=printable(title))
    attributes.add(key=PROVENANCE_KEY, string_value=provenance_json(timeline.provenance))
    edges = _edges(timeline)
    tracks = Tracks(timeline, head, Hops.of(replace(timeline, routes=None)))
    tracks.describe_process()
    counters: list[tuple[Counter, int]] = []
    if timeline.why is not None and len(timeline.why.path):
        _write_path(head, tracks.thread("critical path", -1), timeline)
    ranks = sorted(set(timeline.lane_rank.tolist()))
    digits = len(str(max(ranks, default=0)))
    for rank in ranks:
        top = tracks.thread(f"rank {rank:0{digits}}", rank)
        if rank in about:
            top.description = printable(about[rank])
        counters += _write_rank(head, tracks, top, timeline, rank, edges)
    for number, (name, replica) in enumerate(replicas, max(ranks, default=0) + 1):
        counters.append(_write_replica(head, tracks, tracks.thread(name, number), replica, edges))
    run = counter_run([counter for counter, _ in counters], [track for _, track in counters])
    write_packets(path, head.SerializeToString(), [run])


def _edges(timeline: Timeline) -> Int64s:
    begin, end = window(timeline) if len(timeline) else (0, 0)
    return np.unique(np.linspace(begin, end, WINDOWS + 1).astype(np.int64))


def busy_percent(timeline: Timeline, rank: int, edges: Int64s) -> tuple[Int64s, dict[IdleCause, Int64s]]:
    """Return how busy a rank is between each two edges, and how idle by cause, in percent."""
    length = np.maximum(np.diff(edges), 1)
    idle: dict[IdleCause, Int64s] = {}
    if timeline.why is not None:
        waits = timeline.why.waits
        for cause in IdleCause:
            own = (waits.rank == rank) & (waits.cause == cause)
            if own.any():
                idle[cause] = np.diff(_until(waits, own, edges))
    busy = length - sum(idle.values(), np.zeros_like(length))
    return 100 * busy // length, {cause: 100 * time // length for cause, time in idle.items()}


def _until(waits: Waits, own: np.ndarray, edges: Int64s) -> Int64s:
    """Return for how long some of a rank's waits have lasted at each edge."""
    start, end = waits.start_ns[own], waits.end_ns[own]
    whole = np.concatenate([[0], np.cumsum(end - start)])
    over = np.searchsorted(end, edges, side="right")
    partly = np.maximum(edges - np.append(start, edges[-1] + 1)[over], 0)
    lasted: Int64s = whole[over] + partly
    return lasted


def _write_rank(
    head: Trace, tracks: Tracks, top: TrackDescriptor, timeline: Timeline, rank: int, edges: Int64s
) -> Iterator[tuple[Counter, int]]:
    """Write a rank's slices; yield its counters and their tracks."""
    busy, idle = busy_percent(timeline, rank, edges)
    _write_words(head, top, busy, edges)
    parts = [part for part in phases(timeline) if part.rank == rank]
    if parts:
        track = tracks.child(top, "phases", 0).uuid
        for part in parts:
            _write_slice(head, track, part.start_ns, part.end_ns, part.name)
    shares = {"busy": busy, **{f"idle: {cause.word}": share for cause, share in idle.items()}}
    shown = [
        Counter(rank=rank, name=name, unit="%", at_ns=edges[:-1], value=share) for name, share in shares.items()
    ]
    shown += [_highest(counter, edges) for counter in timeline.counters if counter.rank == rank]
    for place, counter in enumerate(shown, 1):
        track = tracks.child(top, counter.name, place)
        track.counter.unit_name, track.counter.y_axis_share_key = counter.unit, counter.unit
        yield counter, track.uuid


def _write_words(head: Trace, top: TrackDescriptor, busy: Int64s, edges: Int64s) -> None:
    """Write a slice for each part of a step that is equally busy."""
    words = np.searchsorted([-least for least, _ in _WORDS], -busy)
    turns = np.flatnonzero(np.diff(words, prepend=-1))
    ends = np.append(turns[1:], words.size)
    for first, end in zip(turns.tolist(), ends.tolist(), strict=True):
        _write_slice(head, top.uuid, int(edges[first]), int(edges[end]), _WORDS[words[first]][1])


def _write_replica(
    head: Trace, tracks: Tracks, top: TrackDescriptor, timeline: Timeline, edges: Int64s
) -> tuple[Counter, int]:
    """Write how busy a replica's ranks are in the mean; return that as a counter, with its track."""
    ranks = sorted(set(timeline.lane_rank.tolist()))
    busy: Int64s = np.sum([busy_percent(timeline, rank, edges)[0] for rank in ranks], axis=0) // len(ranks)
    _write_words(head, top, busy, edges)
    track = tracks.child(top, "busy", 1)
    track.counter.unit_name = track.counter.y_axis_share_key = "%"
    return Counter(rank=ranks[0], name="busy", unit="%", at_ns=edges[:-1], value=busy), track.uuid


def _highest(counter: Counter, edges: Int64s) -> Counter:
    """Return a counter's highest value between each two edges, where it has more values than those."""
    if counter.at_ns.size <= edges.size:
        return counter
    place = np.searchsorted(counter.at_ns, edges[:-1], side="right")
    at_edge = np.where(place > 0, counter.value[np.maximum(place - 1, 0)], 0)
    inside = np.maximum.reduceat(np.append(counter.value, 0), place)
    some = np.diff(np.append(place, counter.at_ns.size)) > 0
    value = np.maximum(at_edge, np.where(some, inside, at_edge))
    return replace(counter, at_ns=edges[:-1], value=value)


def _write_path(head: Trace, top: TrackDescriptor, timeline: Timeline) -> None:
    """Write which rank the critical path is on."""
    path = timeline.why.path if timeline.why is not None else None
    if path is None:
        return
    rank = timeline.rank_of_row()[path.row]
    turns = np.flatnonzero(np.diff(rank, prepend=-1))
    ends = np.append(turns[1:], rank.size)
    for first, end in zip(turns.tolist(), ends.tolist(), strict=True):
        _write_slice(head, top.uuid, int(path.start_ns[first]), int(path.end_ns[end - 1]), f"rank {rank[first]}")


def _write_slice(head: Trace, track: int, start_ns: int, end_ns: int, name: str) -> None:
    begin = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=start_ns)
    begin.track_event.type, begin.track_event.track_uuid, begin.track_event.name = BEGIN, track, name
    begin.track_event.categories.append("overview")
    end = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=end_ns)
    end.track_event.type, end.track_event.track_uuid = END, track
