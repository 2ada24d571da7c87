"""Collectives of a rank's own group, all exposed: tensor, context and expert parallel, by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace_models.fabric import Exchange

if TYPE_CHECKING:
    from pptrace_models.groups import Groups
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = [
    "LayerCollectives",
    "Passes",
    "embedding_ns",
    "head_ns",
    "is_split",
    "layer_collectives",
    "layer_ns",
    "loss_ns",
]

_ROW_BYTES = 4
"""A row's maximum, sum and target logit are reduced in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Collective time of the forward and of the backward; the latter counts to I."""

    forward_ns: int = 0
    """Time in the forward."""
    backward_ns: int = 0
    """Time in the backward for the input gradient."""
    again_ns: int = 0
    """The part of ``forward_ns`` that modules which are computed again repeat."""
    halves_ns: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Gathering and summing over the tensor-parallel group in either half of a layer, each way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCollectives:
    """Time of each collective of a layer: attention's, those of the MLP or of experts, and those of keys."""

    gather_ns: int
    """Gathering the tokens that sequence parallelism splits; 0 without it."""
    reduce_ns: int
    """Summing over the tensor-parallel group: an all-reduce, or with sequence parallelism a reduce-scatter."""
    second_gather_ns: int
    """Gathering for the layer's second half: the MLP's tokens, or those of experts and of shared experts."""
    second_reduce_ns: int
    """Summing behind the second half."""
    exchange_ns: int
    """Tokens to their experts, or back; 0 without experts."""
    keys_ns: int
    """Gathering keys and values over the context-parallel group."""
    key_gradients_ns: int
    """Scattering their gradients."""


def layer_collectives(model: Transformer, shard: Shard, groups: Groups, *, experts: bool) -> LayerCollectives:
    """Return each collective of a layer: tensor, context and expert parallel."""
    size = _hidden_bytes(model, shard)
    gather, reduce = _tensor_ns(shard, groups, "tp", size)
    second_gather, second_reduce = gather, reduce
    exchange = 0
    if experts:
        second_gather, second_reduce = _experts_ns(model, shard, groups, (gather, reduce))
        exchange = groups.exchange_ns(_exchange(model, shard))
    keys_values = shard.cp * shard.tokens * (shard.kv + shard.value) * model.element_bytes
    return LayerCollectives(
        gather_ns=gather,
        reduce_ns=reduce,
        second_gather_ns=second_gather,
        second_reduce_ns=second_reduce,
        keys_ns=groups.ns("cp", keys_values, "all-gather"),
        key_gradients_ns=groups.ns("cp", keys_values, "reduce-scatter"),
        exchange_ns=exchange,
    )


def layer_ns(model: Transformer, shard: Shard, groups: Groups, *, experts: bool) -> Passes:
    """Return a layer's collectives in sum."""
    each = layer_collectives(model, shard, groups, experts=experts)
    tensor = each.gather_ns + each.reduce_ns + each.second_gather_ns + each.second_reduce_ns
    forward = tensor + 2 * each.exchange_ns + each.keys_ns
    again = each.keys_ns * ("core_attn" in model.again)
    if experts and "moe" in model.again:
        again += each.second_gather_ns + each.second_reduce_ns + 2 * each.exchange_ns
    if not experts and "mlp" in model.again:
        again += each.second_gather_ns + each.second_reduce_ns
    halves = ((each.gather_ns, each.reduce_ns), (each.second_gather_ns, each.second_reduce_ns))
    return Passes(
        forward_ns=forward, backward_ns=forward + each.key_gradients_ns, again_ns=again, halves_ns=halves
    )


def _tensor_ns(shard: Shard, groups: Groups, axis: str, size: int) -> tuple[int, int]:
    """Return what gathering and summing take: with sequence parallelism both, without it one all-reduce."""
    if is_split(shard):
        gather = groups.ns(axis, size, "all-gather")
        return gather, groups.ns(axis, size, "all-gather", "reduce-scatter") - gather
    return 0, groups.ns(axis, size, "all-reduce")


def _experts_ns(model: Transformer, shard: Shard, groups: Groups, whole: tuple[int, int]) -> tuple[int, int]:
    """Return gathering and summing around experts: of the parts of each, and of the shared ones' tokens."""
    if not is_split(shard):
        return whole if shard.etp > 1 or shard.shared_ffn else (0, 0)
    gather = reduce = 0
    if shard.etp > 1:
        size = shard.routed * model.hidden * model.element_bytes
        gather, reduce = _tensor_ns(shard, groups, "tp" if shard.etp == shard.tp else "etp", size)
    if shard.shared_ffn:
        gather, reduce = gather + whole[0], reduce + whole[1]
    return gather, reduce


def _exchange(model: Transformer, shard: Shard) -> Exchange:
    size = shard.sent * model.hidden * model.element_bytes
    return Exchange(size_bytes=size, top_k=model.top_k, experts=model.num_experts)


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
