"""From a resolved configuration and the plugins' offers to what a simulation needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.experiment.assembly import Assembly
from pptrace.experiment.cluster import layout_of, on_cluster
from pptrace.experiment.costs import build_costs, cost_model, cost_request, with_reduction
from pptrace.experiment.placed import placed
from pptrace.experiment.stage_replicas import with_stage_replicas
from pptrace.hooks.build import build_network, build_schedule
from pptrace.model.request import NetworkRequest, ScheduleRequest
from pptrace.network.contract import transfer_ns
from pptrace.sim.contention import Contention
from pptrace.sim.limits import MOST_RANKS
from pptrace.sim.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.experiment import Experiment
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.cluster import OnCluster
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
    contention: Contention
    """What messages that meet do to each other."""
    plugins: Mapping[str, str]
    """Distribution and version of each plugin that took part."""
    job: OnCluster | None = None
    """The cluster and the job's place on it; None where a flat network stands for it."""
    table: TableFile | None = None
    """The file that the schedule was read from, if any."""


def prepare(resolved: Resolved, registry: Registry) -> Prepared:
    """Look up every name, check every option, and build schedule, costs, network and policy.

    Raises:
        ConfigError: a value that a plugin cannot take, with its place in the configuration.
        PluginError: a name that no plugin offers, or a plugin that fails.
        ScheduleError: sizes that the schedule cannot take.
    """
    work = Assembly(resolved, registry, {})
    if (resolved.experiment.parallel.pp or 0) > MOST_RANKS:
        raise resolved.error("parallel.pp", f"at most {MOST_RANKS} pipeline ranks are simulated")
    file = _read(work) if resolved.experiment.schedule.kind == "table" else None
    table = file.schedule if file else None
    if table is not None:
        work.resolved = _sized(work.resolved, table)
    job = _job(work)
    network: Network = job.hops if job else _network(work)
    if job is None:
        work.resolved = with_reduction(work.resolved, network)
    costs = cost_model(work)
    asked = cost_request(work, costs.offer, job)
    workload = build_costs(work, costs, asked)
    request = _schedule_request(work, workload, network)
    if table is None:
        table, request = _build_schedule(work, request)
        work.resolved = _with_chunks(work.resolved, table)
    placement = table.placement
    edges = tuple((int(low), int(high)) for low, high in placement.edges)
    if (table.stages, edges) != (asked.stages, _chain(asked.stages)):
        workload = build_costs(work, costs, replace(asked, stages=table.stages, edges=edges))
    if table.units > request.units:
        workload = workload.scaled(Fraction(request.units, table.units))
    workload = with_stage_replicas(work.resolved, workload, placement, network, job)
    return Prepared(
        resolved=work.resolved, schedule=table, request=request, workload=workload, network=network,
        policy=_policy(work.experiment), contention=_contention(work.experiment), job=job,
        plugins=dict(sorted(work.plugins.items())), table=file,
    )  # fmt: skip


def _read(work: Assembly) -> TableFile:
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


def _job(work: Assembly) -> OnCluster | None:
    layout_of(work.resolved)
    if work.experiment.cluster is None:
        return None
    work.resolved, job = on_cluster(work.resolved, work.registry, work.uses)
    return job


def _network(work: Assembly) -> Network:
    with placed(work.resolved, "network"):
        provided = work.registry.network(work.experiment.network.name)
    offer = work.uses(provided)
    options = work.options("network", offer.options)
    ranks = work.experiment.parallel.pp or 1
    with placed(work.resolved, "network", options=True):
        return build_network(provided, NetworkRequest(endpoints=ranks, options=options))


def _schedule_request(work: Assembly, workload: Workload, network: Network) -> ScheduleRequest:
    parallel = work.experiment.parallel
    ranks = parallel.pp or 1
    known = not workload.unit_time_ns
    transfer = 0
    if ranks > 1 and workload.boundary_bytes.size:
        with placed(work.resolved, "network"):
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


def _build_schedule(work: Assembly, request: ScheduleRequest) -> tuple[Schedule, ScheduleRequest]:
    """Return the table, and the request with the schedule's options."""
    with placed(work.resolved, "schedule"):
        provided = work.registry.schedule(work.experiment.schedule.name)
    offer = work.uses(provided)
    request = replace(request, options=work.options("schedule", offer.options))
    with placed(work.resolved, "schedule"):
        schedule = build_schedule(provided, request)
    return schedule, request


def _with_chunks(resolved: Resolved, schedule: Schedule) -> Resolved:
    """Take the chunks per rank that a schedule makes where nobody wrote them; what is written must agree."""
    experiment, name = resolved.experiment, resolved.experiment.schedule.name
    chunks, uneven = divmod(schedule.stages, schedule.ranks)
    if uneven or chunks == experiment.parallel.vp:
        return resolved
    if "parallel.vp" in resolved.positions:
        message = f"{name} has {chunks} per rank, not {experiment.parallel.vp}: write {chunks}"
        raise resolved.error("parallel.vp", message)
    parallel = experiment.parallel.model_copy(update={"vp": chunks})
    origins = {**resolved.origins, "parallel.vp": f"schedule {name}"}
    return replace(resolved, experiment=experiment.model_copy(update={"parallel": parallel}), origins=origins)


def _policy(experiment: Experiment) -> Policy:
    p2p = experiment.p2p
    return Policy(name=p2p.policy, receive=p2p.receive, stream=p2p.stream, eager_bytes=p2p.eager)


def _contention(experiment: Experiment) -> Contention:
    met = experiment.contention
    return Contention(
        links=met.links,
        compute_permille=round(met.compute * 1000),
        communication_permille=round(met.communication * 1000),
    )


def _chain(stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(stages - 1))
