"""Counters of communication: how much is under way beside computation, and how much holds the rank up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import COMPUTE, Stream
from pptrace.timeline.actions import in_group
from pptrace.timeline.counters import counters_of
from pptrace.timeline.idle import COMMUNICATION
from pptrace.timeline.messages import messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.counter import Counter
    from pptrace.timeline.idle import Waits
    from pptrace.timeline.timeline import Timeline

__all__ = ["communication_counters"]

_UNIT = "at once"


def communication_counters(timeline: Timeline, waits: Waits) -> tuple[Counter, ...]:
    """Return each rank's counters ``hidden communication`` and ``exposed communication``.

    Hidden is what is under way beside computation: messages at their receiver until the data are there, groups'
    communication at its own rank; over time it sums to :func:`~pptrace.timeline.hidden.hidden_ns`. Exposed is 1
    while the rank waits for a message or a reduction, and 1 for each segment of its own groups beside nothing.
    """
    stream = np.repeat(timeline.lane_stream, np.diff(timeline.lane_ptr))
    rank = timeline.rank_of_row()
    computing = (stream == Stream.COMPUTE) & COMPUTE.mask(timeline.kind)
    inside, reducing = in_group(timeline), stream == Stream.DATA_PARALLEL
    for_others = np.isin(waits.cause, COMMUNICATION)
    ranks, at, (busy, own, passing, held) = _active(
        *((rank[rows], timeline.start_ns[rows], timeline.end_ns[rows]) for rows in (computing, inside)),
        _passing(timeline, rank, reducing),
        (waits.rank[for_others], waits.start_ns[for_others], waits.end_ns[for_others]),
    )
    hidden, exposed = (own + passing) * busy, held + own * (1 - busy)
    return (
        *counters_of("hidden communication", _UNIT, ranks, at, hidden),
        *counters_of("exposed communication", _UNIT, ranks, at, exposed),
    )


def _passing(timeline: Timeline, rank: Int32s, reducing: NDArray[np.bool_]) -> tuple[Int32s, Int64s, Int64s]:
    """Return rank, start and end of each message at its receiver and of communication between replicas."""
    found = messages(timeline)
    known = found.consumer >= 0
    row, consumer = np.where(found.send >= 0, found.send, found.recv)[known], found.consumer[known]
    arrived = timeline.end_ns[row] + timeline.lag_ns[row]
    return (
        np.concatenate([rank[consumer], rank[reducing]]),
        np.concatenate([timeline.start_ns[row], timeline.start_ns[reducing]]),
        np.concatenate([arrived, timeline.end_ns[reducing]]),
    )


def _active(*spans: tuple[Int32s, Int64s, Int64s]) -> tuple[Int32s, Int64s, list[Int64s]]:
    """Return ranks and times, sorted, at which something begins or ends, and how many of each sort then go on."""
    ranks = np.concatenate([rank for rank, _, _ in spans] * 2)
    at = np.concatenate([start for _, start, _ in spans] + [end for _, _, end in spans])
    sort = np.tile(np.repeat(np.arange(len(spans), dtype=np.int8), [rank.size for rank, _, _ in spans]), 2)
    change = np.repeat(np.array([1, -1], dtype=np.int64), at.size // 2)
    order = np.lexsort((at, ranks))
    sort, change = sort[order], change[order]
    return ranks[order], at[order], [np.cumsum(np.where(sort == one, change, 0)) for one in range(len(spans))]
