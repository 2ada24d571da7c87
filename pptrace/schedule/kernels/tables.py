"""Kernels over schedule tables: index the actions, put messages in place, defer receives.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

__all__ = ["count_messages", "defer_receives", "index_actions", "insert_sends", "place_messages"]


def index_actions(
    row_ptr, kind, stage, unit, span, stage_rank, unit_route, slot_of_kind, stages, units, routes,
    flat, problem,
):  # fmt: skip
    """Fill ``flat`` with positions by slot, stage and unit; ``problem`` with code, row and other, if any."""
    size = stages * units
    slots = len(flat) // size if size > 0 else 0
    for rank in range(len(row_ptr) - 1):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            s = stage[row]
            if s < 0 or s >= stages:
                problem[0], problem[1] = 1, row
                return
            slot = slot_of_kind[kind[row]]
            if slot < 0:
                held = False
                for route in range(routes):
                    held = held or stage_rank[route * stages + s] == rank
                if not held:
                    problem[0], problem[1], problem[2] = 4, row, stage_rank[s]
                    return
                continue
            first = unit[row]
            if first < 0 or first + span[row] > units:
                problem[0], problem[1] = 2, row
                return
            for u in range(first, first + span[row]):
                place = stage_rank[unit_route[u] * stages + s]
                if place != rank:
                    problem[0], problem[1], problem[2] = 4, row, place
                    return
                at = slot * size + s * units + u
                if flat[at] >= 0:
                    problem[0], problem[1], problem[2] = 3, row, flat[at]
                    return
                flat[at] = row
                if kind[row] == 1 and slots > 2:
                    at = 2 * size + s * units + u
                    if flat[at] >= 0:
                        problem[0], problem[1], problem[2] = 3, row, flat[at]
                        return
                    flat[at] = row
    return


def count_messages(
    row_ptr, kind, stage, unit, stage_rank, unit_route, succ_ptr, succ, pred_ptr, pred, stages,
    sent, received,
):  # fmt: skip
    """Count the messages that each rank sends and receives."""
    for rank in range(len(row_ptr) - 1):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            if k > 2:
                continue
            s = stage[row]
            base = unit_route[unit[row]] * stages
            if k == 0:
                for e in range(succ_ptr[s], succ_ptr[s + 1]):
                    other = stage_rank[base + succ[e]]
                    if other >= 0 and other != rank:
                        sent[rank] += 1
                        received[other] += 1
            else:
                for e in range(pred_ptr[s], pred_ptr[s + 1]):
                    other = stage_rank[base + pred[e]]
                    if other >= 0 and other != rank:
                        sent[rank] += 1
                        received[other] += 1


def insert_sends(
    row_ptr, kind, stage, unit, span, braid, stage_rank, unit_route,
    succ_ptr, succ, succ_edge, pred_ptr, pred, pred_edge, stages,
    out_ptr, out_kind, out_stage, out_unit, out_span, out_braid, out_edge,
):  # fmt: skip
    """Copy the rows with each SEND right behind its producer."""
    at = 0
    for rank in range(len(row_ptr) - 1):
        out_ptr[rank] = at
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            s = stage[row]
            out_kind[at] = k
            out_stage[at] = s
            out_unit[at] = unit[row]
            out_span[at] = span[row]
            out_braid[at] = braid[row]
            out_edge[at] = -1
            at += 1
            if k > 2:
                continue
            base = unit_route[unit[row]] * stages
            if k == 0:
                low, high = succ_ptr[s], succ_ptr[s + 1]
            else:
                low, high = pred_ptr[s], pred_ptr[s + 1]
            for e in range(low, high):
                other = stage_rank[base + (succ[e] if k == 0 else pred[e])]
                if other >= 0 and other != rank:
                    out_kind[at] = 4 if k == 0 else 6
                    out_stage[at] = s
                    out_unit[at] = unit[row]
                    out_span[at] = span[row]
                    out_braid[at] = -1
                    out_edge[at] = succ_edge[e] if k == 0 else pred_edge[e]
                    at += 1
    out_ptr[len(row_ptr) - 1] = at


def place_messages(
    row_ptr, kind, stage, unit, span, braid, stage_rank, unit_route,
    succ_ptr, succ, succ_edge, pred_ptr, pred, pred_edge, stages, units, out_ptr, emit, own,
    head, write, done_f, done_g, out_kind, out_stage, out_unit, out_span, out_braid, out_edge,
):  # fmt: skip
    """Walk the ranks in rounds, one ready action (or braid) a rank and round; return the rows walked.

    With ``emit``, each action is copied, its SENDs follow it, and each RECV goes at once to the
    receiver's row. With ``own``, the table holds its messages: what comes from another rank is there once
    its SEND has been walked. ``head`` ends as the position of each rank's next action.
    """
    ranks = len(row_ptr) - 1
    left = 0
    for rank in range(ranks):
        head[rank] = row_ptr[rank]
        write[rank] = out_ptr[rank]
        left += row_ptr[rank + 1] - row_ptr[rank]
    walked = 0
    moved = True
    while left > 0 and moved:
        moved = False
        for rank in range(ranks):
            first = head[rank]
            last = row_ptr[rank + 1]
            if first == last:
                continue
            end = first + 1
            if braid[first] >= 0:
                while end < last and braid[end] == braid[first]:
                    end += 1
            ready = True
            for row in range(first, end):
                k = kind[row]
                if k > 2 or not ready:
                    continue
                s = stage[row]
                for u in range(unit[row], unit[row] + span[row]):
                    base = unit_route[u] * stages
                    if k == 0:
                        for e in range(pred_ptr[s], pred_ptr[s + 1]):
                            p = pred[e]
                            at = stage_rank[base + p]
                            need = 2 if own and at != rank else 1
                            if at >= 0 and done_f[p * units + u] < need:
                                ready = False
                    else:
                        for e in range(succ_ptr[s], succ_ptr[s + 1]):
                            p = succ[e]
                            at = stage_rank[base + p]
                            need = 2 if own and at != rank else 1
                            if at >= 0 and done_g[p * units + u] < need:
                                ready = False
            if not ready:
                continue
            moved = True
            for row in range(first, end):
                k = kind[row]
                if k == 0 or k == 4:
                    for u in range(unit[row], unit[row] + span[row]):
                        done_f[stage[row] * units + u] = 1 if k == 0 else 2
                elif k <= 2 or k == 6:
                    for u in range(unit[row], unit[row] + span[row]):
                        done_g[stage[row] * units + u] = 1 if k <= 2 else 2
                if emit:
                    at = write[rank]
                    out_kind[at] = k
                    out_stage[at] = stage[row]
                    out_unit[at] = unit[row]
                    out_span[at] = span[row]
                    out_braid[at] = braid[row]
                    out_edge[at] = -1
                    write[rank] = at + 1
            if emit:
                for row in range(first, end):
                    k = kind[row]
                    if k > 2:
                        continue
                    s = stage[row]
                    base = unit_route[unit[row]] * stages
                    if k == 0:
                        low, high = succ_ptr[s], succ_ptr[s + 1]
                    else:
                        low, high = pred_ptr[s], pred_ptr[s + 1]
                    for e in range(low, high):
                        other_stage = succ[e] if k == 0 else pred[e]
                        other = stage_rank[base + other_stage]
                        if other < 0 or other == rank:
                            continue
                        for side in range(2):
                            to = rank if side == 0 else other
                            at = write[to]
                            out_kind[at] = (4 if k == 0 else 6) + side
                            out_stage[at] = s if side == 0 else other_stage
                            out_unit[at] = unit[row]
                            out_span[at] = span[row]
                            out_braid[at] = -1
                            out_edge[at] = succ_edge[e] if k == 0 else pred_edge[e]
                            write[to] = at + 1
            head[rank] = end
            walked += end - first
            left -= end - first
    return walked


def defer_receives(
    row_ptr, kind, stage, unit, span, braid, edge, edge_from, edge_to, stage_rank, unit_route, stages,
    pending, order,
):  # fmt: skip
    """Order each row anew with every RECV right before its consumer, a braid's in its members' order.

    A rank below its peer receives from it before it sends to it. ``order`` lists the old positions;
    ``pending`` is scratch of the longest row's length. Returns the RECVs that nothing consumes.
    """
    at = 0
    orphans = 0
    for rank in range(len(row_ptr) - 1):
        waiting = 0
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            if k == 5 or k == 7:
                pending[waiting] = row
                waiting += 1
                continue
            peer = -1
            if k == 4:
                peer = stage_rank[unit_route[unit[row]] * stages + edge_to[edge[row]]]
            elif k == 6:
                peer = stage_rank[unit_route[unit[row]] * stages + edge_from[edge[row]]]
            end = row + 1
            if peer < 0 and braid[row] >= 0:
                while end < row_ptr[rank + 1] and braid[end] == braid[row]:
                    end += 1
            if rank < peer or k <= 2 or end > row + 1:
                for m in range(row, end):
                    kept = 0
                    for i in range(waiting):
                        r = pending[i]
                        flush = False
                        if peer >= 0:
                            base = unit_route[unit[r]] * stages
                            source = edge_from[edge[r]] if kind[r] == 5 else edge_to[edge[r]]
                            flush = stage_rank[base + source] == peer
                        elif stage[r] == stage[m] and kind[m] <= 2 and (kind[r] == 5) == (kind[m] == 0):
                            flush = unit[r] < unit[m] + span[m] and unit[m] < unit[r] + span[r]
                        if flush:
                            order[at] = r
                            at += 1
                        else:
                            pending[kept] = r
                            kept += 1
                    waiting = kept
            order[at] = row
            at += 1
        for i in range(waiting):
            order[at] = pending[i]
            at += 1
        orphans += waiting
    return orphans
