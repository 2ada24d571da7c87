"""From a resolved configuration and the plugins' offers to what a simulation needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.experiment.placed import placed
from pptrace.hooks.build import build_network, build_schedule, build_workload
from pptrace.model.request import CostRequest, NetworkRequest, ScheduleRequest
from pptrace.network.contract import transfer_ns
from pptrace.schedule.issue_order import Receive
from pptrace.sim.limits import MOST_RANKS
from pptrace.sim.policy import Policy, PolicyName, StreamPer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.experiment import Experiment
    from pptrace.config.resolve import Resolved
    from pptrace.hooks.offers import CostModelOffer
    from pptrace.hooks.provider import Provided
    from pptrace.hooks.registry import Registry
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.source import TableFile
    from pptrace.schedule.table import Schedule

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What one simulation is run on."""

    resolved: Resolved
    """The configuration, every option of every plugin filled in."""
    schedule: Schedule
    """The table."""
    request: ScheduleRequest
    """What the schedule was asked for; a table file answers what it holds."""
    workload: Workload
    """What the actions cost."""
    network: Network
    """What lies between the ranks."""
    policy: Policy
    """How messages are issued."""
    plugins: Mapping[str, str]
    """Distribution and version of each plugin that took part."""
    table: TableFile | None = None
    """The file that the schedule was read from, if any."""


@dataclass(slots=True)
class _Assembly:
    """The configuration and the plugins that took part, as they become known."""

    resolved: Resolved
    registry: Registry
    plugins: dict[str, str]

    @property
    def experiment(self) -> Experiment:
        return self.resolved.experiment

    def uses(self, provided: Provided[Any]) -> Any:
        """Note whose offer is used, and return it."""
        if provided.distribution:
            self.plugins[provided.distribution] = provided.version
        return provided.offer

    def options(self, key: str, model: Any, preset: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return checked options: for a parameter model its fields, else nothing may be given."""
        if model is None:
            section = getattr(self.experiment, key)
            extra = section.options if key == "schedule" else section.values
            if extra:
                name = next(iter(extra))
                prefix = "schedule.options" if key == "schedule" else key
                raise self.resolved.error(f"{prefix}.{name}", f"{section.name} takes no options: remove it")
            return {}
        self.resolved, checked = self.resolved.options(key, model(), preset or {})
        return dict(checked.model_dump())


def prepare(resolved: Resolved, registry: Registry) -> Prepared:
    """Look up every name, check every option, and build schedule, costs, network and policy.

    Raises:
        ConfigError: a value that a plugin cannot take, with its place in the configuration.
        PluginError: a name that no plugin offers, or a plugin that fails.
        ScheduleError: sizes that the schedule cannot take.
    """
    work = _Assembly(resolved, registry, {})
    if (resolved.experiment.parallel.pp or 0) > MOST_RANKS:
        raise resolved.error("parallel.pp", f"at most {MOST_RANKS} pipeline ranks are simulated")
    file = _read(work) if resolved.experiment.schedule.kind == "table" else None
    table = file.schedule if file else None
    if table is not None:
        work.resolved = _sized(work.resolved, table)
    network = _network(work)
    work.resolved = _with_reduction(work.resolved, network)
    costs = _cost_model(work)
    cost_request = _cost_request(work, costs.offer)
    workload = _build_costs(work, costs, cost_request)
    request = _schedule_request(work, workload, network)
    if table is None:
        table = _build_schedule(work, request)
    placement = table.placement
    edges = tuple((int(low), int(high)) for low, high in placement.edges)
    if (table.stages, edges) != (cost_request.stages, _chain(cost_request.stages)):
        workload = _build_costs(work, costs, replace(cost_request, stages=table.stages, edges=edges))
    return Prepared(
        resolved=work.resolved, schedule=table, request=request, workload=workload, network=network,
        policy=_policy(work.experiment), plugins=dict(sorted(work.plugins.items())), table=file,
    )  # fmt: skip


def _read(work: _Assembly) -> TableFile:
    schedule = work.experiment.schedule
    from pptrace.schedule.text import load_table

    work.options("schedule", None)
    return load_table(Path(schedule.name))


def _sized(resolved: Resolved, table: Schedule) -> Resolved:
    """Take ranks, chunks and microbatches from a table file; what the configuration says must agree."""
    experiment = resolved.experiment
    uneven = table.stages % table.ranks
    chunks = 1 if uneven else table.stages // table.ranks
    asked_chunks = None if uneven or "parallel.vp" not in resolved.positions else experiment.parallel.vp
    for key, asked, there, what in (
        ("parallel.pp", experiment.parallel.pp, table.ranks, "rows"),
        ("parallel.vp", asked_chunks, chunks, "stages per row"),
        ("batch.microbatches", experiment.batch.microbatches, table.units, "microbatches"),
    ):
        if asked is not None and asked != there:
            raise resolved.error(
                key, f"{experiment.schedule.name} has {there} {what}, not {asked}: remove the key"
            )
    origin = f"table {Path(experiment.schedule.name).name}"
    step = experiment.parallel.dp * experiment.batch.micro
    parallel = experiment.parallel.model_copy(update={"pp": table.ranks, "vp": chunks})
    batch = experiment.batch.model_copy(update={"microbatches": table.units, "global_batch": table.units * step})
    sized = ("parallel.pp", "parallel.vp", "batch.microbatches", "batch.global")
    origins = {**resolved.origins, **dict.fromkeys(sized, origin)}
    return replace(
        resolved, experiment=experiment.model_copy(update={"parallel": parallel, "batch": batch}), origins=origins
    )


def _network(work: _Assembly) -> Network:
    with placed(work.resolved, "network"):
        provided = work.registry.network(work.experiment.network.name)
    offer = work.uses(provided)
    options = work.options("network", offer.options)
    ranks = work.experiment.parallel.pp or 1
    with placed(work.resolved, "network"):
        return build_network(provided, NetworkRequest(endpoints=ranks, options=options))


def _with_reduction(resolved: Resolved, network: Network) -> Resolved:
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


def _cost_model(work: _Assembly) -> Provided[CostModelOffer]:
    if work.experiment.costs is None:
        readers = [name for name, p in sorted(work.registry.cost_models.items()) if p.offer.model is not None]
        if len(readers) != 1:
            known = ", ".join(readers) or "none is installed: pip install pptrace-models"
            raise work.resolved.error("costs", f"write which cost model reads the model: {known}")
        work.resolved = work.resolved.chosen("costs", readers[0], "the cost model that reads models")
    costs = work.experiment.costs
    with placed(work.resolved, "costs"):
        provided = work.registry.cost_model(costs.name if costs else "unit")
    work.uses(provided)
    return provided


def _cost_request(work: _Assembly, offer: CostModelOffer) -> CostRequest:
    model = _described(work, "model", offer.model, offer.name)
    device = _described(work, "device", offer.device, offer.name)
    options = work.options("costs", offer.options)
    experiment = work.experiment
    parallel, batch = experiment.parallel, experiment.batch
    ranks = parallel.pp or 1
    reduction = experiment.data_parallel
    return CostRequest(
        ranks=ranks, stages=ranks * parallel.vp, units=batch.units,
        model=model, device=device, options=options,
        tp=parallel.tp, cp=parallel.cp, dp=parallel.dp, ep=parallel.ep,
        sequence_parallel=parallel.sequence_parallel, micro=batch.micro, sequence=batch.sequence or 0,
        global_batch=batch.global_batch or 0,
        data_parallel={"rate_kbps": max(reduction.bandwidth // 1000, 1), "latency_ns": reduction.latency}
        if reduction.bandwidth else {},
    )  # fmt: skip


def _described(work: _Assembly, key: str, model: Any, costs: str) -> dict[str, Any]:
    """Return the model's or device's values, its preset's under those that the user wrote."""
    section = getattr(work.experiment, key)
    if model is None:
        if section is not None and key == "model":
            raise work.resolved.error(key, f"costs {costs} read no {key}: remove the key, or choose other costs")
        return {}
    if section is None:
        hint = "--model NAME" if key == "model" else "--device NAME"
        raise work.resolved.error(key, f"missing: costs {costs} depend on it, write {hint}")
    preset: Mapping[str, Any] = {}
    if section.preset:
        find = work.registry.model if key == "model" else work.registry.device
        with placed(work.resolved, key):
            preset = work.uses(find(section.preset)).values
    return work.options(key, model, preset)


def _build_costs(work: _Assembly, costs: Provided[CostModelOffer], request: CostRequest) -> Workload:
    with placed(work.resolved, "costs"):
        return build_workload(costs, request)


def _schedule_request(work: _Assembly, workload: Workload, network: Network) -> ScheduleRequest:
    parallel = work.experiment.parallel
    ranks = parallel.pp or 1
    known = not workload.unit_time_ns
    transfer = 0
    if ranks > 1 and workload.boundary_bytes.size:
        paths = network.paths(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32))
        message = transfer_ns(workload.boundary_bytes[:1], paths.overhead_ns, paths.rate_kbps)
        transfer = int(message[0] + paths.latency_ns[0])
    static = np.bincount(np.arange(workload.stages) % ranks, weights=workload.static_bytes)
    room = workload.capacity_bytes - workload.reserved_bytes - int(static.max(initial=0))

    def times(column: Any) -> tuple[int, ...]:
        return tuple(int(value) for value in column) if known else ()

    return ScheduleRequest(
        ranks=ranks, units=work.experiment.batch.units, chunks=parallel.vp,
        f_ns=times(workload.f_ns), b_ns=times(workload.b_ns),
        i_ns=times(workload.i_ns), w_ns=times(workload.w_ns), transfer_ns=transfer,
        activation_bytes=times(workload.activation_bytes),
        memory_limit_bytes=max(room, 0) if workload.capacity_bytes else 0,
    )  # fmt: skip


def _build_schedule(work: _Assembly, request: ScheduleRequest) -> Schedule:
    with placed(work.resolved, "schedule"):
        provided = work.registry.schedule(work.experiment.schedule.name)
    offer = work.uses(provided)
    options = work.options("schedule", offer.options)
    with placed(work.resolved, "schedule"):
        schedule = build_schedule(provided, replace(request, options=options))
    if schedule.units > request.units:
        raise ScheduleError(
            f"schedule {offer.name} made {schedule.units} microbatches where {request.units} were asked for"
        )
    return schedule


def _policy(experiment: Experiment) -> Policy:
    p2p = experiment.p2p
    return Policy(
        name=PolicyName(p2p.policy),
        receive=Receive(p2p.receive),
        stream=StreamPer(p2p.stream),
        eager_bytes=p2p.eager,
    )


def _chain(stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(stages - 1))
