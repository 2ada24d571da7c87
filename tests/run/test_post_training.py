"""Steps of reinforcement learning: generation, forward-only passes, and training after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import pptrace
from pptrace.errors import ConfigError
from pptrace.measured.diff_document import Diff
from pptrace.measured.replay import replay
from pptrace.steps.kinds import Kind
from pptrace.timeline.critical_path import why
from pptrace.timeline.idle import time_spent
from pptrace.timeline.timeline import window
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_plugins


def step(
    rl: dict[str, Any] | None, *, dp: int = 1, lengths: list[int] | None = None, **sections: Any
) -> pptrace.Run:
    costs = {"name": "table", "forward": "10 us", "backward": "20 us", "activation": "1 MB"}
    return pptrace.simulate({
        "parallel": {"pp": 4, "dp": dp}, "schedule": "1f1b", "rl": rl,
        "batch": {"microbatches": 6, "sequence": 10, "lengths": lengths},
        "costs": {**costs, "boundary": "1 kB", "reduction": "3 us"}, **sections,
    })  # fmt: skip


def test_a_step_is_generation_then_pipelines_of_forwards_then_training() -> None:
    training = step(None)
    run = step({"generation": "1 ms", "forward_passes": 2})

    # p + m - 1 forwards of 10 us, twice.
    assert run.metrics.step_ns == training.metrics.step_ns + 1_000_000 + 2 * (4 + 6 - 1) * 10_000
    kinds, counts = np.unique(run.timeline.kind, return_counts=True)
    assert dict(zip(kinds.tolist(), counts.tolist(), strict=True))[Kind.FORWARD_ONLY] == 2 * 4 * 6
    assert run.metrics.memory.peak_bytes.tolist() == training.metrics.memory.peak_bytes.tolist()
    assert run.metrics.memory.peak_activations.tolist() == training.metrics.memory.peak_activations.tolist()
    busy, extra = run.metrics.busy_ns, 1_000_000 + 2 * 6 * 10_000
    assert busy.tolist() == (training.metrics.busy_ns + extra).tolist()
    assert (busy + run.metrics.idle_ns.sum(axis=1) == run.metrics.step_ns).all()
    path = why(run.timeline).path
    assert int((path.end_ns - path.start_ns).sum()) == run.metrics.step_ns


@pytest.mark.parametrize(
    ("schedule", "vp"), [("gpipe", 1), ("interleaved-1f1b", 2), ("zb-v", 2), ("chimera", 1), ("dualpipe-v", 2)]
)
def test_passes_are_the_forwards_of_any_schedule(schedule: str, vp: int) -> None:
    run = step(
        {"forward_passes": 1}, schedule=schedule, batch={"microbatches": 8, "sequence": 10},
        parallel={"pp": 4, "vp": vp},
    )  # fmt: skip
    timeline = run.timeline
    rows = timeline.kind == Kind.FORWARD_ONLY

    stages = run.prepared.schedule.stages
    cells = {(stage, microbatch) for stage in range(stages) for microbatch in range(8, 16)}
    assert {*zip(timeline.stage[rows].tolist(), timeline.microbatch[rows].tolist(), strict=True)} == cells
    assert timeline.end_ns[rows].max() <= timeline.start_ns[timeline.kind == Kind.F].min()


def test_passes_wait_for_the_slowest_replica() -> None:
    lengths = [10] * 6 + [5] * 6
    fast = step({"forward_passes": 1}, dp=2, batch={
        "microbatches": 6, "sequence": 10, "lengths": lengths, "replica": 1,
    })  # fmt: skip
    slow = step({"forward_passes": 1}, dp=2, lengths=lengths)

    assert fast.metrics.step_ns == slow.metrics.step_ns == step({"forward_passes": 1}, dp=2).metrics.step_ns
    assert fast.timeline.start_ns[fast.timeline.kind == Kind.F].min() == (4 + 6 - 1) * 10_000


def test_traces_show_generation_and_passes(tmp_path: Path) -> None:
    run = step({"generation": "1 ms", "forward_passes": 2})
    run.save(tmp_path / "step.pftrace", tmp_path / "step.json")

    for again in (perfetto.read([tmp_path / "step.pftrace"]), kineto.read([tmp_path / "step.json"])):
        assert (again.kind == Kind.GENERATION).sum() == 4
        assert time_spent(again, window(again)).idle_ns.tolist() == run.metrics.idle_ns.tolist()


@pytest.mark.parametrize(("schedule", "pp", "vp"), [("1f1b", 1, 1), ("zb-v", 2, 2), ("chimera", 4, 1)])
def test_generation_and_passes_are_replayed_and_equal_to_themselves(
    tmp_path: Path, schedule: str, pp: int, vp: int
) -> None:
    sections: dict[str, Any] = {"parallel": {"pp": pp, "vp": vp}, "schedule": schedule}
    run = step({"generation": "1 ms", "forward_passes": 2}, **sections)
    run.save(tmp_path / "step.pftrace")
    difference = pptrace.diff(tmp_path / "step.pftrace", tmp_path / "step.pftrace")

    assert isinstance(difference, Diff)
    assert difference.same
    assert len(difference.findings.matched) == len(difference.findings.steps[0])
    assert replay(run.timeline).explained == 1


def test_messages_of_passes_use_links() -> None:
    run = step({"forward_passes": 1}, network="nvlink")

    assert run.traffic is not None
    sends = np.isin(run.timeline.kind, (Kind.SEND_F, Kind.SEND_B))
    assert ((run.traffic.path >= 0) == sends).all()
    assert run.traced().routes is not None


def test_passes_with_gathered_weights_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"rl.forward_passes: passes with gathered weights are not simulated"):
        step(
            {"forward_passes": 1}, dp=2, device="h100-sxm", costs={"zero": 3},
            model={"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 512},
        )  # fmt: skip
