"""Times of layers with their collectives, and of the host to issue them.

``t = max(F / (peak e_c) + L_c, V / (BW e_m) + L_m)`` (the roofline of the tabular abstraction paper, section 1.3),
rounded up to a nanosecond per group and pass. I and W are separate, and B is their sum.

If a product reads the result of a gather, or a sum reads its result, both are split into one piece per device. A
device computes with one piece while the next piece is transferred (Wang et al., Overlap Communication with
Dependent Computation via Decomposition, ASPLOS 2023; Transformer Engine's ring exchange). Each piece is a separate
product with its own tiles and waves, so all pieces take longer than the whole product (Chang et al., Flux, 2024).
A backward also has collectives without a dependent product. The input is gathered a second time for the weight
gradient, overlapped with the product of the input gradient. The result of that product is summed, overlapped with
the product of the weight gradient (Korthikanti et al., 2022, and Transformer Engine's bulk overlap). PyTorch has
neither if several products read the input: then no product directly precedes the sum of their input gradients
(``torch/_inductor/fx_passes/micro_pipeline_tp.py``), and the gathered input is kept or gathered by recomputation.

A host issues one operation after another, so a layer takes at least as long on its device. CUDA graphs issue the
operations that they capture at once. The operations follow from the kernels of a layer. A product of experts is
one kernel per expert unless a fused kernel has all of them, and products in FP8 or FP4 cast their factors first.
In addition, each part of a layer has operations that the list of kernels does not have: Python of its modules,
autograd, views and copies of counts. Their sum is fitted; parts have them by the modules of Megatron-Core.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property, partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace_models import flops
from pptrace_models.accelerator import TokenExchange, duration_ns, reached
from pptrace_models.casts import Casting
from pptrace_models.kernel_times import Shaped, shaped_ns
from pptrace_models.layer import FIRST_HALF, FP32_BYTES, Work, linears
from pptrace_models.options import WEIGHTS, gradient_bytes
from pptrace_models.transformer import NARROW, Layer, kept_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace_models.accelerator import Accelerator, Groups
    from pptrace_models.layer import Operation, Product, Shard
    from pptrace_models.options import RooflineOptions
    from pptrace_models.transformer import FeedForward, Mixer, Precision, Transformer


_Value = TypeVar("_Value")
_Method = TypeVar("_Method", bound="Callable[..., Any]")


class HalfTimes(NamedTuple):
    """Tensor-parallel collectives of a layer's half, in ns."""

    gather_ns: int = 0
    """All-gather of the input's tokens that sequence parallelism splits; 0 without it."""
    reduce_ns: int = 0
    """Sum of the output, and of the input's gradient: an all-reduce, or with sequence parallelism a
    reduce-scatter."""
    gradient_gather_ns: int = 0
    """All-gather of the output's gradient in the backward; 0 without sequence parallelism."""

    @property
    def forward_ns(self) -> int:
        """Time in the forward."""
        return self.gather_ns + self.reduce_ns

    @property
    def backward_ns(self) -> int:
        """Time in the backward."""
        return self.gradient_gather_ns + self.reduce_ns


class GroupTimes(Struct, frozen=True):
    """Collective time of the forward and of the backward; the backward part belongs to I."""

    forward_ns: int = 0
    """Time in the forward."""
    backward_ns: int = 0
    """Time in the backward for the input gradient."""
    again_ns: int = 0
    """The part of ``forward_ns`` that belongs to recomputed modules."""
    halves: tuple[HalfTimes, HalfTimes] = (HalfTimes(), HalfTimes())
    """Tensor-parallel collectives of a layer's halves."""


class LayerCollectives(Struct, frozen=True):
    """Time of each collective of a layer, in ns: of attention, of the MLP or experts, and of keys and values."""

    first: HalfTimes
    """Tensor-parallel collectives of attention."""
    second: HalfTimes
    """Tensor-parallel collectives of the MLP, or of experts and shared experts."""
    dispatch_ns: int
    """All-to-all of tokens, or of gradients of their results, to experts; 0 without experts."""
    combine_ns: int
    """All-to-all of results, or of gradients of tokens, from experts; 0 without experts."""
    maps_ns: int
    """All-gather of routing maps before the exchange of the forward."""
    keys_ns: int
    """All-gather of keys and values over the context-parallel group."""
    key_gradients_ns: int
    """Reduce-scatter of the gradients of keys and values."""


_SCALED = 128
"""Elements of a token with a common scale in exchanges in FP8."""


def layer_collectives(costing: Costing, kind: Layer) -> LayerCollectives:
    """Return each collective of a layer: tensor, context and expert parallel."""
    model, shard, groups = costing.model, costing.shard.loaded(kind), costing.groups
    half = second = _half_ns(costing)
    if model.product_precisions:
        precisions = {
            matrix.normed: matrix.precision for matrix in linears(model, shard, kind)
            if matrix.split_tokens and matrix.group in FIRST_HALF
        }  # fmt: skip
        half = _half_ns(costing, precisions.get(True), precisions.get(False))
    dispatch = combine = maps = 0
    if kind.experts:
        second = _experts_ns(model, shard, groups, second)
        elements = shard.exchanged * model.token_width
        combine = groups.exchange_ns(TokenExchange.of(model, elements * model.element_bytes))
        dispatch = combine
        if costing.options.fp8_dispatch:
            dispatch = groups.exchange_ns(TokenExchange.of(model, elements + elements // _SCALED * FP32_BYTES))
        if shard.ep > 1 and costing.options.is_hybrid_ep:
            maps = groups.maps_ns(shard.ep * shard.split_tokens * model.num_experts)  # a byte per expert
    keys_values = _over_context_bytes(model, shard, kind)
    return LayerCollectives(
        first=HalfTimes() if kind.mixer == "none" else half,
        second=HalfTimes() if kind.feed_forward == "none" else second,
        keys_ns=groups.ns("cp", keys_values, "all-gather") if keys_values else 0,
        key_gradients_ns=groups.ns("cp", keys_values, "reduce-scatter") if keys_values else 0,
        dispatch_ns=dispatch,
        combine_ns=combine,
        maps_ns=maps,
    )


def _over_context_bytes(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of a layer's collective over the context-parallel group.

    Attention gathers keys and values, sparse attention the compressed keys. A recurrence exchanges shares of the
    sequence for shares of the heads and back, which moves as much as a gather of one device's bytes.
    """
    recurrence = model.recurrence(kind)
    if not kind.has("core"):
        return 0
    if recurrence:
        part = recurrence.split(shard.tp)
        return shard.tokens * (part.projected + part.output_width) * model.element_bytes
    if kind.mixer == "none":
        return 0
    width = shard.kv + shard.value
    if model.compressed:  # the window's keys are those of a neighbour
        keys = model.overlap(kind.ratio) and shard.kv // kind.ratio
        return shard.cp * shard.tokens * keys * model.element_bytes + model.window * shard.kv * model.element_bytes
    if model.indexer:
        width = model.kv_rank + model.rope_dim + model.indexer.dim
    return shard.cp * shard.tokens * width * model.element_bytes


def layer_ns(costing: Costing, kind: Layer) -> GroupTimes:
    """Return the total times of a layer's collectives."""
    times, recomputed_modules = layer_collectives(costing, kind), costing.model.recomputed_modules
    exchanges = times.dispatch_ns + times.combine_ns
    others = exchanges + times.keys_ns
    is_whole = kind.mixer == "attention" and "full_attn" in recomputed_modules
    recomputed = times.keys_ns * (is_whole or "core_attn" in recomputed_modules)
    recomputed += times.first.forward_ns * is_whole
    # The gradient of attention's input is summed where the input is gathered, and that of its output gathered.
    first, projects, outputs = times.first, kind.has("projections"), kind.has("output")
    first_forward_ns = first.gather_ns * projects + first.reduce_ns * outputs
    first_backward_ns = first.reduce_ns * projects + first.gradient_gather_ns * outputs
    if kind.experts and "moe" in recomputed_modules:
        recomputed += times.second.forward_ns + exchanges + times.maps_ns
    if kind.feed_forward == "mlp" and "mlp" in recomputed_modules:
        recomputed += times.second.forward_ns
    if _regathers(costing.model, kind):
        recomputed += times.first.gather_ns + times.second.gather_ns
    return GroupTimes(
        forward_ns=first_forward_ns + times.second.forward_ns + others + times.maps_ns,
        backward_ns=first_backward_ns + times.second.backward_ns + others + times.key_gradients_ns,
        again_ns=recomputed,
        halves=(times.first, times.second),
    )


def _regathers(model: Transformer, kind: Layer) -> bool:
    """Return whether a backward gathers the inputs of a layer's halves again.

    PyTorch's operator-level checkpointing keeps products and reduce-scatters, but no all-gathers.
    """
    return "alternate_products" in model.recomputed_modules and not kind.experts


def _half_ns(
    costing: Costing, of_input: Precision | None = None, of_gradient: Precision | None = None
) -> HalfTimes:
    """Return the collectives of attention or an MLP. Gathers have the precision of the products that read them.

    Args:
        costing: the inputs of times.
        of_input: precision of the products that read the input, if it is not that of the layer.
        of_gradient: likewise, of the products that read the output's gradient.
    """
    model, shard, groups = costing.model, costing.shard, costing.groups
    size = _hidden_bytes(model, shard)
    if not shard.is_split:
        return HalfTimes(reduce_ns=groups.ns("tp", size, "all-reduce"))
    _, reduce = _tensor_ns(shard, groups, "tp", size)
    elements = shard.tokens * model.hidden
    castings = (
        Casting(precision=precision or model.precision, recipe=costing.options.fp8_recipe)
        for precision in (of_input, of_gradient)
    )
    gather, gradient_gather = (
        groups.ns("tp", round(elements * casting.gathered_bytes(gradient=bool(index))), "all-gather")
        for index, casting in enumerate(castings)
    )
    return HalfTimes(gather, reduce, gradient_gather)


def _tensor_ns(shard: Shard, groups: Groups, axis: str, size: int) -> tuple[int, int]:
    """Return the times of gather and sum: with sequence parallelism both, without it one all-reduce."""
    if shard.is_split:
        gather = groups.ns(axis, size, "all-gather")
        return gather, groups.ns(axis, size, "all-gather", "reduce-scatter") - gather
    return 0, groups.ns(axis, size, "all-reduce")


def _experts_ns(model: Transformer, shard: Shard, groups: Groups, dense: HalfTimes) -> HalfTimes:
    """Return the collectives around routed experts, in BF16, and of shared experts, as of an MLP."""
    if not shard.is_split:
        return dense if shard.etp > 1 or shard.shared_ffn else HalfTimes()
    gather = reduce = 0
    if shard.etp > 1:
        size = shard.routed * model.token_width * model.element_bytes
        gather, reduce = _tensor_ns(shard, groups, "tp" if shard.etp == shard.tp else "etp", size)
    shared = dense if shard.shared_ffn else HalfTimes()
    return HalfTimes(gather + shared.gather_ns, reduce + shared.reduce_ns, gather + shared.gradient_gather_ns)


def embedding_ns(costing: Costing) -> GroupTimes:
    """Return the embedding's collectives: an all-reduce forward.

    With sequence parallelism, a reduce-scatter forward and an all-gather backward replace it.
    """
    shard, groups, size = costing.shard, costing.groups, _hidden_bytes(costing.model, costing.shard)
    if not shard.is_split:
        return GroupTimes(forward_ns=groups.ns("tp", size, "all-reduce"))
    return GroupTimes(
        forward_ns=groups.ns("tp", size, "reduce-scatter"), backward_ns=groups.ns("tp", size, "all-gather")
    )


def head_ns(costing: Costing) -> GroupTimes:
    """Return the LM head's collectives: the three sums of the loss, and the gather or sum of its input."""
    shard, groups, size = costing.shard, costing.groups, _hidden_bytes(costing.model, costing.shard)
    loss = loss_ns(costing)
    if not shard.is_split:
        return GroupTimes(forward_ns=loss, backward_ns=groups.ns("tp", size, "all-reduce"))
    return GroupTimes(
        forward_ns=loss + groups.ns("tp", size, "all-gather"), backward_ns=groups.ns("tp", size, "reduce-scatter")
    )


def loss_ns(costing: Costing) -> int:
    """Return the time in ns of the all-reduces of each row's maximum, sum and target logit in the loss."""
    axes = ("tp", "pp") if costing.shard.vocabulary_shares > 1 else ("tp",)
    return 3 * sum(costing.groups.ns(axis, costing.shard.tokens * FP32_BYTES, "all-reduce") for axis in axes)


def _hidden_bytes(model: Transformer, shard: Shard) -> int:
    return shard.tokens * model.hidden * model.element_bytes


_NORM_BYTES, _SUM_BYTES = 4, 6
"""Bytes per element that a norm, and a residual sum, move in a forward."""
_SHARED = ("shared experts", "shared activation function")
_MODULES = {
    "core_attn": ("attention core",),
    "full_attn": tuple(FIRST_HALF),
    "mla_up_proj": ("expansion", "norms of heads", "rotary embedding"),
    "layernorm": ("norms and residuals",),
    "mhc": ("norms and residuals", "streams"),
    "mlp": ("mlp", "activation function"),
    "moe": (
        "router",
        "router scores",
        "experts",
        "latent projections",
        "routing",
        "padding",
        "activation function",
        "clamp",
        "biases of experts",
        *_SHARED,
    ),
    "mlp_act": ("activation function",),
    "moe_act": ("activation function", "clamp"),
    "shared_experts": _SHARED,
    "alternate_products": (
        "attention projections",
        "rotary embedding",
        "norms and residuals",
        "mlp",
        "activation function",
    ),
}


class Cost(Struct, frozen=True):
    """Nanoseconds of one microbatch, collectives included."""

    f: int = 0
    """Forward."""
    i: int = 0
    """Backward for the input gradient, including recomputation."""
    w: int = 0
    """Backward for the weight gradient."""
    f_collective: int = 0
    """Collectives within ``f``."""
    i_collective: int = 0
    """Collectives within ``i``."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.f + other.f, self.i + other.i, self.w + other.w,
            self.f_collective + other.f_collective, self.i_collective + other.i_collective,
        )  # fmt: skip

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.f - other.f, self.i - other.i, self.w - other.w,
            self.f_collective - other.f_collective, self.i_collective - other.i_collective,
        )  # fmt: skip

    def beside(self, group: GroupTimes) -> Cost:
        """Return the cost of computations with their collectives."""
        return self + Cost(
            f=group.forward_ns, i=group.backward_ns, f_collective=group.forward_ns, i_collective=group.backward_ns
        )

    def share(self, part: int, whole: int) -> Cost:
        """Return a part of the forward and of the input gradient, rounded down."""
        return Cost(f=self.f * part // whole, i=self.i * part // whole)

    def host_waits(self, host_ns: int, *, frozen: bool) -> Cost:
        """Return the time that each pass waits for the host, which issues a backward in twice a forward's time.

        Args:
            host_ns: time of the host to issue a forward, in ns.
            frozen: whether the backward has no weight gradients; its time then equals the forward's.
        """
        forward = max(0, host_ns - self.f)
        if frozen:
            return Cost(f=forward, i=max(0, host_ns - self.i))
        backward = max(0, 2 * host_ns - self.i - self.w)
        return Cost(f=forward, i=backward // 2, w=backward - backward // 2)


def _without_collectives(method: _Method) -> _Method:
    """Return a method that is computed once for costings that differ in collectives alone."""

    @wraps(method)
    def known(costing: Costing, *arguments: Any) -> Any:
        key = method, arguments
        if key not in costing.computed:
            costing.computed[key] = method(costing, *arguments)
        return costing.computed[key]

    return cast("_Method", known)


class Costing(Struct, frozen=True, kw_only=True, dict=True):
    """The inputs of times: a model, its share on a device, and the device."""

    model: Transformer
    """The model."""
    shard: Shard
    """The share of the model on one device."""
    device: Accelerator
    """The device."""
    groups: Groups
    """Times of collectives."""
    options: RooflineOptions
    """Options of the cost model."""
    units: int = 0
    """Number of layers that are units, whose weights are gathered or gradients reduced separately; 0 for none."""
    computed: dict[Any, Any] = field(default_factory=dict)
    """Values that do not depend on collectives; costings share them that differ in these alone."""

    @cached_property
    def _values(self) -> dict[Any, Any]:
        return {}

    def once(self, compute: Callable[..., _Value], *arguments: Any) -> _Value:
        """Return ``compute(self, *arguments)``, computed at the first call with these arguments."""
        key = compute, arguments
        if key not in self._values:
            self._values[key] = compute(self, *arguments)
        value: _Value = self._values[key]
        return value

    def of(self, kind: Layer) -> Costing:
        """Return the inputs of a layer's times, with the precision of its products."""
        return self if kind.precision is None else self.once(_with_precision, kind.precision)

    @_without_collectives
    def layer(self, kind: Layer) -> tuple[Operation, ...]:
        """Return a layer's operations."""
        model, options = self.model, self.options
        needs_no_rows = model.pads_experts or model.fused_experts or model.precision not in NARROW
        return flops.layer(
            model, self.shard, gradient_bytes(options), kind, deduplicated=options.dispatcher == "deduplicated",
            aligned=needs_no_rows or options.is_hybrid_ep, copied_bytes=_copied_bytes(self),
            fused_router=options.fuses("router"),
            copied_shards=options.copied_shards and options.zero == WEIGHTS and self.units > 0,
        )  # fmt: skip

    def embedding(self) -> tuple[Operation, ...]:
        """Return the embedding's operation."""
        return (flops.embedding(self.model, self.shard, gradient_bytes(self.options)),)

    def prediction(self) -> tuple[Operation, ...]:
        """Return the operations of a module of multi-token prediction without its layer."""
        return flops.prediction(self.model, self.shard, gradient_bytes(self.options))

    def head(self) -> tuple[Operation, ...]:
        """Return the operations of final norm, LM head and loss."""
        options = self.options
        return flops.head(
            self.model, self.shard, gradient_bytes(options),
            fused_loss=options.fused_loss, eager_loss=options.eager_loss, chunks=options.loss_chunks,
        )  # fmt: skip

    def work_ns(self, work: Work, unit: str) -> int:
        """Return the time of one group of kernels in one pass, in ns; 0 without work."""
        model, device = self.model, self.device
        if isinstance(device, Shaped):
            return shaped_ns(work, unit, model.precision, device)
        if not work.flops and not work.size_bytes:
            return 0
        precision = model.precision if unit == "linear" else kept_precision(model.precision)
        share = device.attention_efficiency if unit in {"attention", "recurrence"} else device.compute_efficiency
        memory_rate = reached(device.memory_bandwidth, device.memory_efficiency)
        return max(
            device.launch_latency + duration_ns(work.flops, reached(device.peak(precision), share)),
            device.memory_latency + duration_ns(work.size_bytes, memory_rate),
        )

    @_without_collectives
    def layer_host_ns(self, kind: Layer) -> int:
        """Return the time of the host to issue a forward of a layer, in ns; 0 with CUDA graphs."""
        costing, options = self.of(kind), self.options
        if options.cuda_graphs is True:
            return 0
        if not (kind.experts or options.host_launch):
            return 0 if options.cuda_graphs else options.host_kernel * costing.forward_kernels(kind)
        if options.host:
            return options.host if kind.experts else 0
        if not options.host_launch:
            return 0
        counts = issued_operations(costing, kind)
        captured = set(options.cuda_graphs or ())
        if "moe" in captured:
            captured |= {"moe_router", "moe_preprocess"}
        graphs = bool(captured & counts.keys())
        return options.host_launch * (graphs + sum(counts[part] for part in counts.keys() - captured))

    def layer_waits(self, kind: Layer, cost: Cost) -> Cost:
        """Return the time that each pass of a layer of this cost waits for the host."""
        beside = Cost() if self.options.blocking_launches else cost
        return beside.host_waits(self.layer_host_ns(kind), frozen=self.model.frozen)

    def stage_host_ns(self, layers: Iterable[Layer], *, paired: bool = False) -> int:
        """Return the time of the host to issue a forward of a stage in ns; 0 if layers already have all of it.

        A stage that is one of several units has a share of the operations beside layers.

        Args:
            layers: the layers of the stage.
            paired: whether the forward is a member of an overlapped pair.
        """
        options, layers_ns = self.options, sum(map(self.layer_host_ns, layers))
        if not layers_ns or options.blocking_launches:
            return 0
        operations = _OF_NARROW_PAIRED if paired and self.model.precision in NARROW else _OF_ACTION
        beside_ns = options.host_action or (0 if options.host else options.host_launch * operations)
        return layers_ns + beside_ns // max(self.units, 1)

    def forward_kernels(self, kind: Layer) -> int:
        """Return the number of kernels of a layer's forward with tensor-parallel collectives; a cast is one."""
        collectives = 2 * (1 + self.shard.is_split) if self.shard.tp > 1 else 0
        return collectives + sum(self._kernels(operation) for operation in self.layer(kind))

    def _kernels(self, operation: Operation) -> int:
        work, device = operation.forward, self.device
        if not isinstance(device, Shaped) or not work.products:
            return 1 if work.core else work.kernels
        casts = sum(
            device.casting(product.precision or self.model.precision).work(product.cast)[1] > 0
            for product in work.products
        )
        return len(work.products) + casts + (work.kernels if work.beside_bytes else 0)

    def cost(self, operations: Iterable[Operation]) -> Cost:
        """Return the time of operations without collectives."""
        f = i = w = 0
        for operation in operations:
            f += self.work_ns(operation.forward, operation.unit)
            i += self.work_ns(operation.input_gradient, operation.unit)
            w += self.work_ns(operation.weight_gradient, operation.unit)
        return Cost(f=f, i=i, w=w)

    @_without_collectives
    def layer_work(self, kind: Layer) -> Cost:
        """Return the time of a layer's operations without collectives and recomputation."""
        return self.cost(self.layer(kind))

    @_without_collectives
    def again_ns(self, kind: Layer) -> int:
        """Return the time of a layer's recomputed modules without their collectives, in ns."""
        return again_ns(self, self.layer(kind), kind)

    @_without_collectives
    def ends_work(self) -> tuple[Cost, Cost, Cost]:
        """Return the times of embedding, multi-token prediction without its layer, and head, as :meth:`cost`."""
        return self.cost(self.embedding()), self.cost(self.prediction()), self.cost(self.head())


def _with_precision(costing: Costing, precision: Precision) -> Costing:
    return replace(costing, model=costing.model.with_precision_of(Layer(precision=precision)), computed={})


def _copied_bytes(costing: Costing) -> tuple[float, float]:
    """Return the bytes per element that are copied around a half's collectives, forward and backward."""
    model, shard, options = costing.model, costing.shard, costing.options
    if options.sequence_first or not shard.is_split or shard.sequences == 1:
        return 0, 0
    if options.overlap_tp:
        # Pieces of overlapped collectives are not copied. One kernel reads the pieces of a sum and writes it.
        summed = (1 + 1 / shard.tp) / 2 * model.element_bytes
        return summed, 0 if model.fused_projections is True else model.element_bytes
    casting = Casting(precision=model.precision, recipe=options.fp8_recipe)
    forward, backward = (casting.gathered_bytes(gradient=gradient) for gradient in (False, True))
    regathered = forward if "alternate_products" in model.recomputed_modules else 0
    return forward + model.element_bytes, backward + model.element_bytes + regathered


def layer_cost(costing: Costing, kind: Layer) -> Cost:
    """Return a layer's time, including recomputation."""
    costing = costing.of(kind)
    model = costing.model
    group = _exposed(costing, kind, layer_ns(costing, kind))
    cost = costing.layer_work(kind).beside(group)
    cost += costing.layer_waits(kind, cost)
    if model.recompute == "full":
        return cost + _recomputed(costing, kind, cost) if kind.is_recomputed else cost
    recomputed_ns = group.again_ns + costing.again_ns(kind)
    return cost + Cost(i=recomputed_ns, i_collective=group.again_ns)


def _exposed(costing: Costing, kind: Layer, group: GroupTimes) -> GroupTimes:
    """Return the exposed times of a layer's collectives."""
    if not costing.options.overlap_tp:
        return group
    return beside_products(
        group, costing.layer(kind), costing.shard.tp, partial(_product_ns, costing),
        bulk=costing.model.fused_projections is True, regathers=_regathers(costing.model, kind),
        sums=costing.options.overlap_tp != "gathers",
    )  # fmt: skip


def _recomputed(costing: Costing, kind: Layer, cost: Cost) -> Cost:
    """Return the time of recomputing a whole layer, whose cost without recomputation is given."""
    if not _stops_early(costing, kind):
        return Cost(i=cost.f, i_collective=cost.f_collective)
    group = layer_ns(costing, kind)
    first, second = group.halves
    halves = first, second._replace(reduce_ns=0)
    group = _exposed(costing, kind, replace(group, forward_ns=group.forward_ns - second.reduce_ns, halves=halves))
    again = costing.cost(recomputed_operations(costing, kind)).beside(group)
    again += costing.layer_waits(kind, again)
    return Cost(i=again.f, i_collective=again.f_collective)


def recomputed_operations(costing: Costing, kind: Layer) -> tuple[Operation, ...]:
    """Return a layer's operations, with the forwards that recomputation of the whole layer repeats.

    With ``early_stop``, the MLP's last product is not one of them.
    """
    operations = costing.layer(kind)
    if not _stops_early(costing, kind):
        return operations
    return tuple(
        replace(operation, forward=_without_last_product(operation.forward, costing.model.element_bytes))
        if operation.name == "mlp"
        else operation
        for operation in operations
    )


def _stops_early(costing: Costing, kind: Layer) -> bool:
    return costing.options.early_stop and kind.feed_forward == "mlp" and costing.model.recompute == "full"


def _without_last_product(work: Work, element_bytes: int) -> Work:
    last = work.products[-1]
    moved_bytes = int(last.moved_bytes(element_bytes))
    return replace(
        work, flops=work.flops - last.flops, size_bytes=work.size_bytes - moved_bytes, products=work.products[:-1]
    )


def _product_ns(costing: Costing, product: Product) -> int:
    """Return the time of one matrix product of a layer, in ns."""
    moved = int(product.moved_bytes(costing.model.element_bytes))
    return costing.work_ns(Work(flops=product.flops, size_bytes=moved, products=(product,)), "linear")


def again_ns(costing: Costing, operations: Iterable[Operation], kind: Layer) -> int:
    """Return the time of recomputed modules, without their collectives."""
    return sum(
        int(costing.work_ns(operation.forward, operation.unit) * again_share(operation, costing.model))
        for operation in operations
        if again_of(operation.name, kind) & costing.model.recomputed_modules
    )


def again_share(operation: Operation, model: Transformer) -> float:
    """Return the share of an operation that is recomputed with its modules.

    Residual sums are not recomputed. Every other product is that of the keys, of attention's output, and of a
    gated MLP's gate or of a plain MLP's output.
    """
    if operation.name == "norms and residuals":
        norm = _NORM_BYTES if model.fused_norms else flops.UNFUSED_NORM[0]
        return norm / (norm + _SUM_BYTES * (not model.stream_maps))
    if "alternate_products" not in model.recomputed_modules or operation.unit != "linear":
        return 1.0
    if operation.name == "mlp":
        return 1 / model.matrices if model.gated else 1 / 2
    widths = (model.query_width, model.kv_width, model.value_width, model.output_width)
    return (model.kv_width + model.output_width) / sum(widths)


def again_of(operation: str, kind: Layer) -> frozenset[str]:
    """Return the modules that contain an operation of a layer."""
    modules = {name for name, operations in _MODULES.items() if operation in operations}
    if kind.mixer != "attention":
        modules -= {"full_attn"}
    if kind.experts:
        return frozenset(modules - {"mlp", "mlp_act", "alternate_products"})
    return frozenset(modules - {"moe", "moe_act", "shared_experts"})


_HALVES = (("attention projections", "expansion"), ("mlp",))
"""Operations of a layer's halves whose products are split; the last product of the first operation is summed."""
_SLOWDOWN = 0.19
"""Slowdown of a product by an overlapped collective, as a share of the overlapped time. A collective of 3.364 ms
slows a product from 8.605 ms to 9.251 ms (overlap micro-benchmark of the STP paper, on A800)."""


class _Overlap(Struct, frozen=True):
    """Overlap of a half's products with its collectives."""

    devices: int
    taken: Callable[[Product], int]

    def ring(self, products: Sequence[Product], collective_ns: int) -> int:
        """Return the exposed duration of a collective in pieces, or of the whole one where that is shorter."""
        if not (products and collective_ns):
            return collective_ns
        piece_ns = self._sum([replace(product, m=-(-product.m // self.devices)) for product in products])
        step_ns = collective_ns / (self.devices - 1)
        total_ns = piece_ns + (self.devices - 1) * max(_slow_down(piece_ns, step_ns), step_ns)
        return min(round(total_ns) - self._sum(products), collective_ns)

    def bulk(self, products: Sequence[Product], collective_ns: int) -> int:
        """Return the exposed duration of a collective that overlaps independent products."""
        alone = self._sum(products)
        return round(max(_slow_down(alone, collective_ns), collective_ns)) - alone

    def _sum(self, products: Sequence[Product]) -> int:
        return sum(map(self.taken, products))


def _slow_down(product_ns: float, collective_ns: float) -> float:
    return product_ns + _SLOWDOWN * min(product_ns, collective_ns)


def beside_products(
    group: GroupTimes,
    operations: Sequence[Operation],
    devices: int,
    taken: Callable[[Product], int],
    *,
    bulk: bool = True,
    regathers: bool = False,
    sums: bool = True,
) -> GroupTimes:
    """Return the exposed durations of a layer's collectives that overlap matrix products.

    Args:
        group: the layer's collectives.
        operations: the layer's operations.
        devices: size of the tensor-parallel group; a group of 1 has no collectives.
        taken: the time of one product in ns.
        bulk: whether whole collectives of the backward also overlap independent products.
        regathers: whether the backward gathers inputs again, before the recomputed product of keys or of the gate.
        sums: whether sums of the forward overlap the product before them.
    """
    if devices == 1:
        return group
    overlap = _Overlap(devices=devices, taken=taken)
    operations_by_name = {operation.name: operation for operation in operations}
    forward, backward, again = group.forward_ns, group.backward_ns, group.again_ns
    for (gather, reduce, gradient_gather), names in zip(group.halves, _HALVES, strict=True):
        present = [operations_by_name[name] for name in names if name in operations_by_name]
        if not present:
            continue
        forward_products, forward_summed = _split([operation.forward.products for operation in present])
        input_products, input_summed = _split([operation.input_gradient.products for operation in present])
        weight_products, _ = _split([operation.weight_gradient.products for operation in present])
        forward += overlap.ring(forward_products, gather) - gather
        if sums:
            forward += overlap.ring(forward_summed, reduce) - reduce
        backward += overlap.ring(input_summed, gradient_gather) - gradient_gather
        if regathers:
            again += overlap.ring(forward_products[1:2], gather) - gather
        if bulk:
            backward += overlap.bulk(weight_products, reduce) - reduce
        if bulk and weight_products:
            backward += overlap.bulk(input_products, gather)
    return replace(group, forward_ns=forward, backward_ns=backward, again_ns=again)


def _split(products: Sequence[Sequence[Product]]) -> tuple[list[Product], list[Product]]:
    """Return the products after the gather, and the product before the reduction.

    The product before the reduction is the last one of the first operation. Factors are cast before the gather,
    and not per piece.
    """
    first, *following = [[replace(product, cast=None) for product in operation] for operation in products]
    return [*first[:-1], *chain.from_iterable(following)], list(first[-1:])


_BESIDE = {"attn": 30, "mamba": 30, "mlp": 10, "moe_router": 20, "moe_preprocess": 20, "moe": 30}
"""Operations of each part of a layer beside its kernels, casts and collectives; 100 of a layer with experts are
fitted to Megatron-Bridge's mixtures on x86 hosts. Mamba-2 has those of attention."""
_UNFUSED_PERMUTATION = 20
"""Additional operations of permutations without fused kernels, counted in Megatron-Core 0.12
(``megatron/core/transformer/moe/moe_utils.py``): selection, sums and sorts."""
_PADDED = -9
"""Change of operations by a fixed capacity, counted in Megatron-Core 0.14: 14 fewer for counts, their gather and
their copies to the host (``preprocess`` in ``token_dispatcher.py``), and 5 more that choose the tokens
(``apply_router_token_dropping`` in ``moe_utils.py``)."""
_OF_ACTION, _OF_NARROW_PAIRED = 110, 300
"""Operations of an action beside its layers: messages, buffers and the schedule; and those of a member of an
overlapped pair in FP8 or FP4, whose layers are issued in parts that each enter a recipe. Fitted likewise. In BF16
a member has as many as any action: with 300, published runs (``examples/combined.py``) would gain nothing."""
_TENSOR_PARALLEL = 2
"""Collectives of each half of a layer over the tensor-parallel group: a gather and a sum."""
_RING_STEP = 8
"""Operations of a step of ring attention: messages, the attention of a block, and the correction of its sums."""
_EXCHANGES = 4
"""Exchanges of a forward: tokens and probabilities to the experts, and results back with their sort."""
_ATTENTION = FIRST_HALF | {"norms and residuals"}
_PARTS: dict[FeedForward, tuple[str, ...]] = {
    "none": (), "mlp": ("mlp",), "experts": ("moe_router", "moe_preprocess", "moe"),
}  # fmt: skip
"""Parts of a layer's second half."""
_MIXING_PARTS: dict[Mixer, tuple[str, ...]] = {"none": (), "mamba": ("mamba",)}
"""Parts of a layer's first half where it is not attention or a module in its place."""
_ROUTER = {"router", "router scores", "shared experts", "shared activation function"}


def issued_operations(costing: Costing, kind: Layer) -> Counter[str]:
    """Return the number of operations that the host issues in a layer's forward, by part.

    Parts have the names of Megatron-LM's ``--cuda-graph-scope``: ``attn`` or ``mamba``, and ``mlp`` or
    ``moe_router``, ``moe_preprocess`` and ``moe``.
    """
    model, shard = costing.model, costing.shard
    parts = _MIXING_PARTS.get(kind.mixer, ("attn",)) + _PARTS[kind.feed_forward]
    counts = Counter({part: _BESIDE[part] for part in parts[not kind.has("projections") :]})
    for operation in costing.layer(kind):
        if operation.name in _ATTENTION:
            part = parts[0]
        elif operation.name in _ROUTER:
            part = "moe_router"
        else:
            part = parts[-1]
        counts[part if part in parts else parts[-1]] += _kernels(model, operation)
    if shard.tp > 1 and kind.halves:
        counts.update(dict.fromkeys((parts[0], parts[-1]) if kind.halves > 1 else parts[-1:], _TENSOR_PARALLEL))
    if shard.cp > 1 and kind.mixer == "attention" and kind.has("core"):
        counts["attn"] += _RING_STEP * shard.cp
    if kind.experts and shard.ep > 1:
        counts["moe"] += _EXCHANGES
    if kind.experts and model.pads_experts:
        counts["moe_preprocess"] += _PADDED
    if kind.experts and not costing.options.fuses("permutation"):
        counts["moe"] += _UNFUSED_PERMUTATION
    return counts


def _kernels(model: Transformer, operation: Operation) -> int:
    """Return the number of kernels and casts of an operation's forward; norms cast their outputs themselves."""
    work = operation.forward
    count = 0
    for product in work.products:
        is_narrow = (product.precision or model.precision) in NARROW and operation.unit == "linear"
        casts = is_narrow and product.cast is not None and not product.cast.normed
        count += (product.copies if product.grouped and not model.fused_experts else 1) * (1 + casts)
    has_others = work.beside_bytes or (work.size_bytes and not work.products and work.core is None)
    return count + (work.core is not None) + (work.kernels if has_others else 0)
