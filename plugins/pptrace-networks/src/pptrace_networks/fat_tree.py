"""InfiniBand fat-trees of two or three levels.

A leaf has a link to each of its spines, and so has a spine to each of its cores (C. E. Leiserson, "Fat-trees",
IEEE Transactions on Computers C-34, 1985, built from equal switches). Bisection of N hosts at o:1: N / 2 / o
ports, where the halves share no leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Links
from pptrace_networks.fat_tree_options import FatTreeOptions, Shape, shape_of
from pptrace_networks.rates import ABSENT, INFINIBAND, hosts, kbps, walked

if TYPE_CHECKING:
    from pptrace.plugin import Int32s, Int64s, NetworkRequest, Paths

__all__ = ["FatTree", "fat_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTree:
    """Hosts at leaves, leaves at spines, spines at cores; links come in pairs, up and down.

    First two links for each host, then for each leaf two to each spine (or to all as one), then for each spine
    of each pod two to each core (or for each pod two to all as one).
    """

    links: Links
    """All links."""
    shape: Shape
    """The switches."""
    endpoints: int
    """Hosts, which are NICs."""
    routing: str
    """How messages are spread over spines."""

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths, a row for each way where messages are spread."""
        shape, ways = self.shape, self._ways()
        rows = np.arange(src.size * ways)
        a, b = src[rows // ways].astype(np.int64), dst[rows // ways].astype(np.int64)
        from_leaf, to_leaf = shape.leaf(a), shape.leaf(b)
        spine, core = self._choice(a, b, rows % ways)
        other, away = a != b, from_leaf != to_leaf
        far = away & (from_leaf // shape.leaves_per_pod != to_leaf // shape.leaves_per_pod)
        columns = [
            np.where(other, 2 * a, ABSENT),
            np.where(away, self._leaf_link(from_leaf, spine), ABSENT),
            np.where(far, self._spine_link(from_leaf // shape.leaves_per_pod, spine, core), ABSENT),
            np.where(far, self._spine_link(to_leaf // shape.leaves_per_pod, spine, core) + 1, ABSENT),
            np.where(away, self._leaf_link(to_leaf, spine) + 1, ABSENT),
            np.where(other, 2 * b + 1, ABSENT),
        ]
        return walked(self.links, columns, ways=ways)

    def _ways(self) -> int:
        shape = self.shape
        if self.routing != "ecmp-message" or shape.leaves == 1:
            return 1
        return shape.spines * max(shape.cores_per_spine, 1)

    def _choice(self, a: Int64s, b: Int64s, way: Int64s) -> tuple[Int64s, Int64s]:
        """Return the spine and, among its own, the core of each row; zeros where all are as one."""
        if self.routing == "adaptive":
            return way * 0, way * 0
        hashed = _scattered(a * self.endpoints + b) if self.routing == "ecmp" else way
        shape = self.shape
        return hashed % shape.spines, hashed // shape.spines % max(shape.cores_per_spine, 1)

    def _leaf_link(self, leaf: Int64s, spine: Int64s) -> Int64s:
        each = 1 if self.routing == "adaptive" else self.shape.spines
        return 2 * (self.endpoints + leaf * each + spine)

    def _spine_link(self, pod: Int64s, spine: Int64s, core: Int64s) -> Int64s:
        shape = self.shape
        if self.routing == "adaptive":
            return 2 * (self.endpoints + shape.leaves + pod)
        first = self.endpoints + shape.leaves * shape.spines
        return 2 * (first + (pod * shape.spines + spine) * shape.cores_per_spine + core)


def fat_tree(request: NetworkRequest) -> FatTree:
    """Build the tree of checked options.

    Raises:
        ConfigError: a radix that cannot hold the hosts.
    """
    given = FatTreeOptions.model_construct(**request.options)
    shape = shape_of(given, request)
    figures = INFINIBAND[given.generation]
    rate = kbps(given.bandwidth or figures.port_bytes, given.efficiency)
    switch = figures.switch_ns if given.switch_latency is None else given.switch_latency
    names = [name for pair in _names(shape, request, given.routing) for name in pair]
    ports, leaves = 2 * request.endpoints, 2 * shape.leaves * _each(shape, given.routing)
    rates = np.full(len(names), rate, dtype=np.int64)
    if given.routing == "adaptive":
        rates[ports : ports + leaves] *= shape.spines
        rates[ports + leaves :] *= shape.spines * max(shape.cores_per_spine, 1)
    # Up and down: a message passes a switch behind each link but the last.
    latency = np.zeros(len(names), dtype=np.int64) + switch
    latency[:ports] = np.tile([given.nic_latency + switch, given.nic_latency], request.endpoints)
    overhead = np.zeros(len(names), dtype=np.int64)
    overhead[:ports:2] = given.overhead
    links = Links(
        name=tuple(names),
        rate_kbps=rates,
        latency_ns=latency,
        overhead_ns=overhead,
        flow_rate_kbps=np.full(len(names), min(kbps(given.flow_rate), rate) if given.flow_rate else rate),
    )
    return FatTree(links=links, shape=shape, endpoints=request.endpoints, routing=given.routing)


def _each(shape: Shape, routing: str) -> int:
    """Return the uplinks of a leaf."""
    if shape.leaves == 1:
        return 0
    return 1 if routing == "adaptive" else shape.spines


def _names(shape: Shape, request: NetworkRequest, routing: str) -> list[tuple[str, str]]:
    at = shape.leaf(np.arange(request.endpoints))
    leaves = [_leaf_name(shape, leaf) for leaf in range(shape.leaves)]
    pairs = [(host, leaves[leaf]) for host, leaf in zip(hosts(request), at.tolist(), strict=True)]
    pods = [f"pod{pod}." if shape.pods > 1 else "" for pod in range(shape.pods)]
    if shape.leaves > 1:
        for number, leaf in enumerate(leaves):
            pod = pods[number // shape.leaves_per_pod]
            above = ["spines"] if routing == "adaptive" else [f"spine{spine}" for spine in range(shape.spines)]
            pairs += [(leaf, f"{pod}{spine}") for spine in above]
    if shape.cores_per_spine and routing == "adaptive":
        pairs += [(f"{pod}spines", "cores") for pod in pods]
    elif shape.cores_per_spine:
        pairs += [
            (f"{pod}spine{spine}", f"core{spine * shape.cores_per_spine + core}")
            for pod in pods
            for spine in range(shape.spines)
            for core in range(shape.cores_per_spine)
        ]
    return [(f"{low}>{high}", f"{high}>{low}") for low, high in pairs]


def _leaf_name(shape: Shape, leaf: int) -> str:
    if shape.rails == 1:
        return f"leaf{leaf}"
    rail, own = divmod(leaf, shape.leaves // shape.rails)
    return f"rail{rail}.leaf{own}"


def _scattered(number: Int64s) -> Int64s:
    """Return a hash of numbers, the same on every machine, below 2**32.

    A linear hash would keep the flows of regular traffic apart, where a switch's lets them collide. This one is
    the upper half of SplitMix64 (G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014) with the number as its state.
    """
    mixed = number.astype(np.uint64) + np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(32)).astype(np.int64)
