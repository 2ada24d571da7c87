"""NVLink and PCIe networks of one node, their published figures, and options and paths of networks."""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from pptrace.plugin import Duration, Links, Parameters, Paths, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugin import Int32s, Int64s, NetworkRequest

_GIGA = 10**9


class NvLink(Struct, frozen=True, kw_only=True):
    """A generation of NVLink."""

    links: int
    """Links of a GPU."""
    link_bytes: int
    """Bytes per second of a link, one direction."""
    payload: float
    """Share of it that a transfer gets."""
    pcie: int
    """Generation of PCI Express in the same servers."""


NVLINK: Mapping[int, NvLink] = MappingProxyType({
    3: NvLink(links=12, link_bytes=25 * _GIGA, payload=20.0 / 25, pcie=4),
    4: NvLink(links=18, link_bytes=25 * _GIGA, payload=20.6 / 25, pcie=5),
    5: NvLink(links=18, link_bytes=50 * _GIGA, payload=40.1 / 50, pcie=5),
})  # fmt: skip
"""Links and rates: NVIDIA A100 (600 GB/s both ways over 12 links), H100 (900 over 18) and Blackwell (1800 over
18) architecture white papers. Payload: NCCL's rate per link, SM80_NVLINK_BW 20.0, SM90_NVLINK_BW 20.6 and
SM100_NVLINK_BW 40.1 GB/s (NCCL 2.30, src/graph/topo.h). PCI Express: DGX A100, DGX H100 and DGX GB200 user
guides."""

NVLINK_LATENCY_NS, NVLINK_OVERHEAD_NS = 600, 2_800
"""From GPU to GPU: NCCL 2.30, src/graph/tuning.cc, hwLatencies of a ring over NVLink. The LL protocol, 0.6 us, is
nearest to the latency of the wire. The Simple protocol of large messages is 3.4 us; the difference is overhead per
message."""


class Pcie(Struct, frozen=True, kw_only=True):
    """A generation of PCI Express."""

    lane_bytes: Fraction
    """Bytes per second of a lane, one direction, after encoding."""
    switch_ns: int
    """Latency of a switch in ns."""


PCIE: Mapping[int, Pcie] = MappingProxyType({
    3: Pcie(lane_bytes=Fraction(8 * _GIGA * 128, 130 * 8), switch_ns=150),
    4: Pcie(lane_bytes=Fraction(16 * _GIGA * 128, 130 * 8), switch_ns=105),
    5: Pcie(lane_bytes=Fraction(32 * _GIGA * 128, 130 * 8), switch_ns=115),
    6: Pcie(lane_bytes=Fraction(64 * _GIGA * 236, 256 * 8), switch_ns=115),
})  # fmt: skip
"""Lanes: PCI Express Base Specification, 8, 16 and 32 GT/s in 128b/130b (3.0 to 5.0), 64 GT/s in flits of 256
bytes of which 236 are transaction bytes (6.0). Switches: Broadcom PEX88000 105 ns, 30 % less than PEX9700 (hence
150 ns), PEX89000 115 ns (product briefs); 6.0 has the value of 5.0."""

PCIE_PAYLOAD = 0.86
"""Share of a link's rate for transfers between GPUs: p2pmark measures 54.3 of 63.0 GB/s on PCI Express 5.0 x16
(github.com/lukealonso/p2pmark). The bound by packet headers is 256 / (256 + 24) = 0.91 at 256-byte payloads
(R. Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018, section 3)."""

PCIE_LATENCY_NS, PCIE_OVERHEAD_NS = 1_000, 4_700
"""Between two devices: NCCL 2.30, src/graph/tuning.cc, hwLatencies of a ring over PCI; LL 1.0 us, Simple 5.7
us."""

Bandwidth = Annotated[Rate, Field(ge=1_000, le=10**17)]
Latency = Annotated[Duration, Field(ge=0, le=10**12)]
Share = Annotated[float, Field(gt=0, le=1)]
Lanes = Annotated[int, Field(ge=1, le=32)]


def kbps(bytes_per_s: Fraction | int, share: Fraction | float = 1) -> int:
    """Return a share of a rate in kB/s, rounded to the nearest and at least 1.

    >>> kbps(50_000_000_000, 0.7)
    35000000
    """
    return max(1, round(bytes_per_s * Fraction(share) / 1000))


ABSENT = -1
"""Marks an absent link in a column."""


def walked(links: Links, columns: Sequence[Int64s], *, per_pair: int = 1) -> Paths:
    """Return paths from columns of links or ``ABSENT``, in order from source to target; each has shape (rows,)."""
    steps = np.stack(columns, axis=1)
    present = steps != ABSENT
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return Paths.along(links, ends, steps[present], per_pair=per_pair)


def halves(latency_ns: int) -> tuple[int, int]:
    """Return a latency in two parts, for the links on either side of a switch.

    >>> halves(601)
    (301, 300)
    """
    return latency_ns - latency_ns // 2, latency_ns // 2


class NvLinkOptions(Parameters):
    """NVLink between GPUs, PCI Express between a GPU and a NIC."""

    generation: Literal[3, 4, 5] = 4
    """Of NVLink: 3 with A100, 4 with H100 and H200, 5 with B200 and GB200."""
    links: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """NVLinks of a GPU; 12, 18 and 18 by default."""
    efficiency: Share | None = None
    """Share of NVLink's rate that messages get; 0.8, 0.824 and 0.802 by default."""
    latency: Latency = NVLINK_LATENCY_NS
    """Wire latency from GPU to GPU."""
    overhead: Latency = NVLINK_OVERHEAD_NS
    """What a message between GPUs costs before its bytes."""
    flow_rate: Bandwidth | None = None
    """What one message between GPUs gets at most; all of a GPU's links by default."""
    pcie_generation: Literal[3, 4, 5, 6] | None = None
    """Of the PCI Express between GPUs and NICs; 4, 5 and 5 by default."""
    pcie_lanes: Lanes = 16
    """Its lanes."""
    pcie_efficiency: Share = PCIE_PAYLOAD
    """Share of its rate that messages get."""
    pcie_latency: Latency = PCIE_LATENCY_NS
    """Wire latency between a GPU and a NIC."""


class NvSwitch(Struct, frozen=True, kw_only=True):
    """A non-blocking switch: only the links of each GPU limit transfers.

    A message to a NIC uses the PCI Express links of the GPU and of the NIC. The switch between these links does
    not limit it, because each GPU shares a switch with its NIC.

    Bisection of N GPUs: N // 2 times a GPU's rate.
    """

    links: Links
    """Up and down of each GPU; with NICs, also those over PCI Express, then in and out of each NIC."""
    gpus: int
    """Endpoints that are GPUs; the others are NICs."""

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the NVLink links up and down between GPUs, or two PCI Express links if an end is a NIC."""
        are_gpus = (src < self.gpus) & (dst < self.gpus)
        leaving = np.where(are_gpus, 2 * src, 2 * (self.gpus + src))
        entering = np.where(are_gpus, 2 * dst, 2 * (self.gpus + dst)) + 1
        is_remote = src != dst
        return walked(self.links, [np.where(is_remote, leaving, ABSENT), np.where(is_remote, entering, ABSENT)])


def nvlink(request: NetworkRequest) -> NvSwitch:
    """Build the network of checked options; a domain of 72 GPUs only has more endpoints."""
    given = NvLinkOptions.model_construct(**request.options)
    gpus, nics = request.endpoints - request.nics, request.nics
    figures = NVLINK[given.generation]
    share = figures.payload if given.efficiency is None else given.efficiency
    nvlink_kbps = kbps(figures.link_bytes * (given.links or figures.links), share)
    pcie = PCIE[given.pcie_generation or figures.pcie].lane_bytes
    pcie_kbps = kbps(pcie * given.pcie_lanes, given.pcie_efficiency)
    ports = (2 * gpus, 2 * (gpus + nics) if nics else 0)
    latency = [
        np.tile(halves(latency_ns), link_count // 2)
        for latency_ns, link_count in zip((given.latency, given.pcie_latency), ports, strict=True)
    ]
    links = Links(
        name=_names(gpus, nics),
        rate_kbps=np.repeat([nvlink_kbps, pcie_kbps], ports),
        latency_ns=np.concatenate(latency),
        overhead_ns=np.concatenate([np.tile([given.overhead, 0], gpus), np.zeros(ports[1], dtype=np.int64)]),
        flow_rate_kbps=np.repeat([kbps(given.flow_rate) if given.flow_rate else 0, 0], ports),
    )
    return NvSwitch(links=links, gpus=gpus)


def _names(gpus: int, nics: int) -> tuple[str, ...]:
    names = [f"gpu{gpu}.{direction}" for gpu in range(gpus) for direction in ("up", "down")]
    if nics:
        names += [f"gpu{gpu}.pcie.{direction}" for gpu in range(gpus) for direction in ("up", "down")]
        names += [f"nic{nic}.{direction}" for nic in range(nics) for direction in ("in", "out")]
    return tuple(names)


class PcieOptions(Parameters):
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
    """What one message gets at most; the whole link by default."""


class PcieTree(Struct, frozen=True, kw_only=True):
    """A tree with links out and in of each device, and links up and down of each switch.

    With direct exchange, a message between devices of the same switch stays below it, and other messages pass both
    uplinks. Through host memory, every message passes uplinks, also within a switch. The host is not a bottleneck.
    Bisection of two switches: one uplink.
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
        """Return the link out, the uplinks if the message passes them, and the link in."""
        source_switch, target_switch, first_uplink = self.switch[src], self.switch[dst], 2 * self.switch.size
        is_remote = src != dst
        passes_uplink = is_remote & ((source_switch != target_switch) | (not self.direct))
        paths = walked(self.links, [
            np.where(is_remote, 2 * src, ABSENT),
            np.where(passes_uplink, first_uplink + 2 * source_switch, ABSENT),
            np.where(passes_uplink, first_uplink + 2 * target_switch + 1, ABSENT),
            np.where(is_remote, 2 * dst + 1, ABSENT),
        ])  # fmt: skip
        are_gpus = (src < self.gpus) & (dst < self.gpus)
        return replace(paths, overhead_ns=np.where(are_gpus, paths.overhead_ns, 0))


def pcie(request: NetworkRequest) -> PcieTree:
    """Build the tree of checked options."""
    given = PcieOptions.model_construct(**request.options)
    gpus = request.endpoints - request.nics
    switches = max(-(-gpus // given.gpus_per_switch), 1)
    nics = np.arange(request.nics) * switches // max(request.nics, 1)
    switch = np.concatenate([np.arange(gpus) // given.gpus_per_switch, nics]).astype(np.int64)
    devices = [*(f"gpu{gpu}" for gpu in range(gpus)), *(f"nic{nic}" for nic in range(request.nics))]
    names = [f"{device}.{direction}" for device in devices for direction in ("out", "in")]
    names += [f"switch{index}.{direction}" for index in range(switches) for direction in ("up", "down")]
    rate = kbps(PCIE[given.generation].lane_bytes * given.lanes, given.efficiency)
    latency, overhead = np.zeros((2, len(names)), dtype=np.int64)
    latency[: 2 * len(devices) : 2] = given.latency
    overhead[: 2 * len(devices) : 2] = given.overhead
    switch_ns = PCIE[given.generation].switch_ns
    latency[2 * len(devices) :] = switch_ns if given.peer_to_peer else given.latency // 2
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
