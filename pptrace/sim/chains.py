"""What follows what: the chains of streams and communicators, and all other edges by their source."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.model.columns import passing
from pptrace.model.kinds import Stream
from pptrace.sim.kernels import linking
from pptrace.sim.records import Pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.sim.records import Rules, TaskColumns

__all__ = ["Linked", "behind_sends", "chained", "of_all", "sorted_edges", "unchained"]


class Linked(NamedTuple):
    """What waits for what."""

    twin: Int32s
    """Each row's twin."""
    batch_next: Int32s
    """The chain of batches."""
    edges: Pairs
    """Those that no stream implies."""
    chains: tuple[Int32s, Int32s] | None
    """Per task the call behind it on its communicator, and behind a receiver's; None without calls."""


def of_all(values: Int64s, tasks: int) -> Int64s:
    """Return the values of all tasks: zero for those behind the rows, more of which calls may have."""
    more = np.zeros(max(0, tasks - values.size), dtype=np.int64)
    return np.concatenate([values, more]) if more.size else values[:tasks]


def unchained(tasks: int) -> tuple[Int32s, Int32s]:
    """Return columns that say that nothing follows any of so many tasks."""
    following, following_peer = passing(tasks, np.int32, np.int32)
    following[:] = following_peer[:] = -1
    return following, following_peer


def chained(
    lanes: Mapping[str, NDArray[np.integer]], linked: Linked, tasks: int, rules: Rules
) -> tuple[Int32s, Int32s]:
    """Return the task behind each on its stream, and behind a rendezvous on the receiver's; -1 for none."""
    following, following_peer = unchained(tasks) if linked.chains is None else linked.chains
    first, end = lanes["lane_ptr"][:-1], lanes["lane_ptr"][1:]
    if linked.chains is not None:  # communicators, not lanes, say which message follows which
        others = ~np.isin(lanes["lane_stream"], (Stream.SEND, Stream.RECV))
        first, end = first[others], end[others]
    run(
        linking.chain_tasks,
        (first, end, linked.twin, rules.batched),
        (following, following_peer),
        work=rules.rows,
    )
    following[rules.rows : rules.rows + linked.batch_next.size] = linked.batch_next
    return following, following_peer


def behind_sends(edges: Pairs, task: TaskColumns, following_peer: Int32s) -> Pairs:
    """Chain what is issued behind a message that held its compute stream; return the edges without those.

    An edge from a message is as late as its arrival elsewhere; its own rank goes on when it has left.
    """
    rows = task.fork.size
    own = (edges.target >= 0) & (edges.target < rows) & (edges.source < rows)
    own[own] = (task.fork[edges.target[own]] == edges.source[own]) & (task.lag_ns[edges.source[own]] > 0)
    sends, first = np.unique(edges.source[own], return_index=True)
    following_peer[sends] = edges.target[own][first]
    kept = np.ones(own.size, dtype=bool)
    kept[np.flatnonzero(own)[first]] = False
    return Pairs(edges.source[kept], edges.target[kept])


def sorted_edges(edges: Pairs, tasks: int) -> tuple[Int32s, Int32s]:
    """Return where each task's edges begin, and what they lead to."""
    count = edges.source.size
    ptr, edge = passing(max(tasks + 1, count), np.int32, np.int32)
    ptr, edge = ptr[: tasks + 1], edge[:count]
    ptr[:] = 0
    run(linking.sort_edges, (*edges, count), (ptr, edge), work=tasks)
    return ptr, edge
