"""Our traces keep the importer's rules, also where events of one instant meet."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.export.perfetto import write
from pptrace.model.action import Action, Kind
from pptrace.model.placement import Placement
from pptrace.timeline.build import from_slices
from pptrace.timeline.timeline import Slice, Stream, Timeline

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END, CLEARED, NEEDS = 1, 2, 1, 2
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
    """Draw a pipeline of few instants: many slices without length, many starts at one time."""
    ranks, units = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    short = st.integers(0, 2)
    slices, blocking = [], draw(st.booleans())
    free: dict[tuple[int, Stream], int] = defaultdict(int)
    there: dict[tuple[int, Kind, int], int] = {}

    def run(rank: int, stream: Stream, kind: Kind, unit: int, at: int, took: int) -> int:
        start = max(at, free[rank, stream])
        free[rank, stream] = start + took
        action = Action(kind=kind, stage=rank, unit=unit)
        slices.append(Slice(rank=rank, stream=stream, action=action, start_ns=start, end_ns=start + took))
        return start

    for kind, send, recv, order in (
        (Kind.F, Kind.SEND_F, Kind.RECV_F, range(ranks)),
        (Kind.B, Kind.SEND_B, Kind.RECV_B, range(ranks)[::-1]),
    ):
        for unit in range(units):
            for rank in order:
                took = draw(st.integers(1, 3))
                done = run(rank, Stream.COMPUTE, kind, unit, there.get((rank, kind, unit), 0), took) + took
                to = rank + 1 if kind is Kind.F else rank - 1
                if not 0 <= to < ranks:
                    continue
                stream = Stream.COMPUTE if blocking else Stream.COMM
                took = draw(short)
                begun = run(rank, stream, send, unit, max(done, free[rank, stream], free[to, stream]), took)
                run(to, stream, recv, unit, begun, took)
                there[to, kind, unit] = begun + took
    return from_slices(slices, Placement.looped(ranks, units))


@given(timeline=crowded())
@QUICK
def test_no_rule_is_broken(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    write(timeline, path, {})
    assert lint(Trace.FromString(path.read_bytes())) == []


@given(timeline=crowded())
@QUICK
def test_every_flow_reaches_sender_receiver_and_consumer_in_this_order(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    write(timeline, path, {})
    trace = Trace.FromString(path.read_bytes())
    names = {entry.iid: entry.name for packet in trace.packet for entry in packet.interned_data.event_names}
    chains: dict[int, list[str]] = defaultdict(list)
    for packet in sorted(trace.packet, key=lambda p: p.timestamp):
        event = packet.track_event
        for flow in (*event.flow_ids, *event.terminating_flow_ids):
            chains[flow].append(names[event.name_iid].split()[0])
    assert len(chains) == sum(int(k) in {Kind.SEND_F, Kind.SEND_B} for k in timeline.kind)
    assert {tuple(chain) for chain in chains.values()} <= {
        ("F", "SEND_F", "RECV_F", "F"),
        ("B", "SEND_B", "RECV_B", "B"),
    }


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
