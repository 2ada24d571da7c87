"""What collectives without a cluster travel over, and what an exchange between experts carries.

Over n devices a ring's gather or scatter of V bytes takes n - 1 steps: (n - 1) latency + (n - 1)/n V / rate; an
all-reduce is both. Messages of an exchange between experts leave at once: one latency, and their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace_models.accelerator import Accelerator

__all__ = ["Exchange", "Fabric", "data_parallel_fabric", "exchange_fabric", "group_fabric"]

_SECOND_NS = 10**9
_KILO = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What a group's messages travel over."""

    rate: Fraction
    """Bytes per second and direction; 0 for no limit."""
    latency_ns: int
    """Latency of one step."""

    def gather_ns(self, size_bytes: int, devices: int) -> int:
        """Return the time to gather, scatter or exchange ``size_bytes`` over the group."""
        return self.ring_ns(size_bytes, devices, 1)

    def all_reduce_ns(self, size_bytes: int, devices: int) -> int:
        """Return the time to sum ``size_bytes`` on each device over the group.

        >>> Fabric(rate=Fraction(10**9), latency_ns=10).all_reduce_ns(800, 4)
        1260
        """
        return self.ring_ns(size_bytes, devices, 2)

    def carry_ns(self, size_bytes: int, parts: int = 1) -> int:
        """Return the time that a part of some bytes takes on its way, all at once."""
        carried = Fraction(size_bytes * _SECOND_NS, parts) / self.rate if self.rate else 0
        return self.latency_ns + -(-carried // 1)

    def ring_ns(self, size_bytes: int, devices: int, rounds: int) -> int:
        """Return the time of a ring that passes ``size_bytes`` ``rounds`` times."""
        steps = rounds * (devices - 1)
        carried = Fraction(steps * size_bytes * _SECOND_NS, devices) / self.rate if self.rate else 0
        return steps * self.latency_ns + -(-carried // 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Tokens on their way to experts, or back."""

    size_bytes: int
    """Bytes of the tokens that a device sends, each counted once for each expert."""
    top_k: int
    """Experts of a token."""
    experts: int
    """Experts in all."""

    def to_places_bytes(self, places: int) -> int:
        """Return what a device sends where a token goes once to each of so many places with experts of its own.

        A token's experts are taken as drawn with equal chances, so a place is among its own with
        ``1 - C(e - e/p, k) / C(e, k)``.

        >>> Exchange(size_bytes=800, top_k=8, experts=128).to_places_bytes(8)
        532
        """
        missed = comb(self.experts - self.experts // places, self.top_k) / comb(self.experts, self.top_k)
        return ceil(self.size_bytes * places * (1 - missed) / self.top_k)


def group_fabric(device: Accelerator, network: Mapping[str, int], extent: int) -> Fabric:
    """Return what a group that spans ``extent`` neighbouring devices uses: the node's links, or the network."""
    if extent > device.scale_up_size and network:
        return data_parallel_fabric(network)
    rate = device.scale_up_bandwidth * Fraction(str(device.network_efficiency))
    return Fabric(rate=rate, latency_ns=device.scale_up_latency)


def exchange_fabric(device: Accelerator) -> Fabric:
    """Return what exchanges between experts use of the node's links."""
    share = Fraction(str(device.exchange_efficiency or device.network_efficiency))
    return Fabric(rate=device.scale_up_bandwidth * share, latency_ns=device.scale_up_latency)


def data_parallel_fabric(network: Mapping[str, int]) -> Fabric:
    """Return the data-parallel group's network; one that is not described takes no time."""
    return Fabric(rate=Fraction(network.get("rate_kbps", 0) * _KILO), latency_ns=int(network.get("latency_ns", 0)))
