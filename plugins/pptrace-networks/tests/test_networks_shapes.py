"""Rates, latencies, routes and bisections of nodes in closed form, what cannot be, and the presets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pptrace.config.validation import validate_options
from pptrace.errors import ConfigError
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import NetworkRequest
from pptrace.run.cluster_traffic import view_cluster
from pptrace.testing import assert_valid_network
from pptrace_networks.fat_tree import INFINIBAND_OVERHEAD_NS
from pptrace_networks.node_networks import PCIE_OVERHEAD_NS
from pptrace_networks.plugin import pptrace_clusters, pptrace_networks

OFFERS = {offer.name: offer for offer in pptrace_networks()}


def built(name: str, endpoints: int, nics: int = 0, per_node: int = 1, **options: Any) -> Any:
    offer = OFFERS[name]
    assert offer.options is not None
    checked = validate_options(offer.options(), options, "cluster.node")
    request = NetworkRequest(endpoints=endpoints, nics=nics, per_node=per_node, options=dict(checked.model_dump()))
    return offer.build(request)


def route(network: Any, src: int, dst: int, way: int = 0) -> list[str]:
    paths = network.paths(np.array([src], dtype=np.int32), np.array([dst], dtype=np.int32))
    return [network.links.name[link] for link in paths.link[paths.link_ptr[way] : paths.link_ptr[way + 1]]]


@pytest.mark.parametrize(("generation", "links", "each"), [(3, 12, 20.0), (4, 18, 20.6), (5, 18, 40.1)])
def test_an_nvlink_gpu_has_the_rate_of_its_links(generation: int, links: int, each: float) -> None:
    network = built("nvlink", 8, generation=generation)

    paths = network.paths(np.array([0], dtype=np.int32), np.array([7], dtype=np.int32))

    assert paths.rate_kbps.tolist() == [round(links * each * 1e6)]
    assert route(network, 0, 7) == ["gpu0.up", "gpu7.down"]


def test_a_gpu_reaches_a_nic_over_pcie_and_not_over_nvlink() -> None:
    assert route(built("nvlink", 16, nics=8), 3, 8 + 3) == ["gpu3.pcie.up", "nic3.out"]


@pytest.mark.parametrize("endpoints", [1, 2, 5, 8, 72])
def test_nvlink_keeps_the_laws(endpoints: int) -> None:
    rate = 18 * 20_600_000
    assert_valid_network(OFFERS["nvlink"], endpoints=(endpoints,), bisection=lambda n: n // 2 * rate)


def test_pcie_stays_below_a_switch_where_it_can() -> None:
    network = built("pcie", 9, nics=1)

    assert route(network, 0, 3) == ["gpu0.out", "gpu3.in"]
    assert route(network, 0, 4) == ["gpu0.out", "switch0.up", "switch1.down", "gpu4.in"]
    assert route(network, 0, 8) == ["gpu0.out", "nic0.in"]


def test_pcie_through_the_host_always_takes_both_uplinks() -> None:
    network = built("pcie", 8, peer_to_peer=False)

    assert route(network, 0, 3) == ["gpu0.out", "switch0.up", "switch0.down", "gpu3.in"]


def test_two_pcie_switches_are_as_wide_as_one_uplink() -> None:
    rate = int(built("pcie", 8).links.rate_kbps[0])

    assert_valid_network(OFFERS["pcie"], endpoints=(8,), bisection=rate)


def test_only_a_message_between_gpus_pays_the_overhead_of_pcie() -> None:
    network = built("pcie", 9, nics=1)

    paths = network.paths(np.array([0, 0, 8, 3], dtype=np.int32), np.array([3, 8, 4, 3], dtype=np.int32))

    assert paths.overhead_ns.tolist() == [PCIE_OVERHEAD_NS, 0, 0, 0]


@pytest.mark.parametrize(("preset", "gbytes"), [("mi300x-8gpu", 48), ("mi355x-8gpu", 57.6)])
def test_in_a_mesh_a_message_has_one_link_and_a_gpu_seven(preset: str, gbytes: float) -> None:
    links = view_cluster(f"{preset}x2", Registry.load()).job.network.links
    up = links.name.index("node0/gpu0.up")

    assert links.flow_rate_kbps[up] == round(gbytes * 10**6)
    assert links.rate_kbps[up] == pytest.approx(7 * links.flow_rate_kbps[up], rel=1e-5)


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "gb200-nvl72", "pcie-8gpu"])
def test_between_nodes_a_message_pays_the_fabrics_overhead_alone(preset: str) -> None:
    cluster = view_cluster(f"{preset}x2", Registry.load()).job.network
    first, last = (np.array([gpu], dtype=np.int32) for gpu in (0, cluster.endpoints - 1))

    assert cluster.paths(first, last).overhead_ns.tolist() == [INFINIBAND_OVERHEAD_NS]


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("nvlink", {"generation": 6}, "cluster.node.generation"),
        ("pcie", {"gpus_per_switch": 0}, "cluster.node.gpus_per_switch"),
        ("pcie", {"generation": 2}, "cluster.node.generation"),
    ],
)
def test_options_that_cannot_be_name_their_key(name: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(name, 8, **options)

    assert refused.value.key == key


def test_every_preset_says_where_its_numbers_come_from() -> None:
    assert len({offer.name for offer in pptrace_clusters()}) == 25
    for offer in pptrace_clusters():
        assert offer.source
        assert offer.device
        assert {"gpus", "nics", "node", "fabric"} <= set(offer.values)
