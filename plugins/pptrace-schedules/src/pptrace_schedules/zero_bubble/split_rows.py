"""Rows of schedules with split backwards on looped placements: zb-h1, zb-h2 and interleaved-zb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import InFlight, Kind, Placement, Schedule, list_schedule
from pptrace_schedules.row_patterns import in_rounds
from pptrace_schedules.zero_bubble.generate import without_weight_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import Int64s, ScheduleRequest
    from pptrace_schedules.row_patterns import Passes
    from pptrace_schedules.zero_bubble.bounds import Times

_QUARTERS = (0, 2, 4)
"""Quarters of a forward by which a rank's first input gradient may be late."""

_DRAINS = (1, 3)
"""Microbatches that end for each one by which the microbatches in flight decrease."""


def one_forward_one_input_gradient(
    request: ScheduleRequest, warm_up: Sequence[int], deferred: Sequence[int], passes: Passes
) -> Schedule:
    """Return the table of rows ``F…F  F I F I …  F I W F I W …  I W I W …  W…W``.

    Args:
        request: the sizes.
        warm_up: per rank, forwards before the alternation of forwards and input gradients.
        deferred: per rank, input gradients before its first weight gradient.
        passes: the forwards and as many backwards.
    """
    ranks, count = request.ranks, passes.forward.shape[1]
    kind = np.empty((ranks, 3 * count), dtype=np.int8)
    cells = np.empty((2, *kind.shape), dtype=np.int32)
    for rank in range(ranks):
        positions = _positions(count, min(warm_up[rank], count), deferred[rank])
        kinds = (Kind.F, passes.forward), (Kind.I, passes.backward), (Kind.W, passes.backward)
        for position, (action_kind, values) in zip(positions, kinds, strict=True):
            kind[rank, position] = action_kind
            cells[0, rank, position], cells[1, rank, position] = values
    microbatch, stage = cells
    stage += np.arange(ranks, dtype=np.int32)[:, None]
    return Schedule.from_columns(
        Placement.looped(ranks, request.microbatches, request.chunks),
        np.arange(ranks + 1) * kind.shape[1], kind.ravel(), stage.ravel(), microbatch.ravel(),
    )  # fmt: skip


def _positions(count: int, warm_up: int, deferred: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return the positions of forwards, input gradients and weight gradients in a row."""
    turn = np.arange(count)
    weights_before = np.maximum(turn - deferred, 0)
    forward, weight = turn.copy(), turn + 2 * count
    forward[warm_up:] = (warm_up + 2 * turn + weights_before)[: count - warm_up]
    backward = warm_up + turn + np.minimum(turn + 1, count - warm_up) + weights_before
    weight[: max(count - deferred, 0)] = backward[deferred:] + 1
    return forward, backward, weight


def one_chunk(request: ScheduleRequest, warm_up: Sequence[int], deferred: Sequence[int]) -> Schedule:
    """Return the table of :func:`one_forward_one_input_gradient` with one chunk per rank."""
    return one_forward_one_input_gradient(request, warm_up, deferred, in_rounds(request, request.microbatches))


def one_chunk_orders(request: ScheduleRequest, times: Times) -> Iterator[Schedule]:
    """Yield orders of forwards and input gradients with different numbers of warm-up forwards.

    A rank runs forwards until its first input gradient, or fewer than the previous rank. Then it alternates both
    kinds, runs each input gradient as soon as possible, or runs more input gradients than forwards.
    """
    warm_ups: list[list[int]] = []
    for quarters in _QUARTERS:
        fitting = _warm_up(request, times, quarters)
        falling = _falling(fitting, request.microbatches)
        warm_ups += [warm_up for warm_up in (fitting, falling) if warm_up not in warm_ups]
    for warm_up in warm_ups:
        yield without_weight_gradients(
            one_chunk(request, [forwards - 1 for forwards in warm_up], [0] * request.ranks)
        )
    for warm_up in warm_ups:
        yield _gradients_first(request, times, warm_up)
    for warm_up in warm_ups:
        if warm_up[0] > request.ranks and warm_up == _falling(warm_up, request.microbatches):
            for drain in _DRAINS:
                yield _draining(request, warm_up, drain)


def _gradients_first(request: ScheduleRequest, times: Times, warm_up: Sequence[int]) -> Schedule:
    """Return an order that prefers input gradients, with at most ``warm_up`` microbatches in flight per rank."""
    placement = Placement.looped(request.ranks, request.microbatches)
    table = list_schedule(
        placement, {Kind.F: times.forward, Kind.B: times.input_gradient},
        in_flight=InFlight(stage=np.array([warm_up])), transfer=times.transfer,
    )  # fmt: skip
    kind = np.where(table.kind == Kind.B, Kind.I, Kind.F).astype(np.int8)
    return Schedule.from_columns(placement, table.row_ptr, kind, table.stage, table.microbatch)


def _draining(request: ScheduleRequest, warm_up: Sequence[int], drain: int) -> Schedule:
    """Return an order whose microbatches in flight decrease by one each ``drain`` microbatches.

    Rank ``r`` keeps ``ranks - r`` of them or more in flight, which fills the pipeline.
    """
    ranks, count = request.ranks, request.microbatches
    microbatch = np.arange(count, dtype=np.int32)
    most = np.maximum(warm_up[0] - microbatch // drain, ranks)
    kind = np.full((ranks, 2 * count), Kind.F, dtype=np.int8)
    microbatches = np.empty((ranks, 2 * count), dtype=np.int32)
    for rank, first in enumerate(warm_up):
        forwards = np.minimum(microbatch + np.minimum(first, most - rank), count)
        gradient = microbatch + forwards
        kind[rank, gradient] = Kind.I
        microbatches[rank, gradient] = microbatch
        microbatches[rank, kind[rank] == Kind.F] = microbatch
    return Schedule.from_columns(
        Placement.looped(ranks, count), np.arange(ranks + 1) * 2 * count, kind.ravel(),
        np.repeat(np.arange(ranks, dtype=np.int32), 2 * count), microbatches.ravel(),
    )  # fmt: skip


def _warm_up(request: ScheduleRequest, times: Times, quarters: int) -> list[int]:
    """Return the number of forwards of each rank before its first input gradient, limited by memory."""
    ranks = request.ranks
    hops = np.cumsum(times.forward + times.transfer)
    start = hops - times.forward - times.transfer
    most = np.minimum(times.room.rank // np.maximum(times.room.taken, 1), request.microbatches)
    warm_up = [1] * ranks
    due = int(start[-1] + times.forward[-1] + times.input_gradient[-1])
    for rank in range(ranks - 2, -1, -1):
        due += times.transfer
        forward_ns = max(int(times.forward[rank]), 1)
        fitting = (due - int(start[rank]) + forward_ns * quarters // 4) // forward_ns
        warm_up[rank] = min(max(fitting, 1), int(most[rank]))
        due = max(due, int(start[rank]) + warm_up[rank] * forward_ns) + int(times.input_gradient[rank])
    # A rank with more forwards than the previous rank would deadlock.
    falling: list[int] = np.minimum.accumulate(warm_up).tolist()
    return falling


def _falling(warm_up: Sequence[int], microbatches: int) -> list[int]:
    """Return numbers of forwards that decrease by at least one per rank, down to 1, after ranks that run all."""
    falling = list(warm_up[:1])
    for forwards in warm_up[1:]:
        fewer = max(1, min(forwards, falling[-1] - 1))
        falling.append(forwards if forwards == microbatches else fewer)
    return falling
