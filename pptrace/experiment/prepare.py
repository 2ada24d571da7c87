"""From a resolved configuration and the plugins' offers to what a simulation needs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pptrace.errors import ConfigError, ConstraintError
from pptrace.experiment.asked import LazyRequest, times
from pptrace.experiment.assembly import Assembly
from pptrace.experiment.cluster import layout_of, on_cluster
from pptrace.experiment.costs import costs_of, with_reduction
from pptrace.experiment.interleave import with_interleave
from pptrace.experiment.modifiers import modified
from pptrace.experiment.other_tables import OtherTables
from pptrace.experiment.overlap import overlap_notes
from pptrace.experiment.parts import in_parts, part_times
from pptrace.experiment.placed import placed
from pptrace.experiment.sizes import check_size
from pptrace.experiment.stage_replicas import with_stage_replicas
from pptrace.experiment.table_file import CHUNKS, table_file
from pptrace.experiment.unlike import Differing, of_the_last_replica
from pptrace.experiment.validation import with_validation
from pptrace.hooks.build import build_network, build_policy, build_schedule
from pptrace.hooks.call import call_plugin
from pptrace.model.request import NetworkRequest, ScheduleRequest
from pptrace.record import dataclass
from pptrace.schedule.policy import Policy, PolicyName
from pptrace.sim.contention import Contention
from pptrace.sim.limits import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pptrace.config.experiment import Experiment
    from pptrace.config.places import Place
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.cluster import OnCluster
    from pptrace.experiment.costs import Costs
    from pptrace.hooks.registry import Registry
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.source import TableFile
    from pptrace.schedule.table import Schedule

__all__ = ["Prepared", "costs_alone", "policy_of", "prepare", "priced"]


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
    notes: tuple[str, ...] = ()
    """What of the configuration was left out or has no effect, one sentence each."""
    differing: Differing | None = None
    """What differs between replicas; None where nothing may."""

    @property
    def batch_text(self) -> str:
        """How many microbatches, in words, and in how many slices of a sequence each where it is cut."""
        whole = self.request.microbatches
        slices = self.schedule.microbatches // whole
        return f"{whole} microbatches" + (f" in {slices} slices each" if slices > 1 else "")


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
    """Returns the costs of so many stages, as :meth:`~pptrace.experiment.costs.Costs.workload` does."""
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
    with placed(work.resolved, "network"):
        provided = work.registry.networks[work.experiment.network.name]
    work, options = work.using(provided).options("network", provided.offer.options)
    ranks = work.experiment.parallel.pp or 1
    with placed(work.resolved, "network", options=True):
        network = build_network(provided, NetworkRequest(endpoints=ranks, options=options))
    return work.at(with_reduction(work.resolved, network)), network, None


def _built(
    work: Assembly, request: ScheduleRequest, ask: Callable[[int], dict[str, Any]], others: OtherTables
) -> tuple[Assembly, Schedule, ScheduleRequest]:
    """Return the table that a schedule makes, and the request with the schedule's options and chunks."""
    with placed(work.resolved, "schedule"):
        provided = work.registry.schedules[work.experiment.schedule.name]
    work, options = work.using(provided).options("schedule", provided.offer.options)
    request = replace(request, options=options)
    with placed(work.resolved, "schedule"):
        if provided.offer.chunks is not None and CHUNKS not in work.resolved.positions:
            request = replace(request, chunks=call_plugin(provided.provider, provided.offer.chunks, request))
        stages = request.stages
        table = build_schedule(provided, LazyRequest.of(request, lambda: ask(stages), others))
    check_size(resolved := _with_chunks(work.resolved, table))  # it may have more chunks than were known before
    return work.at(resolved), table, request


def _times(work: Assembly, workload: Workload, network: Network) -> dict[str, Any]:
    with placed(work.resolved, "network"):
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
    with placed(work.resolved, "p2p"):
        provided = work.registry.message_policies[p2p.policy]
    _refuse_idle(work.resolved, p2p.policy)
    work, options = work.using(provided).options("p2p", provided.offer.options)
    with placed(work.resolved, "p2p"):
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
