"""In a Perfetto trace, messages show on the links that they went over, and links have their counters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from decoded_trace import BEGIN, COUNTER, END, Decoded
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.errors import TraceError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Routes, Slice, Timeline
from pptrace.traces.perfetto import read, write

if TYPE_CHECKING:
    from pathlib import Path

UP, SPINE, DOWN, UNUSED = range(4)
LINKS = Routes(
    name=("nic0>leaf0", "leaf0>spine0", "leaf1>nic2", "nic3>leaf1"),
    rate_kbps=np.array([50_000_000, 0, 12_500_000, 50_000_000]),
    ptr=np.array([0]),
    link=np.array([], dtype=np.int32),
)


def step() -> Timeline:
    """Two forwards leave rank 0 for ranks 1 and 2 and share the way up; the second's receiver is another."""
    placement = Placement(
        ranks=3,
        stage_rank=np.array([[0, 1, 2]]),
        microbatch_route=np.zeros(2, dtype=np.int32),
        edges=np.array([(0, 1), (0, 2)]),
    )
    send = {"stream": Stream.SEND, "size_bytes": 64}
    slices = [
        _slice(Kind.F, 0, 0, 0, (0, 10)),
        _slice(Kind.SEND_F, 0, 0, 0, (10, 30), peer=1, **send),
        _slice(Kind.SEND_F, 0, 0, 0, (15, 25), peer=2, **send),
        _slice(Kind.F, 1, 1, 0, (30, 40)),
        _slice(Kind.F, 2, 2, 0, (25, 35)),
    ]
    timeline = Timeline.from_slices(slices, placement)
    routes = replace(LINKS, ptr=np.array([0, 0, 2, 5, 5, 5]), link=np.array([UP, SPINE, UP, SPINE, DOWN]))
    return replace(timeline, routes=routes)


def _slice(kind: Kind, rank: int, stage: int, microbatch: int, when: tuple[int, int], **more: Any) -> Slice:
    action = Action(kind=kind, stage=stage, microbatch=microbatch)
    given = {"stream": Stream.COMPUTE} | more
    return Slice(rank=rank, action=action, start_ns=when[0], end_ns=when[1], **given)


def counter(name: str, unit: str = "bytes/s", rank: int = -1) -> Counter:
    return Counter(rank=rank, name=name, unit=unit, at_ns=np.array([10, 30]), value=np.array([7, 0]))


def decoded(timeline: Timeline, path: Path, **options: Any) -> Decoded:
    write(timeline, path, options)
    return Decoded(path.read_bytes())


def on_links(trace: Decoded) -> list[dict[str, Any]]:
    begins = [trace.fields(packet) for packet in trace.events(BEGIN)]
    return [fields for fields in begins if fields.get("category") == ["link"]]


def children(trace: Decoded, parent: str) -> list[str]:
    (top,) = [uuid for uuid, track in trace.tracks.items() if track.name == parent]
    below = [track for track in trace.tracks.values() if track.parent_uuid == top]
    return [track.name for track in sorted(below, key=lambda track: track.sibling_order_rank)]


def test_a_message_shows_on_each_link_of_its_route_with_all_its_fields(tmp_path: Path) -> None:
    found = on_links(decoded(step(), tmp_path / "a.pftrace"))

    short = [(f["track"], f["name"], f["ts"], f["Step.transfer"], f["Step.hop"], f["Step.link"]) for f in found]
    assert short == [
        ("links/nic0>leaf0 (50 GB/s)", "SEND_F 0 0>1", 10, 1, 0, UP),
        ("links/leaf0>spine0", "SEND_F 0 0>1", 10, 1, 1, SPINE),
        ("links/nic0>leaf0 (50 GB/s)", "SEND_F 0 0>2", 15, 2, 0, UP),
        ("links/leaf0>spine0", "SEND_F 0 0>2", 15, 2, 1, SPINE),
        ("links/leaf1>nic2 (12.5 GB/s)", "SEND_F 0 0>2", 15, 2, 2, DOWN),
    ]
    first = {name.removeprefix("Step."): value for name, value in found[0].items() if name.startswith("Step.")}
    assert first == {
        "kind": Kind.SEND_F, "rank": 0, "stage": 0, "microbatch": 0, "peer": 1, "bytes": 64,
        "link": UP, "transfer": 1, "hop": 0,
    }  # fmt: skip


def test_a_link_stands_in_its_order_with_its_counters_behind(tmp_path: Path) -> None:
    counters = tuple(map(counter, ("jobs", "nic3>leaf1", "leaf0>spine0", "nic0>leaf0")))
    trace = decoded(replace(step(), counters=counters), tmp_path / "a.pftrace")

    assert children(trace, "links") == [
        "nic0>leaf0 (50 GB/s)", "nic0>leaf0 (50 GB/s)", "nic0>leaf0",
        "leaf0>spine0", "leaf0>spine0", "leaf0>spine0",
        "leaf1>nic2 (12.5 GB/s)", "nic3>leaf1", "jobs",
    ]  # fmt: skip
    values = [(trace.path(p.track_event.track_uuid), p.track_event.counter_value) for p in trace.events(COUNTER)]
    assert values[:4] == [("links/jobs", 7), ("links/jobs", 0), ("links/nic3>leaf1", 7), ("links/nic3>leaf1", 0)]


def test_messages_that_overlap_on_a_link_take_tracks_that_viewers_draw_as_one(tmp_path: Path) -> None:
    trace = decoded(step(), tmp_path / "a.pftrace")

    rows = defaultdict(set)
    for packet in trace.events(BEGIN):
        track = trace.tracks[packet.track_event.track_uuid]
        if trace.path(track.uuid).startswith("links/"):
            assert track.sibling_merge_behavior == track.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
            rows[track.sibling_merge_key_int].add(track.uuid)
    assert {link: len(uuids) for link, uuids in rows.items()} == {UP: 2, SPINE: 2, DOWN: 1}


def test_every_slice_on_a_link_ends_with_its_message(tmp_path: Path) -> None:
    trace = decoded(step(), tmp_path / "a.pftrace")

    ends = [(trace.path(p.track_event.track_uuid), p.timestamp) for p in trace.events(END)]
    assert sorted(end for end in ends if end[0].startswith("links/")) == sorted(
        (fields["track"], 30 if fields["Step.transfer"] == 1 else 25) for fields in on_links(trace)
    )


def test_slices_on_links_take_the_color_of_their_microbatch(tmp_path: Path) -> None:
    found = on_links(decoded(step(), tmp_path / "a.pftrace", color="microbatch"))

    assert {fields["color"] for fields in found} == {"mb 0"}


def test_percentages_share_an_axis_and_rates_do_not(tmp_path: Path) -> None:
    counters = (counter("a", "%"), counter("b", "%"), counter("c"), counter("d"))
    trace = decoded(replace(step(), counters=counters), tmp_path / "a.pftrace")

    axes = {
        track.name: track.counter.y_axis_share_key for track in trace.tracks.values() if track.HasField("counter")
    }
    assert axes == {"a": "%", "b": "%", "c": "", "d": ""}


def test_a_file_of_a_rank_has_the_links_of_its_messages_and_the_first_the_cluster_s_counters(
    tmp_path: Path,
) -> None:
    timeline = replace(step(), counters=(counter("leaf0>spine0"), counter("memory", rank=1)))
    traces = [decoded(timeline, tmp_path / f"{rank}.pftrace", rank=rank) for rank in range(3)]

    assert [len(on_links(trace)) for trace in traces] == [5, 0, 0]
    assert [len(trace.events(COUNTER)) for trace in traces] == [2, 2, 0]
    assert not read([tmp_path / f"{rank}.pftrace" for rank in (2, 0, 1)]).difference(timeline)


def test_without_routes_and_counters_of_the_cluster_a_trace_has_no_tracks_of_links(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    write(replace(step(), routes=None), path, {})

    packets = Trace.FromString(path.read_bytes()).packet
    assert not [packet for packet in packets if packet.track_descriptor.name == "links"]


def test_routes_without_links_are_not_the_same_as_none(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.pftrace", len(step())
    empty = replace(step(), routes=replace(LINKS, ptr=np.zeros(rows + 1, dtype=np.int32)))
    write(empty, path, {})

    assert read([path]).routes == empty.routes
    assert on_links(Decoded(path.read_bytes())) == []


def test_a_lost_slice_on_a_link_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    write(step(), path, {})
    path.write_bytes(path.read_bytes().replace(b"],5]", b"],6]"))

    with pytest.raises(TraceError, match="holds 5 of its 6 slices on links"):
        read([path])


def test_files_over_other_links_are_not_of_one_run(tmp_path: Path) -> None:
    timeline = step()
    other = replace(
        timeline, routes=replace(LINKS, rate_kbps=LINKS.rate_kbps + 1, ptr=np.zeros(6, dtype=np.int32))
    )
    write(timeline, tmp_path / "0.pftrace", {"rank": 0})
    write(other, tmp_path / "1.pftrace", {"rank": 1})

    with pytest.raises(TraceError, match="not of the same run"):
        read([tmp_path / "0.pftrace", tmp_path / "1.pftrace"])
