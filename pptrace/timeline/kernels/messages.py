"""Kernels that index the rows of actions and of messages.

The results of a stage are its forwards' (0), which the next stages need, and its backwards' (1), which the
previous stages need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kinds import Pass, Role

SENDS, RECEIVES = int(Role.SEND), int(Role.RECEIVE)
FORWARD = int(Pass.FORWARD)
SEVERAL = -2
"""A receive with several candidate messages."""


class RowIndex(NamedTuple):
    """Rows by stage, edge and microbatch, -1 for none."""

    producer: Any
    """Shape (2 x stages x microbatches,): forwards, then the backwards whose result other stages need."""
    send: Any
    """Shape (2 x edges x microbatches,): the sender's row of each message, forward edges first."""
    recv: Any
    """The receiver's row of each message, in the same shape."""


def index_rows(first, end, lane_ptr, lane_rank, lane_peer, cells, start, size, graph, kinds, index):
    """RowIndex the rows of forwards and gradients by stage and microbatch, and of messages by edge and microbatch.

    A receive has no source stage. Where several are possible, a second pass assigns it the message of its
    size that was sent first. Return whether the ranks ``first:end`` cannot be indexed without the other ranks:
    a receive needs the second pass, or a row is on another rank than that of its stage.
    """
    feeds, role = kinds.feeds, kinds.role
    is_part = end - first < graph.ranks
    unsure = False
    for lane in range(len(lane_ptr) - 1):
        rank, home = lane_rank[lane], -1
        if rank < first or rank >= end:
            continue
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            k = cells.kind[row]
            is_message = role[k] == SENDS or role[k] == RECEIVES
            if is_part and (graph.routes > 1 or cells.stage[row] != home) and (feeds[k] >= 0 or is_message):
                if not _is_home(row, rank, cells, graph):
                    return 1
                home = cells.stage[row]
            if feeds[k] >= 0:
                base = (feeds[k] * graph.stages + cells.stage[row]) * graph.microbatches
                for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                    index.producer[base + u] = row
            elif is_message:
                match = _find_message(row, rank, lane_peer[lane], cells, graph, kinds, index)
                unsure = unsure or match == SEVERAL
                _index_message(row, match, cells, kinds, index)
    if not unsure or is_part:
        return unsure
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            if role[cells.kind[row]] == RECEIVES:
                match = _first_sent(row, lane_rank[lane], lane_peer[lane], cells, start, size, graph, kinds, index)
                _index_message(row, match, cells, kinds, index)
    return 0


def _is_home(row, rank, cells, graph):
    """Return whether a row is on the rank of its stage."""
    first, home = cells.microbatch[row], True
    for u in range(first, first + cells.span[row]):
        home = home and graph.stage_rank[graph.microbatch_route[u] * graph.stages + cells.stage[row]] == rank
    return first >= 0 and home


def _index_message(row, match, cells, kinds, index):
    """Store a message's row, from the slot ``match`` on."""
    if match < 0:
        return
    sends = kinds.role[cells.kind[row]] == SENDS
    for slot in range(match, match + cells.span[row]):
        if sends:
            index.send[slot] = row
        elif index.recv[slot] < 0:
            index.recv[slot] = row


def _find_message(row, rank, peer, cells, graph, kinds, index):
    """Return the slot of a send, or of a receive with a single candidate message; -1 for none."""
    k, s, u = cells.kind[row], cells.stage[row], cells.microbatch[row]
    sends = kinds.role[k] == SENDS
    forward = kinds.direction[k] == FORWARD
    down = sends == forward
    ptr = graph.succ_ptr if down else graph.pred_ptr
    ranks = graph.stage_rank if forward else graph.backward_rank
    match = -1
    for e in range(ptr[s], ptr[s + 1]):
        other = ranks[graph.microbatch_route[u] * graph.stages + (graph.succ[e] if down else graph.pred[e])]
        if other < 0 or other == rank or (peer >= 0 and other != peer):
            continue
        edge = graph.succ_edge[e] if down else graph.pred_edge[e]
        slot = ((0 if forward else graph.edges) + edge) * graph.microbatches + u
        if not sends:
            if match >= 0:
                return SEVERAL
            match = slot
        elif match < 0 and index.send[slot] < 0:
            match = slot
    return match


def _first_sent(row, rank, peer, cells, start, size, graph, kinds, index):
    """Return the slot of a receive: the message of its size that was sent first; -1 for none."""
    s, u = cells.stage[row], cells.microbatch[row]
    send = index.send
    forward = kinds.direction[cells.kind[row]] == FORWARD
    ptr = graph.pred_ptr if forward else graph.succ_ptr
    ranks = graph.stage_rank if forward else graph.backward_rank
    match = -1
    for e in range(ptr[s], ptr[s + 1]):
        other = ranks[graph.microbatch_route[u] * graph.stages + (graph.pred[e] if forward else graph.succ[e])]
        if other < 0 or other == rank or (peer >= 0 and other != peer):
            continue
        edge = graph.pred_edge[e] if forward else graph.edges + graph.succ_edge[e]
        slot = edge * graph.microbatches + u
        if index.recv[slot] >= 0 or send[slot] < 0 or size[send[slot]] != size[row]:
            continue
        if match < 0 or start[send[slot]] < start[send[match]]:
            match = slot
    return match
