"""Published figures of interconnects, each with its source; rates are of one direction."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "INFINIBAND",
    "INFINIBAND_NIC_NS",
    "INFINIBAND_OVERHEAD_NS",
    "INFINIBAND_PAYLOAD",
    "NVLINK",
    "NVLINK_LATENCY_NS",
    "NVLINK_OVERHEAD_NS",
    "PCIE",
    "PCIE_LATENCY_NS",
    "PCIE_OVERHEAD_NS",
    "PCIE_PAYLOAD",
    "SOCKET_BYTES",
    "InfiniBand",
    "NvLink",
    "Pcie",
]

_GIGA = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """A generation of NVLink."""

    links: int
    """Links of a GPU."""
    link_bytes: int
    """Bytes per second of a link, one direction."""
    payload: float
    """Share of it that a transfer gets."""
    pcie: int
    """Generation of the PCI Express that the same servers have."""


NVLINK: Mapping[int, NvLink] = MappingProxyType({
    3: NvLink(links=12, link_bytes=25 * _GIGA, payload=20.0 / 25, pcie=4),
    4: NvLink(links=18, link_bytes=25 * _GIGA, payload=20.6 / 25, pcie=5),
    5: NvLink(links=18, link_bytes=50 * _GIGA, payload=40.1 / 50, pcie=5),
})  # fmt: skip
"""Links and rates: NVIDIA A100 (600 GB/s both ways over 12 links), H100 (900 over 18) and Blackwell (1800 over
18) architecture white papers. Payload: what NCCL counts on per link, SM80_NVLINK_BW 20.0, SM90_NVLINK_BW 20.6
and SM100_NVLINK_BW 40.1 GB/s (NCCL 2.30, src/graph/topo.h). PCI Express: DGX A100, DGX H100 and DGX GB200 user
guides."""

NVLINK_LATENCY_NS, NVLINK_OVERHEAD_NS = 600, 2_800
"""From GPU to GPU: NCCL 2.30, src/graph/tuning.cc, hwLatencies of a ring over NVLink. LL, where the data carries
its own flag, is nearest to the wire: 0.6 us. Simple, which large messages take, is 3.4 us: a message pays the
rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A generation of PCI Express."""

    lane_bytes: Fraction
    """Bytes per second of a lane, one direction, after encoding."""
    switch_ns: int
    """What a switch adds."""


PCIE: Mapping[int, Pcie] = MappingProxyType({
    3: Pcie(lane_bytes=Fraction(8 * _GIGA * 128, 130 * 8), switch_ns=150),
    4: Pcie(lane_bytes=Fraction(16 * _GIGA * 128, 130 * 8), switch_ns=105),
    5: Pcie(lane_bytes=Fraction(32 * _GIGA * 128, 130 * 8), switch_ns=115),
    6: Pcie(lane_bytes=Fraction(64 * _GIGA * 236, 256 * 8), switch_ns=115),
})  # fmt: skip
"""Lanes: PCI Express Base Specification, 8, 16 and 32 GT/s in 128b/130b (3.0 to 5.0), 64 GT/s in flits of 256
bytes of which 236 are transaction bytes (6.0). Switches: Broadcom PEX88000 105 ns, 30 % less than PEX9700 (hence
150 ns), PEX89000 115 ns (product briefs); for 6.0 that of 5.0 is taken."""

PCIE_PAYLOAD = 0.86
"""Share of a link that transfers between GPUs get: p2pmark measures 54.3 of 63.0 GB/s on PCI Express 5.0 x16
(github.com/lukealonso/p2pmark). The bound by packet headers is 256 / (256 + 24) = 0.91 at 256-byte payloads
(R. Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018, section 3)."""

PCIE_LATENCY_NS, PCIE_OVERHEAD_NS = 1_000, 4_700
"""Between two devices: NCCL 2.30, src/graph/tuning.cc, hwLatencies of a ring over PCI; LL 1.0 us, Simple 5.7
us."""

SOCKET_BYTES = 22 * _GIGA
"""Rate between two sockets: SRP_QPI_BW, Sapphire Rapids (NCCL 2.30, src/graph/topo.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfiniBand:
    """A generation of InfiniBand, its switch and its port of four lanes."""

    port_bytes: int
    """Bytes per second of a port, one direction, after encoding."""
    radix: int
    """Ports of a switch."""
    switch_ns: int
    """What a switch adds."""


INFINIBAND: Mapping[str, InfiniBand] = MappingProxyType({
    "edr": InfiniBand(port_bytes=100 * _GIGA // 8, radix=36, switch_ns=90),
    "hdr": InfiniBand(port_bytes=200 * _GIGA // 8, radix=40, switch_ns=130),
    "ndr": InfiniBand(port_bytes=400 * _GIGA // 8, radix=64, switch_ns=130),
    "xdr": InfiniBand(port_bytes=800 * _GIGA // 8, radix=144, switch_ns=130),
})  # fmt: skip
"""SB7800 (36 ports of 100 Gb/s, 90 ns), QM8700 (40 of 200, 130 ns), QM9700 (64 of 400) and Q3400-RA (144 of 800)
datasheets. No latency is published for the last two, and other pages contradict each other; that of HDR is
taken."""

INFINIBAND_PAYLOAD = Fraction(4096, 4096 + 8 + 12 + 4 + 2)
"""Share of a port that payload gets: packets of 4096 bytes with LRH, BTH, ICRC and VCRC (InfiniBand Architecture
Specification, volume 1, chapters 5 and 7)."""

INFINIBAND_NIC_NS = 300
"""What each of the two NICs adds: half of the 600 ns that the ConnectX-6 user manual gives end to end."""

INFINIBAND_OVERHEAD_NS = 11_300
"""NCCL 2.30, src/graph/tuning.cc, hwLatencies of a ring over a network: Simple 14.0 us. LL is 2.7 us, which PCI
Express at both ends (2 x 1.0 us), both NICs and a switch come to, within 30 ns; a message pays the rest."""
