"""Rates, latencies, routes and bisections of the three networks in closed form, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pptrace.config.options import validate_options
from pptrace.errors import ConfigError
from pptrace.model.request import NetworkRequest
from pptrace.testing import assert_valid_network
from pptrace_networks.figures import INFINIBAND, INFINIBAND_NIC_NS
from pptrace_networks.plugin import pptrace_clusters, pptrace_networks

OFFERS = {offer.name: offer for offer in pptrace_networks()}
PORT = 50_000_000
"""An NDR port in kB/s."""


def built(name: str, endpoints: int, nics: int = 0, per_node: int = 1, **options: Any) -> Any:
    offer = OFFERS[name]
    assert offer.options is not None
    checked = validate_options(offer.options(), options, "cluster.node")
    request = NetworkRequest(endpoints=endpoints, nics=nics, per_node=per_node, options=dict(checked.model_dump()))
    return offer.build(request)


def route(network: Any, src: int, dst: int, way: int = 0) -> list[str]:
    paths = network.paths(np.array([src], dtype=np.int32), np.array([dst], dtype=np.int32))
    return [network.links.name[link] for link in paths.link[paths.link_ptr[way] : paths.link_ptr[way + 1]]]


def tree(endpoints: int, per_node: int = 1, **options: Any) -> Any:
    return built("infiniband-fat-tree", endpoints, per_node=per_node, **{"efficiency": 1.0, **options})


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


def test_within_a_leaf_no_message_reaches_a_spine() -> None:
    network = tree(64, hosts_per_leaf=16)

    assert route(network, 0, 15) == ["host0>leaf0", "leaf0>host15"]
    assert route(network, 0, 16) == ["host0>leaf0", "leaf0>spines", "spines>leaf1", "leaf1>host16"]


def test_latency_counts_nics_and_switches() -> None:
    network = tree(64, hosts_per_leaf=16)
    paths = network.paths(np.array([0, 0], dtype=np.int32), np.array([1, 16], dtype=np.int32))

    switch = INFINIBAND["ndr"].switch_ns
    assert paths.latency_ns.tolist() == [2 * INFINIBAND_NIC_NS + switch, 2 * INFINIBAND_NIC_NS + 3 * switch]


@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize("routing", ["adaptive", "ecmp-message"])
def test_bisection_falls_with_oversubscription(ratio: int, routing: str) -> None:
    options = {"hosts_per_leaf": 16, "oversubscription": ratio, "efficiency": 1.0, "routing": routing}

    assert_valid_network(
        OFFERS["infiniband-fat-tree"], endpoints=(64,), options=options, bisection=64 // 2 * PORT // ratio
    )


def test_ways_take_every_spine_once() -> None:
    network = tree(64, hosts_per_leaf=16, spines=4, routing="ecmp-message")

    assert [route(network, 0, 16, way)[1] for way in range(4)] == [f"leaf0>spine{spine}" for spine in range(4)]


def test_static_hashing_is_even_and_always_the_same() -> None:
    one, other = (tree(128, hosts_per_leaf=16, spines=8, routing="ecmp") for _ in range(2))
    src = np.repeat(np.arange(16, dtype=np.int32), 112)
    dst = np.tile(np.arange(16, 128, dtype=np.int32), 16)

    paths, again = one.paths(src, dst), other.paths(src[::-1].copy(), dst[::-1].copy())

    spine = paths.link.reshape(-1, 4)[:, 1]
    assert np.array_equal(spine, again.link.reshape(-1, 4)[::-1, 1])
    counts = np.unique(spine, return_counts=True)[1]
    assert counts.size == 8
    assert counts.min() > 0.8 * counts.mean()


def test_rails_keep_to_their_own_leaves() -> None:
    network = tree(64, per_node=8, rails=True, hosts_per_leaf=4)

    assert route(network, 3, 8 + 3) == ["node0.nic3>rail3.leaf0", "rail3.leaf0>node1.nic3"]
    assert "rail4.leaf0>node1.nic4" in route(network, 3, 8 + 4)
    assert "rail3.leaf0>spines" in route(network, 3, 8 + 4)


@pytest.mark.parametrize("routing", ["adaptive", "ecmp", "ecmp-message"])
def test_three_levels_go_over_a_core_between_pods_only(routing: str) -> None:
    network = tree(64, radix=8, levels=3, routing=routing)

    assert len(route(network, 0, 1)) == 2
    assert len(route(network, 0, 5)) == 4
    far = route(network, 0, 63)
    assert len(far) == 6
    assert "core" in far[2]


def test_three_levels_are_as_wide_as_their_hosts() -> None:
    options = {"radix": 8, "levels": 3, "efficiency": 1.0}

    assert_valid_network(OFFERS["infiniband-fat-tree"], endpoints=(64,), options=options, bisection=32 * PORT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radix": 8, "levels": 2}, "two levels hold 32 NICs of these 64; write levels: 3"),
        ({"radix": 4}, "three levels hold 16 NICs of these 64"),
        ({"radix": 8, "hosts_per_leaf": 7}, "7 NICs and 7 uplinks need 14 ports of a leaf, and a switch has 8"),
    ],
)
def test_a_radix_that_cannot_hold_the_hosts_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tree(64, **options)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("nvlink", {"generation": 6}, "cluster.node.generation"),
        ("pcie", {"gpus_per_switch": 0}, "cluster.node.gpus_per_switch"),
        ("pcie", {"generation": 2}, "cluster.node.generation"),
        ("infiniband-fat-tree", {"oversubscription": 0.5}, "cluster.node.oversubscription"),
        ("infiniband-fat-tree", {"generation": "fdr"}, "cluster.node.generation"),
        ("infiniband-fat-tree", {"routing": "random"}, "cluster.node.routing"),
        ("infiniband-fat-tree", {"bandwidth": 0}, "cluster.node.bandwidth"),
        ("infiniband-fat-tree", {"spine": 3}, "cluster.node.spine"),
    ],
)
def test_options_that_cannot_be_name_their_key(name: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(name, 8, **options)

    assert refused.value.key == key


def test_every_preset_says_where_its_numbers_come_from() -> None:
    assert len({offer.name for offer in pptrace_clusters()}) == 4 + 9
    for offer in pptrace_clusters():
        assert offer.source
        assert offer.device
        assert {"gpus", "nics", "node", "fabric"} <= set(offer.values)
