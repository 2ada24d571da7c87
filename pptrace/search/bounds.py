"""Lower bounds on step time and memory from a table and its costs, without a simulation.

A rank runs its row in order. An action starts after its predecessors in the model: a forward after all forwards
of its microbatch on earlier stages, a backward after all forwards and the backwards of later stages. The step ends
after all successors of an action, down to the backward of the first stage. No step of the table is shorter, even
with messages of zero duration. With these, the bound is exact for 1F1B and its interleaved forms on a chain of
stages. The activation memory follows from the order of the row alone.
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
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a simulated step."""

    step_ns: int
    """Step time."""
    peak_bytes: int
    """Memory of the fullest rank."""
    fits: bool = True
    """Whether the bound of each rank is within its known capacity."""


def least_work_ns(workload: Workload, ranks: int, microbatches: int) -> int:
    """Return a lower bound on the computation of the busiest rank: the mean over the ranks."""
    times = _durations(workload)
    backward = np.minimum(times[Kind.B], times[Kind.I] + times[Kind.W])
    whole = int((times[Kind.F] + backward).sum()) * microbatches
    # Parts of a microbatch are rounded down, by less than a nanosecond each.
    return max(whole // ranks - 64 * workload.stages * microbatches, 0)


def least_memory(workload: Workload, ranks: int) -> int:
    """Return a lower bound on the memory of the fullest rank: the mean over the ranks."""
    return int(workload.static_bytes.sum()) // ranks + workload.reserved_bytes


def least_fits(workload: Workload, ranks: int) -> bool:
    """Return whether the total capacity holds the static memory of all ranks."""
    if not workload.capacity_bytes:
        return True
    if not workload.rank_capacity_bytes.size:
        return least_memory(workload, ranks) <= workload.capacity_bytes
    held = int(workload.static_bytes.sum()) + ranks * workload.reserved_bytes
    return held <= int(workload.capacities(ranks).sum())


def bound_of(
    table: Schedule,
    request: ScheduleRequest,
    workload: Workload,
    experiment: Experiment,
    provided: Provided[ScheduleOffer],
) -> Bound:
    """Return the lower bounds of a table.

    Args:
        table: the table.
        request: its request.
        workload: its costs, per stage of the table.
        experiment: their configuration.
        provided: the schedule.
    """
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
    before, until_end = _needed(table, workload, times)
    row = np.repeat(np.arange(table.ranks), np.diff(table.row_ptr))
    done = took.cumsum()
    # An offset per rank, larger than any time, lets one pass accumulate all rows.
    offset = row * (int(done[-1] if done.size else 0) + int(before.max(initial=0)) + 1)
    starts = np.maximum.accumulate(before - (done - took) + offset) - offset
    ends = starts + done
    filled = np.diff(table.row_ptr) > 0
    last = np.zeros(table.ranks, dtype=np.int64)
    last[filled] = ends[table.row_ptr[1:][filled] - 1]
    after = _after_rows(table, workload, experiment)
    return int(max((last + after).max(initial=0), (ends + until_end).max(initial=0) + int(after.min(initial=0))))


def _needed(table: Schedule, workload: Workload, times: Int64s) -> tuple[Int64s, Int64s]:
    """Return lower bounds on the time before the start and after the end of each action."""
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
    until_end = np.where(is_forward, first[-1] - first[stage + 1] + up[-1], 0) + np.where(
        is_backward, up[stage], 0
    )
    return before, until_end


def _after_rows(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    """Return the optimizer time of each rank after its row; 0 where the validation moves it."""
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
    """Return the least duration of each kind per stage, shape (kinds, stages); of segments, the computation."""
    alone: list[Int64s] = []
    for costs in (workload, *workload.classes):
        rows = [costs.duration_ns(kind) - (costs.collective_ns(kind) if costs.segments else 0) for kind in Kind]
        alone.append(np.stack(rows))
    least: Int64s = np.min(np.stack(alone), axis=0)
    return least
