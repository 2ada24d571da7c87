"""What a configuration does to any schedule: activations copied to the host, forwards computed again."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import CopyStream, Sharing
from pptrace.experiment.copy_plan import copy_turns, plan_of
from pptrace.experiment.crossing import sooner_alone
from pptrace.experiment.sharded import with_sharding
from pptrace.model.kinds import COPIES, Kind
from pptrace.schedule.copies import waits_for_copies, with_copies
from pptrace.schedule.recompute import with_recompute
from pptrace.sim.contention import Contention
from pptrace.sim.simulate import simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.config.experiment import Offload, Recompute
    from pptrace.config.resolve import Resolved
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.policy import Policy
    from pptrace.schedule.table import Schedule

__all__ = ["modified"]

_ON_A_SWITCH = 2
"""Ranks that share it."""


def modified(
    resolved: Resolved, table: Schedule, workload: Workload, network: Network, policy: Policy
) -> tuple[Schedule, Workload]:
    """Return a table with what a configuration puts into any, and its costs.

    Raises:
        ConfigError: stages or chunks that there are not, nothing to compute again, copies already there, or what
            :func:`~pptrace.experiment.sharded.with_sharding` refuses.
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
