"""Collectives of tensor, context and expert-parallel groups.

``E[max of n] = n * integral of x phi(x) Phi(x)^(n-1) dx`` (David and Nagaraja, Order Statistics, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import erf, exp, pi, sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace_models.accelerator import data_parallel_fabric, exchange_fabric, group_fabric

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.plugin import CostRequest
    from pptrace_models.accelerator import Accelerator, Exchange, Fabric
    from pptrace_models.layer import Shard
    from pptrace_models.options import RooflineOptions

__all__ = ["ByFormula", "Groups", "OnLinks", "expected_maximum", "groups_of"]

_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""Rounds of a ring per collective; an all-gather is one round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    shard: Shard
    """Sizes of the groups."""
    deduplicated: bool = False
    """Whether a token is sent once to a place that has several of its experts."""
    wait_ns: int = 0
    """Expected wait of a tensor-parallel collective for the last device of its group."""

    def _waits_ns(self, axis: str, collectives: Sequence[str]) -> int:
        return len(collectives) * self.wait_ns if axis in {"tp", "etp"} else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFormula(_Groups):
    """Rings on the device's scale-up links, and between replicas on the data-parallel network."""

    device: Accelerator
    """Device with the rates of scale-up links."""
    network: Mapping[str, int]
    """The data-parallel network; empty if not described."""
    every_nic: bool = False
    """Whether a group's devices in a node share their NICs."""
    ranks: int = 1
    """Number of pipeline ranks, which have consecutive devices."""

    def ns(self, axis: str, size_bytes: int, *collectives: str) -> int:
        """Return the time of collectives, as one ring with all of their rounds, over ``tp``, ``cp`` or ``etp``."""
        devices = {"tp": self.shard.tp, "cp": self.shard.cp, "etp": self.shard.etp}[axis]
        extent = self.shard.tp * devices if axis == "cp" else devices
        fabric = group_fabric(self.device, self.network, extent)
        rounds = sum(_ROUNDS[name] for name in collectives)
        return fabric.ring_ns(size_bytes, devices, rounds) + self._waits_ns(axis, collectives)

    def exchange_ns(self, exchange: Exchange) -> int:
        """Return the time of concurrent messages: the maximum of times inside the node and over the network."""
        shard = self.shard
        if shard.ep == 1:
            return 0
        groups_per_node = shard.ep
        if self.network:
            groups_per_node = min(max(self.device.scale_up_size // shard.etp, 1), shard.ep)
        nodes = -(-shard.ep // groups_per_node)
        inner = exchange_fabric(self.device)
        if not self.deduplicated:
            network_bytes = exchange.size_bytes * (nodes - 1)
            time = inner.carry_ns(exchange.size_bytes * (groups_per_node - 1), shard.ep)
        else:
            network_bytes = exchange.to_places_bytes(nodes) * (nodes - 1)
            node_bytes = exchange.to_places_bytes(shard.ep) * (groups_per_node - 1)
            time = inner.carry_ns(node_bytes, groups_per_node)
        if nodes > 1:
            time = max(time, data_parallel_fabric(self.network).carry_ns(network_bytes, nodes))
        return time

    def replicas_ns(self, collective: str, count: int, element_bytes: int, *, experts: bool) -> int:
        """Return the time of a collective in the context-parallel group, then of each share over the network."""
        rounds, shard = _ROUNDS[collective], self.shard
        distance = shard.ep * shard.etp if experts else shard.tp * shard.cp
        outer = self._replica_fabric(distance, shard.expert_replicas if experts else shard.replicas // shard.cp)
        if experts:
            return outer.ring_ns(count * element_bytes, shard.expert_replicas, rounds)
        inner = group_fabric(self.device, self.network, shard.tp * shard.cp)
        share = -(-count // shard.cp)
        return inner.ring_ns(count * element_bytes, shard.cp, rounds) + outer.ring_ns(
            share * element_bytes, shard.replicas // shard.cp, rounds
        )

    def _replica_fabric(self, distance: int, replicas: int) -> Fabric:
        """Return the fabric between ``replicas`` with a distance of some devices."""
        outer = data_parallel_fabric(self.network)
        if not (self.every_nic and outer.rate):
            return outer
        per_node = max(self.device.scale_up_size // distance, 1)
        fewest = _fewest_in_a_node(per_node, replicas, self.ranks)
        inner = group_fabric(self.device, {}, min(per_node, replicas))
        return inner if fewest == replicas else replace(outer, rate=min(fewest * outer.rate, inner.rate))


def _fewest_in_a_node(places: int, replicas: int, groups: int) -> int:
    """Return the smallest number of replicas of a group in a node, for consecutive groups.

    In a node with one replica, a ring has one NIC. NCCL's ``init.cc`` uses the smallest number of channels of all
    nodes of a communicator. A group that does not fill whole nodes continues in the next node.
    """
    fewest = replicas
    for group in range(min(groups, places)):
        first = -group * replicas % places
        last = (replicas - first) % places
        fewest = min([fewest, *(count for count in (first, places, last) if count)])
    return fewest


@dataclass(frozen=True, slots=True, kw_only=True)
class OnLinks(_Groups):
    """Times on the links of a cluster, with its rates, latencies and efficiencies."""

    collective_ns: Callable[[str, str, int], int]
    """Time of a collective over an axis, by its name, the axis and its size in bytes."""

    def ns(self, axis: str, size_bytes: int, *collectives: str) -> int:
        """Return the time of collectives, one after another, over ``tp``, ``cp`` or ``etp``."""
        total_ns = sum(self.collective_ns(name, axis, size_bytes) for name in collectives)
        return total_ns + self._waits_ns(axis, collectives)

    def exchange_ns(self, exchange: Exchange) -> int:
        """Return the time of an all-to-all."""
        size = exchange.to_places_bytes(self.shard.ep) if self.deduplicated else exchange.size_bytes
        return self.collective_ns("all-to-all", "ep", size) if self.shard.ep > 1 else 0

    def replicas_ns(self, collective: str, count: int, element_bytes: int, *, experts: bool) -> int:
        """Return the time over all ``dp x cp`` replicas, or over those of experts; 0 without parameters."""
        return self.collective_ns(collective, "edp" if experts else "dp", count * element_bytes) if count else 0


Groups: TypeAlias = ByFormula | OnLinks
"""Times of collectives that all groups of an axis run at once."""


def groups_of(request: CostRequest, shard: Shard, device: Accelerator, options: RooflineOptions) -> Groups:
    """Return the times of collectives: those of the cluster if the request has them, else times by formula."""
    common: dict[str, Any] = {
        "shard": shard, "deduplicated": options.dispatcher == "deduplicated",
        "wait_ns": round(options.skew * expected_maximum(shard.tp)),
    }  # fmt: skip
    if request.collectives is not None:
        return OnLinks(collective_ns=request.collectives.ns, **common)
    return ByFormula(
        device=device, network=request.data_parallel, every_nic=options.every_nic, ranks=request.ranks, **common
    )


_REACH = 10.0
_STEPS = 2_000


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` independent standard normal numbers.

    >>> round(expected_maximum(2), 4)  # 1 / sqrt(pi)
    0.5642
    >>> round(expected_maximum(1), 4)
    0.0
    """
    width = 2 * _REACH / _STEPS
    total = 0.0
    for step in range(_STEPS + 1):
        x = step * width - _REACH
        below = 0.5 * (1 + erf(x / sqrt(2)))
        weight = 1 if step in {0, _STEPS} else 4 if step % 2 else 2  # Simpson's rule
        total += weight * x * exp(-x * x / 2) * below ** (count - 1)
    return count * total * width / 3 / sqrt(2 * pi)
