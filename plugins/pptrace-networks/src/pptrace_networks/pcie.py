"""GPUs and NICs behind PCI Express switches, whose uplinks to the host they share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from pptrace.plugin import Links
from pptrace_networks.figures import PCIE, PCIE_LATENCY_NS, PCIE_OVERHEAD_NS, PCIE_PAYLOAD
from pptrace_networks.parameters import Bandwidth, Lanes, Latency, Options, Share, kbps
from pptrace_networks.rows import ABSENT, walked

if TYPE_CHECKING:
    from pptrace.plugin import Int32s, Int64s, NetworkRequest, Paths

__all__ = ["PcieOptions", "PcieTree", "pcie"]


class PcieOptions(Options):
    """A tree of PCI Express."""

    generation: Literal[3, 4, 5, 6] = 4
    """Of PCI Express."""
    lanes: Lanes = 16
    """Of each device and each uplink."""
    gpus_per_switch: Annotated[int, Field(ge=1, le=64)] = 4
    """GPUs behind a switch; NICs are spread over the switches."""
    peer_to_peer: bool = True
    """Let devices exchange directly; else every message goes through the host's memory."""
    efficiency: Share = PCIE_PAYLOAD
    """Share of a link's rate that messages get."""
    latency: Latency = PCIE_LATENCY_NS
    """Wire latency between two devices; once more through the host's memory."""
    overhead: Latency = PCIE_OVERHEAD_NS
    """What a message between GPUs costs before its bytes; one that goes on into a fabric pays the fabric's."""
    flow_rate: Bandwidth | None = None
    """What one message gets at most; the whole link unless given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieTree:
    """Each device has a link out and in, each switch one up and down.

    Directly, a message stays below its switch where both ends are behind it, else it passes both uplinks.
    Through the host's memory it always goes up and comes down again, also within a switch. The host itself
    holds nothing up. Bisection of two switches: one uplink.
    """

    links: Links
    """Out and in of each device, then up and down of each switch."""
    gpus: int
    """Devices that are GPUs; the others are NICs."""
    switch: Int64s
    """The switch of each device."""
    direct: bool
    """Whether devices exchange directly."""

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return out, the uplinks where they are passed, and in."""
        a, b, first = self.switch[src], self.switch[dst], 2 * self.switch.size
        other = src != dst
        over = other & ((a != b) | (not self.direct))
        paths = walked(self.links, [
            np.where(other, 2 * src, ABSENT),
            np.where(over, first + 2 * a, ABSENT),
            np.where(over, first + 2 * b + 1, ABSENT),
            np.where(other, 2 * dst + 1, ABSENT),
        ])  # fmt: skip
        both = (src < self.gpus) & (dst < self.gpus)
        return replace(paths, overhead_ns=np.where(both, paths.overhead_ns, 0))


def pcie(request: NetworkRequest) -> PcieTree:
    """Build the tree of checked options."""
    given = PcieOptions.model_construct(**request.options)
    gpus = request.endpoints - request.nics
    switches = max(-(-gpus // given.gpus_per_switch), 1)
    nics = np.arange(request.nics) * switches // max(request.nics, 1)
    switch = np.concatenate([np.arange(gpus) // given.gpus_per_switch, nics]).astype(np.int64)
    devices = [*(f"gpu{gpu}" for gpu in range(gpus)), *(f"nic{nic}" for nic in range(request.nics))]
    names = [f"{device}.{way}" for device in devices for way in ("out", "in")]
    names += [f"switch{one}.{way}" for one in range(switches) for way in ("up", "down")]
    rate = kbps(PCIE[given.generation].lane_bytes * given.lanes, given.efficiency)
    latency, overhead = np.zeros((2, len(names)), dtype=np.int64)
    latency[: 2 * len(devices) : 2] = given.latency
    overhead[: 2 * len(devices) : 2] = given.overhead
    passing = PCIE[given.generation].switch_ns
    latency[2 * len(devices) :] = passing if given.peer_to_peer else given.latency // 2
    return PcieTree(
        links=Links(
            name=tuple(names),
            rate_kbps=np.full(len(names), rate),
            latency_ns=latency,
            overhead_ns=overhead,
            flow_rate_kbps=np.full(len(names), min(kbps(given.flow_rate), rate) if given.flow_rate else 0),
        ),
        gpus=gpus,
        switch=switch,
        direct=given.peer_to_peer,
    )
