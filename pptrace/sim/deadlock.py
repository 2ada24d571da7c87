"""Spell out why a task graph is stuck: the cycle, the policy, and what would let it run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import Receive
from pptrace.errors import DeadlockError
from pptrace.schedule.deadlock import cycle_text
from pptrace.schedule.policy import PolicyName

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.policy import Policy
    from pptrace.schedule.table import Schedule
    from pptrace.sim.graph import TaskGraph

__all__ = ["explain_stuck"]


def explain_stuck(
    schedule: Schedule, workload: Workload, network: Network, policy: Policy, graph: TaskGraph, waiting: Int32s
) -> DeadlockError:
    """Return the error for a graph of which some tasks never ran; ``waiting`` is above zero for those."""
    cycle = [name for task in _cycle(graph, waiting) if (name := _name(graph, task))]
    remedy = "; change the order on one of these ranks"
    if policy.name is PolicyName.ORDERED and not policy.title:  # a plugin's policy takes no eager size
        remedy = _eager_remedy(schedule, workload, network, policy, graph)
    elif policy.name is PolicyName.BATCHED and policy.program is None and policy.placing is Receive.DEFERRED:
        remedy += ", or receive earlier: --set p2p.receive=asap"
    elif policy.name is not PolicyName.ASYNC:
        remedy += ", or try p2p async"
    return DeadlockError(
        f"the schedule deadlocks under p2p policy {policy.label}: {cycle_text(cycle)}{remedy}",
        cycle=cycle,
        policy=policy.label,
    )


def _cycle(graph: TaskGraph, waiting: Int32s) -> list[int]:
    """Return tasks of which each waits for the next, and the last for the first."""
    tasks = np.arange(graph.tasks, dtype=np.int64)
    by_edge = np.repeat(tasks, np.diff(graph.edge_ptr))
    target = np.concatenate([graph.next, graph.next_peer, np.where(graph.edge < 0, ~graph.edge, graph.edge)])
    source = np.concatenate([tasks, tasks, by_edge])
    stuck = (target >= 0) & (waiting[target] > 0) & (waiting[source] > 0)
    needs = np.full(graph.tasks, -1, dtype=np.int64)
    needs[target[stuck]] = source[stuck]
    task = int(np.flatnonzero(waiting > 0)[0])
    seen: dict[int, int] = {}
    chain: list[int] = []
    while task not in seen:
        seen[task] = len(chain)
        chain.append(task)
        task = int(needs[task])
    return chain[seen[task] :]


def _name(graph: TaskGraph, task: int) -> str:
    if task >= graph.rows:
        return ""
    both = np.flatnonzero(graph.twin == task)
    return " with ".join(_row_name(graph, row) for row in [task, *both.tolist()])


def _row_name(graph: TaskGraph, row: int) -> str:
    lane = int(np.searchsorted(graph.lane_ptr, row, side="right")) - 1
    return f"rank {graph.lane_rank[lane]}: {graph.action(row)}"


def _eager_remedy(
    schedule: Schedule, workload: Workload, network: Network, policy: Policy, graph: TaskGraph
) -> str:
    from pptrace.sim.lower import lower
    from pptrace.sim.sweep import run_graph

    for size in np.unique(graph.size_bytes[graph.path >= 0]).tolist():
        if size <= policy.eager_bytes:
            continue
        again = lower(schedule, workload, network, replace(policy, eager_bytes=size))
        if run_graph(again).done == again.tasks - again.ghosts().size:
            return f"; messages up to {size} B eager let it run: --set p2p.eager='{size} B'"
    return "; no eager size lets it run: reorder the receives (p2p.receive: asap) or use another policy"
