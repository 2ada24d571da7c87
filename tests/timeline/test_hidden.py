"""What computation hides of communication: closed forms, and message by message in plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_schedules import small_registry

from pptrace.api import simulate
from pptrace.steps.kinds import COMPUTE, Kind
from pptrace.timeline.metrics import hidden_ns

if TYPE_CHECKING:
    from pptrace.run.run import Run

MS = 10**6


def stepped(ranks: int, microbatches: int, **values: Any) -> Run:
    """Forwards of 3 ms, backwards of 6, messages of 1 MB at 1 GB/s: 1 ms each."""
    costs = {"name": "table", "forward": "3 ms", "backward": "6 ms", "boundary": "1 MB"} | values.pop("costs", {})
    network = {"name": "hockney", "bandwidth": "1 GB/s", **values.pop("network", {})}
    return simulate(
        schedule="eager", pp=ranks, microbatches=microbatches, costs=costs, network=network,
        registry=small_registry(), **values,
    )  # fmt: skip


@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_all_messages_but_the_first_of_each_direction_are_hidden_between_two_ranks(microbatches: int) -> None:
    hidden = hidden_ns(stepped(2, microbatches).timeline)

    assert hidden.tolist() == [(microbatches - 1) * MS] * 2


def test_wire_latency_counts_as_being_under_way() -> None:
    hidden = hidden_ns(stepped(2, 3, network={"latency": "1 ms"}).timeline)

    assert hidden.tolist() == [4 * MS] * 2


@pytest.mark.parametrize("policy", ["async", "ordered", "sender-blocking", "blocking", "batched"])
@pytest.mark.parametrize("ranks", [3, 4])
def test_it_is_the_sum_over_messages_of_what_their_receivers_computed_meanwhile(policy: str, ranks: int) -> None:
    timeline = stepped(ranks, 6, p2p=policy, network={"latency": "2 ms"}).timeline
    rank = timeline.rank_of_row()
    expected = np.zeros(ranks, dtype=np.int64)
    for row in range(len(timeline)):
        kind, stage = int(timeline.kind[row]), int(timeline.stage[row])
        if kind not in {Kind.SEND_F, Kind.SEND_B}:
            continue
        receiver = stage + (1 if kind == Kind.SEND_F else -1)
        start, end = int(timeline.start_ns[row]), int(timeline.end_ns[row] + timeline.lag_ns[row])
        for other in np.flatnonzero(COMPUTE.mask(timeline.kind) & (rank == receiver)).tolist():
            both = min(end, int(timeline.end_ns[other])) - max(start, int(timeline.start_ns[other]))
            expected[receiver] += max(both, 0)

    assert hidden_ns(timeline).tolist() == expected.tolist()


def test_reductions_count_at_their_own_rank() -> None:
    costs = {"reduction": "2 ms"}
    beside, behind = (
        hidden_ns(stepped(2, 3, costs=costs, dp=2, data_parallel={"overlap": overlap}).timeline)
        for overlap in (True, False)
    )

    assert behind.tolist() == [2 * MS] * 2
    assert beside.sum() >= behind.sum()
