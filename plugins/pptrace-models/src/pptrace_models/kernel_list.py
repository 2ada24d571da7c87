"""Lists of an action's kernels with FLOPs, times and bytes, consistent with the action's times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pptrace.plugin import KernelCost, Kind
from pptrace_models.flops import CORE
from pptrace_models.kernel_times import Shaped, product_ns
from pptrace_models.layer_times import again_of, again_share
from pptrace_models.options import gradient_bytes
from pptrace_models.segments import is_attention
from pptrace_models.transformer import kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_models.encoder_costs import Tower
    from pptrace_models.layer import Operation, Work
    from pptrace_models.layer_times import Costing
    from pptrace_models.stages import Stage

__all__ = ["PASSES", "Listing"]

PASSES = (Kind.F, Kind.I, Kind.W)
"""Kinds of actions with lists of kernels; a whole backward has the kernels of I and W."""
_ROUNDED = 4
"""The largest rounding difference per listed kernel, in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Lists the kernels of all stages when it is called."""

    costings: tuple[Costing, ...]
    """Shape (stages,): the inputs of each stage's times."""
    stages: tuple[Stage, ...]
    """The items of each stage."""
    tower: Tower | None
    """The encoder, if any."""
    taken_ns: tuple[tuple[int, ...], ...]
    """Per kind of :data:`PASSES`, the duration of each stage's action."""
    collective_ns: tuple[tuple[int, ...], ...]
    """The part of ``taken_ns`` with exposed collectives of the rank's groups."""

    def __call__(self) -> list[KernelCost]:
        """Return the kernels of every stage, in the order of their stages, kinds and parts."""
        rows: list[KernelCost] = []
        for index, (costing, stage) in enumerate(zip(self.costings, self.stages, strict=True)):
            for pass_index, kind in enumerate(PASSES):
                listed = [replace(row, stage=index) for row in self._of_stage(_Rows(costing, kind), stage)]
                remaining_ns = self.taken_ns[pass_index][index] - sum(row.duration_ns for row in listed)
                waits = {"exposed collectives": min(self.collective_ns[pass_index][index], max(remaining_ns, 0))}
                remaining_ns -= waits["exposed collectives"]
                is_rounding = abs(remaining_ns) <= _ROUNDED * len(listed)
                waits["rounding" if is_rounding else "waits for the host"] = remaining_ns
                rows += listed
                rows += [
                    KernelCost(stage=index, kind=kind, part="all", name=name, duration_ns=wait_ns)
                    for name, wait_ns in waits.items() if wait_ns
                ]  # fmt: skip
        return rows

    def _of_stage(self, rows: _Rows, stage: Stage) -> Iterable[KernelCost]:
        """Yield the kernels of a stage's action."""
        costing, kind, model = rows.costing, rows.kind, rows.costing.model
        if self.tower and (stage.tower or stage.projector):
            yield from self._of_encoder(_Rows(self.tower.costing(costing), kind), self.tower, stage)
        if stage.embedding:
            yield from rows.of("embedding", costing.embedding(), 1)
        layers = Counter((*stage.layers, *[model.layer(model.layers)] * stage.mtp))
        for layer, count in layers.items():
            operations = costing.layer(layer)
            attention = [operation for operation in operations if is_attention(operation.name)]
            second_half = [operation for operation in operations if not is_attention(operation.name)]
            causal = model.causal and not layer.window
            for row in rows.of("attention", attention, count):
                yield replace(row, causal=causal and row.name == CORE)
            yield from rows.of("experts" if layer.experts else "mlp", second_half, count)
            if kind is Kind.I and layer.again:
                for row in rows.recomputed(operations, count, experts=layer.experts):
                    yield replace(row, causal=causal and row.name == CORE)
        if stage.mtp:
            yield from rows.of("prediction", costing.prediction(), stage.mtp)
        if stage.head:
            yield from rows.of("head", costing.head(), 1 + model.mtp)

    def _of_encoder(self, rows: _Rows, tower: Tower, stage: Stage) -> Iterable[KernelCost]:
        """Yield the kernels of an encoder and its projector on a stage."""
        costing, kind, frozen = rows.costing, rows.kind, tower.encoder.frozen
        operations = costing.layer(costing.model.layer(0))
        if kind is Kind.F or not frozen:
            yield from rows.of("encoder", operations, stage.tower)
        if kind is Kind.I and not frozen:
            yield from rows.recomputed(operations, stage.tower, experts=False)
        if stage.projector:
            yield from rows.of("projector", [tower.projection(gradient_bytes(costing.options))], 1)


class _Rows(NamedTuple):
    """Lists the kernels of operations in actions of one kind."""

    costing: Costing
    kind: Kind

    def recomputed(self, operations: Sequence[Operation], count: int, *, experts: bool) -> Iterable[KernelCost]:
        """Yield the recomputed kernels of a backward, one row per operation."""
        for operation in operations:
            share = again_share(operation.name)
            if self.costing.model.recompute == "full":
                share = 1.0
            elif not again_of(operation.name, experts=experts) & self.costing.model.again:
                continue
            for row in self._work("computed again", operation, operation.forward, count):
                duration_ns = int(row.duration_ns * share)
                yield replace(row, duration_ns=duration_ns, size_bytes=int(row.size_bytes * share))

    def of(self, part: str, operations: Iterable[Operation], count: int) -> Iterable[KernelCost]:
        """Yield the kernels of operations."""
        for operation in operations:
            works = (operation.forward, operation.input_gradient, operation.weight_gradient)
            yield from self._work(part, operation, works[PASSES.index(self.kind)], count)

    def _work(self, part: str, operation: Operation, work: Work, count: int) -> Iterable[KernelCost]:
        model, device = self.costing.model, self.costing.device
        rest_ns = self.costing.work_ns(work, operation.unit)
        if not rest_ns:
            return
        row = KernelCost(stage=0, kind=self.kind, part=part, name=operation.name, times=count, duration_ns=0)
        rest_flops, rest_bytes = work.flops, work.size_bytes or work.beside_bytes
        for product in work.products if isinstance(device, Shaped) else ():
            precision = model.precision if operation.unit == "linear" else kept(model.precision)
            product_time = int(product_ns(product, precision, device, padded=operation.unit == "head"))
            moved = int(product.moved_bytes(model.element_bytes))
            rest_ns, rest_flops = rest_ns - product_time, rest_flops - product.flops
            rest_bytes = max(rest_bytes - moved, 0)
            yield replace(
                row, duration_ns=product_time * count, flops=product.flops * count, size_bytes=moved * count,
                product=(product.copies, product.m, product.n, product.k),
            )  # fmt: skip
        if not isinstance(device, Shaped) or not work.products or rest_ns > len(work.products):
            yield replace(
                row, duration_ns=rest_ns * count, flops=max(rest_flops, 0) * count,
                size_bytes=(work.beside_bytes if work.products and rest_bytes else rest_bytes) * count,
            )  # fmt: skip
