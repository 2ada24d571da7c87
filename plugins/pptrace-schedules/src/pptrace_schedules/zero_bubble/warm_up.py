"""One chunk per rank: how many forwards a rank runs before its first input gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import InFlight, Kind, Placement, Schedule, list_schedule
from pptrace_schedules.zero_bubble.generate import without_weights
from pptrace_schedules.zero_bubble.split import one_forward_one_input_gradient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import ScheduleRequest
    from pptrace_schedules.zero_bubble.bounds import Times

__all__ = ["one_chunk", "one_chunk_orders"]

_QUARTERS = (0, 2, 3)
"""Quarters of a forward by which a rank's first input gradient may be late."""


def one_chunk(request: ScheduleRequest, ahead: Sequence[int], late: Sequence[int]) -> Schedule:
    """Return a table of one chunk per rank, as :func:`one_forward_one_input_gradient` has it."""
    microbatch = np.arange(request.microbatches, dtype=np.int32)
    none = np.zeros_like(microbatch)
    placement = Placement.looped(request.ranks, request.microbatches)
    return one_forward_one_input_gradient(placement, ahead, late, (microbatch, none, none))


def one_chunk_orders(request: ScheduleRequest, times: Times) -> Iterator[Schedule]:
    """Return orders whose ranks run forwards until their first input gradient, or fewer than the rank before.

    After them, a rank takes turns, or runs each input gradient as soon as it can.
    """
    warm_ups: list[list[int]] = []
    for quarters in _QUARTERS:
        fitting = _warm_up(request, times, quarters)
        warm_ups += [ahead for ahead in (fitting, _falling(fitting)) if ahead not in warm_ups]
    for ahead in warm_ups:
        yield without_weights(one_chunk(request, [one - 1 for one in ahead], [0] * request.ranks))
    for ahead in warm_ups:
        yield _gradients_first(request, times, ahead)


def _gradients_first(request: ScheduleRequest, times: Times, ahead: Sequence[int]) -> Schedule:
    """Return an order whose ranks prefer input gradients to forwards, with so many microbatches in flight."""
    placement = Placement.looped(request.ranks, request.microbatches)
    table = list_schedule(
        placement, {Kind.F: times.forward, Kind.B: times.input_gradient},
        in_flight=InFlight(stage=np.array([ahead])), transfer=times.transfer,
    )  # fmt: skip
    kind = np.where(table.kind == Kind.B, Kind.I, Kind.F).astype(np.int8)
    return Schedule.from_columns(placement, table.row_ptr, kind, table.stage, table.microbatch)


def _warm_up(request: ScheduleRequest, times: Times, quarters: int) -> list[int]:
    """Return the forwards that fit on each rank before its first input gradient, as memory allows."""
    ranks = request.ranks
    hops = np.cumsum(times.forward + times.transfer)
    start = hops - times.forward - times.transfer
    most = np.minimum(times.room.rank // np.maximum(times.room.taken, 1), request.microbatches)
    ahead = [1] * ranks
    due = int(start[-1] + times.forward[-1] + times.input_gradient[-1])
    for rank in range(ranks - 2, -1, -1):
        due += times.transfer
        took = max(int(times.forward[rank]), 1)
        ahead[rank] = max((due - int(start[rank]) + took * quarters // 4) // took, ahead[rank + 1])
        ahead[rank] = min(ahead[rank], int(most[rank]))
        due = max(due, int(start[rank]) + ahead[rank] * took) + int(times.input_gradient[rank])
    # A rank with more forwards ahead than the one before would wait for ever.
    falling: list[int] = np.minimum.accumulate(ahead).tolist()
    return falling


def _falling(ahead: Sequence[int]) -> list[int]:
    """Return at least one forward less on each rank than on the one before, from 1."""
    falling = list(ahead[:1])
    for own in ahead[1:]:
        falling.append(max(1, min(own, falling[-1] - 1)))
    return falling
