"""Kernels that lower an issue order to tasks.

Columns are lists or arrays of integers, alike in use, hence without annotations. ``cells`` are
:class:`~pptrace.model.cells.CellColumns`, ``graph`` is a :class:`~pptrace.schedule.neighbours.StageGraph`,
``kinds`` the :class:`~pptrace.model.kinds.KindTable`, ``parts`` are
:class:`~pptrace.sim.segmented.PartColumns`; the other records are in :mod:`pptrace.sim.records`.
"""

from pptrace.model.kinds import Pass, Role, Stream

__all__ = ["BYTE", "chain_tasks", "join_batches", "key_lanes", "link_rows", "place_rows", "sort_edges"]

BYTE = 1_000_000
"""Volume is counted in millionths of a byte, so that a rate in kB/s is so many of them per ns."""

# Where a message's two sides are: on the compute stream, on a stream per peer and direction, on the
# rank's one communication stream, or on one per peer.
ON_COMPUTE, PER_DIRECTION, PER_RANK, PER_PAIR = 0, 1, 2, 3

# What a receiver's side is: nothing, a task of its own, or the sender's (a rendezvous).
NO_RECEIVE, OWN_TASK, RENDEZVOUS = 0, 1, 2

COMPUTES, SENDS, RECEIVES = int(Role.COMPUTE), int(Role.SEND), int(Role.RECEIVE)
FORWARD = int(Pass.FORWARD)
COMPUTE_STREAM = int(Stream.COMPUTE)
NO_FORK = -2
MIX_FIRST, MIX_SECOND, MODULUS = 48271, 69621, 2147483647
"""Two steps of a Lehmer generator spread messages over equal ways, alike on both sides."""


def _other_stage(k, edge, graph, kinds):
    """Return the stage at a message's other end."""
    down = (kinds.role[k] == SENDS) == (kinds.direction[k] == FORWARD)
    return graph.edge_to[edge] if down else graph.edge_from[edge]


def key_lanes(row_ptr, cells, edge, graph, kinds, parts, lane_of_stream, width, mode, key, peer, group, count):
    """Give each row its lane's key, its peer and its group of neighbouring messages; return the groups.

    Keys order lanes by (rank, stream, peer): per rank one compute lane, one communication lane, one per
    peer, one per peer and direction each way, and one for each further stream.
    """
    ranks, stages, stage_rank, unit_route = graph.ranks, graph.stages, graph.stage_rank, graph.unit_route
    kind, unit, role, stream, part_stream = cells.kind, cells.unit, kinds.role, kinds.stream, parts.stream
    in_parts = len(part_stream) > 0
    groups = 0
    for rank in range(ranks):
        open_group = False
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            peer[row] = -1
            group[row] = -1
            if role[k] == SENDS or role[k] == RECEIVES:
                other = stage_rank[unit_route[unit[row]] * stages + _other_stage(k, edge[row], graph, kinds)]
                peer[row] = other
                lane = _message_lane(mode, role[k] == SENDS, ranks, other)
                if not open_group:
                    groups += 1
                    open_group = True
                group[row] = groups - 1
            else:
                open_group = False
                own = part_stream[row] if in_parts and part_stream[row] >= 0 else stream[k]
                lane = lane_of_stream[own]
            key[row] = rank * width + lane
            count[rank * width + lane] += 1
    return groups


def _message_lane(mode, sends, ranks, other):
    if mode == PER_DIRECTION:
        return 2 + (ranks if sends else 2 * ranks) + other
    if mode == PER_PAIR:
        return 2 + other
    return 1 if mode == PER_RANK else 0


def place_rows(
    row_ptr, cells, edge, graph, kinds, parts, lanes, costs, routes, rules, cursor, place, found, out, task
):
    """Move each row to its lane with its bytes, duration, lag and fork, and note where it went."""
    kind, stage, unit, span, braid = cells.kind, cells.stage, cells.unit, cells.span, cells.braid
    out_kind, out_stage, out_unit, out_span, out_braid = out.kind, out.stage, out.unit, out.span, out.braid
    key, role, in_parts = lanes.key, kinds.role, len(parts.stream) > 0
    for rank in range(graph.ranks):
        compute = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            at = cursor[key[row]]
            cursor[key[row]] = at + 1
            place[row] = at
            out_kind[at] = k
            out_stage[at] = stage[row]
            out_unit[at] = unit[row]
            out_span[at] = span[row]
            out_braid[at] = braid[row]
            task.fork[at] = compute
            if in_parts and parts.release[row] != -1:
                task.fork[at] = -1 if parts.release[row] == NO_FORK else place[parts.release[row]]
            if role[k] == SENDS or role[k] == RECEIVES:
                _place_message(row, rank, at, cells, edge, graph, kinds, lanes, costs, routes, rules, found, task)
            elif in_parts and parts.stream[row] >= 0:
                _place_part(row, at, parts, routes, task)
                if parts.number[row] == 0:
                    _note(row, at, cells, graph, kinds, found)
                if parts.stream[row] == COMPUTE_STREAM:
                    compute = at
                    task.fork[at] = -1
            else:
                _place_action(row, at, cells, graph, costs, task)
                if role[k] == COMPUTES:
                    compute = at
                    task.fork[at] = -1
                    _note(row, at, cells, graph, kinds, found)


def _place_message(row, rank, at, cells, edge, graph, kinds, lanes, costs, routes, rules, found, task):
    """Give one end of a message its path, bytes, duration and lag."""
    k, u, n, e = cells.kind[row], cells.unit[row], cells.span[row], edge[row]
    sends = kinds.role[k] == SENDS
    other = lanes.peer[row]
    path = routes.pair_of[rank * graph.ranks + other] if sends else routes.pair_of[other * graph.ranks + rank]
    index = ((0 if kinds.direction[k] == FORWARD else graph.edges) + e) * graph.units + u
    if routes.ways > 1:
        path += (index + 1) * MIX_FIRST % MODULUS * MIX_SECOND % MODULUS % routes.ways
    carried = costs.boundary_bytes[e] * n
    if costs.classes > 1:
        carried = 0
        for i in range(u, u + n):
            carried += costs.boundary_bytes[costs.class_of[i] * graph.edges + e]
    took = routes.overhead_ns[path]
    if routes.rate_kbps[path] > 0:
        took += (carried * BYTE + routes.rate_kbps[path] - 1) // routes.rate_kbps[path]
    own = rules.receive == OWN_TASK or (rules.receive == RENDEZVOUS and carried <= rules.eager_bytes)
    task.size_bytes[at] = carried
    task.path[at] = path
    task.collective_ns[at] = 0
    task.duration_ns[at] = took + routes.latency_ns[path] if own and not sends else took
    task.lag_ns[at] = 0 if own else routes.latency_ns[path]
    where = found.send_at if sends else found.recv_at
    for i in range(n):
        where[index + i] = at


def _place_action(row, at, cells, graph, costs, task):
    """Give a whole action its duration."""
    cost = cells.kind[row] * graph.stages + cells.stage[row]
    n = cells.span[row]
    task.size_bytes[at] = 0
    task.path[at] = -1
    task.lag_ns[at] = 0
    if costs.classes == 1 or cells.unit[row] < 0:
        task.duration_ns[at] = costs.duration_ns[cost] * n
        task.collective_ns[at] = costs.collective_ns[cost] * n
        return
    task.duration_ns[at] = 0
    task.collective_ns[at] = 0
    for u in range(cells.unit[row], cells.unit[row] + n):
        here = costs.class_of[u] * costs.width + cost
        task.duration_ns[at] += costs.duration_ns[here]
        task.collective_ns[at] += costs.collective_ns[here]


def _place_part(row, at, parts, routes, task):
    """Give a segment its duration, and its path where its bytes go over a link."""
    task.size_bytes[at] = parts.size_bytes[row]
    task.collective_ns[at] = 0
    task.duration_ns[at] = parts.duration_ns[row]
    task.path[at] = -1
    task.lag_ns[at] = 0
    if parts.path[row] >= 0:
        path = routes.first_link + parts.path[row] * routes.ways
        task.path[at] = path
        task.lag_ns[at] = routes.latency_ns[path]
        task.duration_ns[at] -= routes.latency_ns[path]


def _note(row, at, cells, graph, kinds, found):
    """Note where a stage makes what other stages need."""
    way = kinds.feeds[cells.kind[row]]
    if way >= 0:
        base = (way * graph.stages + cells.stage[row]) * graph.units
        for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
            found.made_at[base + u] = at


def link_rows(
    row_ptr, cells, edge, graph, kinds, parts, lanes, rules, place, found, task,
    twin, awaited_stage, awaited_unit, batch_next, pairs, problem,
):  # fmt: skip
    """List every edge between tasks that no stream implies; return how many.

    ``problem[0]`` becomes 1 + the row that needs a result which its own rank computes later.
    """
    n = 0
    kind, role, fork, in_parts = cells.kind, kinds.role, task.fork, len(parts.stream) > 0
    for rank in range(graph.ranks):
        for i in range(len(awaited_stage)):
            awaited_stage[i] = -1
        launched = -1
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            at = place[row]
            if role[k] == SENDS or role[k] == RECEIVES:
                if rules.batched:
                    launch = rules.rows + 2 * lanes.group[row]
                    if launch != launched:
                        n = _launch(launch, launched, fork[at], rules.rows, batch_next, pairs, n)
                        launched = launch
                n = _link_message(row, at, cells, edge, graph, kinds, lanes, rules, found, task, twin, pairs, n)
                continue
            if in_parts and parts.stream[row] > COMPUTE_STREAM:
                if fork[at] >= 0:
                    n = _pair(pairs, n, fork[at], at)
                continue
            if len(awaited_stage) > 0:
                n = _link_own(row, at, cells, graph, kinds, awaited_stage, awaited_unit, pairs, n)
            if role[k] != COMPUTES:
                if fork[at] >= 0:
                    n = _pair(pairs, n, fork[at], at)
            elif kinds.feeds[k] >= 0 and _is_early(row, at, rank, cells, graph, kinds, found):
                problem[0] = row + 1
                return n
    return n


def _pair(pairs, n, source, target):
    """Write one edge; return the number of edges."""
    pairs.source[n] = source
    pairs.target[n] = target
    return n + 1


def _link_own(row, at, cells, graph, kinds, awaited_stage, awaited_unit, pairs, n):
    """List the edges from what a row waits for on its rank's other streams, and note what others wait for."""
    k, s = cells.kind[row], cells.stage[row]
    for w in range(kinds.wait_ptr[k], kinds.wait_ptr[k + 1]):
        before = kinds.wait[w]
        if kinds.result[before] < 0:
            source = awaited_stage[before * graph.stages + s]
            awaited_stage[before * graph.stages + s] = -1
            if source >= 0:
                n = _pair(pairs, n, source, at)
        elif len(awaited_unit) > 0:
            base = (kinds.result[before] * graph.stages + s) * graph.units
            for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
                if awaited_unit[base + u] >= 0:
                    n = _pair(pairs, n, awaited_unit[base + u], at)
    if kinds.awaited[k] == 1:
        if kinds.result[k] < 0:
            awaited_stage[k * graph.stages + s] = at
        else:
            base = (kinds.result[k] * graph.stages + s) * graph.units
            for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
                awaited_unit[base + u] = at
    return n


def _is_early(row, at, rank, cells, graph, kinds, found):
    """Whether an action needs what its own rank computes later."""
    way, s = kinds.feeds[cells.kind[row]], cells.stage[row]
    ptr = graph.pred_ptr if way == 0 else graph.succ_ptr
    others = graph.pred if way == 0 else graph.succ
    for e in range(ptr[s], ptr[s + 1]):
        base = (way * graph.stages + others[e]) * graph.units
        for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
            held = graph.stage_rank[graph.unit_route[u] * graph.stages + others[e]]
            if held == rank and found.made_at[base + u] > at:
                return True
    return False


def _launch(launch, launched, fork, rows, batch_next, pairs, n):
    """Begin a batch behind the one before and what its rank computed; its join follows its launch."""
    if launched >= 0:
        batch_next[launched + 1 - rows] = launch
    batch_next[launch - rows] = launch + 1
    return _pair(pairs, n, fork, launch) if fork >= 0 else n


def _link_message(row, at, cells, edge, graph, kinds, lanes, rules, found, task, twin, pairs, n):
    """List the edges of one end of a message."""
    k = cells.kind[row]
    sends = kinds.role[k] == SENDS
    rendezvous = rules.receive == RENDEZVOUS and (rules.batched or task.size_bytes[at] > rules.eager_bytes)
    fork = task.fork[at]
    if not sends:
        # The receiver's side: its own task unless a rendezvous runs both.
        if rules.receive == RENDEZVOUS and not rendezvous:
            if fork >= 0:
                n = _pair(pairs, n, fork, at)
            n = _link_consumers(row, at, cells, edge, graph, kinds, found, pairs, n)
        return n
    if rules.mode != ON_COMPUTE and not rules.batched and fork >= 0:
        n = _pair(pairs, n, fork, at)
    backward = 0 if kinds.direction[k] == FORWARD else graph.edges
    index = (backward + edge[row]) * graph.units + cells.unit[row]
    if rules.receive != NO_RECEIVE and not rendezvous:
        return _pair(pairs, n, at, -1 - found.recv_at[index])
    if rules.batched:
        n = _pair(pairs, n, rules.rows + 2 * lanes.group[row], at)
        n = _pair(pairs, n, at, rules.rows + 2 * lanes.group[row] + 1)
    else:
        n = _link_consumers(row, at, cells, edge, graph, kinds, found, pairs, n)
    if rendezvous:
        other = found.recv_at[index]
        twin[other] = at
        if not rules.batched and task.fork[other] >= 0:
            n = _pair(pairs, n, task.fork[other], at)
    return n


def _link_consumers(row, source, cells, edge, graph, kinds, found, pairs, n):
    """List the edges from a message to what computes with it."""
    forward = kinds.direction[cells.kind[row]] == FORWARD
    to = graph.edge_to[edge[row]] if forward else graph.edge_from[edge[row]]
    base = ((0 if forward else graph.stages) + to) * graph.units
    last = -1
    for u in range(cells.unit[row], cells.unit[row] + cells.span[row]):
        consumer = found.made_at[base + u]
        if consumer != last:
            n = _pair(pairs, n, source, consumer)
            last = consumer
    return n


def join_batches(row_ptr, cells, edge, graph, kinds, lanes, rules, place, found, twin, n, pairs):
    """List the edges by which batches receive, behind ``n`` others; return how many there are."""
    for rank in range(graph.ranks):
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            if kinds.role[cells.kind[row]] != RECEIVES:
                continue
            at = twin[place[row]]
            launch = rules.rows + 2 * lanes.group[row]
            n = _pair(pairs, n, launch, at)
            n = _pair(pairs, n, at, launch + 1)
            n = _link_consumers(row, launch + 1, cells, edge, graph, kinds, found, pairs, n)
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
