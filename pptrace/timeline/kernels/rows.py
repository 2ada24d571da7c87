"""Kernels that index rows or pass once over them: peaks of memory, hidden communication, and free lanes.

In indices, the results of a stage are its forwards' (0), which the next stages need, and its backwards' (1), which
the previous stages need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kinds import Pass, Result, Role

COMPUTES, SENDS, RECEIVES = int(Role.COMPUTE), int(Role.SEND), int(Role.RECEIVE)
FORWARD = int(Pass.FORWARD)
ACTIVATION, WEIGHT_GRADIENT = int(Result.ACTIVATION), int(Result.WEIGHT_GRADIENT)
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


def index_rows(lane_ptr, lane_rank, lane_peer, cells, start, size, graph, kinds, index):
    """Index the rows of forwards and gradients by stage and microbatch, and of messages by edge and microbatch.

    A receive has no source stage. Where several are possible, a second pass assigns it the message of its
    size that was sent first. Return whether there was a second pass, which depends on times.
    """
    feeds, role = kinds.feeds, kinds.role
    unsure = False
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            k = cells.kind[row]
            if feeds[k] >= 0:
                base = (feeds[k] * graph.stages + cells.stage[row]) * graph.microbatches
                for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
                    index.producer[base + u] = row
            elif role[k] == SENDS or role[k] == RECEIVES:
                match = _find_message(
                    row, lane_rank[lane], lane_peer[lane], cells, start, size, graph, kinds, index, False
                )
                unsure = unsure or match == SEVERAL
                _index_message(row, match, cells, kinds, index)
    if not unsure:
        return False
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            if role[cells.kind[row]] == RECEIVES:
                match = _find_message(
                    row, lane_rank[lane], lane_peer[lane], cells, start, size, graph, kinds, index, True
                )
                _index_message(row, match, cells, kinds, index)
    return True


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


def _find_message(row, rank, peer, cells, start, size, graph, kinds, index, after_sends):
    """Return the slot of a send or of a receive, -1 for none.

    If ``after_sends``, a receive has the slot of the message of its size that was sent first. Else it has a slot
    only if a single message is possible.
    """
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
        sent = index.send[slot]
        if sends:
            if match < 0 and sent < 0:
                match = slot
        elif not after_sends:
            if match >= 0:
                return SEVERAL
            match = slot
        elif sent >= 0 and index.recv[slot] < 0 and size[sent] == size[row] and (
            match < 0 or start[sent] < start[index.send[match]]
        ):  # fmt: skip
            match = slot
    return match


def find_memory_peaks(
    first, end, compute_lane, lane_ptr, cells, class_ptr, kept, kept_weight, kinds, held, route, stages, moved,
    peak, peak_row, peak_count,
):  # fmt: skip
    """Find the peaks of activations on ranks ``first:end``: bytes, their row, and number of microbatches.

    ``class_ptr`` has the place of a microbatch's class in ``kept`` and ``kept_weight``, from microbatch -1 on.
    ``held`` has the microbatches of each rank at the start. A kind can allocate the input of a weight gradient, as
    in full recomputation; its memory change is positive. ``moved``, empty where all are 0, has 1 for each of the
    ``stages`` of a route whose backward is on another rank: a microbatch counts there during its passes.
    """
    for rank in range(first, end):
        lane = compute_lane[rank]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        allocated = 0
        count = held[rank]
        peak_count[rank] = count
        for row in range(low, high):
            k, n = cells.kind[row], cells.span[row]
            s = class_ptr[cells.microbatch[row] + 1] + cells.stage[row]
            allocated += (kinds.activation[k] * kept[s] + kinds.weight_activation[k] * kept_weight[s]) * n
            if allocated > peak[rank]:
                peak[rank] = allocated
                peak_row[rank] = row
            enters = kinds.result[k] == ACTIVATION and kinds.activation[k] > 0
            leaves = kinds.result[k] == WEIGHT_GRADIENT or kinds.second_result[k] == WEIGHT_GRADIENT
            if enters or leaves:
                passes = len(moved) > 0 and moved[route[cells.microbatch[row]] * stages + cells.stage[row]] == 1
                if enters or passes:
                    count += n
                    peak_count[rank] = max(peak_count[rank], count)
                if leaves or passes:
                    count -= n


class Computations(NamedTuple):
    """Rows of compute lanes."""

    kind: Any
    start: Any
    end: Any
    collective: Any
    """Waits for the rank's groups at the start of computations."""


def sum_hidden_time(group_lane, compute_lane, excludes_waits, lane_ptr, rows, kinds, total, hidden, of_row):
    """Sum the time of groups' lanes, and the part of it in which a compute lane computed; -1 for no such lane.

    Waits for groups do not count as computation of lanes that exclude them. ``of_row`` gets the hidden time of
    each row, unless it is empty.
    """
    for index in range(len(group_lane)):
        lane, excluded = compute_lane[index], excludes_waits[index]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        done = 0
        for row in range(lane_ptr[group_lane[index]], lane_ptr[group_lane[index] + 1]):
            low, done, before = _computed(rows.start[row], low, high, done, excluded, rows, kinds)
            low, done, after = _computed(rows.end[row], low, high, done, excluded, rows, kinds)
            total[index] += rows.end[row] - rows.start[row]
            hidden[index] += after - before
            if len(of_row) > 0:
                of_row[row] = after - before


def _computed(until, low, high, done, excluded, rows, kinds):
    """Return the next row that computes, and the computation time before this row and until a time."""
    while low < high and (kinds.role[rows.kind[low]] != COMPUTES or rows.end[low] <= until):
        if kinds.role[rows.kind[low]] == COMPUTES:
            done += rows.end[low] - rows.start[low] - excluded * rows.collective[low]
        low += 1
    running = max(0, until - rows.start[low] - excluded * rows.collective[low]) if low < high else 0
    return low, done, done + running


def assign_lanes(ptr, start, end, until, place, lanes):
    """Put each slice of a group on the group's first lane that is free at the slice's start.

    Group ``g`` has the slices ``ptr[g]:ptr[g + 1]``, by their starts. ``until`` is scratch space with an entry per
    lane; ``place`` receives each slice's lane within its group, ``lanes`` the number of lanes of each group.
    """
    for group in range(len(ptr) - 1):
        used = 0
        for index in range(ptr[group], ptr[group + 1]):
            lane = 0
            while lane < used and until[lane] > start[index]:
                lane += 1
            used = max(used, lane + 1)
            until[lane] = end[index]
            place[index] = lane
        lanes[group] = used
