"""NVLink and PCIe networks of one node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from pptrace.plugin import Links
from pptrace_networks.rates import (
    ABSENT,
    NVLINK,
    NVLINK_LATENCY_NS,
    NVLINK_OVERHEAD_NS,
    PCIE,
    PCIE_LATENCY_NS,
    PCIE_OVERHEAD_NS,
    PCIE_PAYLOAD,
    Bandwidth,
    Lanes,
    Latency,
    Options,
    Share,
    halves,
    kbps,
    walked,
)

if TYPE_CHECKING:
    from pptrace.plugin import Int32s, Int64s, NetworkRequest, Paths

__all__ = ["NvLinkOptions", "NvSwitch", "PcieOptions", "PcieTree", "nvlink", "pcie"]


class NvLinkOptions(Options):
    """NVLink between GPUs, PCI Express between a GPU and a NIC."""

    generation: Literal[3, 4, 5] = 4
    """Of NVLink: 3 with A100, 4 with H100 and H200, 5 with B200 and GB200."""
    links: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """NVLinks of a GPU; 12, 18 and 18 unless given."""
    efficiency: Share | None = None
    """Share of NVLink's rate that messages get; 0.8, 0.824 and 0.802 unless given."""
    latency: Latency = NVLINK_LATENCY_NS
    """Wire latency from GPU to GPU."""
    overhead: Latency = NVLINK_OVERHEAD_NS
    """What a message between GPUs costs before its bytes."""
    flow_rate: Bandwidth | None = None
    """What one message between GPUs gets at most; all of a GPU's links unless given."""
    pcie_generation: Literal[3, 4, 5, 6] | None = None
    """Of the PCI Express between GPUs and NICs; 4, 5 and 5 unless given."""
    pcie_lanes: Lanes = 16
    """Its lanes."""
    pcie_efficiency: Share = PCIE_PAYLOAD
    """Share of its rate that messages get."""
    pcie_latency: Latency = PCIE_LATENCY_NS
    """Wire latency between a GPU and a NIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvSwitch:
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
    names = [f"gpu{gpu}.{way}" for gpu in range(gpus) for way in ("up", "down")]
    if nics:
        names += [f"gpu{gpu}.pcie.{way}" for gpu in range(gpus) for way in ("up", "down")]
        names += [f"nic{nic}.{way}" for nic in range(nics) for way in ("in", "out")]
    return tuple(names)


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
    names = [f"{device}.{way}" for device in devices for way in ("out", "in")]
    names += [f"switch{index}.{way}" for index in range(switches) for way in ("up", "down")]
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
