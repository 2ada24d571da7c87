"""Steps that share tasks and dependencies equal steps that are lowered alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import networks, policies, valid_schedules, workloads

from pptrace.config.choices import PolicyName
from pptrace.errors import DeadlockError
from pptrace.memo import Memo, memoized, memoizing
from pptrace.network.contract import Flat
from pptrace.plugins.construction import build_policy, build_schedule, checked_options
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_costs_on_a_shared_graph_give_the_step_of_a_new_graph(data: st.DataObject) -> None:
    schedule = data.draw(valid_schedules(copies=data.draw(st.booleans())))
    policy, memo = data.draw(policies()), Memo()
    for _ in range(4):
        costs, network = data.draw(workloads(schedule)), data.draw(networks())
        if data.draw(st.booleans()):
            odd = costs.scaled(3)
            classes = np.arange(schedule.microbatches, dtype=np.int32) % 2
            costs = replace(costs, classes=(odd,), microbatch_class=classes)
        overlaps = data.draw(st.booleans())
        try:
            alone = simulate(schedule, costs, network, policy, overlap_reduction=overlaps)
        except DeadlockError:
            with memoizing(memo), pytest.raises(DeadlockError):
                simulate(schedule, costs, network, policy, overlap_reduction=overlaps)
            continue
        with memoizing(memo):
            again = simulate(schedule, costs, network, policy, overlap_reduction=overlaps)
        assert alone.difference(again) == ""
    assert memo.results


REGISTRY = Registry.load(warn=lambda _: None)
PROGRAMS = sorted({*REGISTRY.message_policies} - {*PolicyName.words()})


@pytest.mark.parametrize(
    ("name", "schedule", "chunks"),
    [(name, "1f1b", 1) for name in PROGRAMS]
    + [
        (name, "interleaved-1f1b", 2) for name in PROGRAMS if name != "deepspeed"
    ],  # DeepSpeed has one stage per rank
)
def test_calls_of_frameworks_wait_by_the_costs_of_each_step(name: str, schedule: str, chunks: int) -> None:
    memo = Memo()
    table = build_schedule(REGISTRY.schedules[schedule], ScheduleRequest(ranks=4, microbatches=8, chunks=chunks))
    provided = REGISTRY.message_policies[name]
    policy = build_policy(provided, table, checked_options(provided, {}, "p2p.options"))
    for latency_ns, forward_ns in ((0, 5), (0, 5), (40, 5), (3, 40), (0, 40)):
        costs = Workload.uniform(
            table.stages, f_ns=np.arange(table.stages) * 3 % 7 + forward_ns, b_ns=9, boundary_bytes=2000,
            reduce_ns=latency_ns,
        )  # fmt: skip
        network = Flat(rate_kbps=333_000_000, latency_ns=latency_ns, overhead_ns=1)
        alone = simulate(table, costs, network, policy)
        with memoizing(memo):
            again = simulate(table, costs, network, policy)
        assert alone.difference(again) == ""


def test_a_memo_drops_the_results_that_were_used_longest_ago() -> None:
    memo, computed = Memo(), list[int]()

    def compute(number: int) -> int:
        computed.append(number)
        return number

    with memoizing(memo):
        for number in (0, 1, 0, 2, 3, 4, 0, 1):
            assert memoized(lambda number=number: compute(number), number, memo, rows=2**18) == number
        memoized(lambda: compute(9), 9, rows=2**20)
        memoized(lambda: compute(8), 8, may_keep=lambda: False)

    assert computed == [0, 1, 2, 3, 4, 1, 9, 8]
    assert [key[0] for key in memo.results] == [3, 4, 0, 1]
