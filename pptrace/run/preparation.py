"""Preparation of a step from its configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pptrace.config.choices import PolicyName
from pptrace.config.limits import gibibytes, memory_key, most_memory
from pptrace.errors import ConfigError, ConstraintError
from pptrace.plugins.construction import build_network, build_policy, build_schedule
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.requests import NetworkRequest, ScheduleRequest
from pptrace.run.cluster import layout_of, on_cluster, with_stage_replicas
from pptrace.run.costs import costs_of, in_parts, part_times, with_reduction
from pptrace.run.heterogeneous_replicas import of_the_last_replica
from pptrace.run.inputs import Assembly, Differing, Prepared, at_location
from pptrace.run.schedule_request import CHUNKS, LazyRequest, OtherTables, table_file, times
from pptrace.run.table_changes import modified, overlap_notes, with_interleave, with_validation
from pptrace.sim.rate_sharing import Contention
from pptrace.sim.streams import MOST_RANKS
from pptrace.steps.message_calls import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.config.places import Place
    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment
    from pptrace.network.contract import Network
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.run.inputs import OnCluster
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.text_forms import TableFile
    from pptrace.steps.workload import Workload

__all__ = [
    "ACTION_BYTES",
    "RECEIVING_BYTES",
    "check_size",
    "costs_alone",
    "policy_of",
    "prepare",
    "priced",
    "too_large",
]


def prepare(resolved: Resolved, registry: Registry, *, loose: bool | None = None) -> Prepared:
    """Look up every name, check every option, and build schedule, costs, network and policy.

    Args:
        resolved: the configuration.
        registry: the plugins.
        loose: whether chunks per rank that the schedule does not take are left out, with a note; unless given,
            where they stand in the file and the schedule's name does not.

    Raises:
        ConfigError: a value that a plugin cannot take, with its place in the configuration.
        PluginError: a name that no plugin offers, or a plugin that fails.
        ScheduleError: sizes that the schedule cannot take.
    """
    try:
        return _prepared(resolved, registry)
    except (ConstraintError, ConfigError) as error:
        if error.key != CHUNKS or not (_are_of_the_file(resolved) if loose is None else loose):
            raise
        try:
            prepared = _prepared(resolved.without_chunks(), registry)
        except (ConstraintError, ConfigError) as second:
            raise (error if second.key == CHUNKS else second) from None
    own = prepared.resolved.experiment
    asked, place = resolved.experiment.parallel.vp, resolved.origin(CHUNKS)
    note = f"vp {asked} ({place}) is left out: {own.schedule.name} runs with {own.parallel.vp}"
    workload = replace(prepared.workload, notes=(note, *prepared.workload.notes))
    return replace(prepared, workload=workload, notes=(note, *prepared.notes))


def costs_alone(resolved: Resolved, registry: Registry) -> Costs:
    """Return a configuration's costs, ready for any number of stages, without its schedule.

    Raises:
        PptraceError: as for :func:`prepare`.
    """
    return priced(resolved, registry)[0]


def priced(resolved: Resolved, registry: Registry) -> tuple[Costs, Network]:
    """Return a configuration's costs, as :func:`costs_alone`, and what lies between its ranks."""
    work, _ = table_file(Assembly(resolved=resolved, registry=registry))
    work, network, job = _network(work)
    return costs_of(work, job)[1], network


def _are_of_the_file(resolved: Resolved) -> bool:
    """Return whether the file says how many chunks a rank has, and something else which schedule runs."""
    chunks, name = resolved.positions.get(CHUNKS), resolved.positions.get("schedule.name")
    return chunks is not None and name is not None and chunks.source == resolved.file != name.source


def _prepared(resolved: Resolved, registry: Registry) -> Prepared:
    if (resolved.experiment.parallel.pp or 0) > MOST_RANKS:
        raise resolved.error("parallel.pp", f"at most {MOST_RANKS} pipeline ranks are simulated")
    check_size(resolved)
    work, file = table_file(Assembly(resolved=resolved, registry=registry))
    work, network, job = _network(work)
    work, costs = costs_of(work, job)
    parallel, batch = work.experiment.parallel, work.experiment.batch
    request = ScheduleRequest(ranks=parallel.pp or 1, microbatches=batch.known_microbatches, chunks=parallel.vp)
    ground = _Ground(network, job, cache(costs.workload), costs, unlike=bool(costs.request.rank_devices))
    if file is not None:
        return _around(work, ground, file.schedule, request, file)
    start = work

    def ask(stages: int) -> dict[str, Any]:
        chain = tuple((stage, stage + 1) for stage in range(stages - 1))
        return _times(start, ground.workload_of(stages, chain, ()), network)

    others = OtherTables(
        registry, resolved, request, ask, lambda table: _around(start, ground, table, request, None)
    )
    work, table, request = _built(work, request, ask, others)
    return _around(work, ground, table, request, None)


class _Ground(NamedTuple):
    """What a step runs on, whatever its table."""

    network: Network
    job: OnCluster | None
    workload_of: Callable[..., Workload]
    """Returns the costs of so many stages, as :meth:`~pptrace.run.costs.Costs.workload` does."""
    costs: Costs
    """Where that comes from."""
    unlike: bool
    """Whether ranks have unlike devices, so that costs go by where stages are."""


def _around(
    work: Assembly, ground: _Ground, table: Schedule, request: ScheduleRequest, file: TableFile | None
) -> Prepared:
    """Return a table with all that it runs with."""
    network = ground.network
    table = with_interleave(work.resolved, table)
    placement = table.placement
    edges = tuple((int(low), int(high)) for low, high in placement.edges)
    holders = placement.holders() if ground.unlike else ()
    workload = ground.workload_of(table.stages, edges, holders, has_pairs=table.has_pairs)
    notes = overlap_notes(work, ground.costs, table, workload)
    workload = replace(workload, notes=(*notes, *workload.notes))
    request = replace(request, **_times(work, workload, network))
    work, policy = policy_of(work, table)
    if table.microbatches > request.microbatches:
        parts = table.microbatches // request.microbatches
        made = work.registry.schedules[work.experiment.schedule.name] if file is None else None
        times = part_times(made, request, workload) if made else ()
        workload = in_parts(workload, request.microbatches, parts, times)
    table, workload = modified(work.resolved, table, workload, network, policy)
    workload = with_stage_replicas(work.resolved, workload, placement, network, ground.job)
    workload = with_validation(work.experiment, workload)
    prepared = Prepared(
        resolved=work.resolved, schedule=table, request=request, network=network, job=ground.job, table=file,
        workload=workload, policy=policy,
        contention=_contention(work.experiment), plugins=dict(sorted(work.plugins.items())), notes=notes,
        differing=Differing.of(workload, ground.costs.lengths, ground.costs.speeds),
    )  # fmt: skip
    return of_the_last_replica(prepared)


def _network(work: Assembly) -> tuple[Assembly, Network, OnCluster | None]:
    """Return what lies between the ranks, and the job on its cluster where there is one."""
    layout_of(work.resolved)
    if work.experiment.cluster is not None:
        work, job = on_cluster(work)
        return work, job.hops, job
    with at_location(work.resolved, "network"):
        provided = work.registry.networks[work.experiment.network.name]
    work, options = work.using(provided).options("network", provided.offer.options)
    ranks = work.experiment.parallel.pp or 1
    with at_location(work.resolved, "network", options=True):
        network = build_network(provided, NetworkRequest(endpoints=ranks, options=options))
    return work.at(with_reduction(work.resolved, network)), network, None


def _built(
    work: Assembly, request: ScheduleRequest, ask: Callable[[int], dict[str, Any]], others: OtherTables
) -> tuple[Assembly, Schedule, ScheduleRequest]:
    """Return the table that a schedule makes, and the request with the schedule's options and chunks."""
    with at_location(work.resolved, "schedule"):
        provided = work.registry.schedules[work.experiment.schedule.name]
    work, options = work.using(provided).options("schedule", provided.offer.options)
    request = replace(request, options=options)
    with at_location(work.resolved, "schedule"):
        if provided.offer.chunks is not None and CHUNKS not in work.resolved.positions:
            request = replace(request, chunks=call_plugin(provided.provider, provided.offer.chunks, request))
        stages = request.stages
        table = build_schedule(provided, LazyRequest.of(request, lambda: ask(stages), others))
    check_size(resolved := _with_chunks(work.resolved, table))  # it may have more chunks than were known before
    return work.at(resolved), table, request


def _times(work: Assembly, workload: Workload, network: Network) -> dict[str, Any]:
    with at_location(work.resolved, "network"):
        return times(workload, network, work.experiment.parallel.pp or 1)


def _with_chunks(resolved: Resolved, schedule: Schedule) -> Resolved:
    """Take the chunks per rank that a schedule makes where nobody wrote them; what is written must agree."""
    experiment, name = resolved.experiment, resolved.experiment.schedule.name
    chunks, uneven = divmod(schedule.stages, schedule.ranks)
    if uneven or chunks == experiment.parallel.vp:
        return resolved
    if CHUNKS in resolved.positions:
        message = f"{name} has {chunks} per rank, not {experiment.parallel.vp}: write {chunks}"
        raise resolved.error(CHUNKS, message)
    parallel = experiment.parallel.model_copy(update={"vp": chunks})
    origins = {**resolved.origins, CHUNKS: f"schedule {name}"}
    return replace(resolved, experiment=experiment.model_copy(update={"parallel": parallel}), origins=origins)


def policy_of(work: Assembly, table: Schedule) -> tuple[Assembly, Policy]:
    """Return how messages are issued: by the core's own settings, or as a plugin says of this table.

    Raises:
        PptraceError: options that it cannot take, or a table whose messages it cannot place.
    """
    p2p = work.experiment.p2p
    if p2p.policy in PolicyName.words():
        work, _ = work.options("p2p", None)
        name = PolicyName(p2p.policy)
        _refuse_idle(work.resolved, p2p.policy)
        return work, Policy(name=name, receive=p2p.receive, stream=p2p.stream, eager_bytes=p2p.eager)
    with at_location(work.resolved, "p2p"):
        provided = work.registry.message_policies[p2p.policy]
    _refuse_idle(work.resolved, p2p.policy)
    work, options = work.using(provided).options("p2p", provided.offer.options)
    with at_location(work.resolved, "p2p"):
        return work, build_policy(provided, table, options)


def _refuse_idle(resolved: Resolved, policy: str) -> None:
    """Refuse settings of rules that a policy does not take, but defaults and what stands elsewhere than it."""
    chosen = resolved.positions.get("p2p.policy")
    for name, takers in resolved.experiment.p2p.idle.items():
        place = resolved.positions.get(f"p2p.{name}")
        over = chosen is None or place is None or place.source == chosen.source or _said_over(place, chosen)
        if place is not None and over:
            own = policy in PolicyName.words()
            what = f"only {', '.join(takers)} can" if own else "its switches stand under p2p.options"
            raise resolved.error(f"p2p.{name}", f"{policy} does not take it: {what}")


def _said_over(setting: Place, policy: Place) -> bool:
    """Whether a setting stands on the command line, over a file's policy or beside one that stands there too."""
    beside = policy.line > 0 or policy.source == "--p2p" or policy.source.startswith("--set ")
    return setting.source.startswith("--set ") and beside


def _contention(experiment: Experiment) -> Contention:
    met = experiment.contention
    return Contention(
        links=met.links,
        compute_permille=round(met.compute * 1000),
        communication_permille=round(met.communication * 1000),
    )


ACTION_BYTES, RECEIVING_BYTES = 270, 400
"""What an action takes, from the table to the metrics: where sends alone are rows too, and where receives are.

Measured of interleaved 1F1B on 16 ranks, between half a million actions and two million: 271 with ``async``,
381 to 385 with ``blocking``, ``ordered`` and ``torch``, 507 with ``megatron``.
"""
_SENDS_ALONE = frozenset({PolicyName.ASYNC.value, PolicyName.SENDER_BLOCKING.value})
_PASSES = 2


def check_size(resolved: Resolved) -> None:
    """Check that the machine has the memory for a step of this size; a table in a file is there already.

    Raises:
        ConfigError: forward and backward of every stage and microbatch would take more.
    """
    experiment = resolved.experiment
    each = ACTION_BYTES if experiment.p2p.policy in _SENDS_ALONE else RECEIVING_BYTES
    parallel = experiment.parallel
    told = too_large(parallel.pp or 1, parallel.vp or 1, experiment.batch.microbatches or 1, each)
    if told and experiment.schedule.kind != "table":
        raise resolved.error("batch.microbatches", told)


def too_large(ranks: int, chunks: int, microbatches: int, each: int = ACTION_BYTES) -> str:
    """Return why a step is too large for the machine, empty where it is not: an action takes ``each`` bytes."""
    actions = _PASSES * ranks * chunks * microbatches
    size, most = actions * each, most_memory()
    if size <= most:
        return ""
    return (
        f"{actions:,} actions on {ranks:,} ranks would take about {gibibytes(size)} of memory, and "
        f"{gibibytes(most)} are to spare: take fewer microbatches, or {memory_key()}"
    )
