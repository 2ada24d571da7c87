"""Any program with legal moments gives a step that keeps the laws, at the times that a slow model of calls has."""

from __future__ import annotations

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import valid_schedules, workloads

from pptrace.errors import DeadlockError
from pptrace.network.contract import Flat
from pptrace.plugin import MessageCalls, MessageRequest, Policy
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import SENDS, Kind

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload

Span = tuple[int, int]
TRANSFER_NS = 7


def random_calls(request: MessageRequest, random: Random) -> MessageCalls:
    """Return random legal moments, some waits, some communicators."""
    ranks, rows = np.arange(request.schedule.ranks), request.schedule.row_ptr
    low, high = rows[:-1] + ranks, rows[1:] + ranks

    def turns(count: int) -> np.ndarray:
        return np.array([random.randint(0, 2) for _ in range(count)], dtype=np.int64)

    def between(first: np.ndarray, last: np.ndarray) -> np.ndarray:
        slots = [random.randint(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        return np.array(slots, dtype=np.int64) * MessageCalls.MOST_TURNS + turns(len(slots))

    def waits(launched: np.ndarray, rank: np.ndarray) -> np.ndarray:
        later = np.maximum(between(launched // MessageCalls.MOST_TURNS, high[rank]), launched)
        return np.where(np.array([random.random() < 0.5 for _ in later], dtype=bool), later, -1)

    send = between(request.producer + request.source + 1, high[request.source])
    receive = between(low[request.target], request.consumer + request.target)
    near = random.random() < 0.7  # else most steps deadlock
    if near:
        send, receive = request.after(request.producer), request.before(request.consumer)
        send, receive = (moments + turns(moments.size) for moments in (send, receive))
    kinds = random.choice([1, 2, 40])
    ways = [[random.randrange(kinds) for _ in ranks] for _ in ranks]
    communicator = np.array(ways, dtype=np.int64)  # messages of one way take turns, whatever carries them
    return MessageCalls(
        send=send, receive=receive, send_waited=waits(send, request.source),
        receive_waited=waits(receive, request.target),
        communicator=communicator[request.source, request.target],
    )  # fmt: skip


Nodes = defaultdict[Any, list[Any]]
"""What each of rows, calls' begins and ends, and messages waits for."""


def modelled(
    request: MessageRequest, calls: MessageCalls, costs: Workload
) -> tuple[dict[Any, Span], dict[Any, Span]]:
    """Return when each computation and each message starts and ends; it knows calls and streams, no kernels.

    Raises:
        CycleError: calls wait for each other.
    """
    table, count = request.schedule, request.producer.size
    after, took = _of_calls(request, calls), {("message", m): TRANSFER_NS for m in range(count)}
    cells = {_cell(table, row): row for row in range(len(table))}
    for (kind, stage, _), row in cells.items():
        took["row", row] = int((costs.f_ns if kind == Kind.F else costs.b_ns)[stage])
        after["row", row] += [] if row in table.row_ptr else [("row", row - 1)]
    done: dict[Any, Span] = {}
    for node in TopologicalSorter(after).static_order():
        start = max((done[item][1] for item in after[node]), default=0)
        done[node] = (start, start + took.get(node, 0))
    return {cell: done["row", row] for cell, row in cells.items()}, {m: done["message", m] for m in range(count)}


def _of_calls(request: MessageRequest, calls: MessageCalls) -> Nodes:
    table, count = request.schedule, request.producer.size
    moments, waited = ([*np.asarray(a).tolist(), *np.asarray(b).tolist()] for a, b in (
        (calls.send, calls.receive), (calls.send_waited, calls.receive_waited)
    ))  # fmt: skip
    ranks = [*request.source.tolist(), *request.target.tolist()]
    number = np.asarray(calls.communicator).tolist() * 2
    of_end = list(zip(ranks, moments, number, strict=True))
    after: Nodes = defaultdict(list)
    for end, (rank, moment, communicator) in enumerate(of_end):
        call = of_end[end]
        after["message", end % count].append(("call", call))
        after["over", call] += [("call", call), ("message", end % count)]
        earlier = [
            entry for entry in of_end if entry[0] == rank and entry[2] == communicator and entry[1] < moment
        ]
        after["call", call] += [("over", earlier_call) for earlier_call in earlier]
        row = moment // MessageCalls.MOST_TURNS - rank - 1  # the row before the slot
        after["call", call] += [("row", row)] if row >= table.row_ptr[rank] else []
        if end >= count:
            after["row", int(request.consumer[end - count])].append(("over", call))
        if waited[end] >= 0:
            slot = waited[end] // MessageCalls.MOST_TURNS
            after["row", slot - rank] += [("over", call)] if slot - rank < table.row_ptr[rank + 1] else []
            for item in of_end:
                if item[0] == rank and item[1] // MessageCalls.MOST_TURNS == slot and item[1] > waited[end]:
                    after["call", item].append(("over", call))
    return after


@given(data=st.data())
def test_a_program_s_step_is_that_of_the_model(data: st.DataObject) -> None:
    schedule: Schedule = data.draw(valid_schedules(split=False, spans=False, pairs=False, max_chunks=2))
    costs = data.draw(workloads(schedule, min_ns=1, max_ns=20))
    random = Random(data.draw(st.integers(0, 2**32 - 1)))  # noqa: S311 - tests, not secrets
    asked: list[tuple[MessageRequest, MessageCalls]] = []

    def program(request: MessageRequest) -> MessageCalls:
        asked.append((request, random_calls(request, random)))
        return asked[-1][1]

    none = np.zeros(schedule.stages, dtype=np.int64)
    costs = replace(costs, reduce_ns=none, optimizer_ns=none)
    network = Flat(rate_kbps=0, overhead_ns=TRANSFER_NS)
    try:
        step = simulate(schedule, costs, network, Policy.of("batched", program=program))
    except DeadlockError:
        step = None
    request, calls = asked[-1]
    try:
        computes, messages = modelled(request, calls, costs)
    except CycleError:
        assert step is None
        return

    assert step is not None
    spans = list(zip(step.start_ns.tolist(), step.end_ns.tolist(), strict=True))
    cells = list(zip(step.kind.tolist(), step.stage.tolist(), step.microbatch.tolist(), strict=True))
    result = {cell: span for cell, span in zip(cells, spans, strict=True) if cell[0] <= Kind.B}
    assert result == computes
    sent = sorted(span for cell, span in zip(cells, spans, strict=True) if Kind(cell[0]) in SENDS)
    assert sent == sorted(messages.values())
    for message in range(request.producer.size):
        producer, consumer = (
            _cell(request.schedule, int(rows[message])) for rows in (request.producer, request.consumer)
        )
        assert result[producer][1] <= messages[message][0]
        assert messages[message][1] <= result[consumer][0]


def _cell(table: Schedule, row: int) -> tuple[int, int, int]:
    return int(table.kind[row]), int(table.stage[row]), int(table.microbatch[row])
