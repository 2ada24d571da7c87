"""What-ifs of simulated steps with a slow rank are what the simulator itself takes with that rank repaired."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.analysis.diff.step_diff import diff
from pptrace.analysis.explanation.explanation import explain
from pptrace.analysis.steps.sides import measured_side, simulated_side
from pptrace.api import simulate
from pptrace.experiment.measured import read_measurement
from pptrace.hooks.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.experiment.run import Run

pytestmark = pytest.mark.needs_plugins

registry = cache(Registry.load)
SIZES = {"pp": 4, "microbatches": 8}


def run(slow: float, schedule: str, **network: Any) -> Run:
    """Simulate with the last rank slow by a factor."""
    return simulate(
        schedule=schedule, **SIZES,
        sets=[
            "costs.name=table", "costs.slices=4", "costs.boundary=20 MB", "costs.overhead=100 us",
            f"costs.forward=[4 ms, 4 ms, 4 ms, {4 * slow} ms]",
            f"costs.backward=[8 ms, 8 ms, 8 ms, {8 * slow} ms]",
            *(f"{key}={value}" for key, value in network.items()),
        ],
    )  # fmt: skip


RENDEZVOUS = {"network.name": "hockney", "network.bandwidth": "10 GB/s", "p2p.policy": "ordered"}
BLOCKING = {**RENDEZVOUS, "p2p.policy": "blocking"}
SHARED = {
    "network.name": "hockney", "network.bandwidth": "10 GB/s", "network.node.ranks": 2,
    "network.node.bandwidth": "100 GB/s",
}  # fmt: skip
CASES = {
    "async": ("1f1b", {**RENDEZVOUS, "p2p.policy": "async"}), "rendezvous": ("1f1b", RENDEZVOUS),
    "blocking": ("gpipe", BLOCKING), "shared links": ("gpipe", SHARED),
    "sender-blocking": ("1f1b", {**RENDEZVOUS, "p2p.policy": "sender-blocking"}),
    "shared links under rendezvous": ("1f1b", {**SHARED, "p2p.policy": "ordered"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_repaired_rank_takes_what_the_simulator_takes_without_its_delay(case: str, tmp_path: Path) -> None:
    schedule, network = CASES[case]
    slow, even = (run(factor, schedule, **network) for factor in (1.5, 1.0))
    slow.save(tmp_path / "slow.pftrace")
    measurement, measured = read_measurement([tmp_path / "slow.pftrace"], registry())
    sides = [simulated_side(slow, "slow"), measured_side(measurement, "slow", measured=measured)]

    for side in sides:
        found = explain(side, registry()).what_if
        assert found is not None
        assert found.slowest.rank == 3
        assert found.replayed_ns.value == slow.metrics.step_ns
        assert found.repaired_ns.value == pytest.approx(even.metrics.step_ns, rel=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_a_slow_rank_on_the_same_network_is_no_slow_network(case: str) -> None:
    schedule, network = CASES[case]
    sides = (simulated_side(run(factor, schedule, **network), str(factor)) for factor in (1.0, 1.5))

    found = diff(*sides)

    ladder = {step.name: step.change_ns.value for step in found.ladder}
    assert ladder["transfers"] == 0
    assert ladder["durations"] > 0
    assert {one.sort for one in found.culprits} == {"slow rank"}
