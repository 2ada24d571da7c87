"""Jobs are tasks whose speed depends on what else runs: flows that share links, work that slows other work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import CostError
from pptrace.model.kinds import COMPUTE, SENDS, Kind, Role, Stream
from pptrace.network.contract import UNLIMITED
from pptrace.record import dataclass
from pptrace.sim.kernels.events import WHOLE
from pptrace.sim.kernels.rules import BYTE
from pptrace.sim.kernels.settling import COMMUNICATION, COMPUTATION, FLOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int8s, Int32s, Int64s
    from pptrace.sim.contention import Contention
    from pptrace.sim.graph import TaskGraph
    from pptrace.sim.shared import SharedLinks

__all__ = ["FINER", "Jobs", "find_jobs"]

FINER = 64
"""Rates of flows count in 64ths of a kB/s, so that a share rounded down is right within 1 ppm from 50 MB/s on."""

_LARGEST = 2**62
_COLLECTIVES = np.array([kind.traits.role is Role.COLLECTIVE for kind in Kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """One row per job, in the order of their tasks."""

    task: Int32s
    """The task that each job is."""
    volume: Int64s
    """A flow's 64ths of a millionth of a byte; else thousandths of a nanosecond."""
    full_rate: Int64s
    """The speed with nothing beside: a flow's in 64ths of a kB/s, else 1000."""
    overhead_ns: Int64s
    """Launch overhead before a flow's bytes."""
    path: Int32s
    """A flow's path, else -1."""
    sort: Int8s
    """0 for a flow, 1 for a computation, 2 for another communication."""
    rank: Int32s
    """The rank that it runs on."""
    peer: Int32s
    """The rank at a message's other end, else -1."""

    def __len__(self) -> int:
        return int(self.task.size)

    @property
    def flows(self) -> int:
        """Number of flows."""
        return int(np.count_nonzero(self.sort == FLOW))


def find_jobs(graph: TaskGraph, shared: SharedLinks, contention: Contention) -> Jobs:
    """Return the jobs of a task graph; none where it can run without a clock.

    Raises:
        CostError: a message too large to be counted.
    """
    rows, paths = graph.rows, graph.paths
    sort = np.full(rows, -1, dtype=np.int8)
    of_group = _in_groups(graph)
    moves = (graph.path >= 0) & (SENDS.mask(graph.kind) | of_group) & (graph.duration_ns[:rows] > 0)
    meets = np.zeros(rows, dtype=bool)
    meets[moves] = np.diff(shared.ptr)[graph.path[moves]] > 0
    sort[meets & (graph.size_bytes > 0)] = FLOW
    if contention.slows:
        runs = (sort < 0) & (graph.duration_ns[:rows] > 0) & (graph.twin < 0)
        sort[runs & COMPUTE.mask(graph.kind) & ~of_group] = COMPUTATION
        sort[runs & (moves | of_group | _COLLECTIVES[graph.kind])] = COMMUNICATION
    task = np.flatnonzero(sort >= 0).astype(np.int32)
    sort, path = sort[task], graph.path[task]
    flow = sort == FLOW
    own = np.where(flow, path, 0)
    rate = paths.rate_kbps[own] if len(paths) else np.zeros(task.size, dtype=np.int64)
    rate = np.where(rate == UNLIMITED, _LARGEST // BYTE, rate)
    largest = int(graph.size_bytes[task[flow]].max(initial=0))
    if largest * BYTE * FINER >= _LARGEST:
        raise CostError(f"a message of {largest} bytes is too large for shared links")
    return Jobs(
        task=task,
        volume=np.where(flow, graph.size_bytes[task] * (BYTE * FINER), graph.duration_ns[task] * WHOLE),
        full_rate=np.where(flow, rate * FINER, WHOLE),
        overhead_ns=np.where(flow, paths.overhead_ns[own] if len(paths) else 0, 0).astype(np.int64),
        path=np.where(flow, path, -1).astype(np.int32),
        sort=sort,
        rank=np.repeat(graph.lane_rank, np.diff(graph.lane_ptr))[task],
        peer=_peers(graph, task),
    )


def _in_groups(graph: TaskGraph) -> NDArray[np.bool_]:
    """Return which rows are segments of communication."""
    lane = np.array([Stream(stream).is_group for stream in graph.lane_stream.tolist()], dtype=bool)
    return np.repeat(lane, np.diff(graph.lane_ptr))


def _peers(graph: TaskGraph, task: Int32s) -> Int32s:
    path = graph.path[task]
    message = path >= 0
    peer = np.full(task.size, -1, dtype=np.int32)
    peer[message] = graph.target[path[message] // graph.paths.ways]
    return peer
