"""Costs of actions: of the configured cost model, for slices and reductions."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Bridge, ReduceGroups, Reshard
from pptrace.config.schema import grid_key, module_title
from pptrace.errors import ConfigError, nearest
from pptrace.memo import memoized
from pptrace.network.cluster import RankNetwork, SharedLayout, flows_of_gpu, message_share, sibling_replicas
from pptrace.plugins.construction import build_workload
from pptrace.plugins.registry import installation
from pptrace.plugins.requests import CostRequest, EncoderGrid
from pptrace.run.hardware import check_unread_device, fill_first_device, preset_values, rank_devices
from pptrace.run.inputs import at_location
from pptrace.run.speeds import speeds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import EncoderParallel
    from pptrace.network.collectives import LinkCollectives
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import CostModelOffer, ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.run.inputs import Preparation
    from pptrace.run.sequences import Pack, Sequences
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


_STAGE_ROWS = 20
"""Rows of a memo that take as much memory as the costs of a stage."""
_PARAMETER_ROWS = 200
"""Rows of a memo that take as much memory as the parameters of costs."""


def with_reduction(resolved: Resolved, network: Network) -> Resolved:
    """Fill in the bandwidth of reductions over replicas: by default, that of the pipeline's network."""
    experiment = resolved.experiment
    parallel, reduction = experiment.parallel, experiment.data_parallel
    of_encoders = [dp * cp for dp, cp, _ in map(parallel.grid_sizes, parallel.grids.values())]
    replicas = max(parallel.dp * parallel.cp, *of_encoders, 1)
    if replicas == 1 or reduction.bandwidth is not None or (parallel.pp or 1) == 1:
        return resolved
    path = network.paths(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32))
    rate = int(path.rate_kbps[0]) * 1000
    if not rate:
        return resolved
    defaults = {"bandwidth": rate}
    if "data_parallel.latency" not in resolved.positions:
        defaults["latency"] = int(path.latency_ns[0])
    return resolved.with_values("data_parallel", defaults, "as the pipeline's network")


class Costs(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """A cost model with checked options, for any number of stages."""

    resolved: Resolved
    """The configuration, for locations of errors."""
    offer: Provided[CostModelOffer]
    """The cost model."""
    request: CostRequest
    """The request to it, without stages."""
    network: Network
    """The network between ranks."""
    sequences: Sequences | None = None
    """Lengths of the microbatches' sequences; None for equal ones."""
    speeds: Int64s | None = None
    """Speeds of ranks in thousandths, shape (replicas, ranks); None where all have the device's speed."""

    @cached_property
    def _workloads(self) -> dict[Any, Workload]:
        return {}

    @property
    def classes(self) -> Int32s | None:
        """Cost class of each microbatch, as in :class:`~pptrace.run.speeds.ReplicaCosts`."""
        return None if self.sequences is None else self.sequences.pack_of + 1

    def classes_of(self, workload: Workload) -> Int32s | None:
        """Return the class of each microbatch in these costs, as in ``ReplicaCosts``."""
        return None if self.sequences is None else self.sequences.classes_of(workload)

    def workload_of(self, table: Schedule, *, units: bool = False) -> Workload:
        """Return the costs of the stages, or units, of a table; raises as :meth:`workload`."""
        placement = table.placement
        holders = placement.holders() if self.request.rank_devices else ()
        return self.workload(placement.stages, placement.graph, holders, has_pairs=table.has_pairs, units=units)

    @property
    def are_replicas_alike(self) -> bool:
        """Whether all replicas have the same times."""
        return self.speeds is None and (self.classes is None or not (self.classes != self.classes[0]).any())

    def workload(
        self,
        stages: int,
        edges: tuple[tuple[int, int], ...] = (),
        holders: tuple[tuple[int, ...], ...] = (),
        *,
        has_pairs: bool = False,
        units: bool = False,
    ) -> Workload:
        """Return the costs of actions for these stages of the model.

        Args:
            stages: number of stages.
            edges: edges of the stage graph as (from, to), forward; empty for a chain.
            holders: the ranks that hold each stage; empty where stages loop over the ranks.
            has_pairs: whether the schedule has overlapped pairs.
            units: whether the stages are units of one rank.

        Raises:
            ConfigError: costs that these stages cannot have.
            PluginError: the cost model fails.
        """
        key = stages, edges, holders, has_pairs, units
        if key not in self._workloads:
            looped = tuple((stage % self.request.ranks,) for stage in range(stages))
            self._workloads[key] = self._build(replace(
                self.request, stages=stages, edges=edges,
                stage_ranks=() if holders == looped else holders, has_pairs=has_pairs, units=units,
                reduce_each=self.resolved.experiment.data_parallel.reduces_each(units=units),
            ))  # fmt: skip
        return self._workloads[key]

    def _build(self, request: CostRequest) -> Workload:
        with at_location(self.resolved, "costs"):
            base = self._build_equal(request)
            if self.sequences is None:
                return base
            if base.classes and self.offer.offer.model is None:
                raise self.resolved.error("batch", "costs already have lengths: remove one of them")
            return self.sequences.costs(base, lambda pack: self._of_pack(request, pack, base))

    def _build_equal(self, request: CostRequest) -> Workload:
        """Return the costs of equal microbatches; steps that share results share them, except on a cluster."""
        if isinstance(self.network, RankNetwork):
            return build_workload(self.offer, request)
        return memoized(
            lambda: build_workload(self.offer, request), ("costs", request.texts()), self.offer.offer,
            rows=_STAGE_ROWS * request.stages,
        )  # fmt: skip

    def _of_pack(self, request: CostRequest, pack: Pack, base: Workload) -> Workload:
        """Return the costs of one microbatch of a pack, by the cost model, or without a model in proportion."""
        if self.offer.offer.model is None:
            if pack.cp:
                message = "groups of ranks need costs of a model: write model, or remove the key"
                raise self.resolved.error("batch.documents.dynamic_cp", message)
            if pack.document:
                base = build_workload(self.offer, replace(request, document=pack.document))
            return base.scaled(Fraction(pack.tokens, request.sequence))
        # Frameworks pad sequences that tensor-parallel devices split to equal parts.
        padded = -(-pack.tokens // request.tp) * request.tp if request.sequence_parallel else pack.tokens
        cp, collectives = pack.cp or request.cp, request.collectives
        if pack.cp and isinstance(self.network, RankNetwork):
            collectives = _link_collectives(self.network).of_parts("cp", cp)
        return build_workload(self.offer, replace(
            request, sequence=padded, document=pack.document, global_batch=request.micro, cp=cp,
            dp=request.dp * request.cp // cp, collectives=collectives,
        ))  # fmt: skip


def model_costs(inputs: Preparation, network: Network) -> Costs:
    """Return the costs that a configuration names, or those that read its model.

    Raises:
        ConfigError: a value that the cost model cannot take, or no cost model for the model.
        PluginError: a name that no plugin offers.
    """
    provided, model, device, rank_devices, options = inputs.share(
        _parameters_of_costs, "parameters of costs", reads=("model", "device", "costs", "parallel"),
        fills=("model", "device", "costs"), rows=_PARAMETER_ROWS,
    )  # fmt: skip
    if options.get("spread") and inputs.experiment.data_parallel.spread:
        message = "costs.spread lengthens all times for the slowest of the same GPUs: write one of the two keys"
        raise inputs.resolved.error("data_parallel.spread", message)
    sequences = _sequences(inputs, int(model.get("hidden") or 0))
    parallel, batch = inputs.experiment.parallel, inputs.experiment.batch
    reduction = inputs.experiment.data_parallel
    ranks = parallel.pp or 1
    request = CostRequest(
        ranks=ranks, stages=ranks * parallel.vp, microbatches=batch.known_microbatches,
        model=model, device=device, rank_devices=rank_devices, options=options,
        tp=parallel.tp, cp=parallel.cp, dp=parallel.dp, ep=parallel.ep, etp=parallel.etp or 0,
        sequence_parallel=parallel.sequence_parallel, micro=batch.micro, sequence=batch.sequence or 0,
        global_batch=batch.global_batch or 0,
        collectives=_link_collectives(network) if isinstance(network, RankNetwork) else None,
        data_parallel={"rate_kbps": max(reduction.bandwidth // 1000, 1), "latency_ns": reduction.latency}
        if reduction.bandwidth else {},
        reshard=(reduction.reshard_rule or Reshard.NEVER).value, subgroup=reduction.subgroup,
        reduce_each=reduction.reduces_each(),
        shard=(reduction.shard or 0) % parallel.dp, expert_shard=reduction.expert_shard or 0,
        reduce_groups=(reduction.reduce_groups or ReduceGroups.EACH).value,
        encoders=_encoder_grids(inputs.resolved, model, network),
    )  # fmt: skip
    costs = Costs(
        resolved=inputs.resolved, offer=provided, request=request, network=network, sequences=sequences,
        speeds=speeds_of(inputs.resolved),
    )  # fmt: skip
    for grid in request.encoders:
        if grid.dp != parallel.dp and not costs.are_replicas_alike:
            message = f"replicas that differ need an encoder in each: write parallel.dp ({parallel.dp})"
            raise inputs.resolved.error(f"{grid_key(grid.name)}.dp", message)
    return costs


class _CostParameters(NamedTuple):
    """A cost model with its checked parameters, as in :class:`~pptrace.plugins.requests.CostRequest`."""

    offer: Provided[CostModelOffer]
    model: dict[str, Any]
    device: dict[str, Any]
    rank_devices: tuple[dict[str, Any], ...]
    options: dict[str, Any]


def _parameters_of_costs(inputs: Preparation) -> _CostParameters:
    """Look up the cost model, and fill in its model, device and options."""
    provided = look_up_cost_model(inputs)
    offer = provided.offer
    model = _parameters(inputs, "model", offer.model, offer.name)
    device, rank_devices = _devices(inputs, offer)
    return _CostParameters(provided, model, device, rank_devices, _options(inputs, offer))


def _sequences(inputs: Preparation, hidden: int) -> Sequences | None:
    """Return the lengths of sequences, and add their note; None for equal ones."""
    if inputs.experiment.batch.lengths is None and inputs.experiment.batch.documents is None:
        return None
    from pptrace.run.sequences import sequences_of

    inputs.resolved, sequences = sequences_of(inputs.resolved, hidden)
    if sequences is not None and sequences.note:
        inputs.notes = (*inputs.notes, sequences.note)
    return sequences


def _encoder_grids(resolved: Resolved, model: Mapping[str, Any], network: Network) -> tuple[EncoderGrid, ...]:
    """Return the sizes of encoders that are configured and not those of the stage that the encoder is part of.

    Raises:
        ConfigError: no such encoder, or sizes that do not fit the replicas or the decoder's GPUs.
    """
    parallel, known = resolved.experiment.parallel, model.get("encoders") or {}
    if not parallel.grids:
        return ()
    key = "parallel.encoder" if parallel.encoder else "parallel.encoders"
    documents = resolved.experiment.batch.documents
    if documents is not None and documents.dynamic_cp:
        raise resolved.error(key, "groups of batch.documents.dynamic_cp change the decoder's grid: remove a key")
    if not (known or model.get("encoder")):
        raise resolved.error(key, "the model has no encoder: write model.encoder, or remove the key")
    unknown = next((name for name in parallel.encoders or () if name not in known), None)
    if unknown is not None:
        message = f"the model has no encoder of this name{nearest(unknown, known)}"
        raise resolved.error(grid_key(unknown), message)
    grids = [_encoder_grid(resolved, name, section, network) for name, section in parallel.grids.items()]
    return tuple(grid for grid in grids if grid is not None)


def _encoder_grid(resolved: Resolved, name: str, section: EncoderParallel, network: Network) -> EncoderGrid | None:
    parallel, key = resolved.experiment.parallel, grid_key(name)
    dp, cp, tp = sizes = parallel.grid_sizes(section)
    decoder_sizes = parallel.dp, parallel.cp, parallel.tp
    if resolved.experiment.data_parallel.shard is not None and dp != parallel.dp:
        message = f"{dp}, and data_parallel.shard needs as many replicas as in the decoder: write {parallel.dp}"
        raise resolved.error(f"{key}.dp", message)
    has_leaders = section.bridge is Bridge.LEADERS
    if has_leaders:
        if not section.pp:
            message = "an encoder on the decoder's GPUs sends no messages: remove the key, or write pp"
            raise resolved.error(f"{key}.bridge", message)
        _check_leaders(resolved, f"{key}.bridge", sizes, decoder_sizes)
    if not section.pp:
        if sizes == decoder_sizes:
            return None
        _check_shared(resolved, key, sizes, decoder_sizes)
    job = network if isinstance(network, RankNetwork) else None
    ends = ((dp, 1, 1), (parallel.dp, 1, 1)) if has_leaders else (sizes, decoder_sizes)
    # Without a cluster, a message has all bytes that a GPU sends or receives.
    flows = flows_of_gpu(*ends) if job is None else 1
    return EncoderGrid(
        name=name, ranks=section.pp, tp=tp, cp=cp, dp=dp,
        collectives=None if job is None else _encoder_collectives(job, name, sizes),
        forward_share=flows * message_share(*ends),
        gradient_share=flows * message_share(*ends[::-1]) * Fraction(dp * cp, parallel.dp * parallel.cp),
        broadcasts=has_leaders,
    )  # fmt: skip


def _check_leaders(
    resolved: Resolved, key: str, sizes: tuple[int, int, int], decoder_sizes: tuple[int, int, int]
) -> None:
    """Check that leaders of replicas can exchange messages; ``key`` is that of the bridge."""
    (dp, cp, _), (decoder_dp, decoder_cp, _) = sizes, decoder_sizes
    if cp * decoder_cp > 1:
        message = f"leaders send whole sequences, and cp is {decoder_cp} (encoder {cp}): write bridge: pieces"
        raise resolved.error(key, message)
    if max(dp, decoder_dp) % min(dp, decoder_dp):
        message = f"neither dp {decoder_dp} nor the encoder's dp {dp} divides the other: write bridge: pieces"
        raise resolved.error(key, message)


def _check_shared(
    resolved: Resolved, key: str, sizes: tuple[int, int, int], decoder_sizes: tuple[int, int, int]
) -> None:
    """Check the sizes of an encoder on the GPUs of the decoder's first stage."""
    names = ("dp", "cp", "tp")
    if prod(sizes) != prod(decoder_sizes):
        grid = " x ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
        gpus = f"the decoder's first stage has {prod(decoder_sizes)}"
        separate = f"or separate GPUs with {key}.pp"
        raise resolved.error(key, f"{grid} need {prod(sizes)} GPUs, and {gpus}: write sizes for these, {separate}")
    if sizes[1] != decoder_sizes[1]:
        message = f"{sizes[1]}, and the GPUs that it shares have parallel.cp {decoder_sizes[1]}: remove the key"
        raise resolved.error(f"{key}.cp", message)
    if max(sizes[0], decoder_sizes[0]) % min(sizes[0], decoder_sizes[0]):
        message = f"{sizes[0]} neither divides parallel.dp ({decoder_sizes[0]}) nor is a multiple of it"
        raise resolved.error(f"{key}.dp", message)


def _encoder_collectives(job: RankNetwork, name: str, sizes: tuple[int, int, int]) -> LinkCollectives:
    """Return the times of collectives over the groups of an encoder."""
    (dp, cp, tp), decoder = sizes, job.layout
    shared_layout = SharedLayout(dp=dp, cp=cp, tp=tp, host=decoder)
    layout = next((each for each in decoder.encoders if each.name == module_title(name)), shared_layout)

    def groups(axis: str) -> Int32s:
        if axis != "siblings":
            return layout.groups(axis)
        grid = layout.grid() if dp > decoder.dp else decoder.grid()[:1]
        return sibling_replicas(grid, max(dp, decoder.dp) // min(dp, decoder.dp))

    from pptrace.network.collectives import LinkCollectives

    return LinkCollectives(network=job.network, groups=groups)


def _link_collectives(network: RankNetwork) -> LinkCollectives:
    """Return the times of collectives over the groups of a job on its cluster."""
    from pptrace.network.collectives import LinkCollectives

    known: dict[Any, Any] = memoized(dict, "plans of collectives", network.network)
    return LinkCollectives(network=network.network, groups=network.layout.groups, known=known)


def look_up_cost_model(inputs: Preparation) -> Provided[CostModelOffer]:
    """Return the cost model of a configuration: by name, or the one that reads models.

    Raises:
        ConfigError: there is not exactly one cost model that reads models.
        PluginError: a name that no plugin offers.
    """
    models, name = inputs.registry.cost_models, inputs.experiment.costs.name
    if name is None:
        readers = [name for name, provided in sorted(models.items()) if provided.offer.model is not None]
        if len(readers) != 1:
            known = ", ".join(readers) or f"none is installed: {installation('pptrace-models')}"
            raise inputs.resolved.error("costs", f"write which cost model reads the model: {known}")
        (name,) = readers
        inputs.resolved = inputs.resolved.with_values("costs", {"name": name}, "the cost model that reads models")
    return inputs.look_up(models, name, "costs")


def _options(inputs: Preparation, offer: CostModelOffer) -> dict[str, Any]:
    """Return the cost model's checked options; an error names the cost models that have the option."""
    try:
        return inputs.fill_options("costs", offer.options)
    except ConfigError as error:
        models = inputs.registry.cost_models
        option = re.split(r"[.\[]", f"{error.key}.")[1]
        known = {name: provided.offer.options for name, provided in sorted(models.items())}
        takers = [name for name, options in known.items() if options and option in options().model_fields]
        other_takers = " or ".join(name for name in takers if name != offer.name)
        if option in models and offer.name not in takers:
            message = f"it is not an option: write costs.name: {option}, and its options beside it"
        elif other_takers and offer.name not in takers:
            message = f"{offer.name} costs do not take it: remove it, or write costs.name: {other_takers}"
        elif other_takers and "costs.name" not in inputs.resolved.positions:
            message = f"{error.message} (of {offer.name} costs; for others write costs.name: {other_takers})"
        else:
            raise
        raise inputs.resolved.error(error.key, message) from None


def _devices(inputs: Preparation, offer: CostModelOffer) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return the device, and the device of each rank where they differ."""
    if inputs.experiment.device is not None:
        if offer.device is not None:
            fill_first_device(inputs)
            device = _parameters(inputs, "device", offer.device, offer.name)
            return device, rank_devices(inputs, offer.device, device)
        check_unread_device(inputs, offer.name)
    return _parameters(inputs, "device", offer.device, offer.name) if offer.device else {}, ()


def _parameters(inputs: Preparation, key: str, model: Any, costs: str) -> dict[str, Any]:
    """Return the values of the model or device: the user's over those of its preset."""
    section = getattr(inputs.experiment, key)
    if model is None:
        if section is not None:
            raise inputs.resolved.error(key, f"{costs} costs read no model: remove the key, or choose other costs")
        return {}
    if section is None:
        hint = "--model NAME" if key == "model" else "--device NAME"
        raise inputs.resolved.error(key, f"missing: costs {costs} depend on it, write {hint}")
    return inputs.fill_options(key, model, preset_values(inputs, key, section.preset, key))


_BY_BYTES = (
    "activation_bytes", "weight_activation_bytes", "boundary_bytes", "boundary_gradient_bytes",
    "boundary_buffer_bytes", "offload_bytes",
    "checkpoint_bytes",
    "offload_ns", "reload_ns",
)  # fmt: skip
"""Columns of slices that depend on bytes, which are equal in all slices of a microbatch."""


def part_times(
    provided: Provided[ScheduleOffer], request: ScheduleRequest, workload: Workload
) -> Sequence[Fraction]:
    """Return the share of each part in a microbatch's time; empty for equal parts.

    Raises:
        PluginError: the schedule's own function fails.
    """
    shares = provided.offer.part_times
    if shares is None:
        return ()
    kernels = workload.kernels() if workload.kernels else ()
    total_ns = sum(kernel.duration_ns for kernel in kernels)
    causal_ns = sum(kernel.duration_ns for kernel in kernels if kernel.causal)
    request = dataclasses.replace(request, causal_share=Fraction(causal_ns, max(total_ns, 1)))
    return shares(request)


def in_parts(workload: Workload, microbatches: int, parts: int, times: Sequence[Fraction]) -> Workload:
    """Return the costs of consecutive parts of each microbatch.

    ``times`` are each part's share of the time; empty for equal parts.
    """
    if len(set(times)) <= 1:
        return workload.divided(parts)
    class_of = workload.microbatch_class
    class_of = class_of if class_of.size else np.zeros(microbatches, dtype=np.int32)
    base = replace(workload, classes=(), microbatch_class=np.zeros(0, dtype=np.int32))
    first, *classes = (_part(costs, share, parts) for costs in (base, *workload.classes) for share in times)
    part_class = np.repeat(class_of, parts) * parts + np.tile(np.arange(parts, dtype=np.int32), microbatches)
    return replace(first, classes=tuple(classes), microbatch_class=part_class.astype(np.int32))


def _part(whole: Workload, share: Fraction, parts: int) -> Workload:
    """Return the costs of a part with this share of the time; all parts have the same bytes."""
    even = whole.scaled(Fraction(1, parts))
    return replace(whole.scaled(share), **{name: getattr(even, name) for name in _BY_BYTES})


_NOT_REDUCED = "gradients of stages that several ranks hold are not reduced between them: "
_OFF = f"{_NOT_REDUCED}data_parallel.stage_replicas is false"
_UNKNOWN = f"{_NOT_REDUCED}costs {{name}} have no gradients"
_STAGE_REPLICAS = "data_parallel.stage_replicas"


def with_stage_replicas(
    resolved: Resolved, workload: Workload, placement: Placement, network: Network
) -> Workload:
    """Add the all-reduce between the ranks that hold a stage to its reduction, if switched on.

    All groups reduce at once, after the reduction over data-parallel replicas. If these share state, a device
    reduces its share of the gradients. Without gradients in the costs, a note replaces it.

    Raises:
        ConfigError: the configuration has this reduction, and the costs have no gradients.
    """
    holders = placement.copies()
    shared = np.flatnonzero(holders.sum(axis=0) > 1)
    have_no_weights = workload.gradients_bytes.any() and not workload.gradients_bytes[shared].any()
    if not shared.size or have_no_weights:
        return workload
    if not resolved.experiment.data_parallel.stage_replicas:
        return replace(workload, notes=(*workload.notes, _OFF))
    if not workload.gradients_bytes[shared].any():
        name = resolved.experiment.costs.name
        if _STAGE_REPLICAS not in resolved.positions:
            return replace(workload, notes=(*workload.notes, _UNKNOWN.format(name=name)))
        message = f"costs {name} have no gradients to reduce: write costs.gradients, or use costs that count them"
        raise resolved.error(_STAGE_REPLICAS, message)

    from pptrace.network.collectives import LinkCollectives

    reduce_ns = workload.reduce_ns.copy()
    reduced_bytes = np.where(workload.reduced_bytes > 0, workload.reduced_bytes, workload.gradients_bytes)
    for copies in sorted({*holders.sum(axis=0)[shared].tolist()}):
        stages = np.flatnonzero(holders.sum(axis=0) == copies)
        sets = np.array(sorted({tuple(np.flatnonzero(holders[:, stage]).tolist()) for stage in stages}))
        if isinstance(network, RankNetwork):
            rank_grid = network.layout.rank_grid
            ranks = [np.stack([rank_grid(rank).ravel() for rank in row], axis=1) for row in sets.tolist()]
            sets = np.concatenate(ranks)
        groups = {"replicas": sets.astype(np.int32)}.__getitem__
        over = LinkCollectives(
            network=network.network if isinstance(network, RankNetwork) else network, groups=groups
        )
        with at_location(resolved, "network"):
            for stage in stages.tolist():
                reduce_ns[stage] += over.ns("all-reduce", "replicas", int(reduced_bytes[stage]))
    return replace(workload, reduce_ns=reduce_ns)
