"""Changes of a table: gathers, interleave orders of pairs, checks and their notes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import CopyStream, Reshard, Sharing, Validation
from pptrace.run.copy_plan import copy_turns, plan_of, sooner_alone
from pptrace.run.speeds import PASSES
from pptrace.sim.rate_sharing import Contention
from pptrace.sim.simulation import simulate
from pptrace.steps.action_insertion import (
    waits_for_copies,
    with_copies,
    with_gathers,
    with_recompute,
    with_reductions,
)
from pptrace.steps.kinds import COPIES, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment, Offload, Recompute
    from pptrace.network.contract import Network
    from pptrace.run.costs import Costs
    from pptrace.run.inputs import Inputs
    from pptrace.steps.columns import Int64s
    from pptrace.steps.message_calls import Policy
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload

_ON_A_SWITCH = 2
"""Ranks behind one PCIe switch."""


def change_table(
    resolved: Resolved, table: Schedule, workload: Workload, network: Network, policy: Policy
) -> tuple[Schedule, Workload]:
    """Return a table with the configured recomputation, copies, gathers and reductions, and its costs.

    Raises:
        ConfigError: unknown stages or chunks, no recomputation in the costs, a table with its own copies, or
            errors of :func:`with_sharding`.
        ScheduleError: the table cannot run.
    """
    choice = resolved.experiment.schedule
    offload, recompute = choice.offload, choice.recompute
    if recompute is not None:
        table = _with_recompute(resolved, recompute, table, workload)
    if offload is None:
        return with_sharding(resolved, table, workload), workload
    if COPIES.mask(table.kind).any():
        raise resolved.error("schedule.offload", f"{choice.name} has copies of its own: remove the key")
    workload = _with_copied_share(workload, offload)
    table = _with_offload(resolved, offload, table, workload, network, policy)
    if offload.alone != 1:
        timeline = simulate(table, workload, network, policy, contention=Contention(links=Sharing.NONE))
        workload = sooner_alone(workload, timeline, table.microbatches, offload.alone, _ranks_of(offload.stream))
    return with_sharding(resolved, table, workload), workload


def _with_recompute(resolved: Resolved, recompute: Recompute, table: Schedule, workload: Workload) -> Schedule:
    key = "schedule.recompute"
    if (table.kind == Kind.RECOMPUTE).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} computes forwards again itself: remove the key")
    if workload.f_ns.any() and not workload.recompute_ns.any():
        raise resolved.error(
            key, "the model's own backward computes its forward again: remove the key, or model.recompute"
        )
    return with_recompute(table, _chosen(resolved, key, recompute, table), early=recompute.early)


def _with_copied_share(workload: Workload, offload: Offload) -> Workload:
    """Return costs with copies of a share of each activation, rounded down."""
    classes = tuple(_with_copied_share(costs, offload) for costs in workload.classes)
    return replace(
        workload, classes=classes, one_copy_stream=offload.stream is CopyStream.RANK,
        offload_ns=_share(workload.offload_ns, offload.ratio), reload_ns=_share(workload.reload_ns, offload.ratio),
        offload_bytes=_share(workload.copied_bytes, offload.ratio),
    )  # fmt: skip


def _share(values: Int64s, ratio: float) -> Int64s:
    exact = Fraction(str(ratio))
    return np.array([int(value * exact) for value in values.tolist()], dtype=np.int64)


def _with_offload(
    resolved: Resolved, offload: Offload, table: Schedule, workload: Workload, network: Network, policy: Policy
) -> Schedule:
    chosen = _chosen(resolved, "schedule.offload", offload, table)
    recomputed = table.stage[table.kind == Kind.RECOMPUTE]
    stages = np.intersect1d(recomputed, np.flatnonzero(chosen.any(axis=1)))
    if stages.size:
        message = f"stage {stages[0]} is computed again: leave it out here, or of schedule.recompute.stages"
        raise resolved.error("schedule.offload.stages", message)
    timeline = simulate(table, workload, network, policy, contention=Contention(links=Sharing.NONE))
    plan = plan_of(table, timeline, workload)
    chosen &= plan.long_enough(offload.gap)
    group = _ranks_of(offload.stream)
    latest = plan.latest(chosen, group, one_stream=offload.stream is CopyStream.RANK)
    copied = with_copies(table, chosen, plan.ahead(chosen, latest) if offload.ahead is None else offload.ahead)
    if group > 1:
        copied = replace(copied, waits=(*copied.waits, *copy_turns(copied, plan, latest, group)))
    if offload.behind is not None:
        copied = replace(copied, waits=(*copied.waits, waits_for_copies(copied, offload.behind)))
    return copied


def _ranks_of(stream: CopyStream) -> int:
    """Return the number of neighbouring ranks that share copy streams."""
    return _ON_A_SWITCH if stream is CopyStream.PAIR else 1


def _chosen(resolved: Resolved, key: str, configured: Offload | Recompute, table: Schedule) -> NDArray[np.bool_]:
    """Return the configured microbatches of stages, shape (stages, microbatches)."""
    placement = table.placement
    chosen = placement.stage_rank.T[:, placement.microbatch_route] >= 0
    if configured.stages is not None:
        _check(resolved, f"{key}.stages", configured.stages, table.stages, "stage")
        chosen &= np.isin(np.arange(table.stages), configured.stages)[:, None]
    if configured.chunks is not None:
        chunk = _chunks(placement.stage_rank)
        _check(resolved, f"{key}.chunks", configured.chunks, int(chunk.max(initial=0)) + 1, "chunk")
        chosen &= np.isin(chunk, configured.chunks).T[:, placement.microbatch_route]
    return chosen


def _check(resolved: Resolved, key: str, configured: list[int], count: int, what: str) -> None:
    known = f"there are {count} {what}s, 0 to {count - 1}," if count > 1 else f"there is 1 {what}, 0,"
    for index, number in enumerate(configured):
        if number >= count:
            raise resolved.error(f"{key}[{index}]", f"{known} and no {number}")


def _chunks(stage_rank: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the chunk of each stage on its rank, shape (routes, stages)."""
    chunk = np.zeros(stage_rank.shape, dtype=np.int64)
    for route, ranks in enumerate(stage_rank):
        for rank in np.unique(ranks):
            stages = np.flatnonzero(ranks == rank)
            chunk[route, stages] = np.arange(stages.size)
    return chunk


_SHARDS = "write costs.zero: 3, or remove the key"
_KEYS = ("reshard", "active_stages")
_USUAL = (None, Reshard.NEVER)
_ACTIVE = 3
"""Gathered stages in PyTorch's runtime."""


def with_sharding(resolved: Resolved, table: Schedule, workload: Workload) -> Schedule:
    """Return a table with gathers, and with reductions after each backward, as configured.

    Weights that only the optimizer shards are gathered once and never freed.

    Raises:
        ConfigError: a key without sharded weights, reductions without overlap, reductions in the table, or
            reductions of stages on several ranks.
    """
    configured = resolved.experiment.data_parallel
    if configured.reduce_each:
        _check_reductions(resolved, table)
        table = with_reductions(table, workload.reduce_ns > 0)
    replicas = resolved.experiment.parallel.dp * resolved.experiment.parallel.cp
    freed, gathered = workload.gathered_bytes > 0, workload.unshard_ns > 0
    written = [f"data_parallel.{key}" for key in _KEYS if getattr(configured, key) not in _USUAL]
    if written and replicas > 1 and not freed.any():
        raise resolved.error(written[0], f"no weights are gathered and freed: {_SHARDS}")
    if (table.kind == Kind.UNSHARD).any():
        if written:
            name = resolved.experiment.schedule.name
            raise resolved.error(written[0], f"{name} has gathers of its own: remove the key")
        return table
    if freed.any():
        reshard, active = configured.reshard or Reshard.NEVER, configured.active_stages or _ACTIVE
        return with_gathers(table, freed | gathered, reshard, active)
    return with_gathers(table, gathered, None) if gathered.any() else table


def _check_reductions(resolved: Resolved, table: Schedule) -> None:
    key, configured = "data_parallel.reduce_each", resolved.experiment.data_parallel
    if not configured.overlaps:
        raise resolved.error(key, "reductions behind each backward overlap: write data_parallel.overlap: true")
    if (table.kind == Kind.REDUCE_GRAD).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} has reductions of its own: remove the key")
    if configured.stage_replicas and (table.placement.copies().sum(axis=0) > 1).any():
        message = "stages that several ranks hold are reduced once: remove the key, or stage_replicas"
        raise resolved.error(key, message)


def with_interleave(resolved: Resolved, table: Schedule) -> Schedule:
    """Return a table with the configured orders of segments in overlapped pairs.

    Raises:
        ConfigError: kinds without a pair in the table, or an unknown member of a pair.
    """
    orders_by_pair = resolved.experiment.schedule.interleave
    if not orders_by_pair:
        return table
    known_pairs = _pairs(table)
    orders = dict(table.interleave)
    for name, turns in orders_by_pair.items():
        key = f"schedule.interleave.{name}"
        kinds = tuple(Kind[word] for word in name.split("+") if word in Kind.__members__)
        if kinds not in known_pairs or len(kinds) != name.count("+") + 1:
            known = (
                ", ".join(sorted("+".join(kind.name for kind in pair) for pair in known_pairs)) or "none at all"
            )
            raise resolved.error(key, f"the table has no such pair; it has {known}")
        for place, turn in enumerate(turns):
            if turn >= len(kinds):
                message = f"member {turn} of a pair of {len(kinds)}: they count from 0"
                raise resolved.error(f"{key}[{place}]", message)
        orders[kinds] = tuple(turns)
    return replace(table, interleave=MappingProxyType(orders))


def _pairs(table: Schedule) -> set[tuple[Kind, ...]]:
    """Return the different kinds of members of pairs."""
    rows = np.flatnonzero(table.pair >= 0)
    columns = table.rank_of_row()[rows], table.pair[rows], table.kind[rows]
    members = zip(*(column.tolist() for column in columns), strict=True)
    pairs = {tuple(kind for _, _, kind in pair) for _, pair in itertools.groupby(members, key=lambda row: row[:2])}
    return {tuple(Kind(kind) for kind in pair) for pair in pairs}


_UPDATES_WHERE_IT_FAILS = 3
"""The update, its rollback of equal length, and the update with the true norm."""


def with_validation(experiment: Experiment, workload: Workload) -> Workload:
    """Return a step's costs with validation before the update, after it, or failed.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 4. After the
    update, the all-reduce of the norm overlaps with the next step's warm-up and takes no time of a rank. In a
    failed step, ranks update their weights, synchronise, roll the update back and repeat it, after the last
    action.
    """
    validation = experiment.data_parallel.validation
    if validation is Validation.AFTER:
        return replace(workload, sync_ns=0)
    if validation is Validation.FAILED:
        return replace(workload, optimizer_ns=_UPDATES_WHERE_IT_FAILS * workload.optimizer_ns)
    return workload


_OPTION = "segments"
"""The option by which a cost model gives segments."""


def overlap_notes(inputs: Inputs, costs: Costs, table: Schedule, workload: Workload) -> tuple[str, ...]:
    """Return why the overlapped pairs of a table overlap nothing, and what to set; empty where they may."""
    segments = [
        segment
        for costs_of_class in (workload, *workload.classes)
        for stages in costs_of_class.segments.values()
        for segment in itertools.chain.from_iterable(stages)
    ]
    if not table.has_pairs or any(not segment.is_computation for segment in segments):
        return ()
    return (f"the pairs of this schedule overlap nothing: {_reason(inputs, costs, workload)}",)


def _reason(inputs: Inputs, costs: Costs, workload: Workload) -> str:
    offer = costs.offer.offer
    if not _gives_segments(inputs, offer.name):
        models = " or ".join(sorted(name for name in inputs.registry.cost_models if _gives_segments(inputs, name)))
        return f"{offer.name} costs have no segments; set costs.name to {models}, which have costs.{_OPTION}"
    if workload.segments:
        return "no segment of these costs communicates; set the stream of one under costs.segments"
    columns = [
        getattr(costs_of_class, f"{kind}_collective_ns")
        for costs_of_class in (workload, *workload.classes)
        for kind in PASSES
    ]
    if offer.model is not None and not any(column.any() for column in columns):
        return "costs have no segments, as no action has a collective; set parallel.tp, parallel.cp or parallel.ep"
    if costs.request.options.get(_OPTION) is False:
        return f"costs have no segments, as costs.{_OPTION} is false; set it to true"
    return f"costs have no segments; set costs.{_OPTION}"


def _gives_segments(inputs: Inputs, name: str) -> bool:
    options = inputs.registry.cost_models[name].offer.options
    return options is not None and _OPTION in options().model_fields
