"""A task graph is a schedule lowered to columns: what the kernels run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.cells import Cells
from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.model.columns import Int8s, Int32s, Int64s
    from pptrace.model.placement import Placement
    from pptrace.network.contract import Paths
    from pptrace.timeline.parts import Parts

__all__ = ["TaskGraph"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskGraph(Cells):
    """Tasks and what they wait for.

    The first ``rows`` tasks are the slices of the timeline to be, in its order: by lane, and within a
    lane in issue order. Further tasks (a batch's launch and join, a barrier) have no slice. A row whose
    ``twin`` is set is the receiver's side of a rendezvous and no task: it runs when its twin runs.
    """

    placement: Placement
    """Where each stage of each microbatch's route is."""
    paths: Paths
    """What lies between the pairs of ranks that exchange messages."""
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
    twin: Int32s
    """The sender's row of a rendezvous for the receiver's row, else -1."""
    collective_ns: Int64s
    """Part of each row's duration in which the rank's own group communicates."""
    duration_ns: Int64s
    """Uncontended duration of each task (all columns from here on have one entry per task)."""
    lag_ns: Int64s
    """Wire latency on the task's edges."""
    next: Int32s
    """The task behind it on its stream, -1 for none; no lag."""
    next_peer: Int32s
    """The task behind a rendezvous on the receiver's stream, -1 for none and for that of ``next``; no lag."""
    edge_ptr: Int32s
    """Shape (tasks + 1,): edges of each task."""
    edge: Int32s
    """Task that waits for this one's end plus lag; ``~task`` waits for its start only."""
    parts: Parts | None = None
    """Which rows are segments of actions; None where every row is a whole action or a message."""

    def __post_init__(self) -> None:
        """Take the columns as the kernels filled them."""

    @property
    def rows(self) -> int:
        """Number of timeline rows."""
        return int(self.kind.size)

    @property
    def tasks(self) -> int:
        """Number of tasks, ghosts of a rendezvous included."""
        return int(self.duration_ns.size)

    def ghosts(self) -> Int32s:
        """Return the rows that are no tasks."""
        return np.flatnonzero(self.twin >= 0).astype(np.int32)
