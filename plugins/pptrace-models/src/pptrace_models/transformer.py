"""A transformer's description: its shape, its precision and what it computes again."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pptrace_models.checked import Parameters

__all__ = ["PRECISION_BYTES", "Count", "Precision", "Transformer", "Width"]

Precision = Literal["bf16", "fp16", "fp8", "fp32"]
Count = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]

PRECISION_BYTES = {"bf16": 2, "fp16": 2, "fp8": 2, "fp32": 4}
"""Bytes of a weight or an activation; fp8 multiplies in one byte and keeps two."""

_ROUNDING = 1e-6


class Transformer(Parameters):
    """A decoder: per layer attention and an MLP or experts, between an embedding and an LM head."""

    layers: Count
    """Transformer layers."""
    hidden: Width
    """Width of the residual stream."""
    heads: Count
    """Query heads."""
    kv_heads: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Key and value heads; 0 for as many as query heads."""
    head_dim: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    """Width of a head, 0 for hidden over heads; a fraction such as 51.2 will do."""
    ffn: Width
    """Inner width of the MLP."""
    gated: bool = True
    """Whether the MLP has three matrices (SwiGLU) or two (GELU)."""
    vocabulary: Width
    """Tokens in the vocabulary; each rank's share is rounded up."""
    tied_embeddings: bool = False
    """Whether the LM head shares the embedding's weights; on different stages each keeps a copy."""
    learned_positions: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Learned position embeddings; 0 for rotary or none."""
    bias: bool = False
    """Whether linear layers and norms have biases (GPT) or not (Llama)."""
    dropout: bool = False
    """Whether dropout masks are kept: a byte per element after attention and MLP, and on scores without flash."""
    causal: bool = True
    """Whether a token attends to earlier tokens only."""
    flash_attention: bool = True
    """Whether attention keeps no score matrix, and skips the masked half of a causal one."""
    precision: Precision = "bf16"
    """What linear layers multiply in; fp8 keeps weights, activations, attention and LM head in bf16."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What the backward computes again: nothing, the attention core, or the layer from its input."""
    layers_per_stage: list[Annotated[int, Field(ge=0, le=100_000)]] | None = None
    """Layers on each stage in order; by default even, the remainder on the middle stages, later ones first."""
    num_experts: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Experts in a mixture-of-experts layer; 0 for a dense model."""
    top_k: Count = 1
    """Experts that each token visits."""
    expert_ffn: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Inner width of an expert; 0 for that of the MLP."""
    moe_every: Count = 1
    """Every how many layers one has experts: layers n, 2n, ... counted from 1."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        self._fill()
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} KV heads do not divide heads ({self.heads})")
        if abs(self.head_dim * self.kv_heads - self.kv_width) > _ROUNDING:
            msg = f"head_dim: {self.kv_heads} heads of {self.head_dim:g} are no whole width"
            raise ValueError(msg)
        if self.num_experts and self.top_k > self.num_experts:
            raise ValueError(f"top_k: {self.top_k} passes num_experts ({self.num_experts})")
        return self

    @property
    def query_width(self) -> int:
        """Width of all query heads."""
        return round(self.heads * self.head_dim)

    @property
    def kv_width(self) -> int:
        """Width of all key heads, and of all value heads."""
        return round(self.kv_heads * self.head_dim)

    @property
    def matrices(self) -> int:
        """Matrices of the MLP: the last maps back to the residual stream."""
        return 3 if self.gated else 2

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return PRECISION_BYTES[self.precision]

    def moe_layers(self, first: int, count: int) -> int:
        """Return how many of ``count`` layers from the 0-based ``first`` have experts."""
        if not self.num_experts:
            return 0
        return (first + count) // self.moe_every - first // self.moe_every

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, each counted once."""
        experts = self.moe_layers(0, self.layers)
        attention = self.hidden * 2 * (self.query_width + self.kv_width)
        attention += (self.query_width + 2 * self.kv_width + self.hidden) * self.bias
        mlp = self._mlp(self.ffn)
        expert = self.hidden * self.num_experts + self.num_experts * self._mlp(self.expert_ffn)
        norm = self.hidden * (1 + self.bias)
        embedding = self.hidden * (self.vocabulary * (1 if self.tied_embeddings else 2) + self.learned_positions)
        layers = self.layers * (attention + 2 * norm) + (self.layers - experts) * mlp + experts * expert
        return layers + embedding + norm

    def _fill(self) -> None:
        if not self.head_dim and self.hidden % self.heads:
            near = f"such as {self.hidden / self.heads:g}"
            raise ValueError(f"heads: {self.heads} do not divide hidden ({self.hidden}); give head_dim, {near}")
        defaults = {"kv_heads": self.heads, "head_dim": self.hidden / self.heads, "expert_ffn": self.ffn}
        for name, value in defaults.items():
            # The model is frozen to its users; these three defaults depend on other fields.
            object.__setattr__(self, name, getattr(self, name) or value)

    def _mlp(self, width: int) -> int:
        biases = ((self.matrices - 1) * width + self.hidden) * self.bias
        return self.hidden * self.matrices * width + biases
