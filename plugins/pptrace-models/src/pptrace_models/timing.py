"""Time of a layer, the embedding and the LM head: for each group of kernels the slower of compute and memory.

``t = max(F / (peak e_c) + L_c, V / (BW e_m) + L_m)`` (the roofline of the tabular abstraction paper, section 1.3),
rounded up to a nanosecond per group and pass; I and W are separate, and B is their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from pptrace_models import collectives, flops
from pptrace_models.options import gradient_bytes
from pptrace_models.overlapped import beside_products
from pptrace_models.shapes import Shaped, shaped_ns
from pptrace_models.transformer import kept
from pptrace_models.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_models.accelerator import Accelerator
    from pptrace_models.groups import Groups
    from pptrace_models.options import RooflineOptions
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Layer, Precision, Transformer
    from pptrace_models.work import Operation, Product

__all__ = [
    "Cost",
    "again_ns",
    "again_of",
    "again_share",
    "embedding_cost",
    "head_cost",
    "layer_cost",
    "operations_cost",
    "prediction_cost",
    "work_ns",
]

_SECOND_NS = 10**9
_NORMS_OF_TEN = 4
"""Of ten bytes that norms and residual sums move forward, those of norms."""
_SHARED = ("shared experts", "shared activation function")
_MODULES = {
    "core_attn": ("attention core",),
    "mla_up_proj": ("expansion", "rotary embedding"),
    "layernorm": ("norms and residuals",),
    "mlp": ("mlp", "activation function"),
    "moe": ("router", "experts", "routing", "activation function", "clamp", "biases of experts", *_SHARED),
    "mlp_act": ("activation function",),
    "moe_act": ("activation function", "clamp"),
    "shared_experts": _SHARED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Nanoseconds of one microbatch, collectives included."""

    f: int = 0
    """Forward."""
    i: int = 0
    """Backward for the input gradient, with what it computes again."""
    w: int = 0
    """Backward for the weight gradient."""
    f_collective: int = 0
    """Collectives within ``f``."""
    i_collective: int = 0
    """Collectives within ``i``."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})

    def at_least(self, host_ns: int, *, apart: bool = False, frozen: bool = False) -> Cost:
        """Return this where the host takes so long to issue a forward, and twice that a whole backward.

        Args:
            host_ns: what the host takes for a forward.
            apart: whether collectives run beside that, and computation alone is bound.
            frozen: whether the backward has no weight gradients, so that the host takes as long as for a forward.
        """
        f, i = (self.f - self.f_collective, self.i - self.i_collective) if apart else (self.f, self.i)
        if frozen:
            return replace(self, f=self.f + max(0, host_ns - f), i=self.i + max(0, host_ns - i))
        waits = max(0, 2 * host_ns - i - self.w)
        more = {"f": self.f + max(0, host_ns - f), "i": self.i + waits // 2, "w": self.w + waits - waits // 2}
        return replace(self, **more)

    def times(self, count: int) -> Cost:
        """Return this ``count`` times."""
        return Cost(**{name: getattr(self, name) * count for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Cost))


def work_ns(work: Work, unit: str, model: Transformer, device: Accelerator) -> int:
    """Return the time of one group of kernels in one pass; no work takes none."""
    if isinstance(device, Shaped):
        return shaped_ns(work, unit, model.precision, device)
    if not work.flops and not work.size_bytes:
        return 0
    memory_rate = device.memory_bandwidth * _exact(device.memory_efficiency)
    return max(
        device.launch_latency + _taken_ns(work.flops, _flops_rate(unit, model, device)),
        device.memory_latency + _taken_ns(work.size_bytes, memory_rate),
    )


def _taken_ns(amount: int, rate: Fraction) -> int:
    """Return what an amount takes at a rate per second, in whole nanoseconds, rounded up."""
    return -(-amount * _SECOND_NS * rate.denominator // rate.numerator)


@cache
def _exact(share: float) -> Fraction:
    """Return a share as it was written."""
    return Fraction(str(share))


def layer_cost(
    model: Transformer, shard: Shard, device: Accelerator, groups: Groups, kind: Layer, options: RooflineOptions
) -> Cost:
    """Return a layer's time, with what its backward computes again."""
    operations = flops.layer(model, shard, gradient_bytes(options), kind)
    group = collectives.layer_ns(model, shard, groups, experts=kind.experts)
    if options.overlap_tp:
        group = beside_products(group, operations, shard.tp, lambda one: _product_ns(one, model, device))
    cost = _cost(operations, group, model, device)
    if kind.experts:
        cost = cost.at_least(options.host, apart=bool(options.segments), frozen=model.frozen)
    if model.recompute == "full":
        if not kind.again:
            return cost
        return cost + Cost(i=cost.f, i_collective=cost.f_collective)
    again = group.again_ns + again_ns(operations, model, device, kind)
    return cost + Cost(i=again, i_collective=group.again_ns)


def _product_ns(product: Product, model: Transformer, device: Accelerator) -> int:
    """Return the time of one product of a layer's."""
    m, n, k = product.m, product.n, product.k
    moved = model.element_bytes * (m * k + k * n) + product.result_bytes * m * n
    work = Work(
        flops=2 * product.copies * m * n * k, size_bytes=product.copies * moved, products=(product,)
    )  # fmt: skip
    return work_ns(work, "linear", model, device)


def again_ns(operations: Iterable[Operation], model: Transformer, device: Accelerator, kind: Layer) -> int:
    """Return what the modules that the backward computes again take, their collectives left out."""
    total = 0
    for one in operations:
        if again_of(one.name, experts=kind.experts) & model.again:
            total += int(work_ns(one.forward, one.unit, model, device) * again_share(one.name))
    return total


def again_share(operation: str) -> float:
    """Return which part of an operation is computed again with its module: of norms and residual sums, norms."""
    return _NORMS_OF_TEN / 10 if operation == "norms and residuals" else 1.0


def again_of(operation: str, *, experts: bool) -> frozenset[str]:
    """Return which modules have an operation of a layer in them."""
    inside = {name for name, operations in _MODULES.items() if operation in operations}
    if experts:
        return frozenset(inside - {"mlp", "mlp_act"})
    return frozenset(inside & {"mlp", "mlp_act", "core_attn", "mla_up_proj", "layernorm"})


def prediction_cost(model: Transformer, shard: Shard, device: Accelerator, grad: int) -> Cost:
    """Return what a module of multi-token prediction takes beside its layer."""
    return _cost(flops.prediction(model, shard, grad), collectives.Passes(), model, device)


def embedding_cost(model: Transformer, shard: Shard, device: Accelerator, groups: Groups, grad: int) -> Cost:
    """Return the embedding's time."""
    group = collectives.embedding_ns(model, shard, groups)
    return _cost([flops.embedding(model, shard, grad)], group, model, device)


def head_cost(model: Transformer, shard: Shard, device: Accelerator, groups: Groups, grad: int) -> Cost:
    """Return the time of final norm, LM head and loss."""
    group = collectives.head_ns(model, shard, groups)
    return _cost(flops.head(model, shard, grad), group, model, device)


def operations_cost(
    operations: Iterable[Operation], group: collectives.Passes, model: Transformer, device: Accelerator
) -> Cost:
    """Return the time of operations with their collectives."""
    return _cost(operations, group, model, device)


def _cost(
    operations: Iterable[Operation],
    group: collectives.Passes,
    model: Transformer,
    device: Accelerator,
) -> Cost:
    f, i, w = group.forward_ns, group.backward_ns, 0
    for operation in operations:
        f += work_ns(operation.forward, operation.unit, model, device)
        i += work_ns(operation.input_gradient, operation.unit, model, device)
        w += work_ns(operation.weight_gradient, operation.unit, model, device)
    return Cost(f=f, i=i, w=w, f_collective=group.forward_ns, i_collective=group.backward_ns)


def _flops_rate(unit: str, model: Transformer, device: Accelerator) -> Fraction:
    precision: Precision = model.precision
    if unit != "linear":
        precision = kept(precision)
    share = device.attention_efficiency if unit == "attention" else device.compute_efficiency
    return device.peak(precision) * _exact(share)
