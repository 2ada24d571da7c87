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
from pptrace_models.held import held_by, state_of
from pptrace_models.listing import PASSES, Listing
from pptrace_models.options import RooflineOptions, gradient_bytes, stage_host_ns
from pptrace_models.segments import Costing, stage_segments
from pptrace_models.shapes import Shaped
from pptrace_models.shard import Shard, shard
from pptrace_models.stages import Stage, in_front, items_of, stages_of, summed
from pptrace_models.tables import read_table
from pptrace_models.tower import tower_of
from pptrace_models.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import CostRequest, Kind, Segment
    from pptrace_models.groups import Groups
    from pptrace_models.tower import Tower
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
    _check_optimizer(model, options)
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
    tower = tower_of(model, request, options)
    held = _kept(model, part, stages, tower)
    columns = {
        **_times(model, part, device, options, groups, stages, tower),
        "activation_bytes": [kept.activation for kept in held],
        "weight_activation_bytes": [kept.weight_part for kept in held],
        **state_of(model, part, device, options, groups, stages, request, tower),
    }
    kept = columns["activation_bytes"]
    passed = _passed(stages, boundary, tower)
    before = [0, *passed[:-1]]
    columns["checkpoint_bytes"] = [min(own, size) for own, size in zip(before, kept, strict=True)]
    if device.host_bandwidth:
        copies = [-(-size * _NS // device.host_bandwidth) for size in kept]
        columns |= {"offload_ns": copies, "reload_ns": copies}
    _check_range([*(value for column in columns.values() for value in column), boundary])
    arrays: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
    sequences = request.global_batch or request.microbatches * request.micro * request.dp
    workload = Workload(
        **arrays,
        boundary_bytes=_boundaries(request, passed),
        reserved_bytes=options.reserved + max(kept.transient for kept in held),
        reserved_permille=round(1000 * (options.fragmentation or 0)),
        capacity_bytes=device.memory,
        tokens=sequences * request.sequence,
        model_flops=step_flops(model, sequences, request.sequence) + (tower.flops(sequences) if tower else 0),
        peak_flops=peak * request.tp * request.cp * request.dp * request.ranks,
        notes=_notes(model, device, options, request),
        kernels=_listing(model, part, device, options, stages, tower, columns),
    )
    if not options.segments:
        return workload
    costing = Costing(
        model=model, shard=part, device=device, groups=groups, grad=gradient_bytes(options),
        delay_wgrad=options.delay_wgrad, host_ns=options.host,
    )  # fmt: skip
    return workload.segmented(_segments(costing, stages, options), overlapped=options.alone == "overlapped")


def _check_optimizer(model: Transformer, options: RooflineOptions) -> None:
    for key in ("main_params", "exp_avg", "exp_avg_sq"):
        if getattr(options, key) is not None and not options.zero:
            message = "Megatron-LM's precision-aware optimizer needs the distributed one: write zero: 1 beside it"
            raise ConfigError(message, key=f"costs.{key}")
    if options.main_params is not None and model.precision == "fp32":
        raise ConfigError("fp32 weights have no main copy: remove the key", key="costs.main_params")
    if options.main_params == "remainder" and model.precision == "fp16":
        raise ConfigError("only bf16 weights share their bits with fp32: write fp32", key="costs.main_params")


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
    tower: Tower | None,
    columns: Mapping[str, Sequence[int]],
) -> Listing:
    """Return what lists the kernels of the stages' actions when somebody asks."""
    return Listing(
        model=model, shard=part, device=device, gradient_bytes=gradient_bytes(options), stages=tuple(stages),
        tower=tower,
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
    tower: Tower | None,
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
    if tower:
        items = in_front(items, stages, *tower.costs(device, groups, options, grad))
    costs = [
        summed(timing.Cost(), own).at_least(stage_host_ns(options, stage), apart=options.segments)
        for own, stage in zip(items, stages, strict=True)
    ]
    added = [memory.accumulation_ns(model, device, options, held_by(model, part, s, tower)) for s in stages]
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


def _kept(model: Transformer, part: Shard, stages: Sequence[Stage], tower: Tower | None) -> list[activations.Kept]:
    """Return what each stage keeps of a microbatch."""

    def layer(kind: Layer) -> activations.Kept:
        return activations.layer_kept(model, part, experts=kind.experts, again=kind.again)

    items = items_of(
        model, stages, layer=layer, embedding=activations.embedding_kept(model, part),
        prediction=activations.prediction_kept(model, part), head=activations.head_kept(model, part),
    )  # fmt: skip
    if model.recompute_method == "uniform":
        for stage, own in zip(stages, items, strict=True):
            layers = slice(int(stage.embedding), int(stage.embedding) + len(stage.layers))
            own[layers] = activations.grouped(own[layers], model.recompute_num_layers or 1)
    if tower:
        items = in_front(items, stages, *tower.kept())
    return [summed(activations.Kept(), own) for own in items]


def _passed(stages: Sequence[Stage], boundary: int, tower: Tower | None) -> list[int]:
    """Return the bytes of a microbatch that each stage passes on."""
    if tower is None or not tower.encoder.stages:
        return [boundary for _ in stages]
    first = tower.encoder.stages
    return [
        tower.boundary_bytes(last=stages[at].projector) if at < first else boundary for at in range(len(stages))
    ]


def _boundaries(request: CostRequest, passed: Sequence[int]) -> NDArray[np.int64]:
    """Return the bytes of a microbatch over each edge."""
    edges = request.edges or tuple((stage, stage + 1) for stage in range(request.stages - 1))
    return np.array([passed[low] for low, _ in edges], dtype=np.int64)


def _check_range(values: Sequence[int]) -> None:
    if max(values) >= _LARGEST:
        raise ConfigError("a stage's time or memory passes 2^62 ns or bytes; take smaller sizes", key="model")


def _notes(
    model: Transformer, device: Accelerator, options: RooflineOptions, request: CostRequest
) -> tuple[str, ...]:
    skipped = model.causal and model.flash_attention
    memory_kept = f"{format_size(options.reserved)} reserved"
    if options.fragmentation:
        memory_kept += f" and {options.fragmentation:.1%} of what is allocated that the allocator holds besides"
    notes = [
        f"MFU counts forward and twice that, nothing computed again, against the dense {model.precision} peak"
        + (", with causal attention halved." if model.causal else "."),
        f"Times count {'half of the' if skipped else 'the whole'} attention core"
        + (", whose masked half flash attention skips." if skipped else "."),
        "Collectives of the rank's own group are exposed, in the forward and in the input-gradient backward.",
        f"Memory holds {options.gradients} gradients, {_adam(options)} (ZeRO {options.zero}), {memory_kept}.",
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


def _adam(options: RooflineOptions) -> str:
    """Return the optimizer with the precisions of its main weights and moments, one where they are the same."""
    kept = [options.main_params or "fp32", options.exp_avg or "fp32", options.exp_avg_sq or "fp32"]
    return f"Adam in {kept[0] if len(set(kept)) == 1 else ', '.join(kept)}"


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
