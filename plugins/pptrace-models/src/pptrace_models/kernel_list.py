"""Lists an action's kernels with operations, time and bytes, as the times were counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.plugin import KernelCost, Kind
from pptrace_models import flops
from pptrace_models.flops import CORE
from pptrace_models.kernel_times import Shaped, product_ns
from pptrace_models.layer_times import again_of, again_share, work_ns
from pptrace_models.segments import is_attention
from pptrace_models.transformer import kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_models.accelerator import Accelerator
    from pptrace_models.encoder_costs import Tower
    from pptrace_models.layer import Operation, Shard, Work
    from pptrace_models.stages import Stage
    from pptrace_models.transformer import Transformer

__all__ = ["PASSES", "Listing"]

PASSES = (Kind.F, Kind.I, Kind.W)
"""Kinds of actions whose kernels are listed; a whole backward has those of I and W."""
_ROUNDED = 4
"""Nanoseconds that a listed kernel's time may be off, over all of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Makes the list when it is called."""

    model: Transformer
    """The model."""
    shard: Shard
    """A device's share of it."""
    devices: tuple[Accelerator, ...]
    """Shape (stages,): the device of each."""
    gradient_bytes: int
    """Bytes of a gradient."""
    stages: tuple[Stage, ...]
    """What lies on each stage."""
    tower: Tower | None
    """The encoder in front, where there is one."""
    taken_ns: tuple[tuple[int, ...], ...]
    """Per kind of :data:`PASSES`, what each stage's action takes."""
    collective_ns: tuple[tuple[int, ...], ...]
    """The part of that in which its own groups communicate and nothing is computed."""

    def __call__(self) -> list[KernelCost]:
        """Return the kernels of every stage, in the order of their stages, kinds and parts."""
        rows: list[KernelCost] = []
        for stage, own in enumerate(self.stages):
            here = replace(self, devices=(self.devices[stage],))
            for place, kind in enumerate(PASSES):
                listed = [replace(row, stage=stage) for row in here.of_stage(own, kind)]
                rest = self.taken_ns[place][stage] - sum(row.duration_ns for row in listed)
                waits = {"exposed collectives": min(self.collective_ns[place][stage], max(rest, 0))}
                rest -= waits["exposed collectives"]
                waits["rounding" if abs(rest) <= _ROUNDED * len(listed) else "waits for the host"] = rest
                rows += listed
                rows += [
                    KernelCost(stage=stage, kind=kind, part="all", name=name, duration_ns=took)
                    for name, took in waits.items() if took
                ]  # fmt: skip
        return rows

    def of_stage(self, stage: Stage, kind: Kind) -> Iterable[KernelCost]:
        """Yield the kernels of a stage's action on the first of the devices."""
        model, shard, grad = self.model, self.shard, self.gradient_bytes
        if self.tower and (stage.tower or stage.projector):
            encoder = replace(self, model=self.tower.model, shard=self.tower.shard, tower=None)
            frozen = self.tower.encoder.frozen
            yield from encoder.of_encoder(stage, kind, self.tower.projection(grad), frozen=frozen)
        if stage.embedding:
            yield from self._rows("embedding", [flops.embedding(model, shard, grad)], kind, 1)
        layers = Counter((*stage.layers, *[model.layer(model.layers)] * stage.mtp))
        for layer, count in layers.items():
            operations = flops.layer(model, shard, grad, layer)
            own = [one for one in operations if is_attention(one.name)]
            rest = [one for one in operations if not is_attention(one.name)]
            causal = model.causal and not layer.window
            for row in self._rows("attention", own, kind, count):
                yield replace(row, causal=causal and row.name == CORE)
            yield from self._rows("experts" if layer.experts else "mlp", rest, kind, count)
            if kind is Kind.I and layer.again:
                for row in self._again(operations, count, experts=layer.experts):
                    yield replace(row, causal=causal and row.name == CORE)
        if stage.mtp:
            yield from self._rows("prediction", flops.prediction(model, shard, grad), kind, stage.mtp)
        if stage.head:
            yield from self._rows("head", flops.head(model, shard, grad), kind, 1 + model.mtp)

    def of_encoder(self, stage: Stage, kind: Kind, projection: Operation, *, frozen: bool) -> Iterable[KernelCost]:
        """Yield the kernels of an encoder, whose model and share this list has, on a stage."""
        operations = flops.layer(self.model, self.shard, self.gradient_bytes, self.model.layer(0))
        if kind is Kind.F or not frozen:
            yield from self._rows("encoder", operations, kind, stage.tower)
        if kind is Kind.I and not frozen:
            yield from self._again(operations, stage.tower, experts=False)
        if stage.projector:
            yield from self._rows("projector", [projection], kind, 1)

    def _again(self, operations: Sequence[Operation], count: int, *, experts: bool) -> Iterable[KernelCost]:
        """Yield what the backward computes again, one row an operation."""
        for one in operations:
            share = again_share(one.name)
            if self.model.recompute == "full":
                share = 1.0
            elif not again_of(one.name, experts=experts) & self.model.again:
                continue
            for row in self._work("computed again", one, one.forward, Kind.I, count):
                took = int(row.duration_ns * share)
                yield replace(row, duration_ns=took, size_bytes=int(row.size_bytes * share))

    def _rows(self, part: str, operations: Iterable[Operation], kind: Kind, count: int) -> Iterable[KernelCost]:
        for one in operations:
            work = {Kind.F: one.forward, Kind.I: one.input_gradient, Kind.W: one.weight_gradient}[kind]
            yield from self._work(part, one, work, kind, count)

    def _work(self, part: str, one: Operation, work: Work, kind: Kind, count: int) -> Iterable[KernelCost]:
        took = work_ns(work, one.unit, self.model, self.devices[0])
        if not took:
            return
        common = KernelCost(stage=0, kind=kind, part=part, name=one.name, times=count, duration_ns=0)
        rest_flops, rest_bytes = work.flops, work.size_bytes or work.beside_bytes
        for product in work.products if isinstance(self.devices[0], Shaped) else ():
            precision = self.model.precision if one.unit == "linear" else kept(self.model.precision)
            alone = int(product_ns(product, precision, self.devices[0], padded=one.unit == "head"))
            operations = 2 * product.copies * product.m * product.n * product.k
            moved = product.copies * (
                self.model.element_bytes * product.k * (product.m + product.n)
                + product.result_bytes * product.m * product.n
            )
            took, rest_flops = took - alone, rest_flops - operations
            rest_bytes = max(rest_bytes - moved, 0)
            yield replace(
                common, duration_ns=alone * count, flops=operations * count, size_bytes=moved * count,
                product=(product.copies, product.m, product.n, product.k),
            )  # fmt: skip
        if not isinstance(self.devices[0], Shaped) or not work.products or took > len(work.products):
            yield replace(
                common, duration_ns=took * count, flops=max(rest_flops, 0) * count,
                size_bytes=(work.beside_bytes if work.products and rest_bytes else rest_bytes) * count,
            )  # fmt: skip
