"""The roofline cost model."""

from __future__ import annotations

from collections import Counter
from functools import cached_property, partial, wraps
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.memo import memoized
from pptrace.plugin import ConfigError, CostError, KernelCost, Kind, Workload, format_size
from pptrace_models import memory, muon
from pptrace_models.accelerator import ObservedNetwork, groups_of
from pptrace_models.encoder_costs import Tower, grid_key, shares_stages, towers_of, with_grids
from pptrace_models.expert_loads import loads_of
from pptrace_models.flops import CORE, step_flops
from pptrace_models.kernel_times import Devices, Shaped, devices_of, product_ns
from pptrace_models.layer import Shard, linears, shard
from pptrace_models.layer_times import (
    Cost,
    Costing,
    again_of,
    again_share,
    embedding_ns,
    head_ns,
    layer_cost,
    recomputed_operations,
)
from pptrace_models.options import GRADIENTS, WEIGHTS, RooflineOptions, gradient_bytes
from pptrace_models.segments import is_attention, stage_segments
from pptrace_models.stages import (
    Stage,
    around_attention,
    count_encoder_stages,
    count_units,
    encoder_items,
    items_of,
    stages_of,
    summed,
    units_of,
    with_loads,
)
from pptrace_models.transformer import Transformer, checked, kept_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.plugin import CostRequest, Int64s, Segment
    from pptrace_models.accelerator import Accelerator
    from pptrace_models.expert_loads import Loads
    from pptrace_models.layer import Linear, Operation, Work
    from pptrace_models.layer_times import GroupTimes
    from pptrace_models.memory import ActivationBytes
    from pptrace_models.stages import EncoderPart
    from pptrace_models.transformer import Layer


_Value = TypeVar("_Value")
_Method = TypeVar("_Method", bound="Callable[..., Any]")
_LARGEST = 2**62
_NS = 10**9


def build(request: CostRequest) -> Workload:
    """Build the costs of one step.

    Raises:
        ConfigError: an invalid key or value of the model, the device or the options.
        ConstraintError: parallel sizes that do not fit the model, with the nearest possible ones.
        CostError: times or sizes that exceed the integer range.
    """
    network = ObservedNetwork(request.data_parallel)
    within = _build_within_replicas(request, network) if request.collectives is not None else memoized(
        lambda: _build_within_replicas(request, network),
        ("within replicas", replace(request, data_parallel={}).texts(), bool(request.data_parallel)),
        rows=_KNOWN_ROWS, may_keep=lambda: not network.is_read,
    )  # fmt: skip
    times, workload = within.times_between_replicas(request), within.workload
    if not any(column.any() for column in times.values()):
        return workload
    return workload.with_columns(**times)


def _build_within_replicas(request: CostRequest, network: ObservedNetwork) -> _WithinReplicas:
    """Build the costs of one step without the times of collectives between replicas.

    Args:
        request: the request.
        network: the data-parallel network, which only groups that are wider than a node read.
    """
    model = with_grids(checked(Transformer, request.model, "model"), request)
    given_options = checked(RooflineOptions, request.options, "costs.options")
    options = _with_default_segments(request, given_options)
    _check_options(options)
    if model.offloaded_layers and options.segments:
        raise ConfigError("needs segments: false, or a schedule without pairs", key="model.offloaded_layers")
    _check_optimizer(model, options)
    _check_parallel(request, options)
    part = shard(model, request)
    devices = devices_of(request, given_options)
    loads = loads_of(model, part, request)
    by_weight = request.units and request.stages == _count_weights(model, part)
    if request.units:
        stages: Sequence[Stage] = units_of(model, count_units(model) if by_weight else request.stages)
    else:
        stages = _stages_of_layers(model, options, request)
    known, known_times = _known_values(request, part)
    # Values that other builds have computed can depend on the network as well.
    observed = known_times.setdefault("network", network)
    observing = replace(request, data_parallel=observed)
    job = _Job(
        request=observing, model=model, options=options, part=part, towers=towers_of(model, observing),
        devices=devices, known=known, known_times=known_times,
    ).of_stages(with_loads(stages, *loads.mean) if loads else stages)  # fmt: skip
    peak_flops = devices.peaks(model.precision, request.rank_gpus)
    sent = job.sent()
    back = job.sent_back(sent)
    columns, state = job.microbatch_columns(), job.columns(job.state)
    jobs = job.of_classes(stages, loads) if loads else []
    by_class = [each.microbatch_columns() for each in jobs]
    if by_weight:
        if options.segments:
            raise ConfigError("segments are of whole layers: write a number of units", key="data_parallel.units")
        if options.optimizer == "muon":
            raise ConfigError("muon balances whole layers: write a number of units", key="data_parallel.units")
        columns, *by_class = (job.microbatch_columns_of_weights(each) for each in (columns, *by_class))
        state = job.columns_of_weights(job.module_state)
        sent = back = [0] * request.stages
    _check_range([*sent, *back])
    sequences = request.global_batch or request.microbatches * request.micro * request.dp
    notes = notes_of(model, devices, options, request)
    base = Workload(
        **columns, **state,
        reduce_ns=np.zeros(request.stages, dtype=np.int64),
        boundary_bytes=_boundaries(request, sent),
        boundary_gradient_bytes=_boundaries(request, back) if back != sent else np.zeros(0, dtype=np.int64),
        boundary_buffer_bytes=job.buffers(),
        reserved_bytes=options.reserved + max(each.beyond_bytes() for each in (job, *jobs)),
        reserved_permille=round(1000 * (options.fragmentation or 0)),
        capacity_bytes=min(devices.memories),
        rank_capacity_bytes=np.array(devices.memories if len({*devices.memories}) > 1 else [], dtype=np.int64),
        host_bytes_per_s=min(device.host_bandwidth or 0 for device in devices.distinct),
        tokens=sequences * request.sequence,
        model_flops=job.flops(sequences),
        peak_flops=peak_flops,
        plausible_flops=devices.plausible(model.precision, request.rank_gpus),
        notes=(*notes, loads.note) if loads else notes,
        expert_load=loads.origin if loads else {},
        units=count_units(model),
        weights=_count_weights(model, part),
        kernels=None if by_weight else partial(_kernels, job, columns),
    )  # fmt: skip
    plain = [base, *(replace(base, **each, kernels=None, notes=()) for each in by_class)]
    workload, *classes = (
        each.segmented(owner.segments(), overlapped=options.alone == "overlapped")
        if options.segments else each
        for each, owner in zip(plain, (job, *jobs), strict=True)
    )  # fmt: skip
    if loads and classes:
        workload = replace(workload, classes=tuple(classes), microbatch_class=(loads.kind_of + 1).astype(np.int32))
    network.is_read = observed.is_read
    return _WithinReplicas(workload=workload, job=job, by_weight=bool(by_weight))


def _stages_of_layers(model: Transformer, options: RooflineOptions, request: CostRequest) -> Sequence[Stage]:
    """Return the stages of whole layers, also where core attention of each layer becomes a stage."""
    count = request.stages
    if splits_attention(model, request):
        _check_attention_stages(model, options)
        count = model.layers
    sizes, together = (count, request.vocabulary_shares), shares_stages(request)
    return memoized(
        lambda: stages_of(model, *sizes, together=together), ("stages", sizes, together), model, rows=model.layers
    )


class _WithinReplicas(Struct, frozen=True):
    """Costs of a step that depend on no collective between replicas."""

    workload: Workload
    """The costs; times of collectives between replicas are zero."""
    job: _Job
    """The model on the stages of the job."""
    by_weight: bool
    """Whether each matrix of a layer is a unit."""

    def times_between_replicas(self, request: CostRequest) -> dict[str, Any]:
        """Return the times of reductions and gathers of each stage, by column of the workload.

        Args:
            request: the request, of which only the data-parallel network can differ from that of the job.
        """
        job = self.job.between_replicas(request)
        return job.columns_of_weights(job.module_times) if self.by_weight else job.columns(job.replica_times)


def splits_attention(model: Transformer, request: CostRequest) -> bool:
    """Return whether core attention of each layer is a stage: there are two stages per layer and one more.

    Stages with configured layers, those of an encoder, and equal numbers of stages on all ranks have whole layers.
    """
    if request.units or model.layers_per_stage is not None or model.layout is not None:
        return False
    has_core_stages = request.stages == 2 * model.layers + 1 and model.layers > 1
    return has_core_stages and request.stages % request.ranks > 0 and not count_encoder_stages(model)


def _check_attention_stages(model: Transformer, options: RooflineOptions) -> None:
    """Refuse what stages of core attention do not have.

    Raises:
        ConfigError: a model with other parts than softmax attention and an MLP or experts, or an option of whole
            layers.
    """
    kinds = {model.layer(index) for index in range(model.layers)}
    refused = {
        "model.mixers": any(kind.mixer != "attention" or kind.feed_forward == "none" for kind in kinds),
        "model.indexer": model.indexer is not None,
        "model.compressed": model.compressed is not None,
        "model.gated_attention": model.gated_attention,
        "model.residual_streams": model.residual_streams > 1,
        "model.residual_block": model.residual_block > 0,
        "model.mtp": model.mtp > 0,
        "model.offloaded_layers": model.offloaded_layers > 0,
        "model.offload_modules": bool(model.offload_modules),
        "costs.segments": bool(options.segments),
        "costs.overlap_tp": options.overlap_tp,
    }
    for key, is_set in refused.items():
        if is_set:
            message = "stages of core attention support whole softmax attention in each layer, without this key"
            raise ConfigError(message, key=key)
    if model.recompute == "full" or model.recomputed_modules & _AROUND_CORE:
        message = "stages are recomputed as actions: list them in schedule.recompute.stages, and write none here"
        raise ConfigError(message, key="model.recompute")


_AROUND_CORE = {"full_attn", "mla_up_proj", "alternate_products"}
"""Modules of recomputation with operations before and after a message to or from core attention."""
_AROUND_LAYER = 2
"""Messages of a layer to and from its core attention."""
_SPLIT = frozenset({"layers_per_stage", "layout"})
"""Parameters of a model that its stages depend on, and none of its layers."""
_KNOWN_ROWS = 300
"""Rows of a memo that take as much memory as the costs of some stages."""
_RUN_AT_ONCE = 2
"""Microbatches that the first rank computes without a wait: the second rank computes the first one meanwhile."""


def _known_values(request: CostRequest, part: Shard) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the values that costs of the same layers have in common, and those with the same collectives, too.

    The share of a device depends on the stages if several of them share the vocabulary.
    """
    model = {name: value for name, value in request.model.items() if name not in _SPLIT}
    # Segments divide the times of layers, and change none.
    of_layers = replace(
        request, model=model, options={**request.options, "segments": None}, ranks=0,
        stages=request.stages if request.units else 0, edges=(), stage_ranks=(),
        has_pairs=False, microbatches=0, global_batch=0, dp=request.dp if request.encoders else 0,
        collectives=None, data_parallel={}, reshard="", reduce_each=False, reduce_groups="", shard=0,
        expert_shard=0, subgroup=0,
    )  # fmt: skip
    without_replicas = replace(part, replicas=0, expert_replicas=0, shards=0, expert_shards=0, subgroup=0)
    layers: dict[Any, Any] = memoized(
        dict, ("layers", without_replicas, repr(of_layers)), request.rank_devices, rows=_KNOWN_ROWS
    )
    return layers, _known_times(request, part, layers)


def _known_times(request: CostRequest, part: Shard, layers: dict[Any, Any]) -> dict[Any, Any]:
    """Return the values that costs of the same layers with the same collectives have in common."""
    of_times = (
        part, request.ranks, request.dp, *request.data_parallel.items(), request.reshard, request.reduce_each,
        request.reduce_groups,
    )  # fmt: skip
    known: dict[Any, Any] = memoized(dict, ("times", of_times), layers, request.collectives, rows=_KNOWN_ROWS)
    return known


def _count_weights(model: Transformer, part: Shard) -> int:
    """Return the number of units if each matrix of a decoder's layer is one."""
    layers = memoized(lambda: Counter(model.layer(index, index) for index in range(model.layers)), "layers", model)
    matrices = memoized(
        lambda: sum(len(_matrices(model, part, kind)) * count for kind, count in layers.items()),
        ("matrices", part), model,
    )  # fmt: skip
    return count_units(model) - model.layers + matrices


def _matrices(model: Transformer, part: Shard, kind: Layer) -> list[Linear]:
    """Return a layer's matrices that are units, in order: all but small ones that every device has."""
    return [matrix for matrix in linears(model, part, kind) if matrix.group not in _SMALL]


def _arrays(columns: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return columns as arrays.

    Raises:
        CostError: a value that exceeds the integer range.
    """
    for column in columns.values():
        _check_range(column)
    return {name: np.array(column, dtype=np.int64) for name, column in columns.items()}


def _with_default_segments(request: CostRequest, options: RooflineOptions) -> RooflineOptions:
    """Return options in which actions have segments by default: of overlapped pairs, if a group communicates."""
    if options.segments is not None or not request.has_pairs:
        return options
    if options.overlap_tp or options.accumulation == "separate":
        return options
    return options.model_copy(update={"segments": max(request.tp, request.cp, request.ep) > 1})


def _check_options(options: RooflineOptions) -> None:
    if options.alone == "overlapped" and not options.segments:
        raise ConfigError("overlapped needs segments: write segments: true beside it", key="costs.alone")
    if not (options.delay_wgrad or options.segments):
        raise ConfigError("false needs segments: write segments: true beside it", key="costs.delay_wgrad")
    if options.accumulation == "separate" and options.segments:
        raise ConfigError("separate has no segment: remove the key segments", key="costs.accumulation")
    if options.dummy_gradients and options.accumulation == "separate":
        message = "they take the place of gradients that products add up themselves: write accumulation: fused"
        raise ConfigError(message, key="costs.dummy_gradients")
    if options.segments and options.early_stop:
        raise ConfigError("segments recompute whole layers: remove one of the two keys", key="costs.early_stop")
    if options.segments and options.overlap_tp:
        message = "segments already define what overlaps: remove one of the two keys"
        raise ConfigError(message, key="costs.overlap_tp")


def _check_parallel(request: CostRequest, options: RooflineOptions) -> None:
    """Check that the options fit the shard groups and the grids of the job."""
    is_whole = options.optimizer == "muon" and options.zero < WEIGHTS
    if (request.shard or request.expert_shard) and (not options.zero or is_whole):
        reason = "muon divides whole matrices among all replicas" if options.zero else "no state is sharded"
        key = "data_parallel.shard" if request.shard else "data_parallel.expert_shard"
        raise ConfigError(f"{reason}: write costs.zero: 3, or remove the key", key=key)
    if options.outer_sharding and options.optimizer == "muon":
        raise ConfigError("muon exchanges matrices in a shard group only: write false", key="costs.outer_sharding")
    if options.outer_sharding and not ((request.shard or request.expert_shard) and options.zero == WEIGHTS):
        message = "shard groups share less than all state: write costs.zero: 3 and data_parallel.shard beside it"
        raise ConfigError(message, key="costs.outer_sharding")
    for grid in request.encoders:
        if request.vocabulary_shares > 1 and grid.ranks:
            reason = "shares of the vocabulary are on ranks of the decoder only: write 0, or another schedule"
            raise ConfigError(reason, key=f"{grid_key(grid.name)}.pp")
        if options.segments and grid.broadcasts:
            reason = "segments have no broadcast of messages: write pieces, or a schedule without pairs"
            raise ConfigError(reason, key=f"{grid_key(grid.name)}.bridge")


def _check_optimizer(model: Transformer, options: RooflineOptions) -> None:
    for key in ("main_params", "exp_avg", "exp_avg_sq"):
        if getattr(options, key) is not None and not options.zero:
            message = "Megatron-LM's precision-aware optimizer needs the distributed one: write zero: 1 beside it"
            raise ConfigError(message, key=f"costs.{key}")
    if options.main_params is not None and model.precision == "fp32":
        raise ConfigError("fp32 weights have no main copy: remove the key", key="costs.main_params")
    if options.main_params == "remainder" and model.precision == "fp16":
        raise ConfigError("only bf16 weights share their bits with fp32: write fp32", key="costs.main_params")


def _cached_in(memo: Literal["known", "known_times"]) -> Callable[[_Method], _Method]:
    """Return a decorator of methods that are computed once for the same arguments, compared by identity.

    Args:
        memo: ``known_times`` for values that depend on collectives or replicas, ``known`` for others.
    """

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def cached(job: _Job, *inputs: Any) -> Any:
            values, key = getattr(job, memo), (method.__name__, *map(id, inputs))
            if key not in values:
                values[key] = inputs, method(job, *inputs)
            return values[key][1]

        return cast("_Method", cached)

    return decorate


class _Job(Struct, frozen=True, kw_only=True, dict=True):
    """A model on the stages and devices of a job."""

    request: CostRequest
    model: Transformer
    options: RooflineOptions
    part: Shard
    towers: tuple[Tower, ...]
    devices: Devices
    known: dict[Any, Any]
    """Values that depend on no other stage, collective or replica; jobs with equal layers share them."""
    known_times: dict[Any, Any]
    """Values that depend on collectives or replicas; jobs share them that differ in their stages alone."""
    stages: Sequence[Stage] = ()

    def of_stages(self, stages: Sequence[Stage]) -> _Job:
        """Return the job with other stages; equal stages are the same object."""
        if splits_attention(self.model, self.request):
            stages = around_attention(stages)
        return replace(self, stages=[self._same(stage) for stage in stages])

    @cached_property
    def placed(self) -> _PlacedStages:
        """The stages on their devices."""
        costings = {id(device): self.costing(device) for device in self.devices.distinct}
        devices = self.devices.of_stages[: len(self.stages)]
        keys = [*zip(map(id, devices), map(id, self.stages), strict=True)]
        distinct = dict(zip(keys, self.stages, strict=True))
        place = dict(zip(distinct, range(len(distinct)), strict=True))
        return _PlacedStages(
            distinct=[(costings[device], stage) for (device, _), stage in distinct.items()],
            places=np.array([*map(place.__getitem__, keys)], dtype=np.int64),
        )

    def _same(self, value: _Value) -> _Value:
        """Return the first of equal values."""
        first: _Value = self.known.setdefault(value, value)
        return first

    @_cached_in("known_times")
    def costing(self, device: Accelerator) -> Costing:
        """Return the inputs of times on a device."""
        return Costing(
            model=self.model, shard=self.part, device=device, options=self.options,
            groups=groups_of(self.request, self.part, device, self.options),
            units=sum(bool(stage.layers) for stage in self.stages) if self.request.units else 0,
            computed=self._computed(device),
        )  # fmt: skip

    @_cached_in("known")
    def _computed(self, _: Accelerator) -> dict[Any, Any]:
        """Return the times of computations on a device, to which costings add."""
        return {}

    def of_classes(self, stages: Sequence[Stage], loads: Loads) -> list[_Job]:
        """Return the job for each kind of microbatch; none if all microbatches are equal."""
        if len(loads.received) == 1:
            return []
        rows = zip(loads.received, loads.sent, strict=True)
        return [self.of_stages(with_loads(stages, received, sent)) for received, sent in rows]

    def microbatch_columns(self) -> dict[str, Any]:
        """Return times in ns and kept bytes of a microbatch on each stage, on its device."""
        columns = self.columns(self._of_microbatch)
        received = _arrays({"bytes": self._received()})["bytes"]
        return columns | {"checkpoint_bytes": np.minimum(received, columns["activation_bytes"])}

    @_cached_in("known_times")
    def _of_microbatch(self, costing: Costing, stage: Stage) -> dict[str, int]:
        """Return the times of a stage in ns and its kept bytes."""
        activations, rate = self._activations(stage), costing.device.host_bandwidth
        copy_ns = -(-activations.activation * _NS // rate) if rate else 0
        return self._times(costing, stage) | {
            "offload_ns": copy_ns,
            "reload_ns": copy_ns,
            "activation_bytes": activations.activation,
            "weight_activation_bytes": activations.weight_part,
        }

    def between_replicas(self, request: CostRequest) -> _Job:
        """Return the job with the data-parallel network of a request, for times between replicas."""
        known_times = _known_times(request, self.part, self.known).setdefault("between replicas", {})
        towers = towers_of(self.model, request)
        return replace(self, request=request, towers=towers, known_times=known_times)

    def microbatch_columns_of_weights(self, columns: Mapping[str, Int64s]) -> dict[str, Any]:
        """Return columns with a value for each matrix of a layer in place of one for the layer.

        A pass of the layer has its time. What the layer keeps counts at its first matrix.
        """
        divided: dict[str, list[int]] = {name: [] for name in columns}
        for index, (costing, stage) in enumerate(self.placed.all()):
            shares = self._matrix_times(costing, stage)
            for name, column in columns.items():
                value = int(column[index])
                if name.endswith("_ns") and name not in _COPIED:
                    kinds = ("f",) if name[0] in "fr" else tuple("iw" if name[0] == "b" else name[0])
                    weights = [sum(times[kind] for kind in kinds) for times in shares]
                    divided[name] += _in_shares(value, weights)
                else:
                    divided[name] += [value, *[0] * (len(shares) - 1)]
        return _arrays(divided)

    def columns_of_weights(self, compute: Callable[[_Module], Mapping[str, int]]) -> dict[str, Any]:
        """Return the values of each matrix of a layer, and of each stage that is no layer, by name."""
        rows: list[Mapping[str, int]] = []
        for costing, stage in self.placed.all():
            if not stage.layers:
                rows.append(_total(map(compute, self._modules(costing, stage))))
                continue
            (kind,) = stage.layers
            parts = [
                memory.matrix_parameters(self.model, self.part, matrix)
                for matrix in _matrices(self.model, self.part, kind)
            ]
            beside = self._layer_parameters(self._same(kind)) - summed(memory.ParameterCounts(), parts)
            parts[0] = parts[0] + beside
            frozen = self.model.frozen
            rows += [
                compute(_Module(costing, [part.untrained() if frozen else part], muon.NONE)) for part in parts
            ]
        return _columns_of(rows)

    def _matrix_times(self, costing: Costing, stage: Stage) -> list[dict[str, int]]:
        """Return the time of each matrix of a layer in each pass, in ns; one entry for a stage that is no layer.

        Kernels of attention follow the matrices before its output; others follow the first matrix of their half.
        """
        if not stage.layers:
            return [dict.fromkeys("fiw", 1)]
        (kind,) = stage.layers
        matrices = _matrices(self.model, self.part, kind)
        first_half = [place for place, matrix in enumerate(matrices) if is_attention(matrix.group)]
        second_half = [place for place in range(len(matrices)) if place not in first_half]
        times = [dict.fromkeys("fiw", 0) for _ in matrices]
        for operation in costing.layer(kind):
            weights = {
                place: matrix.weights for place, matrix in enumerate(matrices) if matrix.group == operation.name
            }
            half = first_half[-2:] if is_attention(operation.name) else second_half
            shares = weights or {(half or [0])[0]: 1}
            works = (operation.forward, operation.input_gradient, operation.weight_gradient)
            for name, work in zip("fiw", works, strict=True):
                parts = _in_shares(costing.work_ns(work, operation.unit), [*shares.values()])
                for place, part_ns in zip(shares, parts, strict=True):
                    times[place][name] += part_ns
        return times

    def columns(self, compute: Callable[[Costing, Stage], Mapping[str, int]]) -> dict[str, Any]:
        """Return the values of each stage by name, computed once for equal stages on equal devices."""
        rows = [compute(costing, stage) for costing, stage in self.placed.distinct]
        return {name: column[self.placed.places] for name, column in _columns_of(rows).items()}

    def _times(self, costing: Costing, stage: Stage) -> dict[str, int]:
        """Return the times of a stage in ns."""
        cost = self._cost(costing, stage) + self._copy_waits(costing, stage)
        added = memory.accumulation_ns(costing, self.parameters(stage))
        return {
            "f_ns": cost.f,
            "b_ns": cost.i + cost.w + added,
            "i_ns": cost.i,
            "w_ns": cost.w + added,
            "f_collective_ns": cost.f_collective,
            "b_collective_ns": cost.i_collective,
            "i_collective_ns": cost.i_collective,
            "w_collective_ns": 0,
            "recompute_ns": 0 if self.model.recompute == "full" else cost.f - self._once_ns(costing, stage),
        }

    @_cached_in("known_times")
    def _cost(self, costing: Costing, stage: Stage) -> Cost:
        """Return the cost of a stage without waits for copies."""
        embedding, prediction, head = self._end_costs(costing)
        items = items_of(
            self.model, stage, layer=partial(costing.once, layer_cost),
            embedding=embedding, prediction=prediction, head=head,
        )  # fmt: skip
        cost = summed(Cost(), [*encoder_items(stage, self._tower_costs(costing)), *items])
        return cost + cost.host_waits(costing.stage_host_ns(stage.layers), frozen=self.model.frozen)

    @_cached_in("known_times")
    def _end_costs(self, costing: Costing) -> tuple[Cost, Cost, Cost]:
        """Return the costs of embedding, of multi-token prediction without its layer, and of the LM head."""
        embedding, prediction, head = costing.ends_work()
        return embedding.beside(self._embedding_ns(costing)), prediction, head.beside(head_ns(costing))

    @_cached_in("known_times")
    def _tower_costs(self, costing: Costing) -> list[tuple[Cost, Cost]]:
        """Return the costs of a layer and of the projector of each encoder."""
        return [tower.costs(costing) for tower in self.towers]

    def _once_ns(self, costing: Costing, stage: Stage) -> int:
        """Return the part of a stage's forward that has no backward, in ns."""
        once_ns, costs = 0, self._tower_costs(costing)
        for part in stage.encoders:
            tower, (layer, projector) = self.towers[part.encoder], costs[part.encoder]
            once_ns += 0 if tower.has_backward(projector=False) else part.layers * layer.f
            once_ns += 0 if tower.has_backward(projector=True) else part.projector * projector.f
        return once_ns

    def _embedding_ns(self, costing: Costing) -> GroupTimes:
        """Return the embedding's collectives, with the broadcasts of encoders' projected tokens."""
        times = embedding_ns(costing)
        broadcasts_ns = sum(tower.broadcasts(costing).forward_ns for tower in self.towers)
        return replace(times, forward_ns=times.forward_ns + broadcasts_ns)

    def _copy_waits(self, costing: Costing, stage: Stage) -> Cost:
        """Return the time that each pass of a stage waits for the copies of its layers or modules.

        Copies of units overlap the computation of all units, so a unit has a share of the wait of all.
        """
        rate = costing.device.host_bandwidth
        size = self._activations(stage).copied
        if not (rate and size):
            return Cost()
        stages = self.stages if self.request.units else [stage]
        cost = summed(Cost(), (self._cost(costing, each) for each in stages))
        whole = sum(self._activations(each).copied for each in stages)
        copied_ns = -(-whole * _NS // rate)
        waits = max(0, copied_ns - cost.f), max(0, copied_ns - cost.i - cost.w)
        return Cost(f=waits[0] * size // whole, i=waits[1] * size // whole)

    @_cached_in("known")
    def _activation_items(self, stage: Stage) -> list[ActivationBytes]:
        """Return the bytes that each item of a stage keeps of a microbatch."""
        model, part = self.model, self.part
        items = items_of(
            model, stage, layer=lambda kind: self._layer_activations(self._same(kind)),
            embedding=memory.embedding_activations(model, part),
            prediction=memory.prediction_activations(model, part),
            head=memory.head_activations(model, part, self.options),
        )  # fmt: skip
        if model.recompute_method == "uniform":
            layers = slice(int(stage.embedding), int(stage.embedding) + len(stage.layers))
            items[layers] = memory.grouped(items[layers], model.recompute_num_layers or 1)
        if "mhc" in model.recomputed_modules and stage.layers:
            items[int(stage.embedding)] += memory.ActivationBytes(activation=memory.stream_bytes(model, part))
        return [*encoder_items(stage, [tower.activations() for tower in self.towers]), *items]

    @_cached_in("known")
    def _layer_parameters(self, kind: Layer) -> memory.ParameterCounts:
        return memory.layer_parameters(self.model, self.part, kind)

    @_cached_in("known")
    def _layer_activations(self, kind: Layer) -> ActivationBytes:
        return memory.layer_activations(self.model, self.part, kind)

    @cached_property
    def passed(self) -> list[int]:
        """The bytes of a microbatch that a device of the next stage gets from each stage."""
        part, element_bytes = self.part, self.model.element_bytes
        following = accumulate(len(stage.layers) for stage in self.stages)
        boundaries = [
            part.split_tokens * self.model.boundary_width(layers) * element_bytes for layers in following
        ]
        if self.options.scatter_gather and part.split_tokens == part.tokens:
            boundaries = [-(-boundary // part.tp) for boundary in boundaries]
        if splits_attention(self.model, self.request):
            # The residual passes core attention with its input, and with its output.
            widths = {"projections": part.query + part.kv + part.value, "core": part.output}
            boundaries = [
                boundary + part.tokens * widths.get(stage.layers[-1].attention, 0) * element_bytes
                for boundary, stage in zip(boundaries, self.stages, strict=True)
            ]
        return self._of_encoders(boundaries, Tower.received_bytes)

    def sent(self) -> list[int]:
        """Return the bytes of a microbatch's message from each stage to the next."""
        return self._of_encoders(self.passed, lambda tower: tower.message_bytes()[0])

    def buffers(self) -> Int64s:
        """Return half of the bytes of buffers at both ends of the edges; empty if these are those of messages.

        With stages of core attention, messages of all layers share buffers: received tensors are activations. All
        ranks have core attention of the first layer, or an end of its messages.
        """
        options, received = self.options, self.passed
        if splits_attention(self.model, self.request):
            shared_by_layers = np.array([*received[:_AROUND_LAYER], *[0] * (len(received) - _AROUND_LAYER - 1)])
            return np.tile(shared_by_layers.astype(np.int64), 2)
        has_encoders = any(tower.grid and tower.encoder.stages for tower in self.towers)
        if not has_encoders and options.message_buffers == "pair" and not options.returned_outputs:
            return np.zeros(0, dtype=np.int64)
        sent = self._of_encoders(received, lambda tower: tower.boundary_bytes(last=True))
        ends = np.stack([_boundaries(self.request, sizes) for sizes in (sent, received)])
        if options.message_buffers != "pair":
            ends = ends * self.request.microbatches // 2
        if options.message_buffers == "all":
            ends[1] *= 2
        if options.returned_outputs:
            into_last = [high == len(received) - 1 for _, high in _edges(self.request, len(received))]
            logits = memory.logits_bytes(self.model, self.part)
            ends[1, into_last] += logits * self.request.microbatches // 2
        return ends.reshape(-1)

    def sent_back(self, sent: Sequence[int]) -> list[int]:
        """Return the bytes of a microbatch's gradient that each stage receives; 0 if it needs none."""
        return self._of_encoders(
            sent, lambda tower: tower.message_bytes()[1],
            inside=lambda tower: tower.boundary_bytes(last=False) * tower.has_backward(projector=False),
        )  # fmt: skip

    def _of_encoders(
        self,
        sizes: Sequence[int],
        projected: Callable[[Tower], int],
        inside: Callable[[Tower], int] = lambda tower: tower.boundary_bytes(last=False),
    ) -> list[int]:
        """Return the bytes of messages, with those of stages that have only encoders.

        Args:
            sizes: bytes of the message of each stage.
            projected: returns the bytes of an encoder's projected tokens.
            inside: returns the bytes of an encoder's tokens between two of its stages.
        """
        result = [*sizes]
        for stage, passing in enumerate(self._passing()):
            result[stage] = sum(projected(tower) if ends else inside(tower) for tower, ends in passing)
        return result

    def _passing(self) -> list[list[tuple[Tower, bool]]]:
        """Return the encoders whose tokens each stage with only encoders sends, and whether these are projected.

        A stage of an encoder also sends the projected tokens of the encoders before it in a chain.
        """
        count = count_encoder_stages(self.model, together=shares_stages(self.request))
        following, passing = dict(self.request.edges), list[list[tuple[Tower, bool]]]([] for _ in range(count))
        for index, tower in enumerate(self.towers):
            stage = next(
                stage
                for stage, each in enumerate(self.stages)
                if any(part.encoder == index for part in each.encoders)
            )
            is_projected = False
            while stage < count:
                parts = self.stages[stage].encoders
                is_projected |= any(part.encoder == index and part.projector for part in parts)
                passing[stage].append((tower, is_projected))
                stage = following.get(stage, stage + 1)
        return passing

    def _received(self) -> list[int]:
        """Return the bytes of a microbatch that a device of each stage receives in the forward."""
        passed, received = self.passed, [0] * len(self.stages)
        for low, high in _edges(self.request, len(received)):
            received[high] += passed[low]
        return received

    def flops(self, sequences: int) -> int:
        """Return the model FLOPs of a step."""
        batch = sequences, self.request.sequence, self.request.document
        decoder_flops = memoized(lambda: step_flops(self.model, *batch), ("flops", batch), self.model)
        return decoder_flops + sum(tower.flops(sequences) for tower in self.towers)

    def segments(self) -> dict[Kind, list[tuple[Segment, ...]]]:
        """Return the segments of each stage's actions by kind, on its device."""
        distinct = [self._segments(costing, stage) for costing, stage in self.placed.distinct]
        return {kind: [distinct[number][kind] for number in self.placed.places.tolist()] for kind in distinct[0]}

    @_cached_in("known_times")
    def _segments(self, costing: Costing, stage: Stage) -> dict[Kind, tuple[Segment, ...]]:
        return stage_segments(costing, self.towers, stage, self._activation_items(stage))

    @_cached_in("known")
    def parameters(self, stage: Stage) -> memory.ParameterCounts:
        """Return the parameters of a stage on one device."""
        return summed(memory.ParameterCounts(), self._parameter_items(stage))

    @_cached_in("known")
    def _activations(self, stage: Stage) -> ActivationBytes:
        return summed(memory.ActivationBytes(), self._activation_items(stage))

    def beyond_bytes(self) -> int:
        """Return the peak bytes of a backward beyond the activations of the forward and the gradient buffers.

        At its start, this is a recomputed layer, and gradients of its scores. At its end, pending gradients have
        replaced the activations of the microbatch. Dummy gradients, buffers of gathers and deferred frees stay in
        memory.
        """
        fixed = memory.sequence_buffer_bytes(self.model, self.part, self.options)
        if self.options.deferred_frees:
            fixed += memory.deferred_bytes(self.model, self.part, self._queued_layers())
        return fixed + max(self._beyond(stage) for _, stage in self.placed.distinct)

    def _queued_layers(self) -> float:
        """Return the layers in the queue of the first device of a 1F1B pipeline when its memory is at its peak.

        Messages delay each microbatch from the third on, while the host issues its kernels. Apart from that, the
        queue grows by the part of each layer's time in which the host has issued its kernels. The host waits for
        each send until the first backward.
        """
        costing, stage = next(iter(self.placed.all()))
        microbatches = self.request.microbatches
        in_flight = min(self.request.ranks, microbatches)
        layers_ns = sum(costing.once(layer_cost, kind).f for kind in stage.layers)
        ahead = 1 - sum(map(costing.layer_host_ns, stage.layers)) / max(layers_ns, 1)
        # A backward is as long as two forwards.
        forwards = 3 * microbatches - 2 * in_flight if microbatches > in_flight else 1
        return len(stage.layers) * max(in_flight - _RUN_AT_ONCE, forwards * ahead)

    @_cached_in("known_times")
    def _beyond(self, stage: Stage) -> int:
        parameters, activations, buffers = self.parameters(stage), self._activations(stage), 0
        if self.options.zero == WEIGHTS:
            items = self._parameter_items(stage)
            parameters = max(items, key=memory.ParameterCounts.trained, default=parameters)
            buffers = memory.gather_buffer_bytes(self.model, self.part, items) * self.options.copied_shards
        pending = memory.pending_bytes(self.model, self.options, parameters)
        has_dummies = self.options.dummy_gradients and not self.model.frozen
        dummies = memory.dummy_bytes(self.model, self.part, stage.layers) if has_dummies else 0
        gradients = memory.score_gradient_bytes(self.model, self.part, stage.layers)
        return activations.transient + gradients + max(0, pending - activations.activation) + dummies + buffers

    @_cached_in("known_times")
    def state(self, costing: Costing, stage: Stage) -> dict[str, int]:
        """Return the training state of a stage in bytes, and the time of its update in ns."""
        state = _total(map(self.module_state, self._modules(costing, stage)))
        state["weights_bytes"] += memory.cast_weights_bytes(costing, (*stage.layers, *stage.predictions))
        return state | {
            "optimizer_ns": state["optimizer_ns"] + self._muon_ns(costing, stage),
            "transient_bytes": memory.loss_bytes(self.model, self.part, self.options) * stage.head,
        }

    @_cached_in("known_times")
    def replica_times(self, costing: Costing, stage: Stage) -> dict[str, int]:
        """Return the times of a stage's reductions and gathers between replicas, in ns."""
        return _total(map(self.module_times, self._modules(costing, stage)))

    def _modules(self, costing: Costing, stage: Stage) -> list[_Module]:
        """Return the modules of a stage. An encoder on other devices than the decoder is a separate module.

        Its replicas are those devices, which reduce its gradients.
        """
        items, modules, first = self._parameter_items(stage), list[_Module](), 0
        others: list[memory.ParameterCounts] = []
        for part in stage.encoders:
            tower, end = self.towers[part.encoder], first + part.layers + part.projector
            if tower.grid is None:
                others += items[first:end]
            else:
                modules.append(_Module(tower.costing(costing), items[first:end], muon.NONE))
            first = end
        others += items[first:]
        if others or not modules:
            modules.append(_Module(costing, others, self._muon_matrices(costing, [stage])))
        return modules

    def _muon_ns(self, costing: Costing, stage: Stage) -> int:
        """Return the time in which Muon orthogonalizes the matrices of a stage, in ns.

        Replicas balance the matrices of all units, so a unit has a share of the time of all.
        """
        matrices = self._muon_matrices(costing, [stage])
        whole = self._muon_matrices(costing, self.stages) if self.request.units else matrices
        return muon.update_ns(costing, whole) * matrices.parameters() // max(whole.parameters(), 1)

    def module_state(self, module: _Module) -> dict[str, int]:
        """Return the training state of a module in bytes, and the time of its update in ns."""
        parameters = module.parameters()

        def buffered(size: Callable[[memory.ParameterCounts], int]) -> memory.ParameterCounts:
            return summed(memory.ParameterCounts(), sorted(module.items, key=size)[-memory.BUFFERED :])

        return memory.state(
            module.costing, parameters,
            gathered=buffered(memory.ParameterCounts.total) if self.request.reshard == "always" else parameters,
            reduced=buffered(memory.ParameterCounts.trained) if self.request.reduce_each else None,
            muon=module.matrices,
        )  # fmt: skip

    def module_times(self, module: _Module) -> dict[str, int]:
        """Return the times of a module's reductions and gathers between replicas, in ns."""
        return memory.replica_times(module.costing, module.parameters(), separate_groups=self._separates_groups())

    def _separates_groups(self) -> bool:
        """Whether the reduction between shard groups is an action of each stage."""
        is_last = self.request.reduce_groups == "last" or self.options.outer_sharding
        return is_last and self.request.reduce_each and self.options.zero >= GRADIENTS

    def _muon_matrices(self, costing: Costing, stages: Iterable[Stage]) -> muon.Matrices:
        """Return the matrices of stages that Muon updates."""
        if self.options.optimizer != "muon" or self.model.frozen:
            return muon.NONE
        layers = [layer for stage in stages for layer in (*stage.layers, *stage.predictions)]
        return muon.matrices(costing, layers)

    @_cached_in("known")
    def _parameter_items(self, stage: Stage) -> list[memory.ParameterCounts]:
        """Return the parameters of each item of a stage.

        A stage with multi-token prediction has a copy of the embedding. Units share the embedding.
        """
        model, part = self.model, self.part

        def freeze(parameters: memory.ParameterCounts) -> memory.ParameterCounts:
            return parameters.untrained() if model.frozen else parameters

        def layer(kind: Layer) -> memory.ParameterCounts:
            return freeze(self._layer_parameters(self._same(kind._replace(received=1.0, sent=1.0))))

        embedding = freeze(memory.embedding_parameters(model, part))
        items = items_of(
            model, stage, layer=layer, embedding=embedding, prediction=memory.prediction_parameters(model, part),
            head=freeze(memory.head_parameters(model, part, with_embedding=stage.embedding or self.request.units)),
            heads=1,
        )  # fmt: skip
        copied = [embedding] if stage.predictions and not (stage.embedding or self.request.units) else []
        return [*encoder_items(stage, [tower.parameters() for tower in self.towers]), *items, *copied]


class _PlacedStages(NamedTuple):
    """Stages on their devices; equal ones on the same device are computed once."""

    distinct: list[tuple[Costing, Stage]]
    """The different stages, with the inputs of their times."""
    places: Int64s
    """Shape (stages,): the place of each stage in ``distinct``."""

    def all(self) -> Iterable[tuple[Costing, Stage]]:
        """Yield each stage with the inputs of its times."""
        return map(self.distinct.__getitem__, self.places.tolist())


def _columns_of(rows: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Return the values of rows by name."""
    return _arrays({name: [row[name] for row in rows] for name in rows[0]})


class _Module(Struct, frozen=True):
    """The part of a stage whose state the same replicas have."""

    costing: Costing
    """The inputs of its times."""
    items: Sequence[memory.ParameterCounts]
    """The parameters of each item."""
    matrices: muon.Matrices
    """The matrices that Muon updates."""

    def parameters(self) -> memory.ParameterCounts:
        """Return its parameters."""
        return summed(memory.ParameterCounts(), self.items)


def _total(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of values by name."""
    first, *others = rows
    return {name: value + sum(row[name] for row in others) for name, value in first.items()}


_SMALL = frozenset({"router", "stream maps"})
"""Groups of matrices that are gathered with the first matrix of their layer."""
_COPIED = frozenset({"offload_ns", "reload_ns"})
"""Times of copies of what a layer keeps."""


def _in_shares(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a total in proportion to weights; the parts sum to it.

    >>> _in_shares(10, [1, 2])
    [3, 7]
    """
    whole = sum(weights)
    ends = [total * end // whole for end in accumulate(weights)] if whole else [total] * len(weights)
    return [end - start for start, end in pairwise([0, *ends])]


_PASSES = (Kind.F, Kind.I, Kind.W)
"""Kinds of actions with lists of kernels; a whole backward has the kernels of I and W."""
_ROUNDED = 4
"""The largest rounding difference per listed kernel, in ns."""


def _kernels(job: _Job, columns: Mapping[str, Int64s]) -> list[KernelCost]:
    """Return the kernels of every stage, in the order of their stages, kinds and parts.

    The times of a stage's kernels and waits sum to the times of its actions.

    Args:
        job: the model on the stages of a job.
        columns: the times of each stage's actions, in ns.
    """
    rows: list[KernelCost] = []
    for index, (costing, stage) in enumerate(job.placed.all()):
        for kind in _PASSES:
            kernels = [
                replace(row, stage=index) for row in _stage_kernels(_Rows(costing, kind), stage, job.towers)
            ]
            name = kind.name.lower()
            remaining_ns = int(columns[f"{name}_ns"][index]) - sum(row.duration_ns for row in kernels)
            collective_ns = min(int(columns[f"{name}_collective_ns"][index]), max(remaining_ns, 0))
            remaining_ns -= collective_ns
            is_rounding = abs(remaining_ns) <= _ROUNDED * len(kernels)
            waits = {
                "exposed collectives": collective_ns,
                "rounding" if is_rounding else "waits for the host": remaining_ns,
            }
            rows += kernels
            rows += [
                KernelCost(stage=index, kind=kind, part="all", name=wait, duration_ns=wait_ns)
                for wait, wait_ns in waits.items() if wait_ns
            ]  # fmt: skip
    return rows


def _stage_kernels(rows: _Rows, stage: Stage, towers: Sequence[Tower]) -> Iterable[KernelCost]:
    """Yield the kernels of a stage's action."""
    costing, kind, model = rows.costing, rows.kind, rows.costing.model
    for part in stage.encoders:
        tower = towers[part.encoder]
        yield from _encoder_kernels(_Rows(tower.costing(costing), kind), tower, part)
    if stage.embedding:
        yield from rows.of("embedding", costing.embedding(), 1)
    layers = Counter((*stage.layers, *stage.predictions))
    for layer, count in layers.items():
        rows_of_layer = replace(rows, costing=costing.of(layer))
        operations = rows_of_layer.costing.layer(layer)
        attention = [operation for operation in operations if is_attention(operation.name)]
        second_half = [operation for operation in operations if not is_attention(operation.name)]
        causal = model.causal and not layer.window
        for row in rows_of_layer.of("attention", attention, count):
            yield replace(row, causal=causal and row.name == CORE)
        yield from rows_of_layer.of("experts" if layer.experts else "mlp", second_half, count)
        if kind is Kind.I and layer.is_recomputed:
            again = recomputed_operations(rows_of_layer.costing, layer)
            for row in rows_of_layer.recomputed(again, count, layer):
                yield replace(row, causal=causal and row.name == CORE)
    if stage.predictions:
        yield from rows.of("prediction", costing.prediction(), len(stage.predictions))
    if stage.head:
        yield from rows.of("head", costing.head(), 1 + model.mtp)


def _encoder_kernels(rows: _Rows, tower: Tower, part: EncoderPart) -> Iterable[KernelCost]:
    """Yield the kernels of an encoder and its projector on a stage."""
    costing, kind, frozen = rows.costing, rows.kind, tower.encoder.frozen
    operations = costing.layer(costing.model.layer(0))
    if kind is Kind.F or not frozen:
        yield from rows.of(tower.layers_title, operations, part.layers)
    if kind is Kind.I and not frozen:
        yield from rows.recomputed(operations, part.layers, costing.model.layer(0))
    if part.projector:
        yield from rows.of(tower.projector_title, [tower.projection(gradient_bytes(costing.options))], 1)


class _Rows(Struct, frozen=True):
    """Lists the kernels of operations in actions of one kind."""

    costing: Costing
    kind: Kind

    def recomputed(self, operations: Sequence[Operation], count: int, layer: Layer) -> Iterable[KernelCost]:
        """Yield the recomputed kernels of a backward, one row per operation."""
        for operation in operations:
            share = again_share(operation, self.costing.model)
            if self.costing.model.recompute == "full":
                share = 1.0
            elif not again_of(operation.name, layer) & self.costing.model.recomputed_modules:
                continue
            for row in self._work("computed again", operation, operation.forward, count):
                duration_ns = int(row.duration_ns * share)
                yield replace(row, duration_ns=duration_ns, size_bytes=int(row.size_bytes * share))

    def of(self, part: str, operations: Iterable[Operation], count: int) -> Iterable[KernelCost]:
        """Yield the kernels of operations."""
        for operation in operations:
            works = (operation.forward, operation.input_gradient, operation.weight_gradient)
            yield from self._work(part, operation, works[_PASSES.index(self.kind)], count)

    def _work(self, part: str, operation: Operation, work: Work, count: int) -> Iterable[KernelCost]:
        model, device = self.costing.model, self.costing.device
        rest_ns = self.costing.work_ns(work, operation.unit)
        if not rest_ns:
            return
        row = KernelCost(stage=0, kind=self.kind, part=part, name=operation.name, times=count, duration_ns=0)
        rest_flops, rest_bytes = work.flops, work.size_bytes or work.beside_bytes
        for product in work.products if isinstance(device, Shaped) else ():
            precision = model.precision if operation.unit == "linear" else kept_precision(model.precision)
            product_time = int(product_ns(product, precision, device, padded=operation.unit == "head"))
            moved = int(product.moved_bytes(model.element_bytes))
            rest_ns, rest_flops = rest_ns - product_time, rest_flops - product.flops
            rest_bytes = max(rest_bytes - moved, 0)
            yield replace(
                row, duration_ns=product_time * count, flops=product.flops * count, size_bytes=moved * count,
                product=(product.copies, product.m, product.n, product.k),
            )  # fmt: skip
        if not isinstance(device, Shaped) or not work.products or rest_ns > len(work.products):
            yield replace(
                row, duration_ns=rest_ns * count, flops=max(rest_flops, 0) * count,
                size_bytes=(work.beside_bytes if work.products and rest_bytes else rest_bytes) * count,
            )  # fmt: skip


def _boundaries(request: CostRequest, passed: Sequence[int]) -> Int64s:
    """Return the bytes of a microbatch over each edge."""
    return np.array([passed[low] for low, _ in _edges(request, len(passed))], dtype=np.int64)


def _edges(request: CostRequest, stages: int) -> Iterable[tuple[int, int]]:
    """Return the stages' graph as (from, to), forward."""
    return request.edges or pairwise(range(stages))


def _check_range(values: Sequence[int]) -> None:
    if max(values) >= _LARGEST:
        raise CostError("a stage's time or memory passes 2**62 ns or bytes")


def notes_of(
    model: Transformer, devices: Devices, options: RooflineOptions, request: CostRequest
) -> tuple[str, ...]:
    """Return notes on the assumptions of the costs, one sentence each."""
    skipped = model.causal and model.flash_attention
    memory_kept = f"{format_size(options.reserved)} reserved"
    if options.fragmentation:
        memory_kept += f" and {options.fragmentation:.1%} of allocated bytes for fragmentation"
    notes = [
        f"MFU counts the forward three times, without recomputation, over the dense {model.precision} peak"
        + (", with causal attention halved." if model.causal else "."),
        f"Times count {'half of the' if skipped else 'the whole'} attention core"
        + (": flash attention skips its masked half." if skipped else "."),
        _exposed(options),
        f"Memory holds {options.gradients} gradients, {_adam(options)} (ZeRO {options.zero}), {memory_kept}.",
    ]
    if options.kernels == "shapes":
        notes.append(
            "Times of kernels depend on their shapes: tiles and waves of products, blocks of attention, bytes."
        )
    if not devices.are_alike:
        notes.append(
            "Ranks have different devices: times of a stage are those of its device; MFU counts all peaks."
        )
    if request.vocabulary_shares > 1:
        notes.append(
            f"Embedding and LM head are split over {request.vocabulary_shares} stages. Messages and sums of the "
            "embedding's shares take no time, as they overlap."
        )
    if splits_attention(model, request):
        notes.append(
            "Core attention of each layer is a stage. Messages to it have queries, keys, values and the residual, "
            "and messages from it have its output and the residual."
        )
    if options.spread:
        notes.append("Computation takes the expected time of the slowest of the job's GPUs.")
    if model.recomputed_modules == {"core_attn"} and model.flash_attention:
        notes.append("Selective recomputation frees nothing: flash attention keeps no score matrix.")
    return (*notes, *_network_notes(devices, request))


def _exposed(options: RooflineOptions) -> str:
    """Return the note on collectives within actions."""
    if options.overlap_tp:
        return "Tensor-parallel collectives overlap with products; context- and expert-parallel ones are exposed."
    return "Tensor-, context- and expert-parallel collectives are exposed, in the forward and the input gradient."


def _adam(options: RooflineOptions) -> str:
    """Return the name of the optimizer with the precisions of main weights and moments, once if they are equal."""
    kept = [options.main_params or "fp32", options.exp_avg or "fp32", options.exp_avg_sq or "fp32"]
    return f"Adam in {kept[0] if len(set(kept)) == 1 else ', '.join(kept)}"


def _network_notes(devices: Devices, request: CostRequest) -> list[str]:
    if request.collectives is not None:
        used = "Collectives and the reduction of gradients are timed on the cluster's links"
        return [f"{used}; the device's scale-up figures and data_parallel are not used."]
    notes = []
    if request.dp > 1 and not request.data_parallel:
        notes.append("The data-parallel network is not described: reducing gradients over it takes no time.")
    wide = max(request.tp * request.cp, (request.etp or request.tp) * request.ep)
    wide = max([wide, *(grid.tp * grid.cp for grid in request.encoders)])
    node = devices.scale_up_size
    if wide > node and request.data_parallel:
        notes.append(f"Groups that span {wide} devices pass the node's {node} and use the data-parallel network.")
    elif wide > node:
        notes.append(
            f"No network between nodes is described: groups that span {wide} devices have links as fast as those "
            f"in a node of {node}. Choose a cluster, or set data_parallel.bandwidth."
        )
    return notes
