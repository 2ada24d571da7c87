"""Preparation of a step from its configuration.

The stages, in their order: table file, network, costs, table, policy, changes of the table, replicas.
A stage returns its result and fills in its sections of the configuration.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.config.limits import exceeds_host_memory, gibibytes, memory_key, most_memory
from pptrace.config.schema import TableFileOptions, grid_key
from pptrace.errors import ConfigError, ConstraintError, ScheduleError
from pptrace.memo import memoized
from pptrace.network.cluster import RankNetwork
from pptrace.plugins.construction import build_network, build_policy, build_schedule
from pptrace.plugins.requests import NetworkRequest, ScheduleRequest
from pptrace.run.costs import in_parts, model_costs, part_times, with_reduction, with_stage_replicas
from pptrace.run.hardware import fill_cluster_device, job_network
from pptrace.run.inputs import Preparation, StepInputs, at_location, layout_of
from pptrace.run.reinforcement_learning import with_forward_flops
from pptrace.run.replicas import with_slowest_replica
from pptrace.run.schedule_request import CHUNKS, LazyRequest, OtherTables, times
from pptrace.run.speeds import ReplicaCosts, ReplicaTable
from pptrace.run.stacks import fill_stack
from pptrace.run.table_changes import (
    change_table,
    copy_notes,
    count_units,
    overlap_notes,
    with_interleave,
    with_validation,
)
from pptrace.sim.engines import Contention
from pptrace.sim.streams import MOST_RANKS
from pptrace.steps.action_insertion import check_modules, with_branches, with_units
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.placement import Placement, branch_edges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from pptrace.config.places import Place
    from pptrace.config.resolution import Resolved
    from pptrace.network.contract import Network
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.text_forms import TableFile
    from pptrace.steps.workload import Workload


def prepare(resolved: Resolved, registry: Registry, *, may_drop_chunks: bool | None = None) -> StepInputs:
    """Look up every name, check every option, and build schedule, costs, network and policy.

    Args:
        resolved: the configuration.
        registry: the plugins.
        may_drop_chunks: whether to drop chunks per rank that the schedule does not take, with a note. By default,
            chunks are dropped if the file has them and the schedule's name has another source.

    Raises:
        ConfigError: a value that a plugin cannot take, with its place in the configuration.
        PluginError: a name that no plugin offers, or a plugin that fails.
        ScheduleError: sizes that the schedule cannot take.
    """
    may_drop_chunks = _has_chunks_of_file(resolved) if may_drop_chunks is None else may_drop_chunks
    try:
        return _prepare(resolved, registry)
    except (ConstraintError, ConfigError) as error:
        if error.key != CHUNKS or not may_drop_chunks:
            raise
        try:
            prepared = _prepare(resolved.without_chunks(), registry)
        except (ConstraintError, ConfigError) as second:
            # If chunks are refused again, the first error names the configured value.
            raise (error if second.key == CHUNKS else second) from None
    refused, experiment = resolved.experiment.parallel.vp, prepared.resolved.experiment
    note = (
        f"vp {refused} ({resolved.origin(CHUNKS)}) is ignored: {experiment.schedule.name} runs with "
        f"{experiment.parallel.vp}"
    )
    workload = replace(prepared.workload, notes=(note, *prepared.workload.notes))
    return replace(prepared, workload=workload, notes=(note, *prepared.notes))


def _prepare(resolved: Resolved, registry: Registry) -> StepInputs:
    if (resolved.experiment.parallel.pp or 0) > MOST_RANKS:
        raise resolved.error("parallel.pp", f"at most {MOST_RANKS} pipeline ranks are simulated")
    inputs = _inputs(resolved, registry)
    check_size(inputs.resolved)
    file = _table_file(inputs)
    costs = model_costs(inputs, _network(inputs))
    if file is not None:
        return _with_table(inputs, costs, *_with_policy(inputs, file.schedule), _schedule_request(inputs), file)
    return _with_table(inputs, costs, *_table(inputs, costs))


def build_costs(resolved: Resolved, registry: Registry) -> Costs:
    """Return a configuration's costs for any number of stages, without its schedule.

    Raises:
        PptraceError: as for :func:`prepare`.
    """
    inputs = _inputs(resolved, registry)
    _table_file(inputs)  # fills in sizes
    return model_costs(inputs, _network(inputs))


def _inputs(resolved: Resolved, registry: Registry) -> Preparation:
    """Return inputs with the device of the cluster, and the values of the software stack."""
    inputs = Preparation(resolved=resolved, registry=registry)
    fill_cluster_device(inputs)
    fill_stack(inputs)
    return inputs


def _has_chunks_of_file(resolved: Resolved) -> bool:
    """Return whether the file has chunks per rank, and the schedule's name has another source."""
    chunks, name = resolved.positions.get(CHUNKS), resolved.positions.get("schedule.name")
    if chunks is None or name is None:
        return False
    return chunks.source == resolved.file and name.source != resolved.file


def _table_file(inputs: Preparation) -> TableFile | None:
    """Read the file of a schedule that is a table, and fill in its sizes."""
    schedule = inputs.experiment.schedule
    if schedule.kind != "table":
        return None
    from pptrace.steps.text_forms import load_table

    options = inputs.fill_options("schedule", lambda: TableFileOptions) if schedule.options else {}
    file = load_table(Path(schedule.name))
    inputs.resolved = _with_sizes(inputs.resolved, file.schedule, options.get("slices", 1))
    return file


def _with_sizes(resolved: Resolved, table: Schedule, slices: int) -> Resolved:
    """Fill in ranks, chunks and microbatches of a table file; the configuration's own must agree."""
    experiment = resolved.experiment
    microbatches, cut = divmod(table.step_microbatches, slices)
    if cut:
        message = f"{experiment.schedule.name} has {table.step_microbatches} slices, no multiple of {slices}"
        raise resolved.error("schedule.options.slices", message)
    uneven = table.stages % table.ranks
    chunks = 1 if uneven else table.stages // table.ranks
    written_chunks = None if uneven or CHUNKS not in resolved.positions else experiment.parallel.vp
    for key, written, size, unit in (
        ("parallel.pp", experiment.parallel.pp, table.ranks, "rows"),
        (CHUNKS, written_chunks, chunks, "stages per row"),
        ("batch.microbatches", experiment.batch.microbatches, microbatches, "microbatches"),
    ):
        if written is not None and written != size:
            raise resolved.error(
                key, f"{experiment.schedule.name} has {size} {unit}, not {written}: remove the key"
            )
    origin = f"table {Path(experiment.schedule.name).name}"
    sequences_per_microbatch = experiment.parallel.dp * experiment.batch.micro
    resolved = resolved.with_values("parallel", {"pp": table.ranks, "vp": chunks}, origin)
    batch = {"microbatches": microbatches, "global_batch": microbatches * sequences_per_microbatch}
    return resolved.with_values("batch", batch, origin)


def _network(inputs: Preparation) -> Network:
    layout_of(inputs.resolved)  # refuses sizes that do not fit each other
    if inputs.experiment.cluster is not None:
        return job_network(inputs)
    provided = inputs.look_up(inputs.registry.networks, inputs.experiment.network.name, "network")
    options = inputs.fill_options("network", provided.offer.options)
    with at_location(inputs.resolved, "network", options=True):
        request = NetworkRequest(endpoints=inputs.experiment.parallel.pp or 1, options=options)
        network = memoized(lambda: build_network(provided, request), ("network", repr(request)), provided.offer)
    inputs.resolved = with_reduction(inputs.resolved, network)
    return network


def _schedule_request(inputs: Preparation) -> ScheduleRequest:
    parallel = inputs.experiment.parallel
    microbatches = inputs.experiment.batch.known_microbatches
    model, encoder_stages, layers = inputs.experiment.model, None, None
    if model is not None:
        layers = model.values.get("layers")
        encoders = [model.values.get("encoder"), *(model.values.get("encoders") or {}).values()]
        encoder_stages = sum(encoder["stages"] for encoder in encoders if encoder)
    return ScheduleRequest(
        ranks=parallel.depth, microbatches=microbatches, chunks=parallel.vp, encoder_stages=encoder_stages,
        layers=layers,
    )  # fmt: skip


def _table(inputs: Preparation, costs: Costs) -> tuple[Schedule, Policy, ScheduleRequest]:
    """Return the table of a schedule, its message policy, and the request with the schedule's options and chunks.

    Steps with the same sections share them unless the schedule reads costs.
    """
    reads_costs = False

    def build(inputs: Preparation) -> tuple[Schedule, Policy, ScheduleRequest]:
        nonlocal reads_costs
        table, request, reads_costs = _build_table(inputs, costs)
        return *_with_policy(inputs, table), request

    # Checks of messages and chunks depend on where the user wrote a key.
    prefixes = ("schedule", "p2p", CHUNKS)
    written = tuple((key, place) for key, place in inputs.resolved.positions.items() if key.startswith(prefixes))
    parallel, microbatches = inputs.experiment.parallel, inputs.experiment.batch.known_microbatches
    return inputs.share(
        build, ("table", written), reads=("model", "parallel", "batch", "schedule", "p2p"),
        fills=("parallel", "schedule", "p2p"), rows=_PASSES * (parallel.pp or 1) * parallel.vp * microbatches,
        may_keep=lambda: not reads_costs,
    )  # fmt: skip


def _with_policy(inputs: Preparation, table: Schedule) -> tuple[Schedule, Policy]:
    """Return a table as the configuration changes its modules and pairs, and its message policy."""
    table = with_interleave(inputs.resolved, _with_modules(inputs.resolved, table))
    return table, message_policy(inputs, table)


def _build_table(inputs: Preparation, costs: Costs) -> tuple[Schedule, ScheduleRequest, bool]:
    """Build the table of a schedule; return it, the request, and whether the schedule reads costs."""
    initial, sizes = inputs.copy(), _schedule_request(inputs)

    def compute_times(stages: int) -> dict[str, Any]:
        branches = initial.experiment.parallel.branches
        count = stages + sum(branches) - max(branches, default=0)
        placement = replace(Placement.looped(count, 1), edges=branch_edges(branches, count))
        return _times(initial.resolved, costs.workload(count, placement.graph), costs.network)

    def inputs_with_table(table: Schedule) -> StepInputs:
        prepared = initial.copy()
        return _with_table(prepared, costs, *_with_policy(prepared, table), request)

    tables = OtherTables(inputs=initial, request=sizes, compute_times=compute_times, prepared=inputs_with_table)
    provided = inputs.look_up(inputs.registry.schedules, inputs.experiment.schedule.name, "schedule")
    request = dataclasses.replace(sizes, options=inputs.fill_options("schedule", provided.offer.options))
    with at_location(inputs.resolved, "schedule"):
        if provided.offer.chunks is not None and CHUNKS not in inputs.resolved.positions:
            request = dataclasses.replace(request, chunks=provided.offer.chunks(request))
        stages = request.stages
        lazy = LazyRequest.of(request, lambda: compute_times(stages), tables)
        table = memoized(
            lambda: build_schedule(provided, lazy), ("table", repr(request)), provided.offer,
            rows=_PASSES * stages * request.microbatches, may_keep=lambda: not lazy.reads_costs,
        )  # fmt: skip
    # Stages of the encoder that are not among the ranks' chunks do not count as chunks.
    if not request.encoder_stages or table.stages != stages + request.encoder_stages:
        inputs.resolved = _with_chunks(inputs.resolved, table, request.chunks)
    return table, request, lazy.reads_costs


def _with_table(
    inputs: Preparation,
    costs: Costs,
    table: Schedule,
    policy: Policy,
    request: ScheduleRequest,
    file: TableFile | None = None,
) -> StepInputs:
    """Return all inputs of a step with this table and its policy."""
    network, placement = costs.network, table.placement
    units, undivided = count_units(inputs.resolved, table, costs), None
    if units > 1:
        undivided, table = table, with_units(table, units)
        placement, policy = table.placement, Policy()
    workload = costs.workload_of(table, units=units > 1)
    classes = costs.classes_of(workload)
    notes = overlap_notes(costs, table, workload)
    workload = with_notes(workload, notes)
    request = LazyRequest.of(request, partial(_times, inputs.resolved, workload, network))
    if table.step_microbatches > request.microbatches:
        parts = table.step_microbatches // request.microbatches
        shares: Sequence[Fraction] = ()
        if file is None:
            shares = part_times(inputs.registry.schedules[inputs.experiment.schedule.name], request, workload)
        workload = in_parts(workload, request.microbatches, parts, shares)
    if table.updates > 1:
        workload = _of_several_updates(inputs, costs, table, workload)
    if placement.has_host_state:
        workload = _with_host_state(inputs, costs, table, workload)
    table, workload = change_table(inputs.resolved, table, workload, network, policy)
    copies = copy_notes(table, workload)
    notes, workload = (*notes, *copies), with_notes(workload, copies)
    if not placement.has_host_state:
        workload = with_stage_replicas(inputs.resolved, workload, placement, network)
    workload = with_forward_flops(inputs.resolved, table, with_validation(inputs.experiment, workload))
    differing = None
    if costs.sequences is not None or costs.speeds is not None:
        differing = ReplicaCosts(
            costs=workload, classes=classes, speeds=costs.speeds, tables=_tables(inputs, costs, table)
        )
    configured = inputs.experiment.contention
    contention = Contention(
        links=configured.links, compute_permille=round(configured.compute * 1000),
        communication_permille=round(configured.communication * 1000),
    )  # fmt: skip
    prepared = StepInputs(
        resolved=inputs.resolved, schedule=table, request=request, network=network, table=file, workload=workload,
        job=network if isinstance(network, RankNetwork) else None, policy=policy, contention=contention,
        plugins=dict(sorted(inputs.plugins.items())), notes=(*inputs.notes, *notes), differing=differing,
        undivided=undivided,
    )  # fmt: skip
    return with_slowest_replica(prepared)


def with_notes(workload: Workload, notes: Sequence[str]) -> Workload:
    """Return costs with notes before their notes."""
    return replace(workload, notes=(*notes, *workload.notes)) if notes else workload


def _with_host_state(inputs: Preparation, costs: Costs, table: Schedule, workload: Workload) -> Workload:
    """Return the costs of a table whose ranks hold no state of stages.

    Raises:
        ConfigError: a setting that assumes state on ranks.
    """
    parallel = inputs.experiment.parallel
    _refuse(inputs, "keeps weights and gradients in host memory", {
        "parallel.dp": parallel.dp * parallel.cp > 1,
        "data_parallel.speeds": not costs.are_replicas_alike,
        "costs.zero": bool(workload.gathered_bytes.any()) and bool(workload.weights_bytes.any()),
        "rl": inputs.experiment.rl is not None,
    })  # fmt: skip
    recomputed = np.zeros(table.stages, dtype=bool)
    recomputed[table.stage[table.kind == Kind.RECOMPUTE]] = True
    return workload.with_host_state(recomputed)


def _of_several_updates(inputs: Preparation, costs: Costs, table: Schedule, workload: Workload) -> Workload:
    """Return the costs of a table with several updates and no flush between them.

    Every update has the same microbatches. Memory has all versions of the weights that the schedule needs.

    Raises:
        ConfigError: a setting that assumes a flush after each update.
    """
    _refuse(inputs, "does not flush the pipeline before an update", {
        "data_parallel.speeds": not costs.are_replicas_alike,
        "batch": costs.sequences is not None,
        "rl": inputs.experiment.rl is not None,
        "costs.zero": bool(workload.gathered_bytes.any()),
    })  # fmt: skip
    versions, schedule = 1, inputs.experiment.schedule
    if schedule.kind != "table":
        versions = inputs.registry.schedules[schedule.name].offer.weight_versions
    note = f"the step is the time between two of {table.updates} updates, without a flush"
    if versions > 1:
        note += f"; memory has {versions} versions of the weights"
    return replace(
        workload, weights_bytes=versions * workload.weights_bytes, sync_ns=0,
        microbatch_class=np.tile(workload.microbatch_class, table.updates), notes=(*workload.notes, note),
    )  # fmt: skip


def _refuse(inputs: Preparation, reason: str, settings: Mapping[str, bool]) -> None:
    for key, is_set in settings.items():
        if is_set:
            name = inputs.experiment.schedule.name
            raise inputs.resolved.error(key, f"{name} {reason}, so this is not simulated: leave it out")


def _with_modules(resolved: Resolved, table: Schedule) -> Schedule:
    """Return a table in which encoders on separate GPUs run side by side.

    A schedule's table has the ranks of the longest path; a table file has all ranks.

    Raises:
        ConfigError: a rank of an encoder has a stage of another module, or encoders run side by side with a
            schedule of several stages per rank.
    """
    parallel, placement = resolved.experiment.parallel, table.placement
    branches = parallel.branches
    try:
        if placement.ranks == parallel.depth:
            return with_branches(table, branches)
        check_modules(placement, branches)
    except ScheduleError as error:
        key = f"{grid_key(next(iter(parallel.grids)))}.pp"
        raise resolved.error(key, f"{resolved.experiment.schedule.name} {error.message}") from error
    return replace(table, placement=replace(placement, edges=branch_edges(branches, placement.stages)))


def _tables(inputs: Preparation, costs: Costs, table: Schedule) -> dict[int, ReplicaTable]:
    """Return the tables of replicas by their number of microbatches; none where all have as many."""
    numbers = {*costs.sequences.microbatches} if costs.sequences else {table.microbatches}
    if len(numbers) == 1:
        return {}
    if table.has_pairs or (table.span > 1).any():
        name = inputs.experiment.schedule.name
        unequal = f"{name} pairs microbatches, and replicas have {min(numbers)} to {max(numbers)}"
        raise inputs.resolved.error("batch.documents", f"{unequal}: write batch.microbatches")
    tables = {number: table.of_first(number) for number in numbers - {table.microbatches}}
    tables[table.microbatches] = table
    return {number: ReplicaTable(short, message_policy(inputs, short)) for number, short in tables.items()}


def _times(resolved: Resolved, workload: Workload, network: Network) -> dict[str, Any]:
    parallel = resolved.experiment.parallel
    with at_location(resolved, "network"):
        return times(workload, network, parallel.pp or 1, parallel.branches)


def _with_chunks(resolved: Resolved, schedule: Schedule, requested: int) -> Resolved:
    """Fill in the chunks per rank of a schedule; the configuration's own must agree.

    A table with unequal numbers of stages has the ``requested`` chunks.
    """
    experiment, name = resolved.experiment, resolved.experiment.schedule.name
    chunks, uneven = divmod(schedule.stages, schedule.ranks)
    if uneven:
        chunks = requested
    if chunks == experiment.parallel.vp:
        return resolved
    if CHUNKS in resolved.positions:
        message = f"{name} has {chunks} per rank, not {experiment.parallel.vp}: write {chunks}"
        raise resolved.error(CHUNKS, message)
    resolved = resolved.with_values("parallel", {"vp": chunks}, f"schedule {name}")
    check_size(resolved)
    return resolved


def message_policy(inputs: Preparation, table: Schedule) -> Policy:
    """Return the message policy of the configuration, of the core or of a plugin.

    Raises:
        PptraceError: options that it cannot take, or a table whose messages it cannot place.
    """
    p2p = inputs.experiment.p2p
    if p2p.policy in PolicyName.words():
        inputs.fill_options("p2p", None)
        _check_unused(inputs.resolved)
        return Policy(name=PolicyName(p2p.policy), receive=p2p.receive, stream=p2p.stream, eager_bytes=p2p.eager)
    provided = inputs.look_up(inputs.registry.message_policies, p2p.policy, "p2p")
    _check_unused(inputs.resolved)
    options = inputs.fill_options("p2p", provided.offer.options)
    with at_location(inputs.resolved, "p2p"):
        return memoized(
            lambda: build_policy(provided, table, options), ("policy", repr(options)), provided.offer, table,
            rows=len(table),
        )  # fmt: skip


def _check_unused(resolved: Resolved) -> None:
    """Refuse settings that the policy does not take.

    A setting from another source than the policy is ignored, unless ``--set`` gives it.
    """
    p2p, policy_place = resolved.experiment.p2p, resolved.positions.get("p2p.policy")
    for name, takers in p2p.unused.items():
        place = resolved.positions.get(f"p2p.{name}")
        if place is None:
            continue
        if policy_place is None or place.source == policy_place.source or _overrides(place, policy_place):
            is_rule = p2p.policy in PolicyName.words()
            hint = f"only {', '.join(takers)} can" if is_rule else "write its options under p2p.options"
            raise resolved.error(f"p2p.{name}", f"{p2p.policy} does not take it: {hint}")


def _overrides(setting: Place, policy: Place) -> bool:
    """Return whether ``--set`` has a setting, and a file or the command line has the policy."""
    has_source = policy.line > 0 or policy.source == "--p2p" or policy.source.startswith("--set ")
    return setting.source.startswith("--set ") and has_source


ACTION_BYTES, RECEIVING_BYTES = 270, 400
"""Bytes per action, from the table to the metrics: where only sends have rows, and where receives have rows too.

Measured with interleaved 1F1B on 16 ranks, between half a million actions and two million: 271 with ``async``,
381 to 385 with ``blocking``, ``ordered`` and ``torch``, 507 with ``megatron``. So the estimate for ``megatron`` is
a fifth too low. The default limit of four fifths of the available memory almost compensates for that.
"""
_SENDS_ALONE = frozenset({PolicyName.ASYNC.value, PolicyName.SENDER_BLOCKING.value})
_PASSES = 2


def check_size(resolved: Resolved) -> None:
    """Check that the machine has the memory for a step of this size; table files are not checked.

    Raises:
        ConfigError: forward and backward of every stage and microbatch take more memory than the machine has.
    """
    experiment = resolved.experiment
    action_bytes = ACTION_BYTES if experiment.p2p.policy in _SENDS_ALONE else RECEIVING_BYTES
    parallel = experiment.parallel
    reason = too_large(parallel.pp or 1, parallel.vp or 1, experiment.batch.microbatches or 1, action_bytes)
    if reason and experiment.schedule.kind != "table":
        raise resolved.error("batch.microbatches", reason)


def too_large(ranks: int, chunks: int, microbatches: int, action_bytes: int = ACTION_BYTES) -> str:
    """Return why a step is too large for the machine; empty where it is not."""
    actions = _PASSES * ranks * chunks * microbatches
    size = actions * action_bytes
    if not exceeds_host_memory(size):
        return ""
    return (
        f"{actions:,} actions on {ranks:,} ranks would take about {gibibytes(size)} of memory, and "
        f"{gibibytes(most_memory())} are to spare: take fewer microbatches, or {memory_key()}"
    )
