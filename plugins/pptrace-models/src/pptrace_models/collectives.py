"""Collectives of a rank's own group, all exposed, and the ring's formula for where no cluster is described.

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
    from pptrace_models.groups import Groups
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = [
    "Fabric",
    "LayerCollectives",
    "Passes",
    "data_parallel_fabric",
    "embedding_ns",
    "group_fabric",
    "head_ns",
    "is_split",
    "layer_collectives",
    "layer_ns",
    "loss_ns",
]

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
        return self.ring_ns(size_bytes, devices, 1)

    def all_reduce_ns(self, size_bytes: int, devices: int) -> int:
        """Return the time to sum ``size_bytes`` on each device over the group.

        >>> Fabric(rate=Fraction(10**9), latency_ns=10).all_reduce_ns(800, 4)
        1260
        """
        return self.ring_ns(size_bytes, devices, 2)

    def ring_ns(self, size_bytes: int, devices: int, rounds: int) -> int:
        """Return the time of a ring that passes ``size_bytes`` ``rounds`` times."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCollectives:
    """Time of each collective of a layer; all but the last two run once before or after either of its halves."""

    gather_ns: int
    """Gathering the tokens that sequence parallelism splits; 0 without it."""
    reduce_ns: int
    """Summing over the tensor-parallel group: an all-reduce, or with sequence parallelism a reduce-scatter."""
    exchange_ns: int
    """Tokens to their experts, or back; 0 without experts."""
    keys_ns: int
    """Gathering keys and values over the context-parallel group."""
    key_gradients_ns: int
    """Scattering their gradients."""


def group_fabric(device: Accelerator, network: Mapping[str, int], extent: int) -> Fabric:
    """Return what a group that spans ``extent`` neighbouring devices uses: the node's links, or the network."""
    if extent > device.scale_up_size and network:
        return data_parallel_fabric(network)
    rate = device.scale_up_bandwidth * Fraction(str(device.network_efficiency))
    return Fabric(rate=rate, latency_ns=device.scale_up_latency)


def data_parallel_fabric(network: Mapping[str, int]) -> Fabric:
    """Return the data-parallel group's network; one that is not described takes no time."""
    return Fabric(rate=Fraction(network.get("rate_kbps", 0) * _KILO), latency_ns=int(network.get("latency_ns", 0)))


def layer_collectives(model: Transformer, shard: Shard, groups: Groups, *, moe: bool) -> LayerCollectives:
    """Return each collective of a layer: tensor, context and expert parallel."""
    size = _hidden_bytes(model, shard)
    gathered = groups.ns("tp", size, "all-gather") if is_split(shard) else 0
    tensor = groups.ns("tp", size, *(("all-gather", "reduce-scatter") if is_split(shard) else ("all-reduce",)))
    keys_values = 2 * shard.cp * shard.tokens * shard.kv * model.element_bytes
    routed = shard.split_tokens * model.top_k * model.hidden * model.element_bytes
    return LayerCollectives(
        gather_ns=gathered,
        reduce_ns=tensor - gathered,
        keys_ns=groups.ns("cp", keys_values, "all-gather"),
        key_gradients_ns=groups.ns("cp", keys_values, "reduce-scatter"),
        exchange_ns=groups.ns("ep", routed, "all-to-all") if moe else 0,
    )


def layer_ns(model: Transformer, shard: Shard, groups: Groups, *, moe: bool) -> Passes:
    """Return a layer's collectives in sum."""
    each = layer_collectives(model, shard, groups, moe=moe)
    forward = 2 * (each.gather_ns + each.reduce_ns + each.exchange_ns) + each.keys_ns
    return Passes(forward_ns=forward, backward_ns=forward + each.key_gradients_ns, core_ns=each.keys_ns)


def embedding_ns(model: Transformer, shard: Shard, groups: Groups) -> Passes:
    """Return the embedding's: the sum of the vocabulary's shares; half each way with sequence parallelism."""
    size = _hidden_bytes(model, shard)
    if not is_split(shard):
        return Passes(forward_ns=groups.ns("tp", size, "all-reduce"))
    return Passes(
        forward_ns=groups.ns("tp", size, "reduce-scatter"), backward_ns=groups.ns("tp", size, "all-gather")
    )


def head_ns(model: Transformer, shard: Shard, groups: Groups) -> Passes:
    """Return the LM head's: the loss's three sums over the vocabulary's shares, and those of its input."""
    size = _hidden_bytes(model, shard)
    loss = loss_ns(shard, groups)
    if not is_split(shard):
        return Passes(forward_ns=loss, backward_ns=groups.ns("tp", size, "all-reduce"))
    return Passes(
        forward_ns=loss + groups.ns("tp", size, "all-gather"), backward_ns=groups.ns("tp", size, "reduce-scatter")
    )


def loss_ns(shard: Shard, groups: Groups) -> int:
    """Return what the loss's three sums over the vocabulary's shares take."""
    return 3 * groups.ns("tp", shard.tokens * _ROW_BYTES, "all-reduce")


def is_split(shard: Shard) -> bool:
    """Return whether activations between tensor-parallel regions are split over the sequence."""
    return shard.split_tokens != shard.tokens


def _hidden_bytes(model: Transformer, shard: Shard) -> int:
    return shard.tokens * model.hidden * model.element_bytes
