"""Costs of encoders before a decoder: each has transformer layers of other sizes, and a projector.

The layers are split over the tensor and context parallel devices of the encoder's grid, by default the decoder's.
Replicas of the encoder divide the items of each microbatch. The projector has two matrices: from the width of
merged tokens to the decoder's width, and from that width to itself. A stage that ends inside the encoder sends the
encoder's tokens, and the encoder's last stage sends the projected tokens.

On separate devices, the encoder's last stage sends each device of the decoder its part. With other sizes on the
decoder's devices, the encoder's replicas within a replica of the decoder gather the projected tokens. If the
encoder's replicas are the larger ones, those of the decoder gather the gradients. Megatron-LM does the same
(``megatron/core/models/mimo/comm/colocated_communicator.py``).
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import ConfigError, ConstraintError, EncoderGrid, divisors_near
from pptrace_models import flops, memory
from pptrace_models.accelerator import groups_of
from pptrace_models.layer import Linear, Shard, Work, shard
from pptrace_models.layer_times import Cost, GroupTimes, layer_cost
from pptrace_models.options import gradient_bytes
from pptrace_models.transformer import Layer, Transformer, encoder_key

if TYPE_CHECKING:
    from pptrace.plugin import CostRequest
    from pptrace_models.layer import Operation
    from pptrace_models.layer_times import Costing
    from pptrace_models.transformer import Encoder


_LAYER = Layer()


class Tower(Struct, frozen=True):
    """The share of an encoder on one device."""

    name: str
    """Name of the encoder; empty if the model has one without a name."""
    encoder: Encoder
    """Parameters of the encoder."""
    model: Transformer
    """The encoder's layers as a transformer."""
    shard: Shard
    """The share of the layers on one device."""
    width: int
    """Width of the decoder."""
    request: CostRequest
    """The request with the sizes of the encoder."""
    decoder: CostRequest
    """The request with the sizes of the decoder."""
    grid: EncoderGrid | None
    """The encoder's sizes; None for those of the decoder."""

    @property
    def layers_title(self) -> str:
        """Name of the layers in lists of kernels and segments."""
        return self.name or "encoder"

    @property
    def projector_title(self) -> str:
        """Name of the projector in lists of kernels and segments."""
        return f"{self.name}-projector" if self.name else "projector"

    @property
    def is_shared(self) -> bool:
        """Whether the encoder has sizes other than the decoder's on the same devices."""
        return self.grid is not None and not self.grid.ranks

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

    def projector_collectives(self, costing: Costing) -> GroupTimes:
        """Return the durations of the projector's tensor-parallel all-reduces, forward and backward.

        Args:
            costing: that of the encoder's layers, as for :meth:`gathers`.
        """
        reduce = costing.groups.ns("tp", self.projected * self.width * self.model.element_bytes, "all-reduce")
        return GroupTimes(forward_ns=reduce, backward_ns=0 if self.encoder.frozen else reduce)

    def gathers(self, costing: Costing) -> GroupTimes:
        """Return the durations of the gathers between encoder and decoder on the same devices.

        Projected tokens are gathered in the forward, if an encoder's replica has fewer sequences than a decoder's;
        gradients are gathered in the backward, if it has more.
        """
        if not self.is_shared:
            return GroupTimes()
        scale = Fraction(self.request.dp, self.decoder.dp)
        size = self.projected * self.width * self.model.element_bytes
        if scale > 1:
            gather = costing.groups.siblings_ns(int(size * scale), int(scale), self.decoder.tp)
            return GroupTimes(forward_ns=gather)
        gather = costing.groups.siblings_ns(size, int(1 / scale), self.request.tp * self.request.cp)
        return GroupTimes(backward_ns=gather if self.encoder.passes_back else 0)

    def broadcasts(self, costing: Costing) -> GroupTimes:
        """Return the durations of broadcasts from the leaders of replicas, in ns; 0 without leaders.

        The decoder's first stage broadcasts projected tokens in the forward, and the encoder's last stage
        broadcasts their gradients in the backward.

        Args:
            costing: that of the decoder.
        """
        if self.grid is None or not self.grid.broadcasts:
            return GroupTimes()
        return GroupTimes(
            forward_ns=_broadcast_ns(costing, self.received_bytes()),
            backward_ns=_broadcast_ns(self.costing(costing), self.boundary_bytes(last=True))
            * self.encoder.passes_back,
        )

    def costing(self, costing: Costing) -> Costing:
        """Return the costing of the encoder's layers on a device."""
        groups = costing.groups
        if self.grid is not None:
            groups = groups_of(self.request, self.shard, costing.device, costing.options)
        return replace(costing, model=self.model, shard=self.shard, groups=groups, computed={})

    def costs(self, costing: Costing) -> tuple[Cost, Cost]:
        """Return the times of an encoder layer and of the projector on a decoder's device."""
        encoder_costing = self.costing(costing)
        layer = layer_cost(encoder_costing, _LAYER)
        if self.encoder.frozen:
            layer = Cost(f=layer.f, f_collective=layer.f_collective)
        projection = self.projection(gradient_bytes(encoder_costing.options))
        reduce, gather = self.projector_collectives(encoder_costing), self.gathers(encoder_costing)
        times = GroupTimes(
            forward_ns=reduce.forward_ns + gather.forward_ns,
            backward_ns=reduce.backward_ns + gather.backward_ns + self.broadcasts(costing).backward_ns,
        )
        return layer, encoder_costing.cost([projection]).beside(times)

    def has_backward(self, *, projector: bool) -> bool:
        """Return whether the encoder's layers have a backward, or with ``projector``, the projector."""
        return self.encoder.passes_back if projector else not self.encoder.frozen

    def activations(self) -> tuple[memory.ActivationBytes, memory.ActivationBytes]:
        """Return what a layer and the projector keep of a microbatch."""
        if not self.encoder.passes_back:
            return memory.ActivationBytes(), memory.ActivationBytes()
        # Frozen matrices need no inputs, but the activation function needs its output, the second matrix's input.
        matrices = self.projections[1:] if self.encoder.frozen_projector else self.projections
        inputs = sum(matrix.tokens * matrix.inputs for matrix in matrices) * self.model.element_bytes
        outputs = sum(matrix.tokens * matrix.outputs for matrix in matrices) * self.model.element_bytes
        projector = memory.ActivationBytes(
            activation=inputs, weight_part=0 if self.encoder.frozen_projector else inputs + outputs
        )
        if self.encoder.frozen:
            return memory.ActivationBytes(), projector
        return memory.layer_activations(self.model, self.shard, Layer()), projector

    def parameters(self) -> tuple[memory.ParameterCounts, memory.ParameterCounts]:
        """Return the parameters of a layer and of the projector."""
        layer = memory.layer_parameters(self.model, self.shard, Layer())
        of_projector = memory.ParameterCounts(dense=sum(matrix.weights for matrix in self.projections))
        return (
            layer.untrained() if self.encoder.frozen else layer,
            of_projector.untrained() if self.encoder.frozen_projector else of_projector,
        )

    def boundary_bytes(self, *, last: bool) -> int:
        """Return a device's bytes of the output of an encoder stage; ``last`` for the encoder's last stage."""
        tokens = self.shard.split_tokens * self.model.hidden
        return (self.projected * self.width if last else tokens) * self.model.element_bytes

    def received_bytes(self) -> int:
        """Return a device's bytes of the projected tokens at the decoder's first stage."""
        encoder, decoder = self.request, self.decoder
        return self.boundary_bytes(last=True) * encoder.dp * encoder.cp // (decoder.dp * decoder.cp)

    def message_bytes(self) -> tuple[int, int]:
        """Return the bytes of a message to the decoder's first stage, and of its gradient, which may be 0."""
        size, grid = self.boundary_bytes(last=True), self.grid
        forward, back = (grid.forward_share, grid.gradient_share) if grid else (1, 1)
        return ceil(size * forward), ceil(size * back) * self.encoder.passes_back

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


def _broadcast_ns(costing: Costing, size_bytes: int) -> int:
    """Return the time to broadcast to a tensor-parallel group: each link of the ring carries all bytes."""
    devices = costing.shard.tp
    return costing.groups.ns("tp", size_bytes * devices // (devices - 1), "all-gather") if devices > 1 else 0


def with_grids(model: Transformer, request: CostRequest) -> Transformer:
    """Return a model whose encoders have as many stages as their grids have pipeline ranks.

    Encoders with ranks are first, in the order of these.

    Raises:
        ConfigError: another number of stages, or more than an encoder has layers.
    """
    if not request.encoders:
        return model
    has_ranks = any(grid.ranks for grid in request.encoders)
    encoders: dict[str, Encoder] = {}
    for name, encoder in sorted(model.named_encoders.items(), key=lambda named: _rank_order(request, named[0])):
        grid = grid_of(request, name)
        if grid is None and not has_ranks:
            encoders[name] = encoder
            continue
        ranks, key = (grid.ranks, grid_key(grid.name)) if grid else (0, grid_key(name))
        if encoder.stages and encoder.stages != ranks:
            stages = f"{encoder.stages}, and {key}.pp is {ranks}, the stages on separate GPUs"
            raise ConfigError(f"{stages}: write one of the two keys", key=f"{encoder_key(name)}.stages")
        if ranks > encoder.layers:
            reason = f"{ranks} are more than the encoder's layers ({encoder.layers})"
            raise ConfigError(reason, key=f"{key}.pp")
        encoders[name] = encoder.model_copy(update={"stages": ranks})
    if model.encoder:
        return model.model_copy(update={"encoder": encoders[""]})
    return model.model_copy(update={"encoders": encoders})


def grid_of(request: CostRequest, name: str) -> EncoderGrid | None:
    """Return the sizes of an encoder; None for those of the decoder."""
    return next((grid for grid in request.encoders if grid.name in {"", name}), None)


def _rank_order(request: CostRequest, name: str) -> int:
    """Return the position of an encoder's ranks among those of all encoders; encoders without ranks are last."""
    names = [grid.name for grid in request.encoders if grid.ranks]
    return names.index(name) if name in names else len(names)


def shares_stages(request: CostRequest) -> bool:
    """Return whether all encoders have the same stages, on separate GPUs."""
    return any(grid.ranks and not grid.name for grid in request.encoders)


def grid_key(name: str) -> str:
    """Return the key of the sizes of an encoder; that of ``parallel.encoder`` for an empty name."""
    return f"parallel.encoders.{name}" if name else "parallel.encoder"


def towers_of(model: Transformer, request: CostRequest) -> tuple[Tower, ...]:
    """Return the encoders of a model, in its order.

    Raises:
        ConfigError: a merge factor that does not divide the tokens of a device.
        ConstraintError: parallel sizes that do not divide an encoder's sizes.
    """
    return tuple(_tower(model, request, name, encoder) for name, encoder in model.named_encoders.items())


def _tower(model: Transformer, request: CostRequest, name: str, encoder: Encoder) -> Tower:
    encoder_model = Transformer(
        layers=encoder.layers, hidden=encoder.hidden, heads=encoder.heads, ffn=encoder.ffn, gated=encoder.gated,
        vocabulary=1, causal=False, bias=True, flash_attention=model.flash_attention, precision=model.precision,
        recompute=encoder.recompute,
    )  # fmt: skip
    own_grid, key = grid_of(request, name), encoder_key(name)
    grid = own_grid or EncoderGrid(tp=request.tp, cp=request.cp, dp=request.dp, collectives=request.collectives)
    sizes_key = grid_key(grid.name) if own_grid else "parallel"
    items, rest = divmod(request.micro * request.dp * encoder.items, grid.dp)
    if rest:
        sizes = f"batch.micro {request.micro} x parallel.dp {request.dp} x {key}.items {encoder.items}"
        reason = f"{grid.dp} does not divide the items of a microbatch: {sizes}"
        near = divisors_near(grid.dp, items * grid.dp + rest)
        raise ConstraintError(reason, nearest=near, key=f"{sizes_key}.dp")
    encoder_request = replace(
        request, tp=grid.tp, cp=grid.cp, dp=grid.dp, micro=items, sequence=encoder.tokens, document=0, ep=1, etp=0,
        collectives=grid.collectives, ranks=grid.ranks or request.ranks,
    )  # fmt: skip
    try:
        encoder_shard = shard(encoder_model, encoder_request)
    except ConstraintError as error:
        reason = error.reason.replace("model.", f"{key}.").replace("batch.sequence", f"{key}.tokens")
        size_key = error.key.replace("parallel.", f"{sizes_key}.")
        raise ConstraintError(reason, nearest=error.nearest, key=size_key) from error
    if encoder_shard.tokens % encoder.merge:
        reason = f"{encoder.merge} does not divide a device's {encoder_shard.tokens} tokens of a microbatch"
        near = divisors_near(encoder.merge, encoder_shard.tokens)
        raise ConstraintError(reason, nearest=near, key=f"{key}.merge")
    return Tower(
        name=name, encoder=encoder, model=encoder_model, shard=encoder_shard, width=model.hidden,
        request=encoder_request, decoder=request, grid=own_grid,
    )  # fmt: skip
