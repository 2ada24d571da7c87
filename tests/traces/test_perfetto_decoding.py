"""Perfetto's own messages read what we wrote, field by field and packet by packet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from decoded_trace import BEGIN, COUNTER, END, Decoded
from msgspec.structs import replace

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Slice, Timeline
from pptrace.traces.perfetto import write
from pptrace.traces.scene import COLOR_TEXTS

if TYPE_CHECKING:
    from pathlib import Path


def step() -> Timeline:
    """Two ranks, three microbatches, two of them in one span; one transfer takes no time."""
    compute, send, comm = Stream.COMPUTE, Stream.SEND, Stream.COMM
    slices = [
        _slice(0, compute, Kind.F, 0, 0, (0, 10)),
        _slice(0, compute, Kind.F, 0, 1, (10, 30), span=2, pair=4, collective_ns=3),
        _slice(0, send, Kind.SEND_F, 0, 0, (10, 15), peer=1, size_bytes=2**40, lag_ns=2, enter_ns=9),
        _slice(0, send, Kind.SEND_F, 0, 1, (30, 30), peer=1, span=2, uncontended_ns=7),
        _slice(1, compute, Kind.F, 1, 0, (17, 27)),
        _slice(1, compute, Kind.B, 1, 0, (27, 47)),
        _slice(1, compute, Kind.F, 1, 1, (47, 67), span=2),
        _slice(1, comm, Kind.SEND_B, 1, 0, (47, 50), size_bytes=300),
        _slice(0, comm, Kind.RECV_B, 0, 0, (47, 50), size_bytes=300),
        _slice(0, compute, Kind.B, 0, 0, (50, 70)),
        _slice(0, Stream.DATA_PARALLEL, Kind.REDUCE_GRAD, 0, -1, (70, 90)),
        _slice(0, Stream.COPY_OUT, Kind.OFFLOAD, 0, 0, (70, 71)),
    ]
    memory = [
        Counter(rank=rank, name="memory", unit="bytes", at_ns=np.array([0, 5]), value=np.array([2**45, 0]))
        for rank in (0, 1)
    ]
    drift = Counter(rank=1, name="drift", unit="ns", at_ns=np.array([3]), value=np.array([-4]))
    timeline = Timeline.from_slices(slices, Placement.looped(2, 3))
    cause = np.arange(len(timeline), dtype=np.int32) - 1
    return replace(timeline, counters=(*memory, drift), cause=cause, provenance={"version": "1", "flags": [1, 2]})


def _slice(
    rank: int, stream: Stream, kind: Kind, stage: int, microbatch: int, when: tuple[int, int], **more: Any
) -> Slice:
    action = Action(kind=kind, stage=stage, microbatch=microbatch, span=more.pop("span", 1))
    return Slice(rank=rank, stream=stream, action=action, start_ns=when[0], end_ns=when[1], **more)


@pytest.fixture
def decoded(tmp_path: Path) -> Decoded:
    path = tmp_path / "step.pftrace"
    write(step(), path, {})
    return Decoded(path.read_bytes())


def test_every_slice_has_every_field_and_no_other(decoded: Decoded) -> None:
    timeline = step()
    begins = [decoded.fields(p) for p in decoded.events(BEGIN)]
    ours = {f["Step.row"]: f for f in begins if "Step.row" in f}
    assert sorted(ours) == list(range(len(timeline)))
    for row, found in ours.items():
        item = timeline[row]
        ids = found.pop("flow_ids", []), found.pop("terminating_flow_ids", [])
        assert len(set(ids[0])) == len(ids[0])
        expected = {
            "ts": item.start_ns,
            "track": _track(item),
            "name": _name(item.action),
            "category": [_category(item.action.kind)],
            "color": COLOR_TEXTS[item.action.kind],
            "Step.row": row,
            "Step.kind": int(item.action.kind),
            "Step.rank": item.rank,
            "Step.stage": item.action.stage,
        }
        optional = {
            "microbatch": (item.action.microbatch, -1),
            "span": (item.action.span, 1),
            "bytes": (item.size_bytes, 0),
            "enter_ns": (item.enter_ns, item.start_ns),
            "lag_ns": (item.lag_ns, 0),
            "uncontended_ns": (item.uncontended_ns, item.end_ns - item.start_ns),
            "collective_ns": (item.collective_ns, 0),
            "cause": (item.cause, -1),
            "pair": (item.pair, -1),
            "peer": (_peer(item), -1),
        }
        expected |= {f"Step.{name}": value for name, (value, default) in optional.items() if value != default}
        assert found == expected


def hue(text: str) -> int:
    """Return the hue that the Perfetto UI gives a text: FNV-1a, in doubles as JavaScript multiplies.

    Source: https://github.com/google/perfetto, ui/src/base/hash.ts and ui/src/components/colorizer.ts, v52.0.
    """
    value = 0x811C9DC5 & 0xFFFFFFF
    for letter in text:
        product = int(16777619.0 * (value ^ ord(letter))) & 0xFFFFFFFF
        value = product - (1 << 32) * (product >> 31)
    return abs(value) % 360


def test_the_perfetto_ui_draws_forwards_blue_and_gradients_green() -> None:
    hues = {kind.name: hue(COLOR_TEXTS[kind]) for kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.RECOMPUTE)}

    assert abs(hue("F") - hue("B")) < 10  # names alone give similar colors
    assert 245 <= hues["F"] <= 275
    assert all(95 <= hues[name] <= 155 for name in "BIW")
    assert 285 <= hues["RECOMPUTE"] <= 315
    assert len(set(COLOR_TEXTS)) == len(COLOR_TEXTS) == len(Kind) - 2  # gathers, and reductions, have one color


def test_every_slice_ends_once(decoded: Decoded) -> None:
    timeline = step()
    ends = sorted((decoded.path(p.track_event.track_uuid), p.timestamp) for p in decoded.events(END))
    slices = [timeline[row] for row in range(len(timeline))]
    phases = [(decoded.fields(p)["track"], p.timestamp) for p in decoded.events(BEGIN)]
    assert len(ends) == len(phases)
    ours = sorted((_track(s), s.end_ns) for s in slices)
    assert [end for end in ends if not end[0].endswith("phases")] == ours
    assert all(
        {f.name for f, _ in p.track_event.ListFields()} == {"type", "track_uuid"} for p in decoded.events(END)
    )


def test_flows_lead_from_producer_through_transfer_to_consumer(decoded: Decoded) -> None:
    chains: dict[int, list[str]] = {}
    for packet in sorted(decoded.events(BEGIN), key=lambda p: p.timestamp):
        fields = decoded.fields(packet)
        for flow in fields.get("flow_ids", ()):
            chains.setdefault(flow, []).append(f"{fields['Step.rank']} {fields['name']}")
        for flow in fields.get("terminating_flow_ids", ()):
            chains.setdefault(flow, []).append(f"-> {fields['Step.rank']} {fields['name']}")
    assert sorted(chains.values()) == [
        ["0 F 0", "0 SEND_F 0", "-> 1 F 0"],
        ["0 F 1+2", "0 SEND_F 1+2", "-> 1 F 1+2"],
        ["1 B 0", "1 SEND_B 0", "0 RECV_B 0", "-> 0 B 0"],
    ]


def test_counters_keep_their_values_and_units(decoded: Decoded) -> None:
    points = [
        (decoded.path(p.track_event.track_uuid), p.timestamp, p.track_event.counter_value)
        for p in decoded.events(COUNTER)
    ]
    assert points == [
        ("rank 0/memory", 0, 2**45), ("rank 0/memory", 5, 0),
        ("rank 1/memory", 0, 2**45), ("rank 1/memory", 5, 0),
        ("rank 1/drift", 3, -4),
    ]  # fmt: skip
    units = {t.name: t.counter.unit_name for t in decoded.tracks.values() if t.HasField("counter")}
    assert units == {"memory": "bytes", "drift": "ns"}


def test_phases_are_slices_of_their_own_track(decoded: Decoded) -> None:
    phases = [decoded.fields(p) for p in decoded.events(BEGIN) if "Step.row" not in decoded.fields(p)]
    assert [(p["track"], p["name"], p["ts"], list(p["categories"])) for p in phases] == [
        ("rank 0/phases", "warm-up", 0, ["phase"]),
        ("rank 0/phases", "cool-down", 50, ["phase"]),
        ("rank 1/phases", "warm-up", 17, ["phase"]),
        ("rank 1/phases", "steady", 27, ["phase"]),
    ]


def test_each_rank_is_a_thread_of_one_process_and_threads_stand_in_order(decoded: Decoded) -> None:
    processes = [t.process for t in decoded.tracks.values() if t.HasField("process")]
    threads = [t.thread for t in decoded.tracks.values() if t.HasField("thread")]
    assert [(p.pid, p.process_name) for p in processes] == [(1, "pipeline")]
    assert [(t.pid, t.tid, t.thread_name) for t in threads] == [(1, 1000, "rank 0"), (1, 1001, "rank 1")]


def test_attributes_carry_title_and_provenance(tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    write(step(), path, {"title": "1f1b, two ranks"})
    packets = Decoded(path.read_bytes()).packets
    attributes = {a.key: a for p in packets for a in p.trace_attributes.attribute}
    assert attributes["pptrace.format"].long_value == 2
    assert attributes["pptrace.title"].string_value == "1f1b, two ranks"
    assert json.loads(attributes["pptrace.provenance"].string_value) == {"version": "1", "flags": [1, 2]}


def test_slices_are_colored_by_microbatch_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    write(step(), path, {"color": "microbatch"})
    decoded = Decoded(path.read_bytes())
    colors = {decoded.fields(p)["name"]: decoded.fields(p).get("color") for p in decoded.events(BEGIN)}
    assert colors["F 0"] == colors["SEND_B 0"] == "mb 0"
    assert colors["F 1+2"] == "mb 1+2"
    assert colors["REDUCE_GRAD"] is None


def test_packets_say_which_state_they_need(decoded: Decoded) -> None:
    cleared = [index for index, p in enumerate(decoded.packets) if p.sequence_flags & 1]
    needing = [index for index, p in enumerate(decoded.packets) if p.sequence_flags & 2]
    assert len(cleared) == 1
    assert cleared[0] < min(needing)
    assert len(needing) == len(step())
    events = [p for p in decoded.packets if p.HasField("track_event")]
    assert {p.trusted_packet_sequence_id for p in events} == {1}


def _track(item: Slice) -> str:
    if item.stream is Stream.COMPUTE:
        return f"rank {item.rank}"
    names = {Stream.COMM: "communication", Stream.COPY_OUT: "copy out", Stream.DATA_PARALLEL: "data parallel"}
    return f"rank {item.rank}/{names.get(item.stream, f'send → rank {item.peer}')}"


def _peer(item: Slice) -> int:
    return 1 - item.rank if item.action.kind in {Kind.SEND_F, Kind.SEND_B, Kind.RECV_B} else -1


def _name(action: Action) -> str:
    microbatch = "" if action.microbatch < 0 else f" {action.microbatch}"
    return action.kind.name + microbatch + (f"+{action.span}" if action.span > 1 else "")


def _category(kind: Kind) -> str:
    if kind in {Kind.F, Kind.B}:
        return "compute"
    return {Kind.REDUCE_GRAD: "collective", Kind.OFFLOAD: "copy"}.get(kind, "communication")
