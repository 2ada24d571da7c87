"""What of a collective only shows where hops, members or pairs differ, each case counted by hand."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from small_clusters import Ports, cluster

from pptrace.network import collectives
from pptrace.network.cluster import Layout
from pptrace.network.collectives import CollectivePlan, LinkCollectives, _group_by_members
from pptrace.network.contract import Flat

if TYPE_CHECKING:
    import pytest

    from pptrace.network.contract import Links, Network, Paths


def per_byte(job: LinkCollectives, collective: str) -> Fraction:
    """Return what a byte of a large vector adds over all replicas."""
    large = 10**12
    return Fraction(job.ns(collective, "dp", 2 * large) - job.ns(collective, "dp", large), large)


def test_equally_fast_ways_are_taken_in_order_one_channel_first() -> None:
    network = cluster(nodes=2, gpus=8, nics=8, per_leaf=16, gpu_kbps=10**6)
    whole = LinkCollectives(network=network, groups=Layout(dp=16).groups)
    split = LinkCollectives(network=network, groups=Layout(dp=2, tp=8).groups)

    assert whole.fastest("all-gather", "dp", 0).channels == 1
    assert whole.fastest("all-gather", "dp", 10**9).channels == 8
    assert split.fastest("all-gather", "tp", 10**9).channels == 1


def test_groups_in_one_node_use_no_nic_and_one_channel() -> None:
    job = LinkCollectives(network=cluster(nodes=1, gpus=8, nics=8), groups=Layout(dp=8).groups)

    assert job.network.links.name[16] == "node0/port8up"
    assert [members.channels for members, _ in _group_by_members(job.groups("dp"), job.network)] == [1]


def test_members_whose_numbers_alternate_between_nodes_stand_node_by_node_in_a_ring() -> None:
    job = Layout(dp=4, cp=2, order=("tp", "ep", "dp", "cp", "pp"))
    network = cluster(nodes=2, gpus=4, nics=1, per_leaf=2, gpu_kbps=10**6)

    assert job.groups("dp").tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert per_byte(LinkCollectives(network=network, groups=job.groups), "all-gather") == Fraction(7, 8) * 1000


def test_latencies_are_those_of_the_hops_that_a_part_passes() -> None:
    """A ring of four over two nodes hops in turn inside and between nodes; a part is spared the quickest hops."""
    network = cluster(nodes=2, gpus=2, nics=1, per_leaf=2)
    inside, between = 2 + 2 * 3, 2 + 2 + 4 * 3 + 2 * 100
    groups_by_members = _group_by_members(np.array([[0, 1, 2, 3]], dtype=np.int32), network)

    once, twice = (plan.fixed_ns for plan in collectives.ring_plans(network, groups_by_members, 1).values())

    assert once == 2 * between + inside
    assert twice == 3 * between + 3 * inside


def test_the_member_with_most_peers_far_away_launches_longest() -> None:
    """Of 21 members on nodes of 20, the last sends to all others over a NIC, the others to one."""
    network = cluster(nodes=2, gpus=20, nics=1, per_leaf=2)
    far, near, latency = 2 + 2, 2, 4 * 3 + 2 * 100

    assert (19 * near + far) / 8 < 20 * far / 8 == 10
    assert LinkCollectives(network=network, groups=Layout(dp=21).groups).ns("all-to-all", "dp", 0) == 10 + latency


@dataclass(frozen=True, kw_only=True)
class Doubled:
    """A switch on which each message is two flows on every link."""

    switch: Network

    @property
    def links(self) -> Links:
        return self.switch.links

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        return replace(self.switch.paths(src, dst), weight=np.full(2 * src.size, 2, dtype=np.int32))


def test_a_message_that_is_several_flows_on_a_link_counts_as_often() -> None:
    switch = Ports(gpus=8, nics=0, gpu_kbps=1000, nic_kbps=1)
    once = LinkCollectives(network=switch, groups=Layout(dp=8).groups)
    twice = LinkCollectives(network=Doubled(switch=switch), groups=Layout(dp=8).groups)

    for collective in ("all-reduce", "all-gather", "all-to-all"):
        assert per_byte(twice, collective) == 2 * per_byte(once, collective)


class Uneven(Flat, frozen=True):
    """Pairs without links, slower the further apart they are."""

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        return replace(super().paths(src, dst), rate_kbps=1000 // np.abs(src - dst))


def test_without_links_the_busiest_end_sends_or_receives_at_the_slowest_pair_s_rate() -> None:
    def byte_ns(src: list[int], dst: list[int]) -> Fraction:
        ends = (np.array(column, dtype=np.int32) for column in (src, dst))
        return collectives.flows_at_once(Uneven(), *ends).byte_ns

    assert byte_ns([0, 0, 1], [1, 2, 2]) == 2 * 2000
    assert byte_ns([0, 1, 2, 3], [5, 5, 5, 4]) == 3 * 5000
    assert byte_ns([5, 5, 5, 4], [0, 1, 2, 3]) == 3 * 5000


def test_pairs_asked_for_a_few_at_once_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def times() -> list[CollectivePlan]:
        network = cluster(nodes=3, gpus=4, nics=2, per_leaf=2, spines=3, gpu_kbps=900, spine_kbps=500)
        job = LinkCollectives(network=network, groups=Layout(dp=12).groups)
        return [job.fastest(name, "dp", 10**6) for name in ("all-reduce", "all-gather", "all-to-all")]

    at_once = times()
    monkeypatch.setattr(collectives, "_BATCH", 2)

    assert times() == at_once
