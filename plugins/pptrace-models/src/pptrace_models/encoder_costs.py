"""Costs of an encoder in front of a decoder: its layers and its projector, as a transformer of their own shapes.

Its layers are split over the tensor and context parallel devices as the decoder's are; data parallel replicas hold
it as they hold the decoder. The projector has two matrices: from the tokens that it merges to the decoder's width,
and from there to the same. A stage that ends inside the encoder passes on its tokens, the last one of it the
projected ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, ConstraintError
from pptrace_models import flops, memory
from pptrace_models.layer import Linear, Shard, Work, shard
from pptrace_models.layer_times import Cost, GroupTimes, layer_cost
from pptrace_models.options import gradient_bytes
from pptrace_models.transformer import Layer, Transformer

if TYPE_CHECKING:
    from pptrace.plugin import CostRequest
    from pptrace_models.group_collectives import Groups
    from pptrace_models.layer import Operation
    from pptrace_models.layer_times import Costing
    from pptrace_models.stages import Stage
    from pptrace_models.transformer import Encoder

__all__ = ["Tower", "tower_of"]

_LAYER = Layer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder on a device of a rank's group."""

    encoder: Encoder
    """What it is."""
    model: Transformer
    """Its layers."""
    shard: Shard
    """A device's share of them."""
    width: int
    """The decoder's."""

    @property
    def projected(self) -> int:
        """Tokens of a microbatch behind the projector, on this device."""
        return self.shard.tokens // self.encoder.merge

    @property
    def projections(self) -> tuple[Linear, Linear]:
        """The projector's matrices."""
        share = self.width // self.shard.tp
        wide = self.model.hidden * self.encoder.merge
        return (
            Linear(group="projector", inputs=wide, outputs=share, tokens=self.projected),
            Linear(group="projector", inputs=share, outputs=self.width, tokens=self.projected),
        )

    def projection(self, grad: int) -> Operation:
        """Return the projector's products as one operation, its backward no more than something trained needs.

        Where the layers before it are frozen, the first matrix has no gradient of its input; where it is itself
        frozen, no matrix has one of its weights.
        """
        whole = flops.products("projector", self.projections, self.model.element_bytes, grad)
        if not self.encoder.frozen:
            back = whole.input_gradient
        elif self.encoder.frozen_projector:
            back = Work()
        else:
            second = flops.products("projector", self.projections[1:], self.model.element_bytes, grad)
            back = second.input_gradient
        weight = Work() if self.encoder.frozen_projector else whole.weight_gradient
        return replace(whole, input_gradient=back, weight_gradient=weight)

    def projector_collectives(self, groups: Groups) -> GroupTimes:
        """Return the durations of the projector's tensor-parallel all-reduces, forward and backward."""
        reduce = groups.ns("tp", self.projected * self.width * self.model.element_bytes, "all-reduce")
        return GroupTimes(forward_ns=reduce, backward_ns=0 if self.encoder.frozen else reduce)

    def costing(self, costing: Costing) -> Costing:
        """Return the costing of its layers on a decoder's device."""
        return replace(costing, model=self.model, shard=self.shard)

    def costs(self, costing: Costing) -> tuple[Cost, Cost]:
        """Return the time of a layer and of the projector on a decoder's device."""
        own = self.costing(costing)
        layer = layer_cost(own, _LAYER)
        if self.encoder.frozen:
            layer = Cost(f=layer.f, f_collective=layer.f_collective)
        projection = self.projection(gradient_bytes(own.options))
        return layer, own.cost([projection], self.projector_collectives(own.groups))

    def has_backward(self, *, projector: bool) -> bool:
        """Return whether its layers have a backward, or its projector."""
        return self.encoder.passes_back if projector else not self.encoder.frozen

    def reaches_back(self, stage: Stage) -> bool:
        """Return whether a stage receives a gradient, because a layer up to it is trained."""
        return self.has_backward(projector=stage.projector)

    def kept(self) -> tuple[memory.Kept, memory.Kept]:
        """Return what a layer and the projector keep of a microbatch: the inputs of its matrices."""
        if not self.encoder.passes_back:
            return memory.Kept(), memory.Kept()
        # Of frozen matrices, no gradient asks for inputs; the second's is what the activation function left.
        read = self.projections[1:] if self.encoder.frozen_projector else self.projections
        inputs = sum(one.tokens * one.inputs for one in read) * self.model.element_bytes
        outputs = sum(one.tokens * one.outputs for one in read) * self.model.element_bytes
        projector = memory.Kept(
            activation=inputs, weight_part=0 if self.encoder.frozen_projector else inputs + outputs
        )
        if self.encoder.frozen:
            return memory.Kept(), projector
        return memory.layer_kept(self.model, self.shard, experts=False), projector

    def held(self) -> tuple[memory.Held, memory.Held]:
        """Return the parameters of a layer and of the projector."""
        layer = memory.layer_held(self.model, self.shard, experts=False)
        projector = sum(one.weights for one in self.projections)
        return (
            memory.Held(frozen=layer.dense) if self.encoder.frozen else layer,
            memory.Held(frozen=projector) if self.encoder.frozen_projector else memory.Held(dense=projector),
        )

    def boundary_bytes(self, *, last: bool) -> int:
        """Return the bytes of a microbatch that one of its stages passes on, or the last of them."""
        tokens = self.shard.split_tokens * self.model.hidden
        return (self.projected * self.width if last else tokens) * self.model.element_bytes

    def flops(self, sequences: int) -> int:
        """Return the model FLOPs of its part of a step: the forward, and the backward that is needed."""
        items, width = sequences * self.encoder.items, self.model.hidden
        tokens = items * self.encoder.tokens
        head = 3 * 2 * tokens * width  # of the one token in the vocabulary that it does not have
        layers = flops.step_flops(self.model, items, self.encoder.tokens) - head
        first, second = (
            2 * (tokens // self.encoder.merge) * self.width * inputs
            for inputs in (width * self.encoder.merge, self.width)
        )
        weight = 0 if self.encoder.frozen_projector else first + second
        back = first + second if not self.encoder.frozen else second * self.encoder.passes_back
        return (layers // 3 if self.encoder.frozen else layers) + first + second + back + weight


def tower_of(model: Transformer, request: CostRequest) -> Tower | None:
    """Return a model's encoder; None where it has none.

    Raises:
        ConfigError: a merge that does not divide a device's tokens.
        ConstraintError: parallel sizes that do not divide its own.
    """
    encoder = model.encoder
    if encoder is None:
        return None
    own = Transformer(
        layers=encoder.layers, hidden=encoder.hidden, heads=encoder.heads, ffn=encoder.ffn, gated=encoder.gated,
        vocabulary=1, causal=False, bias=True, flash_attention=model.flash_attention, precision=model.precision,
        recompute=encoder.recompute,
    )  # fmt: skip
    alone = replace(request, micro=request.micro * encoder.items, sequence=encoder.tokens, ep=1, etp=0)
    try:
        part = shard(own, alone)
    except ConstraintError as error:
        reason = error.reason.replace("model.", "model.encoder.").replace("batch.sequence", "model.encoder.tokens")
        raise ConstraintError(reason, nearest=error.nearest, key=error.key) from error
    if part.tokens % encoder.merge:
        reason = f"{encoder.merge} does not divide a device's {part.tokens} tokens of a microbatch"
        raise ConfigError(reason, key="model.encoder.merge")
    return Tower(encoder=encoder, model=own, shard=part, width=model.hidden)
