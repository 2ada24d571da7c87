"""From a configuration's model, device and costs to the workload."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Reshard
from pptrace.errors import ConfigError
from pptrace.experiment.devices import check_unread_device, preset_values, rank_devices, with_first_device
from pptrace.experiment.lengths import lengths_of, with_lengths
from pptrace.experiment.placed import placed
from pptrace.experiment.speeds import speeds_of
from pptrace.hooks.build import build_workload
from pptrace.model.request import CostRequest
from pptrace.network.collectives import LinkCollectives
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.assembly import Assembly
    from pptrace.experiment.cluster import OnCluster
    from pptrace.hooks.offers import CostModelOffer
    from pptrace.hooks.provider import Provided
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network

__all__ = ["Costs", "costs_of", "with_reduction"]


def with_reduction(resolved: Resolved, network: Network) -> Resolved:
    """Let replicas reduce over a network like the pipeline's where none of their own is described."""
    experiment = resolved.experiment
    parallel, reduction = experiment.parallel, experiment.data_parallel
    if parallel.dp * parallel.cp == 1 or reduction.bandwidth is not None or (parallel.pp or 1) < 2:  # noqa: PLR2004 - a pair
        return resolved
    path = network.paths(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32))
    rate = int(path.rate_kbps[0]) * 1000
    if not rate:
        return resolved
    found = {"bandwidth": rate}
    if "data_parallel.latency" not in resolved.positions:
        found["latency"] = int(path.latency_ns[0])
    origins = {**resolved.origins, **{f"data_parallel.{key}": "as the pipeline's network" for key in found}}
    reduction = reduction.model_copy(update=found)
    return replace(
        resolved, experiment=experiment.model_copy(update={"data_parallel": reduction}), origins=origins
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A cost model with its options checked, ready for any number of stages."""

    resolved: Resolved
    """Where errors are placed."""
    offer: Provided[CostModelOffer]
    """The cost model."""
    request: CostRequest
    """What it is asked for, but for the stages."""
    lengths: Int64s | None = None
    """Tokens in each microbatch's sequences, shape (replicas, microbatches); None where all are alike."""
    speeds: Int64s | None = None
    """Speeds of ranks in thousandths, shape (replicas, ranks); None where all have the device's."""

    def workload(
        self,
        stages: int,
        edges: tuple[tuple[int, int], ...],
        holders: tuple[tuple[int, ...], ...] = (),
        *,
        has_pairs: bool = False,
    ) -> Workload:
        """Return what actions cost where the model is cut into these stages.

        Args:
            stages: how many.
            edges: the stages' graph as (from, to), forward.
            holders: the ranks that hold each stage; none where stages loop over the ranks.
            has_pairs: whether the schedule has overlapped pairs.

        Raises:
            ConfigError: costs that these stages cannot have.
            PluginError: the cost model fails.
        """
        chain = tuple((stage, stage + 1) for stage in range(stages - 1))
        looped = tuple((stage % self.request.ranks,) for stage in range(stages))
        request = replace(
            self.request, stages=stages, edges=() if edges == chain else edges,
            stage_ranks=() if holders == looped else holders, has_pairs=has_pairs,
        )  # fmt: skip

        def of_one(length: int) -> Workload:
            return build_workload(self.offer, replace(request, sequence=length, global_batch=request.micro))

        with placed(self.resolved, "costs"):
            base = build_workload(self.offer, request)
            if self.lengths is None:
                return base
            if base.classes:
                raise self.resolved.error("batch.lengths", "costs have lengths of their own: remove one of them")
            build = of_one if self.offer.offer.model is not None else None
            return with_lengths(base, self.lengths, request.sequence, request.micro, build)


def costs_of(work: Assembly, job: OnCluster | None) -> tuple[Assembly, Costs]:
    """Return the costs that a configuration names, or those that read its model.

    Raises:
        ConfigError: a value that the cost model cannot take, or no cost model for the model.
        PluginError: a name that no plugin offers.
    """
    work, provided = _cost_model(work)
    offer = provided.offer
    work, model = _described(work, "model", offer.model, offer.name)
    if offer.device is not None:
        work = with_first_device(work)
    work, device = _described(work, "device", offer.device, offer.name)
    work, by_rank = rank_devices(work, offer.device, device)
    work, options = _options(work, offer)
    if options.get("spread") and work.experiment.data_parallel.spread:
        message = "costs.spread lengthens all times for the slowest of the same GPUs: write one of the two keys"
        raise work.resolved.error("data_parallel.spread", message)
    resolved, lengths = lengths_of(work.resolved)
    work = work.at(resolved)
    experiment = work.experiment
    parallel, batch = experiment.parallel, experiment.batch
    ranks = parallel.pp or 1
    reduction = experiment.data_parallel
    request = CostRequest(
        ranks=ranks, stages=ranks * parallel.vp, microbatches=batch.known_microbatches,
        model=model, device=device, rank_devices=by_rank, options=options,
        tp=parallel.tp, cp=parallel.cp, dp=parallel.dp, ep=parallel.ep, etp=parallel.etp or 0,
        sequence_parallel=parallel.sequence_parallel, micro=batch.micro, sequence=batch.sequence or 0,
        global_batch=batch.global_batch or 0,
        collectives=LinkCollectives(network=job.cluster, layout=job.layout) if job else None,
        data_parallel={"rate_kbps": max(reduction.bandwidth // 1000, 1), "latency_ns": reduction.latency}
        if reduction.bandwidth else {},
        reshard=(reduction.reshard or Reshard.NEVER).value, reduce_each=bool(reduction.reduce_each),
    )  # fmt: skip
    return work, Costs(
        resolved=work.resolved, offer=provided, request=request, lengths=lengths, speeds=speeds_of(resolved)
    )


def _cost_model(work: Assembly) -> tuple[Assembly, Provided[CostModelOffer]]:
    name = work.experiment.costs.name
    if name is None:
        readers = [name for name, p in sorted(work.registry.cost_models.items()) if p.offer.model is not None]
        if len(readers) != 1:
            known = ", ".join(readers) or "none is installed: pip install pptrace-models"
            raise work.resolved.error("costs", f"write which cost model reads the model: {known}")
        (name,) = readers
        work = work.at(work.resolved.with_costs(name, "the cost model that reads models"))
    with placed(work.resolved, "costs"):
        provided = work.registry.cost_models[name]
    return work.using(provided), provided


def _options(work: Assembly, offer: CostModelOffer) -> tuple[Assembly, dict[str, Any]]:
    """Return the cost model's checked options; an error names the cost models that have the option."""
    try:
        return work.options("costs", offer.options)
    except ConfigError as error:
        option = re.split(r"[.\[]", f"{error.key}.")[1]
        takers = [name for name, one in sorted(work.registry.cost_models.items()) if option in _fields(one.offer)]
        others = " or ".join(name for name in takers if name != offer.name)
        if option in work.registry.cost_models and offer.name not in takers:
            message = f"it is no option: write costs.name: {option}, and its options beside it"
        elif others and offer.name not in takers:
            message = f"{offer.name} costs do not take it: remove it, or write costs.name: {others}"
        elif others and "costs.name" not in work.resolved.positions:
            message = f"{error.message} (of {offer.name} costs; for others write costs.name: {others})"
        else:
            raise
        raise work.resolved.error(error.key, message) from None


def _fields(offer: CostModelOffer) -> Collection[str]:
    return offer.options().model_fields if offer.options else ()


def _described(work: Assembly, key: str, model: Any, costs: str) -> tuple[Assembly, dict[str, Any]]:
    """Return the model's or device's values, its preset's under those that the user wrote."""
    section = getattr(work.experiment, key)
    if model is None and key == "device":
        check_unread_device(work, costs)
        return work, {}
    if model is None:
        if section is not None:
            raise work.resolved.error(key, f"{costs} costs read no model: remove the key, or choose other costs")
        return work, {}
    if section is None:
        hint = "--model NAME" if key == "model" else "--device NAME"
        raise work.resolved.error(key, f"missing: costs {costs} depend on it, write {hint}")
    work, preset = preset_values(work, key, section.preset, key)
    return work.options(key, model, preset)
