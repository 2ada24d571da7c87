"""Collectives take what their formulas say, on the links that their flows are counted on."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import Ports, cluster

from pptrace.errors import ConfigError
from pptrace.model.layout import AXES, Layout
from pptrace.network import algorithms, plans
from pptrace.network.algorithms import Members, binary_tree, ring, trees
from pptrace.network.collectives import LinkCollectives, _alike
from pptrace.network.contract import Links, Network, Paths
from pptrace.network.flat import Flat

if TYPE_CHECKING:
    from pptrace.network.cluster import Cluster

RATE = 1000
HOP = 2 * 3
"""Latency of a port up and a port down."""
LAUNCH = 2


def star(members: int) -> LinkCollectives:
    """Return collectives of all GPUs of one switch."""
    return LinkCollectives(
        network=Ports(gpus=members, nics=0, gpu_kbps=RATE, nic_kbps=1), layout=Layout(dp=members)
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
    if job.explain("all-reduce", "dp", size).algorithm == "ring":
        assert job.ns("all-reduce", "dp", size) == reduced


@given(members=st.integers(4, 40), size=st.integers(0, 10**13))
def test_on_one_switch_an_all_reduce_is_the_better_of_ring_and_tree(members: int, size: int) -> None:
    """Inside a tree a member sends half of the vector to three others, and as a leaf of the other tree to one."""
    steps, deep = 2 * (members - 1), 2 * ceil(log2(members))

    by_ring = steps * (HOP + LAUNCH) + byte_ns(Fraction(steps * size, members))
    by_tree = deep * (HOP + LAUNCH) + byte_ns(2 * size)

    found = star(members).explain("all-reduce", "dp", size)
    assert found.ns == min(by_ring, by_tree)
    assert found.algorithm == ("ring" if by_ring <= by_tree else "tree")


def test_many_members_sum_small_vectors_by_a_tree_and_large_ones_by_a_ring() -> None:
    job = star(64)

    assert job.explain("all-reduce", "dp", 10).algorithm == "tree"
    assert job.explain("all-reduce", "dp", 10**9).algorithm == "ring"
    assert star(2).explain("all-reduce", "dp", 10).algorithm == "ring"


@given(members=st.integers(2, 20), size=st.integers(0, 10**13))
def test_on_one_switch_an_all_to_all_is_bound_by_a_port(members: int, size: int) -> None:
    found = star(members).explain("all-to-all", "dp", size)

    others = members - 1
    assert found.ns == others * LAUNCH + HOP + byte_ns(Fraction(others * size, members))
    assert (found.algorithm, found.channels, found.link) == ("pairwise", 1, "port0up")


def across(nics: int, *, nodes: int = 2, **sizes: int) -> LinkCollectives:
    """Return collectives over nodes of eight GPUs under one leaf, with much room inside the nodes."""
    network = cluster(nodes=nodes, gpus=8, nics=nics, per_leaf=nodes * nics, gpu_kbps=10**6)
    return LinkCollectives(network=network, layout=Layout(**(sizes or {"dp": 8 * nodes})))


def test_a_ring_over_two_nodes_is_bound_by_their_nics() -> None:
    """Fifteen steps of a sixteenth of the vector, on eight NICs of 1000 kB/s: 10^6 ns a kilobyte each."""
    found = across(8).explain("all-gather", "dp", 16_000)

    assert found.algorithm == "ring"
    assert found.channels == 8
    assert re.fullmatch(r"node\d/port(8|9|1\d)(up|down)|host\d+(up|down)", found.link)
    assert per_byte(across(8), "all-gather") == Fraction(15, 16) * 1000 / 8
    assert per_byte(across(8, nodes=4), "all-gather") == Fraction(31, 32) * 1000 / 8


def test_two_nodes_sum_by_a_tree_that_crosses_once_each_way() -> None:
    """Half of the vector goes up and half comes down on each of two trees: once the vector, not twice 15/16."""
    assert across(8).explain("all-reduce", "dp", 10**9).algorithm == "tree"
    assert per_byte(across(8), "all-reduce") == Fraction(1000, 8)
    assert across(8, nodes=8).explain("all-reduce", "dp", 10**12).algorithm == "ring"
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
    assert own.explain(collective, "dp", 10**6).channels == 1


def test_the_groups_of_all_pipeline_ranks_share_the_links() -> None:
    alone = across(1, nodes=2, dp=2, tp=4, pp=2)
    job = Layout(dp=2, tp=4, pp=2, order=("tp", "cp", "pp", "ep", "dp"))
    both = LinkCollectives(network=alone.network, layout=job)

    assert not alone.explain("all-gather", "dp", 10**9).link.startswith("host")
    assert per_byte(both, "all-gather") == 8 * Fraction(1, 2) * 1000


def test_groups_inside_nodes_never_wait_for_the_fabric() -> None:
    job = across(1, dp=2, tp=8)

    assert per_byte(job, "all-gather", "tp") == Fraction(7, 8)
    assert job.explain("all-gather", "tp", 10**9).link == "node0/port0up"


def test_an_oversubscribed_spine_is_what_a_collective_waits_for() -> None:
    """Eight hosts of 1000 kB/s on each of two leaves: 4:1 is two links up of 1000, on which the ways are even."""

    def job(spines: int) -> LinkCollectives:
        network = cluster(nodes=16, gpus=1, nics=1, per_leaf=8, spines=spines, spine_kbps=1000)
        return LinkCollectives(network=network, layout=Layout(dp=16))

    assert per_byte(job(8), "all-to-all") == Fraction(15, 16) * 1000
    assert per_byte(job(2), "all-to-all") == Fraction(8 * 8, 16) * 1000 / 2
    assert job(2).explain("all-to-all", "dp", 10**9).link == "leaf0spine0u"
    # A ring crosses once each way, and takes both ways in turn.
    assert per_byte(job(2), "all-gather") == Fraction(15, 16) * 1000


def test_a_flow_that_does_not_fill_its_links_bounds_the_ring() -> None:
    network = cluster(nodes=2, gpus=1, nics=1, flow_kbps=100)
    job = LinkCollectives(network=network, layout=Layout(dp=2))

    assert per_byte(job, "all-gather") == Fraction(1, 2) * 10_000
    assert job.explain("all-gather", "dp", 10**6).link == "leaf0spine0u"


@given(size=st.integers(0, 10**9))
def test_over_a_network_without_links_members_send_one_flow_at_a_time(size: int) -> None:
    flat = LinkCollectives(network=Flat(rate_kbps=RATE, latency_ns=HOP, overhead_ns=LAUNCH), layout=Layout(dp=8))

    for collective in ("all-reduce", "all-gather", "all-to-all"):
        assert flat.ns(collective, "dp", size) == star(8).ns(collective, "dp", size)
        assert flat.explain(collective, "dp", size).link == ""


def test_over_an_ideal_network_bytes_take_no_time() -> None:
    for collective in ("all-reduce", "all-gather", "all-to-all"):
        assert LinkCollectives(network=Flat(), layout=Layout(dp=4)).ns(collective, "dp", 10**15) == 0


@pytest.mark.parametrize("axis", ["tp", "cp", "ep", "dp", "edp"])
@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_a_group_of_one_takes_no_time(collective: str, axis: str) -> None:
    found = LinkCollectives(network=cluster(nodes=2, gpus=1, nics=1), layout=Layout(pp=2)).explain(
        collective, axis, 10**9
    )

    assert (found.ns, found.algorithm, found.channels, found.link) == (0, "none", 0, "")


def test_an_unknown_collective_or_axis_is_the_caller_s_error() -> None:
    with pytest.raises(
        ValueError, match="no collective 'broadcast': all-reduce, all-gather, reduce-scatter, all-"
    ):
        star(2).ns("broadcast", "dp", 1)
    with pytest.raises(ValueError, match="no groups along 'pp'"):
        star(2).ns("all-reduce", "pp", 1)


def test_members_without_a_route_are_one_clear_line() -> None:
    network = cluster(nodes=2, gpus=2, nics=1, joined=False)
    job = LinkCollectives(network=network, layout=Layout(dp=2, tp=2))

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
    job = LinkCollectives(network=network, layout=Layout(dp=4, tp=4))

    for size in range(100):
        for collective in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
            for axis in ("tp", "dp"):
                job.ns(collective, axis, size)

    assert network.asked == 2 * len(("ring", "tree", "pairwise"))


@dataclass(frozen=True, kw_only=True)
class Slower:
    """A cluster some of whose links have another rate."""

    network: Cluster
    rates: dict[int, int] = field(default_factory=dict)

    @property
    def links(self) -> Links:
        links = self.network.links
        rate = links.rate_kbps.copy()
        for link, kbps in self.rates.items():
            rate[link] = kbps
        return Links(
            name=links.name, rate_kbps=rate, latency_ns=links.latency_ns,
            overhead_ns=links.overhead_ns, flow_rate_kbps=links.flow_rate_kbps,
        )  # fmt: skip

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        paths = self.network.paths(src, dst)
        return Paths.along(self.links, paths.link_ptr, paths.link, ways=paths.ways)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Cluster, Layout]:
    dp, cp, tp, pp = (draw(st.integers(1, 3)) for _ in range(4))
    ep = draw(st.sampled_from([size for size in range(1, dp * cp + 1) if dp * cp % size == 0]))
    job = Layout(dp=dp, cp=cp, tp=tp, pp=pp, ep=ep, order=tuple(draw(st.permutations(AXES))))
    gpus = draw(st.integers(1, 6))
    network = cluster(
        nodes=-(-job.gpus // gpus),
        gpus=gpus,
        nics=draw(st.integers(1, gpus)),
        per_leaf=draw(st.integers(1, 4)),
        spines=draw(st.integers(1, 3)),
        gpu_kbps=draw(st.integers(1, 9000)),
        spine_kbps=draw(st.integers(1, 3000)),
        flow_kbps=draw(st.integers(0, 500)),
    )
    return network, job


COLLECTIVES = st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
GROUPED = st.sampled_from(["tp", "cp", "ep", "dp", "edp"])


@given(jobs(), COLLECTIVES, GROUPED, st.integers(0, 10**9), st.data())
def test_halving_a_capacity_never_shortens(
    job: tuple[Cluster, Layout], collective: str, axis: str, size: int, data: st.DataObject
) -> None:
    network, layout = job
    link = data.draw(st.integers(0, len(network.links) - 1))
    half = {link: max(int(network.links.rate_kbps[link]) // 2, 1)}

    before = LinkCollectives(network=Slower(network=network), layout=layout)
    after = LinkCollectives(network=Slower(network=network, rates=half), layout=layout)

    assert before.ns(collective, axis, size) <= after.ns(collective, axis, size)


@given(jobs(), COLLECTIVES, GROUPED, st.integers(0, 10**9))
def test_more_bytes_never_take_less_and_a_sum_never_more_than_a_scatter_and_a_gather(
    job: tuple[Cluster, Layout], collective: str, axis: str, size: int
) -> None:
    network, layout = job
    times = LinkCollectives(network=network, layout=layout)

    assert times.ns(collective, axis, size) <= times.ns(collective, axis, size + 1)
    both = times.ns("reduce-scatter", axis, size) + times.ns("all-gather", axis, size)
    assert times.ns("all-reduce", axis, size) <= both


@given(jobs(), GROUPED)
def test_what_a_byte_takes_is_that_of_the_busiest_link_counted_flow_by_flow(
    job: tuple[Cluster, Layout], axis: str
) -> None:
    network, layout = job
    groups = np.sort(layout.groups(axis), axis=1)
    size = groups.shape[1]
    if size == 1:
        return
    alike = _alike(groups, network)
    channels = max(members.channels for members, _ in alike)
    rings, edges = [], []
    for members, of_kind in alike:
        for channel in range(channels):
            order = ring(members, channel)
            for group in of_kind.tolist():
                rings += [(group[a], group[b]) for a, b in zip(order, [*order[1:], order[0]], strict=True)]
                for child, parent in (edge for tree in trees(members, channel) for edge in tree):
                    edges += [(group[child], group[parent]), (group[parent], group[child])]
    pairs = [(a, b) for group in groups.tolist() for a in group for b in group if a != b]

    by_rounds = plans.ring_plans(network, alike, channels)

    assert by_rounds[1].byte_ns == slowest(network, rings) * (size - 1) / (size * channels)
    assert by_rounds[2].byte_ns == 2 * by_rounds[1].byte_ns
    assert plans.tree_plan(network, alike, channels).byte_ns == slowest(network, edges) / (2 * channels)
    assert plans.pairwise_plan(network, groups).byte_ns == slowest(network, pairs) / size


def slowest(network: Network, flows: list[tuple[int, int]]) -> Fraction:
    """Return what a byte of each flow takes, counted one by one."""
    carried: Counter[int] = Counter()
    limits = []
    for a, b in flows:
        paths = network.paths(np.array([a], dtype=np.int32), np.array([b], dtype=np.int32))
        limits.append(int(paths.rate_kbps.min()))
        for link in paths.link.tolist():
            carried[link] += Fraction(1, paths.ways)
    shared = [count * 10**6 / int(network.links.rate_kbps[link]) for link, count in carried.items()]
    return max(*shared, Fraction(10**6, min(limits)))


@given(jobs(), GROUPED, st.integers(0, 10**6))
def test_a_ring_takes_no_less_than_its_steps_played_one_by_one(
    job: tuple[Cluster, Layout], axis: str, size: int
) -> None:
    """A member sends a part when it has arrived and the one before has left; alike hops give the same time."""
    network, layout = job
    times = LinkCollectives(network=network, layout=layout)
    found = times.explain("all-gather", axis, size)
    if found.algorithm == "none":
        return
    groups = np.sort(layout.groups(axis), axis=1)
    alike, members = _alike(groups, network), groups.shape[1]
    plan = plans.ring_plans(network, alike, found.channels)[1]
    carried = plan.byte_ns * size / (members - 1)
    for kind, of_kind in alike:
        for channel in range(found.channels):
            for order in of_kind[:, ring(kind, channel)]:
                paths = network.paths(order, np.roll(order, -1))
                overhead = paths.overhead_ns.reshape(members, -1).max(axis=1).tolist()
                latency = paths.latency_ns.reshape(members, -1).max(axis=1).tolist()
                played = play(members - 1, overhead, latency, carried)
                assert played <= found.ns
                if len(set(overhead)) == len(set(latency)) == 1 == groups.shape[0] == found.channels:
                    assert ceil(played) == found.ns


def play(steps: int, overhead: list[int], latency: list[int], carried: Fraction) -> Fraction:
    members = range(len(overhead))
    free, arrived = [[Fraction(0) for _ in members] for _ in "ab"]
    for _ in range(steps):
        left = [max(free[m], arrived[m]) + overhead[m] + carried for m in members]
        free, arrived = left, [left[m - 1] + latency[m - 1] for m in members]
    return max(arrived)


@st.composite
def members(draw: st.DrawFn) -> Members:
    nodes, place = [], 0
    for _ in range(draw(st.integers(1, 5))):
        nics = []
        for size in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
            nics.append(tuple(range(place, place + size)))
            place += size
        nodes.append(tuple(nics))
    return Members(nodes=tuple(nodes))


def node_of(group: Members) -> dict[int, int]:
    return {member: node for node, nics in enumerate(group.nodes) for nic in nics for member in nic}


@given(members(), st.integers(0, 5))
def test_a_ring_passes_each_member_once_and_each_node_once(group: Members, channel: int) -> None:
    node = node_of(group)

    order = ring(group, channel)

    assert sorted(order) == sorted(node)
    assert [node[member] for member in order] == sorted(node.values())


@pytest.mark.parametrize("nodes", [2, 4, 6])
def test_each_ring_leaves_an_even_number_of_nodes_on_the_rail_on_which_it_enters_the_next(nodes: int) -> None:
    group = Members(nodes=tuple(tuple((8 * node + gpu,) for gpu in range(8)) for node in range(nodes)))

    crossed = Counter()
    for channel in range(group.channels):
        order = ring(group, channel)
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            if a // 8 != b // 8:
                assert a % 8 == b % 8
                crossed[a] += 1

    assert group.channels == 8
    assert crossed == dict.fromkeys(range(8 * nodes), 1)


@given(members(), st.integers(0, 5))
def test_trees_span_the_group_with_one_edge_between_two_nodes(group: Members, channel: int) -> None:
    node = node_of(group)

    for edges in trees(group, channel):
        parents = dict(edges)
        assert len(parents) == len(edges) == len(node) - 1
        reached = {next(iter(set(node) - set(parents)))}
        for child, parent in edges:
            assert parent in reached
            reached.add(child)
        assert reached == set(node)
        assert sum(node[a] != node[b] for a, b in edges) == len(group.nodes) - 1


@given(st.integers(1, 300))
def test_a_binary_tree_is_as_deep_as_the_logarithm(size: int) -> None:
    depth, children = {0: 0}, Counter()
    for child, parent in binary_tree(size):
        depth[child] = depth[parent] + 1
        children[parent] += 1

    assert sorted(depth) == list(range(size))
    assert max(depth.values()) == ceil(log2(size))
    assert max(children.values(), default=0) <= 2


@given(st.integers(1, 50))
def test_who_has_children_in_one_tree_of_an_even_group_is_a_leaf_of_the_other(half: int) -> None:
    group = Members(nodes=((tuple(range(2 * half)),),))

    first, second = ({parent for _, parent in edges} for edges in trees(group, 0))

    assert not first & second


def test_the_examples_in_the_documentation_are_right() -> None:
    for module in (algorithms, plans):
        assert doctest.testmod(module).failed == 0
