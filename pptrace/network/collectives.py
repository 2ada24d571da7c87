"""Algorithms and times of collectives, and the load of simultaneous flows.

Members of a node stay together: a ring passes through a node once, and a tree has one edge between two nodes.
Every other node is passed in reverse, so that a ring leaves one node and enters the next over NICs of one number
(a rail), as NCCL does by exchanging rings on odd nodes. A *channel* is one such ring, or pair of trees; channel
``k`` starts in every node at the members of the node's ``k``-th NIC. NCCL's ``src/graph/connect.cc`` and
``src/graph/trees.cc`` have both (version 2.30); its trees pass a node as a chain, ours as a tree.

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

from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError
from pptrace.network.cluster import Cluster
from pptrace.network.contract import NO_ROUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.network.contract import Links, Network, Paths
    from pptrace.steps.columns import Int32s, Int64s

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


_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""How often a ring passes the vector."""

_ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkCollectives:
    """Collectives over the groups of a job's layout, on the links between its GPUs.

    All groups of an axis, of all pipeline ranks, share the links at once, and the slowest decides. Of a ring and
    a tree on one NIC per node, and on every NIC that is a group's, the fastest for the size is taken;
    :func:`durations` says what each takes. An all-gather and a reduce-scatter are rings alone, as in
    NCCL, whose other algorithms for them need one GPU per node or the switch's help (``src/graph/tuning.cc``,
    2.30). Reductions inside switches are left out.

    Raises:
        ConfigError: on use, two members of a group that no route joins.
    """

    network: Network
    """What lies between GPUs; one that is no cluster counts as one node."""
    groups: Callable[[str], Int32s]
    """Returns the groups along an axis, one per row, such as :meth:`pptrace.network.layout.Layout.groups`."""
    _rings: dict[str, list[dict[int, Plan]]] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[tuple[str, str], list[Plan]] = field(default_factory=dict, init=False, repr=False)
    _fastest: dict[tuple[str, str, int], Plan] = field(default_factory=dict, init=False, repr=False)

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        """Return what a collective takes.

        Args:
            collective: ``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``all-to-all``.
            axis: any along which the layout has groups.
            size_bytes: bytes of the whole vector: what each GPU holds before an all-reduce, a reduce-scatter
                or an all-to-all, and after an all-gather.

        Raises:
            ValueError: another collective or axis.
        """
        return self.fastest(collective, axis, size_bytes).ns(size_bytes)

    def fastest(self, collective: str, axis: str, size_bytes: int) -> Plan:
        """Return the fastest plan of a collective; see :meth:`ns`."""
        key = (collective, axis, size_bytes)
        if key not in self._fastest:
            plans = self._plans_of(collective, axis)
            self._fastest[key] = min(plans, key=lambda plan: plan.ns(size_bytes))
        return self._fastest[key]

    def _plans_of(self, collective: str, axis: str) -> list[Plan]:
        """Return every way to do a collective; of equally fast ones the first is taken."""
        key = (collective, axis)
        if key not in self._plans:
            if collective not in {*_ROUNDS, _ALL_TO_ALL}:
                raise ValueError(f"no collective {collective!r}: {', '.join([*_ROUNDS, _ALL_TO_ALL])}")
            groups = np.sort(self.groups(axis), axis=1)
            self._plans[key] = self._found(collective, axis, groups) if groups.shape[1] > 1 else [NOTHING]
        return self._plans[key]

    def _found(self, collective: str, axis: str, groups: Int32s) -> list[Plan]:
        if collective == _ALL_TO_ALL:
            return [pairwise_plan(self.network, groups)]
        alike = _alike(groups, self.network)
        most = max(members.channels for members, _ in alike)
        if axis not in self._rings:
            self._rings[axis] = [ring_plans(self.network, alike, channels) for channels in sorted({1, most})]
        plans = [by_rounds[_ROUNDS[collective]] for by_rounds in self._rings[axis]]
        if collective == "all-reduce":
            plans += [tree_plan(self.network, alike, channels) for channels in sorted({1, most})]
        return plans


def _alike(groups: Int32s, network: Network) -> list[tuple[Members, Int32s]]:
    """Return groups by where their members are; ``groups`` rise along each row, so nodes stay together."""
    gpus, nics = (network.gpus, network.nics) if isinstance(network, Cluster) else (int(groups.max()) + 1, 1)
    node, nic = groups // gpus, groups // gpus * max(nics, 1) + groups % gpus * nics // gpus
    starts = np.stack([np.diff(of, prepend=-1) != 0 for of in (node, nic)], axis=1)
    kinds, kind = np.unique(starts, axis=0, return_inverse=True)
    return [(_members(*starting), groups[kind.ravel() == number]) for number, starting in enumerate(kinds)]


def _members(new_node: Sequence[bool], new_nic: Sequence[bool]) -> Members:
    """Return the members of which each one starts a node, or a NIC, or neither."""
    nodes: list[list[list[int]]] = []
    for member, (other_node, other_nic) in enumerate(zip(new_node, new_nic, strict=True)):
        if other_node:
            nodes.append([])
        if other_nic:
            nodes[-1].append([])
        nodes[-1][-1].append(member)
    return Members(nodes=tuple(tuple(map(tuple, nics)) for nics in nodes))


_AT_ONCE = 2**15
"""Pairs asked for at once, which bounds memory."""

_BYTE_NS = 1_000_000
"""Nanoseconds of a byte at one kB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Flows of one size that start together and go on at one pace, that of the slowest."""

    overhead_ns: Int64s
    """Launch overhead of each flow."""
    latency_ns: Int64s
    """Wire latency of each flow, of its slowest way."""
    byte_ns: Fraction
    """What a byte of each flow takes: of the link with most flows for its capacity, or of a flow's own limit."""
    link: str
    """Name of the link that decides; empty where none does."""


def flows_at_once(network: Network, src: Int32s, dst: Int32s) -> Load:
    """Return what a flow from each ``src`` to its ``dst`` endpoint makes of the network.

    A flow's messages take the ways of its pair in turn, so each way carries an equal share of it. Where a path
    has no links to share, an endpoint sends one flow at a time, and receives one.

    Raises:
        ConfigError: two endpoints that no route joins.
    """
    links = network.links
    pair, flow, times = np.unique(src.astype(np.int64) * 2**31 + dst, return_inverse=True, return_counts=True)
    a, b = (ends.astype(np.int32) for ends in np.divmod(pair, 2**31))
    overhead, latency, bare_kbps = np.zeros((3, pair.size), dtype=np.int64)
    carried: dict[int, Int64s] = {}
    slowest = [(Fraction(0), "")]
    for first in range(0, pair.size, _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        paths = network.paths(a[some], b[some])
        _check_routes(paths, a[some], b[some])
        overhead[some] = paths.overhead_ns.reshape(-1, paths.ways).max(axis=1)
        latency[some] = paths.latency_ns.reshape(-1, paths.ways).max(axis=1)
        length = np.diff(paths.link_ptr)
        bare_kbps[some] = np.where(length == 0, paths.rate_kbps, 0).reshape(-1, paths.ways).max(axis=1)
        known = carried.setdefault(paths.ways, np.zeros(len(links), dtype=np.int64))
        np.add.at(known, paths.link, np.repeat(np.repeat(times[some], paths.ways), length) * paths.weight)
        slowest.append(_alone(paths, links))
    slowest = [_shared(carried, links), *slowest, (_in_turn(a, b, times, bare_kbps), "")]
    byte_ns, link = max(slowest, key=lambda found: found[0])
    return Load(overhead_ns=overhead[flow], latency_ns=latency[flow], byte_ns=byte_ns, link=link)


def _check_routes(paths: Paths, src: Int32s, dst: Int32s) -> None:
    lost = np.flatnonzero(paths.rate_kbps == NO_ROUTE)
    if lost.size:
        at = int(lost[0]) // paths.ways
        message = f"no route between GPU {src[at]} and GPU {dst[at]}, which take part in one collective"
        raise ConfigError(f"{message}: give the cluster a fabric, or fewer nodes", key="cluster")


def _shared(carried: Mapping[int, Int64s], links: Links) -> tuple[Fraction, str]:
    """Return a byte's time on the link with most flows for its capacity, the first of equals, and its name."""
    whole = lcm(*carried)
    flows = sum((count * (whole // ways) for ways, count in carried.items()), np.zeros(len(links), dtype=np.int64))
    slowest, link = Fraction(0), len(links)
    for rate in np.unique(links.rate_kbps[flows > 0]).tolist():
        busiest = int(np.argmax(np.where(links.rate_kbps == rate, flows, 0)))
        byte_ns = Fraction(int(flows[busiest]) * _BYTE_NS, whole * rate)
        if byte_ns > slowest or (byte_ns == slowest and busiest < link):
            slowest, link = byte_ns, busiest
    return slowest, links.name[link] if slowest else ""


def _alone(paths: Paths, links: Links) -> tuple[Fraction, str]:
    """Return a byte's time on the slowest path that a flow has to itself, and its tightest link."""
    limited = np.flatnonzero(paths.rate_kbps > 0)
    if not limited.size:
        return Fraction(0), ""
    row = int(limited[np.argmin(paths.rate_kbps[limited])])
    used = paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]]
    cap = np.where(links.flow_rate_kbps[used] > 0, links.flow_rate_kbps[used], links.rate_kbps[used])
    tightest = links.name[used[np.argmin(cap)]] if used.size else ""
    return Fraction(_BYTE_NS, int(paths.rate_kbps[row])), tightest


def _in_turn(src: Int32s, dst: Int32s, times: Int64s, rate_kbps: Int64s) -> Fraction:
    """Return a byte's time at the endpoint with most flows over no links, all as slow as the slowest."""
    bare = np.flatnonzero(rate_kbps)
    if not bare.size:
        return Fraction(0)
    flows = max(int(np.bincount(end[bare], times[bare]).max()) for end in (src, dst))
    return Fraction(flows * _BYTE_NS, int(rate_kbps[bare].min()))
