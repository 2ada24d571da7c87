"""Kernels that place rows on streams.

Columns are lists or arrays of integers, hence without annotations. ``cells`` are
:class:`~pptrace.steps.actions.CellColumns`, ``graph`` is a :class:`~pptrace.steps.schedule.StageGraph`,
``kinds`` the :class:`~pptrace.steps.kinds.KindTable`, ``parts`` are
:class:`~pptrace.sim.streams.PartColumns`; the other records are in :mod:`pptrace.sim.streams`.
"""

from __future__ import annotations

from pptrace.steps.kinds import Kind, Pass, Role, Stream
from pptrace_kernel import fetch

NO_FORK = -2
MIX_FIRST, MIX_SECOND, MODULUS = 48271, 69621, 2147483647
"""Constants of a Lehmer generator that spreads messages over equal paths, the same way on both sides."""


def _other_stage(k, edge, graph, kinds):
    """Return the stage at a message's other end."""
    down = (kinds.role[k] == SENDS) == (kinds.direction[k] == FORWARD)
    return graph.edge_to[edge] if down else graph.edge_from[edge]


def key_lanes(row_ptr, cells, edge, graph, kinds, parts, mode, lanes, count, sends_to):
    """Count each lane's rows, and give each message its peer and its group of neighbours; return the groups.

    Keys order lanes by (rank, stream, peer): per rank one compute lane, one communication lane, one per
    peer, one per peer and direction each way, and one for each further stream.
    """
    ranks, stages = graph.ranks, graph.stages
    microbatch_route = graph.microbatch_route
    kind, microbatch, role = cells.kind, cells.microbatch, kinds.role
    peer, group, width = lanes.peer, lanes.group, lanes.width
    in_groups = len(group) > 0
    groups = 0
    for rank in range(ranks):
        open_group = False
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            peer[row] = -1
            if in_groups:
                group[row] = -1
            if role[k] == SENDS or role[k] == RECEIVES:
                route = microbatch_route[microbatch[row]]
                of_pass = graph.stage_rank if kinds.direction[k] == FORWARD else graph.backward_rank
                other = of_pass[route * stages + _other_stage(k, edge[row], graph, kinds)]
                peer[row] = other
                if role[k] == SENDS:
                    sends_to[rank * ranks + other] = 1
                if not open_group:
                    groups += 1
                    open_group = True
                if in_groups:
                    group[row] = groups - 1
            else:
                open_group = False
            count[rank * width + _lane(row, k, peer[row], ranks, kinds, parts, mode, lanes)] += 1
    return groups


def _lane(row, k, other, ranks, kinds, parts, mode, lanes):
    """Return the lane of a row, counted from its rank's first."""
    if other < 0:
        in_parts = len(parts.stream) > 0 and parts.stream[row] >= 0
        return lanes.of_stream[parts.stream[row] if in_parts else kinds.stream[k]]
    sends = kinds.role[k] == SENDS
    if mode == PER_DIRECTION:
        return 2 + (ranks if sends else 2 * ranks) + other
    if mode == PER_PAIR:
        return 2 + other
    return 1 if mode == PER_RANK else 0


def place_rows(first, end, rows, costs, routes, cursor, place, ends, out, task):
    """Move each row of ranks ``first:end`` to its lane with its bytes, duration, lag and fork.

    Record its index in ``place``. ``task``'s column of collectives is initialised with 0.
    """
    cells, graph, kinds = rows.cells, rows.graph, rows.kinds
    parts, lanes, rules = rows.parts, rows.lanes, rows.rules
    row_ptr = rows.row_ptr
    kind, stage, microbatch, span, pair = cells.kind, cells.stage, cells.microbatch, cells.span, cells.pair
    out_kind, out_stage, out_microbatch = out.kind, out.stage, out.microbatch
    out_span, out_pair = out.span, out.pair
    role, in_parts = kinds.role, len(parts.stream) > 0
    for rank in range(first, end):
        compute = -1
        last = -1  # the last row on the compute stream, be it a message
        for row in range(row_ptr[rank], row_ptr[rank + 1]):
            k = kind[row]
            key = rank * lanes.width + _lane(row, k, lanes.peer[row], graph.ranks, kinds, parts, rules.mode, lanes)
            index = cursor[key]
            cursor[key] = index + 1
            place[row] = index
            if index % LINE == 0:
                _fetch_ahead(index, out, task)
            out_kind[index] = k
            out_stage[index] = stage[row]
            out_microbatch[index] = microbatch[row]
            out_span[index] = span[row]
            out_pair[index] = pair[row]
            task.size_bytes[index] = task.lag_ns[index] = 0
            task.fork[index] = compute
            if in_parts and parts.release[row] != -1:
                task.fork[index] = -1 if parts.release[row] == NO_FORK else place[parts.release[row]]
            if role[k] == SENDS or role[k] == RECEIVES:
                _place_message(row, rank, index, rows, costs, routes, ends, task)
                if rules.mode == ON_COMPUTE:
                    last = index
            elif in_parts and parts.stream[row] >= 0:
                _place_segment(row, index, parts, routes, task)
                if parts.number[row] == 0:
                    _record_results(row, index, cells, graph, kinds, ends)
                if parts.stream[row] == COMPUTE_STREAM:
                    compute = last = index
                    task.fork[index] = -1
                elif parts.release[row] == -1:
                    task.fork[index] = last
            else:
                _place_action(row, index, cells, graph, costs, task)
                if role[k] == COMPUTES or role[k] == WAITS:
                    compute = last = index
                    task.fork[index] = -1
                    _record_results(row, index, cells, graph, kinds, ends)


def _fetch_ahead(index, out, task):
    """Prefetch the columns of a lane two cache lines ahead."""
    fetch(
        index + AHEAD, task.size_bytes, task.duration_ns, task.lag_ns, task.fork, task.path,
        out.kind, out.stage, out.microbatch, out.span, out.pair,
    )  # fmt: skip


def _place_message(row, rank, index, rows, costs, routes, ends, task):
    """Give one end of a message its path, bytes, duration and lag."""
    cells, graph, kinds, rules = rows.cells, rows.graph, rows.kinds, rows.rules
    k, u, n, e = cells.kind[row], cells.microbatch[row], cells.span[row], rows.edge[row]
    sends = kinds.role[k] == SENDS
    other = rows.lanes.peer[row]
    path = routes.pair_of[rank * graph.ranks + other] if sends else routes.pair_of[other * graph.ranks + rank]
    directed_edge = (0 if kinds.direction[k] == FORWARD else graph.edges) + e
    message = directed_edge * graph.microbatches + u
    if routes.per_pair > 1:
        path += (message + 1) * MIX_FIRST % MODULUS * MIX_SECOND % MODULUS % routes.per_pair
    carried = costs.boundary_bytes[directed_edge] * n
    if costs.classes > 1:
        carried = 0
        for i in range(u, u + n):
            carried += costs.boundary_bytes[costs.class_of[i] * 2 * graph.edges + directed_edge]
    transfer_ns = routes.overhead_ns[path]
    if routes.rate_kbps[path] > 0:
        transfer_ns += (carried * BYTE + routes.rate_kbps[path] - 1) // routes.rate_kbps[path]
    is_separate = rules.receive == OWN_TASK or (rules.receive == RENDEZVOUS and carried <= rules.eager_bytes)
    task.size_bytes[index] = carried
    task.path[index] = path
    task.duration_ns[index] = transfer_ns + routes.latency_ns[path] if is_separate and not sends else transfer_ns
    if not is_separate:
        task.lag_ns[index] = routes.latency_ns[path]
    if sends and len(ends.send_at) > 0:
        ends.send_at[message] = index
    elif not sends:
        for i in range(n):
            ends.recv_at[message + i] = index


def match_sides(first, end, ends, sender_row):
    """Record the sender's side of the receiver's side of messages ``first:end``."""
    for message in range(first, end):
        if ends.recv_at[message] >= 0:
            sender_row[ends.recv_at[message]] = ends.send_at[message]


def _place_action(row, index, cells, graph, costs, task):
    """Give a whole action its duration."""
    cost = cells.kind[row] * graph.stages + cells.stage[row]
    n = cells.span[row]
    task.path[index] = -1
    if costs.classes == 1 or cells.microbatch[row] < 0:
        task.duration_ns[index] = costs.duration_ns[cost] * n
        if costs.collective_ns[cost] > 0:
            task.collective_ns[index] = costs.collective_ns[cost] * n
        return
    task.duration_ns[index] = 0
    for u in range(cells.microbatch[row], cells.microbatch[row] + n):
        here = costs.class_of[u] * costs.width + cost
        task.duration_ns[index] += costs.duration_ns[here]
        task.collective_ns[index] += costs.collective_ns[here]


def _place_segment(row, index, parts, routes, task):
    """Give a segment its duration, and its path where its bytes go over a link."""
    task.size_bytes[index] = parts.size_bytes[row]
    task.duration_ns[index] = parts.duration_ns[row]
    if parts.collective_ns[row] > 0:
        task.collective_ns[index] = parts.collective_ns[row]
    task.path[index] = -1
    if parts.path[row] >= 0:
        path = routes.first_link + parts.path[row] * routes.per_pair
        task.path[index] = path
        task.lag_ns[index] = routes.latency_ns[path]
        task.duration_ns[index] -= routes.latency_ns[path]


def _record_results(row, index, cells, graph, kinds, ends):
    """Record the row of each result that other stages need."""
    directed_edge = kinds.feeds[cells.kind[row]]
    if directed_edge >= 0:
        base = (directed_edge * graph.stages + cells.stage[row]) * graph.microbatches
        for u in range(cells.microbatch[row], cells.microbatch[row] + cells.span[row]):
            ends.made_at[base + u] = index


LINE = 8
"""Values of the widest columns per cache line."""

AHEAD = 2 * LINE
"""Prefetch distance in rows."""

BYTE = 1_000_000
"""Volume units per byte: a rate in kB/s is then the same number of units per ns."""

# Streams of a message's two sides: the compute stream, one stream per peer and direction, one communication stream
# per rank, or one per peer.
ON_COMPUTE, PER_DIRECTION, PER_RANK, PER_PAIR = 0, 1, 2, 3

# The receiver's side: no row, a separate task, or the sender's task (a rendezvous).
NO_RECEIVE, OWN_TASK, RENDEZVOUS = 0, 1, 2

COMPUTES, SENDS, RECEIVES, WAITS = int(Role.COMPUTE), int(Role.SEND), int(Role.RECEIVE), int(Role.WAIT)
FORWARD = int(Pass.FORWARD)
COMPUTE_STREAM = int(Stream.COMPUTE)
GATHERS, SUBGROUP_GATHERS, FREES = int(Kind.UNSHARD), int(Kind.UNSHARD_SUBGROUP), int(Kind.RESHARD)
