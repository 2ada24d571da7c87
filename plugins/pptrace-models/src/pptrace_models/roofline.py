"""The ``roofline`` cost model: a workload from a transformer, a device and the parallel sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import ConfigError, Workload, format_size
from pptrace_models import activations, memory, timing
from pptrace_models.accelerator import Accelerator
from pptrace_models.checked import checked
from pptrace_models.extremes import expected_maximum
from pptrace_models.flops import step_flops
from pptrace_models.groups import groups_of
from pptrace_models.listing import PASSES, Listing
from pptrace_models.options import RooflineOptions, gradient_bytes, stage_host_ns
from pptrace_models.segments import Costing, stage_segments
from pptrace_models.shapes import Shaped
from pptrace_models.shard import Shard, shard
from pptrace_models.stages import Stage, items_of, stages_of, summed
from pptrace_models.tables import read_table
from pptrace_models.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugin import CostRequest, Kind, Segment
    from pptrace_models.groups import Groups
    from pptrace_models.transformer import Layer

__all__ = ["build"]

_LARGEST = 2**62
_NS = 10**9


def build(request: CostRequest) -> Workload:
    """Build the costs of one step.

    Raises:
        ConfigError: a key or value of the model, the device or the options that cannot be used.
        ConstraintError: parallel sizes that the model cannot take, with the nearest that it can.
    """
    model = checked(Transformer, request.model, "model")
    options = checked(RooflineOptions, request.options, "costs.options")
    device = _device(request, options)
    if options.alone == "overlapped" and not options.segments:
        raise ConfigError("overlapped needs segments: write segments: true beside it", key="costs.alone")
    if not (options.delay_wgrad or options.segments):
        raise ConfigError("false needs segments: write segments: true beside it", key="costs.delay_wgrad")
    if options.accumulation == "separate" and options.segments:
        raise ConfigError("separate has no segment of its own: take segments away", key="costs.accumulation")
    if options.host_action and not options.host:
        raise ConfigError("needs the time of a layer: give host, too", key="costs.host_action")
    if options.segments and options.overlap_tp:
        message = "segments say themselves what runs beside what: take one of them away"
        raise ConfigError(message, key="costs.overlap_tp")
    part = shard(model, request)
    if options.spread:
        devices = request.tp * request.cp * request.dp * request.ranks
        device = device.slowed(1 + options.spread * expected_maximum(devices))
    groups = groups_of(request, part, device, options)
    stages = stages_of(model, request.stages)
    peak = device.peak(model.precision)
    boundary = part.split_tokens * model.hidden * model.element_bytes
    if options.scatter_gather and part.split_tokens == part.tokens:
        boundary = -(-boundary // part.tp)
    columns = {
        **_times(model, part, device, options, groups, stages),
        **_kept(model, part, stages),
        **_state(model, part, device, options, groups, stages),
    }
    kept = columns["activation_bytes"]
    columns["checkpoint_bytes"] = [min(boundary, size) if stage else 0 for stage, size in enumerate(kept)]
    if device.host_bandwidth:
        copies = [-(-size * _NS // device.host_bandwidth) for size in kept]
        columns |= {"offload_ns": copies, "reload_ns": copies}
    _check_range([*(value for column in columns.values() for value in column), boundary])
    arrays: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
    sequences = request.global_batch or request.microbatches * request.micro * request.dp
    workload = Workload(
        **arrays,
        boundary_bytes=np.full(_edges(request), boundary, dtype=np.int64),
        reserved_bytes=options.reserved + _transient(model, part, stages),
        capacity_bytes=device.memory,
        tokens=sequences * request.sequence,
        model_flops=step_flops(model, sequences, request.sequence),
        peak_flops=peak * request.tp * request.cp * request.dp * request.ranks,
        notes=_notes(model, device, options, request),
        kernels=_listing(model, part, device, options, stages, columns),
    )
    if not options.segments:
        return workload
    costing = Costing(
        model=model, shard=part, device=device, groups=groups, grad=gradient_bytes(options),
        delay_wgrad=options.delay_wgrad, host_ns=options.host,
    )  # fmt: skip
    return workload.segmented(_segments(costing, stages, options), overlapped=options.alone == "overlapped")


def _device(request: CostRequest, options: RooflineOptions) -> Accelerator:
    """Return the device, with kernels by shape and measured products where the options say so."""
    if options.kernels != "shapes":
        if options.kernel_table:
            raise ConfigError("measured products need kernels: shapes", key="costs.kernel_table")
        return checked(Accelerator, request.device, "device")
    device = checked(Shaped, request.device, "device")
    if not options.kernel_table:
        return device
    return device.model_copy(update={"table": read_table(options.kernel_table, device)})


def _listing(
    model: Transformer,
    part: Shard,
    device: Accelerator,
    options: RooflineOptions,
    stages: Sequence[Stage],
    columns: Mapping[str, Sequence[int]],
) -> Listing:
    """Return what lists the kernels of the stages' actions when somebody asks."""
    return Listing(
        model=model, shard=part, device=device, gradient_bytes=gradient_bytes(options), stages=tuple(stages),
        taken_ns=tuple(tuple(columns[f"{kind.name.lower()}_ns"]) for kind in PASSES),
        collective_ns=tuple(tuple(columns[f"{kind.name.lower()}_collective_ns"]) for kind in PASSES),
    )  # fmt: skip


def _segments(
    costing: Costing, stages: Sequence[Stage], options: RooflineOptions
) -> dict[Kind, list[tuple[Segment, ...]]]:
    by_stage = [stage_segments(costing, stage, stage_host_ns(options, stage)) for stage in stages]
    return {kind: [segments[kind] for segments in by_stage] for kind in by_stage[0]}


def _times(
    model: Transformer,
    part: Shard,
    device: Accelerator,
    options: RooflineOptions,
    groups: Groups,
    stages: Sequence[Stage],
) -> dict[str, list[int]]:
    grad = gradient_bytes(options)

    def layer(kind: Layer) -> timing.Cost:
        return timing.layer_cost(model, part, device, groups, kind, options)

    items = items_of(
        model, stages, layer=layer,
        embedding=timing.embedding_cost(model, part, device, groups, grad),
        prediction=timing.prediction_cost(model, part, device, grad),
        head=timing.head_cost(model, part, device, groups, grad),
    )  # fmt: skip
    costs = [
        summed(timing.Cost(), own).at_least(stage_host_ns(options, stage), apart=options.segments)
        for own, stage in zip(items, stages, strict=True)
    ]
    added = [memory.accumulation_ns(model, device, options, _held(model, part, s)) for s in stages]
    return {
        "f_ns": [cost.f for cost in costs],
        "b_ns": [cost.i + cost.w + add for cost, add in zip(costs, added, strict=True)],
        "i_ns": [cost.i for cost in costs],
        "w_ns": [cost.w + add for cost, add in zip(costs, added, strict=True)],
        "f_collective_ns": [cost.f_collective for cost in costs],
        "b_collective_ns": [cost.i_collective for cost in costs],
        "i_collective_ns": [cost.i_collective for cost in costs],
        "w_collective_ns": [0 for _ in costs],
        "recompute_ns": [0 if model.recompute == "full" else cost.f for cost in costs],
    }


def _kept(model: Transformer, part: Shard, stages: Sequence[Stage]) -> dict[str, list[int]]:
    def layer(kind: Layer) -> activations.Kept:
        return activations.layer_kept(model, part, experts=kind.experts)

    items = items_of(
        model, stages, layer=layer, embedding=activations.embedding_kept(model, part),
        prediction=activations.prediction_kept(model, part), head=activations.head_kept(model, part),
    )  # fmt: skip
    sums = [summed(activations.Kept(), own) for own in items]
    return {
        "activation_bytes": [kept.activation for kept in sums],
        "weight_activation_bytes": [kept.weight_part for kept in sums],
    }


def _state(
    model: Transformer,
    part: Shard,
    device: Accelerator,
    options: RooflineOptions,
    groups: Groups,
    stages: Sequence[Stage],
) -> dict[str, list[int]]:
    state_of = {s: memory.state(model, part, device, options, groups, _held(model, part, s)) for s in {*stages}}
    states = [state_of[stage] for stage in stages]
    return {
        "weights_bytes": [state.weights for state in states],
        "gradients_bytes": [state.gradients for state in states],
        "optimizer_bytes": [state.optimizer for state in states],
        "reduce_ns": [state.reduce_ns for state in states],
        "optimizer_ns": [state.optimizer_ns for state in states],
    }


def _held(model: Transformer, part: Shard, stage: Stage) -> memory.Held:
    """Return the parameters of a stage on one device; modules of multi-token prediction embed tokens, too."""

    def layer(kind: Layer) -> memory.Held:
        return memory.layer_held(model, part, experts=kind.experts)

    embedding = memory.embedding_held(model, part)
    (items,) = items_of(
        model, [stage], layer=layer, embedding=embedding, prediction=memory.prediction_held(model, part),
        head=memory.head_held(model, part, with_embedding=stage.embedding), heads=1,
    )  # fmt: skip
    copied = embedding.times(int(stage.mtp > 0 and not stage.embedding))
    return summed(memory.Held(), items) + copied


def _transient(model: Transformer, part: Shard, stages: Sequence[Stage]) -> int:
    kinds = {kind.experts for stage in stages for kind in stage.layers}
    return max((activations.layer_kept(model, part, experts=experts).transient for experts in kinds), default=0)


def _edges(request: CostRequest) -> int:
    return len(request.edges) or max(request.stages - 1, 0)


def _check_range(values: Sequence[int]) -> None:
    if max(values) >= _LARGEST:
        raise ConfigError("a stage's time or memory passes 2^62 ns or bytes; take smaller sizes", key="model")


def _notes(
    model: Transformer, device: Accelerator, options: RooflineOptions, request: CostRequest
) -> tuple[str, ...]:
    skipped = model.causal and model.flash_attention
    memory_kept = f"{format_size(options.reserved)} reserved"
    notes = [
        f"MFU counts forward and twice that, nothing computed again, against the dense {model.precision} peak"
        + (", with causal attention halved." if model.causal else "."),
        f"Times count {'half of the' if skipped else 'the whole'} attention core"
        + (", whose masked half flash attention skips." if skipped else "."),
        "Collectives of the rank's own group are exposed, in the forward and in the input-gradient backward.",
        f"Memory holds {options.gradients} gradients, Adam in fp32 (ZeRO {options.zero}), {memory_kept}.",
    ]
    if options.kernels == "shapes":
        notes.append(
            "Each kernel takes what its shape says: tiles and waves of products, blocks of attention, bytes."
        )
    if options.spread:
        notes.append("Computation takes as long as on the slowest of the job's devices, in expectation.")
    if model.again == {"core_attn"} and model.flash_attention:
        notes.append("Selective recomputation frees nothing: flash attention keeps no score matrix.")
    return (*notes, *_network_notes(device, request))


def _network_notes(device: Accelerator, request: CostRequest) -> list[str]:
    if request.collectives is not None:
        used = "Collectives and the reduction of gradients are timed on the cluster's links"
        return [f"{used}; the device's scale-up figures and data_parallel are not used."]
    notes = []
    if request.dp > 1 and not request.data_parallel:
        notes.append("The data-parallel network is not described: reducing gradients over it takes no time.")
    wide = max(request.tp * request.cp, (request.etp or request.tp) * request.ep)
    if wide > device.scale_up_size:
        place = "the data-parallel network" if request.data_parallel else "links taken to be as fast as the node's"
        notes.append(f"Groups that span {wide} devices pass the node's {device.scale_up_size} and use {place}.")
    return notes
