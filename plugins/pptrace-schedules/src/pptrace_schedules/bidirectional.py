"""Orders of schedules with two directions."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.plugin import (
    InFlight,
    Kind,
    Placement,
    Schedule,
    Workload,
    backward_first,
    list_schedule,
    simulate,
)
from pptrace_schedules.row_patterns import Step, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugin import Actions, Int32s, Int64s, ScheduleRequest
    from pptrace_schedules.row_patterns import Rows

_SLOT = np.ones(1, dtype=np.int64)


def in_basic_units(request: ScheduleRequest, pipelines: int, microbatches: int, span: int) -> Schedule:
    """Return the table of basic units one after another; bubbles of one take in forwards of the next.

    Args:
        request: the sizes, and the stages' times.
        pipelines: how many there are.
        microbatches: how many there are in all, or how many halves of them.
        span: microbatches (or halves) that a forward takes at once; a backward takes one.
    """
    size = request.ranks * span

    def earlier_unit_first(actions: Actions) -> Sequence[Int64s | Int32s]:
        return [actions.microbatch // size, *backward_first(actions)]

    def played(forward: Int64s, backward: Int64s) -> Schedule:
        return list_schedule(
            _placement(request.ranks, pipelines, microbatches, span),
            {Kind.F: forward, Kind.B: backward},
            priority=earlier_unit_first,
            spans={Kind.F: span},
        )

    # A forward of two microbatches lasts twice as long, as a backward does: one slot.
    in_slots = played(_SLOT, _SLOT)
    if all(len(set(times)) <= 1 for times in (request.f_ns, request.b_ns)):
        return in_slots
    forward, backward = _times(request)
    return _shorter(request, played(forward * span, backward), in_slots)


def merged(request: ScheduleRequest, pipelines: int) -> Schedule:
    """Return the table of all microbatches in real durations, few in flight on each pipeline's stages."""
    ranks = request.ranks
    bound = 2 * (ranks - np.arange(ranks)) - 1

    def played(forward: Int64s, backward: Int64s) -> Schedule:
        return list_schedule(
            _placement(ranks, pipelines, request.microbatches, 1),
            {Kind.F: forward, Kind.B: backward},
            in_flight=InFlight(stage=np.tile(bound, (pipelines, 1))),
        )

    forward, backward = _times(request)
    table = played(forward, backward)
    if (backward == 2 * forward).all() and (forward == forward[0]).all():
        return table
    return _shorter(request, table, played(_SLOT, 2 * _SLOT))


def _shorter(request: ScheduleRequest, table: Schedule, even: Schedule) -> Schedule:
    """Return a table, or the one of even stages where that is shorter with the request's times.

    A rule that never waits is no guarantee: with slightly uneven stages the even order may be the better one.
    """
    workload = Workload.uniform(request.ranks, f_ns=np.array(request.f_ns or 1), b_ns=np.array(request.b_ns or 2))
    length, other = (int(simulate(candidate, workload).end_ns.max()) for candidate in (table, even))
    return even if other < length else table


def _placement(ranks: int, pipelines: int, microbatches: int, span: int) -> Placement:
    """Return the routes, down and up in turn; neighbours that a forward takes at once share theirs."""
    down = np.arange(ranks, dtype=np.int32)
    shift = np.arange(pipelines // 2, dtype=np.int32)[:, None] * (2 * ranks // pipelines)
    both = np.stack([(down + shift) % ranks, (ranks - 1 - down + shift) % ranks], axis=1)
    return Placement(
        ranks=ranks, stage_rank=both.reshape(pipelines, ranks),
        microbatch_route=np.arange(microbatches, dtype=np.int32) // span % pipelines,
    )  # fmt: skip


def _times(request: ScheduleRequest) -> tuple[Int64s, Int64s]:
    """Return the times of a forward and a backward per stage; 1 and 2 if they are unknown.

    The unit is a thousandth of the shortest time, so that rounding to nanoseconds does not change the order.
    """
    forward, backward = (np.array(times, dtype=np.int64) for times in (request.f_ns or [1], request.b_ns or [2]))
    tick = max(int(min(forward.min(), backward.min())) // 1000, 1)
    return (forward + tick // 2) // tick, (backward + tick // 2) // tick


TURNS: Mapping[tuple[Kind, ...], tuple[int, ...]] = MappingProxyType({(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)})
"""Whose next computation a pair runs: attention F, experts I, experts W, experts F, attention I, attention W, and
so on, so that each exchange of tokens has another member's computation beside it."""


def program(depth: Int32s, size: int, microbatches: int) -> Rows:
    """Return the rows of ranks ``depth`` ranks from an end, of ``size`` from an end to the middle.

    Chunk 0 is what such a rank holds ``depth`` stages from the beginning, chunk 1 as many from the end; each runs
    ``microbatches`` microbatches, ``2 * size`` of them or more.
    """
    ahead, behind = depth + 1, size - 1 - depth
    turns, middle = microbatches - 2 * size + ahead, (behind == 0).astype(np.int32)
    half, odd = ahead // 2, depth % 2
    return rows_of(
        [
            Step(2 * behind, "F0"),
            Step(ahead, "F0 F1"),
            Step(behind, "I1 W F1"),
            Step(middle, "F0 B1 F1&B0"),
            Step(turns - middle, "F0&B1 F1&B0"),
            Step(behind, "B1 F1&B0"),
            Step(half, "B1 B0"),
            Step(1 - odd, "B1 I0"),
            Step(ahead - half - 1 + odd, "I1 I0"),
            Step(behind, "W I0"),
            Step(ahead, "W"),
        ],
        microbatches,
    )


def table(rows: Rows, placement: Placement, stage: Int32s, microbatch: Int32s) -> Schedule:
    """Return the table of a program's rows; ``stage`` and ``microbatch`` have shape (actions,)."""
    schedule = Schedule.from_columns(placement, rows.row_ptr, rows.kind, stage, microbatch, pair=rows.pair)
    return replace(schedule, interleave=TURNS)
