"""A rate that a user writes is what costs, messages and reports get: a kilobyte is a thousand bytes throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_networks import Switch

from pptrace.api import simulate
from pptrace.errors import ConfigError
from pptrace.network.contract import transfer_ns
from pptrace.plugins.builtin_models import hockney
from pptrace.plugins.hookspecs import hookimpl
from pptrace.plugins.offers import CostModelOffer, NetworkOffer
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import CostRequest, NetworkRequest
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import link_counters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MEGABYTE = 1_000_000
WIRE: dict[str, Any] = {"bandwidth": 50_000_000_000, "latency": 0, "overhead": 0, "node": None}


COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "boundary": f"{8 * MEGABYTE} B"}


class Asked:
    """A plugin whose cost model keeps what it is asked for, with a network of links of 1 GB/s."""

    def __init__(self) -> None:
        self.reduction: Mapping[str, Any] = {}

    @hookimpl
    def pptrace_cost_models(self) -> list[CostModelOffer]:
        return [CostModelOffer(name="asked", summary="Keeps what it is asked for.", build=self.build)]

    @hookimpl
    def pptrace_networks(self) -> list[NetworkOffer]:
        build = lambda request: Switch(endpoints=request.endpoints, rate_kbps=MEGABYTE)  # noqa: E731 - one line
        return [NetworkOffer(name="switch", summary="A port each of 1 GB/s.", build=build)]

    def build(self, request: CostRequest) -> Workload:
        self.reduction = request.data_parallel
        return Workload.uniform(request.stages, edges=request.stages - 1, f_ns=1, b_ns=2)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    return str(path)


def reduction(table: str, **values: Any) -> dict[str, Any]:
    asked = Asked()
    simulate(
        schedule=table, dp=2, costs="asked", registry=Registry.load(entry_points=False, plugins={"asked": asked}),
        **values,
    )  # fmt: skip
    return dict(asked.reduction)


@pytest.mark.parametrize(("rate", "kbps"), [("50 GB/s", 50_000_000), ("3 KB/s", 3), ("1023 B/s", 1), ("5 B/s", 1)])
def test_costs_get_the_replicas_rate_in_kilobytes(table: str, rate: str, kbps: int) -> None:
    assert reduction(table, data_parallel={"bandwidth": rate, "latency": "3 us"}) == {
        "rate_kbps": kbps,
        "latency_ns": 3_000,
    }


def test_without_a_rate_of_their_own_replicas_have_the_network_s(table: str) -> None:
    network = {"name": "hockney", "bandwidth": "2 GB/s", "latency": "5 us"}

    assert reduction(table, network=network) == {"rate_kbps": 2_000_000, "latency_ns": 5_000}
    assert reduction(table, network="ideal") == {}


def test_a_transfer_takes_its_bytes_over_its_rate_and_its_latency() -> None:
    assert transfer_ns(np.array([1_000, 3]), np.array([5, 0]), np.array([1_000_000, 0])).tolist() == [1005, 0]


@pytest.mark.parametrize(
    ("rate", "kbps"), [(50_000_000_000, 50_000_000), (1_023, 1), (2_000, 2), ("unlimited", 0)]
)
def test_the_wire_s_rate_is_in_kilobytes(rate: Any, kbps: int) -> None:
    node = {"ranks": 2, "bandwidth": rate, "latency": 0, "overhead": 0}

    plain = hockney(NetworkRequest(endpoints=4, options={**WIRE, "bandwidth": rate}))
    nodes: Any = hockney(NetworkRequest(endpoints=4, options={**WIRE, "node": node}))

    assert plain.rate_kbps == nodes.node.rate_kbps == kbps
    assert nodes.between.rate_kbps == 50_000_000


def test_a_rate_below_a_kilobyte_is_refused() -> None:
    with pytest.raises(ConfigError, match="bandwidth: the smallest bandwidth is 1 kB/s"):
        hockney(NetworkRequest(endpoints=4, options={**WIRE, "bandwidth": 999}))


def test_a_message_takes_its_bytes_over_the_rate_that_is_written(table: str) -> None:
    run = simulate(schedule=table, costs=COSTS, network={"name": "hockney", "bandwidth": "1 GB/s"})

    assert run.metrics.step_ns == (1 + 8 + 1 + 2 + 8 + 2) * MEGABYTE


def test_links_are_reported_and_drawn_at_the_rate_that_they_have(table: str) -> None:
    registry = Registry.load(entry_points=False, plugins={"asked": Asked()})

    run = simulate(schedule=table, costs=COSTS, network="switch", registry=registry)
    links = run.to_dict()["links"]
    assert run.traffic is not None
    counters = link_counters(run.timeline, run.traffic)

    assert {name for link in links for name in (link["link"], *link["equal_links"])} == {
        "up0",
        "down1",
        "up1",
        "down0",
    }
    assert [link["bytes_per_s"] for link in links] == [1_000_000_000] * len(links)
    assert [link["utilisation"] for link in links] == pytest.approx([8 / 22] * len(links))
    assert {max(counter.value) for counter in counters} == {1_000_000_000}
