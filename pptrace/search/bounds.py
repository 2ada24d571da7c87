"""Lower bounds on a step and its memory, from a table and its costs, without a simulation.

A rank runs its row in order. So nothing of it starts before what the model needs before it: a forward needs all
forwards of its microbatch on earlier stages, a backward all forwards and the backwards of later stages. And
nothing ends a step before what the model needs behind it, down to the backward of the first stage. With messages
that take no time, no step of the table is shorter; where stages are one chain, that is the bubble of 1F1B and of
its interleaved forms to the last unit. Activations are taken and freed in the order of the row, so the memory
that they take is known without times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Validation
from pptrace.run.costs import in_parts, part_times
from pptrace.steps.kinds import COMPUTE, TABLE, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.config.schema import Experiment
    from pptrace.plugins.offers import Provided, ScheduleOffer
    from pptrace.search.table_cache import CachedTable
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What no simulated step is below."""

    step_ns: int
    """Its length."""
    peak_bytes: int
    """The memory of its fullest rank."""
    fits: bool = True
    """Whether each rank's device may have that much, as far as is known."""


def least_work_ns(workload: Workload, ranks: int, microbatches: int) -> int:
    """Return what the busiest rank computes at least, wherever stages lie: the mean over the ranks."""
    times = _durations(workload)
    backward = np.minimum(times[Kind.B], times[Kind.I] + times[Kind.W])
    whole = int((times[Kind.F] + backward).sum()) * microbatches
    # Parts of a microbatch are rounded down, by less than a nanosecond each.
    return max(whole // ranks - 64 * workload.stages * microbatches, 0)


def least_memory(workload: Workload, ranks: int) -> int:
    """Return what the fullest rank holds at least, wherever stages lie."""
    return int(workload.static_bytes.sum()) // ranks + workload.reserved_bytes


def least_fits(workload: Workload, ranks: int) -> bool:
    """Return whether all devices together have what all ranks hold at least, wherever stages lie."""
    if not workload.capacity_bytes:
        return True
    if not workload.rank_capacity_bytes.size:
        return least_memory(workload, ranks) <= workload.capacity_bytes
    held = int(workload.static_bytes.sum()) + ranks * workload.reserved_bytes
    return held <= int(workload.capacities(ranks).sum())


def bound_of(
    cached: CachedTable, workload: Workload, experiment: Experiment, provided: Provided[ScheduleOffer]
) -> Bound:
    """Return what no simulated step of a table is below.

    Args:
        cached: the table, and what was asked for.
        workload: its costs, per stage of the table.
        experiment: the configuration that has both.
        provided: the schedule.
    """
    table, request = cached.table, cached.request
    if table is None:
        message = "a table that depends on times has no bound"
        raise ValueError(message)
    if table.microbatches > request.microbatches:
        parts = table.microbatches // request.microbatches
        workload = in_parts(workload, request.microbatches, parts, part_times(provided, request, workload))
    peaks = _peaks(table, workload, experiment)
    fits = not workload.capacity_bytes or bool((peaks <= workload.capacities(table.ranks)).all())
    return Bound(
        step_ns=_step_ns(table, workload, experiment), peak_bytes=int(peaks.max(initial=0)), fits=fits,
    )  # fmt: skip


def _step_ns(table: Schedule, workload: Workload, experiment: Experiment) -> int:
    times = _durations(workload)
    took = times[table.kind, table.stage] * table.span
    took[~COMPUTE.mask(table.kind)] = 0
    before, behind = _needed(table, workload, times)
    row = np.repeat(np.arange(table.ranks), np.diff(table.row_ptr))
    done = took.cumsum()
    # Ranks are told apart by an offset that is larger than any time, so that one pass serves all rows.
    apart = row * (int(done[-1] if done.size else 0) + int(before.max(initial=0)) + 1)
    starts = np.maximum.accumulate(before - (done - took) + apart) - apart
    ends = starts + done
    filled = np.diff(table.row_ptr) > 0
    last = np.zeros(table.ranks, dtype=np.int64)
    last[filled] = ends[table.row_ptr[1:][filled] - 1]
    after = _after_rows(table, workload, experiment)
    return int(max((last + after).max(initial=0), (ends + behind).max(initial=0) + int(after.min(initial=0))))


def _needed(table: Schedule, workload: Workload, times: Int64s) -> tuple[Int64s, Int64s]:
    """Return what comes before each action's start at least, and what behind its end."""
    none = np.zeros(len(table), dtype=np.int64)
    if not table.placement.is_chain or workload.segments:
        return none, none
    forward = times[Kind.F]
    backward = np.minimum(times[Kind.B], times[Kind.I]) if (table.kind == Kind.I).any() else times[Kind.B]
    first = np.concatenate([[0], forward.cumsum()])
    up = np.concatenate([[0], backward.cumsum()])
    stage, is_forward = table.stage, table.kind == Kind.F
    is_backward = (table.kind == Kind.B) | (table.kind == Kind.I)
    before = np.where(is_forward, first[stage], 0) + np.where(is_backward, first[-1] + up[-1] - up[stage + 1], 0)
    behind = np.where(is_forward, first[-1] - first[stage + 1] + up[-1], 0) + np.where(is_backward, up[stage], 0)
    return before, behind


def _after_rows(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    """Return the updates that each rank does behind its row; none where their validation moves them."""
    held = table.placement.copies().astype(np.int64)
    if experiment.data_parallel.validation is not Validation.BEFORE:
        return np.zeros(table.ranks, dtype=np.int64)
    after: Int64s = held @ workload.optimizer_ns
    return after


def _peaks(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    held = table.placement.copies().astype(np.int64)
    static: Int64s = held @ workload.static_bytes + workload.reserved_bytes
    choice = experiment.schedule
    moved = choice.offload is not None or choice.recompute is not None
    if moved or workload.segments or workload.classes or TABLE.copied[table.kind].any():
        return static
    if TABLE.recomputed[table.kind].any():
        return static
    kind, stage = table.kind, table.stage
    change = TABLE.activation[kind] * workload.activation_bytes[stage]
    change = (change + TABLE.weight_activation[kind] * workload.weight_activation_bytes[stage]) * table.span
    taken: NDArray[Any] = change.cumsum()
    for rank in range(table.ranks):
        low, high = int(table.row_ptr[rank]), int(table.row_ptr[rank + 1])
        base = int(taken[low - 1]) if low else 0
        static[rank] += max(int(taken[low:high].max(initial=base)) - base, 0)
    return static


def _durations(workload: Workload) -> Int64s:
    """Return what each kind takes on each stage at least, shape (kinds, stages); of segments, the computation."""
    alone: list[Int64s] = []
    for one in (workload, *workload.classes):
        rows = [one.duration_ns(kind) - (one.collective_ns(kind) if one.segments else 0) for kind in Kind]
        alone.append(np.stack(rows))
    least: Int64s = np.min(np.stack(alone), axis=0)
    return least
