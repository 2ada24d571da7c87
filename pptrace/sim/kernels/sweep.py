"""Kernels of the sweep over tasks in topological order; columns are lists or arrays of integers."""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.sim.kernels.placement import AHEAD, LINE
from pptrace.steps.kernels.heap import Heap, push
from pptrace_kernel import fetch, observe, publish


class Graph(NamedTuple):
    """Tasks and their dependencies; see :class:`pptrace.sim.task_graph.TaskGraph`."""

    duration: Any
    lag: Any
    following: Any
    following_peer: Any
    edge_ptr: Any
    edge: Any
    """A task that waits for the end (plus lag); ``-1 - task`` for one that waits for the start."""
    sender_row: Any
    rows: int


class Tasks(NamedTuple):
    """Progress of each task."""

    waiting: Any
    """Predecessors that did not end: above zero after the run for tasks in a deadlock."""
    start: Any
    cause: Any
    """The predecessor that released it, the lowest on a tie; -1 for none."""
    ready: Any
    """A stack of tasks whose ends are known and whose successors are not released."""


def reach(tasks: Tasks, task: int, time: int, by: int) -> bool:
    """Record that a predecessor releases a task at a time; return whether it is the last predecessor."""
    waiting = tasks.waiting
    settle_start(tasks.start, tasks.cause, task, time, by)
    left = waiting[task] - 1
    waiting[task] = left
    return left == 0


def settle_start(start: Any, cause: Any, task: int, time: int, by: int) -> None:
    """Let a task start at the latest time of its predecessors; its cause is the lowest of the latest ones."""
    if time > start[task] or cause[task] < 0:
        start[task] = time
        cause[task] = by
    elif time == start[task] and by < cause[task]:
        cause[task] = by


def may_begin(graph: Graph, tasks: Tasks, task: int) -> bool:
    """Return whether a row is a task without predecessors left."""
    return tasks.waiting[task] == 0 and (task >= graph.rows or graph.sender_row[task] < 0)


def sweep(graph: Graph, rendezvous: int, crosses: Any, tasks: Tasks) -> int:
    """Run every task when its last predecessor releases it; return the number of tasks that ran.

    Nothing is shared, so no clock is needed, and ready tasks run in any order with the same result. No task
    ``crosses``.
    """
    count = len(graph.duration)
    initialise(tasks, 0, count)
    count_waits(graph, tasks.waiting, rendezvous)
    top = _push_ready(graph, tasks, 0, count, 0)
    _, done = _run_ready(graph, rendezvous, crosses, tasks, 0, top)
    return done


def order_tasks(graph: Graph, rendezvous: int, waiting: Any, order: Any) -> int:
    """List tasks after all their predecessors; return the number of listed tasks. ``waiting`` is zero."""
    count_waits(graph, waiting, rendezvous)
    listed = 0
    for task in range(len(waiting)):
        if waiting[task] == 0 and (task >= graph.rows or graph.sender_row[task] < 0):
            order[listed] = task
            listed += 1
    done = 0
    while done < listed:
        task = order[done]
        done += 1
        for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1] + 2):
            other = _successor(graph, rendezvous, task, i)
            if other >= 0:
                waiting[other] -= 1
                if waiting[other] == 0:
                    order[listed] = other
                    listed += 1
    return listed


class OrderedTasks(NamedTuple):
    """Tasks in a topological order, and their predecessors."""

    task: Any
    """Each after its predecessors."""
    ptr: Any
    """Shape (tasks + 1,): predecessors of each of these tasks."""
    predecessor: Any
    """Ascending for each task."""
    wait: Any
    """Per predecessor the index in ``wait_ns`` of the time from its start until it releases the task."""
    wait_ns: Any


def sweep_in_order(ordered: OrderedTasks, start: Any, cause: Any) -> None:
    """Run tasks in a topological order with the result of :func:`sweep`.

    Compiled code has no branch on times, whose order the processor cannot predict.
    """
    ptr, predecessor, wait, wait_ns = ordered.ptr, ordered.predecessor, ordered.wait, ordered.wait_ns
    for task in range(len(start)):
        start[task] = 0
        cause[task] = -1
    for i in range(len(ordered.task)):
        latest = by = -1
        for j in range(ptr[i], ptr[i + 1]):
            time = start[predecessor[j]] + wait_ns[wait[j]]
            by = predecessor[j] if time > latest else by
            latest = max(latest, time)
        start[ordered.task[i]] = max(latest, 0)
        cause[ordered.task[i]] = by


class ThreadTasks(NamedTuple):
    """The tasks of one of two threads: two ranges, and where its tasks begin in columns that list tasks."""

    number: int
    """0 or 1."""
    first: int
    end: int
    first_other: int
    end_other: int
    offset: int
    offset_of_other: int
    """Where the tasks of the other part begin."""


class ThreadHandover(NamedTuple):
    """Tasks with successors in the other part, and the progress of both parts."""

    crosses: Any
    """Whether each task is one of them."""
    counted: Any
    """Those of each part."""
    ended: Any
    """Those of each part that have ended, in the order of their ends."""
    progress: Any
    """Per part :data:`SLOTS` values, named by the constants below."""


SLOTS = 16
"""Values of two cache lines, so that the parts write to different lines."""

COUNTED, ENDED, IDLE, DONE = range(4)
"""1 + the number of ``counted`` tasks; the number of ``ended`` tasks; 1 + how many of the other part's it had
taken when it last had no ready task; how many tasks it ran."""


def sweep_part(
    part: ThreadTasks,
    max_polls: int,
    graph: Graph,
    rendezvous: int,
    tasks: Tasks,
    handover: ThreadHandover,
) -> int:
    """Run the tasks of a part as :func:`sweep`, while another thread runs those of the other part.

    Return whether both are done: neither has a ready task, and each took all ``ended`` tasks of the other. A part
    without a ready task returns 0 after it has looked ``max_polls`` times for tasks of the other.
    """
    progress, own_slots, other_slots = handover.progress, part.number * SLOTS, (1 - part.number) * SLOTS
    initialise(tasks, part.first, part.end)
    initialise(tasks, part.first_other, part.end_other)
    count = _count_range(part.first, part.end, part, graph, rendezvous, tasks, handover, 0)
    count = _count_range(part.first_other, part.end_other, part, graph, rendezvous, tasks, handover, count)
    publish(progress, own_slots + COUNTED, 1 + count)
    polls = 0
    while polls < max_polls:
        polls += 1
        if observe(progress, other_slots + COUNTED) == 0:
            continue
        idle, ended = observe(progress, other_slots + IDLE), observe(progress, other_slots + ENDED)
        if progress[own_slots + IDLE] == 1 + ended:
            if idle == 1 + progress[own_slots + ENDED]:
                return 1
            continue
        top = _resume(part, graph, rendezvous, tasks, handover, ended, part.offset)
        _run_part(part, graph, rendezvous, tasks, handover, top)
        publish(progress, own_slots + IDLE, 1 + ended)
        polls = 0
    return 0


def sweep_remaining(
    first: ThreadTasks, second: ThreadTasks, graph: Graph, rendezvous: int, crosses: Any, tasks: Tasks,
    handover: ThreadHandover,
) -> int:  # fmt: skip
    """Run the tasks that two parts left, as :func:`sweep`."""
    progress = handover.progress
    top = _resume(first, graph, rendezvous, tasks, handover, progress[SLOTS + ENDED], 0)
    top = _resume(second, graph, rendezvous, tasks, handover, progress[ENDED], top)
    _, done = _run_ready(graph, rendezvous, crosses, tasks, 0, top)
    return done


WIDTH = 8
"""Replicas of one table that run together: their times of a task fill a cache line."""


class ReplicaTasks(NamedTuple):
    """Costs of tasks in each replica, and the tasks that complete gradients."""

    row: Any
    """Per task the row of its costs."""
    microbatch: Any
    """Per task its microbatch; the number of microbatches if it has none."""
    stage: Any
    """Per task the stage whose gradients it completes, -1 for none."""
    duration: Any
    """By row and column of costs."""
    lag: Any
    columns: int
    """Number of columns."""
    column: Any
    """The column by batch of replicas, microbatch, and replica in the batch."""
    microbatches: int
    """Number of microbatches, and one for tasks without a microbatch."""
    stages: int
    waits: Any
    """Predecessors of each task."""


def sweep_replicas(
    first: int,
    end: int,
    part: int,
    graph: Graph,
    rendezvous: int,
    replicas: ReplicaTasks,
    tasks: Tasks,
    times: Any,
    gradients: Any,
) -> int:
    """Run the tasks of batches ``first:end`` of replicas, and record when the gradients of stages are complete.

    Columns of ``tasks`` have a part for each thread. Return the number of tasks that did not run.
    """
    count = len(graph.following)
    base, ended, arrived = part * count, 2 * part * LINE * WIDTH, (2 * part + 1) * LINE * WIDTH
    waiting, start, ready = tasks.waiting, tasks.start, tasks.ready
    left = 0
    for batch in range(first, end):
        top = base
        for task in range(count):
            waiting[base + task] = replicas.waits[task]
            if replicas.waits[task] == 0 and (task >= graph.rows or graph.sender_row[task] < 0):
                ready[top] = task
                top += 1
        for i in range(base * WIDTH, (base + count) * WIDTH):
            start[i] = 0
        left += count
        while top > base:
            top -= 1
            left -= 1
            task = ready[top]
            first_start = (base + task) * WIDTH
            costs = replicas.row[task] * replicas.columns
            place = (batch * replicas.microbatches + replicas.microbatch[task]) * WIDTH
            for k in range(WIDTH):
                cost = costs + replicas.column[place + k]
                times[ended + k] = start[first_start + k] + replicas.duration[cost]
                times[arrived + k] = times[ended + k] + replicas.lag[cost]
            if replicas.stage[task] >= 0:
                place = (batch * replicas.stages + replicas.stage[task]) * WIDTH
                for k in range(WIDTH):
                    gradients[place + k] = max(gradients[place + k], times[ended + k])
            for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1]):
                other = graph.edge[i]
                if other >= 0:
                    top = _reach_together(waiting, start, ready, base, other, times, arrived, top)
                else:
                    top = _reach_together(waiting, start, ready, base, -1 - other, start, first_start, top)
            if rendezvous and graph.following_peer[task] >= 0:
                other = graph.following_peer[task]
                top = _reach_together(waiting, start, ready, base, other, times, ended, top)
            if graph.following[task] >= 0:
                top = _reach_together(waiting, start, ready, base, graph.following[task], times, ended, top)
    return left


def _reach_together(
    waiting: Any, start: Any, ready: Any, base: int, task: int, times: Any, first: int, top: int
) -> int:
    """Record that a predecessor releases a task in each replica; return the size of the stack.

    ``times`` has the time of each replica from ``first`` on.
    """
    first_start = (base + task) * WIDTH
    for k in range(WIDTH):
        start[first_start + k] = max(start[first_start + k], times[first + k])
    waiting[base + task] -= 1
    if waiting[base + task] == 0:
        ready[top] = task
        top += 1
    return top


def initialise(tasks: Tasks, first: int, end: int) -> None:
    """Initialise the progress of tasks ``first:end``."""
    for task in range(first, end):
        tasks.waiting[task] = 0
    for task in range(first, end):
        tasks.start[task] = 0
    for task in range(first, end):
        tasks.cause[task] = -1


def _resume(
    part: ThreadTasks, graph: Graph, rendezvous: int, tasks: Tasks, handover: ThreadHandover, ended: int, top: int
) -> int:
    """Push the tasks that the ``ended`` tasks of the other part release; return the size of the stack."""
    progress, own_slots, other_slots = handover.progress, part.number * SLOTS, (1 - part.number) * SLOTS
    taken = progress[own_slots + IDLE] - 1
    if taken < 0:
        for i in range(progress[other_slots + COUNTED] - 1):
            _count(part, graph, rendezvous, tasks, handover.counted[part.offset_of_other + i])
        top = _push_ready(graph, tasks, part.first_other, part.end_other, top)
        top = _push_ready(graph, tasks, part.first, part.end, top)
        taken = 0
    for i in range(taken, ended):
        top = _release(part, graph, rendezvous, tasks, handover.ended[part.offset_of_other + i], top)
    return top


def _run_part(
    part: ThreadTasks, graph: Graph, rendezvous: int, tasks: Tasks, handover: ThreadHandover, top: int
) -> None:
    """Run the ready tasks up to ``top`` on the stack, and all tasks of the part that they release."""
    progress, own_slots = handover.progress, part.number * SLOTS
    top, done = _run_ready(graph, rendezvous, handover.crosses, tasks, part.offset, top)
    while top > part.offset:
        top -= 1
        task, ended = tasks.ready[top], progress[own_slots + ENDED]
        top = _release(part, graph, rendezvous, tasks, task, top)
        handover.ended[part.offset + ended] = task
        publish(progress, own_slots + ENDED, ended + 1)
        top, more = _run_ready(graph, rendezvous, handover.crosses, tasks, part.offset, top)
        done += 1 + more
    progress[own_slots + DONE] += done


def _run_ready(
    graph: Graph, rendezvous: int, crosses: Any, tasks: Tasks, bottom: int, top: int
) -> tuple[int, int]:
    """Run ready tasks until the stack is empty, or its top is a task that ``crosses``.

    Return the size of the stack, and how many tasks ran.
    """
    duration, lag, following, following_peer = graph.duration, graph.lag, graph.following, graph.following_peer
    edge_ptr, edge = graph.edge_ptr, graph.edge
    start, ready = tasks.start, tasks.ready
    done = 0
    while top > bottom:
        task = ready[top - 1]
        if crosses[task]:
            break
        top -= 1
        done += 1
        if task % LINE == 0:
            _fetch_ahead(graph, tasks, task)
        begun = start[task]
        ended = begun + duration[task]
        arrived = ended + lag[task]
        for i in range(edge_ptr[task], edge_ptr[task + 1]):
            other = edge[i]
            when = arrived
            if other < 0:
                other = -1 - other
                when = begun
            if reach(tasks, other, when, task):
                ready[top] = other
                top += 1
        other = following_peer[task] if rendezvous else -1
        if other >= 0 and reach(tasks, other, ended, task):
            ready[top] = other
            top += 1
        other = following[task]
        if other >= 0 and reach(tasks, other, ended, task):
            ready[top] = other
            top += 1
    return top, done


def _release(part: ThreadTasks, graph: Graph, rendezvous: int, tasks: Tasks, task: int, top: int) -> int:
    """Release the successors of a task that a part has; return the size of the stack."""
    begun = tasks.start[task]
    ended = begun + graph.duration[task]
    last = graph.edge_ptr[task + 1]
    for i in range(graph.edge_ptr[task], last + 2):
        other, when = _successor(graph, rendezvous, task, i), ended
        if i < last:
            when = ended + graph.lag[task] if graph.edge[i] >= 0 else begun
        if other >= 0 and _has(part, other) and reach(tasks, other, when, task):
            tasks.ready[top] = other
            top += 1
    return top


def _successor(graph: Graph, rendezvous: int, task: int, i: int) -> int:
    """Return the target of a task's edge ``i``; after the last one, its successors on streams, -1 for none."""
    if i < graph.edge_ptr[task + 1]:
        return graph.edge[i] if graph.edge[i] >= 0 else -1 - graph.edge[i]
    if i == graph.edge_ptr[task + 1]:
        return graph.following[task]
    return graph.following_peer[task] if rendezvous else -1


def _has(part: ThreadTasks, task: int) -> bool:
    return part.first <= task < part.end or part.first_other <= task < part.end_other


def _fetch_ahead(graph: Graph, tasks: Tasks, task: int) -> None:
    """Prefetch the columns of a task's lane two cache lines ahead."""
    fetch(
        task + AHEAD, tasks.start, tasks.waiting, tasks.cause,
        graph.duration, graph.lag, graph.following, graph.edge_ptr,
    )  # fmt: skip
    fetch(graph.edge_ptr[task] + 2 * AHEAD, graph.edge)


def _count_range(
    first: int,
    end: int,
    part: ThreadTasks,
    graph: Graph,
    rendezvous: int,
    tasks: Tasks,
    handover: ThreadHandover,
    crossing: int,
) -> int:
    """Count tasks of a part as predecessors of its tasks; return how many have others, ``crossing`` included."""
    for task in range(first, end):
        if not _count(part, graph, rendezvous, tasks, task):
            handover.crosses[task] = 1
            handover.counted[part.offset + crossing] = task
            crossing += 1
    return crossing


def _count(part: ThreadTasks, graph: Graph, rendezvous: int, tasks: Tasks, task: int) -> int:
    """Count a task as a predecessor of those successors that a part has; return whether it has all."""
    has_all = _count_once(part, tasks.waiting, graph.following[task])
    if rendezvous:
        has_all &= _count_once(part, tasks.waiting, graph.following_peer[task])
    for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1]):
        other = graph.edge[i]
        has_all &= _count_once(part, tasks.waiting, other if other >= 0 else -1 - other)
    return has_all


def _count_once(part: ThreadTasks, waiting: Any, successor: int) -> int:
    if successor < 0:
        return 1
    if not _has(part, successor):
        return 0
    waiting[successor] += 1
    return 1


def count_waits(graph: Graph, waiting: Any, rendezvous: int) -> None:
    """Count the predecessors of each task."""
    following, following_peer, edge = graph.following, graph.following_peer, graph.edge
    tasks = len(following)
    for task in range(tasks):
        if following[task] >= 0:
            waiting[following[task]] += 1
        if rendezvous and following_peer[task] >= 0:
            waiting[following_peer[task]] += 1
    for i in range(graph.edge_ptr[tasks]):
        task = edge[i]
        waiting[task if task >= 0 else -1 - task] += 1


def _push_ready(graph: Graph, tasks: Tasks, first: int, end: int, top: int) -> int:
    """Push the tasks of a range that have no predecessors; return the size of the stack."""
    for task in range(end - 1, first - 1, -1):
        if may_begin(graph, tasks, task):
            tasks.ready[top] = task
            top += 1
    return top


def enter_times(first, end_rank, lane_rank, lane_ptr, fork, sender_row, start, end, cause, enter):
    """Fill in when each row of ranks ``first:end_rank`` is launched: the end of the previous row and of its fork.

    First copy the times of each rendezvous from the sender's row to the receiver's; ``sender_row`` is empty if
    there is none. Return whether any row starts before the previous row of its lane.
    """
    disordered = 0
    has_rendezvous = len(sender_row) > 0
    for lane in range(len(lane_ptr) - 1):
        if lane_rank[lane] < first or lane_rank[lane] >= end_rank:
            continue
        free = previous_start = 0
        for row in range(lane_ptr[lane], lane_ptr[lane + 1]):
            if has_rendezvous and sender_row[row] >= 0:
                other = sender_row[row]
                start[row] = start[other]
                end[row] = end[other]
                cause[row] = cause[other]
            launched = free
            if fork[row] >= 0:
                launched = max(launched, end[fork[row]])
            enter[row] = min(launched, start[row])
            if start[row] < previous_start:
                disordered = 1
            previous_start = start[row]
            free = end[row]
    return disordered


FLOW, COMPUTATION, COMMUNICATION = 0, 1, 2
"""Kinds of jobs."""


class Jobs(NamedTuple):
    """Tasks whose speed depends on other running tasks, in their order; one value per job."""

    of_task: Any
    """Per task its job, -1 for none."""
    task: Any
    """The task of each job."""
    volume: Any
    """A flow's 64ths of a millionth of a byte; else thousandths of a nanosecond."""
    full_rate: Any
    """The uncontended speed: of a flow in 64ths of a kB/s, else 1000."""
    overhead_ns: Any
    """Launch overhead before a flow's bytes."""
    path: Any
    """A flow's path, else -1."""
    kind: Any
    """:data:`FLOW`, :data:`COMPUTATION`, or :data:`COMMUNICATION` that is no flow."""
    rank: Any
    """The rank that it runs on."""
    peer: Any
    """The rank at a message's other end, else -1."""


class Ends(NamedTuple):
    """When tasks end."""

    end: Any
    least: Any
    """Lower bound of the end: a receive ends after its send."""


class Step(NamedTuple):
    """State of the event engine that tasks read and change."""

    graph: Graph
    jobs: Jobs
    tasks: Tasks
    ends: Ends
    heap: Heap
    due: Any
    counts: Any


def start_all(step: Step) -> None:
    """Start every task without predecessors, and all successors that this releases."""
    graph, tasks = step.graph, step.tasks
    initialise(tasks, 0, len(graph.duration))
    count_waits(graph, tasks.waiting, 1)
    for i in range(graph.edge_ptr[len(graph.duration)]):
        if graph.edge[i] < 0:
            # The task waits for the start of the other task, and its end for the end of the other task.
            tasks.waiting[-1 - graph.edge[i]] += 1
    for task in range(len(graph.duration)):
        # Tasks that were released have a cause.
        if tasks.cause[task] < 0 and may_begin(graph, tasks, task):
            settle(step, _begin(step, task, 0))


def _begin(step: Step, task: int, top: int) -> int:
    """Start a task: a job joins the heap, any other task ends at once. Return the size of the stack."""
    graph, tasks = step.graph, step.tasks
    job, start = step.jobs.of_task[task], tasks.start[task]
    if job < 0:
        step.ends.end[task] = max(start + graph.duration[task], step.ends.least[task])
        tasks.ready[top] = task
        return top + 1
    for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1]):
        if graph.edge[i] < 0:
            reach(tasks, -1 - graph.edge[i], start, task)
    step.due[job] = start + step.jobs.overhead_ns[job]
    push(step.heap, job, step.due[job])
    return top


def settle(step: Step, top: int) -> None:
    """Release the successors of the ``top`` tasks on the stack."""
    graph, tasks = step.graph, step.tasks
    while top > 0:
        top -= 1
        task = tasks.ready[top]
        step.counts[0] += 1
        ended = step.ends.end[task]
        for i in range(graph.edge_ptr[task], graph.edge_ptr[task + 1] + 2):
            other, is_edge = _successor(graph, 1, task, i), i < graph.edge_ptr[task + 1]
            if is_edge and graph.edge[i] < 0:
                freed = _follow_sender(step, task, other)
            else:
                arrived = ended + graph.lag[task] if is_edge else ended
                freed = other >= 0 and reach(tasks, other, arrived, task)
            if freed:
                top = _begin(step, other, top)


def _follow_sender(step: Step, sender: int, receiver: int) -> bool:
    """Release a receive at the start of its send unless that is a job; return whether nothing else holds it."""
    duration, tasks, ends = step.graph.duration, step.tasks, step.ends
    if step.jobs.of_task[sender] < 0:
        reach(tasks, receiver, tasks.start[sender], sender)
    over = ends.end[sender] + duration[receiver] - duration[sender]
    ends.least[receiver] = max(ends.least[receiver], over)
    tasks.waiting[receiver] -= 1
    return tasks.waiting[receiver] == 0
