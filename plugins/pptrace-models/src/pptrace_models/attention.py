"""The attention core: how far a token reaches, operations and bytes, with and without a score matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pptrace_models.work import Core, Operation, Product, Work

if TYPE_CHECKING:
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Transformer

__all__ = ["CORE", "core_flops", "core_operation", "doubled_reach"]

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


def core_operation(model: Transformer, shard: Shard, window: int) -> Operation:
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
