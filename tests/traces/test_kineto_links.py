"""In Chrome JSON, messages show on the links that they went over, beside the ranks and not among their kernels."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kineto_lint import lint
from msgspec.structs import replace

from pptrace.errors import TraceError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Routes, Slice, Timeline
from pptrace.traces.kineto import read, write

if TYPE_CHECKING:
    from pathlib import Path

RANKS, FIRST = 2, 100_000
LINKS = RANKS + 1
"""The process of the links."""
OUT, IN = 0, 1


def step(transfer_ns: int = 20) -> Timeline:
    """Rank 0 sends two microbatches to rank 1 over two links; their transfers overlap by half."""
    slices = []
    for microbatch, at in enumerate((10, 20)):
        times = (at, at + transfer_ns)
        slices += [
            _slice(Kind.F, 0, microbatch, (at - 10, at)),
            _slice(
                Kind.SEND_F,
                0,
                microbatch,
                times,
                stream=(Stream.SEND, Stream.COMM)[microbatch],
                peer=1,
                size_bytes=64,
            ),
            _slice(Kind.F, 1, microbatch, (times[1], times[1] + 10)),
        ]
    timeline = Timeline.from_slices(slices, Placement.looped(RANKS, 2))
    sends = timeline.kind == Kind.SEND_F
    routes = Routes(
        name=("gpu0>switch", "switch>gpu1", "unused"),
        rate_kbps=np.array([450_000_000, 450_000_000, 1]),
        ptr=np.concatenate([[0], np.cumsum(2 * sends)]),
        link=np.tile([OUT, IN], 2),
    )
    return replace(timeline, routes=routes)


def _slice(kind: Kind, rank: int, microbatch: int, when: tuple[int, int], **more: Any) -> Slice:
    action = Action(kind=kind, stage=rank, microbatch=microbatch)
    given = {"stream": Stream.COMPUTE} | more
    return Slice(rank=rank, action=action, start_ns=when[0], end_ns=when[1], **given)


def busy(name: str) -> Counter:
    return Counter(rank=-1, name=name, unit="bytes/s", at_ns=np.array([10, 40]), value=np.array([7, 0]))


def events_of(timeline: Timeline, path: Path, **options: Any) -> list[dict[str, Any]]:
    write(timeline, path, options)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def on_links(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == "link"]


def test_a_message_shows_on_each_link_of_its_route_with_its_facts(tmp_path: Path) -> None:
    found = on_links(events_of(step(), tmp_path / "a.json"))

    named = {(event["name"], event["args"]["hop"], event["args"]["link"]) for event in found}
    assert named == {(f"SEND_F {microbatch} 0>1", link, link) for microbatch in range(2) for link in (OUT, IN)}
    first = next(event for event in found if event["ts"] == 0.01)
    assert (first["pid"], first["dur"]) == (LINKS, 0.02)
    assert first["args"] == {
        "link": OUT, "transfer": FIRST + 3, "hop": 0, "kind": "SEND_F", "rank": 0, "peer": 1, "stage": 0,
        "microbatch": 0, "span": 1, "bytes": 64,
    }  # fmt: skip


def test_the_transfer_is_the_correlation_of_the_message_s_kernel(tmp_path: Path) -> None:
    events = events_of(step(), tmp_path / "a.json")

    kernels = {e["args"]["correlation"]: e["args"] for e in events if e.get("cat") == "kernel"}
    for event in on_links(events):
        kernel = kernels[event["args"]["transfer"]]
        assert (kernel["kind"], kernel["microbatch"]) == ("SEND_F", event["args"]["microbatch"])


def test_each_lane_of_a_link_is_a_thread_of_one_process_behind_the_ranks(tmp_path: Path) -> None:
    events = events_of(step(), tmp_path / "a.json")

    meta = {(e["name"], e["tid"]): e["args"] for e in events if e["ph"] == "M" and e["pid"] == LINKS}
    threads = [args["name"] for (key, _), args in sorted(meta.items()) if key == "thread_name"]
    assert threads == [
        "gpu0>switch (450 GB/s)", "gpu0>switch (450 GB/s) #2",
        "switch>gpu1 (450 GB/s)", "switch>gpu1 (450 GB/s) #2",
    ]  # fmt: skip
    assert meta["process_name", 1] == {"name": "links"}
    assert meta["process_sort_index", 1] == {"sort_index": RANKS}
    assert min(event["tid"] for event in on_links(events)) > LINKS  # one of its number would be the main thread


def test_no_event_on_a_link_looks_like_work_of_a_rank(tmp_path: Path) -> None:
    events = events_of(step(), tmp_path / "a.json")

    assert {event["cat"] for event in events if event["pid"] == LINKS and "cat" in event} == {"link", "p2p"}
    assert not {"stream", "correlation", "device"} & {key for event in on_links(events) for key in event["args"]}


@pytest.mark.parametrize("transfer_ns", [0, 1, 2, 3, 20])
def test_flows_go_along_the_route_as_far_as_nanoseconds_leave_room(tmp_path: Path, transfer_ns: int) -> None:
    events = events_of(step(transfer_ns), tmp_path / "a.json")

    chains = defaultdict(list)
    flows = [event for event in events if event.get("cat") == "p2p"]
    for event in sorted(flows, key=lambda e: e["ts"]):
        chains[event["id"]].append(event["pid"])
    assert lint(events) == []
    assert sorted(chains.values()) == [[1, 1, LINKS, LINKS, 2]] * 2


def test_counters_of_the_cluster_stand_with_the_links(tmp_path: Path) -> None:
    events = events_of(replace(step(), counters=(busy("gpu0>switch"),)), tmp_path / "a.json")

    points = [(e["pid"], e["name"], e["args"]) for e in events if e["ph"] == "C"]
    assert points == [(LINKS, "gpu0>switch", {"bytes/s": 7}), (LINKS, "gpu0>switch", {"bytes/s": 0})]


def test_counters_of_the_cluster_need_no_routes(tmp_path: Path) -> None:
    timeline = replace(step(), routes=None, counters=(busy("gpu0>switch"),))
    events = events_of(timeline, tmp_path / "a.json")

    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1", "links"}
    assert read([tmp_path / "a.json"]).difference(timeline) == ""


def test_a_file_of_a_rank_has_the_links_of_its_messages_and_the_first_the_cluster_s_counters(
    tmp_path: Path,
) -> None:
    timeline = replace(step(), counters=(busy("gpu0>switch"),))
    written = [events_of(timeline, tmp_path / f"{rank}.json", rank=rank) for rank in range(RANKS)]

    assert [len(on_links(events)) for events in written] == [4, 0]
    assert [sum(event["ph"] == "C" for event in events) for events in written] == [2, 0]
    assert read([tmp_path / "1.json", tmp_path / "0.json"]).difference(timeline) == ""


def test_without_routes_and_counters_of_the_cluster_a_trace_knows_nothing_of_links(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(replace(step(), routes=None), path, {})

    assert not [word for word in ("link", "routes", "hop") if word in path.read_text()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "".join(li for li in text.splitlines(keepends=True) if '"hop":1' not in li), "are missing"),
        (lambda text: text.replace('"hop":1', '"hop":2'), "lead nowhere"),
        (lambda text: text.replace('"args":{"link":1', '"args":{"link":9'), "lead nowhere"),
        (lambda text: text.replace('"transfer":', '"message":'), "not a trace that pptrace wrote"),
        (lambda text: text.replace('"routes": [', '"routes": 7, "was": ['), "not a trace that pptrace wrote"),
    ],
)
def test_a_file_whose_links_were_damaged_is_named_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "a.json"
    write(step(), path, {})
    path.write_text(change(path.read_text()))

    with pytest.raises(TraceError, match=f"a.json: .*{message}") as caught:
        read([path])
    assert "\n" not in str(caught.value)
