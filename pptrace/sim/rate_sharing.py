"""Transfers that share links, and their rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import Sharing
from pptrace.errors import CostError
from pptrace.network.contract import UNLIMITED
from pptrace.sim.kernels.events import WHOLE, SharedLinks
from pptrace.sim.kernels.placement import BYTE
from pptrace.sim.kernels.sweep import COMMUNICATION, COMPUTATION, FLOW, Jobs
from pptrace.steps.kinds import COMPUTE, SENDS, Kind, Role, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.network.contract import Links, Paths
    from pptrace.sim.task_graph import TaskGraph
    from pptrace.steps.columns import Int32s, Int64s

FINER = 64
"""Units of a flow's rate per kB/s: shares are rounded down with an error below 1 ppm from 50 MB/s on."""

_LARGEST = 2**62
_COLLECTIVES = np.array([kind.traits.role is Role.COLLECTIVE for kind in Kind])


def find_jobs(graph: TaskGraph, shared: SharedLinks, contention: Contention) -> Jobs:
    """Return the jobs of a task graph; none if it can run without a clock.

    Raises:
        CostError: a message is too large.
    """
    rows, paths = graph.rows, graph.paths
    kind = np.full(rows, -1, dtype=np.int8)
    of_group = np.repeat(graph.lane_stream >= Stream.TENSOR_PARALLEL, np.diff(graph.lane_ptr))  # in actions
    moves = (graph.path >= 0) & (SENDS.mask(graph.kind) | of_group) & (graph.duration_ns[:rows] > 0)
    meets = np.zeros(rows, dtype=bool)
    meets[moves] = np.diff(shared.ptr)[graph.path[moves]] > 0
    kind[meets & (graph.size_bytes > 0)] = FLOW
    if contention.slows:
        runs = (kind < 0) & (graph.duration_ns[:rows] > 0) & (graph.sender_row < 0)
        kind[runs & COMPUTE.mask(graph.kind) & ~of_group] = COMPUTATION
        kind[runs & (moves | of_group | _COLLECTIVES[graph.kind])] = COMMUNICATION
    task = np.flatnonzero(kind >= 0).astype(np.int32)
    kind, path = kind[task], graph.path[task]
    flow = kind == FLOW
    flow_path = np.where(flow, path, 0)
    rate = paths.rate_kbps[flow_path] if len(paths) else np.zeros(task.size, dtype=np.int64)
    rate = np.where(rate == UNLIMITED, _LARGEST // BYTE, rate)
    largest = int(graph.size_bytes[task[flow]].max(initial=0))
    if largest * BYTE * FINER >= _LARGEST:
        raise CostError(f"a message of {largest} bytes is too large for shared links")
    of_task = np.full(graph.tasks, -1, dtype=np.int32)
    of_task[task] = np.arange(task.size)
    return Jobs(
        of_task=of_task,
        task=task,
        volume=np.where(flow, graph.size_bytes[task] * (BYTE * FINER), graph.duration_ns[task] * WHOLE),
        full_rate=np.where(flow, rate * FINER, WHOLE),
        overhead_ns=np.where(flow, paths.overhead_ns[flow_path] if len(paths) else 0, 0).astype(np.int64),
        path=np.where(flow, path, -1).astype(np.int32),
        kind=kind,
        rank=np.repeat(graph.lane_rank, np.diff(graph.lane_ptr))[task],
        peer=_peers(graph, task),
    )


def _peers(graph: TaskGraph, task: Int32s) -> Int32s:
    path = graph.path[task]
    message = path >= 0
    peer = np.full(task.size, -1, dtype=np.int32)
    peer[message] = graph.target[path[message] // graph.paths.ways]
    return peer


def shared_links(paths: Paths, links: Links, sharing: Sharing, *, prune: bool = True) -> SharedLinks:
    """Return the links on which messages of several pairs can contend.

    Messages of one pair follow one another, so a link of a single pair is never shared. Max-min sharing
    never limits a flow on a link that the sum of all rates does not fill. Of links that the same messages use,
    the slowest is the bottleneck. The omitted links change no result; ``prune=False`` keeps all links.
    """
    path = np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))
    link, weight = paths.link.astype(np.int64), paths.weight.astype(np.int64)
    kept = np.zeros(len(links), dtype=bool)
    if sharing is not Sharing.NONE:
        kept[link] = True
        if prune:
            kept &= _meeting(paths, links, path, link, weight, by_rate=sharing is Sharing.MAX_MIN)
            kept &= _tightest(links, path, link, weight, kept)
    number = np.flatnonzero(kept).astype(np.int32)
    renumbered = np.cumsum(kept) - 1
    entry = np.flatnonzero(kept[link])
    count = np.bincount(path[entry], minlength=len(paths))
    return SharedLinks(
        number=number,
        rate_kbps=links.rate_kbps[number],
        ptr=np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
        link=renumbered[link[entry]].astype(np.int32),
        weight=paths.weight[entry],
    )


def _meeting(
    paths: Paths, links: Links, path: Int64s, link: Int64s, weight: Int64s, *, by_rate: bool
) -> NDArray[np.bool_]:
    """Return which links several pairs use and, with ``by_rate``, can fill."""
    key, entry = np.unique(path // paths.ways * len(links) + link, return_inverse=True)
    user = key % max(len(links), 1)
    several = np.bincount(user, minlength=len(links)) > 1
    if not by_rate:
        return several
    rate = paths.rate_kbps[path]
    demand = np.zeros(key.size, dtype=np.float64)
    np.maximum.at(demand, entry, np.where(rate == UNLIMITED, np.inf, rate * weight.astype(np.float64)))
    total = np.bincount(user, weights=demand, minlength=len(links))
    return several & (total > links.rate_kbps)


def _tightest(
    links: Links, path: Int64s, link: Int64s, weight: Int64s, kept: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return ``kept`` with only the slowest of the links that exactly the same messages use."""
    order = np.lexsort((path, link))
    order = order[kept[link[order]]]
    used = np.stack([path[order], weight[order]], axis=1)
    numbers, first = np.unique(link[order], return_index=True)
    best: dict[bytes, int] = {}
    for number, messages in zip(numbers.tolist(), np.split(used, first)[1:], strict=True):
        key = messages.tobytes()
        if key not in best or links.rate_kbps[number] < links.rate_kbps[best[key]]:
            best[key] = number
    chosen = np.zeros(len(links), dtype=bool)
    chosen[list(best.values())] = True
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How links are shared, and how much computation and communication on one rank slow each other.

    828 and 896 reproduce the benchmark of Qi et al., Synergistic Tensor and Pipeline Parallelism (2025),
    section 3.5.

    >>> Contention().links.value
    'max-min'
    """

    links: Sharing = Sharing.MAX_MIN
    """How flows share a link."""
    compute_permille: int = 1000
    """Speed of computation while its rank communicates, in thousandths."""
    communication_permille: int = 1000
    """Speed of communication while one of its ranks computes, in thousandths of its uncontended speed."""

    @property
    def slows(self) -> bool:
        """Whether computation and communication slow each other."""
        return self.compute_permille != 1000 or self.communication_permille != 1000  # noqa: PLR2004 - the whole
