"""Operations of a layer, the embedding and the LM head: FLOPs and bytes of forward, I and W.

With b sequences of s tokens, width h, as many KV heads and an MLP of two matrices of 4h, a layer costs
F sbh(24h + 4s), I sbh(24h + 8s) and W 24sbh^2 (Zero Bubble, table 1): the attention core has no weights, so its
whole backward counts to I. Where a causal core skips its masked half, its terms halve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pptrace_models.work import Core, Product, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = ["Linear", "Operation", "core_flops", "embedding", "head", "layer", "linears", "step_flops"]

_LOGITS_BYTES = 4
"""The loss is computed in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A group of kernels in each of the three passes."""

    name: str
    """What it computes."""
    unit: str
    """What bounds its FLOPs: ``linear``, ``head``, ``attention`` or ``memory``."""
    forward: Work
    """The forward's work."""
    input_gradient: Work
    """The work of the backward for the input gradient."""
    weight_gradient: Work
    """The work of the backward for the weight gradient."""


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
    normed: bool = False
    """Whether a norm comes right before it."""

    @property
    def weights(self) -> int:
        """Weights on this device."""
        return self.inputs * self.outputs * self.copies


def linears(model: Transformer, shard: Shard, *, moe: bool) -> tuple[Linear, ...]:
    """Return a layer's matrices on one device."""
    h, tokens = model.hidden, shard.tokens
    attention = (
        Linear(
            group="attention projections", inputs=h, outputs=shard.query + 2 * shard.kv, tokens=tokens, normed=True
        ),
        Linear(group="attention projections", inputs=shard.query, outputs=h, tokens=tokens),
    )
    wide = model.matrices - 1
    if not moe:
        up = Linear(group="mlp", inputs=h, outputs=wide * shard.ffn, tokens=tokens, normed=True)
        return (*attention, up, Linear(group="mlp", inputs=shard.ffn, outputs=h, tokens=tokens))
    routed, width, copies = tokens * model.top_k, shard.expert_ffn, shard.experts
    return (
        *attention,
        Linear(group="router", inputs=h, outputs=model.num_experts, tokens=tokens),
        Linear(group="experts", inputs=h, outputs=wide * width, tokens=routed, copies=copies),
        Linear(group="experts", inputs=width, outputs=h, tokens=routed, copies=copies),
    )


def layer(model: Transformer, shard: Shard, gradient_bytes: int, *, moe: bool) -> tuple[Operation, ...]:
    """Return a layer's operations on one device."""
    matrices = linears(model, shard, moe=moe)
    groups = dict.fromkeys(matrix.group for matrix in matrices)
    element = model.element_bytes
    return (
        *(_linear(name, [m for m in matrices if m.group == name], element, gradient_bytes) for name in groups),
        _core(model, shard),
        _activation(model, shard, moe=moe),
        _norms(model, shard),
    )


def embedding(model: Transformer, shard: Shard, gradient_bytes: int) -> Operation:
    """Return the embedding's rows, read forward and added to backward; all of its backward counts to I."""
    rows = shard.tokens * model.hidden
    return Operation(
        name="embedding",
        unit="memory",
        forward=Work(size_bytes=2 * rows * model.element_bytes),
        input_gradient=Work(size_bytes=rows * (model.element_bytes + 2 * gradient_bytes)),
        weight_gradient=Work(),
    )


def head(model: Transformer, shard: Shard, gradient_bytes: int) -> tuple[Operation, ...]:
    """Return the final norm, the LM head and the fp32 cross-entropy."""
    element, tokens = model.element_bytes, shard.tokens
    normed = shard.split_tokens * model.hidden * element
    logits = tokens * shard.vocabulary
    matrix = Linear(group="head", inputs=model.hidden, outputs=shard.vocabulary, tokens=tokens)
    # Forward: read the logits, write them in fp32, read those for the maximum and for the sum.
    loss_bytes = logits * (element + 3 * _LOGITS_BYTES)
    return (
        _memory("final norm", 2 * normed, 3 * normed),
        _linear("head", [matrix], element, gradient_bytes, unit="head"),
        _memory("loss", loss_bytes, logits * (_LOGITS_BYTES + element)),
    )


def core_flops(tokens: int, sequence: int, width: int, *, halved: bool) -> int:
    """Return the forward FLOPs of scores and values: 4 x tokens x sequence x width, or half of it."""
    return 4 * tokens * sequence * width // (2 if halved else 1)


def step_flops(model: Transformer, sequences: int, sequence: int) -> int:
    """Return a step's model FLOPs: forward and twice that, nothing computed again, a causal core halved."""
    tokens, h = sequences * sequence, model.hidden
    experts = model.moe_layers(0, model.layers)
    attention = 4 * h * (model.query_width + model.kv_width)
    mlp = 2 * h * model.matrices * model.ffn
    expert = 2 * h * (model.num_experts + model.top_k * model.matrices * model.expert_ffn)
    core = core_flops(tokens, sequence, model.query_width, halved=model.causal)
    dense = model.layers * attention + (model.layers - experts) * mlp + experts * expert
    return 3 * (tokens * (dense + 2 * h * model.vocabulary) + model.layers * core)


def _linear(
    name: str, matrices: Iterable[Linear], element: int, gradient_bytes: int, unit: str = "linear"
) -> Operation:
    flops = moved = weights = 0
    through: list[Product] = []
    back: list[Product] = []
    weight: list[Product] = []
    for matrix in matrices:
        flops += 2 * matrix.tokens * matrix.inputs * matrix.outputs
        moved += matrix.tokens * (matrix.inputs + matrix.outputs) * element
        weights += matrix.weights
        rows = -(-matrix.tokens // max(matrix.copies, 1))
        sizes: dict[str, Any] = {"copies": matrix.copies, "result_bytes": element}
        through.append(Product(m=rows, n=matrix.outputs, k=matrix.inputs, cast=not matrix.normed, **sizes))
        back.append(Product(m=rows, n=matrix.inputs, k=matrix.outputs, cast=True, **sizes))
        sizes["result_bytes"] = 2 * gradient_bytes
        weight.append(Product(m=matrix.inputs, n=matrix.outputs, k=rows, **sizes))
    size = moved + weights * element
    accumulated = moved + 2 * weights * gradient_bytes
    return Operation(
        name=name,
        unit=unit,
        forward=Work(flops=flops, size_bytes=size, products=tuple(through)),
        input_gradient=Work(flops=flops, size_bytes=size, products=tuple(back)),
        weight_gradient=Work(flops=flops, size_bytes=accumulated, products=tuple(weight)),
    )


def _core(model: Transformer, shard: Shard) -> Operation:
    halved = model.causal and model.flash_attention
    flops = core_flops(shard.tokens, shard.sequence, shard.query, halved=halved)
    queries_bytes = shard.tokens * shard.query * model.element_bytes
    keys_values = 2 * shard.cp * shard.tokens * shard.kv * model.element_bytes
    heads, queries = shard.heads * max(shard.tokens * shard.cp // shard.sequence, 1), shard.sequence // shard.cp
    width = shard.query / shard.heads
    scores = 0
    if model.flash_attention:
        core = Core(heads=heads, queries=queries, keys=shard.sequence, width=width)
        forward = Work(flops=flops, size_bytes=2 * queries_bytes + keys_values, core=core)
        back = Work(
            flops=2 * flops, size_bytes=4 * queries_bytes + 2 * keys_values, core=replace(core, backward=True)
        )
    else:
        # Scores written, read and written by the softmax, read for the values; dropout reads and writes once more.
        passes = 4 * model.element_bytes + (2 * model.element_bytes + 1) * model.dropout
        scores = passes * shard.heads * shard.tokens * shard.sequence
        forward, back = _score_works(model, shard, flops, (2 * queries_bytes + keys_values, scores))
    return Operation(
        name="attention core", unit="attention", forward=forward, input_gradient=back, weight_gradient=Work()
    )


def _score_works(model: Transformer, shard: Shard, flops: int, moved: tuple[int, int]) -> tuple[Work, Work]:
    """Return forward and backward with a score matrix: products for scores and values, and a softmax between."""
    rest, scores = moved
    element, width = model.element_bytes, round(shard.query / shard.heads)
    heads, queries = shard.heads * max(shard.tokens * shard.cp // shard.sequence, 1), shard.sequence // shard.cp
    sizes: dict[str, Any] = {"copies": heads, "result_bytes": element}
    inner = Product(m=queries, n=shard.sequence, k=width, **sizes)
    outer = Product(m=queries, n=width, k=shard.sequence, **sizes)
    across = Product(m=shard.sequence, n=width, k=queries, **sizes)
    # The softmax reads and writes, its backward reads twice and writes; dropout reads and writes, and its mask.
    elements = shard.heads * shard.tokens * shard.sequence
    drop = (2 * element + 1) * model.dropout
    kernels = 1 + model.dropout
    forward = Work(
        flops=flops, size_bytes=rest + scores, products=(inner, outer),
        beside_bytes=elements * (2 * element + drop), kernels=kernels,
    )  # fmt: skip
    back = Work(
        flops=2 * flops, size_bytes=2 * (rest + scores), products=(inner, across, outer, across),
        beside_bytes=elements * (3 * element + drop), kernels=kernels,
    )  # fmt: skip
    return forward, back


def _activation(model: Transformer, shard: Shard, *, moe: bool) -> Operation:
    width = shard.expert_ffn * model.top_k if moe else shard.ffn
    inner = shard.tokens * width * model.element_bytes
    # Gated: two read and one written, then three read and two written; plain: one and one, then two and one.
    forward, backward = (3, 5) if model.gated else (2, 3)
    return _memory("activation function", forward * inner, backward * inner)


def _norms(model: Transformer, shard: Shard) -> Operation:
    element = shard.split_tokens * model.hidden * model.element_bytes
    # Two norms (one read, one written; two and one backward) and two residual sums (two read, one written).
    return _memory("norms and residuals", 10 * element, 12 * element, kernels=4)


def _memory(name: str, forward: int, backward: int, kernels: int = 1) -> Operation:
    return Operation(
        name=name,
        unit="memory",
        forward=Work(size_bytes=forward, kernels=kernels),
        input_gradient=Work(size_bytes=backward, kernels=kernels),
        weight_gradient=Work(),
    )
