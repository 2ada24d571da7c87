"""Writer of Perfetto traces.

Trace processors sort by time and keep the file's order among equal times. So the file holds first
the ends of all slices that have a length, then slices without one, then the begins: of sends, of
slices on links, of receives, of the rest. Then no slice begins before its predecessor on the track has
ended, and a flow reaches sender, links, receiver and consumer in this order though all start at once.
Within a class, slices are grouped by their number of flow ids, so that records of one group have one
size.

Their begins stand between those of sends and of receives, along each route.

A wait is named by its cause; a part of the path as the slice that it shows, or ``wire`` and ``wait`` behind it.
"""

from __future__ import annotations

from itertools import cycle
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import ConfigError, OutputError
from pptrace.files import write_behind
from pptrace.sanitize import printable
from pptrace.timeline.critical_path import PATH_PARTS
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import phases
from pptrace.timeline.timeline import Counter
from pptrace.traces.kineto.writer import part_of
from pptrace.traces.link_slices import Hops
from pptrace.traces.perfetto.columns import (
    LINK_CATEGORY,
    PATH_CATEGORY,
    WAIT_CATEGORY,
    FlowColumn,
    Names,
    PlainColumn,
    Records,
    TakenColumn,
    event_columns,
    field_columns,
    numbered,
)
from pptrace.traces.perfetto.descriptors import (
    FORMAT_KEY,
    PROVENANCE_KEY,
    STEP_KEY,
    TITLE_KEY,
    VERSION,
    Tracks,
    descriptor_set,
    provenance_json,
    step_json,
)
from pptrace.traces.perfetto.flows import Flows
from pptrace.traces.perfetto.wire import (
    BEGIN,
    COUNTER,
    END,
    SEQUENCE,
    Cell,
    Layout,
    Run,
    cell_size,
    packet,
    varint,
)
from pptrace.traces.scene import CARRIES, RECEIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.metrics import Phase
    from pptrace.timeline.timeline import OnPath, Timeline, Waits
    from pptrace.traces.perfetto.columns import Column

__all__ = [
    "COLOR_BY",
    "NAMES",
    "Slices",
    "begin_place",
    "counter_run",
    "link_runs",
    "path_runs",
    "spelt_names",
    "wait_runs",
    "write",
    "write_packets",
]

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
    """Write the descriptors of a trace, then its runs of records."""
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
        for iid, name in enumerate(NAMES, behind):
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


_CLASS = np.where(RECEIVES, 2, np.where(CARRIES, 0, 4)).astype(np.int8)
"""Place of each kind among slices that begin at once."""


_LASTING = 8
"""From here on stand slices that have a length, behind those without."""


class Slices:
    """A timeline's slices with the tracks, names and flows that they refer to."""

    def __init__(self, timeline: Timeline, lane_uuid: Int32s, names: Names, first_row: int = 0) -> None:
        self._timeline = timeline
        self.flows = Flows.of(timeline, first_row)
        """Flow ids of each row."""
        self.columns = event_columns(timeline, lane_uuid, names) | field_columns(timeline, self.flows, first_row)
        """What a row's record may hold, by name."""

    def runs(self) -> Iterator[Run]:
        """Return all runs in the order of the file."""
        lasting = self._timeline.end_ns > self._timeline.start_ns
        out, into = _rounded(self.flows.leaving.per_row), _rounded(self.flows.ending.per_row)
        records = Records(
            self.columns
            | {f"out {n}": FlowColumn(self.flows.leaving, n) for n in range(int(out.max(initial=0)))}
            | {f"in {n}": FlowColumn(self.flows.ending, n) for n in range(int(into.max(initial=0)))}
        )
        if lasting.any():
            yield Run(place=0, layout=Layout(tuple(records.end())), rows=_places(lasting), values=records.values)
        parts = self._timeline.parts
        keys = [lasting, _CLASS[self._timeline.kind], out, into, *([parts.name + 1] if parts is not None else [])]
        groups, group = numbered(_combined(keys))
        for index in range(groups.size):
            rows = _places(group == index)
            first, lasts = int(rows[0]), bool(lasting[rows[0]])
            named = int(parts.name[first]) if parts is not None else -1
            text = parts.names[named] if parts is not None and named >= 0 else None
            begin = records.begin(rows, int(out[first]), int(into[first]), text)
            yield Run(
                place=begin_place(int(_CLASS[self._timeline.kind[first]]), lasting=lasts),
                layout=Layout(tuple(begin if lasts else begin + records.end())),
                rows=rows,
                values=records.values,
                segment=named,
            )


def begin_place(order: int, *, lasting: bool) -> int:
    """Return the place of begins: 1 for sends, 3 for receives and 5 for the rest leave room between."""
    return 1 + order + _LASTING * lasting


def _places(chosen: NDArray[np.bool_]) -> Int32s:
    return np.flatnonzero(chosen).astype(np.int32)


def _combined(keys: list[NDArray[Any]]) -> NDArray[np.integer[Any]]:
    """Return numbers that are equal where all keys are, in the order of the keys."""
    bounds = [int(key.max(initial=0)) + 1 for key in keys]
    combined: NDArray[np.integer[Any]] = np.zeros(keys[0].size, dtype=np.min_scalar_type(-prod(bounds)))
    for key, bound in zip(keys, bounds, strict=True):
        combined *= bound
        combined += key.astype(combined.dtype, copy=False)
    return combined


def _rounded(count: Int32s) -> Int32s:
    """Round up to powers of two, so that there are few groups."""
    if count.max(initial=0) <= 2:  # noqa: PLR2004 - powers of two already
        return count
    powers = np.int64(1) << np.arange(31)
    return np.where(count == 0, 0, powers[np.searchsorted(powers, count)]).astype(np.int32)


_BEHIND_SENDS = 1
_REPEATED = ("start", "end", "correlation", "kind", "rank", "stage", "microbatch", "span", "bytes")
"""What a slice on a link has of its message."""
_ENTRY, _IID, _NAME = varint(2 << 3 | 2), varint(1 << 3), varint(2 << 3 | 2)
"""InternedData.event_names, EventName.iid and EventName.name."""
_IID_BYTES = 5


def link_runs(timeline: Timeline, hops: Hops, slices: Slices, tracks: Int32s, first_name: int) -> Iterator[Run]:
    """Return the runs of slices on links.

    Args:
        timeline: what they belong to.
        hops: the passages that they show.
        slices: the slices of the messages.
        tracks: track of each of the hops' lanes.
        first_name: number of the first message's name.
    """
    records = Records(_columns(timeline, hops, slices, tracks, first_name))
    along = np.lexsort((hops.place, hops.row)).astype(np.int32)
    lasting = (timeline.end_ns > timeline.start_ns)[hops.row[along]]
    for lasts, rows in ((True, along[lasting]), (False, along[~lasting])):
        if not rows.size:
            continue
        begin = records.begin(rows, leaving=1, ending=0)
        if lasts:
            yield Run(place=0, layout=Layout(tuple(records.end())), rows=rows, values=records.values)
        yield Run(
            place=begin_place(_BEHIND_SENDS, lasting=lasts),
            layout=Layout(tuple(begin if lasts else begin + records.end())),
            rows=rows,
            values=records.values,
        )


def spelt_names(titles: NDArray[np.bytes_], first_name: int) -> bytes:
    """Return entries of ``InternedData.event_names`` for titles that are numbered from ``first_name``."""
    length = np.strings.str_len(titles)
    number = np.arange(first_name, first_name + titles.size)[:, None] >> (7 * np.arange(_IID_BYTES)) & 0x7F
    number[:, :-1] |= 0x80
    inner = len(_IID) + _IID_BYTES + len(_NAME) + 1 + length
    parts = (_constant(_ENTRY, titles.size), inner[:, None], _constant(_IID, titles.size), number,
             _constant(_NAME, titles.size), length[:, None])  # fmt: skip
    head = np.concatenate(parts, axis=1).astype(np.uint8)
    text = titles.view(np.uint8).reshape(titles.size, titles.itemsize)
    whole = np.concatenate([head, text], axis=1)
    kept: NDArray[np.uint8] = whole[np.arange(whole.shape[1]) < (head.shape[1] + length)[:, None]]
    return kept.tobytes()


def _columns(timeline: Timeline, hops: Hops, slices: Slices, tracks: Int32s, first_name: int) -> dict[str, Column]:
    carried = CARRIES[timeline.kind[hops.row]]
    flow = np.where(carried, slices.flows.leaving.at(hops.row, 0), -1)
    columns: dict[str, Column] = {
        name: TakenColumn(slices.columns[name], hops.row) for name in _REPEATED if name in slices.columns
    }
    plain: dict[str, NDArray[np.integer[Any]]] = {
        "track": np.repeat(tracks, np.diff(hops.lane_ptr)),
        "name": hops.message + np.int32(first_name),
        "category": np.full(len(hops), LINK_CATEGORY, dtype=np.int8),
        "peer": hops.peer[hops.message],
        "link": hops.link,
        "hop": hops.place,
        "out 0": flow,
    }
    columns |= {name: PlainColumn(values) for name, values in plain.items()}
    return columns | {"transfer": TakenColumn(slices.columns["row"], hops.row)}


def _constant(raw: bytes, rows: int) -> NDArray[np.uint8]:
    return np.tile(np.frombuffer(raw, dtype=np.uint8), (rows, 1))


NAMES = (*(cause.word for cause in IdleCause), *PATH_PARTS[1:])
"""Names of slices on these tracks, beside those of actions."""

_LAST = 4
_SHOWN = ("kind", "rank", "stage", "microbatch", "span", "bytes", "peer", "correlation")
"""What a part of the path has of its slice."""


def wait_runs(waits: Waits, tracks: Mapping[int, int], first_name: int) -> Iterator[Run]:
    """Return the runs of waits, on each rank's track; :data:`NAMES` are numbered from ``first_name``."""
    track = np.zeros(int(waits.rank.max(initial=0)) + 1, dtype=np.int64)
    for rank in np.unique(waits.rank).tolist():
        track[rank] = tracks[rank]
    columns: dict[str, NDArray[np.integer[Any]]] = {
        "start": waits.start_ns, "end": waits.end_ns, "track": track[waits.rank],
        "name": waits.cause.astype(np.int32) + np.int32(first_name), "category": _alike(waits, WAIT_CATEGORY),
        "rank": waits.rank, "peer": waits.peer, "cause": waits.row,
    }  # fmt: skip
    yield from _runs({name: PlainColumn(values) for name, values in columns.items()}, len(waits))


def path_runs(
    path: OnPath, slices: Slices, tracks: tuple[int, int], first_name: int, first_row: int
) -> Iterator[Run]:
    """Return the runs of the critical path and of the rank that it is on, each on its track.

    The slices' first row has the number ``first_row``.
    """
    row = path.row - np.int32(first_row)
    columns: dict[str, Column] = {
        name: TakenColumn(slices.columns[name], row) for name in _SHOWN if name in slices.columns
    }
    other = np.int32(first_name + len(IdleCause) - 1)
    name = np.where(path.part == 0, slices.columns["name"].at(row), path.part + other)
    plain: dict[str, NDArray[np.integer[Any]]] = {
        "start": path.start_ns, "end": path.end_ns, "track": _alike(path, tracks[0]),
        "name": name, "category": _alike(path, PATH_CATEGORY), "shown": path.row,
    }  # fmt: skip
    yield from _runs(columns | {name: PlainColumn(values) for name, values in plain.items()}, len(path))
    if len(path):
        rank = slices.columns["rank"].at(row).astype(np.int64)
        on_rank = Counter(rank=-1, name="on rank", unit="rank", at_ns=path.start_ns, value=rank)
        yield counter_run([on_rank], tracks[1:])


def _runs(columns: dict[str, Column], size: int) -> Iterator[Run]:
    if not size:
        return
    records, rows = Records(columns), np.arange(size, dtype=np.int32)
    yield Run(place=0, layout=Layout(tuple(records.end())), rows=rows, values=records.values)
    yield Run(
        place=begin_place(_LAST, lasting=True), layout=Layout(tuple(records.begin(rows, leaving=0, ending=0))),
        rows=rows, values=records.values,
    )  # fmt: skip


def _alike(columns: Waits | OnPath, value: int) -> NDArray[np.int64]:
    return np.full(len(columns), value, dtype=np.int64)


_TIMESTAMP, _TRACK_UUID, _COUNTER_VALUE = 8, 11, 30
_VALUE_TAG = 2
_WITH_SIGN = 12
"""Size of a cell whose values may be below zero."""
_BEHIND_SLICES = 1 << 8


def counter_run(counters: Sequence[Counter], tracks: Sequence[int]) -> Run:
    """Return the points of all counters, one counter behind the other."""
    sizes = [counter.at_ns.size for counter in counters]
    columns = {
        "at": _joined([counter.at_ns for counter in counters]),
        "track": np.repeat(np.array(tracks, dtype=np.int64), sizes),
        "value": _joined([counter.value for counter in counters]),
    }
    largest = {name: int(column.max(initial=0)) for name, column in columns.items()}
    value_size = _WITH_SIGN if columns["value"].min(initial=0) < 0 else cell_size(_VALUE_TAG, largest["value"])
    cells = [
        Cell("track", _TRACK_UUID, cell_size(1, largest["track"])),
        Cell("value", _COUNTER_VALUE, value_size),
    ]
    when = Cell("at", _TIMESTAMP, cell_size(1, largest["at"]))

    def values(_layout: Layout, rows: Int32s) -> dict[str, Int64s]:
        return {name: column[rows] for name, column in columns.items()}

    return Run(
        place=_BEHIND_SLICES,
        layout=Layout(tuple(packet(COUNTER, when, cells))),
        rows=np.arange(sum(sizes), dtype=np.int32),
        values=values,
    )


def _joined(arrays: list[Int64s]) -> Int64s:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
