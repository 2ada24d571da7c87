"""What each stage holds: its parameters on one device, and the training state that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_models import memory
from pptrace_models.stages import Stage, in_front, items_of, summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import CostRequest
    from pptrace_models.accelerator import Accelerator
    from pptrace_models.groups import Groups
    from pptrace_models.options import RooflineOptions
    from pptrace_models.shard import Shard
    from pptrace_models.tower import Tower
    from pptrace_models.transformer import Layer, Transformer

__all__ = ["held_by", "state_of"]

_BUFFERED = 2
"""Layers whose weights are there at once where each is gathered for itself: one computes, the next is gathered."""


def state_of(
    model: Transformer,
    part: Shard,
    device: Accelerator,
    options: RooflineOptions,
    groups: Groups,
    stages: Sequence[Stage],
    request: CostRequest,
    tower: Tower | None,
) -> dict[str, list[int]]:
    """Return the columns of training state: bytes, and what reductions, gathers and updates take."""
    states_of = {}
    for stage in {*stages}:
        items = _items_held(model, part, stage, tower)
        held = summed(memory.Held(), items)
        gathered, reduced = (
            summed(memory.Held(), sorted(items, key=size)[-_BUFFERED:])
            for size in (memory.Held.total, memory.Held.trained)
        )
        states_of[stage] = memory.state(
            model, part, device, options, groups, held,
            gathered=gathered if request.reshard == "always" else held,
            reduced=reduced if request.reduce_each else None,
        )  # fmt: skip
    states = [states_of[stage] for stage in stages]
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


def held_by(model: Transformer, part: Shard, stage: Stage, tower: Tower | None) -> memory.Held:
    """Return the parameters of a stage on one device."""
    return summed(memory.Held(), _items_held(model, part, stage, tower))


def _items_held(model: Transformer, part: Shard, stage: Stage, tower: Tower | None) -> list[memory.Held]:
    """Return the parameters of each item of a stage; modules of multi-token prediction embed tokens, too."""

    def layer(kind: Layer) -> memory.Held:
        return memory.layer_held(model, part, experts=kind.experts)

    embedding = memory.embedding_held(model, part)
    (items,) = items_of(
        model, [stage], layer=layer, embedding=embedding, prediction=memory.prediction_held(model, part),
        head=memory.head_held(model, part, with_embedding=stage.embedding), heads=1,
    )  # fmt: skip
    copied = [embedding] if stage.mtp > 0 and not stage.embedding else []
    if tower:
        (items,) = in_front([items], [stage], *tower.held())
    return [*items, *copied]
