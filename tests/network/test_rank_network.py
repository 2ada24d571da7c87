"""A hop between pipeline ranks is the bundle of its members' flows, counted one by one."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import cluster

from pptrace.errors import ConfigError
from pptrace.network.cluster import (
    AXES,
    Layout,
    RankNetwork,
    SharedLayout,
    _hash,
    flows_of_gpu,
    message_share,
    resharded,
    sibling_replicas,
)
from pptrace.network.contract import UNLIMITED, Flat, Paths, check_paths


@st.composite
def hops(draw: st.DrawFn) -> RankNetwork:
    pp, dp, cp, tp = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
    )
    gpus = draw(st.integers(1, 4))
    job = Layout(pp=pp, dp=dp, cp=cp, tp=tp, order=tuple(draw(st.permutations(AXES))))
    return RankNetwork(
        layout=job,
        network=cluster(
            nodes=-(-job.gpus // gpus),
            gpus=gpus,
            nics=draw(st.integers(1, gpus)),
            per_leaf=draw(st.integers(1, 4)),
            spines=draw(st.integers(1, 3)),
            gpu_kbps=draw(st.integers(1, 9000)),
            spine_kbps=draw(st.integers(1, 3000)),
            flow_kbps=draw(st.integers(0, 500)),
        ),
    )


def path_of(network: RankNetwork, src: int, dst: int) -> Paths:
    return network.paths(np.array([src], dtype=np.int32), np.array([dst], dtype=np.int32))


def links_of(paths: Paths, row: int) -> list[int]:
    return paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]].tolist()


def flows_of(network: RankNetwork, src: int, dst: int) -> list[Paths]:
    """Return what lies between each member of a rank and the same member of another."""
    members = network.layout.members()
    pairs = zip(members[src], members[dst], strict=True)
    return [network.network.paths(np.array([a], dtype=np.int32), np.array([b], dtype=np.int32)) for a, b in pairs]


@given(hops(), st.data())
def test_a_hop_is_the_bundle_of_what_each_member_sends(network: RankNetwork, data: st.DataObject) -> None:
    rank = st.integers(0, network.layout.pp - 1)
    pairs = data.draw(st.lists(st.tuples(rank, rank), max_size=4))
    src, dst = np.array(pairs, dtype=np.int32).reshape(-1, 2).T

    paths = network.paths(src, dst)

    check_paths(paths, len(pairs), len(network.links))
    turns = _hash(np.arange(network.layout.members().shape[1])).tolist()
    for row in range(len(paths)):
        pair, way = divmod(row, paths.per_pair)
        flows = flows_of(network, *pairs[pair])
        taken = [
            (flow, (way + turn) % paths.per_pair % flow.per_pair) for flow, turn in zip(flows, turns, strict=True)
        ]
        times = Counter(link for flow, index in taken for link in links_of(flow, index))
        limits = [int(flow.rate_kbps[index]) for flow, index in taken if flow.rate_kbps[index] != UNLIMITED]
        limits += [max(int(network.links.rate_kbps[link]) // count, 1) for link, count in times.items()]
        entries = slice(paths.link_ptr[row], paths.link_ptr[row + 1])
        assert dict(zip(links_of(paths, row), paths.weight[entries].tolist(), strict=True)) == times
        assert paths.rate_kbps[row] == min(limits, default=UNLIMITED)
        assert paths.latency_ns[row] == max(flow.latency_ns[index] for flow, index in taken)
        assert paths.overhead_ns[row] == max(flow.overhead_ns[index] for flow, index in taken)
        assert paths.route[paths.route_ptr[row] : paths.route_ptr[row + 1]].tolist() == links_of(*taken[0])


SIZES = st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 6]))
"""Replicas, context-parallel parts and tensor-parallel copies of a grid."""


@given(SIZES, SIZES)
def test_flows_between_two_grids_give_each_receiver_its_part_once(
    source: tuple[int, int, int], target: tuple[int, int, int]
) -> None:
    senders, receivers = np.arange(prod(source)).reshape(source), np.arange(prod(target)).reshape(target)
    share = message_share(source, target) / (source[0] * source[1])  # of the bytes of all replicas

    flows = list(zip(*(side.tolist() for side in resharded(senders, receivers)), strict=True))

    for gpu, (replica, part, _) in enumerate(np.ndindex(target)):
        own = [flow for flow in flows if flow[1] == gpu]
        assert len(own) * share == Fraction(1, target[0] * target[1])
        for sender, _ in own:
            held = np.unravel_index(sender, source)
            for axis, index in enumerate((replica, part)):
                low, high = (
                    max(held[axis] * target[axis], index * source[axis]),
                    min((held[axis] + 1) * target[axis], (index + 1) * source[axis]),
                )
                assert low < high, "the sender holds nothing of what the receiver needs"
    busiest = max(max(Counter(side).values()) for side in zip(*flows, strict=True))
    assert busiest == flows_of_gpu(source, target)
    if source == target:
        assert flows == [(gpu, gpu) for gpu in range(prod(source))]
        assert message_share(source, target) == 1


@given(SIZES, st.sampled_from([1, 2, 3]), st.integers(1, 2))
def test_an_encoder_on_the_gpus_of_a_decoder_keeps_its_context_parallel_parts(
    sizes: tuple[int, int, int], scale: int, turn: int
) -> None:
    dp, cp, tp = sizes
    decoder = Layout(pp=2, dp=dp, cp=cp, tp=tp * scale)
    wide, narrow = decoder, SharedLayout(dp=dp * scale, cp=cp, tp=tp, host=decoder)
    if turn == 2:  # the encoder has the larger replicas
        wide = SharedLayout(dp=dp, cp=cp, tp=tp * scale, host=Layout(dp=dp * scale, cp=cp, tp=tp))
        narrow = wide.host

    for (replica, part, _), gpu in np.ndenumerate(narrow.grid()[0]):
        assert gpu in wide.grid()[0, replica // scale, part]
    gathered = sibling_replicas(narrow.grid()[:1], scale)
    assert sorted(gathered.ravel().tolist()) == sorted(narrow.grid()[0].ravel().tolist())
    for group in gathered:
        assert len({tuple(np.argwhere(wide.grid()[0] == gpu)[0][:2]) for gpu in group}) == 1


@given(hops())
def test_over_all_ways_each_member_takes_each_way_once(network: RankNetwork) -> None:
    last = network.layout.pp - 1

    paths = path_of(network, 0, last)

    expected: Counter[int] = Counter()
    for flow in flows_of(network, 0, last):
        for way in range(paths.per_pair):
            expected.update(links_of(flow, way % flow.per_pair))
    bundled: Counter[int] = Counter()
    for link, weight in zip(paths.link.tolist(), paths.weight.tolist(), strict=True):
        bundled[link] += weight
    assert bundled == expected


def test_eight_members_over_eight_rails_are_eight_times_as_fast_as_over_one_nic() -> None:
    def rate(nics: int) -> int:
        network = RankNetwork(
            network=cluster(nodes=2, gpus=8, nics=nics, per_leaf=2 * nics), layout=Layout(pp=2, tp=8)
        )
        return int(path_of(network, 0, 1).rate_kbps[0])

    assert rate(8) == 1000
    assert rate(1) == 1000 // 8
    assert rate(2) == 1000 // 4


def test_eight_replicas_on_a_spine_of_four_to_one_get_a_quarter_of_what_one_gets() -> None:
    """A leaf has eight hosts of 1000 kB/s and one link up of 2000."""
    wide = cluster(nodes=16, gpus=1, nics=1, per_leaf=8, spine_kbps=2000)

    one_replica = path_of(RankNetwork(network=wide, layout=Layout(pp=16)), 7, 8)
    eight = path_of(RankNetwork(network=wide, layout=Layout(pp=2, dp=8)), 0, 1)

    assert one_replica.rate_kbps.tolist() == [1000]
    assert eight.rate_kbps.tolist() == [2000 // 8]
    weights = {wide.links.name[link]: weight for link, weight in zip(eight.link, eight.weight, strict=True)}
    assert {name: weight for name, weight in weights.items() if weight > 1} == {
        "leaf0spine0u": 8,
        "leaf1spine0d": 8,
    }


def test_replicas_beside_each_other_in_a_leaf_never_meet() -> None:
    network = cluster(nodes=16, gpus=1, nics=1, per_leaf=8, spine_kbps=2000)
    job = Layout(pp=2, dp=8, order=("pp", "tp", "cp", "ep", "dp"))

    paths = path_of(RankNetwork(network=network, layout=job), 0, 1)

    assert paths.rate_kbps.tolist() == [1000]
    assert set(paths.weight.tolist()) == {1}


def test_a_hop_inside_a_node_never_touches_the_fabric() -> None:
    job = cluster(nodes=2, gpus=8, nics=8, per_leaf=16, spines=4)
    network = RankNetwork(network=job, layout=Layout(pp=4, tp=4))

    inside, across = path_of(network, 0, 1), path_of(network, 1, 2)

    assert {job.links.name[link].partition("/")[0] for link in inside.link} == {"node0"}
    assert inside.rate_kbps.tolist() == [9000]
    assert {name for name in (job.links.name[link] for link in across.link) if name.startswith("host")}
    assert across.rate_kbps.tolist() == [1000] * 4


def test_messages_over_no_links_are_as_fast_as_each_member_s() -> None:
    flat = RankNetwork(network=Flat(rate_kbps=500, latency_ns=7, overhead_ns=9), layout=Layout(pp=2, tp=4))
    ideal = RankNetwork(network=Flat(), layout=Layout(pp=2, tp=4))

    paths = path_of(flat, 0, 1)

    assert (paths.rate_kbps[0], paths.latency_ns[0], paths.overhead_ns[0]) == (500, 7, 9)
    assert path_of(ideal, 0, 1).rate_kbps.tolist() == [UNLIMITED]
    assert len(flat.links) == paths.link.size == 0


def test_a_rank_and_itself_share_no_link() -> None:
    network = RankNetwork(network=cluster(nodes=2, gpus=2, nics=1), layout=Layout(pp=2, tp=2))

    assert path_of(network, 1, 1).link.size == 0
    assert path_of(network, 1, 1).rate_kbps.tolist() == [UNLIMITED]


def test_more_flows_than_a_link_has_rate_still_move() -> None:
    network = RankNetwork(network=cluster(nodes=2, gpus=8, nics=1, nic_kbps=5), layout=Layout(pp=2, tp=8))

    assert path_of(network, 0, 1).rate_kbps.tolist() == [1]


def test_a_hop_without_a_route_is_one_clear_line() -> None:
    network = RankNetwork(network=cluster(nodes=2, gpus=2, nics=1, joined=False), layout=Layout(pp=2, tp=2))

    message = (
        "cluster: no route from GPU 0 of rank 0 to GPU 2 of rank 1: give the cluster a fabric, or fewer nodes"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        path_of(network, 0, 1)
