"""What candidates would about take is near what they take, activations in host memory included."""

from __future__ import annotations

import pytest

import pptrace
from pptrace.config.experiment import Offload
from pptrace.experiment.estimate import estimate
from pptrace.hooks.registry import Registry
from pptrace.model.workload import Workload

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
