"""The cause of a task is the predecessor that released it last, the lowest task on a tie, in both kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from small_networks import Wires
from strategies import policies, valid_schedules, workloads

from pptrace.config.choices import Sharing
from pptrace.errors import DeadlockError
from pptrace.network.contract import Flat
from pptrace.sim.cross_rank import with_epilogue
from pptrace.sim.engines import Contention, find_jobs, graph_record, run_graph, run_jobs, shared_links
from pptrace.sim.lowering import lower
from pptrace.sim.simulation import simulate
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.network.contract import Network
    from pptrace.sim.engines import Ran
    from pptrace.sim.task_graph import TaskGraph
    from pptrace.steps.message_calls import Policy

Step = tuple[Schedule, Workload, "Policy"]
RATE_KBPS, LATENCY_NS = 1_000_000_000, 2


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Draw a step whose actions take so little that many predecessors end at one instant."""
    own = draw(st.booleans())
    schedule = draw(valid_schedules(messages=own, copies=not own))
    return schedule, draw(workloads(schedule, min_ns=0, max_ns=2)), draw(policies())


def lowered(step: Step, network: Network) -> TaskGraph:
    schedule, workload, policy = step
    try:
        return lower(with_epilogue(schedule, workload, overlap=True), workload, network, policy)
    except DeadlockError:
        reject()


def predecessors(graph: TaskGraph, ran: Ran) -> list[list[tuple[int, int]]]:
    """Return, for each task, when each of its predecessors released it, with the predecessor."""
    start, end, lag = (column.tolist() for column in (ran.start_ns, ran.end_ns, graph.lag_ns))
    released: list[list[tuple[int, int]]] = [[] for _ in range(graph.tasks)]
    for task in range(graph.tasks):
        for follower in {int(graph.next[task]), int(graph.next_peer[task])} - {-1}:
            released[follower].append((end[task], task))
        for edge in graph.edge[graph.edge_ptr[task] : graph.edge_ptr[task + 1]].tolist():
            if edge >= 0:
                released[edge].append((end[task] + lag[task], task))
            else:
                released[~edge].append((start[task], task))
    return released


def assert_lowest_causes(graph: TaskGraph, ran: Ran) -> None:
    if ran.done < graph.tasks - graph.receiver_rows().size:
        reject()  # this policy deadlocks
    released = predecessors(graph, ran)
    started = [max((when for when, _ in own), default=0) for own in released]
    causes = [
        min((task for when, task in own if when == last), default=-1)
        for own, last in zip(released, started, strict=True)
    ]
    receiver_rows = set(graph.receiver_rows().tolist())
    tasks = [task for task in range(graph.tasks) if task not in receiver_rows]
    assert [int(ran.start_ns[task]) for task in tasks] == [started[task] for task in tasks]
    assert [int(ran.cause[task]) for task in tasks] == [causes[task] for task in tasks]


@given(steps())
def test_the_sweep_names_the_lowest_of_the_predecessors_that_release_a_task_last(step: Step) -> None:
    graph = lowered(step, Flat(rate_kbps=RATE_KBPS, latency_ns=LATENCY_NS))

    assert_lowest_causes(graph, run_graph(graph))


@pytest.mark.parametrize("sharing", [Sharing.FIFO, Sharing.MAX_MIN])
@given(step=steps())
def test_the_event_kernel_names_the_lowest_of_them_too(sharing: Sharing, step: Step) -> None:
    network = Wires(endpoints=step[0].ranks, rate_kbps=RATE_KBPS, latency_ns=LATENCY_NS)
    graph, contention = lowered(step, network), Contention(links=sharing)
    shared = shared_links(graph.paths, network.links, sharing, prune=False)

    jobs = find_jobs(graph, shared, contention)
    ran, _ = run_jobs(graph_record(graph), graph.placement.ranks, jobs, shared, contention)
    assert_lowest_causes(graph, ran)


def test_of_a_message_and_the_action_before_it_the_one_on_the_lower_rank_is_the_cause() -> None:
    # Every action and message takes 10 ns: 1F0 ends when 0F1's message arrives, 0B0 when 1B1's does.
    schedule = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
    workload = Workload.uniform(2, f_ns=10, b_ns=10, boundary_bytes=10)

    timeline = simulate(schedule, workload, Flat(rate_kbps=1_000_000))

    rows = {str(timeline[row].action): row for row in range(len(timeline))}
    start = {name: int(timeline.start_ns[row]) for name, row in rows.items()}
    end = {name: int(timeline.end_ns[row]) for name, row in rows.items()}
    assert start["1F1"] == end["1F0"] == end["0SEND_F1"]
    assert timeline.cause[rows["1F1"]] == rows["0SEND_F1"]
    assert start["0B1"] == end["0B0"] == end["1SEND_B1"]
    assert timeline.cause[rows["0B1"]] == rows["0B0"]
