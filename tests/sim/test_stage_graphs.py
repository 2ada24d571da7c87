"""Stages that form any graph, on routes that skip some: random ones run, and their messages are told apart."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import networks, policies

from pptrace.errors import DeadlockError
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.messages import messages
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

SENDS, RECEIVES = {Kind.SEND_F, Kind.SEND_B}, {Kind.RECV_F, Kind.RECV_B}


@dataclass(frozen=True)
class Graph:
    """Stages on routes, and the order in which a list scheduler happened to run them."""

    placement: Placement
    rows: list[list[Action | str | None]]

    def hops(self) -> list[tuple[int, int, int]]:
        """Return edge, sender's stage and receiver's stage of each microbatch's way between ranks, forward."""
        placement = self.placement
        return [
            (
                edge,
                placement.rank_of(low, microbatch) * 100 + low,
                placement.rank_of(high, microbatch) * 100 + high,
            )
            for edge, (low, high) in enumerate(placement.edges.tolist())
            for microbatch in range(placement.microbatches)
            if -1 != placement.rank_of(low, microbatch) != placement.rank_of(high, microbatch) != -1
        ]


def random_graph(random: Random) -> Graph:
    stages, ranks, microbatches = random.randint(1, 5), random.randint(1, 3), random.randint(1, 4)
    routes = np.array(
        [[random.choice([-1, *range(ranks)]) for _ in range(stages)] for _ in range(2)], dtype=np.int32
    )
    routes[0] = np.where((routes < 0).all(axis=0), random.randrange(ranks), routes[0])
    edges = [(i, j) for j in range(stages) for i in range(j) if random.random() < (0.8 if j == i + 1 else 0.3)]
    placement = Placement(
        ranks=ranks,
        stage_rank=routes,
        microbatch_route=np.array([random.randint(0, 1) for _ in range(microbatches)], dtype=np.int32),
        edges=np.array(edges, dtype=np.int32).reshape(-1, 2),
    )
    rows: list[list[Action | str | None]] = [[] for _ in range(ranks)]
    left = [
        Action(kind=kind, stage=stage, microbatch=microbatch)
        for microbatch in range(microbatches)
        for stage in range(stages)
        if placement.rank_of(stage, microbatch) >= 0
        for kind in random.choice([(Kind.F, Kind.B), (Kind.F, Kind.I, Kind.W)])
    ]
    while left:
        action = random.choice([item for item in left if not any(needs(item, other, edges) for other in left)])
        left.remove(action)
        rows[placement.rank_of(action.stage, action.microbatch)].append(action)
    return Graph(placement, rows)


def needs(one: Action, other: Action, edges: list[tuple[int, int]]) -> bool:
    """Say whether an action waits for another of its microbatch."""
    if one is other or one.microbatch != other.microbatch:
        return False
    gradients = {Kind.B, Kind.I}
    if one.stage == other.stage:
        return one.kind is not Kind.F and (other.kind is Kind.F or (one.kind is Kind.W and other.kind is Kind.I))
    if one.kind is Kind.F:
        return other.kind is Kind.F and (other.stage, one.stage) in edges
    return one.kind in gradients and other.kind in gradients and (one.stage, other.stage) in edges


def produced_and_consumed(timeline: Timeline, send: int, producer: int, consumer: int) -> tuple[int, int]:
    """Return a message's ends as rank and stage, in the direction of forwards."""
    ends = [timeline[row].rank * 100 + timeline[row].action.stage for row in (producer, consumer)]
    return (ends[0], ends[1]) if timeline[send].action.kind is Kind.SEND_F else (ends[1], ends[0])


@given(st.data(), st.integers(0, 2**32 - 1))
def test_messages_of_any_graph_go_from_their_producer_to_their_consumer(data: st.DataObject, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - tests, not secrets
    graph = random_graph(random)
    assume(any(graph.rows))
    schedule = Schedule.from_rows(graph.rows, graph.placement)
    validate(schedule)
    edges = graph.placement.edges.shape[0]
    costs = Workload.uniform(
        schedule.stages, edges=edges, f_ns=random.randint(0, 9), i_ns=random.randint(0, 9), w_ns=3
    )
    sizes = np.array([random.choice([0, 1, 5]) for _ in range(edges)], dtype=np.int64)
    workload = replace(costs, boundary_bytes=sizes)
    try:
        timeline = simulate(schedule, workload, data.draw(networks()), data.draw(policies()))
    except DeadlockError:
        assume(False)

    metrics = measure(timeline, workload)
    assert (metrics.busy_ns + metrics.idle_ns.sum(axis=1) == metrics.step_ns).all()
    assert (metrics.idle_ns >= 0).all()
    message_rows = messages(timeline)
    carried = []
    for send, recv, producer, consumer in zip(
        message_rows.send, message_rows.recv, message_rows.producer, message_rows.consumer, strict=True
    ):
        carried += [(int(timeline.size_bytes[send]), *produced_and_consumed(timeline, send, producer, consumer))]
        assert timeline.start_ns[send] >= timeline.end_ns[producer]
        assert timeline.start_ns[consumer] >= timeline.end_ns[send] + timeline.lag_ns[send]
        if recv >= 0:
            assert timeline.start_ns[recv] >= timeline.start_ns[send]
            assert timeline.size_bytes[recv] == timeline.size_bytes[send]
    assert sorted(carried) == sorted(
        (int(sizes[edge]), low, high) for edge, low, high in graph.hops() for _ in "FB"
    )
    kinds = [Kind(kind) for kind in timeline.kind.tolist()]
    assert sum(kind in SENDS for kind in kinds) == len(carried)
    assert sum(kind in RECEIVES for kind in kinds) == int((message_rows.recv >= 0).sum())
