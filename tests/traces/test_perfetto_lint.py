"""Our traces keep the importer's rules, also where events of one instant meet."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Routes, Slice, Timeline
from pptrace.traces.perfetto import write

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END, CLEARED, NEEDS = 1, 2, 1, 2
SENDS = {Kind.SEND_F, Kind.SEND_B}
LINKS = 3


def lint(trace: Trace) -> list[str]:
    """Replay a trace as the importer does: by time, by place in the file where times are equal."""
    findings: list[str] = []
    ready: set[int] = set()
    described: set[int] = set()
    open_on: dict[int, list[str]] = defaultdict(list)
    for packet in trace.packet:
        if packet.sequence_flags & CLEARED:
            ready.add(packet.trusted_packet_sequence_id)
        if packet.sequence_flags & NEEDS and packet.trusted_packet_sequence_id not in ready:
            findings.append("a packet needs state that its sequence never set")
        if packet.HasField("track_descriptor"):
            uuid = packet.track_descriptor.uuid
            findings += [f"track {uuid} is described twice"] * (uuid in described)
            described.add(uuid)
    events = [p for p in trace.packet if p.HasField("track_event")]
    for packet in sorted(events, key=lambda p: p.timestamp):
        findings += _event(packet, described, open_on)
    return findings + [f"track {uuid} has a slice without an end" for uuid, names in open_on.items() if names]


def _event(packet: Any, described: set[int], open_on: dict[int, list[str]]) -> list[str]:
    event, uuid = packet.track_event, packet.track_event.track_uuid
    findings = [] if uuid in described else [f"track {uuid} is not described"]
    if event.type == BEGIN:
        findings += [f"a slice begins within another on track {uuid}"] * bool(open_on[uuid])
        open_on[uuid].append(event.name)
    elif event.type == END:
        findings += [f"a slice ends that never began on track {uuid}"] * (not open_on[uuid])
        open_on[uuid] = open_on[uuid][:-1]
    return findings


@st.composite
def crowded(draw: st.DrawFn) -> Timeline:
    """Draw a pipeline of few instants and links: many slices without length, many starts at one time."""
    ranks, microbatches = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    short = st.integers(0, 2)
    slices, blocking = [], draw(st.booleans())
    free: dict[tuple[int, Stream], int] = defaultdict(int)
    there: dict[tuple[int, Kind, int], int] = {}

    def run(rank: int, stream: Stream, kind: Kind, microbatch: int, at: int, took: int) -> int:
        start = max(at, free[rank, stream])
        free[rank, stream] = start + took
        action = Action(kind=kind, stage=rank, microbatch=microbatch)
        slices.append(Slice(rank=rank, stream=stream, action=action, start_ns=start, end_ns=start + took))
        return start

    for kind, send, recv, order in (
        (Kind.F, Kind.SEND_F, Kind.RECV_F, range(ranks)),
        (Kind.B, Kind.SEND_B, Kind.RECV_B, range(ranks)[::-1]),
    ):
        for microbatch in range(microbatches):
            for rank in order:
                took = draw(st.integers(1, 3))
                done = (
                    run(rank, Stream.COMPUTE, kind, microbatch, there.get((rank, kind, microbatch), 0), took)
                    + took
                )
                to = rank + 1 if kind is Kind.F else rank - 1
                if not 0 <= to < ranks:
                    continue
                stream = Stream.COMPUTE if blocking else Stream.COMM
                took = draw(short)
                begun = run(rank, stream, send, microbatch, max(done, free[rank, stream], free[to, stream]), took)
                run(to, stream, recv, microbatch, begun, took)
                there[to, kind, microbatch] = begun + took
    timeline = Timeline.from_slices(slices, Placement.looped(ranks, microbatches))
    longest = draw(st.integers(0, 3))
    route = st.lists(st.integers(0, LINKS - 1), min_size=longest, max_size=longest)
    return replace(timeline, routes=routes([draw(route) if kind in SENDS else [] for kind in timeline.kind]))


def routes(found: list[list[int]]) -> Routes:
    return Routes(
        name=tuple(f"link{link}" for link in range(LINKS)),
        rate_kbps=np.full(LINKS, 1_000_000),
        ptr=np.concatenate([[0], np.cumsum([len(item) for item in found])]).astype(np.int64),
        link=np.array([link for item in found for link in item], dtype=np.int64),
    )


@given(timeline=crowded())
def test_no_rule_is_broken(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    write(timeline, path, {})
    assert lint(Trace.FromString(path.read_bytes())) == []


@given(timeline=crowded())
def test_every_flow_goes_along_the_route_from_sender_to_receiver_and_consumer(
    timeline: Timeline, tmp_path: Path
) -> None:
    path = tmp_path / "step.pftrace"
    write(timeline, path, {})
    trace = Trace.FromString(path.read_bytes())
    names = {entry.iid: entry.name for packet in trace.packet for entry in packet.interned_data.event_names}
    links = {
        packet.track_descriptor.uuid: packet.track_descriptor.sibling_merge_key_int
        for packet in trace.packet
        if packet.track_descriptor.name.startswith("link")
    }
    chains: dict[int, list[str]] = defaultdict(list)
    for packet in sorted(trace.packet, key=lambda p: p.timestamp):
        event = packet.track_event
        on_link = [f"link{links[event.track_uuid]}"] if event.track_uuid in links else []
        for flow in (*event.flow_ids, *event.terminating_flow_ids):
            chains[flow] += on_link or [names[event.name_iid].split()[0]]
    assert timeline.routes is not None
    expected = {
        row + 1: [
            kind[-1],
            kind,
            *(f"link{link}" for link in timeline.routes.link[slice(*ptr)]),
            f"RECV_{kind[-1]}",
            kind[-1],
        ]
        for row, ptr in enumerate(pairwise(timeline.routes.ptr.tolist()))
        if (kind := Kind(int(timeline.kind[row])).name).startswith("SEND")
    }
    assert chains == expected


def test_the_lint_sees_what_it_is_for() -> None:
    trace = Trace()
    for kind in (BEGIN, BEGIN, END):
        packet = trace.packet.add(timestamp=kind, sequence_flags=NEEDS)
        packet.track_event.type, packet.track_event.track_uuid = kind, 7
    findings = set(lint(trace))
    assert findings == {
        "a packet needs state that its sequence never set",
        "track 7 is not described",
        "a slice begins within another on track 7",
        "track 7 has a slice without an end",
    }
