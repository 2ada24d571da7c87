"""Kernels of PyTorch's pipeline runtime: gathers of weights, and the limit of pending sends.

Columns are lists or arrays of integers, hence without annotations. A *block* is a computation or an overlapped
pair. A *node* is an action or an overlapped pair that is no wait; nodes are numbered along the rows of all ranks.
A send's wait is before a node of its rank, or at the end of the row (-1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.steps.kinds import Kind

UNSHARD, RESHARD = int(Kind.UNSHARD), int(Kind.RESHARD)


class Added(NamedTuple):
    """Gathers and releases in the order of their positions, with room for one of each per row."""

    row: Any
    """Row of the table before which the action is."""
    rank: Any
    kind: Any
    stage: Any


class Upcoming(NamedTuple):
    """Scratch: the stages of a rank in the order of their next rows."""

    next: Any
    """Per stage, the next row of the rank, -1 for none; initialised with -1."""
    stage: Any
    """The stages with a next row, sorted by it."""
    gathered: Any
    """The gathered stages, in the order of their gathers."""
    is_gathered: Any
    """Per stage; initialised with 0."""
    later: Any
    """Per row, the next row of its stage on its rank, -1 for none."""


def gather_next(block_ptr, blocks, stage_of_row, is_sharded, active, lookahead, upcoming, added):
    """Gather the next stages before each block, and free stages that are not among the next ones.

    Args:
        block_ptr: first block of each rank.
        blocks: :class:`~pptrace.steps.action_insertion.Blocks`.
        stage_of_row: per row, its stage.
        is_sharded: per stage, whether its weights are sharded; other stages are ignored.
        active: number of next stages that stay gathered.
        lookahead: per rank, number of next stages that are gathered.
        upcoming: scratch.
        added: the gathers and releases.

    Returns:
        The number of gathers and releases.
    """
    count = 0
    for rank in range(len(block_ptr) - 1):
        size = _find_rows(block_ptr[rank], block_ptr[rank + 1], blocks, stage_of_row, is_sharded, upcoming)
        gathered = 0
        for block in range(block_ptr[rank], block_ptr[rank + 1]):
            row = blocks.first[block]
            kept = _within(active, size, blocks, upcoming)
            held = 0
            for i in range(gathered):
                stage = upcoming.gathered[i]
                if _place(stage, size, upcoming) < kept:
                    upcoming.gathered[held] = stage
                    held += 1
                else:
                    upcoming.is_gathered[stage] = 0
                    count = _add(added, count, row, rank, RESHARD, stage)
            gathered = held
            for i in range(_within(lookahead[rank], size, blocks, upcoming)):
                stage = upcoming.stage[i]
                if upcoming.is_gathered[stage] == 0:
                    upcoming.is_gathered[stage] = 1
                    upcoming.gathered[gathered] = stage
                    gathered += 1
                    count = _add(added, count, row, rank, UNSHARD, stage)
            size = _advance(block, size, blocks, stage_of_row, is_sharded, upcoming)
        for i in range(gathered):
            stage = upcoming.gathered[i]
            upcoming.is_gathered[stage] = 0
            count = _add(added, count, blocks.last[block_ptr[rank + 1] - 1] + 1, rank, RESHARD, stage)
    return count


def _find_rows(begin, end, blocks, stage_of_row, is_sharded, upcoming):
    """Find the next row after each row of a rank, and its first row of each stage; return the number of stages."""
    if begin == end:
        return 0
    for row in range(blocks.last[end - 1], blocks.first[begin] - 1, -1):
        if blocks.of_row[row] >= 0:
            stage = stage_of_row[row]
            upcoming.later[row] = upcoming.next[stage]
            upcoming.next[stage] = row
    size = 0
    for row in range(blocks.first[begin], blocks.last[end - 1] + 1):
        stage = stage_of_row[row]
        if upcoming.next[stage] == row and is_sharded[stage]:
            upcoming.stage[size] = stage
            size += 1
    return size


def _within(wanted, size, blocks, upcoming):
    """Return the number of the first ``wanted`` next stages and of all others of the same blocks."""
    if size <= wanted:
        return size
    last = blocks.of_row[upcoming.next[upcoming.stage[wanted - 1]]]
    taken = wanted
    while taken < size and blocks.of_row[upcoming.next[upcoming.stage[taken]]] == last:
        taken += 1
    return taken


def _place(stage, size, upcoming):
    """Return the place of a stage among the next ones, their number if it is none of them."""
    place = 0
    while place < size and upcoming.stage[place] != stage:
        place += 1
    return place


def _advance(block, size, blocks, stage_of_row, is_sharded, upcoming):
    """Pass a block: move its stages to the places of their next rows; return the number of stages with one."""
    for row in range(blocks.first[block], blocks.last[block] + 1):
        if blocks.of_row[row] < 0:
            continue
        stage = stage_of_row[row]
        upcoming.next[stage] = upcoming.later[row]
        if is_sharded[stage]:
            place = _place(stage, size, upcoming)
            later = upcoming.later[row]
            while place + 1 < size and (later < 0 or upcoming.next[upcoming.stage[place + 1]] < later):
                upcoming.stage[place] = upcoming.stage[place + 1]
                place += 1
            upcoming.stage[place] = stage
            size -= later < 0
    return size


def _add(added, index, row, rank, kind, stage):
    added.row[index], added.rank[index], added.kind[index], added.stage[index] = row, rank, kind, stage
    return index + 1


class Nodes(NamedTuple):
    """Order of nodes. A node's successors are the next node of its rank, and one other node."""

    following: Any
    """Per node, the next node of its rank, -1 for none."""
    receive: Any
    """Per node, the receive of a send's message, -1 for other nodes."""
    released: Any
    """Per node, for a receive: the node after the wait for its send, else -1."""


class Search(NamedTuple):
    """Scratch of a search for a path between nodes."""

    stack: Any
    """Shape (nodes,)."""
    visited: Any
    """Per node, the number of the last search that visited it; initialised with 0."""
    number: Any
    """Shape (1,): number of searches."""


def limit_pending(row_ptr, node_of_row, partner, limit, nodes, search, pending, is_moved, order):
    """Write the rows in an order in which no rank has more than ``limit`` sends pending.

    Before a send above the limit, the first wait for a pending send that cannot cause a deadlock is inserted. A
    wait whose receive precedes the send in the dependency graph is preferred, since it causes no stall.

    Args:
        row_ptr: first row of each rank.
        node_of_row: per row, its node, -1 for a wait.
        partner: per wait, the row of its send; per send, the row of its wait; else -1.
        limit: most sends of a rank that no wait follows.
        nodes: dependencies; ``released`` is updated.
        search: scratch.
        pending: scratch of one value per row.
        is_moved: per row, whether its wait was moved; initialised with 0.
        order: the rows in their new order.

    Returns:
        0, or 1 + the row of a send that must exceed the limit.
    """
    index = 0
    for rank in range(len(row_ptr) - 1):
        count = 0
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            if partner[row] >= 0 and node_of_row[row] >= 0:
                while count >= limit:
                    chosen = _choose(pending, count, node_of_row[row], node_of_row, nodes, search)
                    if chosen < 0:
                        return row + 1
                    count = _remove(pending, count, chosen)
                    nodes.released[nodes.receive[node_of_row[chosen]]] = node_of_row[row]
                    is_moved[partner[chosen]] = 1
                    order[index] = partner[chosen]
                    index += 1
                pending[count] = row
                count += 1
            elif partner[row] >= 0:
                if is_moved[row]:
                    continue
                count = _remove(pending, count, partner[row])
            order[index] = row
            index += 1
    return 0


def _remove(pending, count, send):
    """Remove a send from the pending sends; return their number."""
    kept = 0
    for i in range(count):
        if pending[i] != send:
            pending[kept] = pending[i]
            kept += 1
    return kept


def _choose(pending, count, node, node_of_row, nodes, search):
    """Return the row of the pending send to wait for before ``node``, -1 if each wait can cause a deadlock."""
    possible = -1
    for i in range(count):
        receive = nodes.receive[node_of_row[pending[i]]]
        released = nodes.released[receive]
        nodes.released[receive] = -1
        is_safe = not _leads_to(node, receive, nodes, search)
        stalls_no_rank = is_safe and _leads_to(receive, node, nodes, search)
        nodes.released[receive] = released
        if stalls_no_rank:
            return pending[i]
        if is_safe and possible < 0:
            possible = pending[i]
    return possible


def _leads_to(source, target, nodes, search):
    """Return whether dependencies lead from one node to another, or whether both are the same."""
    if source == target:
        return True
    search.number[0] += 1
    search.stack[0] = source
    search.visited[source] = search.number[0]
    size = 1
    while size > 0:
        size -= 1
        node = search.stack[size]
        if node == target:
            return True
        for direction in range(3):
            column = nodes.following if direction == 0 else nodes.receive if direction == 1 else nodes.released
            successor = column[node]
            if successor >= 0 and search.visited[successor] != search.number[0]:
                search.visited[successor] = search.number[0]
                search.stack[size] = successor
                size += 1
    return False
