"""Busy time and causes of idle time of each rank, in sum and per interval."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.steps.kinds import TABLE, Stream
from pptrace.timeline.actions import include_group_waits
from pptrace.timeline.kernels import idle as idle_kernels
from pptrace.timeline.kernels import rows as rows_kernels
from pptrace.timeline.messages import index_timeline, lanes_of, messages
from pptrace.timeline.timeline import Waits, window
from pptrace_kernel import run

if TYPE_CHECKING:
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline


class IdleCause(IntEnum):
    """Why a rank's compute stream did no work; every idle nanosecond has exactly one cause."""

    FILL = idle_kernels.FILL
    """Before the rank's first action."""
    DRAIN = idle_kernels.DRAIN
    """After its last."""
    TRANSFER = idle_kernels.TRANSFER
    """The message that it waited for was under way, for as long as it takes with nothing shared."""
    CONTENTION = idle_kernels.CONTENTION
    """The message was under way for longer than that."""
    HEAD_OF_LINE = idle_kernels.HEAD_OF_LINE
    """The message was ready, but its stream held another task."""
    PEER_COMPUTE = idle_kernels.PEER_COMPUTE
    """The message's producer had not computed yet."""
    REDUCTION = idle_kernels.REDUCTION
    """Its gradients were being reduced, or its weights gathered, over the data-parallel replicas."""
    SLOWER_REPLICA = idle_kernels.SLOWER_REPLICA
    """Its replica's gradients were whole, and those of another one were not."""

    @property
    def word(self) -> str:
        """The cause as texts and traces spell it, such as ``peer-compute``."""
        return self.name.lower().replace("_", "-")


WHOLE_KEY = "gradients_whole_ns"
"""Of a provenance: when the gradients of each stage were whole, of a replica that waited for slower ones."""

_LATEST = 2**62
"""Later than any step."""

COMMUNICATION = (IdleCause.TRANSFER, IdleCause.CONTENTION, IdleCause.HEAD_OF_LINE, IdleCause.REDUCTION)
"""Causes by which communication that nothing hides holds a rank up."""


class TimeSpent(NamedTuple):
    """Each rank's time in one window for all."""

    busy_ns: Int64s
    """Shape (ranks,): time in which the compute stream computed."""
    idle_ns: Int64s
    """Shape (ranks, causes): idle time by :class:`IdleCause`."""
    collective_ns: Int64s
    """Shape (ranks,): busy time in which the rank's own group communicated."""
    reduction_ns: Int64s
    """Shape (ranks,): time in which gradients were reduced, whether or not something ran beside it."""


def time_spent(timeline: Timeline) -> TimeSpent:
    """Split each rank's window into busy time and idle time by cause."""
    spent, _ = _attributed(timeline, _room(0))
    return spent


def waits(timeline: Timeline) -> Waits:
    """Return every interval in which a rank idled; their lengths sum to its idle time by cause.

    What follows one another for the same cause, ended by the same row, is one interval.
    """
    _, count = _attributed(timeline, _room(0))
    found = _room(count)
    _attributed(timeline, found)
    columns = (found.rank, found.cause, found.row)
    first = np.ones(found.rank.size, dtype=bool)
    first[1:] = (found.start[1:] != found.end[:-1]) | np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    last = np.roll(first, -1)
    rank, row = found.rank[first], found.row[first]
    return Waits(
        rank=rank, cause=found.cause[first], row=row, start_ns=found.start[first], end_ns=found.end[last],
        peer=_waited_for(timeline, rank, row),
    )  # fmt: skip


def _waited_for(timeline: Timeline, rank: Int32s, row: Int32s) -> Int32s:
    """Return the ranks of what ended waits: of a message, its producer's."""
    source = timeline.rank_of_row()
    found = messages(timeline)
    for here in (found.send, found.recv):
        known = (here >= 0) & (found.producer >= 0)
        source[here[known]] = source[found.producer[known]]
    peer = np.append(source, np.int32(-1))[row]
    return np.where(peer == rank, np.int32(-1), peer)


def _attributed(timeline: Timeline, found: idle_kernels.Waits) -> tuple[TimeSpent, int]:
    """Attribute each rank's time, keep the intervals that there is room for, and return how many there are."""
    index = index_timeline(timeline)
    opened, closed = window(timeline)
    times = include_group_waits(timeline)
    busy, collective, reduction = (np.zeros(timeline.ranks, dtype=np.int64) for _ in range(3))
    idle = np.zeros(timeline.ranks * len(IdleCause), dtype=np.int64)
    count = run(
        idle_kernels.attribute_idle,
        (
            lanes_of(timeline, Stream.COMPUTE), lanes_of(timeline, Stream.DATA_PARALLEL), timeline.lane_ptr,
            timeline.cells,
            idle_kernels.Rows(
                times.start_ns, times.end_ns, timeline.lag_ns, timeline.uncontended_ns, timeline.cause,
                times.collective_ns,
            ),
            index.graph, TABLE, rows_kernels.Index(index.made, index.send, index.recv), _whole(timeline),
            opened, closed,
        ),
        (idle_kernels.Spent(busy, idle, collective, reduction), found),
        work=len(timeline),
    )  # fmt: skip
    return TimeSpent(busy, idle.reshape(timeline.ranks, len(IdleCause)), collective, reduction), count


def _whole(timeline: Timeline) -> Int64s:
    """Return when a replica's gradients of each stage were whole, -1 where it waited for no others."""
    told = timeline.provenance.get(WHOLE_KEY)
    if isinstance(told, list) and len(told) == timeline.placement.stages:
        return np.array([at if isinstance(at, int) and 0 <= at < _LATEST else -1 for at in told], dtype=np.int64)
    return np.full(timeline.placement.stages, -1, dtype=np.int64)


def _room(size: int) -> idle_kernels.Waits:
    return idle_kernels.Waits(
        rank=np.zeros(size, dtype=np.int32), cause=np.zeros(size, dtype=np.int8),
        start=np.zeros(size, dtype=np.int64), end=np.zeros(size, dtype=np.int64),
        row=np.zeros(size, dtype=np.int32),
    )  # fmt: skip
