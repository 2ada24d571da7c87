"""Changes of a table: recomputation, copies, gathers, interleave orders of pairs, and notes on them.

Copies to the host: Wan et al., PipeOffload, ICML 2025, arXiv:2503.01328, and the authors' ``offloading.py``. They
copy to the host as early as possible and back as late as possible, and skip activations with a short wait.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import CopyStream, Reshard, Sharing, Validation
from pptrace.run.speeds import PASS_COLUMNS
from pptrace.sim.engines import Contention
from pptrace.sim.simulation import lower_step
from pptrace.steps.action_insertion import (
    blocks_of,
    waits_for_copies,
    with_copies,
    with_gathers,
    with_recompute,
    with_reductions,
)
from pptrace.steps.actions import microbatches_of
from pptrace.steps.kinds import COMPUTE, COPIES, GRADIENTS, STAGE_ENDS, Kind, Stream
from pptrace.timeline.actions import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import DataParallel, Experiment, Offload, Recompute
    from pptrace.network.contract import Network
    from pptrace.run.costs import Costs
    from pptrace.steps.columns import Int32s, Int64s
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
    if offload is not None:
        if COPIES.mask(table.kind).any():
            raise resolved.error("schedule.offload", f"{choice.name} already has copies: remove the key")
        workload = _with_copied_share(workload, offload)

        def run(table: Schedule) -> Timeline:
            no_sharing = Contention(links=Sharing.NONE)
            return lower_step(table, workload, network, policy, contention=no_sharing).run_table().timeline

        table = _with_offload(resolved, offload, table, workload, run)
        if offload.alone != 1:
            workload = _with_lone_copies(workload, run(table), table.microbatches, offload)
    return with_sharding(resolved, table, workload, policy.lookahead), workload


def _with_recompute(resolved: Resolved, recompute: Recompute, table: Schedule, workload: Workload) -> Schedule:
    key = "schedule.recompute"
    if (table.kind == Kind.RECOMPUTE).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} already recomputes forwards: remove the key")
    if workload.f_ns.any() and not workload.recompute_ns.any():
        message = "the model's backward already recomputes its forward: remove the key, or model.recompute"
        raise resolved.error(key, message)
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
    resolved: Resolved, offload: Offload, table: Schedule, workload: Workload, run: Callable[[Schedule], Timeline]
) -> Schedule:
    """Return a table with copies; ``run`` simulates it without contention."""
    chosen = _chosen(resolved, "schedule.offload", offload, table)
    recomputed = table.stage[table.kind == Kind.RECOMPUTE]
    stages = np.intersect1d(recomputed, np.flatnonzero(chosen.any(axis=1)))
    if stages.size:
        message = f"stage {stages[0]} is computed again: leave it out here, or of schedule.recompute.stages"
        raise resolved.error("schedule.offload.stages", message)
    plan = _CopyPlan.of(table, run(table), workload)
    waits_ns = plan.backward_start_ns - plan.forward_end_ns
    chosen &= (waits_ns > offload.gap * (plan.out_ns + plan.back_ns)) | (offload.gap == 0)
    group = _ranks_of(offload.stream)
    latest_ns = plan.latest_starts(chosen, group, one_stream=offload.stream is CopyStream.RANK)
    ahead = plan.blocks_before_backward(chosen, latest_ns) if offload.ahead is None else offload.ahead
    copied = with_copies(table, chosen, ahead)
    if group > 1:
        copied = replace(copied, waits=(*copied.waits, *_copy_turns(copied, plan, latest_ns, group)))
    if offload.behind is not None:
        copied = replace(copied, waits=(*copied.waits, waits_for_copies(copied, offload.behind)))
    return copied


def _ranks_of(stream: CopyStream) -> int:
    return _ON_A_SWITCH if stream is CopyStream.PAIR else 1


def _chosen(resolved: Resolved, key: str, configured: Offload | Recompute, table: Schedule) -> NDArray[np.bool_]:
    """Return the configured microbatches of stages, shape (stages, microbatches)."""
    placement = table.placement
    chosen = placement.stage_rank.T[:, placement.microbatch_route] >= 0
    if configured.stages is not None:
        _check(resolved, f"{key}.stages", configured.stages, table.stages, "stage")
        chosen &= np.isin(np.arange(table.stages), configured.stages)[:, None]
    if configured.chunks is not None:
        chunk = placement.chunk_of_stage()
        _check(resolved, f"{key}.chunks", configured.chunks, int(chunk.max(initial=0)) + 1, "chunk")
        chosen &= np.isin(chunk, configured.chunks).T[:, placement.microbatch_route]
    return chosen


def _check(resolved: Resolved, key: str, configured: list[int], count: int, what: str) -> None:
    known = f"there are {count} {what}s, 0 to {count - 1}," if count > 1 else f"there is 1 {what}, 0,"
    for index, number in enumerate(configured):
        if number >= count:
            raise resolved.error(f"{key}[{index}]", f"{known} and no {number}")


class _CopyPlan(Struct, frozen=True):
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

    @classmethod
    def of(cls, schedule: Schedule, timeline: Timeline, workload: Workload) -> Self:
        """Return the plan of a table without copies that ran as a timeline."""
        timeline = folded(timeline)
        mask = COMPUTE.mask(timeline.kind) & ~STAGE_ENDS.mask(timeline.kind)
        lanes = np.repeat(timeline.lane_stream == Stream.COMPUTE, np.diff(timeline.lane_ptr))
        rows, computations = np.flatnonzero(mask & lanes), np.flatnonzero(blocks_of(schedule).of_row >= 0)
        start_ns, end_ns = np.zeros((2, len(schedule)), dtype=np.int64)
        start_ns[computations], end_ns[computations] = timeline.start_ns[rows], timeline.end_ns[rows]
        forward_end_ns, backward_start_ns = np.zeros((2, schedule.stages, schedule.microbatches), dtype=np.int64)
        for target, times_ns, kinds in (
            (forward_end_ns, end_ns, schedule.kind == Kind.F),
            (backward_start_ns, start_ns, GRADIENTS.mask(schedule.kind)),
        ):
            rows = np.flatnonzero(kinds)
            index, stage, microbatch = microbatches_of(schedule, rows)
            target[stage, microbatch] = times_ns[rows][index]
        copies_ns = _copy_times(workload, _class_of(workload, schedule.microbatches))
        return cls(schedule, start_ns, end_ns, forward_end_ns, backward_start_ns, *copies_ns)

    def latest_starts(self, chosen: NDArray[np.bool_], group: int, *, one_stream: bool) -> Int64s:
        """Return the latest start of each chosen copy back, shape (stages, microbatches).

        Copies of a stream run one after the other, and each ends before its backward starts. If copies are slower
        than computation, the first copies back start long before their backwards.

        Args:
            chosen: shape (stages, microbatches).
            group: neighbouring ranks that share a stream for each direction.
            one_stream: whether copies to the host share the stream, each ready at the end of its forward.
        """
        schedule, is_back = self.schedule, GRADIENTS.mask(self.schedule.kind)
        rows = np.flatnonzero(is_back | ((schedule.kind == Kind.F) & one_stream))
        rows = rows[chosen[schedule.stage[rows], schedule.microbatch[rows]]]
        is_back = is_back[rows]
        index, stage, microbatch = microbatches_of(schedule, rows)
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

    def blocks_before_backward(self, chosen: NDArray[np.bool_], start_ns: Int64s) -> Int64s:
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
            index, stage, microbatch = microbatches_of(schedule, rank_rows)
            ahead[stage, microbatch] = np.maximum(blocks.of_row[rank_rows] - started, 0)[index]
        return ahead


def _class_of(workload: Workload, microbatches: int) -> Int32s:
    """Return the class of each microbatch; 0 for the workload itself."""
    return workload.microbatch_class if workload.classes else np.zeros(microbatches, dtype=np.int32)


def _copy_times(workload: Workload, class_of: Int32s) -> Int64s:
    """Return the durations of copies to the host and back, shape (2, stages, microbatches)."""
    by_class = np.array([(costs.offload_ns, costs.reload_ns) for costs in (workload, *workload.classes)])
    return by_class[class_of].transpose(1, 2, 0).copy()


def _copy_turns(
    schedule: Schedule, plan: _CopyPlan, latest_ns: Int64s, group: int
) -> tuple[NDArray[np.int32], ...]:
    """Return the waits of copies where ``group`` neighbouring ranks share a stream for each direction.

    Copies to the host are in the order of their ready times, copies back in the order of their latest starts. No
    copy waits for a later action, as each copy back is ready and starts before its backward. ``latest_ns`` are
    latest starts of copies back, shape (stages, microbatches).
    """
    rows = np.flatnonzero(COMPUTE.mask(schedule.kind) & ~STAGE_ENDS.mask(schedule.kind))
    ends_ns = np.zeros(len(schedule), dtype=np.int64)
    ends_ns[rows] = plan.end_ns[blocks_of(plan.schedule).of_row >= 0]
    rank = schedule.rank_of_row()
    offset_ns = rank * (ends_ns.max(initial=0) + 1)
    reached_ns = np.maximum.accumulate(ends_ns + offset_ns) - offset_ns  # end of the rank's last computation
    turns = []
    for kind in (Kind.OFFLOAD, Kind.RELOAD):
        copies = np.flatnonzero(schedule.kind == kind)
        start_ns = reached_ns[copies]
        if kind is Kind.RELOAD:
            latest = latest_ns[schedule.stage[copies], schedule.microbatch[copies]]
            rank_ns = rank[copies] * (1 + latest.max(initial=0) - latest.min(initial=0))
            in_row_order_ns = np.minimum.accumulate((latest + rank_ns)[::-1])[::-1] - rank_ns
            start_ns = np.maximum(start_ns, in_row_order_ns)
        order = np.lexsort((copies, start_ns, rank[copies] // group))
        copies = copies[order]
        cells = np.stack([schedule.kind[copies], schedule.stage[copies], schedule.microbatch[copies]], axis=1)
        streams = np.split(cells.astype(np.int32), np.flatnonzero(np.diff(rank[copies] // group)) + 1)
        turns += [np.hstack([stream[:-1], stream[1:]]) for stream in streams]
    return tuple(turns)


def _with_lone_copies(workload: Workload, timeline: Timeline, microbatches: int, offload: Offload) -> Workload:
    """Return costs with faster copies during the time without copies in the other direction.

    A copy of duration d that overlaps with copies in the other direction for x takes x + share (d - x), where
    ``offload.alone`` is the share. Ranks that share a switch affect each other's copies. ``timeline`` is a step
    with copies that always overlap.
    """
    overlaps = np.ones((2, workload.stages, microbatches))
    rows = [np.flatnonzero(timeline.kind == kind) for kind in (Kind.OFFLOAD, Kind.RELOAD)]
    for target, copies, opposite in zip(overlaps, rows, rows[::-1], strict=True):
        overlap_ns = _overlap_ns(timeline, copies, opposite, _ranks_of(offload.stream))
        overlap = overlap_ns / np.maximum(timeline.end_ns - timeline.start_ns, 1)[copies]
        number, stage, microbatch = microbatches_of(timeline, copies)
        target[stage, microbatch] = overlap[number]
    class_of, costs = _class_of(workload, microbatches), (workload, *workload.classes)
    factors = offload.alone + (1 - offload.alone) * overlaps
    times_ns = (_copy_times(workload, class_of) * factors).astype(np.int64)
    patterns = np.concatenate([class_of[:, None], times_ns.transpose(2, 0, 1).reshape(microbatches, -1)], axis=1)
    _, first, classes = np.unique(patterns, axis=0, return_index=True, return_inverse=True)
    costs_of_pattern = tuple(
        replace(
            costs[class_of[microbatch]], classes=(), microbatch_class=np.zeros(0, dtype=np.int32),
            offload_ns=times_ns[0, :, microbatch].copy(), reload_ns=times_ns[1, :, microbatch].copy(),
        )
        for microbatch in first.tolist()
    )  # fmt: skip
    return replace(workload, classes=costs_of_pattern, microbatch_class=(classes.ravel() + 1).astype(np.int32))


def _overlap_ns(timeline: Timeline, rows: Int64s, opposite: Int64s, group: int) -> Int64s:
    """Return the overlap of each copy with the consecutive copies in the ``opposite`` direction of its group."""
    rank = timeline.rank_of_row() // group
    overlap_ns = np.zeros(rows.size, dtype=np.int64)
    for group_rank in np.unique(rank[rows]).tolist():
        indices, group_rows = np.flatnonzero(rank[rows] == group_rank), opposite[rank[opposite] == group_rank]
        start_ns, end_ns = np.sort(timeline.start_ns[group_rows]), np.sort(timeline.end_ns[group_rows])
        total_ns = np.concatenate([[0], np.cumsum(end_ns - start_ns)])
        for sign, time_ns in ((1, timeline.end_ns[rows[indices]]), (-1, timeline.start_ns[rows[indices]])):
            started = np.searchsorted(start_ns, time_ns)
            remaining_ns = np.maximum(end_ns[started - 1] - time_ns, 0) if end_ns.size else 0
            overlap_ns[indices] += sign * (total_ns[started] - np.where(started > 0, remaining_ns, 0))
    return overlap_ns


_DEPTH = 1
"""Number of units that FSDP2 and Megatron-FSDP gather ahead by default."""


def count_units(resolved: Resolved, table: Schedule, costs: Costs) -> int:
    """Return the number of units of a step without a pipeline; 1 for stages that are no units.

    By default, the only stage has units if its state is sharded or its gradients are reduced while the last
    backward computes. Frameworks then reduce buckets, mostly smaller than a layer. Overlapped pairs have whole
    stages, whose layers hide each other's collectives, unless their state is sharded. Replicas with different
    numbers of microbatches have whole stages, which are reduced once.

    Raises:
        ConfigError: units of a pipeline, of a table with collectives, or of replicas with different numbers of
            microbatches, also by default if their state is sharded.
    """
    reduction, placement = resolved.experiment.data_parallel, table.placement
    is_divisible = placement.ranks * placement.stages * placement.routes == 1 and COMPUTE.mask(table.kind).all()
    if reduction.units is None and not is_divisible:
        return 1
    configured = reduction.units
    if not isinstance(configured, int):
        configured = units_of(reduction, costs.workload_of(table), has_pairs=table.has_pairs)
    if configured > 1 and not is_divisible:
        message = "a pipeline gathers and reduces stages: write pp: 1 and one chunk, or remove the key"
        raise resolved.error("data_parallel.units", message)
    if configured == 1 or not costs.sequences or len({*costs.sequences.microbatches}) == 1:
        return configured
    if reduction.units is None and not is_sharded(costs.workload_of(table)):
        return 1
    numbers = costs.sequences.microbatches
    message = f"replicas have {min(numbers)} to {max(numbers)} microbatches, and each gathers or reduces units"
    raise resolved.error("batch.documents", f"{message}: write equal: true, or data_parallel.units: 1")


def units_of(reduction: DataParallel, workload: Workload, *, has_pairs: bool) -> int:
    """Return the number of units of the only stage of a step, by the rule of :func:`count_units`."""
    if reduction.units == "weights":
        return workload.weights
    if reduction.units is not None:
        return reduction.units
    overlaps = reduction.overlaps and workload.reduce_ns.any() and not has_pairs
    return workload.units if is_sharded(workload) or overlaps else 1


def is_sharded(workload: Workload) -> bool:
    """Return whether replicas share weights or unreduced gradients."""
    shared = workload.gathered_bytes, workload.unreduced_bytes, workload.unshard_ns
    return any(values.any() for values in shared)


_COPY_KEYS = {
    Kind.OFFLOAD: "costs.offload", Kind.RELOAD: "costs.reload",
    Kind.UNSHARD: "costs.gather", Kind.REDUCE_GRAD: "costs.reduction",
}  # fmt: skip
"""Keys of ``costs: table`` with the time of each kind of copy to and from the host."""


def _no_copy_times(*kinds: Kind) -> str:
    *keys, last = (_COPY_KEYS[kind] for kind in kinds)
    first = f"{', '.join(keys)} and " if keys else ""
    return f"the costs have no time for copies: give device.host_bandwidth, or {first}{last}"


NO_COPY_TIMES = _no_copy_times(Kind.OFFLOAD, Kind.RELOAD)
"""The reason for no copies of activations to the host."""


def copies_take_time(workload: Workload) -> bool:
    """Return whether copies of all activations take time."""
    costs = (workload, *workload.classes)
    return all(
        bool((times[each.activation_bytes > 0] > 0).all())
        for each in costs
        for times in (each.offload_ns, each.reload_ns)
    )


def copy_notes(table: Schedule, workload: Workload) -> tuple[str, ...]:
    """Return a note on copies of a table to and from the host that take no time; empty if all take time."""
    if workload.host_bytes_per_s:
        return ()
    copied = {
        Kind.OFFLOAD: (workload.copied_bytes, workload.offload_ns),
        Kind.RELOAD: (workload.copied_bytes, workload.reload_ns),
    }
    if table.placement.has_host_state:
        copied[Kind.UNSHARD] = workload.gathered_bytes, workload.unshard_ns
        copied[Kind.REDUCE_GRAD] = workload.unreduced_bytes, workload.reduce_ns
    untimed = []
    for kind, (sizes, times) in copied.items():
        if not sizes.any():
            continue
        stages = table.stage[table.kind == int(kind)]  # an enum member would widen the column
        if sizes[stages].any() and not times[stages].any():
            untimed.append(kind)
    return (_no_copy_times(*untimed),) if untimed else ()


_SHARDS = "write costs.zero: 3, or remove the key"
_KEYS = ("reshard", "active_stages", "prefetch")
_USUAL = (None, Reshard.NEVER)


def with_sharding(
    resolved: Resolved, table: Schedule, workload: Workload, lookahead: Sequence[int] = ()
) -> Schedule:
    """Return a table with gathers, and with reductions after each backward, as configured.

    Weights that only the optimizer shards are gathered once and never freed. ``lookahead`` is the number of stages
    to gather ahead by rank, for weights that are never freed in between.

    Raises:
        ConfigError: a key without sharded weights, reductions without overlap, reductions in the table, or
            reductions of stages on several ranks.
    """
    configured, parallel = resolved.experiment.data_parallel, resolved.experiment.parallel
    has_units = table.ranks == 1 and table.stages > parallel.vp
    freed, gathered = workload.gathered_bytes > 0, workload.unshard_ns > 0
    if configured.reduces_each(units=has_units and is_sharded(workload)):
        _check_reductions(resolved, table)
        reduced = (workload.reduce_ns > 0) | (workload.unreduced_bytes > 0)
        table = with_reductions(table, reduced, workload.reduce_groups_ns > 0)
    written = [f"data_parallel.{key}" for key in _KEYS if getattr(configured, key) not in _USUAL]
    if written and parallel.dp * parallel.cp > 1 and not freed.any():
        raise resolved.error(written[0], f"no weights are gathered and freed: {_SHARDS}")
    if configured.subgroup and not has_units:
        message = "only units are resharded to a part of a group: write pp: 1 and no units: 1, or always"
        raise resolved.error("data_parallel.reshard", message)
    if configured.subgroup and workload.unshard_ns.any() and not workload.unshard_subgroup_ns.any():
        message = (
            "these costs have no times of gathers in a part of a group: write costs.subgroup_gather, or always"
        )
        raise resolved.error("data_parallel.reshard", message)
    if configured.prefetch is not None and not has_units and configured.units is None:
        needed = "costs.zero: 3" if parallel.pp == 1 else "pp: 1"
        raise resolved.error("data_parallel.prefetch", f"the step has no units: write {needed}, or remove the key")
    if (table.kind == int(Kind.UNSHARD)).any():
        if written:
            name = resolved.experiment.schedule.name
            raise resolved.error(written[0], f"{name} already has gathers: remove the key")
        return table
    prefetch = None
    if has_units:
        prefetch = _DEPTH if configured.prefetch is None else configured.prefetch
    if not freed.any():
        return with_gathers(table, gathered, None, prefetch=prefetch) if gathered.any() else table
    from pptrace.steps.pytorch_tables import ACTIVE_STAGES

    reshard = configured.reshard_rule or (Reshard.ALWAYS if has_units else Reshard.NEVER)
    active = configured.active_stages or (None if has_units else ACTIVE_STAGES)
    subgroups = bool(configured.subgroup)
    return with_gathers(table, freed | gathered, reshard, active, lookahead, prefetch, subgroups=subgroups)


def _check_reductions(resolved: Resolved, table: Schedule) -> None:
    key, configured = "data_parallel.reduce_each", resolved.experiment.data_parallel
    if not configured.overlaps:
        raise resolved.error(key, "reductions after each backward need overlap: write data_parallel.overlap: true")
    if (table.kind == Kind.REDUCE_GRAD).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} already has reductions: remove the key")
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


def overlap_notes(costs: Costs, table: Schedule, workload: Workload) -> tuple[str, ...]:
    """Return why the overlapped pairs of a table overlap nothing, and what to set; empty where they may."""
    segments = [
        segment
        for costs_of_class in (workload, *workload.classes)
        for stages in costs_of_class.segments.values()
        for segment in itertools.chain.from_iterable(stages)
    ]
    if not table.has_pairs or any(not segment.is_computation for segment in segments):
        return ()
    return (f"the pairs of this schedule overlap nothing: {_reason(costs, workload)}",)


def _reason(costs: Costs, workload: Workload) -> str:
    offer = costs.offer.offer
    if offer.options is None or _OPTION not in offer.options().model_fields:
        return f"{offer.name} costs have no segments; set a model, or costs.name to table with costs.{_OPTION}"
    if workload.segments:
        return "no segment of these costs communicates; set the stream of one under costs.segments"
    columns = [
        getattr(costs_of_class, f"{kind}_collective_ns")
        for costs_of_class in (workload, *workload.classes)
        for kind in PASS_COLUMNS
    ]
    if offer.model is not None and not any(column.any() for column in columns):
        return "costs have no segments, as no action has a collective; set parallel.tp, parallel.cp or parallel.ep"
    if costs.request.options.get(_OPTION) is False:
        return f"costs have no segments, as costs.{_OPTION} is false; set it to true"
    return f"costs have no segments; set costs.{_OPTION}"
