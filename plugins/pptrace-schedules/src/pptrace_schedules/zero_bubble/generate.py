"""Tables made for given times and a given memory: many orders are filled with weight gradients, the best is taken.

The role of the generators of Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 3,
and Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362. An order says how forwards and
input gradients follow one another on each rank; weight gradients then go into its gaps, as memory and times allow.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import InFlight, Kind, ScheduleError, fill_weights, list_schedule
from pptrace_schedules.zero_bubble.bounds import Times, lower_bounds
from pptrace_schedules.zero_bubble.merge import Merging, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import Actions, Filled, Int32s, Int64s, Placement, Schedule, ScheduleRequest

__all__ = ["built", "without_weights"]

_WORK = 400_000
"""Actions to place before the search ends; no further order is tried after half of them."""

_REFINED = 2
"""The shortest orders, which are filled again for shorter targets."""

_PROBES = 10
"""Targets per order."""


def built(
    request: ScheduleRequest, fixed: Schedule, most: int, orders: Callable[[Times], Iterator[Schedule]]
) -> Schedule:
    """Return the best table for the times, or the fixed form if so asked; backwards merged likewise.

    The fixed order is tried first, so the table is never longer than it where its memory is there. The search ends
    where an order reaches the lower bounds, or where ``_WORK`` actions are placed. Tables of 400,000 actions and
    more try the fixed order and one other.

    Args:
        request: the sizes, costs, memory and options.
        fixed: the table for equal times.
        most: activations of one stage and microbatch that a rank may hold.
        orders: makes tables of forwards and input gradients, the most promising first.

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
    for filled in _filled(times, fixed, orders, by_step=by_step):
        for table, longest, length in _merges(times, filled) if merge else _as_it_is(filled):
            key = (length, longest) if by_step else (longest, length)
            if best is None or key < best[0]:
                best = key, table
            if key == bounds:
                return table
    assert best is not None, "the order of bounded forwards always fits"  # noqa: S101 - what _bounded promises
    return best[1]


def _as_it_is(filled: Filled) -> Iterator[tuple[Schedule, int, int]]:
    yield filled.schedule, filled.longest, filled.length


def _merges(times: Times, filled: Filled) -> Iterator[tuple[Schedule, int, int]]:
    """Yield tables with merged backwards, the longest time of a rank and the time from end to end of each."""
    merging = Merging(
        forward=times.forward, input_gradient=times.input_gradient, weight_gradient=times.weight_gradient,
        backward=times.backward, transfer=times.transfer,
    )  # fmt: skip
    for table in merging.of(filled.schedule):
        yield table, *merging.lengths(table)


def without_weights(table: Schedule) -> Schedule:
    """Return a table without its weight gradients."""
    return table.selected(np.flatnonzero(table.kind != Kind.W))


def _filled(
    times: Times, fixed: Schedule, orders: Callable[[Times], Iterator[Schedule]], *, by_step: bool
) -> Iterator[Filled]:
    """Fill one order after another, then one that every memory holds; then the shortest for shorter targets."""
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
        for shorter in _shortened(times, order, filled, by_step=by_step):
            yield shorter
            spent += len(order)
            if spent + len(order) > _WORK:
                return


def _shortened(times: Times, order: Schedule, filled: Filled, *, by_step: bool) -> Iterator[Filled]:
    """Fill an order for targets between the most work of a rank and its length, by bisection."""
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
    """Yield the order of a rule: few microbatches in flight on each stage, so many as its rank has memory for.

    A stage waits for deeper stages of the same microbatch alone, so any bounds from 1 let every action run.
    """
    sets, taken = times.room.sets(placement), times.room.taken
    rank_of = placement.stage_rank[0]
    bounds = sets[rank_of]
    left = times.room.rank - np.bincount(rank_of, weights=(bounds * taken).astype(np.float64)).astype(np.int64)
    for stage, rank in enumerate(rank_of):
        more = left[rank] // max(int(taken[stage]), 1)
        bounds[stage] += more
        left[rank] -= more * taken[stage]
    yield without_weights(
        list_schedule(
            placement, times.durations, priority=_gradients_first, in_flight=InFlight(stage=bounds[None]),
            transfer=times.transfer,
        )
    )  # fmt: skip


def _gradients_first(actions: Actions) -> Sequence[Int64s | Int32s]:
    forward, weight = actions.kind == Kind.F, actions.kind == Kind.W
    return [2 * weight + forward, np.where(forward, -actions.stage, actions.microbatch)]
