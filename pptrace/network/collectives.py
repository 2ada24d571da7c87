"""Algorithms and times of collectives, and the load of simultaneous flows.

Members of a node are consecutive: a ring passes through a node once, and a tree has one edge between two nodes.
A ring passes through every second node in reverse order. It then leaves a node and enters the next over NICs of
the same number (a rail), as NCCL does by exchanging rings on odd nodes. A *channel* is one ring, or one pair of
trees. In every node, channel ``k`` starts at the members of the ``k``-th NIC. Source: NCCL 2.30,
``src/graph/connect.cc`` and ``src/graph/trees.cc``. NCCL's trees are chains within a node; here they are trees.

With ``n`` members, a vector of ``V`` bytes and ``C`` channels,

* a ring has ``n - 1`` steps, or ``2 (n - 1)`` for an all-reduce. In each step a member sends ``V / n C`` on each
  channel. Overheads and latencies are summed over the hops that a part of the vector passes;
* a tree all-reduce uses two complementary binary trees on each channel, each with ``V / 2 C``. It is pipelined:
  reduction and broadcast overlap. Overheads and latencies are those of the longest path up and the longest down;
* in an all-to-all each member sends ``V / n`` to each other member simultaneously. A member launches eight
  messages at a time: the overhead is an eighth of the sum of its overheads, or the largest overhead. The latency
  is the largest.

The time of the bytes is flows times bytes over capacity on the busiest link, or bytes over a flow's rate limit.
It is computed in exact fractions and rounded up to a nanosecond once. NCCL 2.30 counts the latencies of rings and
trees in the same way (``src/graph/tuning.cc``). It launches eight messages at a time
(``NCCL_MAX_DEV_WORK_P2P_PER_BATCH``, ``src/enqueue.cc``). The costs of NCCL's protocols are not modelled.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.errors import ConfigError
from pptrace.network.cluster import Cluster, Leg, lowest_rates
from pptrace.network.contract import NO_ROUTE, UNLIMITED
from pptrace.steps.columns import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from pptrace.network.contract import Links, Network
    from pptrace.steps.columns import Int32s, Int64s

Edge = tuple[int, int]
"""(child, parent)."""


class Members(Struct, frozen=True):
    """Nodes and NICs of the members of a group, which are numbered from 0.

    >>> Members(nodes=(((0, 1), (2,)), ((3,),))).channels
    2
    """

    nodes: tuple[tuple[tuple[int, ...], ...], ...]
    """Per node and NIC, the members that use this NIC."""

    @property
    def channels(self) -> int:
        """Number of NICs of a node that the group can use; 1 within a node."""
        return max(map(len, self.nodes)) if len(self.nodes) > 1 else 1

    def of_node(self, node: int, channel: int) -> list[int]:
        """Return a node's members, those of the channel's NIC first."""
        nics = self.nodes[node]
        first_nic = channel % len(nics)
        return [member for nic in (*nics[first_nic:], *nics[:first_nic]) for member in nic]


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
    """Return the edges of two trees; a parent's edge precedes its children's.

    The members of each node form a tree. The roots of these trees form a tree of nodes. A member with children in
    one of the two trees has few or none in the other.
    """
    first, second = (_tree(members, channel, complementary=is_second) for is_second in (False, True))
    return first, second


def _tree(members: Members, channel: int, *, complementary: bool) -> list[Edge]:
    nodes = range(len(members.nodes))
    local = [_tree_order(members.of_node(node, channel), complementary=complementary) for node in nodes]
    heads = _tree_order([order[0] for order in local], complementary=complementary)
    return [
        (order[child], order[parent]) for order in (heads, *local) for child, parent in binary_tree(len(order))
    ]


def _tree_order(order: list[int], *, complementary: bool) -> list[int]:
    """Return the order of members in a tree; the complementary order is reversed (even size) or rotated by one."""
    if not complementary:
        return order
    return [*order[1:], order[0]] if len(order) % 2 else order[::-1]


def binary_tree(size: int) -> Sequence[Edge]:
    """Return the edges of a binary tree of ``size`` members with root 0 and depth ``ceil(log2(size))``.

    A parent's number is its child's with the lowest set bit cleared and the next bit set. Where this number passes
    ``size``, only the lowest bit is cleared.

    >>> binary_tree(6)
    [(4, 0), (2, 4), (1, 2), (3, 2), (5, 4)]
    """
    edges = []
    for child in sorted(range(1, size), key=lambda member: (-(member & -member), member)):
        bit = child & -child
        parent = (child ^ bit) | (bit << 1)
        edges.append((child, parent if parent < size else child ^ bit))
    return edges


_LAUNCH_BATCH = 8
"""Messages of an all-to-all that a member launches simultaneously."""


class CollectivePlan(NamedTuple):
    """Algorithm and time of a collective over all groups of an axis.

    >>> CollectivePlan(algorithm="ring", channels=1, fixed_ns=6, byte_ns=Fraction(3, 2)).ns(3)
    11
    """

    algorithm: str
    """``ring``, ``tree``, ``pairwise`` or ``none``."""
    channels: int
    """Rings, or pairs of trees, that share the vector."""
    fixed_ns: int
    """Time of an empty vector."""
    byte_ns: Fraction
    """Time of each byte of the vector, in ns."""

    def ns(self, size_bytes: int) -> int:
        """Return the time of a vector, rounded up."""
        return self.fixed_ns - (-size_bytes * self.byte_ns.numerator) // self.byte_ns.denominator


SINGLE_MEMBER = CollectivePlan(algorithm="none", channels=0, fixed_ns=0, byte_ns=Fraction(0))
"""The plan of a group with one member."""


def ring_plans(
    network: Network, groups_by_members: Sequence[tuple[Members, Int32s]], channels: int
) -> dict[int, CollectivePlan]:
    """Return the plans of rings around which the vector passes once and twice, by number of rounds.

    Args:
        network: the network between GPUs.
        groups_by_members: groups with equal positions of members, shape (groups, members) each.
        channels: rings of each group.
    """
    orders = [
        groups[:, ring(members, channel)] for members, groups in groups_by_members for channel in range(channels)
    ]
    src = np.concatenate(orders)
    size = src.shape[1]
    load = flows_at_once(network, src.ravel(), np.roll(src, -1, axis=1).ravel())
    hop = (load.overhead_ns + load.latency_ns).reshape(src.shape)
    plans = {}
    for rounds in (1, 2):
        # In each round a part of the vector passes all hops but one; the longest path skips the shortest hops.
        shortest_ns = np.sum([np.roll(hop, -offset, axis=1) for offset in range(rounds)], axis=0).min(axis=1)
        plans[rounds] = CollectivePlan(
            algorithm="ring", channels=channels, fixed_ns=int((rounds * hop.sum(axis=1) - shortest_ns).max()),
            byte_ns=load.byte_ns * Fraction(rounds * (size - 1), size * channels),
        )  # fmt: skip
    return plans


def tree_plan(
    network: Network, groups_by_members: Sequence[tuple[Members, Int32s]], channels: int
) -> CollectivePlan:
    """Return the plan of trees that reduce and broadcast the vector; arguments as for :func:`ring_plans`."""
    edges_and_pairs = [
        (edges, groups[:, edges])
        for members, groups in groups_by_members
        for channel in range(channels)
        for edges in trees(members, channel)
    ]
    # Shape (groups of all trees, edges, 2): child and parent.
    ends = np.concatenate([pairs for _, pairs in edges_and_pairs])
    src, dst = np.concatenate([ends.reshape(-1, 2), ends[:, :, ::-1].reshape(-1, 2)]).T
    load = flows_at_once(network, src, dst)
    costs = (load.overhead_ns + load.latency_ns).reshape(2, *ends.shape[:2])
    longest_ns, first = 0, 0
    for edges, pairs in edges_and_pairs:
        up, down = (_longest_path_ns(edges, cost[first : first + len(pairs)]) for cost in costs)
        longest_ns, first = max(longest_ns, int((up + down).max())), first + len(pairs)
    return CollectivePlan(
        algorithm="tree", channels=channels, fixed_ns=longest_ns,
        byte_ns=load.byte_ns / (2 * channels),
    )  # fmt: skip


def _longest_path_ns(edges: Sequence[Edge], cost_ns: Int64s) -> Int64s:
    """Return the cost of the longest path from the root, shape (groups,), for costs of shape (groups, edges)."""
    member_ns = np.zeros((len(cost_ns), len(edges) + 1), dtype=np.int64)
    for edge, (child, parent) in enumerate(edges):
        member_ns[:, child] = member_ns[:, parent] + cost_ns[:, edge]
    longest_ns: Int64s = member_ns.max(axis=1)
    return longest_ns


def pairwise_plan(network: Network, groups: Int32s) -> CollectivePlan:
    """Return the plan of an all-to-all in ``groups`` of shape (groups, members)."""
    size = groups.shape[1]
    src = np.repeat(groups, size - 1, axis=1)
    dst = np.concatenate([np.delete(groups, member, axis=1) for member in range(size)], axis=1)
    # Pairs of a group are in no other group.
    load = _flows_of_pairs(network, src.ravel(), dst.ravel(), np.ones(src.size, dtype=np.int64))
    overhead_ns = load.overhead_ns.reshape(-1, size - 1)
    launch_ns = np.maximum(-(-overhead_ns.sum(axis=1) // _LAUNCH_BATCH), overhead_ns.max(axis=1))
    return CollectivePlan(
        algorithm="pairwise", channels=1, fixed_ns=int(launch_ns.max() + load.latency_ns.max()),
        byte_ns=load.byte_ns / size,
    )  # fmt: skip


_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""How often a ring collective passes the vector around."""

_ALL_TO_ALL = "all-to-all"


class LinkCollectives(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Collectives over the groups of a job's layout, on the links between its GPUs.

    All groups of an axis, of all pipeline ranks, run simultaneously; the slowest group determines the time. The
    fastest plan for the size is chosen: ring or tree, on one NIC per node or on all NICs of the group. An
    all-gather and a reduce-scatter only use rings. NCCL's other algorithms for them need one GPU per node or
    support by the switch (``src/graph/tuning.cc``, 2.30). Reductions inside switches are not modelled.

    Raises:
        ConfigError: on use, two members of a group have no route.
    """

    network: Network
    """The network between GPUs; a network other than a cluster counts as one node."""
    groups: Callable[[str], Int32s]
    """Returns the groups along an axis, one per row, such as :meth:`pptrace.network.cluster.Layout.groups`."""
    known: dict[Any, Any] = field(default_factory=dict)
    """Rings and plans by collective and groups; layouts on the same network can share them."""

    @cached_property
    def _plans(self) -> dict[tuple[str, str], list[CollectivePlan]]:
        return {}

    @cached_property
    def _names(self) -> dict[str, tuple[int, bytes]]:
        return {}

    @cached_property
    def _fastest(self) -> dict[tuple[str, str, int], CollectivePlan]:
        return {}

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        """Return the time of a collective.

        Args:
            collective: ``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``all-to-all``.
            axis: an axis along which the layout has groups, also with ``-node`` or ``-rail`` for parts of them:
                the members in each node, or those with equal places in their nodes.
            size_bytes: bytes of the whole vector: what each GPU holds before an all-reduce, a reduce-scatter
                or an all-to-all, and after an all-gather.

        Raises:
            ValueError: the collective or the axis is unknown.
        """
        return self.fastest(collective, axis, size_bytes).ns(size_bytes)

    def of_parts(self, axis: str, size: int) -> LinkCollectives:
        """Return collectives whose groups along one axis are consecutive parts of these, of ``size`` members."""

        def groups(name: str) -> Int32s:
            rows = self.groups(name)
            return rows.reshape(-1, size) if name == axis else rows

        return LinkCollectives(network=self.network, groups=groups)

    def without(self, *axes: str) -> LinkCollectives:
        """Return these collectives, which take no time along some axes: their groups have one member."""

        def groups(name: str) -> Int32s:
            return np.zeros((1, 1), dtype=np.int32) if name.partition("-")[0] in axes else self.groups(name)

        return replace(self, groups=groups)

    def fastest(self, collective: str, axis: str, size_bytes: int) -> CollectivePlan:
        """Return the fastest plan of a collective; see :meth:`ns`."""
        key = (collective, axis, size_bytes)
        if key not in self._fastest:
            plans = self._plans_of(collective, axis)
            self._fastest[key] = min(plans, key=lambda plan: plan.ns(size_bytes))
        return self._fastest[key]

    def _plans_of(self, collective: str, axis: str) -> list[CollectivePlan]:
        """Return all plans of a collective; the first of equally fast plans is chosen."""
        key = (collective, axis)
        if key not in self._plans:
            if collective not in {*_ROUNDS, _ALL_TO_ALL}:
                raise ValueError(f"no collective {collective!r}: {', '.join([*_ROUNDS, _ALL_TO_ALL])}")
            name = self.group_key(axis)
            if (collective, name) not in self.known:
                groups = self._sorted_groups(axis)
                plans = self._build_plans(collective, name, groups) if groups.shape[1] > 1 else [SINGLE_MEMBER]
                self.known[collective, name] = plans
            self._plans[key] = self.known[collective, name]
        return self._plans[key]

    def group_key(self, axis: str) -> tuple[int, bytes]:
        """Return a key of the groups along an axis: members and digest. The order of groups does not matter."""
        if axis not in self._names:
            groups = self._sorted_groups(axis)
            self._names[axis] = groups.shape[1], sha256(groups.tobytes()).digest()
        return self._names[axis]

    def members(self, axis: str) -> int:
        """Return the number of members of a group along an axis; see :meth:`ns`."""
        return self.group_key(axis)[0]

    def _sorted_groups(self, axis: str) -> Int32s:
        whole, _, part = axis.partition("-")
        is_by_node = part in {"node", "rail"}
        groups = np.sort(self.groups(whole if is_by_node else axis), axis=1)
        if is_by_node:
            groups = self._by_node(groups, rails=part == "rail")
        return groups[np.argsort(groups[:, 0], kind="stable")]

    def _by_node(self, groups: Int32s, *, rails: bool) -> Int32s:
        """Return the members of sorted groups in each node, or those with equal places in their nodes (a rail).

        Groups with unequal numbers of members in their nodes count as groups in one node.
        """
        nodes = groups // self.network.gpus if isinstance(self.network, Cluster) else np.zeros_like(groups)
        count = len({*nodes[0].tolist()})
        parts = nodes.reshape(len(groups), count, -1) if groups.shape[1] % count == 0 else nodes[:, None]
        is_even = (parts == parts[:, :, :1]).all() and (np.diff(parts[:, :, 0], axis=1) > 0).all()
        members = groups.reshape(parts.shape) if is_even else groups[:, None]
        by_node: Int32s = members.swapaxes(1, 2) if rails else members
        return by_node.reshape(-1, by_node.shape[2])

    def _build_plans(self, collective: str, name: Hashable, groups: Int32s) -> list[CollectivePlan]:
        if collective == _ALL_TO_ALL:
            return [pairwise_plan(self.network, groups)]
        groups_by_members = _group_by_members(groups, self.network)
        max_channels = max(members.channels for members, _ in groups_by_members)
        if ("ring", name) not in self.known:
            self.known["ring", name] = [
                ring_plans(self.network, groups_by_members, channels) for channels in sorted({1, max_channels})
            ]
        plans = [by_rounds[_ROUNDS[collective]] for by_rounds in self.known["ring", name]]
        if collective == "all-reduce":
            plans += [
                tree_plan(self.network, groups_by_members, channels) for channels in sorted({1, max_channels})
            ]
        return plans


def _group_by_members(groups: Int32s, network: Network) -> list[tuple[Members, Int32s]]:
    """Return the groups by positions of their members. Rows of ``groups`` are sorted, so nodes are consecutive."""
    gpus, nics = (network.gpus, network.nics) if isinstance(network, Cluster) else (int(groups.max()) + 1, 1)
    node, nic = groups // gpus, groups // gpus * max(nics, 1) + groups % gpus * nics // gpus
    starts = np.stack([np.diff(ids, prepend=-1) != 0 for ids in (node, nic)], axis=1)
    patterns, pattern_of = np.unique(starts, axis=0, return_inverse=True)
    return [(_members(*pattern), groups[pattern_of.ravel() == index]) for index, pattern in enumerate(patterns)]


def _members(starts_node: Sequence[bool], starts_nic: Sequence[bool]) -> Members:
    """Return members by node and NIC; the arguments state whether each member is the first of a node or NIC."""
    nodes: list[list[list[int]]] = []
    for member, (is_new_node, is_new_nic) in enumerate(zip(starts_node, starts_nic, strict=True)):
        if is_new_node:
            nodes.append([])
        if is_new_nic:
            nodes[-1].append([])
        nodes[-1][-1].append(member)
    return Members(nodes=tuple(tuple(map(tuple, nics)) for nics in nodes))


_BATCH = 2**15
"""Pairs per query of the network, which bounds memory."""

_NO_LIMIT = np.iinfo(np.int64).max
"""Rate of paths without a limit, while the lowest rate is chosen."""

_BYTE_NS = 1_000_000
"""Nanoseconds of a byte at one kB/s."""


class Load(Struct, frozen=True):
    """Flows of equal size that start simultaneously and proceed at the rate of the slowest."""

    overhead_ns: Int64s
    """Launch overhead of each flow."""
    latency_ns: Int64s
    """Wire latency of each flow on its slowest path."""
    byte_ns: Fraction
    """Time of a byte of each flow: on the link with most flows per capacity, or by a flow's rate limit."""


def flows_at_once(network: Network, src: Int32s, dst: Int32s) -> Load:
    """Return the load of simultaneous flows from each ``src`` to its ``dst`` endpoint.

    A flow's messages alternate between the ways of its pair, so each way carries an equal share. Where a path has
    no shared links, an endpoint sends and receives one flow at a time.

    Raises:
        ConfigError: two endpoints have no route.
    """
    pair, flow, flow_count = np.unique(src.astype(np.int64) * 2**31 + dst, return_inverse=True, return_counts=True)
    pair_src, pair_dst = (ends.astype(np.int32) for ends in np.divmod(pair, 2**31))
    load = _flows_of_pairs(network, pair_src, pair_dst, flow_count)
    return replace(load, overhead_ns=load.overhead_ns[flow], latency_ns=load.latency_ns[flow])


def _flows_of_pairs(network: Network, src: Int32s, dst: Int32s, flow_count: Int64s) -> Load:
    """Return the load of distinct pairs of endpoints with ``flow_count`` flows each; see :func:`flows_at_once`."""
    links = network.links
    overhead, latency, lowest_kbps, unshared_kbps = np.zeros((4, src.size), dtype=np.int64)
    flows_by_paths: dict[int, Int64s] = {}
    for first in range(0, src.size, _BATCH):
        batch = slice(first, first + _BATCH)
        legs = _legs(network, src[batch], dst[batch])
        per_pair = max(leg.paths.per_pair for leg in legs)
        length = np.zeros((src[batch].size, per_pair), dtype=np.int64)
        rate = np.full_like(length, _NO_LIMIT)
        link_flows = flows_by_paths.setdefault(per_pair, np.zeros(len(links), dtype=np.int64))
        for leg in legs:
            rows, paths = leg.rows(per_pair), leg.paths
            overhead[batch][leg.pairs] += paths.overhead_ns.reshape(-1, paths.per_pair).max(axis=1)[leg.row]
            latency[batch][leg.pairs] += paths.latency_ns.reshape(-1, paths.per_pair).max(axis=1)[leg.row]
            leg_length = np.diff(paths.link_ptr)
            length[leg.pairs] += leg_length[rows]
            limits = np.where(paths.rate_kbps == UNLIMITED, _NO_LIMIT, paths.rate_kbps)
            rate[leg.pairs] = np.minimum(rate[leg.pairs], limits[rows])
            flows = np.bincount(rows.ravel(), np.repeat(flow_count[batch][leg.pairs], per_pair), len(paths))
            used = np.repeat(flows.astype(np.int64), leg_length) * paths.weight
            link_flows += np.bincount(paths.link + leg.first_link, used, len(links)).astype(np.int64)
        _check_routes(rate, src[batch], dst[batch])
        rate[rate == _NO_LIMIT] = UNLIMITED
        lowest_kbps[batch] = lowest_rates([*rate.T])
        unshared_kbps[batch] = np.where(length == 0, rate, 0).max(axis=1)
    limits_kbps = lowest_kbps[lowest_kbps > 0]
    byte_ns = max(
        _busiest_link_ns(flows_by_paths, links), _busiest_endpoint_ns(src, dst, flow_count, unshared_kbps),
        Fraction(_BYTE_NS, int(limits_kbps.min())) if limits_kbps.size else Fraction(0),
    )  # fmt: skip
    return Load(overhead_ns=overhead, latency_ns=latency, byte_ns=byte_ns)


def _legs(network: Network, src: Int32s, dst: Int32s) -> list[Leg]:
    """Return the paths between endpoints in parts that pairs share."""
    if isinstance(network, Cluster):
        return network.legs(src, dst)
    every = np.arange(src.size)
    return [Leg(pairs=every, row=every, paths=network.paths(src, dst))]


def _check_routes(rate_kbps: Int64s, src: Int32s, dst: Int32s) -> None:
    """Refuse pairs without a route; ``rate_kbps`` has shape (pairs, per_pair)."""
    unreachable = np.flatnonzero((rate_kbps == NO_ROUTE).any(axis=1))
    if unreachable.size:
        pair = int(unreachable[0])
        message = f"no route between GPU {src[pair]} and GPU {dst[pair]}, which take part in one collective"
        raise ConfigError(f"{message}: give the cluster a fabric, or fewer nodes", key="cluster")


def _busiest_link_ns(flows_by_paths: Mapping[int, Int64s], links: Links) -> Fraction:
    """Return a byte's time on the link with most flows per capacity."""
    denominator = lcm(*flows_by_paths)
    flows = sum(
        (count * (denominator // per_pair) for per_pair, count in flows_by_paths.items()),
        np.zeros(len(links), dtype=np.int64),
    )
    rates = distinct(links.rate_kbps[flows > 0]).tolist()
    busiest = ((int(flows[links.rate_kbps == rate].max()), rate) for rate in rates)
    return max((Fraction(count * _BYTE_NS, denominator * rate) for count, rate in busiest), default=Fraction(0))


def _busiest_endpoint_ns(src: Int32s, dst: Int32s, flow_count: Int64s, rate_kbps: Int64s) -> Fraction:
    """Return a byte's time at the endpoint with most flows over paths without links, at the lowest rate."""
    without_links = np.flatnonzero(rate_kbps)
    if not without_links.size:
        return Fraction(0)
    flows = max(int(np.bincount(end[without_links], flow_count[without_links]).max()) for end in (src, dst))
    return Fraction(flows * _BYTE_NS, int(rate_kbps[without_links].min()))
