"""Lower bounds of what any order takes, from its work, its memory and the way of the first microbatch."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pptrace.plugin import Int64s, Placement
    from pptrace_schedules.zero_bubble.generate import Times

__all__ = ["lower_bounds"]


def lower_bounds(times: Times, placement: Placement, *, merge: bool) -> tuple[int, int]:
    """Return lower bounds of the longest time of a rank, and of the time from the first start to the last end.

    A rank starts with a forward of its first stage. Until its first input gradient it runs forwards alone, as many
    as its memory holds, and idles for the remaining time. Its last input gradient is of its first stage; earlier
    stages run theirs behind it.

    Args:
        times: the times and the memory.
        placement: where the stages are; its stages are a chain.
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


def _forwards(took: Int64s, taken: Int64s, room: int, microbatches: int) -> int:
    """Return an upper bound of the time of forwards that a rank's memory holds at once."""
    unit = max(gcd(*taken.tolist()), 1)
    room, total = room // unit * unit, 0
    for time, size in sorted(
        zip(took.tolist(), taken.tolist(), strict=True), key=lambda pair: -pair[0] / max(pair[1], 1)
    ):
        weight = min(size * microbatches, room)
        total += time * microbatches if size * microbatches <= room else -(-room * time // size)
        room -= weight
    return total
