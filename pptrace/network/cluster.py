"""A cluster is nodes of GPUs and NICs, each with a network inside, joined by a fabric between the NICs."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import PluginError
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Links, Paths
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.network.contract import Network

__all__ = ["Cluster"]


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
        parts: list[tuple[Int64s, Paths]] = [(inside, self._within(from_node, src, dst, inside))]
        if across.size and self.fabric is None:
            parts.append((across, _unreachable(across.size)))
        elif across.size:
            parts.append((across, self._between(from_node, to_node, src, dst, across)))
        ways = max(part.ways for _, part in parts)
        return _merged(src.size, ways, parts)

    def _within(self, node: Int32s, src: Int32s, dst: Int32s, pairs: Int64s) -> Paths:
        return self._inner(node[pairs], src[pairs] % self.gpus, dst[pairs] % self.gpus)

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
