"""A diff of simulated steps: what was changed is what is found, and the ladder and parts sum to the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compared_steps import slower_way, stretched
from executed_lines import executed_lines
from msgspec.structs import replace
from paired_steps import paired_step

import pptrace
from pptrace.config.choices import PolicyName
from pptrace.measured.computations import extract_computations
from pptrace.measured.diff import diff
from pptrace.measured.matching import fold_first_stages
from pptrace.measured.replay import replay
from pptrace.measured.sides import Side, simulated_side
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.action_insertion import with_recompute
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import Step

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

MS = 1_000_000
ROWS = [
    ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"],
    ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"],
    ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"],
]
SPLIT = [
    ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"],
    ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"],
]


def step(
    rows: list[list[str]] = ROWS,
    *,
    slow: dict[int, float] | None = None,
    rate: int = 1_000_000,
    policy: str = "async",
) -> Timeline:
    stages = len(rows)
    factor = np.array([(slow or {}).get(stage, 1) for stage in range(stages)])
    workload = Workload.uniform(
        stages, f_ns=(10 * MS * factor).astype(np.int64), b_ns=(20 * MS * factor).astype(np.int64),
        boundary_bytes=1_000_000,
    )  # fmt: skip
    network = Flat(rate_kbps=rate, latency_ns=50_000)
    return simulate(Schedule.from_rows(rows), workload, network, Policy(name=PolicyName(policy)))


def side(timeline: Timeline, name: str = "step") -> Side:
    stages = timeline.placement.stages
    steps = (Step(label=name, timeline=timeline, gap_ns=np.zeros(len(timeline), dtype=np.int64)),)
    workload = Workload.uniform(stages, f_ns=0, b_ns=0)
    return Side(name=name, measured=False, steps=steps, chosen=0, workload=workload)


@pytest.mark.parametrize("policy", ["async", "sender-blocking", "ordered", "blocking"])
@pytest.mark.parametrize("rows", [ROWS, SPLIT])
def test_a_simulated_step_is_its_own_replay(rows: list[list[str]], policy: str) -> None:
    again = replay(step(rows, policy=policy))

    assert again.replayed_ns == again.step.span_ns


@pytest.mark.parametrize("early", [False, True])
def test_recomputed_forwards_are_replayed_with_and_without_waits_for_gradients(*, early: bool) -> None:
    table = with_recompute(Schedule.from_rows(ROWS), np.ones((3, 4), dtype=np.bool_), early=early)
    workload = Workload.uniform(3, f_ns=10 * MS, b_ns=20 * MS, recompute_ns=10 * MS)
    again = replay(simulate(table, workload))

    assert again.replayed_ns == again.step.span_ns


def test_a_step_does_not_differ_from_itself() -> None:
    difference = diff(side(step()), side(step()))

    assert difference.same
    assert difference.change == 0
    assert difference.changes == difference.orders == difference.causes == ()
    assert difference.divergence is None
    assert [rung.change_ns.value for rung in difference.ladder] == [0] * 8


def test_actions_without_time_are_equal_to_themselves_alone() -> None:
    free = side(step(slow={1: 0}))

    assert diff(free, side(step(slow={1: 0}))).same
    assert not diff(free, side(step())).same


def test_a_diff_of_64_actions_executes_few_lines() -> None:
    rows = [[f"{stage}{kind}{microbatch}" for kind in "FB" for microbatch in range(8)] for stage in range(4)]

    def work() -> None:
        diff(side(step(rows)), side(step(rows, slow={1: 1.5})))

    work()  # imports and caches

    assert executed_lines(work) < 180_000


def test_three_milliseconds_on_one_action_are_ranked_first_and_where_it_parts() -> None:
    difference = diff(side(step()), side(stretched(step(), "1F2", 3 * MS)))

    assert (str(difference.changes[0].action), difference.changes[0].change_ns.value) == ("1F2", 3 * MS)
    assert len(difference.changes) == 1
    assert difference.divergence is not None
    assert (difference.divergence.rank, str(difference.divergence.action)) == (1, "1F2")
    assert difference.divergence.local_ns == 3 * MS
    assert difference.ladder[0].name == "durations"
    assert difference.ladder[0].change_ns.value == difference.step_ns.change.value


def test_actions_are_listed_by_how_much_they_changed_either_way_and_of_two_alike_the_longer_one_first() -> None:
    second = step()
    for action, by_ms in (("1F2", 3), ("2F0", -5), ("0B1", 5), ("0F1", -1)):
        second = stretched(second, action, by_ms * MS)

    difference = diff(side(step()), side(second))

    listed = [(str(item.action), item.change_ns.value) for item in difference.changes]
    assert listed == [("0B1", 5 * MS), ("2F0", -5 * MS), ("1F2", 3 * MS), ("0F1", -1 * MS)]


@pytest.mark.parametrize(
    ("changed", "sort"),
    [
        ({"slow": {1: 1.5}}, "durations"),
        ({"rate": 20_000}, "transfers"),
        ({"policy": "sender-blocking"}, "host gaps"),
    ],
)
def test_the_ladder_and_parts_sum_to_the_difference(changed: dict[str, Any], sort: str) -> None:
    difference = diff(side(step()), side(step(**changed)))
    first, second = (item.value for item in difference.step_ns)

    assert first != second
    assert sum(rung.change_ns.value for rung in difference.ladder) == second - first
    assert [sum(pair[at].value for pair in difference.parts_ns.values()) for at in (0, 1)] == [first, second]
    largest = max(difference.ladder, key=lambda one: abs(one.change_ns.value))
    assert largest.name == sort


def test_another_order_is_found_and_priced() -> None:
    other = [ROWS[0], ROWS[1], ["2F0", "2F1", "2B0", "2B1", "2F2", "2B2", "2F3", "2B3"]]

    difference = diff(side(step()), side(step(other)))

    (order,) = difference.orders
    assert (order.rank, order.position, order.first, order.second) == (2, 1, "2B0", "2F1")
    assert not difference.same
    priced = next(rung for rung in difference.ladder if rung.name == "order")
    assert priced.change_ns.value == difference.step_ns.change.value


def test_a_slow_stage_is_blamed_with_its_rank() -> None:
    (cause,) = diff(side(step()), side(step(slow={1: 1.25}))).causes

    assert cause.kind == "slow rank"
    assert "rank 1" in cause.what
    assert cause.share.value == pytest.approx(0.25)
    assert cause.total_ns == 4 * 30 * MS // 4


def test_what_all_ranks_have_in_common_is_drift() -> None:
    (cause,) = diff(side(step()), side(step(slow={0: 1.1, 1: 1.1, 2: 1.1}))).causes

    assert (cause.kind, round(cause.share.value, 3)) == ("drift", 0.1)


def test_a_slower_path_is_that_link() -> None:
    difference = diff(side(step()), side(slower_way(step(), 1, 2, 4)))

    assert [(item.kind, item.what) for item in difference.causes] == [("slow link", "rank 1 to rank 2")]


def test_a_backward_in_one_is_an_input_and_a_weight_gradient_in_the_other() -> None:
    folded = [["0F0", "0F1", "0B0", "0B1"], SPLIT[1]]

    a, b, stages = fold_first_stages(extract_computations(step(SPLIT)), extract_computations(step(folded)))

    assert stages == (0,)
    assert a.order.rows() == b.order.rows()
    assert a.duration_ns[a.kind == Kind.B].tolist() == b.duration_ns[b.kind == Kind.B].tolist()
    assert diff(side(step(SPLIT)), side(step(folded))).folded == (0,)


def test_steps_of_other_sizes_have_no_ladder_and_say_why() -> None:
    difference = diff(side(step(ROWS)), side(step(SPLIT)))

    assert difference.ladder == ()
    assert difference.no_ladder == (
        "the steps have 3 ranks, 3 stages, 4 microbatches and 2 ranks, 2 stages, 2 microbatches"
    )


@pytest.mark.needs_plugins
def test_microbatches_of_other_updates_are_not_counted() -> None:
    fewer, more = (pptrace.simulate(schedule="pipedream-2bw", pp=2, microbatches=count) for count in (4, 6))

    assert pptrace.diff(fewer, more).findings.no_ladder == (
        "the steps have 2 ranks, 2 stages, 4 microbatches and 2 ranks, 2 stages, 6 microbatches"
    )


def test_changes_within_the_steps_own_noise_are_left_out() -> None:
    base = step()
    steps = tuple(
        Step(label=str(n), timeline=stretched(base, "2F3", n * MS), gap_ns=np.zeros(0, dtype=np.int64))
        for n in range(5)
    )
    steps = tuple(replace(item, gap_ns=np.zeros(len(item.timeline), dtype=np.int64)) for item in steps)
    noisy = Side(name="noisy", measured=True, steps=steps, chosen=2, workload=Workload.uniform(3, f_ns=0, b_ns=0))

    difference = diff(side(base), noisy)

    assert difference.changes == ()
    assert difference.within_noise == 1


def test_a_run_is_a_side(tmp_path: Any) -> None:
    from pptrace.api import simulate as simulate_experiment

    table = tmp_path / "table.csv"
    table.write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8")
    run = simulate_experiment(schedule=str(table))

    assert diff(simulated_side(run, "a"), simulated_side(run, "b")).same


def test_a_diff_tells_how_much_of_collectives_computation_hid() -> None:
    """Two pairs hide four all-reduces of 2 ms each; alone, actions wait for theirs."""
    pairs = paired_step()

    difference = diff(side(pairs), side(paired_step((Kind.F, 1, 1))))

    assert {name: (one.first.value, one.second.value) for name, one in difference.groups_ns.items()} == {
        "tensor-parallel": (48 * MS, 48 * MS), "tensor-parallel, hidden": (16 * MS, 16 * MS),
    }  # fmt: skip
    lost = diff(side(pairs), side(step())).groups_ns["tensor-parallel, hidden"]
    assert (lost.first.value, lost.second.value) == (16 * MS, 0)
    assert not diff(side(step()), side(step())).groups_ns
