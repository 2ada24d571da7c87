"""Rings and trees join the members that they are meant to join, each once."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.network.collectives import Members, binary_tree, ring, trees


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
