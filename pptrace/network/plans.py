"""Times of the algorithms of collectives, from what their flows leave each other on the links.

With ``n`` members, a vector of ``V`` bytes and ``C`` channels,

* a ring takes ``n - 1`` steps, or ``2 (n - 1)`` for an all-reduce; in each a member sends ``V / n C`` on each
  channel. Overheads and latencies are those of the hops that a part of the vector passes;
* a tree, for an all-reduce, is two complementary binary trees on each channel, each with ``V / 2 C``, in pieces
  and up and down at once; overheads and latencies are those of the longest way up and the longest way down;
* in an all-to-all each member sends ``V / n`` to each other, all at once, but eight at a time are launched: an
  eighth of a member's overheads counts, or its largest, and the largest latency.

Bytes take flows times bytes over capacity on the busiest link, or what a flow's own limit makes of them, in exact
fractions, rounded up to a nanosecond once. NCCL 2.30 counts the latencies of a ring's and a tree's hops like this
(``src/graph/tuning.cc``) and launches eight messages (``NCCL_MAX_DEV_WORK_P2P_PER_BATCH``, ``src/enqueue.cc``);
what its protocols add or take is left out.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pptrace.network.algorithms import ring, trees
from pptrace.network.load import flows_at_once
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.network.algorithms import Edge, Members
    from pptrace.network.contract import Network

__all__ = ["NOTHING", "Plan", "pairwise_plan", "ring_plans", "tree_plan"]

_LAUNCHED = 8
"""Messages of an all-to-all that a member launches at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to do a collective over all groups of an axis.

    >>> Plan(algorithm="ring", channels=1, fixed_ns=6, byte_ns=Fraction(3, 2), link="nic0").ns(3)
    11
    """

    algorithm: str
    """``ring``, ``tree``, ``pairwise`` or ``none``."""
    channels: int
    """Rings, or pairs of trees, that share the vector."""
    fixed_ns: int
    """What it takes without its bytes."""
    byte_ns: Fraction
    """What each byte of the vector adds."""
    link: str
    """Name of the link that decides the latter; empty where none does."""

    def ns(self, size_bytes: int) -> int:
        """Return what a vector takes, rounded up."""
        return self.fixed_ns - (-size_bytes * self.byte_ns.numerator) // self.byte_ns.denominator


NOTHING = Plan(algorithm="none", channels=0, fixed_ns=0, byte_ns=Fraction(0), link="")
"""What a group of one does."""


def ring_plans(network: Network, alike: Sequence[tuple[Members, Int32s]], channels: int) -> dict[int, Plan]:
    """Return rings that pass the vector once and twice.

    Args:
        network: what lies between GPUs.
        alike: groups by where their members are, shape (groups, members) each.
        channels: rings of each group.
    """
    orders = [groups[:, ring(members, channel)] for members, groups in alike for channel in range(channels)]
    src = np.concatenate(orders)
    size = src.shape[1]
    load = flows_at_once(network, src.ravel(), np.roll(src, -1, axis=1).ravel())
    hop = (load.overhead_ns + load.latency_ns).reshape(src.shape)
    plans = {}
    for rounds in (1, 2):
        # A part of the vector passes all hops of each round but one; the worst is spared the quickest.
        spared = np.sum([np.roll(hop, -at, axis=1) for at in range(rounds)], axis=0).min(axis=1)
        plans[rounds] = Plan(
            algorithm="ring", channels=channels, fixed_ns=int((rounds * hop.sum(axis=1) - spared).max()),
            byte_ns=load.byte_ns * Fraction(rounds * (size - 1), size * channels), link=load.link,
        )  # fmt: skip
    return plans


def tree_plan(network: Network, alike: Sequence[tuple[Members, Int32s]], channels: int) -> Plan:
    """Return trees up which the vector is summed and down which it returns; arguments as for rings."""
    built = [
        (edges, groups[:, edges])
        for members, groups in alike
        for channel in range(channels)
        for edges in trees(members, channel)
    ]
    # Shape (groups of all trees, edges, 2): child and parent.
    ends = np.concatenate([pairs for _, pairs in built])
    src, dst = np.concatenate([ends.reshape(-1, 2), ends[:, :, ::-1].reshape(-1, 2)]).T
    load = flows_at_once(network, src, dst)
    costs = (load.overhead_ns + load.latency_ns).reshape(2, *ends.shape[:2])
    longest, first = 0, 0
    for edges, pairs in built:
        up, down = (_longest(edges, cost[first : first + len(pairs)]) for cost in costs)
        longest, first = max(longest, int((up + down).max())), first + len(pairs)
    return Plan(
        algorithm="tree", channels=channels, fixed_ns=longest,
        byte_ns=load.byte_ns / (2 * channels), link=load.link,
    )  # fmt: skip


def _longest(edges: Sequence[Edge], cost: Int64s) -> Int64s:
    """Return, per row of ``cost``, which has a column per edge, the longest way between the root and a member."""
    reached = np.zeros((len(cost), len(edges) + 1), dtype=np.int64)
    for at, (child, parent) in enumerate(edges):
        reached[:, child] = reached[:, parent] + cost[:, at]
    longest: Int64s = reached.max(axis=1)
    return longest


def pairwise_plan(network: Network, groups: Int32s) -> Plan:
    """Return an all-to-all in ``groups`` of shape (groups, members)."""
    size = groups.shape[1]
    src = np.repeat(groups, size - 1, axis=1)
    dst = np.concatenate([np.delete(groups, member, axis=1) for member in range(size)], axis=1)
    load = flows_at_once(network, src.ravel(), dst.ravel())
    overhead = load.overhead_ns.reshape(-1, size - 1)
    launches = np.maximum(-(-overhead.sum(axis=1) // _LAUNCHED), overhead.max(axis=1))
    return Plan(
        algorithm="pairwise", channels=1, fixed_ns=int(launches.max() + load.latency_ns.max()),
        byte_ns=load.byte_ns / size, link=load.link,
    )  # fmt: skip
