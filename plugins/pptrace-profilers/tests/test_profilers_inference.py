"""Recorded runs without their annotations: what is inferred is what they said, or nothing with the reason."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from foreign_traces import rewritten
from native_perfetto import Slice, write_native
from small_gpu_trace import AUTOGRAD, SmallGpuTrace

from pptrace.steps.kinds import Kind, Stream
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.plugin import measure_kineto, measure_pftrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.timeline.timeline import Timeline

FIXTURES = Path(__file__).parent / "fixtures"
MARK = re.compile(r"PP:|compute:|(Forward|Backward) \d")
ONE_STAGE = ["sleep-1f1b", "sleep-gpipe", "sleep-1f1b_csv", "sleep-zb_h1_csv", "five-steps"]
SEVERAL = ["sleep-interleaved1f1b", "sleep-looped_bfs", "sleep-interleaved_zb", "sleep-zbv", "sleep-dualpipev"]
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def unmarked(trace: dict[str, Any]) -> None:
    trace["traceEvents"] = [event for event in trace["traceEvents"] if not MARK.match(event.get("name", ""))]


def read(folder: Path) -> Measurement:
    return measure_kineto(sorted(folder.glob("rank*.json.gz")), ImportRequest())


def without_marks(name: str, tmp_path: Path) -> Measurement:
    folder = tmp_path / name
    shutil.copytree(FIXTURES / name, folder)
    for path in folder.glob("rank*.json.gz"):
        rewritten(path, unmarked)
    return read(folder)


def orders(timeline: Timeline) -> list[list[str]]:
    result = []
    for rank in range(timeline.ranks):
        lane = int(np.flatnonzero((timeline.lane_rank == rank) & (timeline.lane_stream == Stream.COMPUTE))[0])
        rows = range(int(timeline.lane_ptr[lane]), int(timeline.lane_ptr[lane + 1]))
        result.append([str(timeline[row].action) for row in rows])
    return result


@pytest.mark.parametrize("name", ONE_STAGE)
def test_runs_of_one_stage_per_rank_are_inferred_as_they_were_marked(name: str, tmp_path: Path) -> None:
    marked, inferred = read(FIXTURES / name), without_marks(name, tmp_path)

    assert any("inferred from autograd's operations, confidence 1.00" in note for note in inferred.notes)
    assert [step.label for step in inferred.steps] == [step.label for step in marked.steps]
    assert inferred.unattributed == ()
    for item, other in zip(marked.steps, inferred.steps, strict=True):
        assert orders(other.timeline) == orders(item.timeline)
        assert other.timeline.end_ns.max() == pytest.approx(item.timeline.end_ns.max(), rel=0.005)
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            lengths = [(t.end_ns - t.start_ns)[t.kind == kind] for t in (item.timeline, other.timeline)]
            assert lengths[0].size == lengths[1].size
            if lengths[0].size:
                assert np.median(lengths[1]) == pytest.approx(np.median(lengths[0]), rel=0.03)
        for kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B):
            assert (item.timeline.kind == kind).sum() == (other.timeline.kind == kind).sum()


@pytest.mark.parametrize("name", SEVERAL)
def test_runs_of_several_stages_per_rank_are_inferred_as_they_were_marked(name: str, tmp_path: Path) -> None:
    marked, inferred = read(FIXTURES / name), without_marks(name, tmp_path)

    (note,) = [note for note in inferred.notes if "inferred" in note]
    assert "autograd's operations and the routes of messages, 8 stages, confidence 1.00;" in note
    assert inferred.unattributed == ()
    for item, other in zip(marked.steps, inferred.steps, strict=True):
        assert orders(other.timeline) == orders(item.timeline)
        assert other.timeline.end_ns.max() == pytest.approx(item.timeline.end_ns.max(), rel=0.005)
        for kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B):
            stages = [np.sort(t.stage[t.kind == kind]).tolist() for t in (item.timeline, other.timeline)]
            assert stages[0] == stages[1]


def test_forwards_that_are_computed_again_are_part_of_their_backward(tmp_path: Path) -> None:
    """Checkpointing runs a forward again inside of the first function that goes back through it."""

    def again(trace: dict[str, Any]) -> None:
        unmarked(trace)
        back = [event for event in trace["traceEvents"] if event.get("name", "").endswith(": SleepXBackward")]
        for number, event in enumerate(back):
            arguments = {"Sequence number": 100_000 + number, "Fwd thread id": 0}
            inner = {"name": "SleepX", "ts": event["ts"] + 1, "dur": event["dur"] / 2, "args": arguments}
            trace["traceEvents"].append({**event, **inner})

    name = "sleep-interleaved1f1b"
    folder = tmp_path / name
    shutil.copytree(FIXTURES / name, folder)
    for rank in range(4):
        rewritten(folder / f"rank{rank}.json.gz", again)

    (step,), (marked,) = read(folder).steps, read(FIXTURES / name).steps

    assert orders(step.timeline) == orders(marked.timeline)


@pytest.mark.parametrize("name", ["sleep-1f1b", "sleep-zb_h1_csv", "sleep-interleaved1f1b"])
def test_perfetto_traces_of_pytorch_are_inferred_as_its_chrome_json(name: str, tmp_path: Path) -> None:
    expected = without_marks(name, tmp_path)
    paths = []
    for path in sorted((tmp_path / name).glob("rank*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        slices = [
            Slice(
                event["cat"], event["name"], event["tid"] if isinstance(event["tid"], int) else 0,
                trace["baseTimeNanoseconds"] + round(1000 * event["ts"]), round(1000 * event["dur"]),
                event.get("args", {}),
            )
            for event in trace["traceEvents"] if event["ph"] == "X"
        ]  # fmt: skip
        paths.append(write_native(tmp_path / path.name.replace("json.gz", "pftrace"), slices))

    found = measure_pftrace(paths, ImportRequest())

    assert [note for note in found.notes if "inferred from autograd's operations" in note]
    assert [orders(step.timeline) for step in found.steps] == [orders(step.timeline) for step in expected.steps]


def early(trace: dict[str, Any]) -> None:
    """Let every wait for a message end where it began, so that it no longer says who waited."""
    for event in trace["traceEvents"]:
        if event.get("name") == "gloo:recv":
            event["dur"] = 0.001


def unsent(trace: dict[str, Any]) -> None:
    """Take away one message in eight that was sent."""
    sent = [event for event in trace["traceEvents"] if event.get("name") == "c10d::send"]
    for event in sent[::8]:
        trace["traceEvents"].remove(event)


def unstarted(trace: dict[str, Any]) -> None:
    """Take away the first quarter."""
    starts = sorted(event["ts"] for event in trace["traceEvents"] if event.get("name") == "SleepX")
    trace["traceEvents"] = [
        event
        for event in trace["traceEvents"]
        if event.get("ts", 0) >= starts[len(starts) // 4] or "Step" in event["name"]
    ]


@pytest.mark.parametrize("spoilt", [early, unsent, unstarted])
@pytest.mark.parametrize("name", ["sleep-interleaved1f1b", "sleep-zbv"])
def test_spoilt_runs_of_several_stages_are_refused_with_the_reason(
    name: str, spoilt: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    def spoil(trace: dict[str, Any]) -> None:
        unmarked(trace)
        spoilt(trace)

    folder = tmp_path / name
    shutil.copytree(FIXTURES / name, folder)
    for rank in range(4):
        rewritten(folder / f"rank{rank}.json.gz", spoil if rank == 1 or spoilt is early else unmarked)

    measured = read(folder)

    assert measured.steps == ()
    (why,) = [note for note in measured.notes if "not inferred" in note]
    assert "is below 0.9, as only" in why
    assert "pptrace annotate" in why


def test_one_rank_alone_gets_a_message_with_what_it_lacks(tmp_path: Path) -> None:
    name = "sleep-zbv"
    (tmp_path / name).mkdir()
    shutil.copy(FIXTURES / name / "rank1.json.gz", tmp_path / name)
    rewritten(tmp_path / name / "rank1.json.gz", unmarked)

    result = read(tmp_path / name)

    assert result.steps == ()
    assert any(
        "not inferred: the files of the ranks that receive or send the other ends" in note for note in result.notes
    )


def test_a_run_whose_ranks_disagree_is_not_guessed_at(tmp_path: Path) -> None:
    def short(trace: dict[str, Any]) -> None:
        unmarked(trace)
        ends = max(event["ts"] for event in trace["traceEvents"] if event.get("name") == "SleepX")
        trace["traceEvents"] = [
            event for event in trace["traceEvents"] if event.get("ts", 0) < ends - 300_000 or event["ph"] == "M"
        ]

    folder = tmp_path / "run"
    shutil.copytree(FIXTURES / "sleep-1f1b", folder)
    for rank in range(4):
        rewritten(folder / f"rank{rank}.json.gz", short if rank == 2 else unmarked)

    measured = read(folder)

    assert measured.steps == ()
    assert any("is below 0.9" in note for note in measured.notes)


def gpu_rank(rank: int, ranks: int, microbatches: int) -> SmallGpuTrace:
    """Return 1F1B on a GPU that recorded no operation of the host: kernels, and the threads that launched them."""
    trace = SmallGpuTrace(rank=rank, world=ranks, groups={"mesh_pp": list(range(ranks))})
    at = 10.0 * rank
    busy = at

    def message(what: str, peer: int) -> None:
        nonlocal at
        given = {"Collective_name": what, "In_msg_nelems": 8, "Out_msg_nelems": 8, "dtype": "Half"}
        side = {"send": "Dst_Rank", "recv": "Src_Rank"}[what]
        if 0 <= peer < ranks:
            trace.kernel(SEND_RECV, at, busy, busy + 5, stream=20 + (what == "recv"), **given, **{side: peer})
            at += 1

    def compute(name: str, thread: int) -> None:
        nonlocal at, busy
        for number in range(6):
            trace.kernel(f"{name}_{number}", at, busy, busy + 4, thread=thread)
            at, busy = at + 1, busy + 4

    warm = min(ranks - rank, microbatches)
    forwards = backwards = 0
    while backwards < microbatches:
        if forwards < microbatches and forwards - backwards < warm:
            message("recv", rank - 1)
            compute("gemm", 100)
            message("send", rank + 1)
            forwards += 1
        else:
            message("recv", rank + 1)
            compute("gemm_backward", AUTOGRAD)
            message("send", rank - 1)
            backwards += 1
        at, busy = at + 10, busy + 10
    trace.kernel("adam", at, busy, busy + 2)
    return trace


def test_kernels_alone_are_recognized_by_the_threads_that_launched_them(tmp_path: Path) -> None:
    paths = [gpu_rank(rank, 3, 6).write(tmp_path) for rank in range(3)]

    measured = measure_kineto(paths, ImportRequest())

    assert any("inferred from the threads of launches, confidence 1.00" in note for note in measured.notes)
    (step,) = measured.steps
    assert orders(step.timeline)[0] == [
        "0F0", "0F1", "0F2", *(f"0{item}" for n in range(3) for item in (f"B{n}", f"F{n + 3}")),
        "0B3", "0B4", "0B5",
    ]  # fmt: skip
    assert orders(step.timeline)[2] == [f"2{kind}{n}" for n in range(6) for kind in "FB"]
    assert [(operation.what, operation.rank) for operation in measured.unattributed] == [
        ("adam", 0),
        ("adam", 1),
        ("adam", 2),
    ]


def test_ranks_that_send_each_other_nothing_are_no_pipeline(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    for turn in range(4):
        trace.kernel("gemm", 100 * turn, 100 * turn + 5, 100 * turn + 20)
        trace.kernel("gemm_backward", 100 * turn + 50, 100 * turn + 55, 100 * turn + 90, thread=AUTOGRAD)

    result = measure_kineto([trace.write(tmp_path)], ImportRequest())

    assert result.steps == ()
    assert any("these ranks exchange no messages" in note for note in result.notes)
    assert not any("ProfilerActivity.CPU" in note for note in result.notes)
