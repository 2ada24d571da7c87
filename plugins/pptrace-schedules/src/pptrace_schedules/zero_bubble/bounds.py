"""Times of actions, memory of ranks, and lower bounds of the longest rank time and of the step."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.plugin import ConstraintError, Kind, format_size

if TYPE_CHECKING:
    from pptrace.plugin import Int64s, Placement, ScheduleRequest


_MEMORY = "schedule.options.memory"
_ROUNDED_FROM = 1024
"""Sizes from which messages round up to three digits."""


class Room(NamedTuple):
    """Bytes of activations and their limits; unknown activations count as one per stage."""

    taken: Int64s
    """Shape (stages,): activations of one microbatch's forward."""
    kept: Int64s
    """Shape (stages,): the part that is kept from the input gradient to the weight gradient."""
    rank: Int64s
    """Shape (ranks,): limit of each rank."""

    def sets(self, placement: Placement) -> Int64s:
        """Return, per rank, the number of microbatches that fit on all its stages at once."""
        microbatches: Int64s = self.rank // np.maximum(_on_ranks(self.taken, placement), 1)
        return microbatches


def room_for(request: ScheduleRequest, placement: Placement, most: int) -> Room:
    """Return the activations that a schedule may hold: at most those of its fixed order, and at most the memory.

    Args:
        request: the costs, the device's memory and the option ``memory``.
        placement: rank of each stage.
        most: peak activations of the fixed order on a rank, in activations of one stage and microbatch.

    Raises:
        ConstraintError: a rank has no memory for one microbatch.
    """
    known = any(request.activation_bytes)
    ones = np.ones(request.stages, dtype=np.int64)
    kept = np.array(request.weight_activation_bytes, dtype=np.int64) if known else ones
    if not kept.size:
        kept = np.array(request.activation_bytes, dtype=np.int64)
    # With recomputation, a weight gradient may need more than the forward kept; it counts from the forward on.
    taken = np.maximum(np.array(request.activation_bytes, dtype=np.int64), kept) if known else ones
    needed = np.maximum(_on_ranks(taken, placement), 1)
    room = most * needed // request.chunks
    limit = _limit(request, placement) if known else None
    if limit is not None:
        _check(request, placement, needed, limit)
        room = np.minimum(room, limit)
    return Room(taken=taken, kept=np.minimum(kept, taken), rank=np.maximum(room, needed))


def _limit(request: ScheduleRequest, placement: Placement) -> Int64s | None:
    """Return the bytes that each rank has for activations, None for no limit."""
    limits = []
    if request.options.get("memory"):
        limits.append(np.full(request.ranks, int(request.options["memory"])))
    if request.device_bytes:
        static = np.array(request.stage_bytes or [0] * request.stages, dtype=np.int64)
        device = np.array(request.rank_bytes or [request.device_bytes] * request.ranks, dtype=np.int64)
        limits.append(device - _on_ranks(static, placement))
    elif request.memory_limit_bytes:
        limits.append(np.full(request.ranks, request.memory_limit_bytes))
    return np.min(limits, axis=0).astype(np.int64) if limits else None


def _check(request: ScheduleRequest, placement: Placement, needed: Int64s, limit: Int64s) -> None:
    short = needed - limit
    rank = int(np.argmax(short))
    if short[rank] <= 0:
        return
    memory = request.options.get("memory")
    has = f"has {format_size(int(limit[rank]))}" if limit[rank] > 0 else "has none"
    state = int(_on_ranks(np.array(request.stage_bytes or [0] * request.stages), placement)[rank])
    beside = f" beside {format_size(state)} of state" if state and request.device_bytes else ""
    message = (
        f"rank {rank} {has}{beside} for activations and one microbatch takes {format_size(int(needed[rank]))}, "
        f"{format_size(int(short[rank]))} more"
    )
    if memory and int(memory) <= limit[rank]:
        raise ConstraintError(message, nearest=_at_least(int(needed.max())), key=_MEMORY, needs_memory=True)
    more = f"{_at_least(int(short[rank]))} more per device"
    ways = "smaller microbatches or less state (parallel.tp, costs.zero)" if beside else "smaller microbatches"
    raise ConstraintError(message, nearest=f"{more}, or {ways}", needs_memory=True)


def _at_least(size: int) -> str:
    """Return a size as text, rounded up."""
    return format_size(size if size < _ROUNDED_FROM else -(-size * 1001 // 1000))


def _on_ranks(values: Int64s, placement: Placement) -> Int64s:
    """Return the sum of stages' values on each rank."""
    total = np.zeros(placement.ranks, dtype=np.int64)
    np.add.at(total, placement.stage_rank[0], values)
    return total


class Times(NamedTuple):
    """Times and memory for which an order is generated; every array has shape (stages,)."""

    forward: Int64s
    input_gradient: Int64s
    weight_gradient: Int64s
    backward: Int64s
    transfer: int
    room: Room

    @classmethod
    def of(cls, request: ScheduleRequest, placement: Placement, most: int) -> Times:
        """Return the times of a request; 1 for unknown times.

        Raises:
            ConstraintError: a rank has no memory for one microbatch.
        """
        ones = (1,) * request.stages
        forward, gradient, weight = (
            np.array(times or ones, dtype=np.int64) for times in (request.f_ns, request.i_ns, request.w_ns)
        )
        whole = np.array(request.b_ns, dtype=np.int64) if request.b_ns else gradient + weight
        return cls(
            forward=forward, input_gradient=gradient, weight_gradient=weight, backward=whole,
            transfer=request.transfer_ns if request.f_ns else 0, room=room_for(request, placement, most),
        )  # fmt: skip

    @property
    def durations(self) -> dict[Kind, Int64s]:
        """Durations by kind."""
        return {Kind.F: self.forward, Kind.I: self.input_gradient, Kind.W: self.weight_gradient}


def lower_bounds(times: Times, placement: Placement, *, merge: bool) -> tuple[int, int]:
    """Return lower bounds of the longest time of a rank (first start to last end), and of the makespan.

    A rank starts with a forward of its first stage. Until its first input gradient it runs only forwards, as many
    as fit in memory, and idles for the remaining time. Its last input gradient is of its first stage; earlier
    stages run theirs after it.

    Args:
        times: the times and the memory.
        placement: rank of each stage; the stages form a chain.
        merge: whether a full backward may replace both gradients.
    """
    count, rank_of = placement.microbatches, placement.stage_rank[0]
    gradient, whole = times.input_gradient, times.input_gradient + times.weight_gradient
    if merge:
        gradient, whole = np.minimum(gradient, times.backward), np.minimum(whole, times.backward)
    hops = np.where(np.diff(rank_of) != 0, times.transfer, 0)
    forward_start = np.append(0, np.cumsum(times.forward[:-1] + hops))
    ways_back = np.cumsum((gradient[1:] + hops)[::-1])[::-1]
    gradient_start = forward_start[-1] + times.forward[-1] + np.append(ways_back, 0)
    behind = np.append(0, np.cumsum(hops + np.append(whole[:1], gradient[1:])[: hops.size]))
    pace = step = 0
    for rank in range(placement.ranks):
        stages = np.flatnonzero(rank_of == rank)
        first, last = stages[0], stages[-1]
        forwards = _forwards(times.forward[stages], times.room.taken[stages], int(times.room.rank[rank]), count)
        idle = max(int(gradient_start[last] - forward_start[first]) - forwards, 0)
        gradients = count * int((times.forward + gradient)[stages].sum()) + int(behind[first])
        work = count * int((times.forward + whole)[stages].sum())
        pace = max(pace, work + idle)
        step = max(step, int(forward_start[first]) + idle + max(work, gradients))
    return pace, step


def _forwards(duration: Int64s, taken: Int64s, capacity: int, microbatches: int) -> int:
    """Return an upper bound of the total time of the forwards that fit in a rank's memory at once."""
    unit = max(gcd(*taken.tolist()), 1)
    free, total = capacity // unit * unit, 0
    for time, size in sorted(
        zip(duration.tolist(), taken.tolist(), strict=True), key=lambda pair: -pair[0] / max(pair[1], 1)
    ):
        total += time * microbatches if size * microbatches <= free else -(-free * time // size)
        free -= min(size * microbatches, free)
    return total
