"""A cluster's nodes, NICs and fabric, and the links of each pair of ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import ConfigError, PluginError
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Links, Paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.network.contract import Network
    from pptrace.network.layout import Layout
    from pptrace.steps.columns import Int32s, Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A network over all GPUs, node after node: within a node its own network, else NIC, fabric, NIC.

    GPU ``g`` of a node uses its NIC ``g x nics // gpus``; endpoints of the node's network are its GPUs, then its
    NICs; endpoints of the fabric are all NICs, node after node.
    """

    node: Network
    """What lies inside each node."""
    fabric: Network | None
    """What joins the NICs; None where there is one node or nothing between them."""
    nodes: int
    """Number of nodes."""
    gpus: int
    """GPUs of a node."""
    nics: int
    """NICs of a node."""
    links: Links = field(init=False)
    """The links of every node, then the fabric's."""

    def __post_init__(self) -> None:
        inner, outer = self.node.links, self.fabric.links if self.fabric is not None else None
        names = [f"node{node}/{name}" for node in range(self.nodes) for name in inner.name]
        columns = {}
        for column in ("rate_kbps", "latency_ns", "overhead_ns", "flow_rate_kbps"):
            repeated = np.tile(getattr(inner, column), self.nodes)
            columns[column] = np.concatenate([repeated, getattr(outer, column)]) if outer else repeated
        links = Links(name=(*names, *(outer.name if outer else ())), **columns)
        object.__setattr__(self, "links", links)

    @property
    def endpoints(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths between GPUs, ``ways`` of the fabric for each pair.

        Raises:
            PluginError: the node's network offers several ways.
        """
        from_node, to_node = src // self.gpus, dst // self.gpus
        inside = np.flatnonzero(from_node == to_node)
        across = np.flatnonzero(from_node != to_node)
        within = self._inner(from_node[inside], src[inside] % self.gpus, dst[inside] % self.gpus)
        parts: list[tuple[Int64s, Paths]] = [(inside, within)]
        if across.size:
            parts.append((across, self._between(from_node, to_node, src, dst, across)))
        ways = max(part.ways for _, part in parts)
        return _merged(src.size, ways, parts)

    def _between(self, from_node: Int32s, to_node: Int32s, src: Int32s, dst: Int32s, pairs: Int64s) -> Paths:
        if self.fabric is None or not self.nics:
            return _unreachable(pairs.size)
        a, b = src[pairs] % self.gpus, dst[pairs] % self.gpus
        nic_a, nic_b = a * self.nics // self.gpus, b * self.nics // self.gpus
        out = self._inner(from_node[pairs], a, self.gpus + nic_a)
        over = self.fabric.paths(
            (from_node[pairs] * self.nics + nic_a).astype(np.int32),
            (to_node[pairs] * self.nics + nic_b).astype(np.int32),
        )
        into = self._inner(to_node[pairs], self.gpus + nic_b, b)
        shift = len(self.node.links) * self.nodes
        return _joined([(out, 0), (over, shift), (into, 0)], over.ways)

    def _inner(self, node: Int32s, src: Int32s, dst: Int32s) -> Paths:
        paths = self.node.paths(src.astype(np.int32), dst.astype(np.int32))
        if paths.ways != 1:
            raise PluginError("a node's own network offers several ways per pair: one is expected")
        moved = paths.link + np.repeat(node * len(self.node.links), np.diff(paths.link_ptr))
        return Paths(
            overhead_ns=paths.overhead_ns, latency_ns=paths.latency_ns, rate_kbps=paths.rate_kbps,
            link_ptr=paths.link_ptr, link=moved, weight=paths.weight,
        )  # fmt: skip


def _unreachable(pairs: int) -> Paths:
    none = np.zeros(pairs, dtype=np.int64)
    return Paths(
        overhead_ns=none, latency_ns=none, rate_kbps=none + NO_ROUTE,
        link_ptr=np.zeros(pairs + 1, dtype=np.int32), link=np.zeros(0, dtype=np.int32),
    )  # fmt: skip


def _rows(paths: Paths, ways: int) -> Int64s:
    """Return which row of ``paths``, which has one way or ``ways``, each of ``ways`` rows per pair is."""
    rows: Int64s = np.arange(len(paths) // paths.ways * ways) * paths.ways // ways
    return rows


def _tightest(rates: Sequence[Int64s]) -> Int64s:
    """Return the lowest rate of each row; no route on a part is none on the whole."""
    stacked = np.array(rates)
    limited: Int64s = np.where(stacked == UNLIMITED, np.iinfo(np.int64).max, stacked).min(axis=0)
    limited[limited == np.iinfo(np.int64).max] = UNLIMITED
    return limited


def _joined(parts: Sequence[tuple[Paths, int]], ways: int) -> Paths:
    """Return paths one behind another; each part's links move up by its number."""
    rows = [_rows(paths, ways) for paths, _ in parts]
    lengths = [np.diff(paths.link_ptr)[row] for (paths, _), row in zip(parts, rows, strict=True)]
    ptr = np.concatenate([[0], np.cumsum(sum(lengths))])
    link, weight = np.empty((2, int(ptr[-1])), dtype=np.int32)
    at = ptr[:-1].copy()
    for (paths, shift), row, length in zip(parts, rows, lengths, strict=True):
        source, target = _spread(paths.link_ptr[:-1][row], length), _spread(at, length)
        link[target] = paths.link[source] + shift
        weight[target] = paths.weight[source]
        at += length
    pairs = list(zip(parts, rows, strict=True))
    return Paths(
        overhead_ns=np.sum([paths.overhead_ns[row] for (paths, _), row in pairs], axis=0),
        latency_ns=np.sum([paths.latency_ns[row] for (paths, _), row in pairs], axis=0),
        rate_kbps=_tightest([paths.rate_kbps[row] for (paths, _), row in pairs]),
        link_ptr=ptr, link=link, weight=weight, ways=ways,
    )  # fmt: skip


def _merged(pairs: int, ways: int, parts: Sequence[tuple[Int64s, Paths]]) -> Paths:
    """Return the paths of all pairs from those of some each."""
    rows = [_rows(paths, ways) for _, paths in parts]
    place = [_spread(pair * ways, np.full(pair.size, ways)) for pair, _ in parts]
    length = np.zeros(pairs * ways, dtype=np.int64)
    columns: dict[str, Any] = {
        name: np.zeros(pairs * ways, dtype=np.int64) for name in ("overhead_ns", "latency_ns", "rate_kbps")
    }
    for (_, paths), row, at in zip(parts, rows, place, strict=True):
        length[at] = np.diff(paths.link_ptr)[row]
        for name, values in columns.items():
            values[at] = getattr(paths, name)[row]
    ptr = np.concatenate([[0], np.cumsum(length)])
    link, weight = np.empty((2, int(ptr[-1])), dtype=np.int32)
    for (_, paths), row, at in zip(parts, rows, place, strict=True):
        source = _spread(paths.link_ptr[:-1][row], np.diff(paths.link_ptr)[row])
        target = _spread(ptr[:-1][at], length[at])
        link[target], weight[target] = paths.link[source], paths.weight[source]
    return Paths(**columns, link_ptr=ptr, link=link, weight=weight, ways=ways)


def _spread(first: Int64s | Int32s, length: Int64s) -> Int64s:
    """Return ``first[i], first[i] + 1, …`` up to ``length[i]`` of them, one after another."""
    starts = np.cumsum(length) - length
    found: Int64s = np.arange(int(length.sum())) - np.repeat(starts, length) + np.repeat(first, length)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """A network between pipeline ranks, each of which is many GPUs of a network between GPUs.

    Member ``m`` of a rank sends to member ``m`` of its peer, all at once and at one pace, that of the slowest:
    every tensor- and context-parallel member of every data-parallel replica. Where only one replica's schedule is
    simulated, the others do the same at the same time, and a link that carries ``n`` of a hop's flows counts
    ``n`` times each flow's rate. A message's size is that of one flow.
    """

    network: Network
    """What lies between GPUs."""
    layout: Layout
    """Which GPUs each rank is."""
    apart: bool = False
    """Whether all replicas are simulated, rank by rank: rank ``r`` of replica ``d`` is ``d pp + r``."""

    @property
    def links(self) -> Links:
        """The links between the GPUs."""
        return self.network.links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the bundles from each ``src`` to each ``dst`` pipeline rank.

        Raises:
            ConfigError: two GPUs that no route joins.
        """
        members = self.layout.replicas() if self.apart else self.layout.members()
        flows, count = members.shape[1], src.size
        source, target = members[src].ravel(), members[dst].ravel()
        own = self.network.paths(source, target)
        lost = np.flatnonzero(own.rate_kbps == NO_ROUTE)
        if lost.size:
            pair = int(lost[0]) // own.ways
            at = pair // flows
            message = f"no route from GPU {source[pair]} of rank {src[at]} to GPU {target[pair]} of rank {dst[at]}"
            raise ConfigError(f"{message}: give the cluster a fabric, or fewer nodes", key="cluster")
        way = np.arange(own.ways)
        turn = (_scattered(np.arange(flows)) % own.ways)[None, :, None]
        pair_of = np.arange(count * flows).reshape(count, flows, 1)
        # Shape (pairs, ways, members): the row of each member's flow on each way of the bundle.
        rows = (pair_of * own.ways + (way[None, None, :] + turn) % own.ways).transpose(0, 2, 1).reshape(-1, flows)
        return _bundled(own, rows, self.links)


def _scattered(number: Int64s) -> Int64s:
    """Return hashes of small numbers, so that members do not take neighbouring ways in step."""
    hashed: Int64s = (number * 48_271 + 11) % 2_147_483_647 * 48_271 % 2_147_483_647
    return hashed


def _bundled(own: Paths, rows: Int64s, links: Links) -> Paths:
    """Return one path per row of ``rows``, which holds rows of ``own`` that belong together."""
    bundles, flows = rows.shape
    length = np.diff(own.link_ptr)[rows.ravel()]
    entry = _spread(own.link_ptr[:-1][rows.ravel()], length)
    bundle = np.repeat(np.arange(bundles * flows) // flows, length)
    key, first = np.unique(bundle * max(len(links), 1) + own.link[entry], return_inverse=True)
    weight = np.bincount(first, weights=own.weight[entry], minlength=key.size).astype(np.int32)
    owner, link = np.divmod(key, max(len(links), 1))
    rate = own.rate_kbps[rows]
    rate = np.where(rate == UNLIMITED, np.iinfo(np.int64).max, rate).min(axis=1)
    np.minimum.at(rate, owner, links.rate_kbps[link] // weight)
    route = np.diff(own.link_ptr)[rows[:, 0]]
    route_ptr = np.concatenate([[0], np.cumsum(route)])
    return Paths(
        overhead_ns=own.overhead_ns[rows].max(axis=1), latency_ns=own.latency_ns[rows].max(axis=1),
        rate_kbps=np.where(rate == np.iinfo(np.int64).max, UNLIMITED, np.maximum(rate, 1)),
        link_ptr=np.searchsorted(owner, np.arange(bundles + 1)).astype(np.int32),
        link=link, weight=weight, ways=own.ways,
        route_ptr=route_ptr, route=own.link[_spread(own.link_ptr[:-1][rows[:, 0]], route)],
    )  # fmt: skip
