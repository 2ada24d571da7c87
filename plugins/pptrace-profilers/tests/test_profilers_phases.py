"""DualPipe's phases, in a twin of DeepSeek's published profile, and in that one where it is named."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_gpu_trace import AUTOGRAD, SmallGpuTrace

from pptrace.model.kinds import Kind, Stream
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.formats.kineto import read_kineto
from pptrace_profilers.importers import measure_kineto
from pptrace_profilers.rules.actions import BUILT_IN

LAYERS = 4
PHASES = (
    "combine(B)", "attn(F)", "mlp(B)", "dispatch(F)", "dispatch(B)", "mlp(W)", "mlp(F)", "attn(B)", "attn(W)",
    "combine(F)",
)  # fmt: skip
PUBLISHED = os.environ.get("PPTRACE_DEEPSEEK_PROFILE")
EPOCH_US = 1_740_461_679_471_346


def twin(folder: Path) -> Path:
    """Write a profile of the same structure: whole microseconds, three streams, launches from two threads."""
    trace = SmallGpuTrace(rank=0, world=64, base_ns=None)
    host, compute, carry = EPOCH_US, EPOCH_US + 2_000, EPOCH_US + 2_000
    trace.annotate("ProfilerStep#1", host - 10, host + 100 * LAYERS * len(PHASES))
    trace.annotate("1F1B", host - 5, host + 100 * LAYERS * len(PHASES))
    for _ in range(LAYERS):
        for phase in PHASES:
            trace.annotate(phase, host, host + 90)
            thread = AUTOGRAD if phase == "attn(B)" else 100
            if phase.startswith(("dispatch", "combine")):
                trace.kernel("void cast<128>(float*)", host + 1, compute, compute + 3)
                trace.kernel("dpsk::ep::internode::cached_notify<8>", host + 2, carry, carry + 10, stream=27)
                trace.kernel("dpsk::ep::internode::combine<8>", host + 3, carry + 10, carry + 900, stream=27)
                compute, carry = compute + 3, carry + 900
            else:
                for number in range(20):
                    trace.kernel("gemm_fp8", host + 4 * number, compute, compute + 50, thread=thread)
                    compute += 50 if number else 55
                if phase == "mlp(W)":
                    trace.kernel("gemm_dptp128c", host + 85, compute - 100, compute - 2, stream=23)
            host += 100
    return trace.write(folder)


def test_every_phase_and_operation_of_the_twin_is_attributed(tmp_path: Path) -> None:
    path = twin(tmp_path)
    recording = read_kineto(path, BUILT_IN)
    measured = measure_kineto([path], ImportRequest())

    assert recording.operations is not None
    assert (recording.operations.action >= 0).all()
    assert measured.unattributed == ()
    (step,) = measured.steps
    check_structure(step.timeline)
    mlp_weight = (step.timeline.kind == Kind.W) & (step.timeline.stage % 2 == 1)
    assert (step.timeline.end_ns - step.timeline.start_ns)[mlp_weight].tolist() == [1_005_000] * LAYERS
    assert step.gap_ns[mlp_weight].tolist() == [5_000] * LAYERS


def check_structure(timeline: object) -> None:
    from pptrace.timeline.timeline import Timeline

    assert isinstance(timeline, Timeline)
    assert len(timeline) == 40
    assert Counter(Kind(kind).name for kind in timeline.kind.tolist()) == {
        "F": 8, "I": 8, "W": 8, "SEND_F": 8, "SEND_B": 8,
    }  # fmt: skip
    assert set(timeline.lane_stream.tolist()) == {Stream.COMPUTE, Stream.COMM}
    assert (
        len({(kind, stage) for kind, stage in zip(timeline.kind.tolist(), timeline.stage.tolist(), strict=True)})
        == 40
    )
    assert set(timeline.pair.tolist()) == {0}
    forward = timeline.stage[timeline.kind == Kind.F]
    back = timeline.stage[timeline.kind == Kind.I]
    assert forward.tolist() == list(range(8))
    assert back.tolist() == list(range(7, -1, -1))
    assert np.diff(timeline.start_ns[timeline.kind == Kind.F]).min() > 0


@pytest.mark.skipif(not PUBLISHED, reason="PPTRACE_DEEPSEEK_PROFILE names no file")
def test_every_phase_and_operation_of_the_published_profile_is_attributed() -> None:
    path = Path(str(PUBLISHED))
    recording = read_kineto(path, BUILT_IN)

    assert recording.operations is not None
    assert int((recording.operations.action >= 0).sum()) == recording.operations.action.size == 983
    measured = measure_kineto([path], ImportRequest())
    assert measured.unattributed == ()
    check_structure(measured.steps[0].timeline)
