"""The graph of tasks, and the duration of each action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.steps.actions import Cells
from pptrace.steps.columns import Columns, Int64s, find
from pptrace.steps.kinds import SENDS

if TYPE_CHECKING:
    from pptrace.network.contract import Paths
    from pptrace.sim.kernels.sweep import OrderedTasks
    from pptrace.steps.columns import Int8s, Int32s
    from pptrace.steps.placement import Placement
    from pptrace.timeline.timeline import Parts


class TaskGraph(Cells, frozen=True, kw_only=True):
    """Tasks and their dependencies.

    The first ``rows`` tasks become the slices of the timeline, in its order: by lane, and within a
    lane in issue order. Further tasks (a batch's launch and join, a barrier) have no slice. A row whose
    ``sender_row`` is set is the receiver's side of a rendezvous and not a task: it runs with its sender's row.
    """

    placement: Placement
    """Rank of each stage on each microbatch's route."""
    paths: Paths
    """Paths between the pairs of ranks that exchange messages."""
    source: Int32s
    """The sending rank of each of those pairs."""
    target: Int32s
    """The receiving rank."""
    lane_rank: Int32s
    """Rank of each lane; lanes are sorted by (rank, stream, peer)."""
    lane_stream: Int8s
    """:class:`~pptrace.timeline.timeline.Stream` of each lane."""
    lane_peer: Int32s
    """Peer of a lane that serves one only, else -1."""
    lane_ptr: Int32s
    """Shape (lanes + 1,): rows of each lane."""
    size_bytes: Int64s
    """Bytes of each row's message."""
    path: Int32s
    """Index into ``paths`` of each row's message, -1 for none."""
    fork: Int32s
    """For rows off the compute stream, the compute row issued before them; -1 for none."""
    sender_row: Int32s
    """The sender's row of a rendezvous for the receiver's row, else -1."""
    collective_ns: Int64s
    """Part of each row's duration in which tensor, context or expert parallel groups communicate."""
    duration_ns: Int64s
    """Uncontended duration of each task (all columns from here on have one entry per task)."""
    lag_ns: Int64s
    """Wire latency on the task's edges."""
    next: Int32s
    """The next task on its stream, -1 for none; no lag."""
    next_peer: Int32s
    """The next task on the receiver's stream of a rendezvous, -1 for none or if equal to ``next``; no lag."""
    edge_ptr: Int32s
    """Shape (tasks + 1,): edges of each task."""
    edge: Int32s
    """Task that waits for this one's end plus lag; ``~task`` waits for its start only."""
    ordered: OrderedTasks | None = None
    """The tasks in a topological order; None if it is unknown, or if tasks deadlock."""
    parts: Parts | None = None
    """Which rows are segments of actions; None where every row is a whole action or a message."""

    def __post_init__(self) -> None:
        """Skip the checks of columns, which kernels filled."""

    @property
    def rows(self) -> int:
        """Number of timeline rows."""
        return int(self.kind.size)

    @property
    def tasks(self) -> int:
        """Number of tasks, receivers' rows of a rendezvous included."""
        return int(self.duration_ns.size)

    def receiver_rows(self) -> Int32s:
        """Return the receivers' rows of a rendezvous, which are no tasks."""
        return np.flatnonzero(self.sender_row >= 0).astype(np.int32)

    def with_times(self, times: ActionTimes) -> TaskGraph:
        """Return the graph of whole actions with other times of single actions."""
        placement, kinds = self.placement, self.kind.astype(np.int64)
        rows = np.flatnonzero(self.stage >= 0)
        microbatch = np.maximum(self.microbatch, 0)
        cell = (kinds * placement.stages + self.stage) * placement.microbatches + microbatch
        index = find(times.place, cell[rows])
        rows, index = rows[index >= 0], index[index >= 0]
        duration_ns, lag_ns = self.duration_ns.copy(), self.lag_ns.copy()
        known = times.duration_ns[index] >= 0
        duration_ns[rows[known]] = times.duration_ns[index[known]]
        duration_ns[rows] += times.gap_ns[index]
        sent = SENDS.mask(self.kind[rows]) & (times.transfer_ns[index] >= 0)
        duration_ns[rows[sent]] = 0
        lag_ns[rows[sent]] = times.transfer_ns[index[sent]]
        received = self.receiver_rows()
        for values in (duration_ns, lag_ns):
            values[received] = values[self.sender_row[received]]
        return replace(self, duration_ns=duration_ns, lag_ns=lag_ns, ordered=None)


class ActionTimes(Columns, frozen=True, kw_only=True):
    """Nanoseconds per action, one value for each named action; the workload or the network gives all other times.

    An action of several microbatches has the place of its first one, an action without one that of the first.
    """

    place: Int64s
    """Each action's place among all kinds, stages and microbatches, in that order; ascending, each once."""
    duration_ns: Int64s
    """Time on the rank's compute stream; -1 where the workload gives it."""
    gap_ns: Int64s
    """Time before it in which its rank's stream waits for the host; 0 for none."""
    transfer_ns: Int64s
    """At ``SEND_F`` and ``SEND_B`` of the sending stage: from both ends being ready until the data are there; -1
    where the network gives it."""
