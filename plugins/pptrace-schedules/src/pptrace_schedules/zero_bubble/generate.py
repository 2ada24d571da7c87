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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.plugin import Actions, Filled, Int32s, Int64s, Placement, Schedule, ScheduleRequest

__all__ = ["built", "without_weights"]

_WORK = 400_000
"""Actions to place before no further order is tried."""

_REFINED = 2
"""The shortest orders of few microbatches, which are filled by further rules."""

_MISSING = (0, 2, 4)
"""Eighths of a weight gradient that a gap may lack."""


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
    for filled in _filled(times, fixed, orders):
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


def _filled(times: Times, fixed: Schedule, orders: Callable[[Times], Iterator[Schedule]]) -> Iterator[Filled]:
    """Fill one order after another, then one that every memory holds; the best of few microbatches once more."""
    shortest: dict[int, tuple[tuple[int, int], Schedule]] = {}
    spent, some = 0, False
    for number, order in enumerate(chain((fixed,), orders(times))):
        for missing in _MISSING:
            if some and spent >= _WORK:
                return
            spent += len(order)
            try:
                filled = _fill(times, order, missing)
            except ScheduleError:
                break
            yield filled
            some = True
            if (order.kind == Kind.W).any():  # it is only timed
                break
            key = (filled.longest, filled.length)
            shortest[number] = min(shortest.get(number, (key, order)), (key, order), key=lambda entry: entry[0])
    if not some or spent < _WORK:
        order = _bounded(times, fixed.placement)
        yield (filled := _fill(times, order, 0))
        shortest[-1] = (filled.longest, filled.length), order
    if fixed.microbatches < 2 * fixed.ranks:
        best = sorted(shortest.values(), key=lambda entry: entry[0])[:_REFINED]
        yield from _patient(times, [order for _, order in best], _WORK - spent)


def _patient(times: Times, orders: Sequence[Schedule], work: int) -> Iterator[Filled]:
    """Fill orders of two chunks again: ranks keep weight gradients, and wait, before a microbatch turns back.

    Without a steady state, gaps on the way to the first stage cost nothing where another rank idles longer.
    """
    for order in orders:
        late = (np.arange(order.stages) >= order.ranks).astype(np.int64)
        for waits in ({Kind.I: late}, {Kind.I: late, Kind.F: 1}) if late.any() else ():
            work -= len(order)
            if work < 0:
                return
            yield _fill(times, order, 0, waits)


def _fill(times: Times, order: Schedule, missing: int, waits: Mapping[Kind, object] | None = None) -> Filled:
    room = times.room
    return fill_weights(
        order, times.durations, transfer=times.transfer, taken=room.taken, kept=room.kept, room=room.rank,
        missing=missing, waits=waits,
    )  # fmt: skip


def _bounded(times: Times, placement: Placement) -> Schedule:
    """Return the order of a rule: few microbatches in flight on each stage, so many as its rank has memory for.

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
    return without_weights(
        list_schedule(
            placement, times.durations, priority=_gradients_first, in_flight=InFlight(stage=bounds[None]),
            transfer=times.transfer,
        )
    )  # fmt: skip


def _gradients_first(actions: Actions) -> Sequence[Int64s | Int32s]:
    forward, weight = actions.kind == Kind.F, actions.kind == Kind.W
    return [2 * weight + forward, np.where(forward, -actions.stage, actions.microbatch)]
