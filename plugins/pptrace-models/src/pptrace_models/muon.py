"""Muon, which orthogonalizes the momentum of each matrix of a layer by Newton-Schulz iterations.

With ``zero: 1`` it runs as Megatron-LM's layer-wise optimizer (``core/optimizer/layer_wise_optimizer.py``):
gradients are all-reduced, each replica updates whole matrices, the slowest first, and all gather the weights.
Embedding, LM head, norms and biases have Adam.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pptrace_models.layer import Product, Work, linears

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_models.layer_times import Costing
    from pptrace_models.transformer import Layer


class Matrix(NamedTuple):
    """A matrix with momentum on one device."""

    width: int
    """The side that tensor parallelism does not split."""
    share: int
    """This device's part of the other side."""
    tp: int
    """Tensor-parallel devices that share it."""
    expert: bool
    """Whether it belongs to an expert."""


def matrices(costing: Costing, layers: Iterable[Layer]) -> Counter[Matrix]:
    """Return the number of matrices of each shape that layers have on one device."""
    model, shard, counts = costing.model, costing.shard, Counter[Matrix]()
    residual = {model.hidden, model.token_width}
    for kind, count in Counter(layers).items():
        for linear in linears(model, shard, kind):
            expert = linear.group == "experts"
            tp = 1 if linear.whole else shard.etp if expert else shard.tp
            is_row_parallel = linear.outputs in residual and linear.inputs not in residual
            width, share = (linear.outputs, linear.inputs) if is_row_parallel else (linear.inputs, linear.outputs)
            counts[Matrix(width, share, tp, expert)] += count * (linear.copies - shard.replicated * expert)
    return counts


def update_ns(costing: Costing, counts: Counter[Matrix]) -> int:
    """Return the time in which the busiest replica orthogonalizes its matrices, in ns."""
    shard, zero = costing.shard, costing.options.zero
    total_ns = 0
    for is_expert, replicas in ((False, shard.replicas), (True, shard.expert_replicas)):
        times = sorted(
            (
                time_ns
                for matrix, count in counts.items() if matrix.expert == is_expert
                for time_ns in [_orthogonalization_ns(costing, matrix)] * count
            ),
            reverse=True,
        )  # fmt: skip
        loads = [0] * (replicas if zero else 1)
        for time_ns in times:
            heapq.heapreplace(loads, loads[0] + time_ns)
        total_ns += max(loads)
    return total_ns


def _orthogonalization_ns(costing: Costing, matrix: Matrix) -> int:
    """Return the time of the iterations of one matrix: X Xt, its square, and their product with X.

    Each iteration has ``4 m^2 n + 2 m^3`` FLOPs for ``m <= n`` (Jordan et al., Muon, 2024). With ``muon_tp:
    duplicated``, each tensor-parallel device gathers the momentum and iterates on the whole matrix.
    """
    options, other_side, gather_ns = costing.options, matrix.share, 0
    if options.muon_tp == "duplicated" and matrix.tp > 1:
        other_side *= matrix.tp
        size_bytes = matrix.width * other_side * _MOMENTUM_BYTES
        gather_ns = costing.groups.ns("etp" if matrix.expert else "tp", size_bytes, "all-gather")
    m, n = sorted((matrix.width, other_side))
    sizes = ((m, m, n), (m, m, m), (m, n, m))
    products = tuple(Product(m=rows, n=columns, k=depth) for rows, columns, depth in sizes)
    moved = sum(int(product.moved_bytes(_MOMENTUM_BYTES)) for product in products)
    work = Work(flops=sum(product.flops for product in products), size_bytes=moved, products=products)
    return gather_ns + options.muon_steps * costing.work_ns(work, "head")


_MOMENTUM_BYTES = 2
"""Iterations and gathers are in BF16."""
