"""What is too large to be counted is one clear line, on both roads of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from interpreted import interpreted_kernels

import pptrace_kernel
from pptrace.errors import ConfigError, PluginError, ScheduleError
from pptrace.network.contract import Flat
from pptrace.plugins.builtin_models import UnitOptions, unit
from pptrace.plugins.requests import CostRequest
from pptrace.sim.simulation import simulate
from pptrace.steps import validation
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from pptrace.network.contract import Links, Paths

ROWS = [["0F0+4", "0B0+4"], ["1F0+4", "1B0+4"]]


@pytest.fixture(params=["interpreted", "compiled"])
def _road(request: pytest.FixtureRequest) -> Iterator[None]:
    with pptrace_kernel.always_compiled() if request.param == "compiled" else interpreted_kernels():
        yield


def costs(**values: Any) -> Workload:
    return Workload.uniform(2, **({"f_ns": 1, "b_ns": 2} | values))


@pytest.mark.usefixtures("_road")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"f_ns": 2**60}, r"f_ns of stage 0 is too large \(1152921504606846976\)"),
        ({"b_ns": [0, 2**63 - 1]}, "b_ns of stage 1 is too large"),
        ({"f_ns": -1}, r"f_ns of stage 0 is below zero \(-1\)"),
        ({"f_collective_ns": 2**62}, "f_collective_ns of stage 0 is too large"),
        ({"boundary_bytes": 2**60}, "boundary_bytes of boundary 0 is too large"),
        ({"boundary_bytes": 2**41}, "a message of 8796093022208 bytes is too large"),
        ({"activation_bytes": 2**59}, r"memory could pass 2\*\*62 bytes"),
        ({"weights_bytes": 2**59, "gradients_bytes": 2**59, "optimizer_bytes": 2**59, "activation_bytes": 2**57},
         r"memory could pass 2\*\*62 bytes"),
        ({"reserved_bytes": 2**62}, r"memory could pass 2\*\*62 bytes"),
        ({"f_ns": 2**58}, r"the step's times on 2 ranks sum to more than 2\*\*62 ns"),
    ],
)  # fmt: skip
def test_costs_that_cannot_be_added_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        simulate(Schedule.from_rows(ROWS), costs(**values), Flat(rate_kbps=1))


@pytest.mark.usefixtures("_road")
def test_the_largest_times_that_are_allowed_are_added_without_overflow() -> None:
    ranks = 64
    rows = [[f"{s}F0", f"{s}B0"] for s in range(ranks)]
    workload = Workload.uniform(ranks, f_ns=2**48, b_ns=2**48)

    metrics = measure(simulate(Schedule.from_rows(rows), workload), workload)

    assert metrics.step_ns == ranks * 2**49
    assert int(metrics.idle_ns.sum()) == ranks * (ranks - 1) * 2**49
    assert float(metrics.bubble) == pytest.approx(63 / 64)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Flat(overhead_ns=2**63 - 1), "overhead_ns of 9223372036854775807"),
        (Flat(latency_ns=2**61), "latency_ns of 2305843009213693952"),
        (Flat(rate_kbps=2**63 - 1), "rate_kbps of 9223372036854775807"),
        (Flat(rate_kbps=-5), "rate_kbps of -5"),
        (Flat(latency_ns=-1), r"latency_ns of -1 between two ranks: expected 0 to 2\*\*60"),
    ],
)
def test_a_network_with_impossible_figures_is_refused(network: Flat, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        simulate(Schedule.from_rows(ROWS), costs(boundary_bytes=1), network)


@dataclass(frozen=True)
class OnePath:
    """A network that answers for one pair, however many are asked for."""

    links: Links = Flat().links

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        return Flat(rate_kbps=1).paths(src[:1], dst[:1])


def test_a_network_that_leaves_pairs_out_is_refused() -> None:
    with pytest.raises(PluginError, match="gives 1 overhead_ns for 2 pairs of ranks"):
        simulate(Schedule.from_rows(ROWS), costs(), OnePath())


def test_more_ranks_than_lanes_can_be_counted_for_are_refused() -> None:
    ranks = 5_000
    rows = [[f"{s}F0", f"{s}B0"] for s in range(ranks)]

    with pytest.raises(ScheduleError, match="5000 pipeline ranks: at most 4096 are simulated"):
        simulate(Schedule.from_rows(rows), Workload.uniform(ranks, f_ns=1, b_ns=2))


def test_more_stages_and_microbatches_than_can_be_indexed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_ACTIONS", 1000)
    rows = [["0F0+501", "0B0+501"], ["1F0+501", "1B0+501"]]

    with pytest.raises(ScheduleError, match="2 stages x 501 microbatches: at most 1000 are simulated"):
        simulate(Schedule.from_rows(rows), costs())


def test_a_unit_too_long_to_count_names_its_key() -> None:
    options = UnitOptions.model_validate({"unit": "4000000000 s", "forward": 1_000_000})

    with pytest.raises(ConfigError, match=r"costs.unit: a pass would take more than 2\*\*62 ns"):
        unit(CostRequest(ranks=2, stages=2, microbatches=4, options=options.model_dump()))
