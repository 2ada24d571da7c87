"""What a fat-tree is built from, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pptrace.plugin import ConfigError
from pptrace_networks.rates import (
    INFINIBAND,
    INFINIBAND_NIC_NS,
    INFINIBAND_OVERHEAD_NS,
    INFINIBAND_PAYLOAD,
    Bandwidth,
    Latency,
    Options,
    Share,
)

if TYPE_CHECKING:
    from pptrace.plugin import Int64s, NetworkRequest

__all__ = ["FatTreeOptions", "Shape", "shape_of"]

_TWO, _THREE, _LARGEST = 2, 3, 100_000
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]


class FatTreeOptions(Options):
    """InfiniBand switches in two or three levels."""

    generation: Literal["edr", "hdr", "ndr", "xdr"] = "ndr"
    """Rate of a port: 100, 200, 400 or 800 Gb/s."""
    bandwidth: Bandwidth | None = None
    """Rate of a port per direction; the generation's unless given."""
    efficiency: Share = float(INFINIBAND_PAYLOAD)
    """Share of a port's rate that payload gets."""
    levels: Literal[2, 3] | None = None
    """Levels of switches; as many as the hosts need unless given."""
    radix: Annotated[int, Field(ge=2, le=_LARGEST)] | None = None
    """Ports of a switch; the generation's unless given."""
    oversubscription: Annotated[float, Field(ge=1, le=1_000)] = 1
    """Host ports of a leaf over its uplinks."""
    hosts_per_leaf: _Count | None = None
    """NICs at a leaf; as many as radix and oversubscription allow unless given."""
    spines: _Count | None = None
    """Spines (of a pod, with three levels); what hosts per leaf and oversubscription ask for unless given."""
    rails: bool = False
    """Put the NICs with one number of all nodes at leaves of their own."""
    routing: Literal["adaptive", "ecmp", "ecmp-message"] = "adaptive"
    """adaptive: a leaf's uplinks are as one. ecmp: a spine by a hash of both ports. ecmp-message: by message."""
    switch_latency: Latency | None = None
    """What each switch adds; the generation's unless given."""
    nic_latency: Latency = INFINIBAND_NIC_NS
    """What each of the two NICs adds."""
    overhead: Latency = INFINIBAND_OVERHEAD_NS
    """What a message costs before its bytes."""
    flow_rate: Bandwidth | None = None
    """What one message gets at most; the whole port unless given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many switches there are, and who is at which."""

    rails: int
    """Groups of leaves that hold NICs of one number; 1 for none."""
    hosts_per_leaf: int
    """NICs at a leaf."""
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
        """Uplinks of a spine; 0 where nothing goes above the spines."""
        return self.leaves_per_pod if self.levels == _THREE and self.pods > 1 else 0

    def leaf(self, host: Int64s) -> Int64s:
        """Return the leaf of each host: with rails, those of rail 0 come first."""
        own = host // self.rails // self.hosts_per_leaf
        return host % self.rails * (self.leaves // self.rails) + own


def shape_of(given: FatTreeOptions, request: NetworkRequest) -> Shape:
    """Return the sizes that follow.

    Raises:
        ConfigError: ports that do not suffice for the hosts, with what would.
    """
    radix = given.radix or INFINIBAND[given.generation].radix
    rails = request.per_node if given.rails else 1
    hosts = -(-request.endpoints // rails)
    down, up = _ports(given, radix, hosts)
    leaves = rails * -(-hosts // down)
    if leaves == 1 and down <= radix:
        return Shape(rails=1, hosts_per_leaf=down, leaves=1, spines=1, levels=_TWO, leaves_per_pod=1)
    _check_leaf(given, radix, down, up)
    levels = given.levels or (_TWO if leaves <= radix else _THREE)
    most = _most_leaves(radix, levels)
    if leaves > most:
        held = f"hold {most // rails * down * rails} NICs of these {request.endpoints}"
        if levels == _TWO:
            message = f"{leaves} leaves, and a spine has {radix} ports: two levels {held}; write levels: 3"
            raise ConfigError(message, key="levels")
        needed = _radix_for(given, radix, hosts, rails)
        message = f"{leaves} leaves, and {radix} ports join {most}: three levels {held}; write radix: {needed}"
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
    """Return the oversubscription as it is written: 38 over 1.9 is 20, and in floating point a little more."""
    return Fraction(str(given.oversubscription))


def _most_hosts(radix: int, ratio: Fraction) -> int:
    return int(radix * ratio / (1 + ratio))


def _most_leaves(radix: int, levels: int) -> int:
    """Return the leaves that spines of so many ports join, or cores that join pods of half as many."""
    return radix if levels == _TWO else radix * (radix // 2)


def _radix_for(given: FatTreeOptions, radix: int, hosts: int, rails: int) -> int:
    """Return the fewest ports above ``radix`` with which three levels hold the hosts."""
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
