"""Changes of a table: recomputation, copies, gathers, interleave orders of pairs, and notes on them.

Copies to the host: Wan et al., PipeOffload, ICML 2025, arXiv:2503.01328, and the authors' ``offloading.py``. They
copy to the host as early as possible and back as late as possible, and skip activations with a short wait.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.config.choices import CopyStream, Reshard, Sharing, Validation
from pptrace.run.speeds import PASSES
from pptrace.sim.rate_sharing import Contention
from pptrace.sim.simulation import simulate
from pptrace.steps.action_insertion import (
    blocks_of,
    waits_for_copies,
    with_copies,
    with_gathers,
    with_recompute,
    with_reductions,
    worked,
)
from pptrace.steps.kinds import COMPUTE, COPIES, GRADIENTS, STAGE_ENDS, Kind, Stream
from pptrace.timeline.actions import folded

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
    from pptrace.timeline.timeline import Timeline

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


class Plan(NamedTuple):
    """Times of a table without copies, and durations of copies, by stage and microbatch."""

    schedule: Schedule
    start_ns: Int64s
    """Shape (actions,): start of each computation; 0 for other actions."""
    end_ns: Int64s
    """Shape (actions,): end of each computation."""
    forward_end_ns: Int64s
    """Shape (stages, microbatches)."""
    backward_start_ns: Int64s
    out_ns: Int64s
    """Duration of a copy to the host."""
    back_ns: Int64s
    """Duration of a copy back."""

    def long_enough(self, times: float) -> NDArray[np.bool_]:
        """Return the activations that wait longer than this multiple of their copies."""
        waits = self.backward_start_ns - self.forward_end_ns
        is_long: NDArray[np.bool_] = (waits > times * (self.out_ns + self.back_ns)) | (times == 0)
        return is_long

    def latest(self, chosen: NDArray[np.bool_], group: int = 1, *, one_stream: bool = False) -> Int64s:
        """Return the latest start of each chosen copy back, shape (stages, microbatches).

        Copies of a stream run one after the other, and each ends before its backward starts. The stream's other
        copies take time too. If copies are slower than computation, the first copies back start long before their
        backwards.

        Args:
            chosen: shape (stages, microbatches).
            group: neighbouring ranks that share a stream for each direction.
            one_stream: whether copies to the host share the stream, each ready at the end of its forward.
        """
        schedule, is_back = self.schedule, GRADIENTS.mask(self.schedule.kind)
        rows = np.flatnonzero(is_back | ((schedule.kind == Kind.F) & one_stream))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        is_back = is_back[rows]
        index, stage, microbatch = worked(schedule, rows)
        copy_ns = np.where(is_back[index], self.back_ns[stage, microbatch], self.out_ns[stage, microbatch])
        duration_ns = np.zeros(rows.size, dtype=np.int64)
        np.add.at(duration_ns, index, copy_ns)
        # Earliest start of a copy to the host, and latest end of a copy back.
        limit_ns = np.where(is_back, self.start_ns[rows], self.end_ns[rows])
        stream, start_ns = schedule.rank_of_row()[rows] // group, np.empty(rows.size, dtype=np.int64)
        order = np.lexsort((rows, limit_ns, stream))
        for copies in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
            passed_ns = np.concatenate([[0], np.cumsum(duration_ns[copies])])
            never = passed_ns[-1] + limit_ns.max(initial=0)
            slack_ns = np.where(is_back[copies], limit_ns[copies], never) - passed_ns[1:]
            start_ns[copies] = passed_ns[:-1] + np.minimum.accumulate(slack_ns[::-1])[::-1]
        latest_ns, back = np.zeros(chosen.shape, dtype=np.int64), is_back[index]
        latest_ns[stage[back], microbatch[back]] = start_ns[index[back]]
        return latest_ns

    def ahead(self, chosen: NDArray[np.bool_], start_ns: Int64s) -> Int64s:
        """Return the number of blocks between each chosen copy back and its backward at these start times."""
        schedule, blocks = self.schedule, blocks_of(self.schedule)
        ahead = np.zeros(chosen.shape, dtype=np.int64)
        ends = self.end_ns[blocks.last]
        first_block = np.searchsorted(blocks.first, schedule.row_ptr)
        rows = np.flatnonzero(GRADIENTS.mask(schedule.kind))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        first_row = np.searchsorted(rows, schedule.row_ptr)
        for rank in range(schedule.ranks):
            rank_rows = rows[first_row[rank] : first_row[rank + 1]]
            start = start_ns[schedule.stage[rank_rows], schedule.microbatch[rank_rows]]
            low, high = first_block[rank], first_block[rank + 1]
            started = low + np.searchsorted(ends[low:high], start, side="right")
            index, stage, microbatch = worked(schedule, rank_rows)
            ahead[stage, microbatch] = np.maximum(blocks.of_row[rank_rows] - started, 0)[index]
        return ahead


def plan_of(schedule: Schedule, timeline: Timeline, workload: Workload) -> Plan:
    """Return the plan of a table that ran as a timeline, without copies."""
    timeline = folded(timeline)
    mask = COMPUTE.mask(timeline.kind) & ~STAGE_ENDS.mask(timeline.kind)
    lanes = np.repeat(timeline.lane_stream == Stream.COMPUTE, np.diff(timeline.lane_ptr))
    rows, there = np.flatnonzero(mask & lanes), np.flatnonzero(blocks_of(schedule).of_row >= 0)
    start, end = np.zeros((2, len(schedule)), dtype=np.int64)
    start[there], end[there] = timeline.start_ns[rows], timeline.end_ns[rows]
    shape = schedule.stages, schedule.microbatches
    forward_end, backward_start = np.zeros((2, *shape), dtype=np.int64)
    for into, times, kinds in (
        (forward_end, end, schedule.kind == Kind.F), (backward_start, start, GRADIENTS.mask(schedule.kind))
    ):  # fmt: skip
        rows = np.flatnonzero(kinds)
        index, stage, microbatch = worked(schedule, rows)
        into[stage, microbatch] = times[rows][index]
    return Plan(schedule, start, end, forward_end, backward_start, *_copies(workload, shape))


def _copies(workload: Workload, shape: tuple[int, int]) -> tuple[Int64s, Int64s]:
    """Return the durations of copies in both directions, by stage and microbatch."""
    used = workload.microbatch_class if workload.classes else np.zeros(shape[1], dtype=np.int32)
    costs = (workload, *workload.classes)
    out, back = (
        np.stack([getattr(each, name) for each in costs])[used].T.copy() for name in ("offload_ns", "reload_ns")
    )
    return out, back


def copy_turns(schedule: Schedule, plan: Plan, latest_ns: Int64s, group: int) -> tuple[NDArray[np.int32], ...]:
    """Return the waits of copies where ``group`` neighbouring ranks share a stream for each direction.

    Copies to the host are in the order of their ready times, copies back in the order of their latest starts. No
    copy waits for a later action, as each copy back is ready and starts before its backward.

    Args:
        schedule: the plan's table with copies.
        plan: the times without copies.
        latest_ns: shape (stages, microbatches): latest starts of copies back.
        group: ranks that share streams.
    """
    rows = np.flatnonzero(COMPUTE.mask(schedule.kind) & ~STAGE_ENDS.mask(schedule.kind))
    ends = np.zeros(len(schedule), dtype=np.int64)
    ends[rows] = plan.end_ns[blocks_of(plan.schedule).of_row >= 0]
    rank = schedule.rank_of_row()
    reached = np.maximum.accumulate(ends + rank * (ends.max(initial=0) + 1))  # end of the rank's last computation
    turns = []
    for kind in (Kind.OFFLOAD, Kind.RELOAD):
        copies = np.flatnonzero(schedule.kind == kind)
        start_ns = reached[copies] - rank[copies] * (ends.max(initial=0) + 1)
        if kind is Kind.RELOAD:
            latest = latest_ns[schedule.stage[copies], schedule.microbatch[copies]]
            far = rank[copies] * (1 + latest.max(initial=0) - latest.min(initial=0))
            start_ns = np.maximum(
                start_ns, np.minimum.accumulate((latest + far)[::-1])[::-1] - far
            )  # in the row's order
        order = np.lexsort((copies, start_ns, rank[copies] // group))
        copies = copies[order]
        described = np.stack([schedule.kind[copies], schedule.stage[copies], schedule.microbatch[copies]], axis=1)
        shared = np.flatnonzero(np.diff(rank[copies] // group)) + 1
        turns += [np.hstack([turn[:-1], turn[1:]]) for turn in np.split(described.astype(np.int32), shared)]
    return tuple(turns)


def sooner_alone(workload: Workload, timeline: Timeline, microbatches: int, share: float, group: int) -> Workload:
    """Return costs with faster copies during the time without copies in the other direction.

    A copy of duration d that overlaps with copies in the other direction for x takes x + share (d - x).

    Args:
        workload: costs of copies that always overlap.
        timeline: a step with these costs.
        microbatches: number of microbatches in the step.
        share: duration of a copy without overlap, relative to one with overlap.
        group: neighbouring ranks whose copies affect each other, as they share a switch.
    """
    shape = workload.stages, microbatches
    crossed = np.ones((2, *shape))
    kinds = Kind.OFFLOAD, Kind.RELOAD
    rows = [np.flatnonzero(timeline.kind == kind) for kind in kinds]
    for into, copies, opposite in zip(crossed, rows, rows[::-1], strict=True):
        overlap_ns = _overlap_ns(timeline, copies, opposite, group)
        overlap = overlap_ns / np.maximum(timeline.end_ns - timeline.start_ns, 1)[copies]
        for offset in range(int(timeline.span[copies].max(initial=0))):
            spans = timeline.span[copies] > offset
            covered = copies[spans]
            into[timeline.stage[covered], timeline.microbatch[covered] + offset] = overlap[spans]
    used = workload.microbatch_class if workload.classes else np.zeros(shape[1], dtype=np.int32)
    costs = workload, *workload.classes
    copies_ns = np.stack(_copies(workload, shape))
    times_ns = (copies_ns * (share + (1 - share) * crossed)).astype(np.int64)
    patterns = np.concatenate([used[:, None], times_ns.transpose(2, 0, 1).reshape(shape[1], -1)], axis=1)
    _, first, classes = np.unique(patterns, axis=0, return_index=True, return_inverse=True)
    costs_of_pattern = tuple(
        replace(
            costs[used[microbatch]], classes=(), microbatch_class=np.zeros(0, dtype=np.int32),
            offload_ns=times_ns[0, :, microbatch].copy(), reload_ns=times_ns[1, :, microbatch].copy(),
        )
        for microbatch in first.tolist()
    )  # fmt: skip
    return replace(workload, classes=costs_of_pattern, microbatch_class=(classes.ravel() + 1).astype(np.int32))


def _overlap_ns(timeline: Timeline, rows: NDArray[np.int64], others: NDArray[np.int64], group: int) -> Int64s:
    """Return the overlap of each row with the consecutive ``others`` of its group."""
    rank = timeline.rank_of_row() // group
    overlap_ns = np.zeros(rows.size, dtype=np.int64)
    for group_rank in np.unique(rank[rows]).tolist():
        indices, other = np.flatnonzero(rank[rows] == group_rank), others[rank[others] == group_rank]
        start, end = np.sort(timeline.start_ns[other]), np.sort(timeline.end_ns[other])
        busy = np.concatenate([[0], np.cumsum(end - start)])

        def until(time: Int64s, start: Int64s = start, busy: Int64s = busy, end: Int64s = end) -> Int64s:
            begun = np.searchsorted(start, time)
            remaining = np.maximum(end[begun - 1] - time, 0) if end.size else 0
            busy_ns: Int64s = busy[begun] - np.where(begun > 0, remaining, 0)
            return busy_ns

        overlap_ns[indices] = until(timeline.end_ns[rows[indices]]) - until(timeline.start_ns[rows[indices]])
    return overlap_ns


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
