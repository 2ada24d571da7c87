"""Kernel that moves waits for sends forward, so that a rank has few pending sends.

Columns are lists or arrays of integers, hence without annotations. A *node* is an action or an overlapped pair
that is no wait; nodes are numbered along the rows of all ranks. A send's wait is before a node of its rank, or at
the end of the row (-1).
"""

from __future__ import annotations

from typing import Any, NamedTuple


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
        stalls_nobody = is_safe and _leads_to(receive, node, nodes, search)
        nodes.released[receive] = released
        if stalls_nobody:
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
        for way in range(3):
            column = nodes.following if way == 0 else nodes.receive if way == 1 else nodes.released
            successor = column[node]
            if successor >= 0 and search.visited[successor] != search.number[0]:
                search.visited[successor] = search.number[0]
                search.stack[size] = successor
                size += 1
    return False
