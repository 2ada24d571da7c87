"""A cluster's paths are its parts' paths, put together pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import LeafSpine, Ports, cluster

from pptrace.errors import PluginError
from pptrace.network.cluster import Cluster
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Flat, Paths, check_links, check_paths

if TYPE_CHECKING:
    from pptrace.network.contract import Network


@dataclass(frozen=True, kw_only=True)
class Way:
    """One path between two endpoints."""

    links: list[str]
    rate_kbps: int
    latency_ns: int
    overhead_ns: int


def per_pair(network: Network, src: int, dst: int, prefix: str = "") -> list[Way]:
    """Ask for one pair."""
    paths = network.paths(np.array([src], dtype=np.int32), np.array([dst], dtype=np.int32))
    return read(paths, [prefix + name for name in network.links.name])[0]


def read(paths: Paths, names: list[str]) -> list[list[Way]]:
    rows = [
        Way(
            links=[names[link] for link in paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]]],
            rate_kbps=int(paths.rate_kbps[row]),
            latency_ns=int(paths.latency_ns[row]),
            overhead_ns=int(paths.overhead_ns[row]),
        )
        for row in range(len(paths))
    ]
    return [rows[first : first + paths.per_pair] for first in range(0, len(rows), paths.per_pair)]


def composed(job: Cluster, src: int, dst: int) -> list[Way]:
    """Put a pair's paths together from those of the node, the fabric and the other node."""
    (a, gpu_a), (b, gpu_b) = divmod(src, job.gpus), divmod(dst, job.gpus)
    if a == b:
        return per_pair(job.node, gpu_a, gpu_b, f"node{a}/")
    if job.fabric is None or not job.nics:
        return [Way(links=[], rate_kbps=NO_ROUTE, latency_ns=0, overhead_ns=0)]
    nic_a, nic_b = gpu_a * job.nics // job.gpus, gpu_b * job.nics // job.gpus
    (out,) = per_pair(job.node, gpu_a, job.gpus + nic_a, f"node{a}/")
    (into,) = per_pair(job.node, job.gpus + nic_b, gpu_b, f"node{b}/")
    return [
        Way(
            links=[*out.links, *over.links, *into.links],
            rate_kbps=min((part.rate_kbps for part in (out, over, into) if part.rate_kbps), default=UNLIMITED),
            latency_ns=out.latency_ns + over.latency_ns + into.latency_ns,
            overhead_ns=out.overhead_ns + over.overhead_ns + into.overhead_ns,
        )
        for over in per_pair(job.fabric, a * job.nics + nic_a, b * job.nics + nic_b)
    ]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    gpus = draw(st.integers(1, 4))
    return cluster(
        nodes=draw(st.integers(1, 4)),
        gpus=gpus,
        nics=draw(st.integers(1, gpus + 1)),
        per_leaf=draw(st.integers(1, 5)),
        spines=draw(st.integers(1, 3)),
        gpu_kbps=draw(st.integers(1, 2000)),
        spine_kbps=draw(st.integers(1, 2000)),
        flow_kbps=draw(st.integers(0, 500)),
        joined=draw(st.booleans()),
    )


@given(clusters(), st.data())
def test_paths_are_those_of_the_parts_put_together(job: Cluster, data: st.DataObject) -> None:
    gpu = st.integers(0, job.endpoints - 1)
    pairs = data.draw(st.lists(st.tuples(gpu, gpu), max_size=12))
    src, dst = np.array(pairs, dtype=np.int32).reshape(-1, 2).T

    paths = job.paths(src, dst)

    check_links(job.links)
    check_paths(paths, len(pairs), len(job.links))
    printed_paths = read(paths, list(job.links.name))
    for (a, b), given_ways in zip(pairs, printed_paths, strict=True):
        expected = composed(job, a, b)
        assert given_ways == expected * (paths.per_pair // len(expected))


def test_within_a_node_every_way_of_the_fabric_is_the_node_s_only_one() -> None:
    job = cluster(nodes=2, gpus=2, nics=1, spines=3)

    mixed = job.paths(np.array([0, 0], dtype=np.int32), np.array([1, 2], dtype=np.int32))

    assert mixed.per_pair == 3
    assert mixed.rate_kbps.tolist() == [9000] * 3 + [1000] * 3
    assert read(mixed, list(job.links.name))[0] == per_pair(job, 0, 1) * 3


def test_links_are_those_of_every_node_then_the_fabric_s() -> None:
    job = cluster(nodes=2, gpus=1, nics=1)

    assert job.links.name == (
        "node0/port0up", "node0/port0down", "node0/port1up", "node0/port1down",
        "node1/port0up", "node1/port0down", "node1/port1up", "node1/port1down",
        "host0up", "host0down", "host1up", "host1down",
        "leaf0spine0u", "leaf0spine0d", "leaf1spine0u", "leaf1spine0d",
    )  # fmt: skip
    assert job.links.rate_kbps.tolist() == [9000, 9000, 1000, 1000] * 2 + [1000] * 4 + [10**6] * 4
    assert job.links.latency_ns.tolist() == [3] * 8 + [100] * 8


@pytest.mark.parametrize("job", [cluster(nodes=2, gpus=2, nics=1, joined=False), cluster(nodes=2, gpus=2, nics=0)])
def test_without_a_fabric_or_nics_nothing_joins_two_nodes(job: Cluster) -> None:
    paths = job.paths(np.array([0, 0, 3], dtype=np.int32), np.array([1, 2, 0], dtype=np.int32))

    assert paths.rate_kbps.tolist() == [9000, NO_ROUTE, NO_ROUTE]
    assert np.diff(paths.link_ptr).tolist() == [2, 0, 0]


def test_gpus_share_the_nics_in_order() -> None:
    job = cluster(nodes=2, gpus=8, nics=4)

    nics = [next(link for link in per_pair(job, gpu, 8)[0].links if link.startswith("host")) for gpu in range(8)]

    assert nics == ["host0up", "host0up", "host1up", "host1up", "host2up", "host2up", "host3up", "host3up"]


def test_parts_without_links_add_their_figures() -> None:
    node = Flat(rate_kbps=5000, latency_ns=1, overhead_ns=10)
    fabric = Flat(rate_kbps=0, latency_ns=100, overhead_ns=1000)

    job = Cluster(node=node, fabric=fabric, nodes=2, gpus=1, nics=1)

    assert len(job.links) == 0
    assert per_pair(job, 0, 1) == [Way(links=[], rate_kbps=5000, latency_ns=102, overhead_ns=1020)]


def test_no_route_between_two_nics_is_none_between_their_gpus() -> None:
    class Split(Flat):
        def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
            none = np.zeros(src.size, dtype=np.int64)
            rate = np.where((src + dst) % 2, NO_ROUTE, UNLIMITED)
            ptr = np.zeros(src.size + 1, dtype=np.int32)
            return Paths(overhead_ns=none, latency_ns=none, rate_kbps=rate, link_ptr=ptr, link=none[:0])

    job = Cluster(node=Flat(rate_kbps=7), fabric=Split(), nodes=3, gpus=1, nics=1)

    assert [per_pair(job, 0, gpu)[0].rate_kbps for gpu in (1, 2)] == [NO_ROUTE, 7]


def test_a_node_with_several_ways_is_refused() -> None:
    spread = LeafSpine(hosts=2, per_leaf=2, spines=2, host_kbps=1, spine_kbps=1)
    job = Cluster(node=spread, fabric=None, nodes=1, gpus=2, nics=0)

    with pytest.raises(PluginError, match="the network inside a node offers several paths per pair: expected one"):
        per_pair(job, 0, 1)


def test_a_node_alone_is_its_own_network() -> None:
    node = Ports(gpus=3, nics=0, gpu_kbps=10, nic_kbps=1)
    job = Cluster(node=node, fabric=None, nodes=1, gpus=3, nics=0)

    for a, b in ((0, 1), (2, 0), (1, 1)):
        assert per_pair(job, a, b) == per_pair(node, a, b, "node0/")
