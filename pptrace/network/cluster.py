"""Layout of a job on GPUs, a cluster's nodes, NICs and fabric, and the links of each pair of ranks."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.errors import ConfigError, PluginError, divisors_near
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Flat, Links, Paths
from pptrace.steps.columns import ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.network.contract import Network
    from pptrace.steps.columns import Int32s, Int64s

AXES = ("tp", "cp", "ep", "dp", "pp")
"""The parallel axes, in the default order: neighbours along the first are neighbouring GPUs."""


class Layout(Struct, frozen=True, kw_only=True):
    """GPU of each process of a job; global ranks are numbered as GPUs, node after node.

    Expert groups extend along the data-parallel axis, then along the context-parallel axis: ``ep`` splits
    ``dp x cp`` and adds no processes. In the order, ``ep`` is the inner part of ``dp``.

    >>> Layout(pp=2, tp=2, dp=2).gpu(pp=1, dp=0, cp=0, tp=1)
    5
    >>> Layout(pp=2, tp=2, dp=2, order=("pp", "tp", "cp", "ep", "dp")).gpu(pp=1, dp=0, cp=0, tp=1)
    3

    Raises:
        ConfigError: an axis that is missing, unknown or named twice; sizes that do not fit each other.
    """

    pp: int = 1
    """Pipeline ranks."""
    dp: int = 1
    """Data-parallel replicas of the pipeline."""
    cp: int = 1
    """Context-parallel size."""
    ep: int = 1
    """Expert-parallel size; divides ``dp x cp``."""
    tp: int = 1
    """Tensor-parallel size."""
    etp: int = 0
    """GPUs that an expert's matrices are split over; 0 for as many as ``tp``. With other values, expert groups are
    consecutive along ``tp``, ``cp`` and ``dp`` together, as in Megatron-LM's parallel folding."""
    order: tuple[str, ...] = AXES
    """The axes; neighbours along the first are neighbouring GPUs."""
    shard: int = 0
    """Consecutive replicas that shard state, a divisor of ``dp``; 0 for all."""
    expert_shard: int = 0
    """Replicas of an expert that share its state, a divisor of their number; 0 for those in a shard group."""
    subgroup: int = 0
    """GPUs of a part of a shard group, of consecutive members; 0 without parts."""
    first_gpu: int = 0
    """The first GPU of the ranks."""
    first_rank: int = 0
    """The number of the first of the ranks."""
    name: str = "decoder"
    """The module of the ranks."""
    leaders: bool = False
    """Whether one GPU of each replica of this encoder exchanges the messages with the decoder: the last GPU of the
    encoder's replicas, and the first GPU of the decoder's."""
    encoders: tuple[Layout, ...] = ()
    """Encoders on separate GPUs, whose ranks and GPUs precede those of the decoder. An encoder on the GPUs of the
    decoder has a :class:`SharedLayout`."""

    def __post_init__(self) -> None:
        _check_order(self.order)
        if self.folded:
            processes = self.tp * self.cp * self.dp
            if processes % self.etp:
                message = f"{self.etp} does not divide tp x cp x dp = {self.tp} x {self.cp} x {self.dp}"
                near = divisors_near(self.etp, processes)
                raise ConfigError(f"{message}; nearest that work: {near}", key="parallel.etp")
            if processes % (self.ep * self.etp):
                message = f"{self.ep} x etp ({self.etp}) does not divide tp x cp x dp = {processes}"
                near = divisors_near(self.ep, processes // self.etp)
                raise ConfigError(f"{message}; nearest that work: {near}", key="parallel.ep")
        elif (self.dp * self.cp) % self.ep:
            message = f"{self.ep} does not divide dp x cp = {self.dp} x {self.cp}"
            near = divisors_near(self.ep, self.dp * self.cp)
            raise ConfigError(f"{message}; nearest that work: {near}", key="parallel.ep")

    @property
    def folded(self) -> bool:
        """Whether experts have a tensor-parallel size other than ``tp``."""
        return self.etp not in {0, self.tp}

    @property
    def ranks(self) -> int:
        """The number of pipeline ranks up to the last of these; for a decoder, of the whole job."""
        return self.first_rank + self.pp

    @property
    def gpus(self) -> int:
        """All GPUs up to the last of these ranks: for a decoder, those of the whole job."""
        return self.first_gpu + self.pp * self.dp * self.cp * self.tp

    @property
    def sizes_text(self) -> str:
        """The sizes as text, such as ``pp 2 x dp 1 x cp 1 x tp 8``."""
        sizes = " x ".join(f"{axis} {getattr(self, axis)}" for axis in ("pp", "dp", "cp", "tp"))
        return " and ".join([*(f"{each.sizes_text} of the {each.name}" for each in self.encoders), sizes])

    def module(self, rank: int) -> Layout:
        """Return the layout of the encoder or decoder of a pipeline rank."""
        return next((each for each in self.encoders if rank < each.ranks), self)

    def gpu(self, *, pp: int, dp: int, cp: int, tp: int) -> int:
        """Return the GPU (global rank) of a process; ``dp`` counts all replicas."""
        return int(self.grid()[pp, dp, cp, tp])

    def place(self, gpu: int) -> Mapping[str, int]:
        """Return the process on a GPU, as the arguments of :meth:`gpu`.

        >>> dict(Layout(pp=2, tp=2).place(3))
        {'pp': 1, 'dp': 0, 'cp': 0, 'tp': 1}
        """
        for encoder in self.encoders:
            if gpu < encoder.gpus:
                return encoder.place(gpu)
        rank, dp, cp, tp = map(int, np.argwhere(self.grid() == gpu)[0])
        return {"pp": self.first_rank + rank, "dp": dp, "cp": cp, "tp": tp}

    def grid(self) -> NDArray[np.int32]:
        """Return the GPU of every process of these ranks, shape (pp, dp, cp, tp)."""
        ep_within_dp = 1 if self.folded else gcd(self.ep, self.dp)
        sizes = {"tp": self.tp, "cp": self.cp, "ep": ep_within_dp, "dp": self.dp // ep_within_dp, "pp": self.pp}
        numbered = np.arange(self.first_gpu, self.gpus, dtype=np.int32)
        numbered = numbered.reshape([sizes[axis] for axis in reversed(self.order)])
        axes = [list(reversed(self.order)).index(axis) for axis in ("pp", "dp", "ep", "cp", "tp")]
        return numbered.transpose(axes).reshape(self.pp, self.dp, self.cp, self.tp)

    def members(self) -> Int32s:
        """Return the GPUs of each rank of the decoder, shape (pp, dp x cp x tp), replica after replica."""
        return self.grid().reshape(self.pp, -1)

    def rank_grid(self, rank: int) -> NDArray[np.int32]:
        """Return the GPUs of a pipeline rank, shape (dp, cp, tp) of its module."""
        module = self.module(rank)
        grid: Int32s = module.grid()[rank - module.first_rank]
        return grid

    def replicas(self) -> Int32s:
        """Return the GPUs of each rank of each replica, shape (dp x pp, cp x tp), replica after replica.

        >>> Layout(pp=2, tp=2, dp=2).replicas().tolist()
        [[0, 1], [4, 5], [2, 3], [6, 7]]
        """
        return self.grid().swapaxes(0, 1).reshape(self.dp * self.pp, -1)

    def groups(self, axis: str) -> Int32s:
        """Return the groups along an axis, one per row, in the order of members: also ``etp`` and ``edp``.

        A ``dp`` group reduces the same dense gradients: all replicas and context-parallel parts. An ``edp`` group
        is the part of it with the same experts: one GPU of each expert group. Both consist of ``-shard`` groups,
        which share state, and ``-replicate`` groups have one member of each of these. Shard groups consist of
        ``-subgroup`` groups.

        >>> Layout(dp=4, shard=2).groups("dp-replicate").tolist()
        [[0, 2], [1, 3]]

        Raises:
            ValueError: the axis has no groups.
        """
        axis, _, part = axis.partition("-")
        if part:
            whole = self.groups(axis)
            count = self.dp // (self.shard or self.dp)
            if axis == "edp" and self.expert_shard:
                count = whole.shape[1] // self.expert_shard
            groups = whole.reshape(len(whole), count, -1)
            if part == "subgroup":
                return groups.reshape(-1, self.subgroup)
            groups = groups if part == "shard" else groups.swapaxes(1, 2)
            return groups.reshape(-1, groups.shape[2])
        grid = self.grid()
        if axis in {"pp", "cp", "tp"}:
            return np.moveaxis(grid, ("pp", "dp", "cp", "tp").index(axis), 3).reshape(-1, getattr(self, axis))
        by_tp = grid.transpose(0, 3, 1, 2)
        if axis == "dp":
            return by_tp.reshape(-1, self.dp * self.cp)
        if axis not in {"ep", "edp", "etp"}:
            raise ValueError(f"no groups along {axis!r}: tp, cp, ep, etp, dp, edp or pp")
        if axis == "etp" and not self.folded:
            return grid.reshape(-1, self.tp)
        return self._folded_groups(axis) if self.folded else self._expert_groups(by_tp, axis)

    def _expert_groups(self, by_tp: Int32s, axis: str) -> Int32s:
        inner = gcd(self.ep, self.dp)
        outer = self.ep // inner
        parts = by_tp.reshape(self.pp, self.tp, self.dp // inner, inner, self.cp // outer, outer)
        if axis == "ep":
            return parts.transpose(0, 1, 2, 4, 3, 5).reshape(-1, self.ep)
        return parts.transpose(0, 1, 3, 5, 2, 4).reshape(-1, self.dp * self.cp // self.ep)

    def _folded_groups(self, axis: str) -> Int32s:
        members = np.sort(self.members(), axis=1).reshape(self.pp, -1, self.ep, self.etp)
        along = {"edp": 1, "ep": 2, "etp": 3}[axis]
        return np.moveaxis(members, along, 3).reshape(-1, members.shape[along])


class SharedLayout(Layout, frozen=True, kw_only=True):
    """Layout of an encoder on the GPUs of a decoder's first rank.

    Context-parallel parts stay on their GPUs. A tensor-parallel group of the decoder consists of groups of several
    replicas of the encoder, or the reverse.

    >>> SharedLayout(host=Layout(tp=4), dp=2, tp=2).grid().tolist()
    [[[[0, 1]], [[2, 3]]]]
    """

    host: Layout
    """The decoder's layout."""

    def grid(self) -> NDArray[np.int32]:
        """Return the GPU of every process of the encoder, shape (1, dp, cp, tp)."""
        grid, outer = self.host.grid()[0], min(self.dp, self.host.dp)
        parts = grid.reshape(outer, self.host.dp // outer, self.cp, self.dp // outer, -1)
        # Of axes 1 and 3, one is 1: replicas of the decoder in one of the encoder, or the reverse.
        encoder: Int32s = parts.transpose(0, 3, 2, 1, 4).reshape(1, self.dp, self.cp, self.tp)
        return encoder


def sibling_replicas(grid: NDArray[np.int32], count: int) -> Int32s:
    """Return groups of ``count`` consecutive replicas, one GPU of each; ``grid`` has shape (pp, dp, cp, tp)."""
    return grid.transpose(0, 2, 3, 1).reshape(-1, count)


def resharded(source: NDArray[np.int32], target: NDArray[np.int32]) -> tuple[Int32s, Int32s]:
    """Return the sending and the receiving GPU of each flow between two grids, both of shape (dp, cp, tp).

    Replicas divide a microbatch, and context-parallel parts divide each sequence. Tensor-parallel
    GPUs have copies. Each receiver gets equal pieces of its part from all senders that have them, and the pieces
    of a copy come from different senders. A flow has :func:`message_share` of the sender's bytes. Equal grids have
    one flow from each GPU to its peer.

    >>> source, target = resharded(np.arange(2).reshape(2, 1, 1), np.arange(2, 6).reshape(2, 1, 2))
    >>> list(zip(source.tolist(), target.tolist()))
    [(0, 2), (0, 3), (1, 4), (1, 5)]
    """
    ends = []
    for grid in (source, target):
        pieces = grid
        for axis, (size, other) in enumerate(zip(source.shape, target.shape, strict=True)):
            pieces = np.repeat(pieces, lcm(size, other) // grid.shape[axis], axis=axis)
        ends.append(pieces.ravel())
    return ends[0], ends[1]


def message_share(source: tuple[int, int, int], target: tuple[int, int, int]) -> Fraction:
    """Return the bytes of one flow of :func:`resharded`, relative to those that a sender has.

    Args:
        source: replicas, context-parallel parts and tensor-parallel copies of the sending grid.
        target: those of the receiving grid.

    >>> message_share((2, 1, 4), (2, 1, 4)), message_share((1, 1, 1), (4, 1, 2))
    (Fraction(1, 1), Fraction(1, 4))
    """
    return Fraction(prod(map(gcd, source, target)), target[0] * target[1] * source[2])


def flows_of_gpu(source: tuple[int, int, int], target: tuple[int, int, int]) -> int:
    """Return the most flows of :func:`resharded` that one GPU sends or receives."""
    return prod(map(lcm, source, target)) // min(prod(source), prod(target))


def _check_order(order: tuple[str, ...]) -> None:
    written = "-".join(order)
    repeated = [axis for axis in AXES if order.count(axis) > 1]
    unknown = [axis for axis in order if axis not in AXES]
    missing = [axis for axis in AXES if axis not in order]
    for fault, axes in (("names unknown axes", unknown), ("names twice", repeated), ("misses", missing)):
        if axes:
            names = ", ".join(axis or "''" for axis in axes)
            message = f"{written!r} {fault}: {names}; write each of {', '.join(AXES)} once, inner first"
            raise ConfigError(message, key="parallel.order")


class Leg(Struct, frozen=True):
    """A part of the paths of some pairs of endpoints; pairs can share it."""

    pairs: Int64s
    """The indices of the pairs."""
    row: NDArray[np.integer]
    """Shape (pairs,): the path of each pair in ``paths``, counted in pairs of ``paths``."""
    paths: Paths
    """The paths of the leg."""
    first_link: int = 0
    """The number of the leg's first link in the whole network."""

    def rows(self, per_pair: int) -> Int64s:
        """Return the row of ``paths`` for each pair and path, shape (pairs, per_pair)."""
        stride = self.paths.per_pair
        rows: Int64s = self.row[:, None].astype(np.int64) * stride + np.arange(per_pair) * stride // per_pair
        return rows


class Cluster(Struct, frozen=True, kw_only=True, dict=True):
    """A network over all GPUs, node after node: the node's network within a node, else NIC, fabric, NIC.

    GPU ``g`` of a node uses its NIC ``g x nics // gpus``; endpoints of the node's network are its GPUs, then its
    NICs; endpoints of the fabric are all NICs, node after node.
    """

    node: Network
    """The network inside each node."""
    fabric: Network | None
    """The network between NICs; None for a single node or unconnected nodes."""
    nodes: int
    """Number of nodes."""
    gpus: int
    """GPUs of a node."""
    nics: int
    """NICs of a node."""

    @cached_property
    def links(self) -> Links:
        """The links of every node, then the fabric's."""
        inner, outer = self.node.links, self.fabric.links if self.fabric is not None else None
        names = [f"node{node}/{name}" for node in range(self.nodes) for name in inner.name]
        columns = {}
        for column in ("rate_kbps", "latency_ns", "overhead_ns", "flow_rate_kbps"):
            repeated = np.tile(getattr(inner, column), self.nodes)
            columns[column] = np.concatenate([repeated, getattr(outer, column)]) if outer else repeated
        return Links(name=(*names, *(outer.name if outer else ())), **columns)

    @property
    def endpoints(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths between GPUs, one per path of the fabric for each pair.

        Raises:
            PluginError: the node's network offers several paths per pair.
        """
        return _join_legs(src.size, self.legs(src, dst))

    def legs(self, src: Int32s, dst: Int32s) -> list[Leg]:
        """Return the parts of the paths between GPUs, those of a pair from source to target.

        Raises:
            PluginError: the node's network offers several paths per pair.
        """
        src_node, dst_node = src // self.gpus, dst // self.gpus
        inside = np.flatnonzero(src_node == dst_node)
        within = self._node_paths(src_node[inside], src[inside] % self.gpus, dst[inside] % self.gpus)
        legs = [Leg(pairs=inside, row=np.arange(inside.size), paths=within)]
        outside = np.flatnonzero(src_node != dst_node)
        if not outside.size:
            return legs
        if self.fabric is None or not self.nics:
            no_route = Flat(rate_kbps=NO_ROUTE).paths(src[outside], dst[outside])
            return [*legs, Leg(pairs=outside, row=np.arange(outside.size), paths=no_route)]
        src_nic, dst_nic = self._nic_of[src[outside]], self._nic_of[dst[outside]]
        across = self.fabric.paths(src_nic, dst_nic)
        to_nic, from_nic = self._nic_paths
        return [
            *legs,
            Leg(pairs=outside, row=src[outside], paths=to_nic),
            Leg(
                pairs=outside, row=np.arange(outside.size), paths=across,
                first_link=len(self.node.links) * self.nodes,
            ),
            Leg(pairs=outside, row=dst[outside], paths=from_nic),
        ]  # fmt: skip

    @cached_property
    def _nic_of(self) -> Int32s:
        """The NIC of each GPU, as an endpoint of the fabric."""
        node, gpu = np.divmod(np.arange(self.endpoints, dtype=np.int32), self.gpus)
        nics: Int32s = (node * self.nics + gpu * self.nics // self.gpus).astype(np.int32)
        return nics

    @cached_property
    def _nic_paths(self) -> tuple[Paths, Paths]:
        """The paths from each GPU to its NIC, and back."""
        node, gpu = np.divmod(np.arange(self.endpoints, dtype=np.int32), self.gpus)
        nic = self.gpus + self._nic_of % self.nics
        return self._node_paths(node, gpu, nic), self._node_paths(node, nic, gpu)

    def _node_paths(self, node: Int32s, src: Int32s, dst: Int32s) -> Paths:
        paths = self.node.paths(src.astype(np.int32), dst.astype(np.int32))
        if paths.per_pair != 1:
            raise PluginError("the network inside a node offers several paths per pair: expected one")
        link = paths.link + np.repeat(node * len(self.node.links), np.diff(paths.link_ptr))
        return replace(paths, link=link, route_ptr=paths.link_ptr, route=link)


def lowest_rates(rates: Sequence[Int64s]) -> Int64s:
    """Return the lowest rate of each row; a row without a route on any leg has no route."""
    stacked = np.array(rates)
    limited: Int64s = np.where(stacked == UNLIMITED, np.iinfo(np.int64).max, stacked).min(axis=0)
    limited[limited == np.iinfo(np.int64).max] = UNLIMITED
    return limited


def _join_legs(pairs: int, legs: Sequence[Leg]) -> Paths:
    """Return the paths of all pairs, each of which consists of the legs of its pair in their order."""
    per_pair = max(leg.paths.per_pair for leg in legs)
    overhead_ns, latency_ns, rate_kbps, length = np.zeros((4, pairs * per_pair), dtype=np.int64)
    rows = [leg.rows(per_pair).ravel() for leg in legs]
    path_rows = [(leg.pairs[:, None] * per_pair + np.arange(per_pair)).ravel() for leg in legs]
    lengths = [np.diff(leg.paths.link_ptr)[row] for leg, row in zip(legs, rows, strict=True)]
    for leg, row, path, count in zip(legs, rows, path_rows, lengths, strict=True):
        overhead_ns[path] += leg.paths.overhead_ns[row]
        latency_ns[path] += leg.paths.latency_ns[row]
        rate_kbps[path] = lowest_rates([rate_kbps[path], leg.paths.rate_kbps[row]])
        length[path] += count
    ptr = np.concatenate([[0], np.cumsum(length)])
    link, weight = np.empty((2, int(ptr[-1])), dtype=np.int32)
    begin = ptr[:-1].copy()
    for leg, row, path, count in zip(legs, rows, path_rows, lengths, strict=True):
        source, target = ranges(leg.paths.link_ptr[:-1][row], count), ranges(begin[path], count)
        link[target] = leg.paths.link[source] + leg.first_link
        weight[target] = leg.paths.weight[source]
        begin[path] += count
    return Paths(
        overhead_ns=overhead_ns, latency_ns=latency_ns, rate_kbps=rate_kbps, link_ptr=ptr, link=link,
        weight=weight, per_pair=per_pair,
    )  # fmt: skip


class RankNetwork(NamedTuple):
    """A network between pipeline ranks, each of which consists of several GPUs.

    Member ``m`` of a rank sends to member ``m`` of its peer; between encoder and decoder, :func:`resharded` pairs
    them, or the leaders of their replicas. All members send simultaneously at the rate of the slowest: every
    tensor- and context-parallel member of every data-parallel replica. Where only one replica is simulated, all
    replicas send simultaneously. A link that carries ``n`` flows of a hop counts each flow's rate ``n`` times. A
    message's size is that of one flow.
    """

    network: Cluster
    """The network between GPUs."""
    layout: Layout
    """The layout, which gives the GPUs of each rank."""
    all_replicas: bool = False
    """Whether every replica has ranks: rank ``r`` of replica ``d`` is ``d pp + r``."""

    @property
    def links(self) -> Links:
        """The links between the GPUs."""
        return self.network.links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the bundles from each ``src`` to each ``dst`` pipeline rank.

        Raises:
            ConfigError: two GPUs have no route.
        """
        source, target, flows = self._flows(src, dst)
        paths = self.network.paths(source, target)
        first_flow = np.cumsum(flows) - flows
        unreachable = np.flatnonzero(paths.rate_kbps == NO_ROUTE)
        if unreachable.size:
            flow = int(unreachable[0]) // paths.per_pair
            hop = int(np.searchsorted(first_flow, flow, side="right")) - 1
            message = (
                f"no route from GPU {source[flow]} of rank {src[hop]} to GPU {target[flow]} of rank {dst[hop]}"
            )
            raise ConfigError(f"{message}: give the cluster a fabric, or fewer nodes", key="cluster")
        # Each bundle, one per pair and path, has the row of each flow on its path.
        size = np.repeat(flows, paths.per_pair)
        member = ranges(np.zeros(size.size, dtype=np.int64), size)
        index = (np.repeat(np.tile(np.arange(paths.per_pair), flows.size), size) + _hash(member)) % paths.per_pair
        flow = member + np.repeat(np.repeat(first_flow, paths.per_pair), size)
        return _bundle(paths, flow * paths.per_pair + index, size, self.links)

    def _flows(self, src: Int32s, dst: Int32s) -> tuple[Int32s, Int32s, Int64s]:
        """Return the sending and the receiving GPU of each flow, pair after pair, and the flows of each pair."""
        if not self.layout.encoders:
            members = self.layout.replicas() if self.all_replicas else self.layout.members()
            return members[src].ravel(), members[dst].ravel(), np.full(src.size, members.shape[1])
        ends = [self._ends(low, high) for low, high in zip(src.tolist(), dst.tolist(), strict=True)]
        none = np.zeros(0, dtype=np.int32)
        source, target = (np.concatenate([none, *(pair[side] for pair in ends)]) for side in (0, 1))
        return source, target, np.array([pair[0].size for pair in ends], dtype=np.int64)

    def _ends(self, sender: int, receiver: int) -> tuple[Int32s, Int32s]:
        """Return the sending and the receiving GPU of each flow between two ranks."""
        ranks = sender, receiver
        grids = [self.layout.rank_grid(rank) for rank in ranks]
        modules = [self.layout.module(rank) for rank in ranks]
        if modules[0] is not modules[1] and any(module.leaders for module in modules):
            grids = [
                grid[:, :1, :1] if module is self.layout else grid[:, -1:, -1:]
                for grid, module in zip(grids, modules, strict=True)
            ]
        return resharded(*grids)


def _hash(numbers: Int64s) -> Int64s:
    """Return hashes of small numbers; neighbouring members then start at unrelated paths."""
    hashed: Int64s = (numbers * 48_271 + 11) % 2_147_483_647 * 48_271 % 2_147_483_647
    return hashed


def _bundle(paths: Paths, rows: Int64s, flows: Int64s, links: Links) -> Paths:
    """Return one path per bundle; ``rows`` has the rows of ``paths`` of each bundle, which are ``flows`` many."""
    first_row = np.cumsum(flows) - flows
    length = np.diff(paths.link_ptr)[rows]
    entry = ranges(paths.link_ptr[:-1][rows], length)
    bundle = np.repeat(np.repeat(np.arange(flows.size), flows), length)
    key, first = np.unique(bundle * max(len(links), 1) + paths.link[entry], return_inverse=True)
    weight = np.bincount(first, weights=paths.weight[entry], minlength=key.size).astype(np.int32)
    owner, link = np.divmod(key, max(len(links), 1))
    rate = paths.rate_kbps[rows]
    rate = np.minimum.reduceat(np.where(rate == UNLIMITED, np.iinfo(np.int64).max, rate), first_row)
    np.minimum.at(rate, owner, links.rate_kbps[link] // weight)
    shown = rows[first_row]
    route = np.diff(paths.link_ptr)[shown]
    route_ptr = np.concatenate([[0], np.cumsum(route)])
    return Paths(
        overhead_ns=np.maximum.reduceat(paths.overhead_ns[rows], first_row),
        latency_ns=np.maximum.reduceat(paths.latency_ns[rows], first_row),
        rate_kbps=np.where(rate == np.iinfo(np.int64).max, UNLIMITED, np.maximum(rate, 1)),
        link_ptr=np.searchsorted(owner, np.arange(flows.size + 1)).astype(np.int32),
        link=link, weight=weight, per_pair=paths.per_pair,
        route_ptr=route_ptr, route=paths.link[ranges(paths.link_ptr[:-1][shown], route)],
    )  # fmt: skip
