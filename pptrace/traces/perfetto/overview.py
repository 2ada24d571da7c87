"""Overview of a step that is too large for viewers: busy share and idle causes of each rank per interval.

It also has the phases, the critical path by rank, and the maximum of each rank's counters per interval. It omits
counters of the cluster. Each rank has at most some hundred slices and values, for steps of any length.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.sanitize import printable
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import phases
from pptrace.timeline.timeline import Counter, window
from pptrace.traces.perfetto.descriptors import (
    PROVENANCE_KEY,
    TITLE_KEY,
    Tracks,
    provenance_json,
    write_attributes,
    write_slice,
)
from pptrace.traces.perfetto.writer import counter_run, write_packets
from pptrace.traces.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import OnPath, Timeline, Waits

_CATEGORY = "overview"
WINDOWS = 500
"""Number of equal intervals of a step."""

_CLASSES = ((95, "busy"), (70, "mostly busy"), (30, "half idle"), (0, "idle"))
"""Lower bound of the busy share in percent, and name, of each class of intervals."""


def write_overview(
    timeline: Timeline,
    path: Path,
    title: str,
    about: Mapping[int, str],
    replicas: Iterable[tuple[str, Timeline]] = (),
) -> None:
    """Write the overview of a step with known waits.

    Args:
        timeline: the step.
        path: the file.
        title: the trace's name.
        about: descriptions of ranks, such as their GPUs.
        replicas: names and steps of replicas that differ; each has a track with the mean busy share of its ranks.

    Raises:
        OSError: the file cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head = Trace()
    provenance = provenance_json(timeline.provenance)
    write_attributes(head, {TITLE_KEY: printable(title), PROVENANCE_KEY: provenance})
    begin, end = window(timeline) if len(timeline) else (0, 0)
    edges = np.unique(np.linspace(begin, end, WINDOWS + 1).astype(np.int64))
    tracks = Tracks(Scene(timeline=timeline), head)
    tracks.describe_process()
    counters: list[tuple[Counter, int]] = []
    if timeline.why is not None and len(timeline.why.path):
        _write_path(head, tracks.thread("critical path", -1).uuid, timeline.rank_of_row(), timeline.why.path)
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


def busy_percent(timeline: Timeline, rank: int, edges: Int64s) -> tuple[Int64s, dict[IdleCause, Int64s]]:
    """Return a rank's busy share and its idle share by cause for each interval between edges, in percent."""
    length = np.maximum(np.diff(edges), 1)
    idle: dict[IdleCause, Int64s] = {}
    if timeline.why is not None:
        waits = timeline.why.waits
        for cause in IdleCause:
            chosen = (waits.rank == rank) & (waits.cause == cause)
            if chosen.any():
                idle[cause] = np.diff(_waited_ns(waits, chosen, edges))
    busy = length - sum(idle.values(), np.zeros_like(length))
    return 100 * busy // length, {cause: 100 * time // length for cause, time in idle.items()}


def _waited_ns(waits: Waits, chosen: np.ndarray, edges: Int64s) -> Int64s:
    """Return the total duration of the chosen waits up to each edge."""
    start, end = waits.start_ns[chosen], waits.end_ns[chosen]
    total = np.concatenate([[0], np.cumsum(end - start)])
    ended = np.searchsorted(end, edges, side="right")
    current = np.maximum(edges - np.append(start, edges[-1] + 1)[ended], 0)
    waited_ns: Int64s = total[ended] + current
    return waited_ns


def _write_rank(
    head: Trace, tracks: Tracks, top: TrackDescriptor, timeline: Timeline, rank: int, edges: Int64s
) -> Iterator[tuple[Counter, int]]:
    """Write a rank's slices; yield its counters and their tracks."""
    busy, idle = busy_percent(timeline, rank, edges)
    _write_classes(head, top, busy, edges)
    parts = [part for part in phases(timeline) if part.rank == rank]
    if parts:
        track = tracks.child(top, "phases", 0).uuid
        for part in parts:
            write_slice(head, track, (part.start_ns, part.end_ns), part.name, _CATEGORY)
    shares = {"busy": busy, **{f"idle: {cause.word}": share for cause, share in idle.items()}}
    counters = [
        Counter(rank=rank, name=name, unit="%", at_ns=edges[:-1], value=share) for name, share in shares.items()
    ]
    counters += [_maxima(counter, edges) for counter in timeline.counters if counter.rank == rank]
    for place, counter in enumerate(counters, 1):
        yield counter, tracks.counter(top, counter.name, counter.unit, place, counter.unit)


def _write_classes(head: Trace, top: TrackDescriptor, busy: Int64s, edges: Int64s) -> None:
    """Write a slice for each group of adjacent intervals of the same class."""
    classes = np.searchsorted([-bound for bound, _ in _CLASSES], -busy)
    for first, end in _equal_ranges(classes):
        write_slice(head, top.uuid, (int(edges[first]), int(edges[end])), _CLASSES[classes[first]][1], _CATEGORY)


def _write_replica(
    head: Trace, tracks: Tracks, top: TrackDescriptor, timeline: Timeline, edges: Int64s
) -> tuple[Counter, int]:
    """Write the mean busy share of a replica's ranks; return it as a counter, with its track."""
    ranks = sorted(set(timeline.lane_rank.tolist()))
    busy: Int64s = np.sum([busy_percent(timeline, rank, edges)[0] for rank in ranks], axis=0) // len(ranks)
    _write_classes(head, top, busy, edges)
    counter = Counter(rank=ranks[0], name="busy", unit="%", at_ns=edges[:-1], value=busy)
    return counter, tracks.counter(top, "busy", "%", 1, "%")


def _maxima(counter: Counter, edges: Int64s) -> Counter:
    """Return a counter's maximum per interval; a counter with fewer values than edges does not change."""
    if counter.at_ns.size <= edges.size:
        return counter
    first = np.searchsorted(counter.at_ns, edges[:-1], side="right")
    edge_value = np.where(first > 0, counter.value[np.maximum(first - 1, 0)], 0)
    inside = np.maximum.reduceat(np.append(counter.value, 0), first)
    changes = np.diff(np.append(first, counter.at_ns.size)) > 0
    value = np.maximum(edge_value, np.where(changes, inside, edge_value))
    return replace(counter, at_ns=edges[:-1], value=value)


def _write_path(head: Trace, track: int, rank_of_row: Int32s, path: OnPath) -> None:
    rank = rank_of_row[path.row]
    for first, end in _equal_ranges(rank):
        ends_ns = int(path.start_ns[first]), int(path.end_ns[end - 1])
        write_slice(head, track, ends_ns, f"rank {rank[first]}", _CATEGORY)


def _equal_ranges(values: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the first index and the end of each range of equal values; values are not negative."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return pairwise([*starts.tolist(), values.size])
