"""Who sends to whom in a ring and in a double binary tree, as NCCL builds them.

Members of a node stay together: a ring passes through a node once, and a tree has one edge between two nodes.
Every other node is passed in reverse, so that a ring leaves one node and enters the next over NICs of one number
(a rail), as NCCL does by exchanging rings on odd nodes. A *channel* is one such ring, or pair of trees; channel
``k`` starts in every node at the members of the node's ``k``-th NIC. NCCL's ``src/graph/connect.cc`` and
``src/graph/trees.cc`` have both (version 2.30); its trees pass a node as a chain, ours as a tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Edge", "Members", "binary_tree", "ring", "trees"]

Edge = tuple[int, int]
"""(child, parent)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Where the members of a group, numbered from 0, are.

    >>> Members(nodes=(((0, 1), (2,)), ((3,),))).channels
    2
    """

    nodes: tuple[tuple[tuple[int, ...], ...], ...]
    """Per node and NIC the members that use it."""

    @property
    def channels(self) -> int:
        """How many NICs of a node the group can use; 1 within a node."""
        return max(map(len, self.nodes)) if len(self.nodes) > 1 else 1

    def of_node(self, node: int, channel: int) -> list[int]:
        """Return a node's members, those of the channel's NIC first."""
        nics = self.nodes[node]
        turn = channel % len(nics)
        return [member for nic in (*nics[turn:], *nics[:turn]) for member in nic]


def ring(members: Members, channel: int) -> list[int]:
    """Return the order of a ring; the last member sends to the first.

    >>> ring(Members(nodes=(((0,), (1,)), ((2,), (3,)))), channel=1)
    [1, 0, 2, 3]
    """
    order: list[int] = []
    for node in range(len(members.nodes)):
        local = members.of_node(node, channel)
        order += reversed(local) if node % 2 else local
    return order


def trees(members: Members, channel: int) -> tuple[list[Edge], list[Edge]]:
    """Return the edges of two trees, a parent's own before its children's.

    A node's members are a tree under one of them, and those are the members of a tree of nodes. Who has children
    in one of the trees has few or none in the other.
    """
    first, second = (_tree(members, channel, complementary=which) for which in (False, True))
    return first, second


def _tree(members: Members, channel: int, *, complementary: bool) -> list[Edge]:
    nodes = range(len(members.nodes))
    local = [_turned(members.of_node(node, channel), turn=complementary) for node in nodes]
    heads = _turned([order[0] for order in local], turn=complementary)
    return [
        (order[child], order[parent]) for order in (heads, *local) for child, parent in binary_tree(len(order))
    ]


def _turned(order: list[int], *, turn: bool) -> list[int]:
    """Return an order whose tree is complementary: backwards where it is even, else moved by one."""
    if not turn:
        return order
    return [*order[1:], order[0]] if len(order) % 2 else order[::-1]


def binary_tree(size: int) -> Sequence[Edge]:
    """Return the edges of a tree of ``size`` members under member 0, ``ceil(log2(size))`` deep.

    A member's parent has its lowest set bit cleared and the next one set, or only cleared where that is none.

    >>> binary_tree(6)
    [(4, 0), (2, 4), (1, 2), (3, 2), (5, 4)]
    """
    edges = []
    for child in sorted(range(1, size), key=lambda member: (-(member & -member), member)):
        bit = child & -child
        parent = (child ^ bit) | (bit << 1)
        edges.append((child, parent if parent < size else child ^ bit))
    return edges
