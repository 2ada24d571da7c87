"""Orders as PyTorch 2.13 makes them take exactly the steps that its own step simulator counts.

The tables and ``expected.json`` come from ``fixtures/torch-orders/generate.py``: 8 ranks, 64 microbatches,
receives placed as soon as possible and deferred. Every action and every message takes one unit here.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.errors import DeadlockError
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy, with_messages
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

FIXTURES = Path(__file__).parent / "fixtures" / "torch-orders"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
ORDERS: dict[str, Any] = EXPECTED["orders"]
RECEIVES = [receive.value for receive in Receive]
ASYNCHRONOUS = {
    "gpipe": 156,
    "1f1b": 266,
    "interleaved-1f1b-v2": 300,
    "interleaved-1f1b-v4": 588,
    "zb1p": 275,
    "zbv": 425,
}
"""Steps where messages block nobody, as an independent simulation counted them."""


def torch_order(name: str, receive: str) -> Schedule:
    text = gzip.decompress((FIXTURES / f"{name}-{receive}.csv.gz").read_bytes()).decode()
    placement = Placement.of_stages(
        ORDERS[name]["stage_rank"], microbatches=EXPECTED["microbatches"], ranks=EXPECTED["ranks"]
    )
    return Schedule.from_rows(list(csv.reader(io.StringIO(text))), placement)


def computes_of(schedule: Schedule) -> Schedule:
    kept = np.flatnonzero((schedule.kind < Kind.SEND_F) | (schedule.kind > Kind.RECV_B))
    return Schedule.from_columns(
        schedule.placement, np.searchsorted(kept, schedule.row_ptr), schedule.kind[kept], schedule.stage[kept],
        schedule.microbatch[kept], pair=schedule.pair[kept],
    )  # fmt: skip


def unit_step(schedule: Schedule, policy: Policy) -> Timeline:
    """One nanosecond an action and a message."""
    costs = Workload.uniform(schedule.stages, f_ns=1, b_ns=1, i_ns=1, w_ns=1, boundary_bytes=1)
    return simulate(schedule, costs, Flat(rate_kbps=1_000_000), policy)


def length(timeline: Timeline) -> int:
    return int(timeline.end_ns.max())


@pytest.mark.parametrize(
    ("name", "asap", "deferred"),
    [
        ("gpipe", 408, 408),
        ("1f1b", 469, 406),
        ("interleaved-1f1b-v2", 1682, 790),
        ("interleaved-1f1b-v4", 4114, 1558),
        ("zb1p", 527, 464),
        ("zbv", 1097, 912),
        ("looped-bfs-v2", 1624, 792),
        ("dualpipev", 950, 808),
    ],
)
def test_the_recorded_lengths_are_those_that_are_known_of_pytorch(name: str, asap: int, deferred: int) -> None:
    assert (ORDERS[name]["asap"], ORDERS[name]["deferred"]) == (asap, deferred)


@pytest.mark.parametrize("receive", RECEIVES)
@pytest.mark.parametrize("name", ORDERS)
def test_blocking_takes_the_steps_of_pytorchs_simulator(name: str, receive: str) -> None:
    timeline = unit_step(torch_order(name, receive), Policy(name=PolicyName.BLOCKING))

    assert length(timeline) == ORDERS[name][receive]


@pytest.mark.parametrize("receive", RECEIVES)
def test_blocking_starts_a_receive_with_its_send_as_the_page_on_messages_says(receive: str) -> None:
    table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
    costs = Workload.uniform(2, f_ns=[10_000, 20_000], b_ns=20_000, boundary_bytes=3000)
    network = Flat(rate_kbps=10**6, latency_ns=500, overhead_ns=100)
    page = (Path(__file__).parents[2] / "docs" / "messages.md").read_text(encoding="utf-8")

    timeline = simulate(table, costs, network, Policy(name=PolicyName.BLOCKING, receive=Receive(receive)))
    spans = {
        str(item.action): (item.start_ns, item.end_ns) for item in map(timeline.__getitem__, range(len(timeline)))
    }

    assert (spans["0SEND_F0"], spans["1RECV_F0"]) == ((10_000, 13_100), (10_000, 13_600))
    assert "occupies its sender until 13,100 ns and its receiver until 13,600 ns" in page
    # The receiver computes 1F0 until 33,600 ns: its sender goes on, and the receive takes the whole transfer.
    assert (spans["0SEND_F1"], spans["1RECV_F1"]) == ((23_100, 26_200), (33_600, 37_200))


@pytest.mark.parametrize("receive", RECEIVES)
@pytest.mark.parametrize("name", ORDERS)
def test_messages_are_placed_where_pytorch_places_them(name: str, receive: str) -> None:
    order = torch_order(name, receive)

    placed = with_messages(computes_of(order), Receive(receive))

    for column in ("row_ptr", "kind", "stage", "microbatch", "pair"):
        assert np.array_equal(getattr(placed, column) < 0, getattr(order, column) < 0), column
        if column != "pair":
            assert np.array_equal(getattr(placed, column), getattr(order, column)), column


@pytest.mark.parametrize("receive", RECEIVES)
@pytest.mark.parametrize("name", ORDERS)
def test_the_orders_are_valid(name: str, receive: str) -> None:
    validate(torch_order(name, receive))
    validate(computes_of(torch_order(name, receive)))


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_messages_do_not_depend_on_where_receives_are(name: str) -> None:
    tables = [torch_order(name, receive) for receive in RECEIVES]
    tables.append(computes_of(tables[0]))

    assert [length(unit_step(table, Policy())) for table in tables] == [ASYNCHRONOUS[name]] * 3


@pytest.mark.parametrize(
    ("stream", "steps"), [(StreamPer.RANK, 1095), (StreamPer.PAIR, 300), (StreamPer.DIRECTION, 300)]
)
def test_interleaved_pays_for_one_stream_per_rank(stream: StreamPer, steps: int) -> None:
    policy = Policy(name=PolicyName.ORDERED, stream=stream)

    assert length(unit_step(torch_order("interleaved-1f1b-v2", "asap"), policy)) == steps


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b-v2", "zb1p"])
def test_ordered_refuses_deferred_receives_with_their_cycle(name: str) -> None:
    order = torch_order(name, "deferred")

    with pytest.raises(
        DeadlockError, match=r"messages up to 1 B eager let it run: --set p2p\.eager='1 B'"
    ) as refused:
        unit_step(order, Policy(name=PolicyName.ORDERED, stream=StreamPer.RANK))

    assert refused.value.policy == "ordered"
    assert_cycle(refused.value.cycle)
    assert length(unit_step(order, Policy(name=PolicyName.ORDERED, stream=StreamPer.RANK, eager_bytes=1))) > 0


def assert_cycle(cycle: tuple[str, ...]) -> None:
    """Each entry is a rank's compute action or both ends of a message, and shares a rank with the next."""
    ranks = [{part.split(":")[0] for part in entry.split(" with ")} for entry in cycle]
    assert len(cycle) >= 2
    assert all(1 <= len(ends) <= 2 for ends in ranks)
    assert all(rank & other for rank, other in zip(ranks, [*ranks[1:], ranks[0]], strict=True))


def test_ordered_deadlocks_on_1f1b_where_two_neighbours_send_to_each_other_first() -> None:
    with pytest.raises(DeadlockError) as refused:
        unit_step(torch_order("1f1b", "deferred"), Policy(name=PolicyName.ORDERED, stream=StreamPer.RANK))

    assert set(refused.value.cycle) == {
        "rank 7: 7SEND_B0 with rank 6: 6RECV_B0",
        "rank 6: 6SEND_F1 with rank 7: 7RECV_F1",
    }
