"""Laws that collectives keep on any cluster and layout, and flows counted one by one beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import cluster

from pptrace.network import collectives
from pptrace.network.cluster import AXES, Layout
from pptrace.network.collectives import LinkCollectives, _group_by_members, ring, trees
from pptrace.network.contract import Links, Network, Paths

if TYPE_CHECKING:
    from pptrace.network.cluster import Cluster


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
        return Paths.along(self.links, paths.link_ptr, paths.link, per_pair=paths.per_pair)


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

    before = LinkCollectives(network=Slower(network=network), groups=layout.groups)
    after = LinkCollectives(network=Slower(network=network, rates=half), groups=layout.groups)

    assert before.ns(collective, axis, size) <= after.ns(collective, axis, size)


@given(jobs(), COLLECTIVES, GROUPED, st.integers(0, 10**9))
def test_more_bytes_never_take_less_and_a_sum_never_more_than_a_scatter_and_a_gather(
    job: tuple[Cluster, Layout], collective: str, axis: str, size: int
) -> None:
    network, layout = job
    times = LinkCollectives(network=network, groups=layout.groups)

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
    groups_by_members = _group_by_members(groups, network)
    channels = max(members.channels for members, _ in groups_by_members)
    rings, edges = [], []
    for members, of_kind in groups_by_members:
        for channel in range(channels):
            order = ring(members, channel)
            for group in of_kind.tolist():
                rings += [(group[a], group[b]) for a, b in zip(order, [*order[1:], order[0]], strict=True)]
                for child, parent in (edge for tree in trees(members, channel) for edge in tree):
                    edges += [(group[child], group[parent]), (group[parent], group[child])]
    pairs = [(a, b) for group in groups.tolist() for a in group for b in group if a != b]

    by_rounds = collectives.ring_plans(network, groups_by_members, channels)

    assert by_rounds[1].byte_ns == slowest(network, rings) * (size - 1) / (size * channels)
    assert by_rounds[2].byte_ns == 2 * by_rounds[1].byte_ns
    assert collectives.tree_plan(network, groups_by_members, channels).byte_ns == slowest(network, edges) / (
        2 * channels
    )
    assert collectives.pairwise_plan(network, groups).byte_ns == slowest(network, pairs) / size


def slowest(network: Network, flows: list[tuple[int, int]]) -> Fraction:
    """Return what a byte of each flow takes, counted one by one."""
    carried: Counter[int] = Counter()
    limits = []
    for (a, b), groups_by_members in Counter(flows).items():
        paths = network.paths(np.array([a], dtype=np.int32), np.array([b], dtype=np.int32))
        limits.append(int(paths.rate_kbps.min()))
        for link in paths.link.tolist():
            carried[link] += Fraction(groups_by_members, paths.per_pair)
    shared = [count * 10**6 / int(network.links.rate_kbps[link]) for link, count in carried.items()]
    return max(*shared, Fraction(10**6, min(limits)))


@given(jobs(), GROUPED, st.integers(0, 10**6))
def test_a_ring_takes_no_less_than_its_steps_played_one_by_one(
    job: tuple[Cluster, Layout], axis: str, size: int
) -> None:
    """A member sends a part when it has arrived and the one before has left; alike hops give the same time."""
    network, layout = job
    times = LinkCollectives(network=network, groups=layout.groups)
    result = times.fastest("all-gather", axis, size)
    if result.algorithm == "none":
        return
    groups = np.sort(layout.groups(axis), axis=1)
    groups_by_members, members = _group_by_members(groups, network), groups.shape[1]
    plan = collectives.ring_plans(network, groups_by_members, result.channels)[1]
    carried = plan.byte_ns * size / (members - 1)
    for kind, of_kind in groups_by_members:
        for channel in range(result.channels):
            for order in of_kind[:, ring(kind, channel)]:
                paths = network.paths(order, np.roll(order, -1))
                overhead = paths.overhead_ns.reshape(members, -1).max(axis=1).tolist()
                latency = paths.latency_ns.reshape(members, -1).max(axis=1).tolist()
                played = play(members - 1, overhead, latency, carried)
                assert played <= result.ns(size)
                if len(set(overhead)) == len(set(latency)) == 1 == groups.shape[0] == result.channels:
                    assert ceil(played) == result.ns(size)


def play(steps: int, overhead: list[int], latency: list[int], carried: Fraction) -> Fraction:
    members = range(len(overhead))
    free, arrived = [[Fraction(0) for _ in members] for _ in "ab"]
    for _ in range(steps):
        left = [max(free[m], arrived[m]) + carried for m in members]
        free, arrived = left, [left[m - 1] + overhead[m - 1] + latency[m - 1] for m in members]
    return max(arrived)
