"""Floating-point operations of a model.

With b sequences of s tokens, width h, as many KV heads and an MLP of two matrices of 4h, a layer costs
F sbh(24h + 4s), I sbh(24h + 8s) and W 24sbh^2 (Zero Bubble, table 1): the attention core has no weights, so its
whole backward counts to I. Where a causal core skips its masked half, its terms halve.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pptrace_models.layer import Core, Linear, Operation, Product, Work, linears

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_models.layer import Shard
    from pptrace_models.transformer import Layer, Transformer

__all__ = [
    "CORE",
    "core_flops",
    "doubled_reach",
    "embedding",
    "head",
    "layer",
    "prediction",
    "products",
    "step_flops",
]

_LOGITS_BYTES = 4
"""The loss is computed in fp32."""
_ROUTING_KERNELS = 8
"""Scores, choice, counts and offsets, and permutations on both sides of two exchanges."""


def layer(model: Transformer, shard: Shard, gradient_bytes: int, kind: Layer) -> tuple[Operation, ...]:
    """Return a layer's operations on one device."""
    matrices = linears(model, shard, experts=kind.experts)
    groups = dict.fromkeys(matrix.group for matrix in matrices)
    element = model.element_bytes
    found = (
        *(products(name, [m for m in matrices if m.group == name], element, gradient_bytes) for name in groups),
        _core(model, shard, kind.window),
        *_activations(model, shard, experts=kind.experts),
        *(_beside_experts(model, shard) if kind.experts else ()),
        *_rotary(model, shard),
        *((_routing(model, shard),) if kind.experts else ()),
        _norms(model, shard),
    )
    return tuple(map(_passing, found)) if model.frozen else found


def prediction(model: Transformer, shard: Shard, gradient_bytes: int) -> tuple[Operation, ...]:
    """Return what a module of multi-token prediction has beside its layer: two norms, and a projection of both."""
    normed = shard.split_tokens * model.hidden * model.element_bytes
    matrix = Linear(
        group="prediction", inputs=2 * model.hidden, outputs=model.hidden // shard.tp, tokens=shard.tokens
    )
    return (
        _memory("prediction norms", 4 * normed, 6 * normed, kernels=3),
        products("prediction", [matrix], model.element_bytes, gradient_bytes),
    )


def embedding(model: Transformer, shard: Shard, gradient_bytes: int) -> Operation:
    """Return the embedding's rows, read forward and added to backward; all of its backward counts to I."""
    rows = shard.tokens * model.hidden
    added = rows * (model.element_bytes + 2 * gradient_bytes)
    return Operation(
        name="embedding",
        unit="memory",
        forward=Work(size_bytes=2 * rows * model.element_bytes),
        input_gradient=Work() if model.frozen else Work(size_bytes=added),
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
    logit = products("head", [matrix], element, gradient_bytes, unit="head")
    return (
        _memory("final norm", 2 * normed, 3 * normed),
        _passing(logit) if model.frozen else logit,
        _memory("loss", loss_bytes, logits * (_LOGITS_BYTES + element)),
    )


def step_flops(model: Transformer, sequences: int, sequence: int) -> int:
    """Return a step's model FLOPs: forward and twice that, nothing computed again, a causal core halved.

    Of products whose weights are frozen, forward and once that.
    """
    tokens, h = sequences * sequence, model.hidden
    attention = 2 * model.attention_products
    mlp = 2 * h * model.matrices * model.ffn
    routed = model.shared_ffn + model.top_k * model.expert_ffn
    expert = 2 * h * (model.num_experts + model.matrices * routed)
    width = model.query_width + model.output_width
    weighted = cores = 0
    for kind, count in Counter(model.layer(index) for index in range(model.layers + model.mtp)).items():
        core = core_flops(tokens, doubled_reach(model, sequence, kind.window), width)
        weighted += count * tokens * (attention + (expert if kind.experts else mlp))
        cores += count * core
    predicted = model.mtp * 4 * h * h
    weighted += tokens * (predicted + (1 + model.mtp) * 2 * h * model.vocabulary)
    return (2 if model.frozen else 3) * weighted + 3 * cores


def _passing(operation: Operation) -> Operation:
    """Return an operation whose weights are frozen: its backward passes a gradient on, and has none of weights."""
    return replace(operation, weight_gradient=Work())


def products(
    name: str, matrices: Iterable[Linear], element: int, gradient_bytes: int, unit: str = "linear"
) -> Operation:
    """Return the products of matrices one after another; ``element`` is the bytes of one of their elements."""
    flops = moved = weights = 0
    through: list[Product] = []
    back: list[Product] = []
    weight: list[Product] = []
    for matrix in matrices:
        flops += 2 * matrix.tokens * matrix.inputs * matrix.outputs
        moved += matrix.tokens * (matrix.inputs + matrix.outputs) * element
        weights += matrix.weights
        rows = -(-matrix.tokens // max(matrix.copies, 1))
        sizes: dict[str, Any] = {
            "copies": matrix.copies, "result_bytes": element,
            "grouped": matrix.group == "experts" and matrix.copies > 1, "uneven": matrix.uneven,
        }  # fmt: skip
        through.append(
            Product(m=rows, n=matrix.outputs, k=matrix.inputs, cast=not (matrix.normed or matrix.fused), **sizes)
        )
        back.append(Product(m=rows, n=matrix.inputs, k=matrix.outputs, cast=not matrix.fused, **sizes))
        sizes |= {"result_bytes": 2 * gradient_bytes, "uneven": False}
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


def _activations(model: Transformer, shard: Shard, *, experts: bool) -> tuple[Operation, ...]:
    # Gated: two read and one written, then three read and two written; plain: one and one, then two and one.
    forward, backward = (3, 5) if model.gated else (2, 3)
    inner = (shard.routed * shard.expert_ffn if experts else shard.tokens * shard.ffn) * model.element_bytes
    found = [_memory("activation function", forward * inner, backward * inner)]
    if experts and model.fused_experts:
        # What the product would write is written as the activation function leaves it.
        found = [_memory("activation function", inner, (backward - 2) * inner)]
    if experts and shard.shared_ffn:
        shared = shard.tokens * shard.shared_ffn * model.element_bytes
        found.append(_memory("shared activation function", forward * shared, backward * shared))
    return tuple(found)


def _beside_experts(model: Transformer, shard: Shard) -> tuple[Operation, ...]:
    """Return what experts with biases and with clamped halves do outside of fused kernels.

    Megatron-Core 0.15 multiplies each expert's second bias by what the router gives its tokens, adds it in fp32,
    lays the experts' rows together and casts them (``TEGroupedMLP``). It clamps the halves of what the first
    product writes, and lays them together, too (``weighted_bias_quick_geglu_impl``). Only kernels by shape count
    it.
    """
    element, found = model.element_bytes, []
    if model.bias:
        rows = shard.routed * model.hidden
        forward = Work(beside_bytes=rows * (24 + 2 * element), kernels=2 * shard.experts + 2)
        backward = Work(beside_bytes=rows * (32 + 2 * element), kernels=5 * shard.experts + 1)
        found.append(("biases of experts", forward, backward))
    if model.clamped_experts:
        halves = shard.routed * (model.matrices - 1) * shard.expert_ffn * element
        clamped = Work(beside_bytes=4 * halves, kernels=3)
        found.append(("clamp", clamped, Work(beside_bytes=5 * halves, kernels=3)))
    return tuple(
        Operation(name=name, unit="memory", forward=forward, input_gradient=backward, weight_gradient=Work())
        for name, forward, backward in found
    )


def _rotary(model: Transformer, shard: Shard) -> tuple[Operation, ...]:
    """Return what turns queries and keys: each read and written; latent keys and values are laid side by side.

    Only kernels by shape count it. With latent attention the expanded keys and values are read, and both written.
    """
    if model.learned_positions or not model.flash_attention:
        return ()
    turned = 2 * (shard.query + shard.kv)
    if model.kv_rank:
        rotated = shard.heads * model.rope_dim
        turned = 2 * rotated + (shard.kv - rotated + shard.value) + (shard.kv + shard.value)
    work = Work(beside_bytes=shard.tokens * turned * model.element_bytes, kernels=2)
    return (
        Operation(
            name="rotary embedding", unit="memory", forward=work, input_gradient=work, weight_gradient=Work()
        ),
    )


def _routing(model: Transformer, shard: Shard) -> Operation:
    """Return what puts tokens in the order of their experts and back, read and written on both sides."""
    row = model.hidden * model.element_bytes
    copies = (3 * shard.sent + 3 * shard.routed + 2 * shard.split_tokens) * row
    scores = shard.split_tokens * model.num_experts * _LOGITS_BYTES
    return _memory("routing", copies + 4 * scores, copies + 4 * scores, kernels=_ROUTING_KERNELS, scattered=True)


def _norms(model: Transformer, shard: Shard) -> Operation:
    element = shard.split_tokens * model.hidden * model.element_bytes
    # Two norms (one read, one written; two and one backward) and two residual sums (two read, one written).
    return _memory("norms and residuals", 10 * element, 12 * element, kernels=4)


def _memory(name: str, forward: int, backward: int, kernels: int = 1, *, scattered: bool = False) -> Operation:
    return Operation(
        name=name,
        unit="memory",
        forward=Work(size_bytes=forward, kernels=kernels, scattered=scattered),
        input_gradient=Work(size_bytes=backward, kernels=kernels, scattered=scattered),
        weight_gradient=Work(),
    )


CORE = "attention core"
"""What kernels of scores, softmax and values are called."""


def core_flops(tokens: int, doubled_reach: int, width: int) -> int:
    """Return the forward FLOPs of scores and values: per token two operations per key of its reach and width.

    Args:
        tokens: that ask.
        doubled_reach: twice the keys that a token asks, on average.
        width: of all query heads and of all that they put out, together.
    """
    return tokens * doubled_reach * width


def doubled_reach(model: Transformer, sequence: int, window: int, *, skipped: bool = True) -> int:
    """Return twice the keys that a token attends to on average: those of its window, and if causal no later ones.

    Of 1,000 tokens a causal one attends to 500 of them, with a window of 100 to 95.
    """
    if not skipped:
        return 2 * sequence
    reach = min(window or sequence, sequence)
    if not model.causal:
        return 2 * (reach if model.window_chunks else min(2 * reach, sequence))
    return reach if model.window_chunks else reach * (2 * sequence - reach) // sequence


def _core(model: Transformer, shard: Shard, window: int) -> Operation:
    """Return scores, softmax and values: a flash attention kernel, or products with a softmax between."""
    reach = doubled_reach(model, shard.sequence, window, skipped=model.flash_attention)
    flops = core_flops(shard.tokens, reach, shard.query + shard.output)
    queries_bytes = shard.tokens * (shard.query + shard.output) * model.element_bytes
    keys_values = shard.cp * shard.tokens * (shard.kv + shard.value) * model.element_bytes
    heads, queries = shard.heads * max(shard.tokens * shard.cp // shard.sequence, 1), shard.sequence // shard.cp
    width = (shard.query + shard.output) / shard.heads / 2
    scores = 0
    if model.flash_attention:
        core = Core(
            heads=heads,
            queries=queries,
            keys=reach if model.causal else shard.sequence,
            width=width,
            narrow=model.fp8_attention,
        )
        forward = Work(flops=flops, size_bytes=queries_bytes + keys_values, core=core)
        back = Work(
            flops=2 * flops, size_bytes=2 * (queries_bytes + keys_values), core=replace(core, backward=True)
        )
    else:
        # Scores written, read and written by the softmax, read for the values; dropout reads and writes once more.
        passes = 4 * model.element_bytes + (2 * model.element_bytes + 1) * model.dropout
        scores = passes * shard.heads * shard.tokens * shard.sequence
        forward, back = _score_works(model, shard, flops, (queries_bytes + keys_values, scores))
    return Operation(name=CORE, unit="attention", forward=forward, input_gradient=back, weight_gradient=Work())


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
