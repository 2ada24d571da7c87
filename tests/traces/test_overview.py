"""An overview keeps what is busy and idle, and a trace shows the part that is asked for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import one_step
from decoded_trace import Decoded
from msgspec.structs import replace

import pptrace
from pptrace.cli.open import PartRequest, open_part
from pptrace.errors import PptraceError
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import in_flight
from pptrace.timeline.critical_path import why
from pptrace.timeline.metrics import measure
from pptrace.timeline.timeline import window
from pptrace.traces import perfetto
from pptrace.traces.perfetto.wire import BEGIN, COUNTER
from pptrace.traces.perfetto.writer import busy_percent, write_overview

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

JOB = {"configuration": {"parallel": {"pp": 3, "tp": 2, "dp": 4, "order": "tp-cp-ep-dp-pp"}}}


@pytest.fixture
def timeline() -> Timeline:
    step = one_step()
    return replace(step, why=why(step), counters=tuple(in_flight(step)), provenance=JOB)


@pytest.fixture
def trace(timeline: Timeline, tmp_path: Path) -> Path:
    path = tmp_path / "job.pftrace"
    perfetto.write(timeline, path, {})
    return path


def opened(trace: Path, **wanted: object) -> tuple[Decoded, list[str]]:
    said: list[str] = []
    with open_part(trace, PartRequest(**wanted), said.append) as path:  # type: ignore[arg-type] - as a user names them
        return Decoded(path.read_bytes()), said


def threads(decoded: Decoded) -> set[str]:
    return {track.thread.thread_name for track in decoded.tracks.values() if track.HasField("thread")}


def test_busy_and_idle_are_the_metrics(timeline: Timeline) -> None:
    begin, end = window(timeline)
    idle_ns = measure(timeline, Workload.uniform(3, f_ns=0, b_ns=0)).idle_ns
    for rank in range(3):
        busy, idle = busy_percent(timeline, rank, np.array([begin, end]))
        assert {cause: share.tolist() for cause, share in idle.items()} == {
            cause: [100 * int(idle_ns[rank, cause]) // (end - begin)] for cause in idle
        }
        assert busy.tolist() == [100 * (end - begin - int(idle_ns[rank].sum())) // (end - begin)]


def test_parts_of_a_step_are_as_busy_as_their_computations_are_long(timeline: Timeline) -> None:
    edges = np.arange(window(timeline)[0], window(timeline)[1], 1_000_000)
    own = [item for item in (timeline[row] for row in range(len(timeline))) if item.rank == 1 and not item.stream]
    busy, _ = busy_percent(timeline, 1, edges)

    expected = [
        100 * sum(max(min(item.end_ns, end) - max(item.start_ns, start), 0) for item in own) // (end - start)
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    assert busy.tolist() == expected


def test_an_overview_has_each_rank_s_words_phases_counters_and_gpus(timeline: Timeline, tmp_path: Path) -> None:
    write_overview(timeline, tmp_path / "o.pftrace", "overview", {1: "stage 1"})
    shown = Decoded((tmp_path / "o.pftrace").read_bytes())

    assert threads(shown) == {"critical path", "rank 0", "rank 1", "rank 2"}
    names = Counter(packet.track_event.name for packet in shown.events(BEGIN))
    assert set(names) >= {"busy", "idle", "warm-up", "steady", "cool-down"}
    highest = {}
    for packet in shown.events(COUNTER):
        path = shown.path(packet.track_event.track_uuid)
        highest[path] = max(highest.get(path, 0), packet.track_event.counter_value)
    assert highest["rank 0/in flight"] == max(timeline.counters[0].value)
    assert highest["rank 0/busy"] == 100
    assert [track.description for track in shown.tracks.values() if track.description] == ["stage 1"]


def test_a_gpu_is_shown_as_its_rank_and_that_one_s_peers(trace: Path) -> None:
    shown, (said,) = opened(trace, gpu=1)

    assert said == "GPU 1 is pp 0, dp 0, cp 0, tp 1: rank 0, which represents 8 GPUs that do the same"
    assert threads(shown) - {"critical path"} == {"rank 0", "rank 1"}


def test_only_keeps_ranks_and_microbatches_and_the_overview_names_gpus(trace: Path) -> None:
    shown, _ = opened(trace, only=("ranks=2", "microbatches=0"))
    assert threads(shown) - {"critical path"} == {"rank 2"}

    shown, _ = opened(trace, overview=True)
    about = [track.description for track in shown.tracks.values() if track.description]
    assert about[2] == "stage 2; 8 GPUs: 16, 17, 18, 19, 20, 21, 22, 23"


def test_a_trace_opens_as_it_is_unless_it_is_large(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_part(trace, PartRequest(), print) as path:
        assert path == trace
    monkeypatch.setattr("pptrace.cli.open._LARGE_BYTES", 100)
    _, (said,) = opened(trace)
    assert said.endswith("here is its overview; --only ranks=0,1 shows ranks, --whole all of it")
    with open_part(trace, PartRequest(overview=False), print) as path:
        assert path == trace


def test_a_gpu_that_is_not_there_is_one_line(trace: Path, timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(PptraceError, match="--gpu 24: the job has the GPUs 0 to 23"):
        opened(trace, gpu=24)
    perfetto.write(replace(timeline, provenance={}), tmp_path / "plain.pftrace", {})
    with pytest.raises(PptraceError, match=r"plain.pftrace: does not contain the GPUs of its ranks"):
        opened(tmp_path / "plain.pftrace", gpu=0)


@pytest.fixture
def unlike(tmp_path: Path) -> Path:
    step = {
        "parallel": {"pp": 2, "dp": 3}, "schedule": "1f1b", "network": {"name": "hockney", "bandwidth": "1 GB/s"},
        "batch": {"microbatches": 3, "sequence": 9, "lengths": [4, 4, 4, 9, 9, 9, 4, 4, 4]},
        "costs": {"name": "table", "forward": "1 us", "backward": "2 us", "reduction": "1 us"},
    }  # fmt: skip
    path = tmp_path / "job.pftrace"
    pptrace.simulate(step).save(path)
    return path


def test_a_gpu_is_shown_in_its_own_replica_where_replicas_differ(unlike: Path) -> None:
    slow, _ = opened(unlike, gpu=1)
    fast, said = opened(unlike, gpu=2)

    assert said[0].startswith("Of 3 replicas this is number 2, which computes")
    assert said[1] == "GPU 2 is pp 0, dp 2, cp 0, tp 0: rank 0, which represents 2 GPUs that do the same"
    begun = [
        {one.fields(event)["name"]: event.timestamp for event in one.events(BEGIN) if event.track_event.name_iid}
        for one in (slow, fast)
    ]
    # A forward takes a ninth of a microsecond for each token.
    assert begun[0]["F 1"] == 1000
    assert begun[1]["F 1"] == 444


def test_an_overview_has_a_track_for_each_replica_that_differs(unlike: Path) -> None:
    shown, _ = opened(unlike, overview=True)

    assert threads(shown) == {"critical path", "rank 0", "rank 1", "replica 1", "replicas 0, 2"}


@pytest.mark.needs_plugins
def test_a_replica_whose_devices_are_slow_is_shown_as_slow(tmp_path: Path) -> None:
    pptrace.simulate({
        "parallel": {"pp": 2, "dp": 6}, "schedule": "1f1b", "batch": {"microbatches": 3},
        "data_parallel": {"speeds": {"2": 0.5, "3-4": 0.8}},
        "costs": {"name": "table", "forward": "1 us", "backward": "2 us"},
    }).save(path := tmp_path / "job.pftrace")  # fmt: skip

    assert threads(opened(path, overview=True)[0]) == {
        "critical path", "rank 0", "rank 1", "replica 2", "replicas 3, 4", "replicas 0, 1, 5",
    }  # fmt: skip
    for replica, forward_ns in ((2, 2000), (3, 1250), (5, 1000)):
        for wanted in ({"replica": replica}, {"gpu": replica}):
            shown, said = opened(path, **wanted)
            begun = {shown.fields(event)["name"]: event.timestamp for event in shown.events(BEGIN)}
            assert begun["F 1"] == forward_ns
            assert said[0].startswith(f"Of 6 replicas this is number {replica}, which computes")
    assert said[1].endswith("rank 0, which represents 3 GPUs that do the same")


def test_a_replica_that_cannot_be_shown_is_one_line(unlike: Path, tmp_path: Path) -> None:
    with pytest.raises(PptraceError, match="--replica 3: the job has replicas 0 to 2"):
        opened(unlike, replica=3)
    with pytest.raises(PptraceError, match="--replica 0: GPU 1 is in replica 1; name one of them"):
        opened(unlike, replica=0, gpu=1)
    perfetto.write(one_step(), tmp_path / "alike.pftrace", {})
    with pytest.raises(PptraceError, match="--replica 1: its replicas do not differ"):
        opened(tmp_path / "alike.pftrace", replica=1)
