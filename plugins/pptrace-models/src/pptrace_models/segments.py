"""Segments of actions: computation and collectives apart.

A layer is two halves, and a backward takes them in reverse: the part for the input, its collective, and beside
that the part for the weights. With experts, tokens are dispatched before the second half and combined behind it;
the router counts to the first. Norms and residual sums are half in each. With context parallelism, projecting
queries, keys and values stands apart from the attention that waits for the gathered ones. What takes no time is
left out. Durations sum to what :mod:`pptrace_models.layer_times` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pptrace.plugin import Kind, Segment, Stream
from pptrace_models import layer_times
from pptrace_models.layer_times import Cost, again_ns
from pptrace_models.options import gradient_bytes, stage_host_ns
from pptrace_models.stages import in_front, items_of
from pptrace_models.transformer import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_models.encoder_costs import Tower
    from pptrace_models.layer import Operation
    from pptrace_models.layer_times import Costing
    from pptrace_models.stages import Stage

__all__ = ["Part", "Unit", "is_attention", "stage_segments", "tensor_parallel"]

_SECOND_HALF = {"mlp", "mlp_act", "moe", "moe_act", "shared_experts"}
_ATTENTION = {"attention projections", "attention core", "rotary embedding", "compression", "expansion", "router"}


def stage_segments(costing: Costing, tower: Tower | None, stage: Stage) -> dict[Kind, tuple[Segment, ...]]:
    """Return the segments of a stage's actions by kind.

    What the host takes to issue a forward beyond computation comes first, as ``host``.

    Args:
        costing: what times depend on.
        tower: the encoder in front, where there is one.
        stage: what lies on it.
    """
    options = costing.options
    (order,) = units = items_of(
        costing.model, [stage], layer=lambda kind: _layer(costing, kind), embedding=_embedding(costing),
        prediction=_prediction(costing), head=_head(costing),
    )  # fmt: skip
    if tower:
        (order,) = in_front(units, [stage], _encoder(costing, tower), _projector(costing, tower))
    forward = [part for one in order for part in one.forward]
    backward = [part for one in reversed(order) for part in one.backward]
    computed = _computed(forward, backward)
    waits = computed.host_waits(stage_host_ns(options, stage), frozen=costing.model.frozen)
    forward.insert(0, Part("host", waits.f))
    backward[:0] = (Part("host", waits.i), Part("host-weight", waits.w, for_weights=True))
    found = {
        Kind.F: _chained(forward),
        Kind.B: _chained(backward, delay_wgrad=options.delay_wgrad),
        Kind.I: _chained([part for part in backward if not part.for_weights]),
        Kind.W: _chained([part._replace(for_weights=False) for part in backward if part.for_weights]),
    }
    if costing.model.recompute != "full":
        again = [part for one in order if one.backward for part in one.forward]
        found[Kind.RECOMPUTE] = _chained([forward[0], *again])
    return found


def is_attention(operation: str) -> bool:
    """Whether an operation of a layer belongs to its first half."""
    return operation in _ATTENTION


def _chained(parts: Sequence[Part], *, delay_wgrad: bool = True) -> tuple[Segment, ...]:
    """Return parts one behind the other, but those for weights beside what follows the input part before them.

    Without ``delay_wgrad``, exchanges and the action's result wait for the weight gradients before them.
    """
    found: list[Segment] = []
    behind: list[int] = []
    weights: list[int] = []
    computed = 0
    for part in parts:
        if not part.ns:
            continue
        needs = (computed,) if part.for_weights and found else tuple(behind)
        if part.for_weights and not delay_wgrad:
            weights.append(len(found))
        elif part.stream is Stream.EXPERT_PARALLEL:
            needs, weights = (*needs, *weights), []
        if not part.for_weights:
            behind = [len(found)]
            computed = len(found) if part.stream is Stream.COMPUTE else computed
        found.append(Segment(name=part.name, duration_ns=part.ns, stream=part.stream, needs=needs or None))
    for place in (*behind, *weights):
        found[place] = replace(found[place], result=True)
    if not any(one.is_computation for one in found):
        return (*found, Segment(name="nothing"))
    return tuple(found)


def _layer(costing: Costing, kind: Layer) -> Unit:
    model, options, operations = costing.model, costing.options, costing.layer(kind)
    each = layer_times.layer_collectives(costing, experts=kind.experts)
    norms = costing.cost(one for one in operations if one.name == "norms and residuals")
    own = costing.cost(one for one in operations if one.name in _ATTENTION) + norms.share(1, 2)
    whole = costing.cost(operations)
    waits = whole.host_waits(options.host if kind.experts else 0, frozen=model.frozen)
    if whole.f and whole.i:
        own += Cost(
            f=waits.f * own.f // whole.f, i=waits.i * own.i // whole.i, w=waits.w * own.w // max(whole.w, 1)
        )
    inner = whole + waits - own
    name = "experts" if kind.experts else "mlp"
    split = costing.shard.is_split
    gather, reduce = tensor_parallel(each.gather_ns, each.reduce_ns, split=split)
    second_gather, second_reduce = tensor_parallel(each.second_gather_ns, each.second_reduce_ns, split=split)
    keys = Part("key-value-gather", each.keys_ns, Stream.CONTEXT_PARALLEL)
    key_gradients = Part("key-value-scatter", each.key_gradients_ns, Stream.CONTEXT_PARALLEL)
    dispatch, combine = (Part(way, each.exchange_ns, Stream.EXPERT_PARALLEL) for way in ("dispatch", "combine"))
    before = _projections(costing, operations) + norms.share(1, 2) if each.keys_ns else Cost()
    rest = own - before
    second = (dispatch, second_gather, Part(name, inner.f), second_reduce, combine)
    forward = (gather, Part("projections", before.f), keys, Part("attention", rest.f), reduce, *second)
    once_more = _again(costing, kind, operations, forward, second)
    weight = Part(f"{name}-weight", inner.w, for_weights=True)
    backward = (
        combine, second_gather, Part(f"{name}-input", inner.i), second_reduce,
        *((dispatch, weight) if options.delay_wgrad else (weight, dispatch)),
        gather, keys, Part("attention-input", rest.i), key_gradients, Part("projections-input", before.i),
        reduce, Part("attention-weight", own.w, for_weights=True),
    )  # fmt: skip
    early = model.recompute == "full" or bool(model.again & _SECOND_HALF)
    at = 0 if early else max(_place(backward, f"{name}-weight"), _place(backward, "dispatch"))
    return Unit(forward=forward, backward=(*backward[:at], *once_more, *backward[at:]))


def _computed(forward: Iterable[Part], backward: Iterable[Part]) -> Cost:
    """Return what the computations among parts take."""
    f = sum(part.ns for part in forward if part.stream is Stream.COMPUTE)
    own = [part for part in backward if part.stream is Stream.COMPUTE]
    w = sum(part.ns for part in own if part.for_weights)
    return Cost(f=f, i=sum(part.ns for part in own) - w, w=w)


def _again(
    costing: Costing,
    kind: Layer,
    operations: Sequence[Operation],
    forward: Sequence[Part],
    second: Sequence[Part],
) -> tuple[Part, ...]:
    """Return what the backward computes again: the whole forward, or modules with the collectives inside them."""
    model = costing.model
    if model.recompute == "full":
        if not kind.again:
            return ()
        return tuple(
            part._replace(name=f"recompute-{part.name}") if part.stream is Stream.COMPUTE else part
            for part in forward
        )
    around: tuple[Part, ...] = ()
    if ("moe" if kind.experts else "mlp") in model.again:
        around = tuple(part for part in second if part.stream is not Stream.COMPUTE)
    if "core_attn" in model.again:
        around = (*(part for part in forward if part.name == "key-value-gather"), *around)
    name = "core" if model.again == {"core_attn"} else "modules"
    return (*around, Part(f"recompute-{name}", again_ns(costing, operations, experts=kind.experts)))


def _encoder(costing: Costing, tower: Tower) -> Unit:
    """Return the segments of an encoder layer. A frozen encoder has no backward."""
    own = _layer(tower.costing(costing), Layer())

    def named(parts: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(
            part._replace(name=f"encoder-{part.name}") if part.stream is Stream.COMPUTE else part for part in parts
        )

    return Unit(
        forward=named(own.forward), backward=named(own.backward) if tower.has_backward(projector=False) else ()
    )


def _projector(costing: Costing, tower: Tower) -> Unit:
    """Return the projector with its sums; without a backward where nothing in it or before it is trained."""
    own = tower.costing(costing).cost([tower.projection(gradient_bytes(costing.options))])
    group = tower.projector_collectives(costing.groups)
    forward, backward = (
        Part("all-reduce", took, Stream.TENSOR_PARALLEL) for took in (group.forward_ns, group.backward_ns)
    )
    weight = Part("projector-weight", own.w, for_weights=True)
    return Unit(
        forward=(Part("projector", own.f), forward),
        backward=(Part("projector-input", own.i), backward, weight) if tower.encoder.passes_back else (),
    )


def _prediction(costing: Costing) -> Unit:
    own = costing.cost(costing.prediction())
    return Unit(
        forward=(Part("prediction", own.f),),
        backward=(Part("prediction-input", own.i), Part("prediction-weight", own.w, for_weights=True)),
    )


def _place(parts: Sequence[Part], name: str) -> int:
    """Return the place behind a part."""
    return 1 + next(place for place, part in enumerate(parts) if part.name == name)


def _projections(costing: Costing, operations: Iterable[Operation]) -> Cost:
    """Return what projecting queries, keys and values takes of a layer's projections, by their widths."""
    shard = costing.shard
    whole = costing.cost(one for one in operations if one.name == "attention projections")
    inward = shard.query + shard.kv + shard.value
    latent = costing.cost(one for one in operations if one.name in {"compression", "expansion"})
    return latent if costing.model.kv_rank else whole.share(inward, inward + shard.output)


def _embedding(costing: Costing) -> Unit:
    own = costing.cost(costing.embedding())
    group = layer_times.embedding_ns(costing)
    gather, reduce = tensor_parallel(group.backward_ns, group.forward_ns, split=costing.shard.is_split)
    return Unit(
        forward=(Part("embedding", own.f), reduce),
        backward=(gather, Part("embedding-gradient", own.i)),
    )


def _head(costing: Costing) -> Unit:
    own = costing.cost(costing.head())
    group, loss = layer_times.head_ns(costing), layer_times.loss_ns(costing)
    gather, reduce = tensor_parallel(group.forward_ns - loss, group.backward_ns, split=costing.shard.is_split)
    return Unit(
        forward=(gather, Part("head", own.f), Part("loss", loss, Stream.TENSOR_PARALLEL)),
        backward=(Part("head-input", own.i), reduce, Part("head-weight", own.w, for_weights=True)),
    )


class Part(NamedTuple):
    """A part of an action, before it has its place there."""

    name: str
    ns: int
    stream: Stream = Stream.COMPUTE
    for_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The parts of the forward and of the backward of a layer, the embedding or the LM head."""

    forward: tuple[Part, ...] = ()
    """In the forward."""
    backward: tuple[Part, ...] = ()
    """In the whole backward."""


def tensor_parallel(gather_ns: int, reduce_ns: int, *, split: bool) -> tuple[Part, Part]:
    """Return gathering and summing over the tensor-parallel group, in ns, with the names that they then have."""
    return (
        Part("all-gather", gather_ns, Stream.TENSOR_PARALLEL),
        Part("reduce-scatter" if split else "all-reduce", reduce_ns, Stream.TENSOR_PARALLEL),
    )
