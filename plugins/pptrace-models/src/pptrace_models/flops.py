"""Floating-point operations of a model.

With b sequences of s tokens, width h, equal numbers of query and KV heads and an MLP of two matrices of 4h, a
layer costs F sbh(24h + 4s), I sbh(24h + 8s) and W 24sbh^2 (Zero Bubble, table 1). The attention core has no
weights, so its whole backward belongs to I. If a causal core skips its masked half, its terms are halved.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from pptrace.memo import memoized
from pptrace_models.accelerator import TokenExchange
from pptrace_models.layer import FP32_BYTES, Cast, Core, Linear, Operation, Product, Work, active_weights, linears
from pptrace_models.transformer import DELTA_CHUNK, STATE_CHUNK, Delta, Mamba

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_models.layer import Shard
    from pptrace_models.transformer import Layer, Transformer


_SCORE_KERNELS, _SCORE_BYTES = (25, 11), (59, 32)
"""Kernels of an unfused router, and their bytes per token and expert, forward and backward."""
_IN_PLACE_LOSS = (38, 14)
"""Bytes per logit of a cross-entropy in place, forward and backward.

Forward: a cast to fp32 (2 and 4 bytes), maximum (4), difference, exponential and division (8 each), and sum (4).
Backward: the product with the loss's gradient (8), and a cast (6) (nanotron v0.5,
``src/nanotron/parallel/tensor_parallel/functional.py``, ``_ShardedCrossEntropy``).
"""
UNFUSED_NORM = (36, 76)
"""Bytes per element of PyTorch's operations of a root-mean-square norm of bf16, forward and backward.

Forward: cast to fp32, square, mean, product with the root, cast back, product with the weights. Backward: two
products for input and weights, their sum, cast, two products and a sum for input and root, two products of the
square, a sum of gradients, and the cast back (torchtitan 9dec370, ``torchtitan/models/norms.py``).
"""
_NORM_KERNELS = 7
"""Kernels of such a norm's forward."""
_COMPRESSION = (44, 88, 12)
"""Bytes per token and element of compressed keys that PyTorch's operations move, forward and backward, and their
kernels in each.

Forward, with keys in bf16 and gates in fp32: gates with positions (6), windows of keys (6) and of gates (12),
softmax (8), cast (6), product (6) (``_forward_sbhd`` in ``csa.py`` of Megatron-Core's ``dev``). The backward moves
twice as much.
"""
_INDEXER_LOSS = (28, 20)
"""Elements per token and chosen key that PyTorch's operations of the indexer's loss move, and their kernels with
those of indices.

The operations gather scores (4), mask them (3), compute their softmax (2), clamp and take logarithms of both
distributions (8), subtract (3), multiply (3), sum (1), and copy both (4) (``csa_kernels.py`` of Megatron-Core's
``dev``).
"""
_ROUTING_KERNELS = 8
"""Kernels for scores, top-k, counts and offsets, and for permutations on both sides of two exchanges."""


def layer(
    model: Transformer,
    shard: Shard,
    gradient_bytes: int,
    kind: Layer,
    *,
    deduplicated: bool = False,
    aligned: bool = True,
    copied_bytes: tuple[float, float] = (0, 0),
    fused_router: bool = True,
    copied_shards: bool = False,
) -> tuple[Operation, ...]:
    """Return a layer's operations on one device.

    Args:
        model: the model.
        shard: sizes on one device.
        gradient_bytes: bytes of a gradient.
        kind: the layer.
        deduplicated: whether a token is sent once to a device that has several of its experts.
        aligned: whether routing aligns the rows of each expert for products in narrow formats.
        copied_bytes: bytes per element that are copied around the tensor-parallel collectives of a layer's half,
            forward and backward.
        fused_router: whether one kernel computes the router's scores, top-k and maps.
        copied_shards: whether gathered weights and gradients are copied out of and into buffers.
    """
    shard = shard.loaded(kind)
    matrices = linears(model, shard, kind)
    groups = dict.fromkeys(matrix.group for matrix in matrices)
    element = model.element_bytes
    projects = kind.mixer == "attention" and kind.has("projections")
    operations = (
        *(
            _detached(name, products(name, [m for m in matrices if m.group == name], element, gradient_bytes))
            for name in groups
        ),
        *(_mixing(model, shard, kind) if kind.has("core") else ()),
        *(_activations(model, shard, experts=kind.experts) if kind.feed_forward != "none" else ()),
        *(_unfused_expert_kernels(model, shard) if kind.experts and not model.fused_experts else ()),
        *(_rotary(model, shard) if projects else ()),
        *((_head_norms(model, shard),) if projects and (model.head_norms or model.compressed) else ()),
        *((_routing(model, shard, deduplicated=deduplicated),) if kind.experts else ()),
        *((_router_scores(model, shard),) if kind.experts and not fused_router else ()),
        *((_padding(model, shard),) if kind.experts and not aligned else ()),
        *((_sequence_copies(model, shard, kind, copied_bytes),) if any(copied_bytes) else ()),
        *((_shard_copies(matrices, element, gradient_bytes),) if copied_shards else ()),
        *((_norms(model, shard, kind.halves),) if kind.halves else ()),
        *((_streams(model, shard, kind.halves),) if kind.halves and model.stream_maps else ()),
    )
    return tuple(map(_without_weight_gradient, operations)) if model.frozen else operations


def prediction(model: Transformer, shard: Shard, gradient_bytes: int) -> tuple[Operation, ...]:
    """Return the operations of multi-token prediction without its layer.

    These are the embedding of the next tokens, two norms, and a projection of both.
    """
    normed = shard.split_tokens * model.hidden * model.element_bytes
    matrix = Linear(
        group="prediction", inputs=2 * model.hidden, outputs=model.hidden // shard.tp, tokens=shard.tokens,
        precision=model.product_precisions.get("mtp"),
    )  # fmt: skip
    return (
        replace(embedding(model, shard, gradient_bytes), name="prediction embedding"),
        _memory("prediction norms", 4 * normed, 6 * normed, kernels=3),
        products("prediction", [matrix], model.element_bytes, gradient_bytes),
    )


def embedding(model: Transformer, shard: Shard, gradient_bytes: int) -> Operation:
    """Return the embedding's operation: the forward reads rows, and the backward, part of I, accumulates them.

    PyTorch's ``embedding_dense_backward`` writes a gradient of the whole matrix, which another kernel adds to the
    sum of microbatches.
    """
    rows, weights = shard.tokens * model.hidden, shard.vocabulary * model.hidden
    added = 2 * rows * model.element_bytes + weights * (2 * model.element_bytes + 2 * gradient_bytes)
    return Operation(
        name="embedding",
        unit="memory",
        forward=Work(size_bytes=2 * rows * model.element_bytes),
        input_gradient=Work() if model.frozen else Work(size_bytes=added),
    )


def head(
    model: Transformer,
    shard: Shard,
    gradient_bytes: int,
    *,
    fused_loss: bool | Literal["compiled"],
    eager_loss: bool | Literal["in-place"] = False,
    chunks: int = 1,
) -> tuple[Operation, ...]:
    """Return the final norm, the LM head and the fp32 cross-entropy.

    With several chunks of a microbatch, LM head and loss have forward and backward of each in the forward.
    """
    element, tokens = model.element_bytes, shard.tokens
    normed = shard.split_tokens * model.hidden * element
    logits = tokens * shard.vocabulary
    matrix = Linear(
        group="head", inputs=model.hidden, outputs=shard.vocabulary, tokens=-(-tokens // chunks),
        precision=model.product_precisions.get("head"),
    )  # fmt: skip
    # Forward: read the logits, write them in fp32, read the fp32 logits for the maximum and for the sum.
    loss = (element + 3 * FP32_BYTES, FP32_BYTES + element)
    if fused_loss:
        # Read the logits for maximum and sum, read them again and write the gradient; scale it.
        loss = (3 * element, 2 * element)
    elif eager_loss == "in-place":
        loss = _IN_PLACE_LOSS
    elif eager_loss:
        loss = _eager_loss_bytes(element, is_split=shard.tp > 1)
    logit = products("head", [matrix], element, gradient_bytes, unit="head")
    if model.frozen:
        logit = _without_weight_gradient(logit)
    operations = logit, _memory("loss", logits * loss[0], logits * loss[1])
    if chunks > 1:
        operations = _in_forward(logit, times=chunks), _in_forward(operations[1])
    return (_memory("final norm", 2 * normed, 3 * normed), *operations)


def _in_forward(operation: Operation, times: int = 1) -> Operation:
    """Return an operation whose forward has the work of all passes a number of times."""
    works = (operation.forward, operation.input_gradient, operation.weight_gradient) * times
    return replace(
        operation,
        forward=Work(
            flops=sum(work.flops for work in works), size_bytes=sum(work.size_bytes for work in works),
            products=tuple(product for work in works for product in work.products),
            beside_bytes=sum(work.beside_bytes for work in works), kernels=sum(work.kernels for work in works),
        ),
        input_gradient=Work(), weight_gradient=Work(),
    )  # fmt: skip


def _eager_loss_bytes(element: int, *, is_split: bool) -> tuple[int, int]:
    """Return the bytes per logit of PyTorch's cross-entropy, forward and backward.

    The logits are cast to fp32 (1 read and 1 write), and their gradient back. ``log_softmax`` has 3 reads and 1
    write (maximum, sum and result; ``SoftMax.cu``), its backward 3 and 1, after a gradient of zeros. With logits
    that are split over devices (``torch/distributed/tensor/parallel/loss.py``), maximum, difference, exponentials,
    sum and result are separate kernels with 5 reads and 3 writes. Their backward has 4 reads and 3 writes, and the
    zeros.
    """
    cast = element + FP32_BYTES
    forward, backward = (8, 8) if is_split else (4, 5)
    return cast + forward * FP32_BYTES, cast + backward * FP32_BYTES


def step_flops(model: Transformer, sequences: int, sequence: int, document: int = 0) -> int:
    """Return a step's model FLOPs: three times the forward, without recomputation, and with half of a causal core.

    Products with frozen weights count twice the forward. Attention is inside documents of ``document`` tokens.
    """
    tokens, h = sequences * sequence, model.hidden
    weighted = cores = 0
    layers = range(model.layers + model.mtp)
    kinds = memoized(lambda: Counter(map(model.layer, layers)), "layers", model, rows=len(layers))
    for kind, count in kinds.items():
        weighted += count * tokens * 2 * active_weights(model, kind)
        cores += count * _token_mixing_flops(model, tokens, document or sequence, kind)
    predicted = model.mtp * 4 * h * h
    weighted += tokens * (predicted + (1 + model.mtp) * 2 * h * model.vocabulary)
    return (2 if model.frozen else 3) * weighted + 3 * cores


def _token_mixing_flops(model: Transformer, tokens: int, sequence: int, kind: Layer) -> int:
    """Return the forward FLOPs of a layer's token mixing outside matrices."""
    recurrence = model.recurrence(kind)
    if recurrence:
        return tokens * recurrence.token_flops
    if kind.mixer == "none":
        return 0
    if model.compressed:
        reach = doubled_reach(model, sequence, model.window) + _compressed_reach(model, sequence, kind.ratio)
        scores = _compressed_scores(model, tokens, sequence, kind.ratio)
        return core_flops(tokens, reach, model.query_width + model.output_width) + scores
    if model.indexer:
        chosen = core_flops(tokens, _chosen_reach(model, sequence), model.heads * _absorbed_width(model))
        return chosen + _indexer_flops(model, tokens, sequence)
    return core_flops(tokens, doubled_reach(model, sequence, kind.window), model.query_width + model.output_width)


def _absorbed_width(model: Transformer) -> int:
    """Return the width of a head's query and output where keys stay compressed (absorbed latent attention)."""
    return 2 * model.kv_rank + model.rope_dim


def _chosen_reach(model: Transformer, sequence: int) -> int:
    """Return twice the mean number of keys that sparse attention chooses for a token."""
    return doubled_reach(model, sequence, model.indexer.top_k if model.indexer else 0)


def _compressed_reach(model: Transformer, sequence: int, ratio: int) -> int:
    """Return twice the mean number of compressed keys that a token attends to, in a layer with a ratio."""
    if not ratio:
        return 0
    top_k = model.indexer.top_k if model.indexer and model.overlap(ratio) > 1 else sequence
    chosen = min(top_k, sequence // ratio)
    return 2 * chosen - chosen * chosen * ratio // sequence


def _compressed_scores(model: Transformer, tokens: int, sequence: int, ratio: int) -> int:
    """Return the forward FLOPs of the indexer's scores of all compressed keys."""
    if not model.indexer or model.overlap(ratio) <= 1:
        return 0
    return tokens * sequence // ratio * 2 * model.indexer.heads * model.indexer.dim


def _indexer_flops(model: Transformer, tokens: int, sequence: int) -> int:
    """Return the forward FLOPs of the indexer's scores over all earlier keys (DeepSeek-V3.2, 2025)."""
    if not model.indexer:
        return 0
    return tokens * doubled_reach(model, sequence, 0) * model.indexer.heads * (model.indexer.dim + 1)


def _detached(name: str, operation: Operation) -> Operation:
    """Return an operation; the indexer's has no input gradient, as its inputs are detached from the model."""
    return replace(operation, input_gradient=Work()) if name == "indexer" else operation


def _without_weight_gradient(operation: Operation) -> Operation:
    """Return an operation with frozen weights: its backward has an input gradient and no weight gradient."""
    return replace(operation, weight_gradient=Work())


def products(
    name: str, matrices: Sequence[Linear], element: int, gradient_bytes: int, unit: str = "linear"
) -> Operation:
    """Return the operation of consecutive products of matrices; ``element`` is the bytes of an element."""
    flops = moved = weights = 0
    forward_products: list[Product] = []
    input_products: list[Product] = []
    weight_products: list[Product] = []
    for matrix in matrices:
        flops += 2 * matrix.tokens * matrix.inputs * matrix.outputs
        moved += matrix.tokens * (matrix.inputs + matrix.outputs) * element
        weights += matrix.weights
        rows = -(-matrix.tokens // max(matrix.copies, 1))
        sizes: dict[str, Any] = {
            "copies": matrix.copies, "result_bytes": element,
            "grouped": matrix.group == "experts" and matrix.copies > 1, "uneven": matrix.uneven,
            "precision": matrix.precision,
        }  # fmt: skip
        cast, gradient_cast = _casts(matrix)
        forward_products.append(Product(m=rows, n=matrix.outputs, k=matrix.inputs, cast=cast, **sizes))
        input_products.append(Product(m=rows, n=matrix.inputs, k=matrix.outputs, cast=gradient_cast, **sizes))
        sizes |= {"result_bytes": 2 * gradient_bytes, "uneven": False, "uneven_depth": matrix.uneven}
        weight_products.append(Product(m=matrix.inputs, n=matrix.outputs, k=rows, **sizes))
    size = moved + weights * element
    accumulated = moved + 2 * weights * gradient_bytes
    shared_bytes = [matrix.tokens * matrix.inputs * element for matrix in matrices if matrix.shared]
    # A kernel reads the input gradient of each, and writes the sum.
    summed = (len(shared_bytes) + 2) * max(shared_bytes, default=0)
    return Operation(
        name=name,
        unit=unit,
        forward=Work(flops=flops, size_bytes=size, products=tuple(forward_products)),
        input_gradient=Work(
            flops=flops, size_bytes=size + summed, products=tuple(input_products), beside_bytes=summed
        ),
        weight_gradient=Work(flops=flops, size_bytes=accumulated, products=tuple(weight_products)),
    )


def _casts(matrix: Linear) -> tuple[Cast | None, Cast | None]:
    """Return what a matrix casts of its input and of its output's gradient; nothing if other kernels cast both."""
    if matrix.fused:
        return None, None
    of_input = Cast(elements=matrix.tokens * matrix.inputs, normed=matrix.normed, tensors=matrix.casts)
    of_gradient = Cast(elements=matrix.tokens * matrix.outputs, tensors=matrix.casts)
    if matrix.shared:
        return None, of_gradient
    if matrix.split_tokens and matrix.normed:
        of_input = replace(
            of_input, elements=matrix.split_tokens * matrix.inputs, gathered=matrix.tokens * matrix.inputs
        )
    elif matrix.split_tokens:
        of_gradient = Cast(elements=matrix.split_tokens * matrix.outputs, gathered=matrix.tokens * matrix.outputs)
    return of_input, of_gradient


def _activations(model: Transformer, shard: Shard, *, experts: bool) -> tuple[Operation, ...]:
    # Gated: 2 reads and 1 write forward, 3 reads and 2 writes backward. Plain: 1 and 1 forward, 2 and 1 backward.
    forward, backward, kernels = (3, 5, 1) if model.gated else (2, 3, 1)
    if model.gated and not (experts or model.fused_activation):
        # The function (1 read and 1 write) and the product with the gate (2 and 1). Backward: the gradients of the
        # product's factors and of the function (2 and 1 each), and the concatenation of both halves (2 and 2).
        forward, backward, kernels = 5, 9 + 4 * (model.fused_projections is True), 2
    inner_bytes = (shard.routed * shard.expert_ffn if experts else shard.tokens * shard.ffn) * model.element_bytes
    operations = [_memory("activation function", forward * inner_bytes, backward * inner_bytes, kernels=kernels)]
    if experts and model.fused_experts:
        # The product directly writes the result of the activation function.
        operations = [_memory("activation function", inner_bytes, (backward - 2) * inner_bytes)]
    if experts and shard.shared_ffn:
        shared_bytes = shard.tokens * shard.shared_ffn * model.element_bytes
        operations.append(_memory("shared activation function", forward * shared_bytes, backward * shared_bytes))
    return tuple(operations)


def _unfused_expert_kernels(model: Transformer, shard: Shard) -> tuple[Operation, ...]:
    """Return the unfused operations of experts with biases and with clamped halves.

    Megatron-Core 0.15 multiplies each expert's second bias by the router's probabilities, adds it in fp32,
    concatenates the experts' rows and casts them (``TEGroupedMLP``). It clamps the halves of the first product's
    result, and concatenates them as well (``weighted_bias_quick_geglu_impl``). Only ``kernels: shapes`` counts
    these operations.
    """
    element, kernels_by_name = model.element_bytes, []
    if model.bias:
        rows = shard.routed * model.hidden
        forward = Work(beside_bytes=rows * (24 + 2 * element), kernels=2 * shard.experts + 2)
        backward = Work(beside_bytes=rows * (32 + 2 * element), kernels=5 * shard.experts + 1)
        kernels_by_name.append(("biases of experts", forward, backward))
    if model.clamped_experts:
        halves = shard.routed * (model.matrices - 1) * shard.expert_ffn * element
        clamped = Work(beside_bytes=4 * halves, kernels=3)
        kernels_by_name.append(("clamp", clamped, Work(beside_bytes=5 * halves, kernels=3)))
    return tuple(
        Operation(name=name, unit="memory", forward=forward, input_gradient=backward)
        for name, forward, backward in kernels_by_name
    )


def _rotary(model: Transformer, shard: Shard) -> tuple[Operation, ...]:
    """Return the rotary embedding, which reads and writes queries and keys.

    With latent attention it also concatenates keys and values: it reads the expanded ones and writes both. Without
    a fused kernel, it also writes and reads an fp32 copy before and after the rotation. One product computes
    grouped queries, keys and values interleaved. So kernels copy queries and values out of its result, and
    concatenate the gradients of all three (``get_query_key_value_tensors`` in ``attention.py`` of Megatron-Core
    0.17, ``get_qkv_layout`` and ``SplitAlongDim`` of Transformer Engine 2.12). With ``copied_kv``, kernels copy
    all three, join keys and values, and transpose both. The backward joins the gradients of keys and values, then
    of all three, and transposes them (nanotron v0.5, ``src/nanotron/models/llama.py``). Only ``kernels: shapes``
    counts these kernels.
    """
    if model.learned_positions or not model.flash_attention:
        return ()
    rotated = shard.query + shard.kv
    moved, kernels = 2 * rotated, 2
    if model.compressed:
        moved = rotated // 4  # in place, and an eighth of each head
    elif model.kv_rank:
        rotated = shard.heads * model.rope_dim
        moved = 2 * rotated + (shard.kv - rotated + shard.value) + (shard.kv + shard.value)
    copied_bytes = 0
    if not model.fused_rotary:
        copied_bytes, kernels = 4 * FP32_BYTES * rotated, 6
    split = joined = 0
    counts, joint = (2, 1), shard.kv + shard.value
    if model.copied_kv:
        split, joined, counts = 2 * shard.query + 6 * joint, 4 * shard.query + 6 * joint, (3, 3)
    elif model.fused_projections and not model.kv_rank and not model.compressed and model.kv_heads < model.heads:
        split, joined = 2 * (shard.query + shard.value), 2 * (shard.query + joint)
    forward, backward = (
        Work(
            beside_bytes=shard.tokens * ((moved + copied) * model.element_bytes + copied_bytes),
            kernels=kernels + (copies if copied else 0),
        )
        for copied, copies in zip((split, joined), counts, strict=True)
    )
    return (Operation(name="rotary embedding", unit="memory", forward=forward, input_gradient=backward),)


def _head_norms(model: Transformer, shard: Shard) -> Operation:
    """Return the norms of queries and keys by head, whose rows are short. Only ``kernels: shapes`` counts them."""
    size = shard.tokens * (shard.query + shard.kv) * model.element_bytes
    forward, backward = (Work(beside_bytes=passes * size, kernels=2, by_row=True) for passes in (2, 3))
    return Operation(name="norms of heads", unit="memory", forward=forward, input_gradient=backward)


def _routing(model: Transformer, shard: Shard, *, deduplicated: bool) -> Operation:
    """Return the permutation of tokens to experts and back, which reads and writes tokens on both sides.

    Deduplicated tokens are sent as they are, and only the device of their experts permutes what it received.
    """
    row = model.token_width * model.element_bytes
    copies = (3 * shard.sent + 3 * shard.routed + 2 * shard.split_tokens) * row
    if deduplicated and shard.ep > 1:
        received = TokenExchange.of(model, shard.routed).to_places_bytes(shard.ep)
        copies = 2 * (received + shard.routed) * row
    scores = shard.split_tokens * model.num_experts * FP32_BYTES
    return _memory("routing", copies + 4 * scores, copies + 4 * scores, kernels=_ROUTING_KERNELS, by_row=True)


def _router_scores(model: Transformer, shard: Shard) -> Operation:
    """Return the kernels of an unfused router, beside those of a fused one.

    They are counted in ``moe_utils.py`` and ``router.py`` of Megatron-Core 0.19, with logits in FP32. Forward:
    top-k and its sort, softmax of the chosen logits, and both maps (zeros and a scatter of probabilities; zeros,
    their cast, a scatter and a cast to booleans). The auxiliary loss computes the softmax of all logits, top-k and
    the second map again, sums over tokens, and logs. Backward: gradients of the chosen logits, written into zeros,
    and of the loss's softmax, with the broadcast that precedes it, and the sum of both. Only ``kernels: shapes``
    counts them.
    """
    scores = shard.split_tokens * model.num_experts
    forward, backward = (
        Work(beside_bytes=scores * size, kernels=kernels)
        for size, kernels in zip(_SCORE_BYTES, _SCORE_KERNELS, strict=True)
    )
    return Operation(name="router scores", unit="memory", forward=forward, input_gradient=backward)


def _padding(model: Transformer, shard: Shard) -> Operation:
    """Return the copies that align the rows of each expert: tokens, their probabilities, and results.

    Only ``kernels: shapes`` counts them.
    """
    work = Work(beside_bytes=4 * shard.routed * model.token_width * model.element_bytes, kernels=3)
    return Operation(name="padding", unit="memory", forward=work, input_gradient=work)


def _sequence_copies(
    model: Transformer, shard: Shard, kind: Layer, copied_bytes: tuple[float, float]
) -> Operation:
    """Return the copies around the tensor-parallel collectives of attention and of an MLP.

    Each copy reads and writes a tensor. Only ``kernels: shapes`` counts them.
    """
    halves = kind.halves - kind.experts
    forward, backward = (
        Work(beside_bytes=round(2 * halves * shard.tokens * model.hidden * size), kernels=2 * halves)
        for size in copied_bytes
    )
    return Operation(name="copies of sequences", unit="memory", forward=forward, input_gradient=backward)


def _shard_copies(matrices: Sequence[Linear], element: int, gradient_bytes: int) -> Operation:
    """Return the copies of weights after both gathers of a microbatch, and of gradients before their reduction.

    They are on the stream of computation (PyTorch's ``_fsdp_collectives.py``: ``foreach_all_gather_copy_out`` and
    ``foreach_reduce_scatter_copy_in``). Only ``kernels: shapes`` counts them.
    """
    weights = sum(matrix.weights for matrix in matrices)
    gathered, reduced = 2 * element * weights, (element + gradient_bytes) * weights
    return Operation(
        name="copies of shards", unit="memory", forward=Work(beside_bytes=gathered),
        input_gradient=Work(beside_bytes=gathered + reduced, kernels=2),
    )  # fmt: skip


def _norms(model: Transformer, shard: Shard, halves: int) -> Operation:
    stream_bytes = shard.split_tokens * model.hidden * model.element_bytes
    # Per half: a norm (1 read and 1 write; 2 and 1 backward) and a residual sum (2 reads and 1 write), unless maps
    # of streams have it. Dropout before a sum writes a mask of a byte per element. Its backward reads the mask,
    # and reads and writes the gradient.
    mask = shard.split_tokens * model.hidden * model.dropout
    summed = 0 if model.stream_maps else 3 * stream_bytes
    normed, normed_backward, kernels = 2 * stream_bytes, 3 * stream_bytes, 1
    if not model.fused_norms:
        normed, normed_backward = (size * shard.split_tokens * model.hidden for size in UNFUSED_NORM)
        kernels = _NORM_KERNELS
    forward = normed + summed + mask
    backward = normed_backward + summed + mask + 2 * stream_bytes * model.dropout
    kernels = halves * (kernels + 1 + model.dropout)
    return _memory("norms and residuals", halves * forward, halves * backward, kernels=kernels)


def _streams(model: Transformer, shard: Shard, halves: int) -> Operation:
    """Return the kernels that apply maps of residual streams (``hyper_connection.py``, Megatron-Core's ``dev``).

    Forward: the streams' sum is a half's input, and they are mixed and added to its output. The backward has the
    gradients of both, and adds the three gradients of the streams: those of the maps, of the sum and of the mix.
    """
    streams, tokens_bytes = model.residual_streams, shard.split_tokens * model.hidden * model.element_bytes
    forward, backward = (3 * streams + 2) * tokens_bytes, (9 * streams + 3) * tokens_bytes
    return _memory("streams", halves * forward, halves * backward, kernels=3 * halves)


def _memory(name: str, forward: int, backward: int, kernels: int = 1, *, by_row: bool = False) -> Operation:
    return Operation(
        name=name,
        unit="memory",
        forward=Work(size_bytes=forward, kernels=kernels, by_row=by_row),
        input_gradient=Work(size_bytes=backward, kernels=kernels, by_row=by_row),
    )


CORE = "attention core"
"""Name of the operation of scores, softmax and values."""
RECURRENCE = "recurrent core"
"""Name of the operation of a delta rule or of Mamba-2 outside matrices."""


def _mixing(model: Transformer, shard: Shard, kind: Layer) -> tuple[Operation, ...]:
    """Return the operations of a layer's token mixing outside matrices."""
    recurrence = model.recurrence(kind)
    if recurrence:
        return _recurrence(model, shard, recurrence.split(shard.tp))
    if kind.mixer == "none":
        return ()
    gate = shard.tokens * shard.output * model.element_bytes
    gates = (_memory("attention gate function", 3 * gate, 5 * gate),) if model.gated_attention else ()
    if model.compressed:
        return _compressed_core(model, shard, kind)
    if model.indexer:
        return (*_chosen_core(model, shard), *gates)
    return (_core(model, shard, kind.window), *gates)


def _recurrence(model: Transformer, shard: Shard, part: Delta | Mamba) -> tuple[Operation, ...]:
    """Return the operations of a delta rule or of Mamba-2: the chunked kernels, and convolution, gate and norm."""
    element, tokens = model.element_bytes, shard.tokens
    passes = _delta_passes(part, element) if isinstance(part, Delta) else _state_space_passes(part, element)
    forward, backward = (
        Work(flops=tokens * flops, size_bytes=tokens * size, kernels=kernels) for flops, size, kernels in passes
    )
    channels, outputs = tokens * part.channels * element, tokens * part.output_width * element
    norm = _memory("gated norm", 3 * outputs, 5 * outputs)
    if isinstance(part, Mamba):  # whose kernels have the gate, and want sequences as the outer dimension
        swapped = 2 * tokens * (part.projected + part.output_width) * element * (shard.sequences > 1)
        norm = _memory("norm", 2 * outputs + swapped, 3 * outputs + swapped)
    return (
        Operation(name=RECURRENCE, unit="recurrence", forward=forward, input_gradient=backward),
        _memory("convolution", 2 * channels, 5 * channels),  # its backward computes it again
        norm,
    )


def _state_space_passes(part: Mamba, element: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return FLOPs, bytes and kernels of Mamba-2 for a token, forward and backward (mamba_ssm 2.3).

    The kernels of ``ssd_combined.py`` exchange their results through memory, scores and states of chunks in
    fp32. Forward: sums of decays, states of chunks, their sums over chunks, scores in a chunk, and outputs before
    and after the gate. The backward computes the first four again. It has kernels for the gate, for the gradients
    of states, sums, inputs, both maps and scores, for both factors of scores, and for decays. Half of a chunk's
    scores are masked, and skipped except in the kernels of scores and of their factors.
    """
    inner, maps = part.output_width, part.groups * part.state
    states, scores = inner * part.state // STATE_CHUNK, part.groups * STATE_CHUNK
    in_chunk, with_states, of_scores = STATE_CHUNK * inner, 2 * part.state * inner, 2 * STATE_CHUNK * maps
    forward_bytes = element * (5 * inner + 4 * maps + 2 * states) + FP32_BYTES * 2 * (states + scores)
    backward_bytes = element * (17 * inner + 11 * maps + 5 * states)
    backward_bytes += FP32_BYTES * (4 * maps + 6 * states + 6 * scores)
    return (
        (of_scores + in_chunk + 2 * with_states, forward_bytes, 5),
        (3 * of_scores + 3 * in_chunk + 5 * with_states, backward_bytes, 15),
    )


def _delta_passes(part: Delta, element: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return FLOPs, bytes and kernels of the delta rule for a token, forward and backward (fla 0.5).

    The kernels of ``gated_delta_rule`` exchange their results through memory. Forward: norms of queries and keys,
    sums of decays, the factors of a chunk, states and new values, and outputs. The backward computes factors and
    states again. It has kernels for the gradients of values in a chunk, of states, of queries, keys and factors,
    of the inputs of the factors, and of both norms.
    """
    keys, rows, values = part.key_width, part.heads * part.key_dim, part.output_width
    states, factors = rows * part.value_dim // DELTA_CHUNK, part.heads * DELTA_CHUNK
    forward_elements = 8 * keys + 2 * rows + 6 * values + 2 * states + factors
    backward_elements = 15 * keys + 12 * rows + 15 * values + 4 * states + 2 * factors
    backward_flops = 16 * rows * part.value_dim + DELTA_CHUNK * (18 * rows + 10 * values)
    return (
        (part.token_flops, element * forward_elements, 6),
        (backward_flops, element * backward_elements, 10),
    )


def _chosen_core(model: Transformer, shard: Shard) -> tuple[Operation, ...]:
    """Return the operations of sparse attention: the indexer's scores, the choice of keys, and the core."""
    tokens, reach = shard.tokens, _chosen_reach(model, shard.sequence)
    all_keys = doubled_reach(model, shard.sequence, 0)
    heads, dim = (model.indexer.heads, model.indexer.dim) if model.indexer else (0, 0)
    scores = Product(m=tokens, n=max(all_keys // 2, 1), k=dim, copies=heads, result_bytes=0)
    scored = _indexer_flops(model, tokens, shard.sequence)
    loss = _indexer_loss(scores, max(reach // 2, 1), shard.heads, model.kv_rank + model.rope_dim)
    choice = tokens * all_keys // 2 * FP32_BYTES
    width, bytes_per_row = _absorbed_width(model), model.element_bytes
    size = tokens * shard.heads * width * bytes_per_row
    keys = shard.cp * tokens * (model.kv_rank + model.rope_dim) * bytes_per_row
    core = Core(
        heads=shard.heads * max(tokens * shard.cp // shard.sequence, 1), queries=shard.sequence // shard.cp,
        keys=max(reach // 2, 1), width=width / 2,
    )  # fmt: skip
    flops = core_flops(tokens, reach, shard.heads * width)
    return (
        Operation(
            name="indexer scores", unit="attention",
            forward=Work(flops=scored, size_bytes=choice, products=(scores,)),
            input_gradient=Work(flops=sum(each.flops for each in loss), size_bytes=choice, products=loss),
        ),
        _memory("choice of keys", 2 * choice, 0),
        Operation(
            name=CORE, unit="attention", forward=Work(flops=flops, size_bytes=size + keys, core=core),
            input_gradient=Work(flops=2 * flops, size_bytes=2 * (size + keys), core=replace(core, backward=True)),
        ),
    )  # fmt: skip


def _indexer_loss(scores: Product, chosen: int, heads: int, width: int) -> tuple[Product, Product]:
    """Return the products of the indexer's loss, which compares its scores of the chosen keys with attention's.

    These are attention's scores, and the indexer's with both of their gradients.
    """
    return replace(scores, n=chosen, k=width, copies=heads), replace(scores, n=chosen, copies=3 * scores.copies)


def _compressed_core(model: Transformer, shard: Shard, kind: Layer) -> tuple[Operation, ...]:
    """Return the operations of attention to a window and to compressed keys: compression, scores and the core.

    These are the kernels of training in ``csa.py`` and ``csa_kernels.py`` of Megatron-Core's ``dev``. The core
    computes scores of all places for keys, also of those that the causal mask leaves empty. A kernel then rotates
    its output back. The forward also has the indexer's loss with its gradients.
    """
    tokens, sequence, element = shard.tokens, shard.sequence, model.element_bytes
    compressed = sequence // kind.ratio if kind.ratio else 0
    overlap = model.overlap(kind.ratio)
    indexer = model.indexer if overlap > 1 else None
    chosen = min(indexer.top_k, compressed) if indexer else compressed
    keys = min(model.window, sequence) + chosen
    flops = core_flops(tokens, 2 * keys, shard.query + shard.output)
    size = (tokens * (shard.query + shard.output) + shard.cp * tokens * shard.kv) * element
    core = Core(
        heads=shard.heads * max(tokens * shard.cp // sequence, 1), queries=sequence // shard.cp, keys=keys,
        width=(shard.query + shard.output) / shard.heads / 2,
    )  # fmt: skip
    rotated = 2 * tokens * shard.output * element
    attention = Operation(
        name=CORE, unit="attention", forward=Work(flops=flops, size_bytes=size, core=core, beside_bytes=rotated),
        input_gradient=Work(
            flops=2 * flops, size_bytes=2 * size, core=replace(core, backward=True), beside_bytes=rotated
        ),
    )  # fmt: skip
    if not overlap:
        return (attention,)
    pooled = overlap * tokens * round(model.head_dim)
    forward, backward, kernels = _COMPRESSION
    compression = _memory("compression of keys", forward * pooled, backward * pooled, kernels=kernels)
    if not indexer:
        return (compression, attention)
    scores = Product(m=tokens, n=max(compressed, 1), k=indexer.dim, copies=indexer.heads, result_bytes=0)
    products = scores, *_indexer_loss(scores, max(chosen, 1), shard.heads, round(model.head_dim))
    choice, loss = tokens * scores.n * FP32_BYTES, tokens * chosen * FP32_BYTES
    passes, kernels = _INDEXER_LOSS
    return (
        compression,
        Operation(
            name="indexer scores", unit="attention",
            forward=Work(
                flops=sum(product.flops for product in products), size_bytes=choice + 3 * loss, products=products
            ),
            input_gradient=Work(),
        ),
        _memory("choice of keys", 2 * choice + passes * loss, 0, kernels=kernels),
        attention,
    )  # fmt: skip


def core_flops(tokens: int, doubled_reach: int, width: int) -> int:
    """Return the forward FLOPs of scores and values: two per token, attended key and element of the width.

    Args:
        tokens: number of query tokens.
        doubled_reach: twice the mean number of keys that a token attends to.
        width: total width of query heads and of their outputs.
    """
    return tokens * doubled_reach * width


def doubled_reach(model: Transformer, sequence: int, window: int, *, skipped: bool = True) -> int:
    """Return twice the mean number of keys that a token attends to, given window and causal mask.

    In a causal sequence of 1,000 tokens, a token attends to 500 keys on average, or to 95 with a window of 100.
    """
    if not skipped:
        return 2 * sequence
    reach = min(window or sequence, sequence)
    if not model.causal:
        return 2 * (reach if model.window_chunks else min(2 * reach, sequence))
    return reach if model.window_chunks else reach * (2 * sequence - reach) // sequence


def _core(model: Transformer, shard: Shard, window: int) -> Operation:
    """Return the operation of scores, softmax and values: flash attention, or two products and a softmax."""
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
            keys=max(reach // 2, 1),
            width=width,
            narrow=model.fp8_attention,
            dropout=model.dropout,
        )
        forward = Work(flops=flops, size_bytes=queries_bytes + keys_values, core=core)
        backward = Work(
            flops=2 * flops, size_bytes=2 * (queries_bytes + keys_values), core=replace(core, backward=True)
        )
        if model.fp8_attention:
            forward, backward = _narrow_works(model, shard, window, (forward, backward))
    else:
        # Write scores; read and write them in the softmax; read them for the values. Dropout: read and write.
        passes = 4 * model.element_bytes + (2 * model.element_bytes + 1) * model.dropout
        scores = passes * shard.heads * shard.tokens * shard.sequence
        forward, backward = _score_works(model, shard, flops, (queries_bytes + keys_values, scores))
    return Operation(name=CORE, unit="attention", forward=forward, input_gradient=backward)


def _narrow_works(model: Transformer, shard: Shard, window: int, works: tuple[Work, Work]) -> tuple[Work, Work]:
    """Return forward and backward of attention in MXFP8, with its casts.

    The forward casts queries, keys and values along both dimensions, and the backward the output's gradient
    (``FusedAttnFunc`` of Transformer Engine 2.16). The backward does not skip scores outside of a window: its time
    grows with the square of the sequence (cuDNN 9.22, ``gpt_oss`` in cudnn-frontend's training benchmarks).
    """
    forward, backward = works
    bytes_per_element = model.element_bytes + 2
    read = shard.query + shard.kv + shard.value
    if window and not model.window_chunks and backward.core:
        reach = doubled_reach(model, shard.sequence, 0)
        flops = 2 * core_flops(shard.tokens, reach, shard.query + shard.output)
        backward = replace(backward, flops=flops, core=replace(backward.core, keys=max(reach // 2, 1)))
    return (
        replace(forward, beside_bytes=shard.tokens * read * bytes_per_element, kernels=3),
        replace(backward, beside_bytes=shard.tokens * shard.output * bytes_per_element),
    )


def _score_works(model: Transformer, shard: Shard, flops: int, moved: tuple[int, int]) -> tuple[Work, Work]:
    """Return forward and backward with a score matrix: products for scores and values, and a softmax."""
    other_bytes, score_bytes = moved
    element, width = model.element_bytes, round(shard.query / shard.heads)
    heads, queries = shard.heads * max(shard.tokens * shard.cp // shard.sequence, 1), shard.sequence // shard.cp
    sizes: dict[str, Any] = {"copies": heads, "result_bytes": element}
    score_product = Product(m=queries, n=shard.sequence, k=width, **sizes)
    value_product = Product(m=queries, n=width, k=shard.sequence, **sizes)
    transposed = Product(m=shard.sequence, n=width, k=queries, **sizes)
    # The softmax reads and writes once. Its backward reads twice and writes once. Dropout reads, writes and has a
    # mask.
    elements = shard.heads * shard.tokens * shard.sequence
    drop = (2 * element + 1) * model.dropout
    kernels = 1 + model.dropout
    forward = Work(
        flops=flops, size_bytes=other_bytes + score_bytes, products=(score_product, value_product),
        beside_bytes=elements * (2 * element + drop), kernels=kernels,
    )  # fmt: skip
    backward = Work(
        flops=2 * flops, size_bytes=2 * (other_bytes + score_bytes),
        products=(score_product, transposed, value_product, transposed),
        beside_bytes=elements * (3 * element + drop), kernels=kernels,
    )  # fmt: skip
    return forward, backward
