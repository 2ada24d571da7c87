"""The dependency graph of a rank: a node per slice of the timeline, and per message end without a slice."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, kinds, messages, peers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.plugin import Int64s, Messages, Timeline

_OTHER_END = np.arange(len(Kind))
_OTHER_END[[Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B]] = [
    Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B,
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes of a rank in topological order; columns have shape (nodes,)."""

    row: Int64s
    """Row of the slice in the timeline; of the message's other end for a node without a slice."""
    has_slice: NDArray[np.bool_]
    """Whether the node is a slice; else it is the end of a message that occupies no stream of this rank."""
    kind: Int64s
    """:class:`~pptrace.plugin.Kind` of the node."""
    peer: Int64s
    """Rank at the other end of a message; -1 for other nodes, or where unknown."""
    tag: Int64s
    """Number of the message in the step, the same on both ranks; -1 for other nodes."""
    start_ns: Int64s
    """Start of the slice; arrival of the message for a receive without a slice."""
    previous: tuple[int, ...]
    """The previous node of the stream, -1 for none."""
    needs: tuple[tuple[int, ...], ...]
    """Nodes whose results the node needs, ascending."""


def graph_of(timeline: Timeline, rank: int) -> Graph:
    """Return the graph of a rank.

    A node needs the results that its action needs (activations, gradients, gathered weights, received messages),
    and the slice that released it. Nodes are ordered by dependencies, then by time.
    """
    lanes, rows = timeline.rank_slices(rank)
    row = np.arange(rows.start, rows.stop)
    ends, rank_of_row = messages(timeline), timeline.rank_of_row()
    peer, tag = _message_columns(timeline, row, ends)
    single = np.flatnonzero((ends.send < 0) | (ends.recv < 0))
    single = single[peers_of(timeline, ends.transfer[single]) == rank]
    other_end = ends.transfer[single]
    start_ns = np.append(timeline.start_ns[row], (timeline.end_ns + timeline.lag_ns)[other_end])
    needs = [
        *_message_needs(ends, rows, single),
        *_result_needs(timeline, row),
        *_stage_needs(timeline, row),
        *_releases(timeline, row),
    ]
    streams = [
        pair for a, b in pairwise(timeline.lane_ptr[lanes.start : lanes.stop + 1].tolist())
        for pair in pairwise(range(a - rows.start, b - rows.start))
    ]  # fmt: skip
    order, position = _topological_order(start_ns, [*streams, *needs])
    before: list[set[int]] = [set() for _ in order]
    for a, b in needs:
        if position[a] < position[b]:
            before[position[b]].add(position[a])
    previous = [-1] * len(order)
    for a, b in streams:
        previous[position[b]] = position[a]
    return Graph(
        row=np.append(row, other_end)[order],
        has_slice=(np.arange(start_ns.size) < row.size)[order],
        kind=np.append(timeline.kind[row], _OTHER_END[timeline.kind[other_end]])[order],
        peer=np.append(peer, rank_of_row[other_end])[order],
        tag=np.append(tag, single)[order],
        start_ns=start_ns[order],
        previous=tuple(previous),
        needs=tuple(tuple(sorted(nodes)) for nodes in before),
    )


_Needs = list[tuple[int, int]]
"""Pairs of a node and a node that needs it, as indices before the order."""


def _message_columns(timeline: Timeline, row: Int64s, ends: Messages) -> tuple[Int64s, Int64s]:
    """Return peer and tag of each slice, -1 where it is no message or unknown."""
    peer, tag = np.full(row.size, -1, dtype=np.int64), np.full(row.size, -1, dtype=np.int64)
    carries = np.flatnonzero(kinds.COMMUNICATION.mask(timeline.kind[row]))
    peer[carries] = peers_of(timeline, row[carries])
    rank_of_row = timeline.rank_of_row()
    for end, other in ((ends.send, ends.recv), (ends.recv, ends.send)):
        message = np.flatnonzero(np.isin(end, row))
        tag[np.searchsorted(row, end[message])] = message
        matched = message[other[message] >= 0]
        peer[np.searchsorted(row, end[matched])] = rank_of_row[other[matched]]
    return peer, tag


def _message_needs(ends: Messages, rows: slice, single: Int64s) -> _Needs:
    """Return producer and send, and receive and consumer, of all messages of the rank.

    Args:
        ends: all messages.
        rows: the rows of the rank.
        single: messages whose end at this rank is no slice, in the order of their nodes.
    """
    needs: _Needs = []
    for end, action, sends in ((ends.send, ends.producer, True), (ends.recv, ends.consumer, False)):
        node = np.where(end >= 0, end - rows.start, -1)
        node[single] = np.where(end[single] < 0, rows.stop - rows.start + np.arange(single.size), node[single])
        known = np.flatnonzero((action >= rows.start) & (action < rows.stop) & (node >= 0))
        pair = (action[known] - rows.start, node[known])
        needs += zip(*(side.tolist() for side in (pair if sends else pair[::-1])), strict=True)
    return needs


def _result_needs(timeline: Timeline, row: Int64s) -> _Needs:
    """Return the needs among results of the rank: of an action's last segment by another action's first."""
    last: dict[tuple[int, int, int], int] = {}
    first: dict[tuple[int, int, int], int] = {}
    end_ns, start_ns = timeline.end_ns[row].tolist(), timeline.start_ns[row].tolist()
    columns = (timeline.kind[row], timeline.stage[row], timeline.microbatch[row], timeline.span[row])
    for node, (kind, stage, microbatch, span) in enumerate(np.stack(columns, axis=1).tolist()):
        for result in kinds.KINDS[Kind(kind)].results:
            for each in range(microbatch, microbatch + span):
                key = int(result), stage, each
                if key not in last or end_ns[last[key]] < end_ns[node]:
                    last[key] = node
                if key not in first or start_ns[node] < start_ns[first[key]]:
                    first[key] = node
    needs: _Needs = []
    following = defaultdict(list)
    for result_before, result_after in kinds.ORDER:
        following[int(result_before)].append(int(result_after))
    onward = defaultdict(list)  # between stages of the rank
    activation, gradient = int(kinds.Result.ACTIVATION), int(kinds.Result.GRADIENT)
    for source, target in timeline.placement.edges.tolist():
        onward[activation, source].append((activation, target))
        onward[gradient, target].append((gradient, source))
    for (produced, stage, microbatch), node in last.items():
        keys = [(after, stage) for after in following[produced]] + onward[produced, stage]
        consumers = (first.get((after, at, microbatch), node) for after, at in keys)
        needs += [(node, consumer) for consumer in consumers if consumer != node]
    return needs


def _stage_needs(timeline: Timeline, row: Int64s) -> _Needs:
    """Return the needs of collectives of a stage, and of actions that wait for them."""
    columns = (timeline.kind[row], timeline.stage[row], timeline.start_ns[row], timeline.end_ns[row])
    slices = [(Kind(kind), *values) for kind, *values in np.stack(columns, axis=1).tolist()]
    ended: dict[tuple[Kind | None, int], list[tuple[int, int]]] = defaultdict(list)
    for node, (kind, stage, _, end_ns) in enumerate(slices):
        if kind in kinds.PER_STAGE:
            ended[kind, stage].append((end_ns, node))
        if kind in kinds.COMPUTE:  # of any kind, on the stage or on any
            ended[None, stage].append((end_ns, node))
            ended[None, -1].append((end_ns, node))
    for nodes in ended.values():
        nodes.sort()
    needs: _Needs = []
    for node, (kind, stage, start_ns, _) in enumerate(slices):
        traits = kinds.KINDS[kind]
        keys: list[tuple[Kind | None, int]] = [(Kind[name], stage) for name in traits.waits_for]
        if traits.role is kinds.Role.COLLECTIVE and kind is not Kind.UNSHARD:
            keys.append((None, -1 if kind is Kind.SYNC else stage))
        for key in keys:
            before = bisect_right(ended[key], (start_ns, len(slices))) - 1
            if before >= 0 and ended[key][before][1] != node:
                needs.append((ended[key][before][1], node))
    return needs


def _releases(timeline: Timeline, row: Int64s) -> _Needs:
    """Return the slices of the rank whose end released another."""
    cause = timeline.cause[row].astype(np.int64)
    released = np.flatnonzero(np.isin(cause, row))
    released = released[timeline.end_ns[cause[released]] <= timeline.start_ns[row[released]]]
    return list(zip(np.searchsorted(row, cause[released]).tolist(), released.tolist(), strict=True))


def _topological_order(start_ns: Int64s, pairs: _Needs) -> tuple[list[int], list[int]]:
    """Return nodes by dependencies, then by time, and each node's position.

    Recorded times can contradict dependencies. Nodes of a cycle follow by time.
    """
    after: list[list[int]] = [[] for _ in range(start_ns.size)]
    missing = [0] * start_ns.size
    for a, b in set(pairs):
        after[a].append(b)
        missing[b] += 1
    times = start_ns.tolist()
    ready = [(times[node], node) for node, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for consumer in after[node]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heapq.heappush(ready, (times[consumer], consumer))
    order += sorted(set(range(len(times))).difference(order), key=lambda node: (times[node], node))
    position = [0] * len(order)
    for index, node in enumerate(order):
        position[node] = index
    return order, position
