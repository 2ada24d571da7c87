"""Bytes that one microbatch leaves from forward to backward on one device, and what W keeps of them after I.

A layer of width h with as many KV heads, an MLP of two matrices of 4h, dropout and score matrices keeps
34sbh + 5as^2b bytes in bf16 (Korthikanti et al., Reducing Activation Recomputation, 2022), and W keeps the inputs
and output gradients of its linear layers, 32sbh (Zero Bubble). Tensor parallelism divides all but the norms', the
column-parallel inputs' and the dropouts' 10sbh; sequence parallelism divides these too. Matrices whose weights are
frozen keep no inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = ["Kept", "embedding_kept", "grouped", "head_kept", "layer_kept", "prediction_kept"]

_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a layer, an embedding or a head keeps of one microbatch, in bytes."""

    activation: int = 0
    """From forward to backward."""
    weight_part: int = 0
    """From the input-gradient backward to the weight-gradient backward."""
    transient: int = 0
    """Only while the backward computes the layer again, beyond ``activation``."""

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            activation=self.activation + other.activation,
            weight_part=self.weight_part + other.weight_part,
            transient=max(self.transient, other.transient),
        )


def layer_kept(model: Transformer, shard: Shard, *, experts: bool, again: bool = True) -> Kept:
    """Return what a layer keeps; ``again`` says whether it is computed again where ``recompute`` is full."""
    scores = _scores(model, shard)
    whole = _between(model, shard) + _attention(model, shard) + _mlp(model, shard, experts=experts) + scores
    weight_part = 0 if model.frozen else _weight_part(model, shard, experts=experts)
    kept = whole - _freed(model, shard, experts=experts)
    if model.recompute == "full" and again:
        kept = shard.split_tokens * model.hidden * model.element_bytes
    return Kept(activation=kept, weight_part=weight_part, transient=whole - kept)


def grouped(layers: Sequence[Kept], size: int) -> list[Kept]:
    """Return what each ``size`` layers keep that are computed again together: the input of the first."""
    found = []
    for first in range(0, len(layers), size):
        group = layers[first : first + size]
        whole = sum(kept.activation + kept.transient for kept in group)
        kept = group[0].activation
        part = sum(kept.weight_part for kept in group)
        found.append(Kept(activation=kept, weight_part=part, transient=whole - kept))
    return found


def prediction_kept(model: Transformer, shard: Shard) -> Kept:
    """Return what a module of multi-token prediction keeps beside its layer: inputs of norms and projection."""
    row = shard.split_tokens * model.hidden * model.element_bytes
    return Kept(activation=4 * row, weight_part=3 * row)


def embedding_kept(model: Transformer, shard: Shard) -> Kept:
    """Return what the embedding keeps: a dropout mask, where there is one."""
    return Kept(activation=shard.split_tokens * model.hidden * model.dropout)


def head_kept(model: Transformer, shard: Shard) -> Kept:
    """Return what the last stage keeps behind its layers: inputs of final norm and LM head, and fp32 logits."""
    row = shard.split_tokens * model.hidden * model.element_bytes
    logits = shard.tokens * shard.vocabulary
    if model.frozen:
        return Kept(activation=row + _FP32 * logits)
    return Kept(
        activation=2 * row + _FP32 * logits,
        weight_part=row + model.element_bytes * logits,
    )


def _between(model: Transformer, shard: Shard) -> int:
    """Return the bytes between tensor-parallel regions: inputs of norms and of matrices, and dropout masks."""
    inputs = 2 if model.frozen else 4
    return shard.split_tokens * model.hidden * (inputs * model.element_bytes + 2 * model.dropout)


def _attention(model: Transformer, shard: Shard) -> int:
    """Return queries, keys, values and output, and what latent attention compresses, on both sides of norms."""
    compressed = _inputs(model, 2) * (model.query_rank + model.kv_rank) * shard.split_tokens
    output = shard.output if model.flash_attention or not model.frozen else 0
    return (shard.tokens * (_expanded(shard) + output) + compressed) * model.element_bytes


def _inputs(model: Transformer, tensors: int) -> int:
    """Return tensors without the one that a matrix reads, which only a gradient of its weights asks for."""
    return tensors - model.frozen


def _expanded(shard: Shard) -> int:
    return shard.query + shard.kv + shard.value


def _freed(model: Transformer, shard: Shard, *, experts: bool) -> int:
    """Return the bytes of what modules that are computed again do not keep."""
    mlp = _mlp(model, shard, experts=experts)
    freed = {
        "core_attn": _scores(model, shard),
        "mla_up_proj": shard.tokens * _expanded(shard) * model.element_bytes if model.kv_rank else 0,
        "layernorm": 0 if model.frozen else 2 * shard.split_tokens * model.hidden * model.element_bytes,
        "mlp": 0 if experts else mlp,
        "mlp_act": 0 if experts else mlp - shard.tokens * (model.matrices - 1) * shard.ffn * model.element_bytes,
        "moe": mlp if experts else 0,
        "moe_act": shard.routed * shard.expert_ffn * model.element_bytes if experts and not model.frozen else 0,
        "shared_experts": _shared(model, shard) if experts else 0,
    }
    within = {"moe_act", "shared_experts"} if "moe" in model.again else set()
    within |= {"mlp_act"} if "mlp" in model.again else set()
    return sum(freed[name] for name in model.again - within)


def _scores(model: Transformer, shard: Shard) -> int:
    if model.flash_attention:
        return 0
    per_score = model.element_bytes + (model.element_bytes + 1) * model.dropout
    return per_score * shard.heads * shard.tokens * shard.sequence


def _mlp(model: Transformer, shard: Shard, *, experts: bool) -> int:
    if not experts:
        tensors = _inputs(model, model.matrices) + (model.gated and not model.fused_activation)
        return shard.tokens * tensors * shard.ffn * model.element_bytes
    inner, outer = _inputs(model, model.matrices) * shard.expert_ffn, _inputs(model, 2) * model.hidden
    routed = shard.routed * (inner + outer) * model.element_bytes
    return routed + _shared(model, shard) + shard.split_tokens * model.num_experts * _FP32


def _shared(model: Transformer, shard: Shard) -> int:
    return shard.tokens * _inputs(model, model.matrices) * shard.shared_ffn * model.element_bytes


def _weight_part(model: Transformer, shard: Shard, *, experts: bool) -> int:
    """Return inputs and output gradients of a layer's matrices."""
    # Inputs of column-parallel and output gradients of row-parallel matrices lie between the regions.
    between = shard.split_tokens * model.hidden * (3 if experts else 4)
    attention = shard.tokens * (_expanded(shard) + shard.output)
    attention += 2 * (model.query_rank + model.kv_rank) * shard.split_tokens
    if experts:
        routed = shard.routed * (model.matrices * shard.expert_ffn + 2 * model.hidden)
        visited = routed + shard.split_tokens * model.num_experts
        return (between + attention + visited) * model.element_bytes + _shared(model, shard)
    return (between + attention + shard.tokens * model.matrices * shard.ffn) * model.element_bytes
