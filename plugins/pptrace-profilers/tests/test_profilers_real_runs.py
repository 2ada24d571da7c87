"""Runs of PyTorch, marked by what ``pptrace annotate`` prints: a recorded one of five steps, others live."""

from __future__ import annotations

import gzip
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from forked_python import ForkedPython

from pptrace.steps.kinds import Kind, Stream
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.annotation import module_for
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.timeline.timeline import Timeline

HERE = Path(__file__).parent
TORCH = os.environ.get("PPTRACE_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else None)
ORDERS = {
    "1f1b": (["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"], ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]),
    "gpipe": ([*(f"F{n}" for n in range(4)), *(f"B{n}" for n in range(4))],) * 2,
}


def read(folder: Path) -> Measurement:
    return measure_kineto(sorted(folder.glob("rank*.json.gz")), ImportRequest())


def order(timeline: Timeline, rank: int) -> list[str]:
    lane = int(np.flatnonzero((timeline.lane_rank == rank) & (timeline.lane_stream == Stream.COMPUTE))[0])
    rows = range(int(timeline.lane_ptr[lane]), int(timeline.lane_ptr[lane + 1]))
    return [str(timeline[row].action) for row in rows]


def test_five_recorded_steps_are_found_each_whole() -> None:
    measured = read(HERE / "fixtures" / "five-steps")

    assert [step.label for step in measured.steps] == [f"ProfilerStep#{number}" for number in range(1, 6)]
    assert measured.unattributed == ()
    for step in measured.steps:
        timeline = step.timeline
        assert [int((timeline.kind == kind).sum()) for kind in (Kind.F, Kind.B)] == [32, 32]
        assert [int((timeline.kind == kind).sum()) for kind in (Kind.SEND_F, Kind.RECV_B)] == [24, 24]
        assert order(timeline, 3) == [f"3{kind}{number}" for number in range(8) for kind in "FB"]
        assert order(timeline, 0)[:5] == ["0F0", "0F1", "0F2", "0F3", "0B0"]
        sizes = timeline.size_bytes[np.isin(timeline.kind, [Kind.SEND_F, Kind.SEND_B])]
        assert set(sizes.tolist()) == {8192}


def test_figures_of_five_steps_spread_a_little() -> None:
    steps = read(HERE / "fixtures" / "five-steps").steps
    spans = np.array([int(step.timeline.end_ns.max()) for step in steps]) / 1e6
    medians = np.array([
        [np.median((item.end_ns - item.start_ns)[item.kind == kind]) / 1e6 for kind in (Kind.F, Kind.B)]
        for item in (step.timeline for step in steps)
    ])  # fmt: skip

    # 11 forwards of 20 ms and 11 backwards of 40 ms end to end, and what the machine adds.
    assert spans.min() > 660
    assert 0 < spans.std() < 0.05 * spans.mean()
    assert medians.mean(axis=0) == pytest.approx([20.5, 41], rel=0.05)
    assert (medians.std(axis=0) < 0.05 * medians.mean(axis=0)).all()


def test_a_host_ahead_of_its_gpu_does_not_lengthen_a_step() -> None:
    """A rank of two stages on an H100, recorded by ``capture``: the host is ahead by 115 ms."""
    steps = read(HERE / "fixtures" / "h100-interleaved1f1b").steps

    assert len(steps) == 2
    for step in steps:
        timeline = step.timeline
        assert timeline.end_ns.max() / 1e6 == pytest.approx(287.6, abs=1.6)
        assert order(timeline, 0)[:5] == ["0F0", "1F0", "1B0", "0F1", "0B0"]
        assert timeline.kind[timeline.start_ns == 0].tolist().count(Kind.UNSHARD) == 2
    assert steps[1].begins_ns - steps[0].begins_ns == pytest.approx(300.8e6, rel=0.01)


@pytest.mark.parametrize("run", ["five-steps", "h100-interleaved1f1b"])
def test_a_recorded_run_names_no_machine(run: str) -> None:
    for path in (HERE / "fixtures" / run).glob("rank*.json.gz"):
        text = gzip.decompress(path.read_bytes())
        assert not any(word in text for word in (b"host_name", b"/home", b"/root", b"username"))


@pytest.fixture(scope="module")
def torch_python() -> Iterator[ForkedPython]:
    with ForkedPython("torch.distributed", "torch.multiprocessing", "torch.profiler", python=str(TORCH)) as python:
        yield python


@pytest.mark.torch
@pytest.mark.skipif(TORCH is None, reason="no torch; PPTRACE_TORCH_PYTHON names a Python that has it")
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_run_marked_by_the_printed_module_reads_as_its_schedule(
    schedule: str, tmp_path: Path, torch_python: ForkedPython
) -> None:
    marks = tmp_path / "pptrace_annotate.py"
    marks.write_text(module_for("pytorch"), encoding="utf-8")
    port = str(29_600 + os.getpid() % 400 + 400 * (schedule == "gpipe"))
    arguments = [
        str(tmp_path / "run"), "--marks", str(marks),
        "--schedule", schedule, "--ranks", "2", "--microbatches", "4", "--steps", "2",
        "--sleep-ms", "5", "--port", port,
    ]  # fmt: skip

    ran = torch_python.run(tmp_path, *arguments, program=HERE / "record_steps.py")

    assert ran.returncode == 0, ran.stderr

    measured = read(tmp_path / "run")

    assert len(measured.steps) == 2
    assert measured.unattributed == ()
    for step in measured.steps:
        for rank in range(2):
            assert order(step.timeline, rank) == [f"{rank}{item}" for item in ORDERS[schedule][rank]]
        for kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B):
            assert int((step.timeline.kind == kind).sum()) == 4
