"""Busy time and causes of idle time of each rank, as totals and per interval.

``attribute_idle`` in ``kernels/idle.py`` decides the cause of each wait.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.kinds import TABLE, Stream
from pptrace.steps.schedule import graph_of
from pptrace.timeline.actions import include_group_waits
from pptrace.timeline.kernels import idle as kernels
from pptrace.timeline.kernels.idle import TimeSpent
from pptrace.timeline.messages import index_timeline, lanes_of, messages
from pptrace.timeline.timeline import Waits, window
from pptrace_kernel import halves, run_parts

if TYPE_CHECKING:
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline


class IdleCause(IntEnum):
    """Why a rank's compute stream did no work; every idle nanosecond has exactly one cause."""

    FILL = kernels.FILL
    """Before the rank's first action; with a single rank, without the gather of this action's weights."""
    DRAIN = kernels.DRAIN
    """After the rank's last action."""
    TRANSFER = kernels.TRANSFER
    """The awaited message was in transfer, up to its uncontended duration."""
    CONTENTION = kernels.CONTENTION
    """The awaited message was in transfer beyond its uncontended duration."""
    HEAD_OF_LINE = kernels.HEAD_OF_LINE
    """The stream held another task before the message's transfer or after its arrival.

    All idle time before a send on the compute stream, or before an awaited copy or collective starts, counts too.
    """
    PEER_COMPUTE = kernels.PEER_COMPUTE
    """The message's producer had not computed yet."""
    REDUCTION = kernels.REDUCTION
    """The rank's gradients were being reduced, or its weights gathered, over the data-parallel replicas."""
    SLOWER_REPLICA = kernels.SLOWER_REPLICA
    """The gradients of the rank's replica were complete, and those of another replica were not."""

    @cached_property
    def word(self) -> str:
        """The cause as texts and traces spell it, such as ``peer-compute``."""
        return self.name.lower().replace("_", "-")


WHOLE_KEY = "gradients_whole_ns"
"""Provenance key: when the gradients of each stage were complete, in a replica that waited for slower replicas."""

_LATEST = 2**62
"""Later than any step."""

COMMUNICATION = (IdleCause.TRANSFER, IdleCause.CONTENTION, IdleCause.HEAD_OF_LINE, IdleCause.REDUCTION)
"""Causes that are non-overlapped communication."""


def time_spent(timeline: Timeline, window_ns: tuple[int, int]) -> TimeSpent:
    """Split each rank's window, from a start to an end, into busy time and idle time by cause."""
    spent, _ = _attribute(timeline, window_ns, _allocate_waits(0))
    return spent


def waits(timeline: Timeline) -> Waits:
    """Return every interval in which a rank idled; their lengths sum to its idle time by cause.

    Adjacent intervals with the same cause that the same row ends are merged.
    """
    window_ns = window(timeline)
    _, count = _attribute(timeline, window_ns, _allocate_waits(0))
    columns = _allocate_waits(count)
    _attribute(timeline, window_ns, columns)
    keys = (columns.rank, columns.cause, columns.row)
    first = np.ones(columns.rank.size, dtype=bool)
    first[1:] = (columns.start[1:] != columns.end[:-1]) | np.logical_or.reduce([k[1:] != k[:-1] for k in keys])
    last = np.roll(first, -1)
    rank, row = columns.rank[first], columns.row[first]
    return Waits(
        rank=rank, cause=columns.cause[first], row=row, start_ns=columns.start[first], end_ns=columns.end[last],
        peer=_peers(timeline, rank, row),
    )  # fmt: skip


def _peers(timeline: Timeline, rank: Int32s, row: Int32s) -> Int32s:
    """Return the ranks of the rows that ended waits; of a message, the rank of its producer."""
    source = timeline.rank_of_row()
    ends = messages(timeline)
    for message_row in (ends.send, ends.recv):
        known = (message_row >= 0) & (ends.producer >= 0)
        source[message_row[known]] = source[ends.producer[known]]
    peer = np.append(source, np.int32(-1))[row]
    return np.where(peer == rank, np.int32(-1), peer)


def _attribute(timeline: Timeline, window_ns: tuple[int, int], waits: kernels.WaitBuffer) -> tuple[TimeSpent, int]:
    """Attribute each rank's time, fill ``waits`` up to its size, and return the number of all intervals."""
    graph = graph_of(timeline.placement)
    times = include_group_waits(timeline)
    busy, collective, reduction = (np.zeros(timeline.ranks, dtype=np.int64) for _ in range(3))
    idle = np.zeros(timeline.ranks * len(IdleCause), dtype=np.int64)
    spent = TimeSpent(busy, idle, collective, reduction)
    ranks = halves(timeline.ranks, work=0 if waits.rank.size else len(timeline))  # waits are in the order of ranks
    counts = run_parts(
        kernels.attribute_idle,
        ranks,
        (
            lanes_of(timeline, Stream.COMPUTE), lanes_of(timeline, Stream.DATA_PARALLEL), timeline.lane_ptr,
            timeline.cells,
            kernels.Rows(
                timeline.enter_ns, times.start_ns, times.end_ns, timeline.lag_ns, timeline.uncontended_ns,
                timeline.cause, times.collective_ns,
            ),
            graph, TABLE, index_timeline(timeline, graph), _complete_ns(timeline), *window_ns,
        ),
        (spent, waits),
        work=len(timeline),
    )  # fmt: skip
    return spent._replace(idle_ns=spent.idle_ns.reshape(timeline.ranks, len(IdleCause))), sum(counts)


def _complete_ns(timeline: Timeline) -> Int64s:
    """Return when the gradients of each stage were complete, -1 where the replica waited for no other replica."""
    times = timeline.provenance.get(WHOLE_KEY)
    if isinstance(times, list) and len(times) == timeline.placement.stages:
        return np.array(
            [time_ns if isinstance(time_ns, int) and 0 <= time_ns < _LATEST else -1 for time_ns in times],
            dtype=np.int64,
        )
    return np.full(timeline.placement.stages, -1, dtype=np.int64)


def _allocate_waits(size: int) -> kernels.WaitBuffer:
    return kernels.WaitBuffer(
        rank=np.zeros(size, dtype=np.int32), cause=np.zeros(size, dtype=np.int8),
        start=np.zeros(size, dtype=np.int64), end=np.zeros(size, dtype=np.int64),
        row=np.zeros(size, dtype=np.int32),
    )  # fmt: skip
