"""The events of our Chrome JSON are those of PyTorch's profiler, and flows bind to what they mean."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kineto_lint import lint
from msgspec.structs import replace

from pptrace.measured.dependencies import explain_waits
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.messages import messages
from pptrace.timeline.timeline import Counter, Slice, Timeline
from pptrace.traces.kineto import write

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
FIRST = 100_000


def _slice(rank: int, stream: Stream, kind: Kind, microbatch: int, start: int, end: int, **more: int) -> Slice:
    action = Action(kind=kind, stage=rank, microbatch=microbatch)
    return Slice(rank=rank, stream=stream, action=action, start_ns=start, end_ns=end, **more)


def two_ranks(transfer_ns: int = 3, microbatches: int = 3, *, rendezvous: bool = False) -> Timeline:
    """Return GPipe on two ranks, forwards of 10 and backwards of 20 ns, with transfers in between."""
    slices: list[Slice] = []
    forward = np.arange(microbatches) * 10
    arrive = forward + 10 + transfer_ns
    backward = arrive[-1] + 10 + np.arange(microbatches) * 20
    back = backward + 20 + transfer_ns
    for microbatch in range(microbatches):
        slices += [
            _slice(0, Stream.COMPUTE, Kind.F, microbatch, forward[microbatch], forward[microbatch] + 10),
            _slice(1, Stream.COMPUTE, Kind.F, microbatch, arrive[microbatch], arrive[microbatch] + 10),
            _slice(1, Stream.COMPUTE, Kind.B, microbatch, backward[microbatch], backward[microbatch] + 20),
            _slice(0, Stream.COMPUTE, Kind.B, microbatch, back[microbatch], back[microbatch] + 20),
        ]
        messages_of = [
            (0, 1, Kind.SEND_F, Kind.RECV_F, arrive[microbatch]),
            (1, 0, Kind.SEND_B, Kind.RECV_B, back[microbatch]),
        ]
        for source, target, send, recv, end in messages_of:
            times = (int(end) - transfer_ns, int(end))
            slices.append(_slice(source, Stream.SEND, send, microbatch, *times, peer=target, size_bytes=64))
            if rendezvous:
                slices.append(_slice(target, Stream.RECV, recv, microbatch, *times, peer=source, size_bytes=64))
    return Timeline.from_slices(slices, Placement.looped(2, microbatches))


def _events(timeline: Timeline, path: Path, **options: Any) -> list[Event]:
    write(timeline, path, options)
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def _flows(events: list[Event], category: str) -> list[tuple[int, int]]:
    """Bind flows as Perfetto's importer does; slices are named by their correlation."""
    open_slices: dict[tuple[int, int], list[tuple[float, Event]]] = defaultdict(list)
    sources: dict[int, int] = {}
    arrows = []
    for event in sorted(events, key=lambda e: e["ts"]):
        stack = open_slices[event["pid"], event.get("tid", 0)]
        while stack and round(stack[-1][0], 3) < event["ts"]:
            stack.pop()
        if event["ph"] == "X":
            stack.append((event["ts"] + event["dur"], event))
        elif event.get("cat") == category:
            row = stack[-1][1]["args"]["correlation"]
            if event["ph"] != "s":
                arrows.append((sources[event["id"]], row))
            sources[event["id"]] = row
    return sorted(arrows)


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("transfer_ns", [0, 1, 3])
def test_flows_bind_to_producer_transfer_and_consumer(
    tmp_path: Path, transfer_ns: int, *, rendezvous: bool
) -> None:
    timeline = two_ranks(transfer_ns, rendezvous=rendezvous)
    message_rows = messages(timeline)
    wanted: list[tuple[int, int]] = []
    for row in zip(
        message_rows.producer, message_rows.send, message_rows.recv, message_rows.consumer, strict=True
    ):
        wanted += pairwise(FIRST + int(r) for r in row if r >= 0)
    events = _events(timeline, tmp_path / "a.json")
    arrows = _flows(events, "p2p")
    assert lint(events) == []
    assert len(wanted) == 6 * (3 if rendezvous else 2)
    if transfer_ns > 1 or not rendezvous:
        assert arrows == sorted(wanted)
    else:  # viewers sort by time, and within a nanosecond by the file: a receive may be passed over
        assert {start for start, _ in arrows} <= {start for start, _ in wanted}


def test_launches_point_at_their_kernels(tmp_path: Path) -> None:
    timeline = two_ranks()
    arrows = _flows(_events(timeline, tmp_path / "a.json"), "ac2g")
    assert arrows == [(row, row) for row in range(FIRST, FIRST + len(timeline))]


def test_a_producer_of_many_messages_leaves_no_blank_lines(tmp_path: Path) -> None:
    placement = Placement(
        ranks=5,
        stage_rank=np.arange(5, dtype=np.int32)[None],
        microbatch_route=np.zeros(1, dtype=np.int32),
        edges=np.array([(0, target) for target in range(1, 5)], dtype=np.int32),
    )
    slices = [_slice(0, Stream.COMPUTE, Kind.F, 0, 0, 10), _slice(0, Stream.COMPUTE, Kind.B, 0, 90, 99)]
    for target in range(1, 5):
        slices += [
            replace(_slice(0, Stream.SEND, Kind.SEND_F, 0, 10, 20), peer=target),
            _slice(target, Stream.COMPUTE, Kind.F, 0, 20, 30),
        ]
    path = tmp_path / "a.json"
    events = _events(Timeline.from_slices(slices, placement), path)
    assert lint(events) == []
    assert all(line.strip() for line in path.read_text().splitlines())
    assert path.stat().st_size < 400 * len(events)


def test_a_rank_s_own_file_holds_only_its_flows(tmp_path: Path) -> None:
    events = _events(two_ranks(), tmp_path / "0.json", rank=0)
    assert lint(events) == []
    assert len(_flows(events, "p2p")) == 3  # each forward to its send; backward sends are rank 1's


@pytest.mark.parametrize("rendezvous", [False, True])
def test_arrows_follow_the_critical_path_and_stay_within_a_rank_s_own_file(
    tmp_path: Path, *, rendezvous: bool
) -> None:
    timeline = explain_waits(two_ranks(rendezvous=rendezvous))
    assert timeline.why is not None
    path = list(dict.fromkeys(timeline.why.path.row.tolist()))
    rank = timeline.rank_of_row()

    arrows = _flows(_events(timeline, tmp_path / "a.json"), "critical path")
    assert len(path) > 2
    assert arrows == sorted((a + FIRST, b + FIRST) for a, b in pairwise(path))

    for item in range(2):
        arrows = _flows(_events(timeline, tmp_path / f"{item}.json", rank=item), "critical path")
        stay = [(a + FIRST, b + FIRST) for a, b in pairwise(path) if rank[a] == rank[b] == item]
        assert arrows == sorted(stay)


def test_every_event_starts_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    events = _events(two_ranks(), path)
    lines = path.read_text().splitlines()
    assert [json.loads(line.rstrip().rstrip(",")) for line in lines[1:-1]] == events
    assert all(line.startswith('{"ph"') for line in lines[1:-1])


def test_names_are_the_profilers(tmp_path: Path) -> None:
    events = _events(two_ranks(microbatches=1, rendezvous=True), tmp_path / "a.json")
    by_category = defaultdict(set)
    for event in events:
        by_category[event.get("cat")].add(event["name"])
    assert by_category["kernel"] == {"F 0", "B 0", "ncclDevKernel_SendRecv"}
    assert by_category["cuda_runtime"] == {"cudaLaunchKernel", "cudaLaunchKernelExC"}
    assert by_category["user_annotation"] == {
        "ProfilerStep#1", "PP:0F0", "PP:1F0", "PP:0B0", "PP:1B0",
        "PP:0SEND_F0", "PP:1RECV_F0", "PP:1SEND_B0", "PP:0RECV_B0",
    }  # fmt: skip
    assert by_category["gpu_user_annotation"] >= {"warm-up"}
    assert not any("stream" in e["args"] for e in events if e.get("cat") == "gpu_user_annotation")


@pytest.mark.parametrize("lanes_know_peers", [True, False])
def test_sends_and_receives_tell_what_nccl_tells(tmp_path: Path, *, lanes_know_peers: bool) -> None:
    timeline = two_ranks(microbatches=1, rendezvous=True)
    if not lanes_know_peers:
        timeline = replace(timeline, lane_peer=np.full(timeline.lanes, -1, dtype=np.int32))
    arguments = {
        event["args"]["kind"]: event["args"]
        for event in _events(timeline, tmp_path / "a.json")
        if event.get("cat") == "kernel"
    }
    assert [arguments[kind].get("Dst Rank") for kind in ("SEND_F", "SEND_B", "RECV_F", "F")] == [1, 0, None, None]
    assert [arguments[kind].get("Src Rank") for kind in ("RECV_F", "RECV_B", "SEND_F", "B")] == [0, 1, None, None]
    wanted = {
        "Collective name": "send", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2, "dtype": "Byte",
        "Process Group Description": "mesh_pp", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    assert wanted.items() <= arguments["SEND_F"].items()
    assert "Collective name" not in arguments["F"]


def test_processes_and_streams_are_named_in_rank_order(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    events = _events(two_ranks(), path)
    meta = [event for event in events if event["ph"] == "M"]
    names = {event["pid"]: event["args"]["name"] for event in meta if event["name"] == "process_name"}
    assert [names[pid] for pid in sorted(names)] == ["rank 0", "rank 1"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    assert threads[1, 1] == "host"
    assert threads[1, 7] == "stream 7 compute"
    assert threads[1, 20] == "stream 20 send to rank 1"
    first = path.read_text().split("\n", 1)[0]
    assert first.index('"rank": 0') == first.index('"rank"')


def test_counters_keep_their_unit_and_their_nanoseconds(tmp_path: Path) -> None:
    counter = Counter(rank=1, name="memory", unit="bytes", at_ns=np.array([0, 1001]), value=np.array([5, -7]))
    events = _events(replace(two_ranks(), counters=(counter,)), tmp_path / "a.json")
    result = [(e["pid"], e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert result == [(2, "memory", 0, {"bytes": 5}), (2, "memory", 1.001, {"bytes": -7})]


def test_colors_follow_the_kind_or_the_microbatch(tmp_path: Path) -> None:
    def colors(by: str, key: str) -> dict[object, set[str]]:
        result = defaultdict(set)
        for event in _events(two_ranks(), tmp_path / "a.json", color=by):
            if event.get("cat") == "kernel":
                result[event["args"][key]].add(event["cname"])
        return result

    for found in (colors("kind", "kind"), colors("microbatch", "microbatch")):
        assert all(len(names) == 1 for names in found.values())
        assert len({name for names in found.values() for name in names}) > 2


def test_times_on_the_microsecond_grid_are_integers(tmp_path: Path) -> None:
    timeline = two_ranks()
    grid = {name: getattr(timeline, name) * 1000 for name in ("enter_ns", "start_ns", "end_ns")}
    for made, kind in ((timeline, float), (replace(timeline, **grid), int)):
        events = _events(made, tmp_path / "a.json")
        assert {type(event["ts"]) for event in events if event["ph"] == "X"} == {kind}


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"pid": 0}, "pid 0 is not"),
        ({"tid": -1}, "tid -1 is not"),
        ({"tid": "main"}, "tid 'main' is not"),
        ({"ts": 0.0005}, "ts 0.0005 is not on the nanosecond grid"),
        ({"dur": -1}, "dur -1 is not"),
        ({"ph": "B"}, "phase 'B'"),
        ({"ts": 1, "dur": 10}, "'F' at 1 crosses the slice before it"),
        ({"ph": "s", "id": 1, "ts": 50, "cat": "p2p"}, "flow 1 of p2p touches no slice"),
        ({"ph": "f", "id": 1, "cat": "p2p"}, "flow 1 of p2p goes 'f'"),
        ({"ph": "f", "id": 1, "cat": "p2p"}, "ends at the slice that starts next"),
        ({"ph": "C", "args": {"bytes": "5"}}, "not a number"),
    ],
)
def test_lint_names_what_an_importer_would_drop(event: Event, fault: str) -> None:
    good = {"ph": "X", "name": "F", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": {}}
    assert lint([good]) == []
    assert any(fault in line for line in lint([good, good | event]))
