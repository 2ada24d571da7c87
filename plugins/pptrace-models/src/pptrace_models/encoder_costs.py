"""Costs of an encoder before a decoder: transformer layers of other sizes, and a projector.

The layers are split over the tensor and context parallel devices as the decoder's layers are. Each data parallel
replica has the encoder and the decoder. The projector has two matrices: from the width of merged tokens to the
decoder's width, and from that width to itself. A stage that ends inside the encoder sends the encoder's tokens,
and the encoder's last stage sends the projected tokens.
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
    from pptrace_models.accelerator import Groups
    from pptrace_models.layer import Operation
    from pptrace_models.layer_times import Costing
    from pptrace_models.stages import Stage
    from pptrace_models.transformer import Encoder


_LAYER = Layer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """The share of an encoder on one device."""

    encoder: Encoder
    """Parameters of the encoder."""
    model: Transformer
    """The encoder's layers as a transformer."""
    shard: Shard
    """The share of the layers on one device."""
    width: int
    """Width of the decoder."""

    @property
    def projected(self) -> int:
        """Tokens of a microbatch after the projector, on this device."""
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
        """Return the projector's products as one operation, with only the necessary gradients.

        If the encoder's layers are frozen, the first matrix has no input gradient. If the projector is frozen, its
        matrices have no weight gradients.
        """
        operation = flops.products("projector", self.projections, self.model.element_bytes, grad)
        if not self.encoder.frozen:
            input_gradient = operation.input_gradient
        elif self.encoder.frozen_projector:
            input_gradient = Work()
        else:
            second = flops.products("projector", self.projections[1:], self.model.element_bytes, grad)
            input_gradient = second.input_gradient
        weight_gradient = Work() if self.encoder.frozen_projector else operation.weight_gradient
        return replace(operation, input_gradient=input_gradient, weight_gradient=weight_gradient)

    def projector_collectives(self, groups: Groups) -> GroupTimes:
        """Return the durations of the projector's tensor-parallel all-reduces, forward and backward."""
        reduce = groups.ns("tp", self.projected * self.width * self.model.element_bytes, "all-reduce")
        return GroupTimes(forward_ns=reduce, backward_ns=0 if self.encoder.frozen else reduce)

    def costing(self, costing: Costing) -> Costing:
        """Return the costing of the encoder's layers on a decoder's device."""
        return replace(costing, model=self.model, shard=self.shard)

    def costs(self, costing: Costing) -> tuple[Cost, Cost]:
        """Return the times of an encoder layer and of the projector on a decoder's device."""
        encoder_costing = self.costing(costing)
        layer = layer_cost(encoder_costing, _LAYER)
        if self.encoder.frozen:
            layer = Cost(f=layer.f, f_collective=layer.f_collective)
        projection = self.projection(gradient_bytes(encoder_costing.options))
        return layer, encoder_costing.cost([projection], self.projector_collectives(encoder_costing.groups))

    def has_backward(self, *, projector: bool) -> bool:
        """Return whether the encoder's layers have a backward, or with ``projector``, the projector."""
        return self.encoder.passes_back if projector else not self.encoder.frozen

    def reaches_back(self, stage: Stage) -> bool:
        """Return whether a stage receives a gradient, because a layer up to it is trained."""
        return self.has_backward(projector=stage.projector)

    def kept(self) -> tuple[memory.Kept, memory.Kept]:
        """Return what a layer and the projector keep of a microbatch."""
        if not self.encoder.passes_back:
            return memory.Kept(), memory.Kept()
        # Frozen matrices need no inputs, but the activation function needs its output, the second matrix's input.
        matrices = self.projections[1:] if self.encoder.frozen_projector else self.projections
        inputs = sum(matrix.tokens * matrix.inputs for matrix in matrices) * self.model.element_bytes
        outputs = sum(matrix.tokens * matrix.outputs for matrix in matrices) * self.model.element_bytes
        projector = memory.Kept(
            activation=inputs, weight_part=0 if self.encoder.frozen_projector else inputs + outputs
        )
        if self.encoder.frozen:
            return memory.Kept(), projector
        return memory.layer_kept(self.model, self.shard, Layer()), projector

    def held(self) -> tuple[memory.Held, memory.Held]:
        """Return the parameters of a layer and of the projector."""
        layer = memory.layer_held(self.model, self.shard, Layer())
        projector = sum(matrix.weights for matrix in self.projections)
        return (
            memory.Held(frozen=layer.dense) if self.encoder.frozen else layer,
            memory.Held(frozen=projector) if self.encoder.frozen_projector else memory.Held(dense=projector),
        )

    def boundary_bytes(self, *, last: bool) -> int:
        """Return the bytes of a microbatch that an encoder stage sends; ``last`` for the encoder's last stage."""
        tokens = self.shard.split_tokens * self.model.hidden
        return (self.projected * self.width if last else tokens) * self.model.element_bytes

    def flops(self, sequences: int) -> int:
        """Return the encoder's model FLOPs in a step: the forward, and the necessary backward."""
        items, width = sequences * self.encoder.items, self.model.hidden
        tokens = items * self.encoder.tokens
        head = 3 * 2 * tokens * width  # FLOPs of an LM head with the vocabulary of 1 that the model has
        layers = flops.step_flops(self.model, items, self.encoder.tokens) - head
        first, second = (
            2 * (tokens // self.encoder.merge) * self.width * inputs
            for inputs in (width * self.encoder.merge, self.width)
        )
        weight = 0 if self.encoder.frozen_projector else first + second
        input_gradient = first + second if not self.encoder.frozen else second * self.encoder.passes_back
        return (layers // 3 if self.encoder.frozen else layers) + first + second + input_gradient + weight


def tower_of(model: Transformer, request: CostRequest) -> Tower | None:
    """Return a model's encoder; None if it has none.

    Raises:
        ConfigError: a merge factor that does not divide the tokens of a device.
        ConstraintError: parallel sizes that do not divide the encoder's sizes.
    """
    encoder = model.encoder
    if encoder is None:
        return None
    encoder_model = Transformer(
        layers=encoder.layers, hidden=encoder.hidden, heads=encoder.heads, ffn=encoder.ffn, gated=encoder.gated,
        vocabulary=1, causal=False, bias=True, flash_attention=model.flash_attention, precision=model.precision,
        recompute=encoder.recompute,
    )  # fmt: skip
    encoder_request = replace(
        request, micro=request.micro * encoder.items, sequence=encoder.tokens, document=0, ep=1, etp=0
    )
    try:
        encoder_shard = shard(encoder_model, encoder_request)
    except ConstraintError as error:
        reason = error.reason.replace("model.", "model.encoder.").replace("batch.sequence", "model.encoder.tokens")
        raise ConstraintError(reason, nearest=error.nearest, key=error.key) from error
    if encoder_shard.tokens % encoder.merge:
        reason = f"{encoder.merge} does not divide a device's {encoder_shard.tokens} tokens of a microbatch"
        raise ConfigError(reason, key="model.encoder.merge")
    return Tower(encoder=encoder, model=encoder_model, shard=encoder_shard, width=model.hidden)
