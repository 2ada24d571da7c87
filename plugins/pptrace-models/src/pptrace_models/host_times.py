"""Time of the host to issue the operations of layers: kernels, casts, copies and collectives.

A host issues one operation after another, so a layer takes at least as long on its device. CUDA graphs issue the
operations that they capture at once. The operations follow from the kernels of a layer. A product of experts is
one kernel per expert unless a fused kernel has all of them, and products in FP8 or FP4 cast their factors first.
In addition, each part of a layer has operations that the list of kernels does not have: Python of its modules,
autograd, views and copies of counts. Their sum is fitted; parts have them by the modules of Megatron-Core.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pptrace_models.layer import FIRST_HALF
from pptrace_models.transformer import NARROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_models.layer import Operation, Shard
    from pptrace_models.options import RooflineOptions
    from pptrace_models.transformer import FeedForward, Layer, Mixer, Transformer


_BESIDE = {"attn": 30, "mamba": 30, "mlp": 10, "moe_router": 20, "moe_preprocess": 20, "moe": 30}
"""Operations of each part of a layer beside its kernels, casts and collectives; 100 of a layer with experts are
fitted to Megatron-Bridge's mixtures on x86 hosts. Mamba-2 has those of attention."""
_UNFUSED_PERMUTATION = 20
"""Additional operations of permutations without fused kernels, counted in Megatron-Core 0.12
(``megatron/core/transformer/moe/moe_utils.py``): selection, sums and sorts."""
_PADDED = -9
"""Change of operations by a fixed capacity, counted in Megatron-Core 0.14: 14 fewer for counts, their gather and
their copies to the host (``preprocess`` in ``token_dispatcher.py``), and 5 more that choose the tokens
(``apply_router_token_dropping`` in ``moe_utils.py``)."""
_OF_ACTION, _OF_NARROW_PAIRED = 110, 300
"""Operations of an action beside its layers: messages, buffers and the schedule; and those of a member of an
overlapped pair in FP8 or FP4, whose layers are issued in parts that each enter a recipe. Fitted likewise. In BF16
a member has as many as any action: with 300, published runs (``examples/combined.py``) would gain nothing."""
_TENSOR_PARALLEL = 2
"""Collectives of each half of a layer over the tensor-parallel group: a gather and a sum."""
_RING_STEP = 8
"""Operations of a step of ring attention: messages, the attention of a block, and the correction of its sums."""
_EXCHANGES = 4
"""Exchanges of a forward: tokens and probabilities to the experts, and results back with their sort."""
_ATTENTION = FIRST_HALF | {"norms and residuals"}
_PARTS: dict[FeedForward, tuple[str, ...]] = {
    "none": (), "mlp": ("mlp",), "experts": ("moe_router", "moe_preprocess", "moe"),
}  # fmt: skip
"""Parts of a layer's second half."""
_MIXING_PARTS: dict[Mixer, tuple[str, ...]] = {"none": (), "mamba": ("mamba",)}
"""Parts of a layer's first half where it is not attention or a module in its place."""
_ROUTER = {"router", "router scores", "shared experts", "shared activation function"}


def issued_operations(
    options: RooflineOptions, model: Transformer, shard: Shard, operations: Iterable[Operation], kind: Layer
) -> Counter[str]:
    """Return the number of operations that the host issues in a layer's forward, by part.

    Parts have the names of Megatron-LM's ``--cuda-graph-scope``: ``attn`` or ``mamba``, and ``mlp`` or
    ``moe_router``, ``moe_preprocess`` and ``moe``.
    """
    parts = _MIXING_PARTS.get(kind.mixer, ("attn",)) + _PARTS[kind.feed_forward]
    counts = Counter({part: _BESIDE[part] for part in parts})
    for operation in operations:
        if operation.name in _ATTENTION:
            part = parts[0]
        elif operation.name in _ROUTER:
            part = "moe_router"
        else:
            part = parts[-1]
        counts[part if part in parts else parts[-1]] += _kernels(model, operation)
    if shard.tp > 1:
        counts.update(dict.fromkeys((parts[0], parts[-1]) if kind.halves > 1 else parts[-1:], _TENSOR_PARALLEL))
    if shard.cp > 1 and kind.mixer == "attention":
        counts["attn"] += _RING_STEP * shard.cp
    if kind.experts and shard.ep > 1:
        counts["moe"] += _EXCHANGES
    if kind.experts and model.pads_experts:
        counts["moe_preprocess"] += _PADDED
    if kind.experts and not options.fuses("permutation"):
        counts["moe"] += _UNFUSED_PERMUTATION
    return counts


def _kernels(model: Transformer, operation: Operation) -> int:
    """Return the number of kernels and casts of an operation's forward; norms cast their outputs themselves."""
    work = operation.forward
    count = 0
    for product in work.products:
        is_narrow = (product.precision or model.precision) in NARROW and operation.unit == "linear"
        casts = is_narrow and product.cast is not None and not product.cast.normed
        count += (product.copies if product.grouped and not model.fused_experts else 1) * (1 + casts)
    has_others = work.beside_bytes or (work.size_bytes and not work.products and work.core is None)
    return count + (work.core is not None) + (work.kernels if has_others else 0)


def layer_host_ns(
    options: RooflineOptions, model: Transformer, shard: Shard, operations: Iterable[Operation], kind: Layer
) -> int:
    """Return the time of the host to issue a forward of a layer, in ns."""
    if options.cuda_graphs is True:
        return 0
    if options.host:
        return options.host if kind.experts else 0
    if not options.host_launch:
        return 0
    counts = issued_operations(options, model, shard, operations, kind)
    captured = set(options.cuda_graphs or ())
    if "moe" in captured:
        captured |= {"moe_router", "moe_preprocess"}
    graphs = bool(captured & counts.keys())
    return options.host_launch * (graphs + sum(counts[part] for part in counts.keys() - captured))


def action_host_ns(
    options: RooflineOptions, model: Transformer, layers: Sequence[int], *, paired: bool = False, units: int = 0
) -> int:
    """Return the time of the host to issue a forward of a stage in ns; 0 if the host issues no layer.

    Args:
        options: options of the cost model.
        model: the model.
        layers: the time of the host for each layer of the stage, in ns.
        paired: whether the forward is a member of an overlapped pair.
        units: number of layers of a forward without a pipeline, if the stage is one of these layers. It then has a
            share of the other operations. 0 for a whole forward.
    """
    if not any(layers):
        return 0
    operations = _OF_NARROW_PAIRED if paired and model.precision in NARROW else _OF_ACTION
    beside = options.host_action or (0 if options.host else options.host_launch * operations)
    return sum(layers) + beside // max(units, 1)
