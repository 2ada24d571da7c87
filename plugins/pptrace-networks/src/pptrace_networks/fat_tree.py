"""InfiniBand fat-trees of two or three levels.

A leaf has a link to each of its spines, and a spine has a link to each of its cores (C. E. Leiserson, "Fat-trees",
IEEE Transactions on Computers C-34, 1985, built from equal switches). Bisection of N hosts with oversubscription
o:1: N / 2 / o ports, if the halves share no leaf.
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Struct
from pydantic import Field

from pptrace.plugin import ConfigError, Links, Parameters
from pptrace_networks.node_networks import ABSENT, Bandwidth, Latency, Share, kbps, walked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.plugin import Int32s, Int64s, NetworkRequest, Paths

_GIGA = 10**9
_TWO, _THREE, _LARGEST = 2, 3, 100_000
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]


class InfiniBand(Struct, frozen=True, kw_only=True):
    """A generation of InfiniBand, its switch and its port of four lanes."""

    port_bytes: int
    """Bytes per second of a port, one direction, after encoding."""
    radix: int
    """Ports of a switch."""
    switch_ns: int
    """Latency of a switch in ns."""


INFINIBAND: Mapping[str, InfiniBand] = MappingProxyType({
    "edr": InfiniBand(port_bytes=100 * _GIGA // 8, radix=36, switch_ns=90),
    "hdr": InfiniBand(port_bytes=200 * _GIGA // 8, radix=40, switch_ns=130),
    "ndr": InfiniBand(port_bytes=400 * _GIGA // 8, radix=64, switch_ns=130),
    "xdr": InfiniBand(port_bytes=800 * _GIGA // 8, radix=144, switch_ns=130),
})  # fmt: skip
"""SB7800 (36 ports of 100 Gb/s, 90 ns), QM8700 (40 of 200, 130 ns), QM9700 (64 of 400) and Q3400-RA (144 of 800)
datasheets. No latency is published for the last two, and other pages contradict each other; they have HDR's
latency."""

INFINIBAND_PAYLOAD = Fraction(4096, 4096 + 8 + 12 + 4 + 2)
"""Share of a port's rate for payload: packets of 4096 bytes with LRH, BTH, ICRC and VCRC (InfiniBand Architecture
Specification, volume 1, chapters 5 and 7)."""

INFINIBAND_NIC_NS = 300
"""Latency of each of the two NICs: half of the 600 ns end to end in the ConnectX-6 user manual."""

INFINIBAND_OVERHEAD_NS = 11_300
"""NCCL 2.30, src/graph/tuning.cc, hwLatencies of a ring over a network: Simple 14.0 us, LL 2.7 us. LL equals the
sum of PCI Express at both ends (2 x 1.0 us), both NICs and a switch, within 30 ns. The difference is overhead per
message."""


class FatTreeOptions(Parameters):
    """InfiniBand switches in two or three levels."""

    generation: Literal["edr", "hdr", "ndr", "xdr"] = "ndr"
    """Rate of a port: 100, 200, 400 or 800 Gb/s."""
    bandwidth: Bandwidth | None = None
    """Rate of a port per direction; the generation's by default."""
    efficiency: Share = float(INFINIBAND_PAYLOAD)
    """Share of a port's rate that payload gets."""
    levels: Literal[2, 3] | None = None
    """Levels of switches; as many as the hosts need by default."""
    radix: Annotated[int, Field(ge=2, le=_LARGEST)] | None = None
    """Ports of a switch; the generation's by default."""
    oversubscription: Annotated[float, Field(ge=1, le=1_000)] = 1
    """Host ports of a leaf over its uplinks."""
    hosts_per_leaf: _Count | None = None
    """NICs at a leaf; as many as radix and oversubscription allow by default."""
    spines: _Count | None = None
    """Spines (of a pod, with three levels); what hosts per leaf and oversubscription ask for by default."""
    rails: bool = False
    """Put the NICs with one number of all nodes at leaves of their own."""
    routing: Literal["adaptive", "ecmp", "ecmp-message"] = "adaptive"
    """adaptive: a leaf's uplinks are as one. ecmp: a spine by a hash of both ports. ecmp-message: by message."""
    switch_latency: Latency | None = None
    """What each switch adds; the generation's by default."""
    nic_latency: Latency = INFINIBAND_NIC_NS
    """What each of the two NICs adds."""
    overhead: Latency = INFINIBAND_OVERHEAD_NS
    """What a message costs before its bytes."""
    flow_rate: Bandwidth | None = None
    """What one message gets at most; the whole port by default."""


class Shape(Struct, frozen=True, kw_only=True):
    """Numbers of switches, and the leaf of each host."""

    rails: int
    """Groups of leaves, each for the NICs with the same number in their nodes; 1 without rails."""
    hosts_per_leaf: int
    """NICs per leaf."""
    leaves: int
    """Leaves of all rails."""
    spines: int
    """Spines, of each pod."""
    levels: int
    """2 or 3."""
    leaves_per_pod: int
    """Leaves under the same spines; all of them with two levels."""

    @property
    def pods(self) -> int:
        """Groups of leaves under the same spines."""
        return -(-self.leaves // self.leaves_per_pod)

    @property
    def cores_per_spine(self) -> int:
        """Uplinks of a spine; 0 without cores."""
        return self.leaves_per_pod if self.levels == _THREE and self.pods > 1 else 0

    def leaf(self, host: Int64s) -> Int64s:
        """Return the leaf of each host; with rails, the leaves of rail 0 come first."""
        leaf_in_rail = host // self.rails // self.hosts_per_leaf
        return host % self.rails * (self.leaves // self.rails) + leaf_in_rail


def _shape_of(given: FatTreeOptions, request: NetworkRequest) -> Shape:
    """Return the numbers of switches for options and hosts.

    Raises:
        ConfigError: too few ports for the hosts; the message has a sufficient value.
    """
    radix = given.radix or INFINIBAND[given.generation].radix
    rails = request.per_node if given.rails else 1
    per_rail = -(-request.endpoints // rails)
    down, up = _ports(given, radix, per_rail)
    leaves = rails * -(-per_rail // down)
    if leaves == 1 and down <= radix:
        return Shape(rails=1, hosts_per_leaf=down, leaves=1, spines=1, levels=_TWO, leaves_per_pod=1)
    _check_leaf(given, radix, down, up)
    levels = given.levels or (_TWO if leaves <= radix else _THREE)
    most = _most_leaves(radix, levels)
    if leaves > most:
        capacity = f"hold {most // rails * down * rails} NICs of these {request.endpoints}"
        if levels == _TWO:
            message = f"{leaves} leaves, and a spine has {radix} ports: two levels {capacity}; write levels: 3"
            raise ConfigError(message, key="levels")
        needed = _radix_for(given, radix, per_rail, rails)
        message = f"{leaves} leaves, and {radix} ports join {most}: three levels {capacity}; write radix: {needed}"
        raise ConfigError(message, key="radix")
    pod = leaves if levels == _TWO else radix // 2
    return Shape(rails=rails, hosts_per_leaf=down, leaves=leaves, spines=up, levels=levels, leaves_per_pod=pod)


def _ports(given: FatTreeOptions, radix: int, hosts: int) -> tuple[int, int]:
    """Return a leaf's ports to hosts and to spines."""
    ratio = _ratio(given)
    if given.spines:
        most = max(min(int(given.spines * ratio), radix - given.spines), 1)
        return given.hosts_per_leaf or min(most, hosts), given.spines
    down = given.hosts_per_leaf or min(_most_hosts(radix, ratio), hosts)
    return down, -int(-down // ratio)


def _ratio(given: FatTreeOptions) -> Fraction:
    """Return the exact oversubscription: 38 / 1.9 is 20, but slightly more in floating point."""
    return Fraction(str(given.oversubscription))


def _most_hosts(radix: int, ratio: Fraction) -> int:
    return int(radix * ratio / (1 + ratio))


def _most_leaves(radix: int, levels: int) -> int:
    """Return the largest number of leaves of a tree of switches with ``radix`` ports."""
    return radix if levels == _TWO else radix * (radix // 2)


def _radix_for(given: FatTreeOptions, radix: int, hosts: int, rails: int) -> int:
    """Return the smallest radix above ``radix`` with which three levels connect all hosts."""
    while True:
        radix += 1
        down, _ = _ports(given, radix, hosts)
        if rails * -(-hosts // down) <= _most_leaves(radix, _THREE):
            return radix


def _check_leaf(given: FatTreeOptions, radix: int, down: int, up: int) -> None:
    if down + up <= radix:
        return
    message = f"{down} NICs and {up} uplinks need {down + up} ports of a leaf, and a switch has {radix}"
    if given.spines and down < radix:
        raise ConfigError(f"{message}: write spines: {radix - down} or fewer", key="spines")
    most, ratio = _most_hosts(radix, _ratio(given)), given.oversubscription
    raise ConfigError(
        f"{message}: at most {most} NICs fit at oversubscription {ratio:g}; write hosts_per_leaf: {most}",
        key="hosts_per_leaf",
    )


class FatTree(Struct, frozen=True, kw_only=True):
    """A tree of hosts, leaves, spines and cores; links come in pairs, up and down.

    The order of links is: a pair per host, a pair per leaf and spine, and a pair per spine of each pod and core.
    With adaptive routing, the pairs to all spines of a leaf are one pair, and so are the pairs to all cores of a
    pod.
    """

    links: Links
    """All links."""
    shape: Shape
    """The switches."""
    endpoints: int
    """Number of hosts, which are NICs."""
    routing: str
    """How messages are distributed over spines."""

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths, with one row per path if messages are distributed."""
        shape, per_pair = self.shape, self._paths_per_pair()
        rows = np.arange(src.size * per_pair)
        a, b = src[rows // per_pair].astype(np.int64), dst[rows // per_pair].astype(np.int64)
        from_leaf, to_leaf = shape.leaf(a), shape.leaf(b)
        spine, core = self._choice(a, b, rows % per_pair)
        is_remote, passes_spine = a != b, from_leaf != to_leaf
        passes_core = passes_spine & (from_leaf // shape.leaves_per_pod != to_leaf // shape.leaves_per_pod)
        columns = [
            np.where(is_remote, 2 * a, ABSENT),
            np.where(passes_spine, self._leaf_link(from_leaf, spine), ABSENT),
            np.where(passes_core, self._spine_link(from_leaf // shape.leaves_per_pod, spine, core), ABSENT),
            np.where(passes_core, self._spine_link(to_leaf // shape.leaves_per_pod, spine, core) + 1, ABSENT),
            np.where(passes_spine, self._leaf_link(to_leaf, spine) + 1, ABSENT),
            np.where(is_remote, 2 * b + 1, ABSENT),
        ]
        return walked(self.links, columns, per_pair=per_pair)

    def _paths_per_pair(self) -> int:
        shape = self.shape
        if self.routing != "ecmp-message" or shape.leaves == 1:
            return 1
        return shape.spines * max(shape.cores_per_spine, 1)

    def _choice(self, a: Int64s, b: Int64s, index: Int64s) -> tuple[Int64s, Int64s]:
        """Return the spine and the core, numbered per spine, of each row; zeros with adaptive routing."""
        if self.routing == "adaptive":
            return index * 0, index * 0
        hashed = _hash(a * self.endpoints + b) if self.routing == "ecmp" else index
        shape = self.shape
        return hashed % shape.spines, hashed // shape.spines % max(shape.cores_per_spine, 1)

    def _leaf_link(self, leaf: Int64s, spine: Int64s) -> Int64s:
        return 2 * (self.endpoints + leaf * _uplinks(self.shape, self.routing) + spine)

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
    shape = _shape_of(given, request)
    figures = INFINIBAND[given.generation]
    rate = kbps(given.bandwidth or figures.port_bytes, given.efficiency)
    switch = figures.switch_ns if given.switch_latency is None else given.switch_latency
    names = [name for pair in _names(shape, request, given.routing) for name in pair]
    ports, leaves = 2 * request.endpoints, 2 * shape.leaves * _uplinks(shape, given.routing)
    rates = np.full(len(names), rate, dtype=np.int64)
    if given.routing == "adaptive":
        rates[ports : ports + leaves] *= shape.spines
        rates[ports + leaves :] *= shape.spines * max(shape.cores_per_spine, 1)
    # Up and down: a message passes a switch after each link except the last.
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


def _hosts(request: NetworkRequest) -> list[str]:
    """Return the name of each endpoint of a fabric.

    >>> from pptrace.plugin import NetworkRequest
    >>> _hosts(NetworkRequest(endpoints=4, per_node=2))
    ['node0.nic0', 'node0.nic1', 'node1.nic0', 'node1.nic1']
    """
    if request.per_node == 1:
        return [f"host{host}" for host in range(request.endpoints)]
    per_node = request.per_node
    return [f"node{endpoint // per_node}.nic{endpoint % per_node}" for endpoint in range(request.endpoints)]


def _uplinks(shape: Shape, routing: str) -> int:
    """Return the uplinks of a leaf."""
    if shape.leaves == 1:
        return 0
    return 1 if routing == "adaptive" else shape.spines


def _names(shape: Shape, request: NetworkRequest, routing: str) -> list[tuple[str, str]]:
    leaf_of_host = shape.leaf(np.arange(request.endpoints))
    leaves = [_leaf_name(shape, leaf) for leaf in range(shape.leaves)]
    pairs = [(host, leaves[leaf]) for host, leaf in zip(_hosts(request), leaf_of_host.tolist(), strict=True)]
    pods = [f"pod{pod}." if shape.pods > 1 else "" for pod in range(shape.pods)]
    if shape.leaves > 1:
        for index, leaf in enumerate(leaves):
            pod = pods[index // shape.leaves_per_pod]
            spines = ["spines"] if routing == "adaptive" else [f"spine{spine}" for spine in range(shape.spines)]
            pairs += [(leaf, f"{pod}{spine}") for spine in spines]
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
    rail, leaf_in_rail = divmod(leaf, shape.leaves // shape.rails)
    return f"rail{rail}.leaf{leaf_in_rail}"


def _hash(number: Int64s) -> Int64s:
    """Return a hash of each number below 2**32, equal on all machines.

    The hash of a switch has collisions between flows of regular traffic, and a linear hash has none. This hash is
    the upper half of SplitMix64 (G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014) with the number as its state.
    """
    mixed = number.astype(np.uint64) + np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(32)).astype(np.int64)
