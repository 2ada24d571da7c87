"""DualPipe's phases, in a twin of DeepSeek's published profile, and in that one where it is named."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from small_gpu_trace import AUTOGRAD, SmallGpuTrace

from pptrace.cli.main import cli
from pptrace.steps.kinds import Kind, Stream
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.naming_rules import BUILT_IN
from pptrace_profilers.plugin import measure_kineto
from pptrace_profilers.pytorch_process import read_kineto

LAYERS = 4
PHASES = (
    "combine(B)", "attn(F)", "mlp(B)", "dispatch(F)", "dispatch(B)", "mlp(W)", "mlp(F)", "attn(B)", "attn(W)",
    "combine(F)",
)  # fmt: skip
PUBLISHED = os.environ.get("PPTRACE_DEEPSEEK_PROFILE")
EPOCH_US = 1_740_461_679_471_346


def twin(folder: Path, stall_us: int = 0) -> Path:
    """Write a profile of the same structure: whole microseconds, three streams, launches from two threads.

    The first ``dispatch(B)`` takes longer by a stall, and its layer's backward waits for it.
    """
    trace = SmallGpuTrace(rank=0, world=64, base_ns=None)
    host, compute, carry = EPOCH_US, EPOCH_US + 2_000, EPOCH_US + 2_000
    trace.annotate("ProfilerStep#1", host - 10, host + 100 * LAYERS * len(PHASES))
    trace.annotate("1F1B", host - 5, host + 100 * LAYERS * len(PHASES))
    for layer in range(LAYERS):
        stalls = stall_us if layer == 0 else 0
        for phase in PHASES:
            trace.annotate(phase, host, host + 90)
            thread = AUTOGRAD if phase == "attn(B)" else 100
            if phase.startswith(("dispatch", "combine")):
                trace.kernel("void cast<128>(float*)", host + 1, compute, compute + 3)
                trace.kernel("dpsk::ep::internode::cached_notify<8>", host + 2, carry, carry + 10, stream=27)
                trace.kernel("dpsk::ep::internode::combine<8>", host + 3, carry + 10, carry + 900, stream=27)
                stall = stalls if phase == "dispatch(B)" else 0
                if stall:
                    trace.kernel("dpsk::ep::intranode", host + 4, carry + 900, carry + 900 + stall, stream=27)
                compute, carry = compute + 3, carry + 900 + stall
            else:
                if phase == "attn(B)" and stalls:
                    compute = carry
                for number in range(20):
                    trace.kernel("gemm_fp8", host + 4 * number, compute, compute + 50, thread=thread)
                    compute += 50 if number else 55
                if phase == "mlp(W)":
                    trace.kernel("gemm_dptp128c", host + 85, compute - 100, compute - 2, stream=23)
            host += 100
    return trace.write(folder)


def test_every_phase_and_operation_of_the_twin_is_attributed(tmp_path: Path) -> None:
    path = twin(tmp_path)
    (recording,) = read_kineto(path, BUILT_IN)
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
        "F": 8, "I": 8, "W": 8, "SEND_F": 8, "SEND_B": 4, "RECV_B": 4,
    }  # fmt: skip
    assert set(timeline.lane_stream.tolist()) == {Stream.COMPUTE, Stream.EXPERT_PARALLEL}
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


def run(*arguments: str | Path) -> str:
    ran = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def check_commands(profile: Path, folder: Path) -> dict[str, Any]:
    """Run every command that takes a measured step; return what ``explain`` says."""
    (replayed,) = json.loads(run("replay", profile, "--json"))
    assert replayed["explained"] == pytest.approx(1, abs=0.02)
    assert "all times equal" in run("diff", profile, profile)
    run("calibrate", profile, "-o", folder / "costs.yaml")
    run("convert", profile, folder / "step.pftrace")
    run("convert", profile, folder / "step.json")
    run("convert", profile, folder / "order.csv")
    explained: dict[str, Any] = json.loads(run("explain", profile, "--json"))
    return explained


def test_every_command_takes_the_twin_and_waits_that_nothing_hid_are_reported(tmp_path: Path) -> None:
    profile = twin(tmp_path, stall_us=7_000)
    explained = check_commands(profile, tmp_path)

    # The first layer's dispatch(B) comes behind two other ways, beside four phases and three casts.
    waited = 3 * 900_000 + 7_000_000 - 4 * 1_005_000 - 3 * 3_000
    total, hidden = (explained[name]["expert-parallel"] for name in ("groups_ns", "hidden_ns"))
    assert total == 16 * 900_000 + 7_000_000
    assert explained["exposed_communication_ns"] == waited
    without = explained["what_if"]
    assert without["replayed_ns"] - without["free_communication_ns"] == waited
    # What runs before the first computation and behind the last is not hidden, either.
    assert 0 <= total - hidden - waited < 2 * 900_000
    assert "dispatch(B) " in CliRunner().invoke(cli, ["explain", str(profile)]).stderr


@pytest.mark.skipif(not PUBLISHED, reason="PPTRACE_DEEPSEEK_PROFILE names no file")
def test_every_phase_and_operation_of_the_published_profile_is_attributed(tmp_path: Path) -> None:
    path = Path(str(PUBLISHED))
    (recording,) = read_kineto(path, BUILT_IN)

    assert recording.operations is not None
    assert int((recording.operations.action >= 0).sum()) == recording.operations.action.size == 983
    measured = measure_kineto([path], ImportRequest())
    assert measured.unattributed == ()
    check_structure(measured.steps[0].timeline)
    explained = check_commands(path, tmp_path)
    total, hidden = (explained[name]["expert-parallel"] for name in ("groups_ns", "hidden_ns"))
    assert hidden / total == pytest.approx(0.978, abs=0.002)
