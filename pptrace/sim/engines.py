"""The two engines: a sweep in topological order, and events where transfers share links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from pptrace.config.choices import Sharing
from pptrace.errors import CostError
from pptrace.network.contract import UNLIMITED
from pptrace.sim.kernels import events
from pptrace.sim.kernels import sweep as sweep_kernels
from pptrace.sim.kernels.events import PERMILLE, SharedLinks
from pptrace.sim.kernels.fairness import Flows, LinkCapacities, Places
from pptrace.sim.kernels.placement import BYTE
from pptrace.sim.kernels.sweep import COMMUNICATION, COMPUTATION, FLOW, Jobs
from pptrace.steps.columns import count_set, empty_columns, ranges, uniform
from pptrace.steps.kernels.heap import OUTSIDE, Heap
from pptrace.steps.kinds import COMPUTE, SENDS, Kind, Role, Stream
from pptrace_kernel import halves, run, run_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.network.contract import Links, Paths
    from pptrace.sim.task_graph import TaskGraph
    from pptrace.steps.columns import Int32s, Int64s

FINER = 64
"""Units of a flow's rate per kB/s: shares are rounded down with an error below 1 ppm from 50 MB/s on."""

_LARGEST = 2**62
_COLLECTIVES = np.array([kind.traits.role is Role.COLLECTIVE for kind in Kind])


def find_jobs(graph: TaskGraph, shared: SharedLinks, contention: Contention) -> Jobs:
    """Return the jobs of a task graph; none if it can run without a clock.

    Raises:
        CostError: a message is too large.
    """
    rows, paths = graph.rows, graph.paths
    kind = np.full(rows, -1, dtype=np.int8)
    of_group = np.repeat(graph.lane_stream >= Stream.TENSOR_PARALLEL, np.diff(graph.lane_ptr))  # in actions
    moves = (graph.path >= 0) & (SENDS.mask(graph.kind) | of_group) & (graph.duration_ns[:rows] > 0)
    contends = np.zeros(rows, dtype=bool)
    contends[moves] = np.diff(shared.ptr)[graph.path[moves]] > 0
    kind[contends & (graph.size_bytes > 0)] = FLOW
    if contention.slows:
        runs = (kind < 0) & (graph.duration_ns[:rows] > 0) & (graph.sender_row < 0)
        kind[runs & COMPUTE.mask(graph.kind) & ~of_group] = COMPUTATION
        kind[runs & (moves | of_group | _COLLECTIVES[graph.kind])] = COMMUNICATION
    task = np.flatnonzero(kind >= 0).astype(np.int32)
    kind, path = kind[task], graph.path[task]
    flow = kind == FLOW
    flow_path = np.where(flow, path, 0)
    rate = paths.rate_kbps[flow_path] if len(paths) else np.zeros(task.size, dtype=np.int64)
    rate = np.where(rate == UNLIMITED, _LARGEST // BYTE, rate)
    largest = int(graph.size_bytes[task[flow]].max(initial=0))
    if largest * BYTE * FINER >= _LARGEST:
        raise CostError(f"a message of {largest} bytes is too large for shared links")
    of_task = np.full(graph.tasks, -1, dtype=np.int32)
    of_task[task] = np.arange(task.size)
    return Jobs(
        of_task=of_task,
        task=task,
        volume=np.where(flow, graph.size_bytes[task] * (BYTE * FINER), graph.duration_ns[task] * PERMILLE),
        full_rate=np.where(flow, rate * FINER, PERMILLE),
        overhead_ns=np.where(flow, paths.overhead_ns[flow_path] if len(paths) else 0, 0).astype(np.int64),
        path=np.where(flow, path, -1).astype(np.int32),
        kind=kind,
        rank=np.repeat(graph.lane_rank, np.diff(graph.lane_ptr))[task],
        peer=np.where(path < 0, -1, graph.target[path // paths.per_pair]) if len(paths) else path,
    )


def shared_links(paths: Paths, links: Links, sharing: Sharing, *, prune: bool = True) -> SharedLinks:
    """Return the links on which messages of several pairs can contend.

    Messages of one pair follow one another, so a link of a single pair is never shared. Max-min sharing
    never limits a flow on a link that the sum of all rates does not fill. Of links that the same messages use,
    the slowest is the bottleneck. The omitted links change no result; ``prune=False`` keeps all links.
    """
    path = np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))
    link, weight = paths.link.astype(np.int64), paths.weight.astype(np.int64)
    kept = np.zeros(len(links), dtype=bool)
    if sharing is not Sharing.NONE:
        kept[link] = True
        if prune:
            kept &= _contended_links(paths, links, path, link, weight, by_rate=sharing is Sharing.MAX_MIN)
            kept &= _slowest_links(links, path, link, weight, kept)
    number = np.flatnonzero(kept).astype(np.int32)
    renumbered = np.cumsum(kept) - 1
    entry = np.flatnonzero(kept[link])
    count = np.bincount(path[entry], minlength=len(paths))
    return SharedLinks(
        number=number,
        rate_kbps=links.rate_kbps[number],
        ptr=np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
        link=renumbered[link[entry]].astype(np.int32),
        weight=paths.weight[entry],
    )


def _contended_links(
    paths: Paths, links: Links, path: Int64s, link: Int64s, weight: Int64s, *, by_rate: bool
) -> NDArray[np.bool_]:
    """Return which links several pairs use and, with ``by_rate``, can fill."""
    key, entry = np.unique(path // paths.per_pair * len(links) + link, return_inverse=True)
    user = key % max(len(links), 1)
    several = np.bincount(user, minlength=len(links)) > 1
    if not by_rate:
        return several
    rate = paths.rate_kbps[path]
    demand = np.zeros(key.size, dtype=np.float64)
    np.maximum.at(demand, entry, np.where(rate == UNLIMITED, np.inf, rate * weight.astype(np.float64)))
    total = np.bincount(user, weights=demand, minlength=len(links))
    return several & (total > links.rate_kbps)


def _slowest_links(
    links: Links, path: Int64s, link: Int64s, weight: Int64s, kept: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return ``kept`` with only the slowest of the links that exactly the same messages use."""
    order = np.lexsort((path, link))
    order = order[kept[link[order]]]
    used = np.stack([path[order], weight[order]], axis=1)
    numbers, first = np.unique(link[order], return_index=True)
    best: dict[bytes, int] = {}
    for number, messages in zip(numbers.tolist(), np.split(used, first)[1:], strict=True):
        key = messages.tobytes()
        if key not in best or links.rate_kbps[number] < links.rate_kbps[best[key]]:
            best[key] = number
    chosen = np.zeros(len(links), dtype=bool)
    chosen[list(best.values())] = True
    return chosen


class Contention(NamedTuple):
    """How links are shared, and how much computation and communication on one rank slow each other.

    828 and 896 reproduce the benchmark of Qi et al., Synergistic Tensor and Pipeline Parallelism (2025),
    section 3.5.

    >>> Contention().links.value
    'max-min'
    """

    links: Sharing = Sharing.MAX_MIN
    """How flows share a link."""
    compute_permille: int = 1000
    """Speed of computation while its rank communicates, in thousandths."""
    communication_permille: int = 1000
    """Speed of communication while one of its ranks computes, in thousandths of its uncontended speed."""

    @property
    def slows(self) -> bool:
        """Whether computation and communication slow each other."""
        return self.compute_permille != 1000 or self.communication_permille != 1000  # noqa: PLR2004 - the whole


_EFFORT = 20
"""Cost of one flow in rows of a sweep, for the choice between interpreted and compiled."""

_CHANGES = 24
"""Initial capacity of the log, in changes of rate per flow. Pages that are not written take no memory."""


def run_jobs(
    graph: sweep_kernels.Graph,
    ranks: int,
    jobs: sweep_kernels.Jobs,
    shared: events.SharedLinks,
    contention: Contention,
) -> tuple[Ran, events.Log]:
    """Run the event kernel; return the times of all tasks, and the flows' rates."""
    tasks, count = graph.duration.size, jobs.task.size
    rules = events.Rules(
        first_come=int(contention.links is Sharing.FIFO),
        slow_compute=contention.compute_permille,
        slow_communication=contention.communication_permille,
    )
    shared = _links_of_jobs(shared, jobs)
    width = max(int(np.diff(shared.ptr).max(initial=0)), 1)
    sides = 2 * count if contention.slows else 1
    links, one = shared.rate_kbps.size, np.zeros(1, dtype=np.int64)
    capacity = _CHANGES * int(np.count_nonzero(jobs.kind == sweep_kernels.FLOW)) + 1
    while True:
        progress = new_tasks(tasks)
        ends, log = _zero_columns(sweep_kernels.Ends, tasks), new_log(capacity)
        run(
            events.run_events,
            (graph, jobs, shared, rules),
            (
                progress,
                ends,
                _zero_columns(Heap, count, place=np.full(count, OUTSIDE), size=one.copy()),
                _zero_columns(events.Running, count, slot=np.full(count, -1), used=np.zeros(3, dtype=np.int64)),
                _zero_columns(Flows, count),
                _zero_columns(Places, count * width, width=width),
                _zero_columns(
                    LinkCapacities, links, head=np.full(links, -1), tail=np.full(links, -1),
                    room=shared.rate_kbps * FINER, opened=one.copy(), index=np.full(links, -1),
                ),
                _zero_columns(
                    events.Ranks, ranks, head=np.full(ranks, -1), after=np.zeros(sides, dtype=np.int64),
                    before=np.zeros(sides, dtype=np.int64),
                ),
                log,
            ),
            work=tasks + _EFFORT * count,
        )  # fmt: skip
        done, changes = log.counts.tolist()
        if changes <= capacity:
            break
        capacity = changes  # rare: the log is too short
    log = log._replace(
        task=log.task[:changes], time=log.time[:changes], rate=log.rate[:changes], limit=log.limit[:changes]
    )
    return Ran(progress.start, ends.end, progress.cause, progress.waiting, done), log


def new_log(capacity: int) -> events.Log:
    """Return a log without changes, for up to ``capacity`` changes of rate."""
    task, time, rate, limit = empty_columns(capacity, np.int32, np.int64, np.int64, np.int32)
    return events.Log(task=task, time=time, rate=rate, limit=limit, counts=np.zeros(2, np.int64))


def _links_of_jobs(shared: events.SharedLinks, jobs: sweep_kernels.Jobs) -> events.SharedLinks:
    """Return the links by job in place of path, so that successive jobs of a rank are adjacent in memory."""
    first, length = shared.ptr[jobs.path], shared.ptr[jobs.path + 1] - shared.ptr[jobs.path]
    length[jobs.path < 0] = 0
    entry = ranges(first, length)
    return shared._replace(
        ptr=np.concatenate([[0], np.cumsum(length)]).astype(np.int32),
        link=shared.link[entry],
        weight=shared.weight[entry],
    )


def _zero_columns(record: Any, rows: int, **values: Any) -> Any:
    """Return a record of the event kernel with columns of zeros for all fields that are not given.

    Zeros take no memory until they are written.
    """
    columns = {name: np.zeros(rows or 1, dtype=np.int64) for name in record._fields}
    return record(**(columns | values))


class Ran(Struct, frozen=True):
    """Times and causes of tasks, and how many ran."""

    start_ns: Int64s
    end_ns: Int64s
    cause: Int32s
    """The task whose end (or start) released it, -1 for none."""
    waiting: Int32s
    """Predecessors that did not end: above zero for tasks in a deadlock."""
    done: int


def run_graph(graph: TaskGraph) -> Ran:
    """Run the sweep."""
    ranks = halves(graph.placement.ranks, work=graph.tasks)
    if len(ranks) == 1 and graph.ordered is not None:
        start, cause = empty_columns(graph.tasks, np.int64, np.int32)
        run(sweep_kernels.sweep_in_order, (graph.ordered,), (start, cause), work=graph.tasks)
        return Ran(start, start + graph.duration_ns, cause, cause[:0], graph.ordered.task.size)
    tasks = new_tasks(graph.tasks)
    inputs = graph_record(graph), int(count_set(graph.next_peer) > 0)
    if len(ranks) == 1:
        done = run(sweep_kernels.sweep, (*inputs, uniform(0, graph.tasks)), (tasks,), work=graph.tasks)
    else:
        done = _sweep_parts(graph, inputs, tasks, ranks[1][0])
    return Ran(tasks.start, tasks.start + graph.duration_ns, tasks.cause, tasks.waiting, done)


def order_tasks(graph: TaskGraph, costs: NDArray[np.intp]) -> sweep_kernels.OrderedTasks | None:
    """Return the tasks of a graph in a topological order; None if tasks deadlock.

    ``costs`` has for each row of the graph the number of its costs. ``wait_ns``, all 0 here, has for each of these
    the time until the end and a 0, and then the time until the arrival and a 0.
    """
    count, rendezvous = graph.tasks, int(count_set(graph.next_peer) > 0)
    waiting, (order,) = np.zeros(count, dtype=np.int32), empty_columns(count, np.int32)
    listed = run(sweep_kernels.order_tasks, (graph_record(graph), rendezvous), (waiting, order), work=count)
    if listed < count - graph.receiver_rows().size:
        return None
    no_time = int(costs.max(initial=-1)) + 1
    end, position = np.full(count, no_time), np.full(count, -1)
    end[: graph.rows] = costs
    position[order[:listed]] = np.arange(listed)
    task = np.arange(count)
    by_edge = np.repeat(task, np.diff(graph.edge_ptr))
    source = np.concatenate([task, task, by_edge])
    target = np.concatenate([graph.next, graph.next_peer, np.where(graph.edge < 0, ~graph.edge, graph.edge)])
    wait = np.concatenate([end, end, np.where(graph.edge < 0, no_time, no_time + 1 + end[by_edge])])
    pairs = np.flatnonzero((target >= 0) & (position[source] >= 0) & (position[target] >= 0))
    pairs = pairs[np.lexsort((source[pairs], position[target[pairs]]))]
    ptr = np.searchsorted(position[target[pairs]], np.arange(listed + 1))
    return sweep_kernels.OrderedTasks(
        task=order[:listed], ptr=ptr.astype(np.int32), predecessor=source[pairs].astype(np.int32),
        wait=wait[pairs].astype(np.int32), wait_ns=np.zeros(2 * (no_time + 1), dtype=np.int64),
    )  # fmt: skip


def _sweep_parts(
    graph: TaskGraph, inputs: tuple[sweep_kernels.Graph, int], tasks: sweep_kernels.Tasks, rank: int
) -> int:
    """Run the sweep in two threads, of which the second has the ranks from ``rank`` on; return the tasks that ran.

    Tasks without rows are in the order of ranks, but any division of tasks gives the same result.
    """
    rows, count, none = graph.rows, graph.tasks, uniform(0, graph.tasks)
    row, other = int(graph.lane_ptr[np.searchsorted(graph.lane_rank, rank)]), (rows + count) // 2
    lower = row + other - rows
    parts = (
        sweep_kernels.ThreadTasks(0, 0, row, rows, other, 0, lower),
        sweep_kernels.ThreadTasks(1, row, rows, other, count, lower, 0),
    )
    progress = np.zeros(2 * sweep_kernels.SLOTS, dtype=np.int64)
    counted, ended = empty_columns(count, np.int32, np.int32)
    handover = sweep_kernels.ThreadHandover(np.zeros(count, dtype=np.int8), counted, ended, progress)
    heads, done = [(part, _MAX_POLLS_PER_TASK * count) for part in parts], 0
    if not all(run_parts(sweep_kernels.sweep_part, heads, inputs, (tasks, handover), work=count)):
        done = run(sweep_kernels.sweep_remaining, (*parts, *inputs, none), (tasks, handover), work=count)
    return done + int(progress[sweep_kernels.DONE :: sweep_kernels.SLOTS].sum())


_MAX_POLLS_PER_TASK = 8
"""How often per task a thread looks for tasks of the other one before it lets one thread run all tasks.

This takes a third of the sweep, so threads wait that long only on a busy machine, where one has no processor.
"""


def run_replicas(
    graph: TaskGraph, rows: NDArray[np.intp], times: tuple[Int64s, Int64s], columns: Int32s, stage: Int32s
) -> Int64s | None:
    """Return when the gradients of each stage are complete in replicas with common tasks; None in a deadlock.

    Args:
        graph: the tasks, without times.
        rows: the row of the costs of each row of the graph.
        times: duration and lag by row and column of costs; the last row is that of tasks without a row.
        columns: the column of each microbatch, and of tasks without a microbatch, shape (replicas,
            microbatches + 1).
        stage: the stage whose gradients a row of the graph completes; -1 for none.

    Returns:
        Shape (replicas, stages).
    """
    replicas, microbatches = columns.shape
    width, count, stages = sweep_kernels.WIDTH, graph.tasks, graph.placement.stages
    batches = -(-replicas // width)
    padded = columns[np.minimum(np.arange(batches * width), replicas - 1)]
    (row, microbatch, of_stage), rest = empty_columns(count, *[np.int32] * 3), slice(graph.rows, None)
    row[: graph.rows], row[rest] = rows, len(times[0]) - 1
    microbatch[: graph.rows], microbatch[rest] = graph.microbatch, -1
    microbatch[microbatch < 0] = microbatches - 1
    of_stage[: graph.rows], of_stage[rest] = stage, -1
    record, rendezvous = graph_record(graph), int(count_set(graph.next_peer) > 0)
    waits = np.zeros(count, dtype=np.int32)
    run(sweep_kernels.count_waits, (record,), (waits, rendezvous), work=count)
    work = count * batches * width
    parts = [(*part, number) for number, part in enumerate(halves(batches, work=work))]
    waiting, ready = empty_columns(len(parts) * count, np.int32, np.int32)
    (start,) = empty_columns(len(parts) * count * width, np.int64)
    gradients = np.zeros(batches * stages * width, dtype=np.int64)
    left = run_parts(
        sweep_kernels.sweep_replicas, parts,
        (
            record, rendezvous,
            sweep_kernels.ReplicaTasks(
                row=row, microbatch=microbatch, stage=of_stage, duration=times[0].ravel(), lag=times[1].ravel(),
                columns=times[0].shape[1],
                column=np.ascontiguousarray(padded.reshape(batches, width, -1).transpose(0, 2, 1)).ravel(),
                microbatches=microbatches, stages=stages, waits=waits,
            ),
        ),
        (
            sweep_kernels.Tasks(waiting=waiting, start=start, cause=waits[:0], ready=ready),
            np.zeros(len(parts) * 2 * width * width, dtype=np.int64), gradients,
        ),
        work=work,
    )  # fmt: skip
    if sum(left) > batches * graph.receiver_rows().size:
        return None
    by_replica: Int64s = (
        gradients.reshape(batches, stages, width).transpose(0, 2, 1).reshape(-1, stages)[:replicas]
    )
    return by_replica


def graph_record(graph: TaskGraph) -> sweep_kernels.Graph:
    """Return the columns of a task graph as a record of kernels."""
    return sweep_kernels.Graph(
        duration=graph.duration_ns, lag=graph.lag_ns, following=graph.next, following_peer=graph.next_peer,
        edge_ptr=graph.edge_ptr, edge=graph.edge, sender_row=graph.sender_row, rows=graph.rows,
    )  # fmt: skip


def new_tasks(count: int) -> sweep_kernels.Tasks:
    """Return columns of tasks, which the engines initialise."""
    waiting, ready = empty_columns(count, np.int32, np.int32)
    start, cause = empty_columns(count, np.int64, np.int32)
    return sweep_kernels.Tasks(waiting=waiting, start=start, cause=cause, ready=ready)


def steady_rates(paths: Paths, links: Links) -> Int64s:
    """Return the max-min fair rate in kB/s of one message on the first path of each pair, all at the same time.

    A pair that nothing limits has rate 0.
    """
    first = np.arange(0, len(paths), paths.per_pair, dtype=np.int32)
    alone = paths.rate_kbps[first]
    shared = shared_links(paths, links, Sharing.MAX_MIN, prune=False)
    moving = np.flatnonzero((alone != UNLIMITED) & (np.diff(shared.ptr)[first] > 0))
    count = moving.size
    rates = alone.copy()
    if not count:
        return rates
    zero, task = np.zeros(count, dtype=np.int64), np.arange(count, dtype=np.int32)
    none = np.full(count, -1, dtype=np.int32)
    graph = sweep_kernels.Graph(
        duration=zero, lag=zero, following=none, following_peer=none,
        edge_ptr=np.zeros(count + 1, dtype=np.int32), edge=none[:0], sender_row=none, rows=count,
    )  # fmt: skip
    jobs = sweep_kernels.Jobs(
        of_task=task, task=task, volume=zero + 2**60, full_rate=alone[moving] * FINER, overhead_ns=zero,
        path=first[moving], kind=zero.astype(np.int8), rank=zero.astype(np.int32), peer=zero.astype(np.int32),
    )  # fmt: skip
    _, changes = run_jobs(graph, 1, jobs, shared, Contention())
    initial = changes.time == 0
    rates[moving[changes.task[initial]]] = changes.rate[initial] // FINER
    return rates
