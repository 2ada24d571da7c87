"""Writers of Perfetto traces: all slices of a step, or the overview of a step that is too large for viewers.

Trace processors sort by time and keep the file's order among equal times. The order of the file is:

1. the ends of all slices with a length,
2. slices without a length,
3. begins of sends, of slices on links, of receives, and of all other slices.

So each slice begins after the end of its predecessor on the track. A flow visits sender, links, receiver and
consumer in this order, even if all start at the same time. Within a class, slices are grouped by their number of
flow ids, so that the records of a group have equal size.

The name of a wait is its cause. The name of a path part is that of its slice, ``wire`` or ``wait``.

The overview has busy share and idle causes of each rank per interval, the phases, the critical path by rank, and
the maximum of each rank's counters per interval. It omits counters of the cluster. Each rank has at most some
hundred slices and values, for steps of any length.
"""

from __future__ import annotations

from itertools import cycle, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from pptrace.errors import OutputError
from pptrace.files import write_behind
from pptrace.sanitize import printable
from pptrace.timeline.critical_path import PATH_PARTS
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import phases
from pptrace.timeline.timeline import Counter, time_within, window
from pptrace.traces.perfetto.columns import Column, Names, Records, begin_place, flow_ids, row_columns
from pptrace.traces.perfetto.descriptors import (
    CATEGORY_NUMBERS,
    FORMAT_KEY,
    PROVENANCE_KEY,
    STEP_KEY,
    TITLE_KEY,
    VERSION,
    Tracks,
    provenance_json,
    step_json,
    write_attributes,
    write_descriptor,
    write_names,
    write_slice,
)
from pptrace.traces.perfetto.wire import COUNTER, Cell, RecordLayout, RecordRun, cell_size, packet, varint
from pptrace.traces.scene import CARRIES, IS_RECEIVING, Scene, numbered, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import OnPath, Timeline, Waits


_NOT_NEGATIVE = (
    "lane_rank", "span", "enter_ns", "start_ns", "end_ns",
    "lag_ns", "uncontended_ns", "collective_ns", "size_bytes",
)  # fmt: skip


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write all ranks to a file, or only the rank of the option ``rank``.

    ``color`` is one of :data:`~pptrace.traces.scene.COLOR_BY`; ``title`` names the trace. Rows keep their
    numbers in the full timeline, so a reader can join files of single ranks.

    Raises:
        ConfigError: an option has an unknown value.
        OutputError: the format cannot represent a value.
        OSError: the file cannot be written.
    """
    scene = Scene.of(timeline, options)
    _check_signs(timeline)
    head, runs = _encode(scene, str(options.get("title", "")))
    write_packets(path, head, runs)


def write_packets(path: Path, head: bytes, runs: Sequence[RecordRun]) -> None:
    """Write the descriptors of a trace, then its runs of records."""
    with path.open("wb") as file:
        file.write(head)
        write_behind(file, (piece for run in runs for piece in _pieces(run)), waiting=1)


def _encode(scene: Scene, title: str) -> tuple[bytes, list[RecordRun]]:
    """Return the packets that describe a trace, and its runs of records."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head, timeline, why = Trace(), scene.timeline, scene.timeline.why
    names = Names.of(scene)
    titles = {TITLE_KEY: printable(title)} if title else {}
    provenance = provenance_json(timeline.provenance)
    write_attributes(head, {FORMAT_KEY: VERSION, **titles, PROVENANCE_KEY: provenance})
    write_descriptor(head)
    first_cause = _write_names(head, scene, names)
    tracks, parts = Tracks(scene, head), phases(timeline)
    tracks.write({phase.rank for phase in parts})
    for part in parts:
        write_slice(head, tracks.phases[part.rank], (part.start_ns, part.end_ns), part.name, "phase")
    slices = Slices(scene, np.array(tracks.lanes, dtype=np.int32), names)
    runs = list(slices.runs())
    if len(scene.hops):
        runs += _link_runs(slices, np.array(tracks.links, dtype=np.int32), len(names.names) + 1)
    if why is not None:
        runs += _wait_runs(why.waits, tracks.waits, first_cause)
        runs += _path_runs(why.path, slices, tracks.path, first_cause)
    runs.sort(key=lambda run: run.place)
    runs.append(counter_run(timeline.counters, tracks.counters))
    write_attributes(head, {STEP_KEY: step_json(scene, tracks, runs)})
    packets: bytes = head.SerializeToString()
    return packets, runs


def _write_names(head: Trace, scene: Scene, names: Names) -> int:
    """Write the names of slices, messages, waits and path parts; return the number of the first cause."""
    why, hops = scene.timeline.why, scene.hops
    links = ["link"] if len(hops) else []
    categories = [*links, *(["wait", "critical path"] if why else [])]
    interned = write_names(head, names.names, categories, names.correlations)
    if len(hops):
        interned.MergeFromString(_encode_names(scene.hop_titles(), len(names.names) + 1))
    first_cause = len(names.names) + hops.sent.size + 1
    for iid, name in enumerate(_REASONS if why else (), first_cause):
        interned.event_names.add(iid=iid, name=name)
    return first_cause


def _pieces(run: RecordRun) -> Iterator[memoryview]:
    """Yield a run's records in pieces; two buffers alternate, so a piece is valid until the second next one."""
    layout, rows = run.layout, run.rows
    size = min(layout.chunk_rows, rows.size)
    buffers = cycle([layout.blank(size) for _ in range(1 if size == rows.size else 2)])
    for start in range(0, rows.size, layout.chunk_rows):
        records = next(buffers)
        chosen = rows[start : start + layout.chunk_rows]
        layout.encode(run.values(layout, chosen), records[: chosen.size])
        yield records[: chosen.size].data


def _check_signs(timeline: Timeline) -> None:
    """Raise an error for negative values, which the format cannot represent."""
    for name in _NOT_NEGATIVE:
        values = getattr(timeline, name)
        if values.size and values.min() < 0:
            row = int(np.argmin(values))
            raise OutputError(f"{name} of row {row} is {values[row]}; a Perfetto trace has no negative ones")
    for counter in timeline.counters:
        if counter.at_ns.size and counter.at_ns[0] < 0:
            owner = f"rank {counter.rank}" if counter.rank >= 0 else "the cluster"
            source = f"counter {counter.name!r} of {owner}"
            raise OutputError(f"{source} starts before time 0; a Perfetto trace has no negative times")


_ORDER = np.where(IS_RECEIVING, 2, np.where(CARRIES, 0, 4)).astype(np.int8)
"""Order of each kind among slices with the same start."""


class Slices:
    """A scene's slices with their tracks, names and flows."""

    def __init__(self, scene: Scene, lane_uuid: Int32s, names: Names) -> None:
        self.scene = scene
        self.leaving, self._ending = flow_ids(scene)
        self.columns = row_columns(scene, lane_uuid, names)
        """The columns of rows, by name."""

    def runs(self) -> Iterator[RecordRun]:
        """Return all runs in the order of the file."""
        timeline, parts = self.scene.timeline, self.scene.timeline.parts
        lasting = timeline.end_ns > timeline.start_ns
        outgoing, incoming = self.leaving.per_row(), self._ending.per_row()
        records = Records(
            self.columns
            | {f"out {place}": self.leaving.column(place) for place in range(int(outgoing.max(initial=0)))}
            | {f"in {place}": self._ending.column(place) for place in range(int(incoming.max(initial=0)))}
        )
        if lasting.any():
            yield records.run(0, records.end(), _indices(lasting))
        keys = [lasting, _ORDER[timeline.kind], outgoing, incoming]
        if parts is not None:
            keys.append(parts.name + 1)
        groups, group = numbered(_combined(keys))
        for index in range(groups.size):
            rows = _indices(group == index)
            first, lasts = int(rows[0]), bool(lasting[rows[0]])
            segment = int(parts.name[first]) if parts is not None else -1
            text = parts.names[segment] if parts is not None and segment >= 0 else None
            begin = records.begin(rows, int(outgoing[first]), int(incoming[first]), text)
            place = begin_place(int(_ORDER[timeline.kind[first]]), lasting=lasts)
            yield records.run(place, begin if lasts else begin + records.end(), rows, segment)


def _indices(chosen: NDArray[np.bool_]) -> Int32s:
    return np.flatnonzero(chosen).astype(np.int32)


def _combined(keys: list[NDArray[Any]]) -> NDArray[np.integer[Any]]:
    """Return numbers that identify and order the combinations of keys."""
    bounds = [int(key.max(initial=0)) + 1 for key in keys]
    combined: NDArray[np.integer[Any]] = np.zeros(keys[0].size, dtype=np.min_scalar_type(-prod(bounds)))
    for key, bound in zip(keys, bounds, strict=True):
        combined *= bound
        combined += key.astype(combined.dtype, copy=False)
    return combined


_AFTER_SENDS, _LAST = 1, 4
"""Order of slices on links, and of waits and the path, among slices with the same start."""
_MESSAGE_COLUMNS = ("start", "end", "correlation", "kind", "rank", "stage", "microbatch", "span", "bytes", "peer")
"""Columns that a slice on a link copies from its message."""
_SLICE_COLUMNS = ("kind", "rank", "stage", "microbatch", "span", "bytes", "peer", "correlation")
"""Columns that a path part copies from its slice."""
_REASONS = (*(cause.word for cause in IdleCause), *PATH_PARTS[1:])
"""Names of waits, then of path parts without an action."""
_ENTRY, _IID, _NAME = varint(2 << 3 | 2), varint(1 << 3), varint(2 << 3 | 2)
"""InternedData.event_names, EventName.iid and EventName.name."""
_IID_BYTES = 5


def _link_runs(slices: Slices, tracks: Int32s, first_name: int) -> Iterator[RecordRun]:
    """Return the runs of slices on links, along each route; ``tracks`` has the track of each lane of hops."""
    timeline, hops = slices.scene.timeline, slices.scene.hops
    columns = {name: slices.columns[name].of_rows(hops.row) for name in _MESSAGE_COLUMNS if name in slices.columns}
    columns["transfer"] = slices.columns["row"].of_rows(hops.row)
    flow = np.where(CARRIES[timeline.kind[hops.row]], slices.leaving.take(hops.row, 0), -1)
    records = Records(columns | columns_of({
        "track": np.repeat(tracks, np.diff(hops.lane_ptr)), "name": hops.message + np.int32(first_name),
        "category": _constant(len(hops), CATEGORY_NUMBERS["link"]),
        "link": hops.link, "hop": hops.place, "out 0": flow,
    }))  # fmt: skip
    along = np.lexsort((hops.place, hops.row)).astype(np.int32)
    lasting = (timeline.end_ns > timeline.start_ns)[hops.row[along]]
    yield from records.runs(along[lasting], _AFTER_SENDS, leaving=1)
    yield from records.runs(along[~lasting], _AFTER_SENDS, leaving=1, lasting=False)


def _encode_names(titles: NDArray[np.bytes_], first_name: int) -> bytes:
    """Return entries of ``InternedData.event_names`` for titles that are numbered from ``first_name``."""
    length = np.strings.str_len(titles)
    number = np.arange(first_name, first_name + titles.size)[:, None] >> (7 * np.arange(_IID_BYTES)) & 0x7F
    number[:, :-1] |= 0x80
    inner = len(_IID) + _IID_BYTES + len(_NAME) + 1 + length
    entry, iid, name = (np.tile(np.frombuffer(raw, np.uint8), (titles.size, 1)) for raw in (_ENTRY, _IID, _NAME))
    head = np.concatenate((entry, inner[:, None], iid, number, name, length[:, None]), axis=1).astype(np.uint8)
    text = titles.view(np.uint8).reshape(titles.size, titles.itemsize)
    entries = np.concatenate([head, text], axis=1)
    kept: NDArray[np.uint8] = entries[np.arange(entries.shape[1]) < (head.shape[1] + length)[:, None]]
    return kept.tobytes()


def _wait_runs(waits: Waits, tracks: Mapping[int, int], first_cause: int) -> Iterator[RecordRun]:
    """Return the runs of waits on each rank's track; ``first_cause`` is the number of the first cause's name."""
    columns = columns_of({
        "start": waits.start_ns, "end": waits.end_ns, "track": tracks_of(waits.rank, tracks),
        "name": waits.cause.astype(np.int32) + np.int32(first_cause),
        "category": _constant(len(waits), CATEGORY_NUMBERS["wait"]),
        "rank": waits.rank, "peer": waits.peer, "cause": waits.row,
    })  # fmt: skip
    return Records(columns).runs(np.arange(len(waits), dtype=np.int32), _LAST)


def _path_runs(path: OnPath, slices: Slices, tracks: tuple[int, int], first_cause: int) -> Iterator[RecordRun]:
    """Return the runs of the critical path and of its rank over time."""
    row = path.row - np.int32(slices.scene.first_row)
    columns = {name: slices.columns[name].of_rows(row) for name in _SLICE_COLUMNS if name in slices.columns}
    part_name = path.part + np.int32(first_cause + len(IdleCause) - 1)
    columns |= columns_of({
        "start": path.start_ns, "end": path.end_ns, "track": _constant(len(path), tracks[0]),
        "name": np.where(path.part == 0, slices.columns["name"].take(row), part_name),
        "category": _constant(len(path), CATEGORY_NUMBERS["critical path"]), "shown": path.row,
    })  # fmt: skip
    yield from Records(columns).runs(np.arange(len(path), dtype=np.int32), _LAST)
    if len(path):
        rank = slices.columns["rank"].take(row).astype(np.int64)
        on_rank = Counter(rank=-1, name="on rank", unit="rank", at_ns=path.start_ns, value=rank)
        yield counter_run([on_rank], tracks[1:])


def columns_of(values: Mapping[str, NDArray[np.integer[Any]]]) -> dict[str, Column]:
    """Return values as columns."""
    return {name: Column.of(array) for name, array in values.items()}


def tracks_of(rank: Int32s, tracks: Mapping[int, int]) -> Int64s:
    """Return the track of each rank of a column."""
    ranks, index = np.unique(rank, return_inverse=True)
    return np.array([tracks[number] for number in ranks.tolist()], dtype=np.int64)[index]


def _constant(size: int, value: int) -> NDArray[np.int64]:
    return np.full(size, value, dtype=np.int64)


_TIMESTAMP, _TRACK_UUID, _COUNTER_VALUE = 8, 11, 30
_VALUE_TAG = 2
_WITH_SIGN = 12
"""Size of a cell with negative values."""
_AFTER_SLICES = 1 << 8


def counter_run(counters: Sequence[Counter], tracks: Sequence[int]) -> RecordRun:
    """Return the run of the points of all counters, by counter."""
    none = np.zeros(0, dtype=np.int64)
    value = np.concatenate([none, *(counter.value for counter in counters)])
    largest = int(value.max(initial=0))
    value_size = _WITH_SIGN if value.min(initial=0) < 0 else cell_size(_VALUE_TAG, largest)
    return point_run(
        np.concatenate([none, *(counter.at_ns for counter in counters)]),
        np.repeat(np.array(tracks, dtype=np.int64), [counter.at_ns.size for counter in counters]),
        value, Cell("value", _COUNTER_VALUE, value_size),
    )  # fmt: skip


def point_run(at_ns: Int64s, track: Int64s, value: Int64s, value_cell: Cell) -> RecordRun:
    """Return the run of a value per time and track."""
    columns = {"at": at_ns, "track": track, "value": value}
    time_cell, track_cell = (
        Cell(name, number, cell_size(1, int(columns[name].max(initial=0))))
        for name, number in (("at", _TIMESTAMP), ("track", _TRACK_UUID))
    )

    def values(_layout: RecordLayout, rows: Int32s) -> dict[str, Int64s]:
        return {name: column[rows] for name, column in columns.items()}

    return RecordRun(
        place=_AFTER_SLICES,
        layout=RecordLayout(tuple(packet(COUNTER, time_cell, [track_cell, value_cell]))),
        rows=np.arange(at_ns.size, dtype=np.int32),
        values=values,
    )


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
        top = tracks.thread(rank_name(timeline, rank, digits), rank)
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
                idle[cause] = np.diff(time_within(waits.start_ns[chosen], waits.end_ns[chosen], edges))
    busy = length - sum(idle.values(), np.zeros_like(length))
    return 100 * busy // length, {cause: 100 * time // length for cause, time in idle.items()}


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
