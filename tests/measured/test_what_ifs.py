"""What-ifs of simulated steps with a slow rank are what the simulator itself takes with that rank repaired."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import diff as compare
from pptrace.api import simulate
from pptrace.measured.explanation import explain
from pptrace.measured.sides import measured_side, simulated_side
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.run.run import Run

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
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "async": ("1f1b", {**RENDEZVOUS, "p2p.policy": "async"}), "rendezvous": ("1f1b", RENDEZVOUS),
    "blocking": ("gpipe", BLOCKING), "shared links": ("gpipe", SHARED),
    "sender-blocking": ("1f1b", {**RENDEZVOUS, "p2p.policy": "sender-blocking"}),
    "torch": ("1f1b", {**RENDEZVOUS, "p2p.policy": "torch"}),
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
def test_a_slow_rank_on_the_same_network_is_no_slow_network(case: str, tmp_path: Path) -> None:
    schedule, network = CASES[case]
    runs = [run(factor, schedule, **network) for factor in (1.0, 1.5)]
    paths = [item.save(tmp_path / f"{number}.pftrace")[0] for number, item in enumerate(runs)]

    for sides in (runs, paths):
        found = compare(*sides, registry=registry()).findings

        ladder = {step.name: step.change_ns.value for step in found.ladder}
        assert ladder.pop("durations") == runs[1].metrics.step_ns - runs[0].metrics.step_ns
        assert not any(ladder.values())
        assert {cause.kind for cause in found.causes} == {"slow rank"}


def test_another_policy_and_another_network_are_distinguished() -> None:
    even, slower = (run(1, "1f1b", **{**RENDEZVOUS, "network.bandwidth": rate}) for rate in ("10 GB/s", "5 GB/s"))
    free = run(1, "1f1b", **{**RENDEZVOUS, "p2p.policy": "async"})

    for other, cause in ((slower, "transfers"), (free, "message delays")):
        found = compare(even, other, registry=registry()).findings
        ladder = {step.name: step.change_ns.value for step in found.ladder}
        assert ladder.pop(cause) == other.metrics.step_ns - even.metrics.step_ns
        assert not any(ladder.values())
