"""Changes of a table: gathers, interleave orders of pairs, checks and their notes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import CopyStream, Reshard, Sharing, Validation
from pptrace.run.copy_plan import copy_turns, plan_of, sooner_alone
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
    from collections.abc import Sequence

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
"""Ranks that share it."""


def change_table(
    resolved: Resolved, table: Schedule, workload: Workload, network: Network, policy: Policy
) -> tuple[Schedule, Workload]:
    """Return a table with what a configuration puts into any, and its costs.

    Raises:
        ConfigError: stages or chunks that there are not, nothing to compute again, copies already there, or what
            :func:`~pptrace.run.table_changes.with_sharding` refuses.
        ScheduleError: the table cannot run.
    """
    choice = resolved.experiment.schedule
    offload, recompute = choice.offload, choice.recompute
    if recompute is not None:
        table = _recomputed(resolved, recompute, table, workload)
    if offload is None:
        return with_sharding(resolved, table, workload), workload
    if COPIES.mask(table.kind).any():
        raise resolved.error("schedule.offload", f"{choice.name} has copies of its own: remove the key")
    workload = _of_a_part(workload, offload)
    table = _offloaded(resolved, offload, table, workload, network, policy)
    if offload.alone != 1:
        timeline = simulate(table, workload, network, policy, contention=Contention(links=Sharing.NONE))
        workload = sooner_alone(workload, timeline, table.microbatches, offload.alone, _ranks_of(offload.stream))
    return with_sharding(resolved, table, workload), workload


def _recomputed(resolved: Resolved, asked: Recompute, table: Schedule, workload: Workload) -> Schedule:
    key = "schedule.recompute"
    if (table.kind == Kind.RECOMPUTE).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} computes forwards again itself: remove the key")
    if workload.f_ns.any() and not workload.recompute_ns.any():
        raise resolved.error(
            key, "the model's own backward computes its forward again: remove the key, or model.recompute"
        )
    return with_recompute(table, _chosen(resolved, key, asked, table), early=asked.early)


def _of_a_part(workload: Workload, asked: Offload) -> Workload:
    """Return costs in which copies move a share of each activation, rounded down."""
    classes = tuple(_of_a_part(one, asked) for one in workload.classes)
    return replace(
        workload, classes=classes, one_copy_stream=asked.stream is CopyStream.RANK,
        offload_ns=_part(workload.offload_ns, asked.ratio), reload_ns=_part(workload.reload_ns, asked.ratio),
        offload_bytes=_part(workload.copied_bytes, asked.ratio),
    )  # fmt: skip


def _part(values: Int64s, ratio: float) -> Int64s:
    exact = Fraction(str(ratio))
    return np.array([int(value * exact) for value in values.tolist()], dtype=np.int64)


def _offloaded(
    resolved: Resolved, asked: Offload, table: Schedule, workload: Workload, network: Network, policy: Policy
) -> Schedule:
    chosen = _chosen(resolved, "schedule.offload", asked, table)
    again = table.kind == Kind.RECOMPUTE
    stages = np.intersect1d(table.stage[again], np.flatnonzero(chosen.any(axis=1)))
    if stages.size:
        message = f"stage {stages[0]} is computed again: leave it out here, or of schedule.recompute.stages"
        raise resolved.error("schedule.offload.stages", message)
    timeline = simulate(table, workload, network, policy, contention=Contention(links=Sharing.NONE))
    plan = plan_of(table, timeline, workload)
    chosen &= plan.long_enough(asked.gap)
    group = _ranks_of(asked.stream)
    latest = plan.latest(chosen, group, one_stream=asked.stream is CopyStream.RANK)
    made = with_copies(table, chosen, plan.ahead(chosen, latest) if asked.ahead is None else asked.ahead)
    if group > 1:
        made = replace(made, waits=(*made.waits, *copy_turns(made, plan, latest, group)))
    if asked.behind is not None:
        made = replace(made, waits=(*made.waits, waits_for_copies(made, asked.behind)))
    return made


def _ranks_of(stream: CopyStream) -> int:
    """Return how many neighbouring ranks share streams."""
    return _ON_A_SWITCH if stream is CopyStream.PAIR else 1


def _chosen(resolved: Resolved, key: str, asked: Offload | Recompute, table: Schedule) -> NDArray[np.bool_]:
    """Return which stages' microbatches are meant, shape (stages, microbatches)."""
    placement = table.placement
    chosen = placement.stage_rank.T[:, placement.microbatch_route] >= 0
    if asked.stages is not None:
        _check(resolved, f"{key}.stages", asked.stages, table.stages, "stage")
        chosen &= np.isin(np.arange(table.stages), asked.stages)[:, None]
    if asked.chunks is not None:
        chunk = _chunks(placement.stage_rank)
        _check(resolved, f"{key}.chunks", asked.chunks, int(chunk.max(initial=0)) + 1, "chunk")
        chosen &= np.isin(chunk, asked.chunks).T[:, placement.microbatch_route]
    return chosen


def _check(resolved: Resolved, key: str, asked: list[int], count: int, what: str) -> None:
    there = f"there are {count} {what}s, 0 to {count - 1}," if count > 1 else f"there is 1 {what}, 0,"
    for place, one in enumerate(asked):
        if one >= count:
            raise resolved.error(f"{key}[{place}]", f"{there} and no {one}")


def _chunks(stage_rank: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return how many stages of the same route lie before each on its rank, shape (routes, stages)."""
    before = np.zeros(stage_rank.shape, dtype=np.int64)
    for route, ranks in enumerate(stage_rank):
        for rank in np.unique(ranks):
            own = np.flatnonzero(ranks == rank)
            before[route, own] = np.arange(own.size)
    return before


_SHARDS = "write costs.zero: 3, or remove the key"
_KEYS = ("reshard", "active_stages")
_USUAL = (None, Reshard.NEVER)
_ACTIVE = 3
"""Stages that PyTorch's runtime keeps gathered."""


def with_sharding(resolved: Resolved, table: Schedule, workload: Workload) -> Schedule:
    """Return a table with the gathers, and the reductions behind each backward, that costs and configuration need.

    Weights that are whole during the step, but sharded by its optimizer, are gathered once and never freed.

    Raises:
        ConfigError: a key without sharded weights, reductions that would not overlap or are the table's own, or
            of stages that several ranks hold.
    """
    asked = resolved.experiment.data_parallel
    if asked.reduce_each:
        _check_reductions(resolved, table)
        table = with_reductions(table, workload.reduce_ns > 0)
    replicas = resolved.experiment.parallel.dp * resolved.experiment.parallel.cp
    freed, gathered = workload.gathered_bytes > 0, workload.unshard_ns > 0
    written = [f"data_parallel.{key}" for key in _KEYS if getattr(asked, key) not in _USUAL]
    if written and replicas > 1 and not freed.any():
        raise resolved.error(written[0], f"no weights are gathered and freed: {_SHARDS}")
    if (table.kind == Kind.UNSHARD).any():
        if written:
            name = resolved.experiment.schedule.name
            raise resolved.error(written[0], f"{name} has gathers of its own: remove the key")
        return table
    if freed.any():
        reshard, active = asked.reshard or Reshard.NEVER, asked.active_stages or _ACTIVE
        return with_gathers(table, freed | gathered, reshard, active)
    return with_gathers(table, gathered, None) if gathered.any() else table


def _check_reductions(resolved: Resolved, table: Schedule) -> None:
    key, asked = "data_parallel.reduce_each", resolved.experiment.data_parallel
    if not asked.overlaps:
        raise resolved.error(key, "reductions behind each backward overlap: write data_parallel.overlap: true")
    if (table.kind == Kind.REDUCE_GRAD).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} has reductions of its own: remove the key")
    if asked.stage_replicas and (table.placement.copies().sum(axis=0) > 1).any():
        message = "stages that several ranks hold are reduced once: remove the key, or stage_replicas"
        raise resolved.error(key, message)


def with_interleave(resolved: Resolved, table: Schedule) -> Schedule:
    """Return a table with the orders that the configuration gives.

    Raises:
        ConfigError: kinds that no pair of the table has, or a member that such a pair lacks.
    """
    given = resolved.experiment.schedule.interleave
    if not given:
        return table
    there = _pairs(table)
    orders = dict(table.interleave)
    for name, turns in given.items():
        key = f"schedule.interleave.{name}"
        kinds = tuple(Kind[word] for word in name.split("+") if word in Kind.__members__)
        if kinds not in there or len(kinds) != name.count("+") + 1:
            known = ", ".join(sorted("+".join(kind.name for kind in pair) for pair in there)) or "none at all"
            raise resolved.error(key, f"the table has no such pair; it has {known}")
        _check_turns(resolved, key, turns, len(kinds))
        orders[kinds] = tuple(turns)
    return replace(table, interleave=MappingProxyType(orders))


def _check_turns(resolved: Resolved, key: str, turns: Sequence[int], members: int) -> None:
    for place, turn in enumerate(turns):
        if turn >= members:
            raise resolved.error(f"{key}[{place}]", f"member {turn} of a pair of {members}: they count from 0")


def _pairs(table: Schedule) -> set[tuple[Kind, ...]]:
    """Return the kinds of the members of every sort of pair."""
    rows = np.flatnonzero(table.pair >= 0)
    columns = table.rank_of_row()[rows], table.pair[rows], table.kind[rows]
    members = zip(*(column.tolist() for column in columns), strict=True)
    alike = {tuple(kind for _, _, kind in pair) for _, pair in groupby(members, key=lambda row: row[:2])}
    return {tuple(Kind(kind) for kind in pair) for pair in alike}


_UPDATES_WHERE_IT_FAILS = 3
"""The update, its undoing, which takes as long, and the update with the true norm."""


def with_validation(experiment: Experiment, workload: Workload) -> Workload:
    """Return a step's costs with its validation before the update, after it, or failed.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 4. Behind the update,
    the norm goes around while the next step warms up, which costs no rank time. A failed step is one whose ranks
    update their weights for nothing, meet, undo that and update them again; all of it comes behind the last rank's
    last action.
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
    """Return why the overlapped pairs of a table overlap nothing, and what to set; empty where they may overlap.

    Args:
        inputs: the configuration and the plugins.
        costs: the cost model and its options.
        table: the schedule's table.
        workload: its costs.
    """
    if not table.has_pairs or any(_has_communication(one) for one in (workload, *workload.classes)):
        return ()
    return (f"the pairs of this schedule overlap nothing: {_reason(inputs, costs, workload)}",)


def _has_communication(workload: Workload) -> bool:
    return any(
        not segment.is_computation
        for stages in workload.segments.values() for segments in stages for segment in segments
    )  # fmt: skip


def _reason(inputs: Inputs, costs: Costs, workload: Workload) -> str:
    offer = costs.offer.offer
    if not _gives_segments(inputs, offer.name):
        models = " or ".join(sorted(name for name in inputs.registry.cost_models if _gives_segments(inputs, name)))
        return f"{offer.name} costs have no segments; set costs.name to {models}, which have costs.{_OPTION}"
    if workload.segments:
        return "no segment of these costs communicates; set the stream of one under costs.segments"
    if offer.model is not None and not _has_collectives(workload):
        return "costs have no segments, as no action has a collective; set parallel.tp, parallel.cp or parallel.ep"
    if costs.request.options.get(_OPTION) is False:
        return f"costs have no segments, as costs.{_OPTION} is false; set it to true"
    return f"costs have no segments; set costs.{_OPTION}"


def _gives_segments(inputs: Inputs, name: str) -> bool:
    options = inputs.registry.cost_models[name].offer.options
    return options is not None and _OPTION in options().model_fields


def _has_collectives(workload: Workload) -> bool:
    return any(
        getattr(one, name).any()
        for one in (workload, *workload.classes)
        for name in ("f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns")
    )
