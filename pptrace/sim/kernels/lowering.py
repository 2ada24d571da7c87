"""Kernels that lower an issue order to tasks.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

__all__ = ["BYTE", "chain_tasks", "key_lanes", "link_rows", "place_rows", "sort_edges"]

BYTE = 1_000_000
"""Volume is counted in millionths of a byte, so that a rate in kB/s is so many of them per ns."""

# Where a message's two sides are: on the compute stream, on a stream per peer and direction, on the
# rank's one communication stream, or on one per peer.
ON_COMPUTE, PER_DIRECTION, PER_RANK, PER_PAIR = 0, 1, 2, 3


def key_lanes(
    row_ptr, kind, unit, edge, edge_from, edge_to, stage_rank, unit_route, stages, mode,
    key, peer, group, count,
):  # fmt: skip
    """Give each row its lane's key, its peer and its group of neighbouring messages; return the groups.

    Keys order lanes by (rank, stream, peer): per rank one compute lane, one communication lane, one per
    peer, one per peer and direction each way, two copy lanes and one for data-parallel collectives.
    """
    ranks = len(row_ptr) - 1
    width = 5 + 3 * ranks
    groups = 0
    for rank in range(ranks):
        open_group = False
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            lane = 0
            peer[row] = -1
            group[row] = -1
            if 4 <= k and k <= 7:
                other_stage = edge_to[edge[row]] if k == 4 or k == 7 else edge_from[edge[row]]
                other = stage_rank[unit_route[unit[row]] * stages + other_stage]
                peer[row] = other
                if mode == 1:
                    lane = 2 + (ranks if k == 4 or k == 6 else 2 * ranks) + other
                elif mode == 2:
                    lane = 1
                elif mode == 3:
                    lane = 2 + other
                if not open_group:
                    groups += 1
                    open_group = True
                group[row] = groups - 1
            else:
                open_group = False
                if k == 11:
                    lane = 2 + 3 * ranks
                elif k == 12:
                    lane = 3 + 3 * ranks
                elif 8 <= k and k <= 10:
                    lane = 4 + 3 * ranks
            key[row] = rank * width + lane
            count[rank * width + lane] += 1
    return groups


def place_rows(
    row_ptr, kind, stage, unit, span, braid, edge, key, peer, stages, units, edges,
    duration_by_kind, collective_by_kind, boundary_bytes, pair_of, ways, overhead_ns, latency_ns, rate_kbps,
    recv_mode, eager_bytes,
    cursor, place, pos_f, pos_g, send_at, recv_at,
    out_kind, out_stage, out_unit, out_span, out_braid, size_bytes, path, fork, collective_ns,
    duration_ns, lag_ns,
):  # fmt: skip
    """Move each row to its lane with its bytes, duration, lag and fork, and note where it went."""
    ranks = len(row_ptr) - 1
    for rank in range(ranks):
        compute = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            s = stage[row]
            n = span[row]
            at = cursor[key[row]]
            cursor[key[row]] = at + 1
            place[row] = at
            out_kind[at] = k
            out_stage[at] = s
            out_unit[at] = unit[row]
            out_span[at] = n
            out_braid[at] = braid[row]
            size_bytes[at] = 0
            path[at] = -1
            fork[at] = -1
            collective_ns[at] = 0
            lag_ns[at] = 0
            if 4 <= k and k <= 7:
                sends = k == 4 or k == 6
                pair = pair_of[rank * ranks + peer[row]] if sends else pair_of[peer[row] * ranks + rank]
                carried = boundary_bytes[edge[row]] * n
                index = ((0 if k <= 5 else edges) + edge[row]) * units
                if ways > 1:
                    # Static hashing spreads messages by their number, alike on both sides.
                    pair += (index + unit[row] + 1) * 48271 % 2147483647 * 69621 % 2147483647 % ways
                took = overhead_ns[pair]
                if rate_kbps[pair] > 0:
                    took += (carried * BYTE + rate_kbps[pair] - 1) // rate_kbps[pair]
                size_bytes[at] = carried
                path[at] = pair
                if recv_mode == 1 or (recv_mode == 2 and carried <= eager_bytes):
                    duration_ns[at] = took if sends else took + latency_ns[pair]
                else:
                    duration_ns[at] = took
                    lag_ns[at] = latency_ns[pair]
                fork[at] = compute
                for u in range(unit[row], unit[row] + n):
                    if sends:
                        send_at[index + u] = at
                    else:
                        recv_at[index + u] = at
            else:
                duration_ns[at] = duration_by_kind[k * stages + s] * n
                collective_ns[at] = collective_by_kind[k * stages + s] * n
                if k <= 3 or k >= 13:
                    compute = at
                    if k == 0:
                        for u in range(unit[row], unit[row] + n):
                            pos_f[s * units + u] = at
                    elif k <= 2:
                        for u in range(unit[row], unit[row] + n):
                            pos_g[s * units + u] = at
                else:
                    fork[at] = compute


def link_rows(
    row_ptr, kind, stage, unit, span, edge, group, place, pos_f, pos_g, recv_at, size_bytes, fork,
    edge_from, edge_to, pred_ptr, pred, succ_ptr, succ, stage_rank, unit_route,
    stages, units, edges, rows, mode, recv_mode, batched, eager_bytes,
    twin, unshard, reduce, offload, launch_next, source, target, problem,
):  # fmt: skip
    """List every edge between tasks that no stream implies; return how many.

    ``problem[0]`` becomes 1 + the row that needs a result which its own rank computes later.
    """
    n = 0
    ranks = len(row_ptr) - 1
    for rank in range(ranks):
        for s in range(stages):
            unshard[s] = -1
            reduce[s] = -1
        launched = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            s = stage[row]
            at = place[row]
            if k <= 3 or k >= 13:
                if unshard[s] >= 0:
                    source[n], target[n] = unshard[s], at
                    n += 1
                    unshard[s] = -1
                if k == 14 and reduce[s] >= 0:
                    source[n], target[n] = reduce[s], at
                    n += 1
                if k <= 2:
                    for u in range(unit[row], unit[row] + span[row]):
                        base = unit_route[u] * stages
                        if k == 0:
                            for e in range(pred_ptr[s], pred_ptr[s + 1]):
                                if stage_rank[base + pred[e]] == rank and pos_f[pred[e] * units + u] > at:
                                    problem[0] = row + 1
                                    return n
                        else:
                            for e in range(succ_ptr[s], succ_ptr[s + 1]):
                                if stage_rank[base + succ[e]] == rank and pos_g[succ[e] * units + u] > at:
                                    problem[0] = row + 1
                                    return n
                continue
            if k >= 8:
                if fork[at] >= 0:
                    source[n], target[n] = fork[at], at
                    n += 1
                if k == 8:
                    unshard[s] = at
                elif k == 10:
                    reduce[s] = at
                elif k == 11:
                    for u in range(unit[row], unit[row] + span[row]):
                        offload[s * units + u] = at
                elif k == 12:
                    for u in range(unit[row], unit[row] + span[row]):
                        if offload[s * units + u] >= 0:
                            source[n], target[n] = offload[s * units + u], at
                            n += 1
                        source[n], target[n] = at, pos_g[s * units + u]
                        n += 1
                continue
            if batched:
                start = rows + 2 * group[row]
                if start != launched:
                    if launched >= 0:
                        launch_next[launched + 1 - rows] = start
                    launch_next[start - rows] = start + 1
                    launched = start
                    if fork[at] >= 0:
                        source[n], target[n] = fork[at], start
                        n += 1
            forward = k <= 5
            index = ((0 if forward else edges) + edge[row]) * units + unit[row]
            to = edge_to[edge[row]] if forward else edge_from[edge[row]]
            rendezvous = recv_mode == 2 and (batched or size_bytes[at] > eager_bytes)
            if k == 5 or k == 7:
                # The receiver's side: its own task unless a rendezvous runs both.
                if recv_mode == 2 and not rendezvous:
                    if fork[at] >= 0:
                        source[n], target[n] = fork[at], at
                        n += 1
                    last = -1
                    for u in range(unit[row], unit[row] + span[row]):
                        c = pos_f[to * units + u] if forward else pos_g[to * units + u]
                        if c != last:
                            source[n], target[n] = at, c
                            n += 1
                            last = c
                continue
            if mode > 0 and not batched and fork[at] >= 0:
                source[n], target[n] = fork[at], at
                n += 1
            if recv_mode == 0 or rendezvous:
                if batched:
                    source[n], target[n] = rows + 2 * group[row], at
                    n += 1
                    source[n], target[n] = at, rows + 2 * group[row] + 1
                    n += 1
                else:
                    last = -1
                    for u in range(unit[row], unit[row] + span[row]):
                        c = pos_f[to * units + u] if forward else pos_g[to * units + u]
                        if c != last:
                            source[n], target[n] = at, c
                            n += 1
                            last = c
                if rendezvous:
                    r = recv_at[index]
                    twin[r] = at
                    if not batched and fork[r] >= 0:
                        source[n], target[n] = fork[r], at
                        n += 1
            else:
                source[n], target[n] = at, -1 - recv_at[index]
                n += 1
    if batched:
        for rank in range(ranks):
            for row in range(row_ptr[rank], row_ptr[rank + 1]):
                k = kind[row]
                if k != 5 and k != 7:
                    continue
                at = place[row]
                start = rows + 2 * group[row]
                source[n], target[n] = start, twin[at]
                n += 1
                source[n], target[n] = twin[at], start + 1
                n += 1
                to = edge_to[edge[row]] if k == 5 else edge_from[edge[row]]
                last = -1
                for u in range(unit[row], unit[row] + span[row]):
                    c = pos_f[to * units + u] if k == 5 else pos_g[to * units + u]
                    if c != last:
                        source[n], target[n] = start + 1, c
                        n += 1
                        last = c
    return n


def chain_tasks(lane_ptr, twin, one_sided, following, following_peer):
    """Chain each lane's tasks; a receiver's side chains its twin unless ``one_sided``."""
    for lane in range(len(lane_ptr) - 1):
        for row in range(lane_ptr[lane], lane_ptr[lane + 1] - 1):
            behind = twin[row + 1] if twin[row + 1] >= 0 else row + 1
            if twin[row] < 0:
                following[row] = behind
            elif not one_sided:
                following_peer[twin[row]] = behind


def sort_edges(source, target, edges, ptr, sorted_target):
    """Group ``edges`` edges by source; ``ptr`` comes zeroed with one entry more than tasks."""
    for i in range(edges):
        ptr[source[i] + 1] += 1
    for t in range(len(ptr) - 1):
        ptr[t + 1] += ptr[t]
    for i in range(edges):
        at = ptr[source[i]]
        sorted_target[at] = target[i]
        ptr[source[i]] = at + 1
    for t in range(len(ptr) - 1, 0, -1):
        ptr[t] = ptr[t - 1]
    ptr[0] = 0
