"""A fat-tree's latencies, routes, hash, paths, rails and pods."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pptrace.config.validation import validate_options
from pptrace.plugin import NetworkOffer
from pptrace.plugins.requests import NetworkRequest
from pptrace.testing import assert_valid_network
from pptrace_networks.fat_tree import FatTree, FatTreeOptions, fat_tree

OFFER = NetworkOffer(name="tree", summary="A tree.", build=fat_tree, options=lambda: FatTreeOptions)
PORT = 50_000_000
"""An NDR port in kB/s."""
ROUTINGS = ["adaptive", "ecmp", "ecmp-message"]


def tree(endpoints: int, per_node: int = 1, **options: Any) -> FatTree:
    checked = validate_options(FatTreeOptions, {"efficiency": 1.0, **options}).model_dump()
    return fat_tree(NetworkRequest(endpoints=endpoints, per_node=per_node, options=checked))


def every(network: FatTree) -> Any:
    """Return the paths between all pairs of endpoints, sources first."""
    number = np.arange(network.endpoints, dtype=np.int32)
    return network.paths(np.repeat(number, number.size), np.tile(number, number.size))


def routes(network: FatTree, src: int, dst: int) -> list[list[str]]:
    """Return the names of the links of each way between two endpoints."""
    paths = network.paths(np.array([src], dtype=np.int32), np.array([dst], dtype=np.int32))
    return [
        [network.links.name[link] for link in paths.link[first:end]]
        for first, end in zip(paths.link_ptr[:-1], paths.link_ptr[1:], strict=True)
    ]


def splitmix64(state: int) -> int:
    """Return what the published generator gives after ``state``, in Python's own integers."""
    low = 2**64 - 1
    mixed = (state + 0x9E3779B97F4A7C15) & low
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & low
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & low
    return mixed ^ mixed >> 31


@pytest.mark.parametrize(
    ("generation", "port"), [("edr", 12_500_000), ("hdr", 25_000_000), ("ndr", PORT), ("xdr", 100_000_000)]
)
def test_a_message_alone_gets_its_generations_port(generation: str, port: int) -> None:
    network = tree(64, generation=generation, hosts_per_leaf=16)

    apart = ~np.eye(64, dtype=bool).ravel()
    assert set(every(network).rate_kbps[apart].tolist()) == {port}


def test_bandwidth_efficiency_and_a_flows_cap_bound_a_message() -> None:
    network = tree(64, bandwidth="10 GB/s", efficiency=0.9, flow_rate="3 GB/s", hosts_per_leaf=16)

    assert network.links.rate_kbps[0] == 9_000_000
    assert every(network).rate_kbps.max() == 3_000_000


@pytest.mark.parametrize("routing", ROUTINGS)
def test_latency_is_two_nics_and_each_switch_passed(routing: str) -> None:
    network = tree(64, radix=8, levels=3, routing=routing, switch_latency="100 ns", nic_latency="7 ns")

    paths = every(network)

    leaf = np.arange(64) // 4
    apart, far = leaf[:, None] != leaf, leaf[:, None] // 4 != leaf // 4
    expected = (1 + 2 * apart + 2 * far) * 100 + 14
    np.fill_diagonal(expected, 0)
    assert np.array_equal(paths.latency_ns.reshape(64 * 64, -1)[:, 0], expected.ravel())
    assert (paths.latency_ns.reshape(64 * 64, -1) == expected.reshape(-1, 1)).all()


def test_a_message_pays_its_overhead_once() -> None:
    paths = every(tree(64, hosts_per_leaf=16, overhead="2 us"))

    apart = ~np.eye(64, dtype=bool).ravel()
    assert np.array_equal(paths.overhead_ns, 2_000 * apart)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("levels", [2, 3])
def test_within_a_leaf_no_message_reaches_a_spine(levels: int, routing: str) -> None:
    network = tree(32, radix=8, hosts_per_leaf=4, levels=levels, routing=routing)

    paths = every(network)

    pair = np.repeat(np.arange(len(paths)) // paths.per_pair, np.diff(paths.link_ptr))
    local = pair // 32 // 4 == pair % 32 // 4
    names = np.array(network.links.name)[paths.link]
    above = np.char.find(names, "spine") >= 0
    assert not (local & above).any()
    assert set((pair // 32 // 4)[above]) == set(range(8))


@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("routing", ["adaptive", "ecmp-message"])
def test_bisection_is_half_the_hosts_ports_over_the_oversubscription(
    ratio: int, levels: int, routing: str
) -> None:
    options = {
        "radix": 16, "hosts_per_leaf": 4, "oversubscription": ratio, "levels": levels,
        "routing": routing, "efficiency": 1.0,
    }  # fmt: skip

    assert_valid_network(OFFER, endpoints=(8, 32), options=options, bisection=lambda n: n // 2 * PORT // ratio)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_rails_and_incomplete_leaves_keep_the_laws(routing: str) -> None:
    options = {"radix": 6, "rails": True, "routing": routing}

    assert_valid_network(OFFER, endpoints=(1, 3, 14, 23), per_node=3, options=options)


def test_a_pairs_spine_and_core_are_those_of_the_published_hash() -> None:
    network = tree(64, radix=8, levels=3, routing="ecmp")

    for src, dst in [(0, 63), (5, 40), (62, 1), (17, 50)]:
        number = splitmix64(src * 64 + dst) >> 32
        spine, core = number % 4, number // 4 % 4
        assert routes(network, src, dst)[0][1:3] == [
            f"leaf{src // 4}>pod{src // 16}.spine{spine}",
            f"pod{src // 16}.spine{spine}>core{spine * 4 + core}",
        ]


def test_the_published_hash_is_the_published_one() -> None:
    assert splitmix64(1234567) == 6457827717110365317


def test_flows_of_a_shift_collide_on_uplinks_as_random_ones_do() -> None:
    leaf, spines, hosts = 32, 32, 4096
    network = tree(hosts, hosts_per_leaf=leaf, spines=spines, radix=1024, routing="ecmp")
    src = np.arange(hosts, dtype=np.int32)

    uplink = network.paths(src, (src + leaf) % hosts).link.reshape(-1, 4)[:, 1]

    used = np.unique(uplink).size / (hosts // leaf * spines)
    # Each of 32 flows picks one of 32 uplinks: 1 - (31 / 32)^32 of them are picked.
    assert used == pytest.approx(1 - (1 - 1 / spines) ** leaf, abs=0.02)


def test_three_levels_have_a_way_for_each_core_and_all_differ() -> None:
    network = tree(64, radix=8, levels=3, routing="ecmp-message")

    paths = routes(network, 0, 63)

    assert len(paths) == len({tuple(path) for path in paths}) == 4 * 4
    assert {path[2].split(">")[1] for path in paths} == {f"core{core}" for core in range(16)}
    assert Counter(path[1] for path in paths) == dict.fromkeys((f"leaf0>pod0.spine{s}" for s in range(4)), 4)
    assert {tuple(way[1:]) for way in routes(network, 0, 5)} == {
        (f"leaf0>pod0.spine{s}", f"pod0.spine{s}>leaf1", "leaf1>host5") for s in range(4)
    }


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("levels", [2, 3])
def test_each_link_starts_where_the_one_before_it_ends(levels: int, routing: str) -> None:
    network = tree(32, per_node=4, radix=8, levels=levels, routing=routing, rails=True, hosts_per_leaf=4)

    for src, dst in [(0, 1), (0, 4), (0, 16), (3, 30), (31, 0), (9, 9)]:
        for way in routes(network, src, dst):
            ends = [link.split(">") for link in way]
            assert all(one[1] == other[0] for one, other in pairwise(ends))
            assert not way or (ends[0][0], ends[-1][1]) == tuple(
                f"node{host // 4}.nic{host % 4}" for host in (src, dst)
            )


def test_rails_stay_in_their_plane_and_share_the_spines() -> None:
    network = tree(64, per_node=8, rails=True, hosts_per_leaf=4, routing="ecmp")

    paths = every(network)

    names = np.array(network.links.name)
    for row in range(0, len(paths), 7):
        src, dst = divmod(row, 64)
        used = names[paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]]]
        planes = {part.split(".")[0] for link in used for part in link.split(">") if part.startswith("rail")}
        assert planes == ({f"rail{src % 8}", f"rail{dst % 8}"} if src != dst else set())
    assert {part for name in names for part in name.split(">") if part.startswith("spine")} == {
        f"spine{spine}" for spine in range(4)
    }


def test_without_rails_the_nics_of_a_node_are_at_one_leaf() -> None:
    network = tree(64, per_node=8, hosts_per_leaf=16)

    assert routes(network, 0, 7) == [["node0.nic0>leaf0", "leaf0>node0.nic7"]]
    assert routes(network, 4 * 8 + 2, 2) == [
        ["node4.nic2>leaf2", "leaf2>spines", "spines>leaf0", "leaf0>node0.nic2"]
    ]


def test_ways_take_every_spine_once() -> None:
    network = tree(64, hosts_per_leaf=16, spines=4, routing="ecmp-message")

    assert [way[1] for way in routes(network, 0, 16)] == [f"leaf0>spine{spine}" for spine in range(4)]


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


def test_one_pod_has_no_cores() -> None:
    network = tree(8, radix=8, levels=3, routing="ecmp-message")

    assert not any("core" in name for name in network.links.name)
    assert len(routes(network, 0, 7)) == 4
