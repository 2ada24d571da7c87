"""What candidates would about take is near what they take, activations in host memory included."""

from __future__ import annotations

from typing import Any

import pytest

import pptrace
from pptrace.config.schema import Offload, Recompute
from pptrace.plugins.registry import Registry
from pptrace.run.neighbourhood import Estimate, estimate
from pptrace.run.preparation import build_costs
from pptrace.steps.workload import Workload

GIB = 2**30


@pytest.mark.needs_plugins
@pytest.mark.parametrize("ratio", [0.5, 1])
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-v", 2), ("gpipe", 1)])
def test_memory_with_copies_is_a_microbatch_near_the_simulated(name: str, chunks: int, ratio: float) -> None:
    costs = {
        "name": "table", "forward": "10 ms", "backward": "20 ms", "offload": "4 ms", "reload": "4 ms",
        "activation": "1 GiB",
    }  # fmt: skip
    asked = {"name": name, "offload": {"ratio": ratio}}
    run = pptrace.simulate(schedule=asked, pp=8, vp=chunks, microbatches=32, costs=costs)
    workload = Workload.uniform(8 * chunks, f_ns=10, b_ns=20, activation_bytes=GIB)

    offload = Offload(ratio=ratio)
    guess = estimate(Registry.load().schedules[name], workload, 8, 32, offload=offload)

    assert guess is not None
    assert abs(guess.peak_bytes - int(run.metrics.memory.peak_bytes.max())) <= GIB


@pytest.mark.needs_plugins
def test_only_chosen_stages_leave() -> None:
    workload, offers = Workload.uniform(8, f_ns=10, b_ns=20, activation_bytes=GIB), Registry.load().schedules
    last, first = (estimate(offers["1f1b"], workload, 8, 32, offload=Offload(stages=[stage])) for stage in (7, 0))

    assert last is not None
    assert last.peak_bytes == 8 * GIB
    assert first is not None
    assert first.peak_bytes == 7 * GIB


COPIES = {
    "name": "table", "forward": "10 ms", "backward": "20 ms", "offload": "20 ms", "reload": "16 ms",
    "activation": "1 GiB", "checkpoint": "100 MiB",
}  # fmt: skip


def guessed(**modifiers: Any) -> Estimate:
    workload = Workload.uniform(
        8, f_ns=10_000_000, b_ns=20_000_000, activation_bytes=GIB, offload_ns=20_000_000, reload_ns=16_000_000,
        recompute_ns=10_000_000, checkpoint_bytes=100 * 2**20,
    )  # fmt: skip
    found = estimate(Registry.load().schedules["1f1b"], workload, 8, 64, **modifiers)
    assert found is not None
    return found


@pytest.mark.needs_plugins
@pytest.mark.parametrize("stream", ["direction", "rank", "pair"])
def test_a_step_that_waits_for_its_copies_is_estimated_by_them(stream: str) -> None:
    offload = {"stream": stream}
    run = pptrace.simulate(schedule={"name": "1f1b", "offload": offload}, pp=8, microbatches=64, costs=COPIES)

    assert guessed(offload=Offload(**offload)).step_ns == pytest.approx(run.metrics.step_ns, rel=0.1)


@pytest.mark.needs_plugins
def test_what_is_needed_again_too_soon_for_its_copies_is_not_counted() -> None:
    stays = guessed(offload=Offload(gap=100))

    assert (stays.step_ns, stays.peak_bytes) == (guessed().step_ns, guessed().peak_bytes)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("recompute", [{"early": False}, {"early": True}])
def test_forwards_computed_again_take_their_time_and_leave_their_inputs(recompute: dict[str, bool]) -> None:
    run = pptrace.simulate(schedule={"name": "1f1b", "recompute": recompute}, pp=8, microbatches=64, costs=COPIES)
    guess = guessed(recompute=Recompute(**recompute))

    assert guess.step_ns == pytest.approx(run.metrics.step_ns, abs=1)
    assert guess.peak_bytes == int(run.metrics.memory.peak_bytes.max())


@pytest.mark.needs_plugins
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("zero", "microbatches", "bandwidth"), [
    (0, 1, "400 GB/s"), (0, 4, "400 GB/s"), (1, 1, "400 GB/s"), (0, 1, "20 GB/s"), (3, 1, "400 GB/s"),
    (3, 4, "400 GB/s"), (2, 4, "400 GB/s"),
])  # fmt: skip
def test_reductions_without_a_pipeline_are_estimated_as_they_overlap(
    zero: int, microbatches: int, bandwidth: str, *, overlap: bool
) -> None:
    run = pptrace.simulate({
        "model": "llama3-8b", "device": "h100-sxm", "parallel": {"pp": 1, "dp": 8}, "schedule": "1f1b",
        "batch": {"microbatches": microbatches, "sequence": 8192}, "costs": {"zero": zero},
        "data_parallel": {"overlap": overlap, "bandwidth": bandwidth},
    })  # fmt: skip
    resolved = run.prepared.resolved
    workload = build_costs(resolved, run.registry).workload(1)

    guess = estimate(run.registry.schedules["1f1b"], workload, 1, microbatches, experiment=resolved.experiment)

    assert guess is not None
    assert guess.step_ns == pytest.approx(run.metrics.step_ns, rel=0.03 if zero < 2 else 0.06)
