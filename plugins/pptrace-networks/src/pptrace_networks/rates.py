"""Published figures of links, and the resulting rates."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pptrace.plugin import Duration, Paths, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugin import Int64s, Links, NetworkRequest

__all__ = [
    "ABSENT",
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
    "Bandwidth",
    "InfiniBand",
    "Lanes",
    "Latency",
    "NvLink",
    "Options",
    "Pcie",
    "Share",
    "halves",
    "hosts",
    "kbps",
    "walked",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
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

Bandwidth = Annotated[Rate, Field(ge=1_000, le=10**17)]
Latency = Annotated[Duration, Field(ge=0, le=10**12)]
Share = Annotated[float, Field(gt=0, le=1)]
Lanes = Annotated[int, Field(ge=1, le=16)]


class Options(BaseModel):
    """A frozen set of options, each described by its docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def kbps(bytes_per_s: Fraction | int, share: Fraction | float = 1) -> int:
    """Return a share of a rate in kB/s, rounded to the nearest and at least 1.

    >>> kbps(50_000_000_000, 0.7)
    35000000
    """
    return max(1, round(bytes_per_s * Fraction(share) / 1000))


ABSENT = -1
"""Marks an absent link in a column."""


def walked(links: Links, columns: Sequence[Int64s], *, ways: int = 1) -> Paths:
    """Return paths from columns of links or ``ABSENT``, in order from source to target; each has shape (rows,)."""
    steps = np.stack(columns, axis=1)
    present = steps != ABSENT
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return Paths.along(links, ends, steps[present], ways=ways)


def halves(latency_ns: int) -> tuple[int, int]:
    """Return a latency in two parts, for the links on either side of a switch.

    >>> halves(601)
    (301, 300)
    """
    return latency_ns - latency_ns // 2, latency_ns // 2


def hosts(request: NetworkRequest) -> list[str]:
    """Return the name of each endpoint of a fabric.

    >>> from pptrace.plugin import NetworkRequest
    >>> hosts(NetworkRequest(endpoints=4, per_node=2))
    ['node0.nic0', 'node0.nic1', 'node1.nic0', 'node1.nic1']
    """
    if request.per_node == 1:
        return [f"host{host}" for host in range(request.endpoints)]
    per_node = request.per_node
    return [f"node{endpoint // per_node}.nic{endpoint % per_node}" for endpoint in range(request.endpoints)]
