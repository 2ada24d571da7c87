"""Matrices of a layer on one device: attention's, plain or compressed, and those of an MLP or of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = ["Linear", "linears"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One matrix on one device."""

    group: str
    """The operation that it belongs to."""
    inputs: int
    """Rows."""
    outputs: int
    """Columns."""
    tokens: int
    """Tokens that pass, over all copies."""
    copies: int = 1
    """Experts held."""
    whole: bool = False
    """Whether every tensor-parallel device holds all of it."""
    normed: bool = False
    """Whether a norm comes right before it."""

    uneven: bool = False
    """Whether its tokens are a mean over the copies."""
    fused: bool = False
    """Whether kernels before it, forward and backward, cast what it reads."""

    @property
    def weights(self) -> int:
        """Weights on this device."""
        return self.inputs * self.outputs * self.copies


def linears(model: Transformer, shard: Shard, *, experts: bool) -> tuple[Linear, ...]:
    """Return a layer's matrices on one device."""
    h, tokens, wide = model.hidden, shard.tokens, model.matrices - 1
    attention = _attention(model, shard)
    if not experts:
        up = Linear(group="mlp", inputs=h, outputs=wide * shard.ffn, tokens=tokens, normed=True)
        return (*attention, up, Linear(group="mlp", inputs=shard.ffn, outputs=h, tokens=tokens))
    width, copies, shared = shard.expert_ffn, shard.experts, shard.shared_ffn
    visited = (
        Linear(group="shared experts", inputs=h, outputs=wide * shared, tokens=tokens, normed=True),
        Linear(group="shared experts", inputs=shared, outputs=h, tokens=tokens),
    )
    routed: dict[str, Any] = {
        "group": "experts", "tokens": shard.routed, "copies": copies, "uneven": not model.capacity,
    }  # fmt: skip
    return (
        *attention,
        Linear(group="router", inputs=h, outputs=model.num_experts, tokens=shard.split_tokens, whole=True),
        *(visited if shared else ()),
        Linear(inputs=h, outputs=wide * width, **routed),
        Linear(inputs=width, outputs=h, fused=model.fused_experts, **routed),
    )


def _attention(model: Transformer, shard: Shard) -> tuple[Linear, ...]:
    """Return attention's matrices: for latent attention, those that compress are whole on every device."""
    h, tokens = model.hidden, shard.tokens
    out = Linear(group="attention projections", inputs=shard.output, outputs=h, tokens=tokens)
    if not model.kv_rank:
        widths = shard.query + shard.kv + shard.value
        return (
            Linear(group="attention projections", inputs=h, outputs=widths, tokens=tokens, normed=True), out,
        )  # fmt: skip
    narrow: dict[str, Any] = {"group": "compression", "inputs": h, "tokens": shard.split_tokens, "whole": True}
    wide: dict[str, Any] = {"group": "expansion", "tokens": tokens, "normed": True}
    keys = shard.heads * round(model.head_dim)
    queries = Linear(group="attention projections", inputs=h, outputs=shard.query, tokens=tokens, normed=True)
    if model.query_rank:
        queries = Linear(inputs=model.query_rank, outputs=shard.query, **wide)
        narrow["outputs"] = model.query_rank
    return (
        *((Linear(normed=True, **narrow),) if model.query_rank else ()),
        Linear(**{**narrow, "outputs": model.kv_rank + model.rope_dim}, normed=True),
        queries,
        Linear(inputs=model.kv_rank, outputs=keys + shard.value, **wide),
        out,
    )
