"""Muon, which orthogonalizes the momentum of each matrix of a layer by Newton-Schulz iterations.

With ``zero: 1`` it runs as Megatron-LM's layer-wise optimizer (``core/optimizer/layer_wise_optimizer.py``):
gradients are all-reduced, each replica updates whole matrices, the slowest first, and all gather the weights.
With ``zero: 2``, its buffers have whole matrices in each share, so gradients are reduce-scattered.
With ``zero: 3``, each device has a part of each matrix. An all-to-all sends momentum to the device that iterates,
and another one returns the update (torchtitan's ``distributed/flex_shard/dist_muon.py``, Dion's ``dion/muon.py``).
Embedding, LM head, norms and biases have Adam.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from pptrace_models.layer import Product, Work, linears
from pptrace_models.options import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_models.layer_times import Costing
    from pptrace_models.transformer import Layer


class Matrix(Struct, frozen=True):
    """A matrix with momentum on one device."""

    width: int
    """The side that tensor parallelism does not split."""
    share: int
    """This device's part of the other side."""
    tp: int
    """Tensor-parallel devices that share it."""
    expert: bool
    """Whether it belongs to an expert."""


class Matrices(Struct, frozen=True):
    """Matrices of a stage on one device."""

    counts: Counter[Matrix]
    """The number of matrices of each shape."""
    layers: int = 0
    """The number of layers that have them."""

    def parameters(self, *, expert: bool | None = None) -> int:
        """Return the parameters on one device: of experts, of other matrices, or of all by default."""
        return sum(
            count * matrix.width * matrix.share
            for matrix, count in self.counts.items()
            if expert is None or matrix.expert == expert
        )


NONE = Matrices(Counter())
"""No matrices."""


def matrices(costing: Costing, layers: Sequence[Layer]) -> Matrices:
    """Return the matrices that layers have on one device."""
    model, shard, counts = costing.model, costing.shard, Counter[Matrix]()
    residual = {model.hidden, model.token_width}
    for kind, count in Counter(layers).items():
        for linear in linears(model, shard, kind):
            expert = linear.group == "experts"
            tp = 1 if linear.whole else shard.etp if expert else shard.tp
            is_row_parallel = linear.outputs in residual and linear.inputs not in residual
            width, share = (linear.outputs, linear.inputs) if is_row_parallel else (linear.inputs, linear.outputs)
            counts[Matrix(width, share, tp, expert)] += count * (linear.copies - shard.replicated * expert)
    return Matrices(counts, len(layers))


def update_ns(costing: Costing, updated: Matrices) -> int:
    """Return the time in which the busiest replica orthogonalizes its matrices, with their exchange, in ns.

    With ``overlap_muon``, layers are equal pieces that pass through exchange and iterations. The shorter of both
    is exposed for one layer.
    """
    iterations_ns = _iterations_ns(costing, updated.counts)
    exchange_ns = _exchange_ns(costing, updated) if costing.options.zero == WEIGHTS else 0
    shorter_ns, longer_ns = sorted((iterations_ns, exchange_ns))
    pieces = max(updated.layers, 1) if costing.options.overlap_muon else 1
    return longer_ns + -(-shorter_ns // pieces)


def _exchange_ns(costing: Costing, updated: Matrices) -> int:
    """Return the time to send momentum to the devices that iterate, and updates back, in ns.

    Devices that share at least as many experts as they are have whole experts (``Shard(0)`` in torchtitan's
    ``distributed/fsdp.py``), which stay.
    """
    shard = costing.shard
    has_whole_experts = shard.experts - shard.replicated >= shard.expert_shards
    return sum(
        2 * costing.groups.replicas_ns("all-to-all", share, _MOMENTUM_BYTES, experts=expert, part=shard.sharing)
        for expert, shards in ((False, shard.shards), (True, shard.expert_shards))
        for share in [-(-updated.parameters(expert=expert) // shards)]
        if share and not (expert and has_whole_experts)
    )


def _iterations_ns(costing: Costing, counts: Counter[Matrix]) -> int:
    """Return the time of the iterations on the busiest replica, in ns."""
    shard, zero = costing.shard, costing.options.zero
    total_ns = 0
    for is_expert, replicas in ((False, shard.shards), (True, shard.expert_shards)):
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
"""Iterations, gathers and exchanges are in BF16."""
