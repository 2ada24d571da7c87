"""Packets that describe a trace: attributes, typed fields, names, tracks, and single slices.

Viewers from v55 on list attributes; older ones skip them.

A pipeline is a process and each rank a thread of it, so that standard queries apply: ``thread_slice`` has the
slices of all streams of a rank under the thread's name. Viewers of all versions order the threads of a process by
their ids. Viewers before v57 ignore the order of processes in a trace and order them by their number of slices.
Viewers expand the only process of a trace automatically.

Viewers show a child of a thread's track next to it, and nest only tracks below that child (``parent_uuid`` in
perfetto's ``track_descriptor.proto``). So the thread's track is empty. Its child has the rank's name and compute
stream, and contains all other tracks of the rank. The initial view is the schedule's diagram.

Links belong to the process: each link in use has a track, followed by the link's counter. Where messages overlap
on a link, each of its lanes is a track, and viewers merge the tracks of a link.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from pptrace.sanitize import printable
from pptrace.steps.kinds import Stream
from pptrace.traces.assembly import placement_values
from pptrace.traces.perfetto.wire import BEGIN, END, SEQUENCE, Cell, RecordLayout
from pptrace.traces.scene import NAMES, link_title, links_and_segments, rank_name, stream_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import InternedData, Trace, TrackDescriptor

    from pptrace.traces.perfetto.wire import RecordRun
    from pptrace.traces.scene import Scene

FILE_NAME = "proto/pptrace.proto"
PACKAGE = "pptrace"
MESSAGE = "Step"

_FIELDS = (
    "row", "kind", "rank", "stage", "microbatch", "span", "peer", "bytes", "enter_ns", "lag_ns", "uncontended_ns",
    "collective_ns", "cause", "pair", "link", "transfer", "hop", "segment_number", "segment", "shown", "load",
)  # fmt: skip
FIELD_NUMBERS = {name: number for number, name in enumerate(_FIELDS, 7610)}
"""Field numbers of ``proto/pptrace.proto``; 7610 to 7639 are pptrace's share of TrackEvent's extension range."""


def descriptor_set() -> FileDescriptorSet:
    """Return the descriptor of ``proto/pptrace.proto`` as ``protoc`` builds it, without Perfetto's file."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    files = FileDescriptorSet()
    file = files.file.add(name=FILE_NAME, package=PACKAGE)
    file.dependency.append("protos/perfetto/trace/perfetto_trace.proto")
    message = file.message_type.add(name=MESSAGE)
    kinds = message.enum_type.add(name="Kind")
    for kind, name in enumerate(NAMES):
        kinds.value.add(name=name, number=kind)
    for name, number in FIELD_NUMBERS.items():
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
"""Version of the format; it increases with changes that older readers cannot read."""


def provenance_json(provenance: Mapping[str, Any]) -> str:
    """Return the provenance as JSON."""
    return json.dumps(dict(provenance), ensure_ascii=False)


def write_descriptor(head: Trace) -> None:
    """Write the descriptor of the typed fields."""
    embedded = head.packet.add().extension_descriptor.extension_set
    embedded.ParseFromString(descriptor_set().SerializeToString())


def write_attributes(head: Trace, values: Mapping[str, str | int]) -> None:
    """Write a trace's attributes."""
    attributes = head.packet.add().trace_attributes.attribute
    for key, value in values.items():
        if isinstance(value, int):
            attributes.add(key=key, long_value=value)
        else:
            attributes.add(key=key, string_value=value)


SLICE_CATEGORIES = ("compute", "communication", "copy", "collective")
"""Categories of slices on ranks."""

_CATEGORIES = (*SLICE_CATEGORIES, "link", "difference", "wait", "critical path")

CATEGORY_NUMBERS = {name: number for number, name in enumerate(_CATEGORIES, 1)}
"""The number of each category: of slices on ranks and on links, of delays, waits and the critical path."""

_STATE_CLEARED = 1


def write_names(
    head: Trace, names: Sequence[str], more_categories: Sequence[str] = (), correlations: Sequence[str] = ()
) -> InternedData:
    """Write names and correlations, each numbered from 1, and categories of slices; return the interned data."""
    packet = head.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=_STATE_CLEARED)
    for category in (*SLICE_CATEGORIES, *more_categories):
        packet.interned_data.event_categories.add(iid=CATEGORY_NUMBERS[category], name=category)
    for iid, name in enumerate(names, 1):
        packet.interned_data.event_names.add(iid=iid, name=printable(name))
    for iid, text in enumerate(correlations, 1):
        packet.interned_data.correlation_id_str.add(iid=iid, str=text.encode())
    interned: InternedData = packet.interned_data
    return interned


def write_slice(head: Trace, track: int, ends_ns: tuple[int, int], name: str, category: str) -> None:
    """Write a single slice with its name and category as text."""
    start_ns, end_ns = ends_ns
    begin = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=start_ns)
    begin.track_event.type, begin.track_event.track_uuid = BEGIN, track
    begin.track_event.name = printable(name)
    begin.track_event.categories.append(category)
    end = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=end_ns)
    end.track_event.type, end.track_event.track_uuid = END, track


def step_json(scene: Scene, tracks: Tracks, runs: Sequence[RecordRun]) -> str:
    """Return the properties of a step that slices and counters lack, and the layout of the file's runs."""
    timeline = scene.timeline
    return json.dumps(
        {
            "slices": len(timeline),
            "first_row": scene.first_row,
            "placement": placement_values(timeline.placement),
            "lanes": [
                timeline.lane_rank.tolist(),
                timeline.lane_stream.tolist(),
                timeline.lane_peer.tolist(),
                tracks.lanes,
            ],
            "counters": [
                [counter.rank, counter.name, counter.unit, track, counter.at_ns.size]
                for counter, track in zip(timeline.counters, tracks.counters, strict=True)
            ],
            **links_and_segments(timeline),
            "runs": [_run(run) for run in runs],
        },
        separators=(",", ":"),
    )


def layout_of(parts: Sequence[Any]) -> RecordLayout:
    """Return the layout from its JSON form in :func:`step_json`."""
    return RecordLayout(tuple(bytes.fromhex(part) if isinstance(part, str) else _cell(*part) for part in parts))


_cell = cache(Cell)
"""Cells of equal fields share the words that they compute."""


def _run(run: RecordRun) -> dict[str, Any]:
    fields = {"records": run.rows.size, "parts": [*map(_part, run.layout.parts)]}
    return fields if run.segment < 0 else {**fields, "segment": run.segment}


def _part(part: bytes | Cell) -> str | list[Any]:
    if isinstance(part, bytes):
        return part.hex()
    return [part.name, part.number, part.size, part.fixed, part.optional]


_TABLES_SEQUENCE = SEQUENCE + 1
"""Sequence of processes and threads. A trace processor assigns a sequence's thread to all of its slices."""

_PROCESS_ID = 1
_FIRST_THREAD = 1000
"""The id of rank 0's thread, which viewers append to track names; the id of the critical path is lower by 1."""

_SHARE = "%"
"""The unit of counters that are comparable across links, unlike bytes/s."""


def _stream_name(stream: Stream, peer: int) -> str:
    """Return a lane's name, such as ``send → rank 1``."""
    name = stream_title(stream)
    if peer < 0:
        return name
    return f"{name} {'←' if stream is Stream.RECV else '→'} rank {peer}"


class Tracks:
    """Writes track descriptors and assigns their numbers.

    Args:
        scene: the step.
        trace: the trace for the descriptors, one packet each.
        suffix: suffix of the names of ranks, where a trace has several steps.
        place: the index of this step's track among a rank's tracks at the top level.
        tracks_per_rank: the number of tracks that a rank has at the top level.
        earlier: the tracks of an earlier step in the same trace.
    """

    def __init__(
        self, scene: Scene, trace: Trace, suffix: str = "", place: int = 0, tracks_per_rank: int = 1,
        earlier: Tracks | None = None,
    ) -> None:  # fmt: skip
        self._scene, self._trace = scene, trace
        self._suffix, self._place, self._tracks_per_rank = suffix, place, tracks_per_rank
        self.process: int = 0 if earlier is None else earlier.process
        """Track of the process whose threads are the ranks; 0 before it is described."""
        self.uuids: Iterator[int] = count(1) if earlier is None else earlier.uuids
        self.phases: dict[int, int] = {}
        """Track of each rank's phases, for ranks with phases."""
        self.waits: dict[int, int] = {}
        """Track of each rank's waits, for ranks with waits."""
        self.path = (0, 0)
        """Tracks of the critical path and of its rank; zeros where there is no path."""
        self.lanes = [0] * scene.timeline.lanes
        self.links: list[int] = []
        """Track of each lane of the hops."""
        self.counters = [0] * len(scene.timeline.counters)

    def write(self, phased: AbstractSet[int] = frozenset()) -> None:
        """Describe all tracks; ranks in ``phased`` have a track of phases."""
        timeline = self._scene.timeline
        lanes: dict[int, list[int]] = {c.rank: [] for c in timeline.counters if c.rank >= 0}
        for lane, rank in enumerate(timeline.lane_rank.tolist()):
            lanes.setdefault(rank, []).append(lane)
        digits = len(str(max(lanes, default=0)))
        if not self.process:
            self.describe_process()
        waiting = set(timeline.why.waits.rank.tolist()) if timeline.why else set()
        if timeline.why and len(timeline.why.path):
            top = self.thread("critical path", -1)
            # Viewers move a track without children.
            self.path = top.uuid, self.counter(top, "on rank", "rank", 0)
        for rank in sorted(lanes):
            top = self.thread(
                f"{rank_name(timeline, rank, digits)}{self._suffix}", rank * self._tracks_per_rank + self._place
            )
            place = count()
            if rank in phased:
                self.phases[rank] = self.child(top, "phases", next(place)).uuid
            if rank in waiting:
                self.waits[rank] = self.child(top, f"why rank {rank} waits", next(place)).uuid
            self._write_rank(top, rank, lanes[rank], place)
        shared = [index for index, counter in enumerate(timeline.counters) if counter.rank < 0]
        if len(self._scene.hops) or shared:
            self._write_links(shared)

    def describe_process(self) -> None:
        """Describe the process, once in a trace."""
        track = self._add()
        track.process.pid, track.process.process_name = _PROCESS_ID, "pipeline"
        self.process = track.uuid

    def _write_rank(self, top: TrackDescriptor, rank: int, lanes: list[int], place: Iterator[int]) -> None:
        """Write the tracks of a rank's lanes and counters; the compute stream is the top track."""
        timeline = self._scene.timeline
        for lane, order in zip(lanes, place, strict=False):
            stream, peer = Stream(int(timeline.lane_stream[lane])), int(timeline.lane_peer[lane])
            is_top = stream is Stream.COMPUTE and peer < 0
            self.lanes[lane] = top.uuid if is_top else self.child(top, _stream_name(stream, peer), order).uuid
        for index, counter in enumerate(timeline.counters):
            if counter.rank == rank:
                self.counters[index] = self.counter(top, counter.name, counter.unit, next(place), counter.name)

    def _write_links(self, shared: list[int]) -> None:
        """Write a track for each lane of a link and for each shared counter, in the order of links."""
        top = self._add("links")
        top.parent_uuid = self.process
        top.child_ordering = top.EXPLICIT
        routes, counters = self._scene.timeline.routes, self._scene.timeline.counters
        number = {name: link for link, name in enumerate(routes.name if routes else ())}
        tracks = [(link, False, lane) for lane, link in enumerate(self._scene.hops.lane_link.tolist())]
        tracks += [(number.get(counters[index].name, len(number)), True, index) for index in shared]
        for place, (link, is_counter, index) in enumerate(sorted(tracks)):
            if is_counter:
                name, unit = counters[index].name, counters[index].unit
                self.counters[index] = self.counter(top, name, unit, place, _SHARE if unit == _SHARE else None)
            elif routes:
                track = self.child(top, link_title(routes, link), place)
                track.sibling_merge_behavior = track.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
                track.sibling_merge_key_int = link
                self.links.append(track.uuid)

    def thread(self, name: str, place: int) -> TrackDescriptor:
        """Describe the ``place``-th thread of the process; return its track for slices and nested tracks."""
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

    def counter(self, parent: TrackDescriptor, name: str, unit: str, place: int, axis: str | None = None) -> int:
        """Describe a counter below a track and return its track; counters with equal ``axis`` share a scale."""
        track = self.child(parent, name, place)
        track.counter.unit_name = unit
        if axis is not None:
            track.counter.y_axis_share_key = axis
        uuid: int = track.uuid
        return uuid

    def _add(self, name: str = "") -> TrackDescriptor:
        sequence = SEQUENCE if name else _TABLES_SEQUENCE
        track: TrackDescriptor = self._trace.packet.add(trusted_packet_sequence_id=sequence).track_descriptor
        track.uuid = next(self.uuids)
        if name:
            track.name = printable(name)
        return track
