"""Bytes of weights, gradients and optimizer state, and the time to reduce gradients and update weights."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace_models.matrices import linears
from pptrace_models.options import gradient_bytes

if TYPE_CHECKING:
    from pptrace_models.accelerator import Accelerator
    from pptrace_models.groups import Groups
    from pptrace_models.options import RooflineOptions
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = [
    "Held",
    "State",
    "accumulation_ns",
    "embedding_held",
    "head_held",
    "layer_held",
    "prediction_held",
    "state",
]

_FP32 = 4
_MOMENTS = 2 * _FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters on one device."""

    dense: int = 0
    """Those that each data and context parallel replica holds."""
    experts: int = 0
    """Those of experts, which fewer replicas hold."""

    def __add__(self, other: Held) -> Held:
        return Held(dense=self.dense + other.dense, experts=self.experts + other.experts)

    def times(self, count: int) -> Held:
        """Return this ``count`` times."""
        return Held(dense=self.dense * count, experts=self.experts * count)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Training state of a stage on one device, in bytes, and what a step does with it, in ns."""

    weights: int
    """Weights in the model's precision."""
    gradients: int
    """Gradient buffers."""
    optimizer: int
    """Adam's two moments, and fp32 master weights unless the weights are fp32."""
    reduce_ns: int
    """Reduction of the gradients over the replicas."""
    optimizer_ns: int
    """Update of the weights."""


def layer_held(model: Transformer, shard: Shard, *, experts: bool) -> Held:
    """Return a layer's parameters; norms, routers and what compresses are on every tensor-parallel device."""
    dense = 2 * _norm(model) + model.query_rank + model.kv_rank
    routed = 0
    for matrix in linears(model, shard, experts=experts):
        bias = (matrix.outputs * matrix.copies) * (model.bias and not matrix.whole)
        if matrix.group == "experts":
            routed += matrix.weights + bias
        else:
            dense += matrix.weights + bias
    return Held(dense=dense, experts=routed)


def prediction_held(model: Transformer, shard: Shard) -> Held:
    """Return what a module of multi-token prediction has beside its layer's: a projection and three norms."""
    return Held(dense=2 * model.hidden * model.hidden // shard.tp + 3 * _norm(model))


def embedding_held(model: Transformer, shard: Shard) -> Held:
    """Return the embedding's parameters; position embeddings are on every tensor-parallel device."""
    return Held(dense=model.hidden * (shard.vocabulary + model.learned_positions))


def head_held(model: Transformer, shard: Shard, *, with_embedding: bool) -> Held:
    """Return the final norm's and the LM head's, which shares a tied embedding's on the same stage."""
    shared = model.tied_embeddings and with_embedding
    return Held(dense=_norm(model) + model.hidden * (0 if shared else shard.vocabulary))


def state(
    model: Transformer,
    shard: Shard,
    device: Accelerator,
    options: RooflineOptions,
    groups: Groups,
    held: Held,
) -> State:
    """Return a stage's training state on one device."""
    parts = [(held.dense, shard.replicas), (held.experts, shard.expert_replicas)]
    master = 0 if model.precision == "fp32" else _FP32
    gradient = gradient_bytes(options)
    owned = [-(-count // replicas) if options.zero else count for count, replicas in parts]
    count = held.dense + held.experts
    # Read the gradient, read and write weights and moments in fp32, write the weights that the model multiplies.
    touched = gradient + 2 * (_FP32 + _MOMENTS) + (model.element_bytes if master else 0)
    return State(
        weights=count * model.element_bytes,
        gradients=count * gradient,
        optimizer=sum(owned) * (_MOMENTS + master),
        reduce_ns=_reduce_ns(model, options, groups, held),
        optimizer_ns=_update_ns(device, sum(owned) * touched),
    )


def accumulation_ns(model: Transformer, device: Accelerator, options: RooflineOptions, held: Held) -> int:
    """Return the time to add up a microbatch's gradients by kernels of their own."""
    if options.accumulation == "fused":
        return 0
    return _update_ns(device, (held.dense + held.experts) * (model.element_bytes + 2 * gradient_bytes(options)))


def _reduce_ns(model: Transformer, options: RooflineOptions, groups: Groups, held: Held) -> int:
    """Reduce dense gradients, then those of experts; with ZeRO scatter them and gather the weights."""
    gradient = gradient_bytes(options)
    parts = [("all-reduce", gradient)]
    if options.zero:
        parts = [("reduce-scatter", gradient), ("all-gather", model.element_bytes)]
    return sum(
        groups.replicas_ns(collective, count, size_bytes, experts=experts)
        for count, experts in ((held.dense, False), (held.experts, True))
        if count or not experts
        for collective, size_bytes in parts
    )


def _update_ns(device: Accelerator, size_bytes: int) -> int:
    rate = device.memory_bandwidth * Fraction(str(device.memory_efficiency))
    carried = Fraction(size_bytes * 10**9) / rate
    return -(-carried // 1) + device.memory_latency if size_bytes else 0


def _norm(model: Transformer) -> int:
    return model.hidden * (1 + model.bias)
