"""What a fat-tree is built from, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pptrace.errors import ConfigError
from pptrace_networks.figures import INFINIBAND, INFINIBAND_NIC_NS, INFINIBAND_OVERHEAD_NS, INFINIBAND_PAYLOAD
from pptrace_networks.parameters import Bandwidth, Latency, Options, Share

if TYPE_CHECKING:
    from pptrace.model.request import NetworkRequest

__all__ = ["FatTreeOptions", "Shape", "shape_of"]

_Count = Annotated[int, Field(ge=1, le=100_000)]


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
    radix: _Count | None = None
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
        """Uplinks of a spine; 0 with two levels."""
        return self.leaves_per_pod if self.levels == 3 else 0  # noqa: PLR2004 - the third level


def shape_of(given: FatTreeOptions, request: NetworkRequest) -> Shape:
    """Return the sizes that follow.

    Raises:
        ConfigError: a radix that cannot hold the hosts, with what would.
    """
    radix = given.radix or INFINIBAND[given.generation].radix
    ratio = given.oversubscription
    rails = request.per_node if given.rails else 1
    hosts = -(-request.endpoints // rails)
    most = max(min(int(radix * ratio / (1 + ratio)), radix - 1), 1)
    down = given.hosts_per_leaf or min(most, hosts)
    leaves = rails * -(-hosts // down)
    up = given.spines or max(-int(-down // ratio), 1)
    if leaves == 1 and down <= radix:
        return Shape(rails=1, hosts_per_leaf=down, leaves=1, spines=1, levels=2, leaves_per_pod=1)
    if down + up > radix:
        message = f"{down} NICs and {up} uplinks need {down + up} ports of a leaf, and a switch has {radix}"
        raise ConfigError(
            f"{message}: at most {most} NICs fit at oversubscription {ratio:g}", key="hosts_per_leaf"
        )
    levels = given.levels or (2 if leaves <= radix else 3)
    if levels == 2 and leaves > radix:  # noqa: PLR2004 - the second level
        message = f"{leaves} leaves, and a spine has {radix} ports: two levels hold {radix * down} NICs"
        raise ConfigError(f"{message} of these {request.endpoints}; write levels: 3", key="radix")
    pod = leaves if levels == 2 else max(radix // 2, 1)  # noqa: PLR2004 - the second level
    if levels == 3 and -(-leaves // pod) > radix:  # noqa: PLR2004 - the third level
        message = f"{-(-leaves // pod)} pods, and a core switch has {radix} ports: three levels hold"
        raise ConfigError(f"{message} {radix * pod * down} NICs of these {request.endpoints}", key="radix")
    return Shape(
        rails=rails, hosts_per_leaf=down, leaves=leaves, spines=up, levels=levels,
        leaves_per_pod=pod,
    )  # fmt: skip
