"""Collectives take what their formulas say, on the links that their flows are counted on."""

from __future__ import annotations

import doctest
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log2
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import Ports, cluster

from pptrace.errors import ConfigError
from pptrace.network import collectives
from pptrace.network.cluster import Layout
from pptrace.network.collectives import LinkCollectives
from pptrace.network.contract import Flat

if TYPE_CHECKING:
    import numpy as np

    from pptrace.network.contract import Links, Network, Paths

RATE = 1000
HOP = 2 * 3
"""Latency of a port up and a port down."""
LAUNCH = 2


def star(members: int) -> LinkCollectives:
    """Return collectives of all GPUs of one switch."""
    return LinkCollectives(
        network=Ports(gpus=members, nics=0, gpu_kbps=RATE, nic_kbps=1), groups=Layout(dp=members).groups
    )


def byte_ns(size: Fraction | int, rate: int = RATE) -> int:
    return ceil(Fraction(size * 10**6) / rate)


def per_byte(job: LinkCollectives, collective: str, axis: str = "dp") -> Fraction:
    """Return what a byte of a large vector adds, without latencies."""
    large = 10**12
    return Fraction(job.ns(collective, axis, 2 * large) - job.ns(collective, axis, large), large)


@given(members=st.integers(2, 40), size=st.integers(0, 10**13))
def test_on_one_switch_a_ring_takes_its_formula_to_the_nanosecond(members: int, size: int) -> None:
    job, steps = star(members), members - 1

    gathered = steps * (HOP + LAUNCH) + byte_ns(Fraction(steps * size, members))
    assert job.ns("all-gather", "dp", size) == job.ns("reduce-scatter", "dp", size) == gathered
    reduced = 2 * steps * (HOP + LAUNCH) + byte_ns(Fraction(2 * steps * size, members))
    assert job.ns("all-reduce", "dp", size) <= reduced
    if job.fastest("all-reduce", "dp", size).algorithm == "ring":
        assert job.ns("all-reduce", "dp", size) == reduced


@given(members=st.integers(4, 40), size=st.integers(0, 10**13))
def test_on_one_switch_an_all_reduce_is_the_better_of_ring_and_tree(members: int, size: int) -> None:
    """Inside a tree a member sends half of the vector to three others, and as a leaf of the other tree to one."""
    steps, deep = 2 * (members - 1), 2 * ceil(log2(members))

    by_ring = steps * (HOP + LAUNCH) + byte_ns(Fraction(steps * size, members))
    by_tree = deep * (HOP + LAUNCH) + byte_ns(2 * size)

    result = star(members).fastest("all-reduce", "dp", size)
    assert result.ns(size) == min(by_ring, by_tree)
    assert result.algorithm == ("ring" if by_ring <= by_tree else "tree")


def test_many_members_sum_small_vectors_by_a_tree_and_large_ones_by_a_ring() -> None:
    job = star(64)

    assert job.fastest("all-reduce", "dp", 10).algorithm == "tree"
    assert job.fastest("all-reduce", "dp", 10**9).algorithm == "ring"
    assert star(2).fastest("all-reduce", "dp", 10).algorithm == "ring"


@given(members=st.integers(2, 20), size=st.integers(0, 10**13))
def test_on_one_switch_an_all_to_all_is_bound_by_a_port(members: int, size: int) -> None:
    result = star(members).fastest("all-to-all", "dp", size)

    others = members - 1
    launches = max(ceil(others * LAUNCH / 8), LAUNCH)
    assert result.ns(size) == launches + HOP + byte_ns(Fraction(others * size, members))
    assert (result.algorithm, result.channels) == ("pairwise", 1)


def across(nics: int, *, nodes: int = 2, **sizes: int) -> LinkCollectives:
    """Return collectives over nodes of eight GPUs under one leaf, with much room inside the nodes."""
    network = cluster(nodes=nodes, gpus=8, nics=nics, per_leaf=nodes * nics, gpu_kbps=10**6)
    return LinkCollectives(network=network, groups=Layout(**(sizes or {"dp": 8 * nodes})).groups)


def test_a_ring_over_two_nodes_is_bound_by_their_nics() -> None:
    """Fifteen steps of a sixteenth of the vector, on eight NICs of 1000 kB/s: 10^6 ns a kilobyte each."""
    result = across(8).fastest("all-gather", "dp", 16_000)

    assert result.algorithm == "ring"
    assert result.channels == 8
    assert per_byte(across(8), "all-gather") == Fraction(15, 16) * 1000 / 8
    assert per_byte(across(8, nodes=4), "all-gather") == Fraction(31, 32) * 1000 / 8


def test_two_nodes_sum_by_a_tree_that_crosses_once_each_way() -> None:
    """Half of the vector goes up and half comes down on each of two trees: once the vector, not twice 15/16."""
    assert across(8).fastest("all-reduce", "dp", 10**9).algorithm == "tree"
    assert per_byte(across(8), "all-reduce") == Fraction(1000, 8)
    assert across(8, nodes=8).fastest("all-reduce", "dp", 10**12).algorithm == "ring"
    assert per_byte(across(8, nodes=8), "all-reduce") == 2 * Fraction(63, 64) * 1000 / 8


@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_one_nic_against_eight_differ_by_eight(collective: str) -> None:
    assert per_byte(across(1), collective) == 8 * per_byte(across(8), collective)
    assert per_byte(across(2), collective) == 4 * per_byte(across(8), collective)


@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "all-to-all"])
def test_groups_of_eight_tensor_parallel_members_share_one_nic(collective: str) -> None:
    """Each group has one member per node: eight pairs on one NIC, or one pair on each of eight."""
    shared, own = across(1, dp=2, tp=8), across(8, dp=2, tp=8)

    factor = 1 if collective == "all-reduce" else Fraction(1, 2)
    assert per_byte(own, collective) == factor * 1000
    assert per_byte(shared, collective) == 8 * factor * 1000
    assert own.fastest(collective, "dp", 10**6).channels == 1


def test_the_groups_of_all_pipeline_ranks_share_the_links() -> None:
    alone = across(1, nodes=2, dp=2, tp=4, pp=2)
    job = Layout(dp=2, tp=4, pp=2, order=("tp", "cp", "pp", "ep", "dp"))
    both = LinkCollectives(network=alone.network, groups=job.groups)

    assert per_byte(both, "all-gather") == 8 * Fraction(1, 2) * 1000


def test_groups_inside_nodes_never_wait_for_the_fabric() -> None:
    job = across(1, dp=2, tp=8)

    assert per_byte(job, "all-gather", "tp") == Fraction(7, 8)


def test_an_oversubscribed_spine_is_what_a_collective_waits_for() -> None:
    """Eight hosts of 1000 kB/s on each of two leaves: 4:1 is two links up of 1000, on which the ways are even."""

    def job(spines: int) -> LinkCollectives:
        network = cluster(nodes=16, gpus=1, nics=1, per_leaf=8, spines=spines, spine_kbps=1000)
        return LinkCollectives(network=network, groups=Layout(dp=16).groups)

    assert per_byte(job(8), "all-to-all") == Fraction(15, 16) * 1000
    assert per_byte(job(2), "all-to-all") == Fraction(8 * 8, 16) * 1000 / 2
    # A ring crosses once each way, and takes both ways in turn.
    assert per_byte(job(2), "all-gather") == Fraction(15, 16) * 1000


def test_a_flow_that_does_not_fill_its_links_bounds_the_ring() -> None:
    network = cluster(nodes=2, gpus=1, nics=1, flow_kbps=100)
    job = LinkCollectives(network=network, groups=Layout(dp=2).groups)

    assert per_byte(job, "all-gather") == Fraction(1, 2) * 10_000


@given(size=st.integers(0, 10**9))
def test_over_a_network_without_links_members_send_one_flow_at_a_time(size: int) -> None:
    flat = LinkCollectives(
        network=Flat(rate_kbps=RATE, latency_ns=HOP, overhead_ns=LAUNCH), groups=Layout(dp=8).groups
    )

    for collective in ("all-reduce", "all-gather", "all-to-all"):
        assert flat.ns(collective, "dp", size) == star(8).ns(collective, "dp", size)


def test_over_an_ideal_network_bytes_take_no_time() -> None:
    for collective in ("all-reduce", "all-gather", "all-to-all"):
        assert LinkCollectives(network=Flat(), groups=Layout(dp=4).groups).ns(collective, "dp", 10**15) == 0


@pytest.mark.parametrize("axis", ["tp", "cp", "ep", "dp", "edp"])
@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_a_group_of_one_takes_no_time(collective: str, axis: str) -> None:
    result = LinkCollectives(network=cluster(nodes=2, gpus=1, nics=1), groups=Layout(pp=2).groups).fastest(
        collective, axis, 10**9
    )

    assert (result.ns(10**9), result.algorithm, result.channels) == (0, "none", 0)


def test_an_unknown_collective_or_axis_is_the_caller_s_error() -> None:
    with pytest.raises(
        ValueError, match="no collective 'broadcast': all-reduce, all-gather, reduce-scatter, all-"
    ):
        star(2).ns("broadcast", "dp", 1)
    with pytest.raises(ValueError, match="no groups along 'xp'"):
        star(2).ns("all-reduce", "xp", 1)


def test_members_without_a_route_are_one_clear_line() -> None:
    network = cluster(nodes=2, gpus=2, nics=1, joined=False)
    job = LinkCollectives(network=network, groups=Layout(dp=2, tp=2).groups)

    assert job.ns("all-reduce", "tp", 100) > 0
    message = "cluster: no route between GPU 0 and GPU 2, which take part in one collective: give the cluster a "
    for collective in ("all-reduce", "all-to-all"):
        with pytest.raises(ConfigError, match=f"^{message}fabric, or fewer nodes$"):
            job.ns(collective, "dp", 100)


@dataclass
class Counted:
    """A network that counts how often it is asked."""

    network: Network
    asked: int = 0

    @property
    def links(self) -> Links:
        return self.network.links

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        self.asked += 1
        return self.network.paths(src, dst)


def test_links_are_counted_once_for_each_axis_and_algorithm() -> None:
    network = Counted(Ports(gpus=16, nics=0, gpu_kbps=RATE, nic_kbps=1))
    job = LinkCollectives(network=network, groups=Layout(dp=4, tp=4).groups)

    for size in range(100):
        for collective in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
            for axis in ("tp", "dp"):
                job.ns(collective, axis, size)

    assert network.asked == 2 * len(("ring", "tree", "pairwise"))


@pytest.mark.parametrize(
    ("layout", "members"),
    [
        (Layout(dp=16, ep=16), {"ep-rail": 4, "ep-node": 4}),
        (Layout(dp=8, ep=8, tp=2), {"ep-rail": 4, "ep-node": 2}),
        (Layout(dp=4, ep=4, tp=4), {"ep-rail": 4, "ep-node": 1}),
        (Layout(dp=4, ep=4, pp=4), {"ep-rail": 1, "ep-node": 4}),
        (Layout(dp=6, ep=6, pp=2), {"ep-rail": 1, "ep-node": 6}),  # four members in one node, and two in another
        (Layout(dp=6, ep=3, pp=2), {"ep-rail": 1, "ep-node": 3}),  # the second group continues in the next node
    ],
)
def test_groups_have_parts_in_nodes_and_rails(layout: Layout, members: dict[str, int]) -> None:
    job = LinkCollectives(network=cluster(nodes=4, gpus=4, nics=4), groups=layout.groups)

    assert {axis: job.members(axis) for axis in members} == members


def test_the_examples_in_the_documentation_are_right() -> None:
    for module in (collectives, collectives):
        assert doctest.testmod(module).failed == 0
