"""Descriptors of tracks, the extension of the format and the provenance of a trace.

Viewers from v55 on list them; older ones skip them.

A pipeline is a process and each rank a thread of it, so that standard queries find them: what a rank does, on
whatever stream, is in ``thread_slice`` under the thread's name. Viewers of all versions order the threads of a
process by their ids, but processes by their number of slices where they do not heed an order that a trace states
(before v57). They open the only process of a trace by themselves.

A track below a thread stands beside it, and only tracks below that are nested (``parent_uuid`` in perfetto's
``track_descriptor.proto``). So the thread's own track is empty, and one below it, of the rank's name, carries its
compute stream: the view that opens is the schedule's diagram, and all else of the rank is nested there.

Links belong to the process: a track per link that messages went over, beside it the link's counter. Where
messages overlap on a link, each of its lanes is a track, and viewers draw the tracks of one link as rows of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.sanitize import printable
from pptrace.steps.kinds import Stream
from pptrace.steps.placement import Placement
from pptrace.traces.link_slices import link_title
from pptrace.traces.perfetto.wire import SEQUENCE, Cell, Layout
from pptrace.traces.scene import NAMES, stream_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace, TrackDescriptor

    from pptrace.timeline.timeline import Routes, Timeline
    from pptrace.traces.link_slices import Hops
    from pptrace.traces.perfetto.wire import Run

__all__ = [
    "FIELD_NUMBERS",
    "FILE_NAME",
    "FORMAT_KEY",
    "MESSAGE",
    "PACKAGE",
    "PROVENANCE_KEY",
    "STEP_KEY",
    "TITLE_KEY",
    "VERSION",
    "Tracks",
    "descriptor_set",
    "layout_of",
    "placement_of",
    "provenance_json",
    "renamed",
    "step_json",
    "stream_name",
]

FILE_NAME = "proto/pptrace.proto"
PACKAGE = "pptrace"
MESSAGE = "Step"

FIELD_NUMBERS = {
    "row": 7610,
    "kind": 7611,
    "rank": 7612,
    "stage": 7613,
    "microbatch": 7614,
    "span": 7615,
    "peer": 7616,
    "bytes": 7617,
    "enter_ns": 7618,
    "lag_ns": 7619,
    "uncontended_ns": 7620,
    "collective_ns": 7621,
    "cause": 7622,
    "pair": 7623,
    "link": 7624,
    "transfer": 7625,
    "hop": 7626,
    "segment_number": 7627,
    "segment": 7628,
    "shown": 7629,
}
"""Field numbers; 7610 to 7639 are pptrace's share of TrackEvent's extension range."""

_OF_LINKS = frozenset({"link", "transfer", "hop"})
_OF_SEGMENTS = frozenset({"segment_number", "segment"})
_OF_WHY = frozenset({"shown"})


def descriptor_set(*, links: bool = True, segments: bool = True, why: bool = True) -> FileDescriptorSet:
    """Return what ``protoc`` makes of ``proto/pptrace.proto``, without Perfetto's own file.

    Without ``links``, fields that only slices on links have are left out; so with
    ``segments``, and with ``why`` for what only slices on the critical path's track have.
    """
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    files = FileDescriptorSet()
    file = files.file.add(name=FILE_NAME, package=PACKAGE)
    file.dependency.append("protos/perfetto/trace/perfetto_trace.proto")
    message = file.message_type.add(name=MESSAGE)
    kinds = message.enum_type.add(name="Kind")
    for kind, name in enumerate(NAMES):
        kinds.value.add(name=name, number=kind)
    parts = ((links, _OF_LINKS), (segments, _OF_SEGMENTS), (why, _OF_WHY))
    left_out = {name for there, names in parts if not there for name in names}
    for name, number in FIELD_NUMBERS.items():
        if name in left_out:
            continue
        field = message.extension.add(
            name=name,
            extendee=".perfetto.protos.TrackEvent",
            number=number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_INT64,
        )
        if name == "kind":
            field.type = FieldDescriptorProto.TYPE_ENUM
            field.type_name = f".{PACKAGE}.{MESSAGE}.Kind"
        elif name == "segment":
            field.type = FieldDescriptorProto.TYPE_STRING
    return files


FORMAT_KEY = "pptrace.format"
PROVENANCE_KEY = "pptrace.provenance"
TITLE_KEY = "pptrace.title"
STEP_KEY = "pptrace.step"

VERSION = 2
"""Grows when older readers could not read what newer writers write."""

_FORMER = {"unit": "microbatch", "braid": "pair", "microbatch": "correlation"}
"""Today's names of cells that format 1 named otherwise."""


def provenance_json(provenance: Mapping[str, Any]) -> str:
    """Return the provenance as JSON."""
    return json.dumps(provenance, default=_plain, ensure_ascii=False)


def step_json(
    timeline: Timeline,
    lane_tracks: Sequence[int],
    counter_tracks: Sequence[int],
    runs: Sequence[Run],
    first_row: int,
) -> str:
    """Return all that slices and counters do not say, and the runs of records behind."""
    placement = timeline.placement
    return json.dumps(
        {
            "slices": len(timeline),
            "first_row": first_row,
            "placement": {
                "ranks": placement.ranks,
                "stages": placement.stages,
                "stage_rank": placement.stage_rank.ravel().tolist(),
                "microbatch_route": placement.microbatch_route.tolist(),
                "edges": placement.edges.tolist(),
            },
            "lanes": [
                timeline.lane_rank.tolist(),
                timeline.lane_stream.tolist(),
                timeline.lane_peer.tolist(),
                list(lane_tracks),
            ],
            "counters": [
                [counter.rank, counter.name, counter.unit, track, counter.at_ns.size]
                for counter, track in zip(timeline.counters, counter_tracks, strict=True)
            ],
            **_routes(timeline.routes),
            **({} if timeline.parts is None else {"segments": timeline.parts.names}),
            "runs": [_run(run) for run in runs],
        },
        separators=(",", ":"),
    )


def _routes(routes: Routes | None) -> dict[str, Any]:
    if routes is None:
        return {}
    return {"routes": [routes.name, routes.rate_kbps.tolist(), routes.link.size]}


def placement_of(step: Mapping[str, Any]) -> Placement:
    """Undo the placement's part of :func:`step_json`."""
    placement = step["placement"]
    return Placement(
        ranks=placement["ranks"],
        stage_rank=np.array(placement["stage_rank"], dtype=np.int32).reshape(-1, placement["stages"]),
        microbatch_route=np.array(placement["microbatch_route"], dtype=np.int32),
        edges=np.array(placement["edges"], dtype=np.int32).reshape(-1, 2),
    )


def renamed(step: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a step in the current format; convert it from format 1 if necessary."""
    placement = step["placement"]
    if "unit_route" in placement:
        placement["microbatch_route"] = placement.pop("unit_route")
        for part in (part for run in step["runs"] for part in run["parts"] if not isinstance(part, str)):
            part[0] = _FORMER.get(part[0], part[0])
    return step


def layout_of(parts: Sequence[Any]) -> Layout:
    """Undo the layouts' part of :func:`step_json`."""
    return Layout(tuple(bytes.fromhex(part) if isinstance(part, str) else Cell(*part) for part in parts))


def _run(run: Run) -> dict[str, Any]:
    found = {"records": run.rows.size, "parts": [*map(_part, run.layout.parts)]}
    return found if run.segment < 0 else {**found, "segment": run.segment}


def _part(part: bytes | Cell) -> str | list[Any]:
    if isinstance(part, bytes):
        return part.hex()
    return [part.name, part.number, part.size, part.fixed, part.optional]


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    msg = f"provenance holds a {type(value).__name__}, which is no JSON value"
    raise TypeError(msg)


_TABLES_SEQUENCE = SEQUENCE + 1
"""Processes and threads stand apart: a trace processor adds a sequence's thread to all of its slices."""

_PROCESS_ID = 1
_FIRST_THREAD = 1000
"""The id of rank 0's thread, which viewers write behind its tracks' names; the critical path's is one less."""

_SHARE = "%"
"""The unit of counters that are worth the same on any link; bytes/s are not."""


def stream_name(stream: Stream, peer: int) -> str:
    """Return a lane's name, such as ``send → rank 1``."""
    name = stream_title(stream)
    if peer < 0:
        return name
    return f"{name} {'←' if stream is Stream.RECV else '→'} rank {peer}"


@dataclass(slots=True)
class Tracks:
    """Writes track descriptors and hands out their numbers."""

    timeline: Timeline
    """What the tracks show."""
    trace: Trace
    """Where the descriptors go, one packet each."""
    hops: Hops
    """What the tracks of links show."""
    phases: dict[int, int] = field(default_factory=dict)
    """Track of each rank's phases, for the ranks that have some."""
    waits: dict[int, int] = field(default_factory=dict)
    """Track of each rank's waits, for the ranks that have some."""
    path: tuple[int, int] = (0, 0)
    """Tracks of the critical path and of the rank that it is on, where there is one."""
    lanes: list[int] = field(default_factory=list)
    """Track of each lane."""
    links: list[int] = field(default_factory=list)
    """Track of each lane of the hops."""
    counters: list[int] = field(default_factory=list)
    """Track of each counter."""
    suffix: str = ""
    """What stands behind the names of ranks, where a trace holds several steps."""
    place: int = 0
    """Which of the tracks that a rank has at the top level its own is."""
    abreast: int = 1
    """How many tracks a rank has there."""
    process: int = 0
    """Track of the process that the ranks are threads of, 0 where it is not described yet."""
    uuids: Iterator[int] = field(default_factory=lambda: count(1))
    """Numbers that no track has yet."""

    def write(self, phased: set[int]) -> None:
        """Describe all tracks, those of phases for the ranks in ``phased``."""
        lanes: dict[int, list[int]] = {c.rank: [] for c in self.timeline.counters if c.rank >= 0}
        for lane, rank in enumerate(self.timeline.lane_rank.tolist()):
            lanes.setdefault(rank, []).append(lane)
        self.lanes = [0] * self.timeline.lanes
        self.counters = [0] * len(self.timeline.counters)
        digits = len(str(max(lanes, default=0)))
        if not self.process:
            self.describe_process()
        why = self.timeline.why
        waiting = set(why.waits.rank.tolist()) if why else set()
        if why and len(why.path):
            self._write_path()
        for rank in sorted(lanes):
            self._write_rank(rank, f"rank {rank:0{digits}}{self.suffix}", lanes[rank], phased, waiting)
        shared = [index for index, counter in enumerate(self.timeline.counters) if counter.rank < 0]
        if len(self.hops) or shared:
            self._write_links(shared)

    def describe_process(self) -> None:
        """Describe the process, once in a trace."""
        track = self._add()
        track.process.pid, track.process.process_name = _PROCESS_ID, "pipeline"
        self.process = track.uuid

    def _write_rank(self, rank: int, name: str, lanes: list[int], phased: set[int], waiting: set[int]) -> None:
        top = self.thread(name, rank * self.abreast + self.place)
        place = count()
        if rank in phased:
            self.phases[rank] = self.child(top, "phases", next(place)).uuid
        if rank in waiting:
            self.waits[rank] = self.child(top, f"why rank {rank} waits", next(place)).uuid
        for lane in lanes:
            self._write_lane(top, lane, next(place))
        for index, counter in enumerate(self.timeline.counters):
            if counter.rank == rank:
                self._write_counter(top, index, next(place)).y_axis_share_key = counter.name

    def _write_path(self) -> None:
        """Write the critical path's track, and below it a counter: viewers put tracks that have none elsewhere."""
        top = self.thread("critical path", -1)
        below = self.child(top, "on rank", 0)
        below.counter.unit_name = "rank"
        self.path = top.uuid, below.uuid

    def _write_links(self, shared: list[int]) -> None:
        """Write a track for each lane of a link and for each of the counters, in the order of the links."""
        top = self._add("links")
        top.parent_uuid = self.process
        top.child_ordering = top.EXPLICIT
        names = self.timeline.routes.name if self.timeline.routes else ()
        number = {name: link for link, name in enumerate(names)}
        tracks = [(link, False, lane) for lane, link in enumerate(self.hops.lane_link.tolist())]
        tracks += [(number.get(self.timeline.counters[i].name, len(number)), True, i) for i in shared]
        for place, (link, is_counter, index) in enumerate(sorted(tracks)):
            if not is_counter:
                self.links.append(self._write_link(top, link, place))
            elif self.timeline.counters[index].unit == _SHARE:
                self._write_counter(top, index, place).y_axis_share_key = _SHARE
            else:
                self._write_counter(top, index, place)

    def _write_link(self, parent: TrackDescriptor, link: int, place: int) -> int:
        title = link_title(self.timeline.routes, link) if self.timeline.routes else ""
        track = self.child(parent, title, place)
        track.sibling_merge_behavior = track.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
        track.sibling_merge_key_int = link
        uuid: int = track.uuid
        return uuid

    def _write_counter(self, parent: TrackDescriptor, index: int, place: int) -> CounterDescriptor:
        track = self.child(parent, self.timeline.counters[index].name, place)
        track.counter.unit_name = self.timeline.counters[index].unit
        self.counters[index] = track.uuid
        described: CounterDescriptor = track.counter
        return described

    def _write_lane(self, top: TrackDescriptor, lane: int, place: int) -> None:
        stream = Stream(int(self.timeline.lane_stream[lane]))
        peer = int(self.timeline.lane_peer[lane])
        own_track = stream is not Stream.COMPUTE or peer >= 0
        self.lanes[lane] = self.child(top, stream_name(stream, peer), place).uuid if own_track else top.uuid

    def thread(self, name: str, place: int) -> TrackDescriptor:
        """Describe the ``place``-th thread of the process; return its track for slices, which nests others."""
        thread = self._add()
        thread.thread.pid, thread.thread.tid = _PROCESS_ID, _FIRST_THREAD + place
        thread.thread.thread_name = printable(name)
        track = self._add(name=name)
        track.parent_uuid = thread.uuid
        track.child_ordering = track.EXPLICIT
        track.sibling_merge_behavior = track.SIBLING_MERGE_BEHAVIOR_NONE
        return track

    def child(self, parent: TrackDescriptor, name: str, place: int) -> TrackDescriptor:
        """Describe the ``place``-th track below another."""
        track = self._add(name=name)
        track.parent_uuid = parent.uuid
        track.sibling_order_rank = place
        track.sibling_merge_behavior = track.SIBLING_MERGE_BEHAVIOR_NONE
        return track

    def _add(self, name: str = "") -> TrackDescriptor:
        sequence = SEQUENCE if name else _TABLES_SEQUENCE
        track: TrackDescriptor = self.trace.packet.add(trusted_packet_sequence_id=sequence).track_descriptor
        track.uuid = next(self.uuids)
        if name:
            track.name = printable(name)
        return track
