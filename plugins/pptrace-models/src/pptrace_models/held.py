"""What each stage holds: its parameters on one device, and the training state that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace_models import memory
from pptrace_models.stages import in_front, items_of, summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import CostRequest
    from pptrace_models.accelerator import Accelerator
    from pptrace_models.activations import Kept
    from pptrace_models.groups import Groups
    from pptrace_models.options import RooflineOptions
    from pptrace_models.shard import Shard
    from pptrace_models.stages import Stage
    from pptrace_models.tower import Tower
    from pptrace_models.transformer import Layer, Transformer

__all__ = ["Holding"]

_BUFFERED = 2
"""Layers whose weights are there at once where each is gathered for itself: one computes, the next is gathered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job's stages on devices of any sort: what of the model each holds, and how its state is kept."""

    model: Transformer
    """The model."""
    part: Shard
    """A device's share of it."""
    options: RooflineOptions
    """How state is kept."""
    request: CostRequest
    """When weights are gathered and gradients reduced."""
    stages: Sequence[Stage]
    """The stages, in order."""
    tower: Tower | None
    """The encoder in front, where there is one."""

    def columns(self, device: Accelerator, groups: Groups) -> dict[str, list[int]]:
        """Return the columns of training state: bytes, and what reductions, gathers and updates take in ns.

        Args:
            device: what all stages are on.
            groups: times of its collectives.
        """
        states_of = {stage: self._state(stage, device, groups) for stage in {*self.stages}}
        states = [states_of[stage] for stage in self.stages]
        return {
            "weights_bytes": [state.weights for state in states],
            "gradients_bytes": [state.gradients for state in states],
            "optimizer_bytes": [state.optimizer for state in states],
            "reduce_ns": [state.reduce_ns for state in states],
            "optimizer_ns": [state.optimizer_ns for state in states],
            "unshard_ns": [state.unshard_ns for state in states],
            "gathered_bytes": [state.gathered for state in states],
            "unreduced_bytes": [state.unreduced for state in states],
        }

    def held(self, stage: Stage) -> memory.Held:
        """Return the parameters of a stage on one device."""
        return summed(memory.Held(), self._items(stage))

    def beyond_bytes(self, kept: Sequence[Kept]) -> int:
        """Return the most that a backward has at once beyond what the forward kept and the buffers of gradients.

        At its beginning that is a layer that is computed again. Towards its end, gradients that are still to be
        added up have taken the place of the microbatch's activations. Tensors in place of gradients stay.

        Args:
            kept: what each stage keeps of a microbatch.
        """
        return max(self._beyond(stage, own) for stage, own in {*zip(self.stages, kept, strict=True)})

    def _beyond(self, stage: Stage, kept: Kept) -> int:
        pending = memory.pending_bytes(self.model, self.options, self.held(stage))
        has_dummies = self.options.dummy_gradients and not self.model.frozen
        dummies = memory.dummy_bytes(self.model, self.part, stage.layers) if has_dummies else 0
        return kept.transient + max(0, pending - kept.activation) + dummies

    def _state(self, stage: Stage, device: Accelerator, groups: Groups) -> memory.State:
        items = self._items(stage)
        held = summed(memory.Held(), items)
        gathered, reduced = (
            summed(memory.Held(), sorted(items, key=size)[-_BUFFERED:])
            for size in (memory.Held.total, memory.Held.trained)
        )
        return memory.state(
            self.model, self.part, device, self.options, groups, held,
            gathered=gathered if self.request.reshard == "always" else held,
            reduced=reduced if self.request.reduce_each else None,
        )  # fmt: skip

    def _items(self, stage: Stage) -> list[memory.Held]:
        """Return the parameters of each item of a stage; modules of multi-token prediction embed tokens, too."""
        model, part = self.model, self.part

        def own(held: memory.Held) -> memory.Held:
            return held.untrained() if model.frozen else held

        def layer(kind: Layer) -> memory.Held:
            return own(memory.layer_held(model, part, experts=kind.experts))

        embedding = own(memory.embedding_held(model, part))
        (items,) = items_of(
            model, [stage], layer=layer, embedding=embedding, prediction=memory.prediction_held(model, part),
            head=own(memory.head_held(model, part, with_embedding=stage.embedding)), heads=1,
        )  # fmt: skip
        copied = [embedding] if stage.mtp > 0 and not stage.embedding else []
        if self.tower:
            (items,) = in_front([items], [stage], *self.tower.held())
        return [*items, *copied]
