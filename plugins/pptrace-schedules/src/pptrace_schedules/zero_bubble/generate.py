"""Tables made for given times and a given memory: many orders are filled with weight gradients, the best is taken.

The role of the generators of Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 3,
and Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362. An order says how forwards and
input gradients follow one another on each rank; weight gradients then go into its gaps, as memory and times allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import InFlight, Kind, ScheduleError, fill_weights, list_schedule
from pptrace_schedules.zero_bubble.merge import Merging, merged
from pptrace_schedules.zero_bubble.room import room_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import Actions, Filled, Int32s, Int64s, Placement, Schedule, ScheduleRequest
    from pptrace_schedules.zero_bubble.room import Room

__all__ = ["Times", "built", "without_weights"]

_WORK = 400_000
"""Actions to place before no further order is tried."""

_MISSING = (0, 2, 4)
"""Eighths of a weight gradient that a gap may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What an order is made for; every array has shape (stages,)."""

    forward: Int64s
    input_gradient: Int64s
    weight_gradient: Int64s
    backward: Int64s
    transfer: int
    room: Room

    @classmethod
    def of(cls, request: ScheduleRequest, placement: Placement, most: int) -> Times:
        """Return a request's times, 1 each where none are known.

        Raises:
            ConstraintError: a rank has no memory for one microbatch.
        """
        one = (1,) * request.stages
        forward, gradient, weight = (
            np.array(times or one, dtype=np.int64) for times in (request.f_ns, request.i_ns, request.w_ns)
        )
        whole = np.array(request.b_ns, dtype=np.int64) if request.b_ns else gradient + weight
        return cls(
            forward=forward, input_gradient=gradient, weight_gradient=weight, backward=whole,
            transfer=request.transfer_ns, room=room_for(request, placement, most),
        )  # fmt: skip

    @property
    def durations(self) -> dict[Kind, Int64s]:
        """By kind."""
        return {Kind.F: self.forward, Kind.I: self.input_gradient, Kind.W: self.weight_gradient}


def built(
    request: ScheduleRequest, fixed: Schedule, most: int, orders: Callable[[Times], Iterator[Schedule]]
) -> Schedule:
    """Return the fixed form, or where times are known the best table for them; backwards merged if so asked.

    Args:
        request: the sizes, costs, memory and options.
        fixed: the table for equal times.
        most: activations of one stage and microbatch that a rank may hold.
        orders: makes tables of forwards and input gradients, the most promising first.

    Raises:
        ConstraintError: a rank has no memory for one microbatch.
    """
    order, merge = request.options.get("order", "auto"), bool(request.options.get("merge"))
    if order == "fixed" or (order == "auto" and not request.f_ns):
        return merged(fixed) if merge else fixed
    times = Times.of(request, fixed.placement, most)
    by_step = request.options.get("shorten") == "step"
    best: tuple[tuple[int, int], Schedule] | None = None
    for filled in _filled(times, fixed, orders):
        for table, longest, length in _merges(times, filled) if merge else _as_it_is(filled):
            key = (length, longest) if by_step else (longest, length)
            if best is None or key < best[0]:
                best = key, table
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
    """Fill one order after another, and last of all one that every memory holds."""
    spent, some = 0, False
    for order in (fixed, *orders(times)):
        for missing in _MISSING:
            if some and spent >= _WORK:
                return
            spent += len(order)
            try:
                yield _fill(times, order, missing)
            except ScheduleError:
                break
            some = True
            if (order.kind == Kind.W).any():  # it is only timed
                break
    if not some or spent < _WORK:
        yield _fill(times, _bounded(times, fixed.placement), 0)


def _fill(times: Times, order: Schedule, missing: int) -> Filled:
    room = times.room
    return fill_weights(
        order, times.durations, transfer=times.transfer, taken=room.taken, kept=room.kept, room=room.rank,
        missing=missing,
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
