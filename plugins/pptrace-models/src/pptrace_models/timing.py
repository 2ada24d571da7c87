"""Time of a layer, the embedding and the LM head: for each group of kernels the slower of compute and memory.

``t = max(F / (peak e_c) + L_c, V / (BW e_m) + L_m)`` (the roofline of the tabular abstraction paper, section 1.3),
rounded up to a nanosecond per group and pass; I and W are separate, and B is their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace_models import collectives, flops
from pptrace_models.shapes import Shaped, shaped_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_models.accelerator import Accelerator
    from pptrace_models.groups import Groups
    from pptrace_models.shard import Shard
    from pptrace_models.transformer import Precision, Transformer
    from pptrace_models.work import Work

__all__ = ["Cost", "embedding_cost", "head_cost", "layer_cost", "work_ns"]

_SECOND_NS = 10**9


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

    def times(self, count: int) -> Cost:
        """Return this ``count`` times."""
        return Cost(**{name: getattr(self, name) * count for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Cost))


def work_ns(work: Work, unit: str, model: Transformer, device: Accelerator) -> int:
    """Return the time of one group of kernels in one pass; no work takes none."""
    if not work.flops and not work.size_bytes:
        return 0
    if isinstance(device, Shaped):
        return shaped_ns(work, unit, model.precision, device)
    compute = device.launch_latency + work.flops * _SECOND_NS / _flops_rate(unit, model, device)
    memory_rate = device.memory_bandwidth * Fraction(str(device.memory_efficiency))
    memory = device.memory_latency + work.size_bytes * _SECOND_NS / memory_rate
    return -int(-max(compute, memory) // 1)


def layer_cost(
    model: Transformer, shard: Shard, device: Accelerator, groups: Groups, *, moe: bool, grad: int
) -> Cost:
    """Return a layer's time, with what its backward computes again; ``grad`` is a gradient's bytes."""
    operations = flops.layer(model, shard, grad, moe=moe)
    group = collectives.layer_ns(model, shard, groups, moe=moe)
    cost = _cost(operations, group, model, device)
    if model.recompute == "full":
        return cost + Cost(i=cost.f, i_collective=cost.f_collective)
    if model.recompute == "selective":
        core = next(operation for operation in operations if operation.unit == "attention")
        again = work_ns(core.forward, core.unit, model, device) + group.core_ns
        return cost + Cost(i=again, i_collective=group.core_ns)
    return cost


def embedding_cost(model: Transformer, shard: Shard, device: Accelerator, groups: Groups, grad: int) -> Cost:
    """Return the embedding's time."""
    group = collectives.embedding_ns(model, shard, groups)
    return _cost([flops.embedding(model, shard, grad)], group, model, device)


def head_cost(model: Transformer, shard: Shard, device: Accelerator, groups: Groups, grad: int) -> Cost:
    """Return the time of final norm, LM head and loss."""
    group = collectives.head_ns(model, shard, groups)
    return _cost(flops.head(model, shard, grad), group, model, device)


def _cost(
    operations: Iterable[flops.Operation],
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
    if precision == "fp8" and unit != "linear":
        precision = "bf16"
    share = device.attention_efficiency if unit == "attention" else device.compute_efficiency
    return device.peak(precision) * Fraction(str(share))
