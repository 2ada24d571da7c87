"""Bytes that one microbatch leaves from forward to backward on one device, and what W keeps of them after I.

A layer of width h with as many KV heads, an MLP of two matrices of 4h, dropout and score matrices keeps
34sbh + 5as^2b bytes in bf16 (Korthikanti et al., Reducing Activation Recomputation, 2022), and W keeps the inputs
and output gradients of its linear layers, 32sbh (Zero Bubble). Tensor parallelism divides all but the norms', the
column-parallel inputs' and the dropouts' 10sbh; sequence parallelism divides these too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = ["Kept", "embedding_kept", "head_kept", "layer_kept"]

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


def layer_kept(model: Transformer, shard: Shard, *, moe: bool) -> Kept:
    """Return what a layer keeps."""
    scores = _scores(model, shard)
    whole = _between(model, shard) + _attention(model, shard) + _mlp(model, shard, moe=moe) + scores
    weight_part = _weight_part(model, shard, moe=moe)
    kept = whole
    if model.recompute == "selective":
        kept = whole - scores
    elif model.recompute == "full":
        kept = shard.split_tokens * model.hidden * model.element_bytes
    return Kept(activation=kept, weight_part=weight_part, transient=whole - kept)


def embedding_kept(model: Transformer, shard: Shard) -> Kept:
    """Return what the embedding keeps: a dropout mask, where there is one."""
    return Kept(activation=shard.split_tokens * model.hidden * model.dropout)


def head_kept(model: Transformer, shard: Shard) -> Kept:
    """Return what the last stage keeps behind its layers: inputs of final norm and LM head, and fp32 logits."""
    row = shard.split_tokens * model.hidden * model.element_bytes
    logits = shard.tokens * shard.vocabulary
    return Kept(
        activation=2 * row + _FP32 * logits,
        weight_part=row + model.element_bytes * logits,
    )


def _between(model: Transformer, shard: Shard) -> int:
    """Return the bytes between tensor-parallel regions: inputs of norms and of matrices, and dropout masks."""
    return shard.split_tokens * model.hidden * (4 * model.element_bytes + 2 * model.dropout)


def _attention(model: Transformer, shard: Shard) -> int:
    return shard.tokens * 2 * (shard.query + shard.kv) * model.element_bytes


def _scores(model: Transformer, shard: Shard) -> int:
    if model.flash_attention:
        return 0
    per_score = model.element_bytes + (model.element_bytes + 1) * model.dropout
    return per_score * shard.heads * shard.tokens * shard.sequence


def _mlp(model: Transformer, shard: Shard, *, moe: bool) -> int:
    if not moe:
        return shard.tokens * model.matrices * shard.ffn * model.element_bytes
    routed = shard.tokens * model.top_k * (model.matrices * shard.expert_ffn + 2 * model.hidden)
    return routed * model.element_bytes + shard.tokens * model.num_experts * _FP32


def _weight_part(model: Transformer, shard: Shard, *, moe: bool) -> int:
    """Return inputs and output gradients of a layer's matrices."""
    # Inputs of column-parallel and output gradients of row-parallel matrices lie between the regions.
    between = shard.split_tokens * model.hidden * (3 if moe else 4)
    attention = shard.tokens * 2 * (shard.query + shard.kv)
    if moe:
        routed = model.top_k * (model.matrices * shard.expert_ffn + 2 * model.hidden)
        return (between + attention + shard.tokens * (routed + model.num_experts)) * model.element_bytes
    return (between + attention + shard.tokens * model.matrices * shard.ffn) * model.element_bytes
