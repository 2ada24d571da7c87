"""Segments of actions, with separate computation and collectives.

A layer has two halves, and a backward runs them in reverse. Each half has the input gradient, its collective and,
overlapped with the collective, the weight gradient. With experts, tokens are dispatched before the second half and
combined after it; the router belongs to the first half. Each half has half of the norms and residual sums. With
context parallelism, the projections of queries, keys and values are separate from the attention, which waits for
the gathered keys and values. Parts without duration are left out. Durations sum to the times of
:mod:`pptrace_models.layer_times`.

In a model with experts, only exchanges of tokens overlap. A half with its other collectives is one computation, as
in Megatron-LM's combined 1F1B (``TransformerLayerSchedulePlan``).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pptrace.memo import memoized
from pptrace.plugin import Kind, Segment, Stream
from pptrace_models import layer_times
from pptrace_models.layer import FIRST_HALF
from pptrace_models.layer_times import Cost, again_ns, again_of
from pptrace_models.options import gradient_bytes
from pptrace_models.stages import encoder_items, items_of
from pptrace_models.transformer import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_models.encoder_costs import Tower
    from pptrace_models.layer import Operation
    from pptrace_models.layer_times import Costing
    from pptrace_models.memory import ActivationBytes
    from pptrace_models.stages import Stage


_SECOND_HALF = {"mlp", "mlp_act", "moe", "moe_act", "shared_experts"}
_FIRST_HALF = FIRST_HALF | {"router"}


def stage_segments(
    costing: Costing, towers: Sequence[Tower], stage: Stage, activations: Sequence[ActivationBytes]
) -> dict[Kind, tuple[Segment, ...]]:
    """Return the segments of a stage's actions by kind.

    The first segment, ``host``, is the time to issue kernels beyond the time of their computation.

    Args:
        costing: model, device and options that times depend on.
        towers: the encoders before the decoder.
        stage: layers and other items of the stage.
        activations: the bytes that each of these items keeps of a microbatch. The item's first segment of a
            forward allocates them, and its last segment of a backward frees them.
    """
    model = costing.model
    order = items_of(
        model, stage, layer=partial(costing.once, _layer), embedding=costing.once(_embedding),
        prediction=costing.once(_prediction), head=costing.once(_head),
    )  # fmt: skip
    if stage.encoders:
        pairs = [(_encoder(costing, tower), _projector(costing, tower)) for tower in towers]
        order = [*encoder_items(stage, pairs), *order]
    actions = _Actions(
        units=_with_memory(order, activations),
        host_ns=costing.stage_host_ns(stage.layers),
        pair_host_ns=(2 if model.frozen else 3) * costing.stage_host_ns(stage.layers, paired=True),
        frozen=model.frozen, delay_wgrad=costing.options.delay_wgrad, recomputes=model.recompute != "full",
    )  # fmt: skip
    return memoized(partial(_segments_of, actions), ("segments", actions), rows=_UNIT_ROWS * len(order))


class _Actions(Struct, frozen=True):
    """The properties of a stage that its segments depend on."""

    units: tuple[Unit, ...]
    """Its layers and other items."""
    host_ns: int
    """Time of the host to issue a forward."""
    pair_host_ns: int
    """Time of the host to issue an overlapped pair."""
    frozen: bool
    """Whether the backward has no weight gradients."""
    delay_wgrad: bool
    """Whether exchanges do not wait for weight gradients."""
    recomputes: bool
    """Whether an action can recompute the forward."""


_UNIT_ROWS = 20
"""Rows of a memo that take as much memory as the segments of a unit."""


def _segments_of(actions: _Actions) -> dict[Kind, tuple[Segment, ...]]:
    order, frozen = actions.units, actions.frozen
    forward = [part for unit in order for part in unit.forward]
    backward = [part for unit in reversed(order) for part in unit.backward]
    waits = _cost_of(forward, backward).host_waits(actions.host_ns, frozen=frozen)
    forward = [ActionPart("host", waits.f), *forward]
    backward = [ActionPart("host", waits.i), ActionPart("host-weight", waits.w, for_weights=True), *backward]
    in_pairs = max(0, actions.pair_host_ns - _shortest_pair_ns(forward, backward))
    forward[1:], backward[2:] = _with_waits(order, in_pairs, frozen=frozen)
    segments = {
        Kind.F: _chain(forward),
        Kind.B: _chain(backward, delay_wgrad=actions.delay_wgrad),
        Kind.I: _chain([part for part in backward if not part.for_weights]),
        Kind.W: _chain([part._replace(for_weights=False) for part in backward if part.for_weights]),
    }
    if actions.recomputes:
        parts = (part for unit in order if unit.backward for part in unit.forward)
        recomputed = [part._replace(activation_bytes=0) for part in parts]
        segments[Kind.RECOMPUTE] = _chain([forward[0], *recomputed])
    return segments


def is_attention(operation: str) -> bool:
    """Whether an operation of a layer belongs to its first half."""
    return operation in _FIRST_HALF


def _chain(parts: Sequence[ActionPart], *, delay_wgrad: bool = True) -> tuple[Segment, ...]:
    """Return parts as a chain of segments; weight gradients overlap with the parts after their input gradient.

    Without ``delay_wgrad``, exchanges and the action's result wait for the weight gradients before them.
    """
    chain: list[tuple[ActionPart, tuple[int, ...]]] = []
    last_indexes: list[int] = []
    weight_indexes: list[int] = []
    last_computation = 0
    for part in parts:
        if not (part.ns or part.activation_bytes):
            continue
        needs = (last_computation,) if part.for_weights and chain else tuple(last_indexes)
        if part.for_weights and not delay_wgrad:
            weight_indexes.append(len(chain))
        elif part.stream is Stream.EXPERT_PARALLEL:
            needs, weight_indexes = (*needs, *weight_indexes), []
        if not part.for_weights:
            last_indexes = [len(chain)]
            last_computation = len(chain) if part.stream is Stream.COMPUTE else last_computation
        chain.append((part, needs))
    results = {*last_indexes, *weight_indexes}
    segments = tuple(_segment(part, needs, index in results) for index, (part, needs) in enumerate(chain))
    if not any(segment.is_computation for segment in segments):
        return (*segments, Segment(name="nothing"))
    return segments


@lru_cache(maxsize=2**16)
def _segment(part: ActionPart, needs: tuple[int, ...], result: bool) -> Segment:  # noqa: FBT001 - a part of the key
    """Return a part as a segment; stages of several lengths have many in common."""
    return Segment(
        name=part.name,
        duration_ns=part.ns,
        collective_ns=part.collective_ns,
        stream=part.stream,
        needs=needs or None,
        paired=part.paired,
        activation_bytes=part.activation_bytes or None,
        result=result,
    )


def _layer(costing: Costing, kind: Layer) -> Unit:
    costing = costing.of(kind)
    model, options, operations = costing.model, costing.options, costing.layer(kind)
    collectives = layer_times.layer_collectives(costing, kind)
    norms = costing.cost(operation for operation in operations if operation.name == "norms and residuals")
    attention = costing.cost(operation for operation in operations if is_attention(operation.name))
    attention += norms.share(int(kind.mixer != "none"), kind.halves)
    layer = costing.layer_work(kind)
    whole = layer.beside(layer_times.layer_ns(costing, kind))
    waits = costing.layer_waits(kind, whole)
    if layer.f and layer.i:
        attention += Cost(
            f=waits.f * attention.f // layer.f,
            i=waits.i * attention.i // layer.i,
            w=waits.w * attention.w // max(layer.w, 1),
        )
    second_half = layer + waits - attention
    name = "experts" if kind.experts else "mlp"
    split = costing.shard.is_split
    first, second = collectives.first, collectives.second
    gather, reduce = tensor_parallel(first.gather_ns, first.reduce_ns, split=split)
    second_gather, second_reduce = tensor_parallel(second.gather_ns, second.reduce_ns, split=split)
    gradient_gather, second_gradient_gather = (
        gather._replace(ns=half.gradient_gather_ns) for half in (first, second)
    )
    keys = ActionPart("key-value-gather", collectives.keys_ns, Stream.CONTEXT_PARALLEL)
    key_gradients = ActionPart("key-value-scatter", collectives.key_gradients_ns, Stream.CONTEXT_PARALLEL)
    dispatch = ActionPart("dispatch", collectives.dispatch_ns, Stream.EXPERT_PARALLEL)
    combine = ActionPart("combine", collectives.combine_ns, Stream.EXPERT_PARALLEL)
    maps_and_dispatch = dispatch._replace(ns=dispatch.ns + collectives.maps_ns)
    projections = _projections(costing, operations) + norms.share(1, 2) if collectives.keys_ns else Cost()
    core = attention - projections
    first_parts = (gather, ActionPart("projections", projections.f), keys, ActionPart("attention", core.f), reduce)
    second_parts = (maps_and_dispatch, second_gather, ActionPart(name, second_half.f), second_reduce, combine)
    again_first, again_second = _recomputed_parts(costing, kind, operations, first_parts, second_parts)
    weight = ActionPart(f"{name}-weight", second_half.w, for_weights=True)
    # The backward of each exchange moves as many bytes as the other one.
    back, returned = combine._replace(ns=dispatch.ns), dispatch._replace(ns=combine.ns)
    second_backward = (
        back, second_gradient_gather, ActionPart(f"{name}-input", second_half.i), second_reduce,
        *((returned, weight) if options.delay_wgrad else (weight, returned)),
    )  # fmt: skip
    first_backward = (
        gradient_gather, keys, ActionPart("attention-input", core.i), key_gradients,
        ActionPart("projections-input", projections.i), reduce,
        ActionPart("attention-weight", attention.w, for_weights=True),
    )  # fmt: skip
    parts_of = _with_exchanges_alone if model.num_experts else tuple
    backward = (again_second, second_backward, again_first, first_backward)
    return Unit(
        forward=(*parts_of(first_parts), *parts_of(second_parts)),
        backward=tuple(part for half in backward for part in parts_of(half)),
    )


def _with_exchanges_alone(half: Iterable[ActionPart]) -> tuple[ActionPart, ...]:
    """Return the parts of a half in which one computation includes all parts between exchanges of tokens.

    It has the name of its longest computation. Parts for weight gradients stay separate.
    """
    parts: list[ActionPart] = []
    for is_separate, run in groupby(half, lambda part: part.for_weights or part.stream is Stream.EXPERT_PARALLEL):
        members = [*run]
        if is_separate:
            parts += members
        else:
            longest = max(members, key=lambda part: (part.stream is Stream.COMPUTE, part.ns))
            collective_ns = sum(part.ns for part in members if part.stream is not Stream.COMPUTE)
            ns = sum(part.ns for part in members)
            parts.append(ActionPart(longest.name, ns, collective_ns=collective_ns))
    return tuple(parts)


def _shortest_pair_ns(forward: Sequence[ActionPart], backward: Sequence[ActionPart]) -> int:
    """Return a lower bound of the duration of an overlapped pair in ns.

    It is the longest time of a stream, or of one of the two actions.
    """
    of_streams = Counter[Stream]()
    for part in (*forward, *backward):
        of_streams[part.stream] += part.ns
    return max(*of_streams.values(), sum(part.ns for part in forward), sum(part.ns for part in backward))


def _with_waits(
    units: Sequence[Unit], in_pairs: int, *, frozen: bool
) -> tuple[list[ActionPart], list[ActionPart]]:
    """Return the parts of forward and backward, in which pairs wait for the host before each unit.

    Args:
        units: the units of a stage, in order.
        in_pairs: the time in which a pair waits for the host, in ns.
        frozen: whether the backward has no weight gradients, so that it waits as long as the forward.
    """
    forward_ns = in_pairs // ((2 if frozen else 3) * max(len(units), 1))
    backward_ns = forward_ns if frozen else 2 * forward_ns
    before_forward = ActionPart("host", forward_ns, paired=True)
    before_backward = (
        ActionPart("host", backward_ns - backward_ns // 2, paired=True),
        ActionPart("host-weight", backward_ns // 2, for_weights=True, paired=True),
    )
    return (
        [part for unit in units for part in (before_forward, *unit.forward)],
        [part for unit in reversed(units) for part in (*before_backward, *unit.backward)],
    )


def _cost_of(forward: Iterable[ActionPart], backward: Sequence[ActionPart]) -> Cost:
    """Return the cost of parts one after the other."""
    w = sum(part.ns for part in backward if part.for_weights)
    return Cost(f=sum(part.ns for part in forward), i=sum(part.ns for part in backward) - w, w=w)


def _recomputed_parts(
    costing: Costing,
    kind: Layer,
    operations: Sequence[Operation],
    first_half: Sequence[ActionPart],
    second_half: Sequence[ActionPart],
) -> tuple[tuple[ActionPart, ...], tuple[ActionPart, ...]]:
    """Return the recomputed parts of a layer's first and second half: modules with their collectives.

    With full recomputation, all of the forward is recomputed before the backward of the second half.
    """
    model = costing.model
    if model.recompute == "full":
        if not kind.is_recomputed:
            return (), ()
        return (), tuple(
            part._replace(name=f"recompute-{part.name}") if part.stream is Stream.COMPUTE else part
            for part in (*first_half, *second_half)
        )
    first_exchanges = [part for part in first_half if part.stream is not Stream.COMPUTE]
    if not (kind.mixer == "attention" and "full_attn" in model.recomputed_modules):
        has_core = "core_attn" in model.recomputed_modules
        first_exchanges = [part for part in first_exchanges if has_core and part.name == "key-value-gather"]
    exchanged: tuple[ActionPart, ...] = ()
    if ("moe" if kind.experts else "mlp") in model.recomputed_modules:
        exchanged = tuple(part for part in second_half if part.stream is not Stream.COMPUTE)
    of_second: list[Operation] = []
    of_first: list[Operation] = []
    for operation in operations:
        is_second = again_of(operation.name, kind) & model.recomputed_modules & _SECOND_HALF
        (of_second if is_second else of_first).append(operation)
    name = "core" if model.recomputed_modules == {"core_attn"} else "modules"
    first, second = (
        ActionPart(f"recompute-{name}", again_ns(costing, half, kind)) for half in (of_first, of_second)
    )
    return (*first_exchanges, first), (*exchanged, second)


def _encoder(costing: Costing, tower: Tower) -> Unit:
    """Return the segments of an encoder layer. A frozen encoder has no backward."""
    unit = _layer(tower.costing(costing), Layer())

    def named(parts: Iterable[ActionPart]) -> tuple[ActionPart, ...]:
        return tuple(
            part._replace(name=f"{tower.layers_title}-{part.name}") if part.stream is Stream.COMPUTE else part
            for part in parts
        )

    return Unit(
        forward=named(unit.forward), backward=named(unit.backward) if tower.has_backward(projector=False) else ()
    )


def _projector(costing: Costing, tower: Tower) -> Unit:
    """Return the projector with its all-reduces, and a backward if projector or encoder is trained."""
    costing = tower.costing(costing)
    cost = costing.cost([tower.projection(gradient_bytes(costing.options))])
    sums, gathers = tower.projector_collectives(costing), tower.gathers(costing)
    forward_sum, backward_sum = (
        ActionPart("all-reduce", duration_ns, Stream.TENSOR_PARALLEL)
        for duration_ns in (sums.forward_ns, sums.backward_ns)
    )
    forward_gather, backward_gather = (
        ActionPart("reshard", duration_ns, Stream.TENSOR_PARALLEL)
        for duration_ns in (gathers.forward_ns, gathers.backward_ns)
    )
    title = tower.projector_title
    weight = ActionPart(f"{title}-weight", cost.w, for_weights=True)
    backward = (backward_gather, ActionPart(f"{title}-input", cost.i), backward_sum, weight)
    return Unit(
        forward=(ActionPart(title, cost.f), forward_sum, forward_gather),
        backward=backward if tower.encoder.passes_back else (),
    )


def _prediction(costing: Costing) -> Unit:
    _, cost, _ = costing.ends_work()
    return Unit(
        forward=(ActionPart("prediction", cost.f),),
        backward=(
            ActionPart("prediction-input", cost.i),
            ActionPart("prediction-weight", cost.w, for_weights=True),
        ),
    )


def _projections(costing: Costing, operations: Iterable[Operation]) -> Cost:
    """Return the cost of projecting queries, keys and values: a share of a layer's projections by width."""
    shard = costing.shard
    projections = costing.cost(operation for operation in operations if operation.name == "attention projections")
    input_width = shard.query + shard.kv + shard.value
    latent = costing.cost(operation for operation in operations if operation.name in {"compression", "expansion"})
    return latent if costing.model.kv_rank else projections.share(input_width, input_width + shard.output)


def _embedding(costing: Costing) -> Unit:
    cost, _, _ = costing.ends_work()
    group = layer_times.embedding_ns(costing)
    gather, reduce = tensor_parallel(group.backward_ns, group.forward_ns, split=costing.shard.is_split)
    return Unit(
        forward=(ActionPart("embedding", cost.f), reduce),
        backward=(gather, ActionPart("embedding-gradient", cost.i)),
    )


def _head(costing: Costing) -> Unit:
    _, _, cost = costing.ends_work()
    group, loss = layer_times.head_ns(costing), layer_times.loss_ns(costing)
    gather, reduce = tensor_parallel(group.forward_ns - loss, group.backward_ns, split=costing.shard.is_split)
    return Unit(
        forward=(gather, ActionPart("head", cost.f), ActionPart("loss", loss, Stream.TENSOR_PARALLEL)),
        backward=(ActionPart("head-input", cost.i), reduce, ActionPart("head-weight", cost.w, for_weights=True)),
    )


class ActionPart(NamedTuple):
    """A part of an action, before it becomes a segment."""

    name: str
    ns: int
    stream: Stream = Stream.COMPUTE
    for_weights: bool = False
    paired: bool = False
    activation_bytes: int = 0
    collective_ns: int = 0


class Unit(Struct, frozen=True):
    """The parts of the forward and of the backward of a layer, the embedding or the LM head."""

    forward: tuple[ActionPart, ...] = ()
    """Parts of the forward."""
    backward: tuple[ActionPart, ...] = ()
    """Parts of the whole backward."""

    def with_memory(self, activations: ActivationBytes) -> Unit:
        """Return the unit with the bytes that its first part allocates and that its last parts free.

        The last part of the weight gradient frees what only this one needs.
        """
        forward, backward = list(self.forward), list(self.backward)
        _change(forward, next((index for index, part in enumerate(forward) if part.ns), 0), activations.activation)
        last_weight = _last(backward, for_weights=True)
        for_weights = activations.weight_part if last_weight >= 0 else 0
        _change(backward, last_weight, -for_weights)
        _change(backward, _last(backward, for_weights=False), for_weights - activations.activation)
        return Unit(forward=tuple(forward), backward=tuple(backward))


def _with_memory(units: Sequence[Unit], activations: Sequence[ActivationBytes]) -> tuple[Unit, ...]:
    """Return the units of a stage with the bytes that they keep; equal ones are one object, and changed once."""
    keys = [*zip(map(id, units), map(id, activations), strict=True)]
    changed = {
        key: unit.with_memory(of_unit)
        for key, (unit, of_unit) in dict(zip(keys, zip(units, activations, strict=True), strict=True)).items()
    }
    return tuple(map(changed.__getitem__, keys))


def _change(parts: list[ActionPart], index: int, size_bytes: int) -> None:
    """Let a part allocate bytes, or free them if they are negative."""
    if size_bytes:
        parts[index] = parts[index]._replace(activation_bytes=size_bytes)


def _last(parts: Sequence[ActionPart], *, for_weights: bool) -> int:
    """Return the index of the last part with a duration for weight gradients, or for the others; -1 without."""
    indexes = (index for index, part in enumerate(parts) if part.ns and part.for_weights == for_weights)
    return max(indexes, default=-1)


def tensor_parallel(gather_ns: int, reduce_ns: int, *, split: bool) -> tuple[ActionPart, ActionPart]:
    """Return the gather and the sum over the tensor-parallel group as parts; times are in ns.

    With ``split`` (sequence parallelism) the sum is a reduce-scatter, else an all-reduce.
    """
    return (
        ActionPart("all-gather", gather_ns, Stream.TENSOR_PARALLEL),
        ActionPart("reduce-scatter" if split else "all-reduce", reduce_ns, Stream.TENSOR_PARALLEL),
    )
