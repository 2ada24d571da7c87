"""Generation of tables for given times and memory.

The generator tries many orders of forwards and input gradients, fills weight gradients into their bubbles as
memory allows, and keeps the best table. It corresponds to the generators of Qi et al., Zero Bubble Pipeline
Parallelism, ICLR 2024, arXiv:2401.10241, section 3, and Pipeline Parallelism with Controllable Memory, NeurIPS
2024, arXiv:2405.15362.

Adjacent input and weight gradients are merged into full backwards as in PyTorch 2.13,
``torch/distributed/pipelining/schedules.py``, ``_merge_bw``. A full backward overlaps the collectives of its input
gradient with its weight gradients; a separate input gradient has nothing to overlap them with. In exchange, a full
backward sends its gradient later.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import (
    Flat,
    InFlight,
    Kind,
    Schedule,
    ScheduleError,
    Workload,
    fill_weights,
    list_schedule,
    simulate,
)
from pptrace_schedules.zero_bubble.bounds import Times, lower_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import Actions, Filled, Int32s, Int64s, Placement, ScheduleRequest, Timeline

_WORK = 400_000
"""Budget of placed actions; after half of it, no further order is tried."""

_REFINED = 2
"""Number of shortest orders that are refilled for shorter targets."""

_PROBES = 10
"""Number of targets per refilled order."""


def built(
    request: ScheduleRequest, fixed: Schedule, most: int, orders: Callable[[Times], Iterator[Schedule]]
) -> Schedule:
    """Return the best table for the request's times, or the fixed table for ``order: fixed``.

    The fixed order is tried first, so the result is never longer than it if it fits in memory. The search ends at
    the lower bounds or when its budget is used. Tables of 400,000 actions and more try the fixed order and one
    other.

    Args:
        request: the sizes, costs, memory and options.
        fixed: the table for equal times.
        most: activations of one stage and microbatch that a rank may hold.
        orders: function that yields tables of forwards and input gradients, the most promising first.

    Raises:
        ConstraintError: a rank has no memory for one microbatch.
    """
    merge = bool(request.options.get("merge"))
    if request.options.get("order") == "fixed":
        return merged(fixed) if merge else fixed
    times = Times.of(request, fixed.placement, most)
    by_step = request.options.get("shorten") == "step"
    pace, step = lower_bounds(times, fixed.placement, merge=merge)
    bounds = (step, pace) if by_step else (pace, step)
    best: tuple[tuple[int, int], Schedule] | None = None
    for filled in _fill_orders(times, fixed, orders, by_step=by_step):
        unmerged = [(filled.schedule, filled.longest, filled.length)]
        for table, longest, length in _merge(times, filled) if merge else unmerged:
            key = (length, longest) if by_step else (longest, length)
            if best is None or key < best[0]:
                best = key, table
            if key == bounds:
                return table
    assert best is not None, "the order of _bounded always fits"  # noqa: S101 - its microbatches in flight fit
    return best[1]


def _merge(times: Times, filled: Filled) -> Iterator[tuple[Schedule, int, int]]:
    """Yield tables with merged backwards, each with the longest time of a rank and with its makespan."""
    for table in _merged_for(times, filled.schedule):
        yield table, *_lengths(_run(times, table))


def without_weight_gradients(table: Schedule) -> Schedule:
    """Return a table without its weight gradients."""
    return table.selected(np.flatnonzero(table.kind != Kind.W))


def _fill_orders(
    times: Times, fixed: Schedule, orders: Callable[[Times], Iterator[Schedule]], *, by_step: bool
) -> Iterator[Filled]:
    """Fill each order, then the one with the fewest activations; then refill the shortest for shorter targets."""
    shortest: list[tuple[int, int, Schedule, Filled]] = []
    spent = 0
    for number, order in enumerate(chain((fixed,), orders(times), _bounded(times, fixed.placement))):
        try:
            filled = _fill(times, order)
        except ScheduleError:
            continue
        spent += len(order)
        yield filled
        if not (order.kind == Kind.W).any():
            shortest.append((_length(filled, by_step=by_step), number, order, filled))
        if shortest and 2 * spent >= _WORK:
            break
    for _, _, order, filled in sorted(shortest, key=lambda entry: entry[:2])[:_REFINED]:
        if spent + len(order) > _WORK:
            return
        for shorter in _refill(times, order, filled, by_step=by_step):
            yield shorter
            spent += len(order)
            if spent + len(order) > _WORK:
                return


def _refill(times: Times, order: Schedule, filled: Filled, *, by_step: bool) -> Iterator[Filled]:
    """Refill an order for targets between the busiest rank's work and the order's length, by bisection."""
    work = sum(times.durations.values()) * order.microbatches
    low = int(np.bincount(order.placement.stage_rank[0], weights=work).max())
    high = _length(filled, by_step=by_step)
    for _ in range(_PROBES):
        target = (low + high) // 2
        if target >= high:
            return
        shorter = _fill(times, order, target if by_step else filled.start + target)
        yield shorter
        length = _length(shorter, by_step=by_step)
        if length > target:
            low = target + 1
        high = min(high, length)


def _length(filled: Filled, *, by_step: bool) -> int:
    return filled.length if by_step else filled.longest


def _fill(times: Times, order: Schedule, deadline: object = None) -> Filled:
    room = times.room
    return fill_weights(
        order, times.durations, transfer=times.transfer, taken=room.taken, kept=room.kept, room=room.rank,
        deadline=deadline,
    )  # fmt: skip


def _bounded(times: Times, placement: Placement) -> Iterator[Schedule]:
    """Yield one list schedule whose microbatches in flight per stage are limited by the memory of its rank.

    A stage waits only for later stages of the same microbatch, so every limit of at least 1 is free of deadlock.
    """
    taken = times.room.taken
    rank_of = placement.stage_rank[0]
    limit = times.room.sets(placement)[rank_of]
    free = times.room.rank - np.bincount(rank_of, weights=(limit * taken).astype(np.float64)).astype(np.int64)
    for stage, rank in enumerate(rank_of):
        more = free[rank] // max(int(taken[stage]), 1)
        limit[stage] += more
        free[rank] -= more * taken[stage]
    yield without_weight_gradients(
        list_schedule(
            placement, times.durations, priority=_gradients_first, in_flight=InFlight(stage=limit[None]),
            transfer=times.transfer,
        )
    )  # fmt: skip


def _gradients_first(actions: Actions) -> Sequence[Int64s | Int32s]:
    forward, weight = actions.kind == Kind.F, actions.kind == Kind.W
    return [2 * weight + forward, np.where(forward, -actions.stage, actions.microbatch)]


def merged(table: Schedule) -> Schedule:
    """Return a table in which an input gradient directly before its weight gradient becomes a full backward."""
    return _with_merged(table, _pairs(table))


def _pairs(table: Schedule) -> NDArray[np.intp]:
    """Return the positions of input gradients that their own weight gradient directly follows."""
    first, second = slice(None, -1), slice(1, None)
    pairs = (table.kind[first] == Kind.I) & (table.kind[second] == Kind.W)
    for column in (table.rank_of_row(), table.stage, table.microbatch):
        pairs &= column[first] == column[second]
    return np.flatnonzero(pairs)


def _with_merged(table: Schedule, pairs: NDArray[np.intp]) -> Schedule:
    kind = table.kind.copy()
    kind[pairs] = Kind.B
    kept = np.delete(np.arange(len(table)), pairs + 1)
    row_ptr = np.append(0, np.cumsum(np.bincount(table.rank_of_row()[kept], minlength=table.ranks)))
    return Schedule.from_columns(table.placement, row_ptr, kind[kept], table.stage[kept], table.microbatch[kept])


def _merged_for(times: Times, table: Schedule) -> list[Schedule]:
    """Return the table with all adjacent halves merged, and with only those whose merge delays no stage.

    The latter is never longer than the table itself: a gradient that comes later is there before its stage
    starts with it, and a merged backward takes no longer than its halves. So each action may start when it
    did, or earlier. If no merge delays a stage, both are one table.
    """
    pairs = _pairs(table)
    harmless = _are_harmless(times, table, pairs)
    chosen = [pairs] if harmless.all() else [pairs, pairs[harmless]]
    return [_with_merged(table, each) for each in chosen]


def _are_harmless(times: Times, table: Schedule, pairs: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which backwards can be merged without delaying another stage."""
    timeline = _run(times, table)
    gradients = timeline.kind == Kind.I
    started = np.zeros((table.stages, table.microbatches), dtype=np.int64)
    started[timeline.stage[gradients], timeline.microbatch[gradients]] = timeline.start_ns[gradients]
    stage, microbatch = table.stage[pairs], table.microbatch[pairs]
    rank_of = table.placement.stage_rank[0]
    next_stage = np.maximum(stage - 1, 0)
    away = np.where(rank_of[stage] == rank_of[next_stage], 0, times.transfer)
    there = started[stage, microbatch] + times.backward[stage] + away
    harmless: NDArray[np.bool_] = (stage == 0) | (there <= started[next_stage, microbatch])
    return harmless & (times.backward <= times.input_gradient + times.weight_gradient)[stage]


def _run(times: Times, table: Schedule) -> Timeline:
    costs = Workload.uniform(
        table.stages, f_ns=times.forward, i_ns=times.input_gradient, w_ns=times.weight_gradient,
        b_ns=times.backward,
    )  # fmt: skip
    return simulate(table, costs, Flat(latency_ns=times.transfer))


def _lengths(timeline: Timeline) -> tuple[int, int]:
    """Return the longest time from a rank's start to its end, and from the first start to the last end."""
    start, end = np.full(timeline.ranks, 2**62), np.zeros(timeline.ranks, dtype=np.int64)
    actions = np.isin(timeline.kind, [Kind.F, Kind.I, Kind.W, Kind.B])
    rank = timeline.rank_of_row()[actions]
    np.minimum.at(start, rank, timeline.start_ns[actions])
    np.maximum.at(end, rank, timeline.end_ns[actions])
    return int((end - start).max()), int(end.max() - start.min())
