"""Collectives of a rank's own group, by the ring's formula, all exposed.

Over n devices a ring's gather or scatter of V bytes takes n - 1 steps: (n - 1) latency + (n - 1)/n V / rate; an
all-reduce is both. An all-to-all in which each device holds V bytes takes as long as a gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace_models.accelerator import Accelerator
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = ["Fabric", "Passes", "data_parallel_fabric", "embedding_ns", "group_fabric", "head_ns", "layer_ns"]

_SECOND_NS = 10**9
_KILO = 1000
_ROW_BYTES = 4
"""A row's maximum, sum and target logit are reduced in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What a group's messages travel over."""

    rate: Fraction
    """Bytes per second and direction; 0 for no limit."""
    latency_ns: int
    """Latency of one step."""

    def gather_ns(self, size_bytes: int, devices: int) -> int:
        """Return the time to gather, scatter or exchange ``size_bytes`` over the group."""
        return self._ring_ns(size_bytes, devices, 1)

    def all_reduce_ns(self, size_bytes: int, devices: int) -> int:
        """Return the time to sum ``size_bytes`` on each device over the group.

        >>> Fabric(rate=Fraction(10**9), latency_ns=10).all_reduce_ns(800, 4)
        1260
        """
        return self._ring_ns(size_bytes, devices, 2)

    def _ring_ns(self, size_bytes: int, devices: int, rounds: int) -> int:
        steps = rounds * (devices - 1)
        carried = Fraction(steps * size_bytes * _SECOND_NS, devices) / self.rate if self.rate else 0
        return steps * self.latency_ns + -(-carried // 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Collective time of the forward and of the backward; the latter counts to I."""

    forward_ns: int = 0
    """Time in the forward."""
    backward_ns: int = 0
    """Time in the backward for the input gradient."""
    core_ns: int = 0
    """The part of ``forward_ns`` that recomputing the attention core repeats."""


def group_fabric(device: Accelerator, network: Mapping[str, int], extent: int) -> Fabric:
    """Return what a group that spans ``extent`` neighbouring devices uses: the node's links, or the network."""
    if extent > device.scale_up_size and network:
        return data_parallel_fabric(network)
    rate = device.scale_up_bandwidth * Fraction(str(device.network_efficiency))
    return Fabric(rate=rate, latency_ns=device.scale_up_latency)


def data_parallel_fabric(network: Mapping[str, int]) -> Fabric:
    """Return the data-parallel group's network; one that is not described takes no time."""
    return Fabric(rate=Fraction(network.get("rate_kbps", 0) * _KILO), latency_ns=int(network.get("latency_ns", 0)))


def layer_ns(
    model: Transformer, shard: Shard, device: Accelerator, network: Mapping[str, int], *, moe: bool
) -> Passes:
    """Return a layer's collectives: tensor, context and expert parallel."""
    tensor = 2 * _tensor_ns(model, shard, device, network)
    context_fabric = group_fabric(device, network, shard.tp * shard.cp)
    keys_values = 2 * shard.cp * shard.tokens * shard.kv * model.element_bytes
    context = context_fabric.gather_ns(keys_values, shard.cp)
    expert = 0
    if moe:
        fabric = group_fabric(device, network, shard.tp * shard.ep)
        routed = shard.split_tokens * model.top_k * model.hidden * model.element_bytes
        expert = 2 * fabric.gather_ns(routed, shard.ep)
    return Passes(
        forward_ns=tensor + context + expert,
        backward_ns=tensor + 2 * context + expert,
        core_ns=context,
    )


def embedding_ns(model: Transformer, shard: Shard, device: Accelerator, network: Mapping[str, int]) -> Passes:
    """Return the embedding's: the sum of the vocabulary's shares; half each way with sequence parallelism."""
    fabric, size = group_fabric(device, network, shard.tp), _hidden_bytes(model, shard)
    if shard.split_tokens == shard.tokens:
        return Passes(forward_ns=fabric.all_reduce_ns(size, shard.tp))
    half = fabric.gather_ns(size, shard.tp)
    return Passes(forward_ns=half, backward_ns=half)


def head_ns(model: Transformer, shard: Shard, device: Accelerator, network: Mapping[str, int]) -> Passes:
    """Return the LM head's: the loss's three sums over the vocabulary's shares, and those of its input."""
    fabric, size = group_fabric(device, network, shard.tp), _hidden_bytes(model, shard)
    loss = 3 * fabric.all_reduce_ns(shard.tokens * _ROW_BYTES, shard.tp)
    if shard.split_tokens == shard.tokens:
        return Passes(forward_ns=loss, backward_ns=fabric.all_reduce_ns(size, shard.tp))
    half = fabric.gather_ns(size, shard.tp)
    return Passes(forward_ns=loss + half, backward_ns=half)


def _tensor_ns(model: Transformer, shard: Shard, device: Accelerator, network: Mapping[str, int]) -> int:
    fabric = group_fabric(device, network, shard.tp)
    return fabric.all_reduce_ns(_hidden_bytes(model, shard), shard.tp)


def _hidden_bytes(model: Transformer, shard: Shard) -> int:
    return shard.tokens * model.hidden * model.element_bytes
