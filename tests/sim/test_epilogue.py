"""Reductions and updates at the step's end, whether the table places them itself or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.errors import ScheduleError
from pptrace.sim.cross_rank import with_epilogue
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Slice, Timeline

INTERLEAVED = ["0F0", "1F0", "1B0", "0B0"]


def costs(**values: int) -> Workload:
    return Workload.uniform(2, f_ns=10, b_ns=20, **({"reduce_ns": 7, "optimizer_ns": 3} | values))


def rows(row: list[str], workload: Workload, *, overlap: bool) -> list[str]:
    return with_epilogue(Schedule.from_rows([row]), workload, overlap=overlap).rows()[0]


def slices(timeline: Timeline) -> list[Slice]:
    return [timeline[row] for row in range(len(timeline))]


def spans(timeline: Timeline) -> dict[str, tuple[int, int]]:
    return {str(item.action): (item.start_ns, item.end_ns) for item in slices(timeline)}


def test_a_reduction_is_issued_behind_its_stages_last_backward_and_updates_come_last() -> None:
    assert rows(INTERLEAVED, costs(), overlap=True) == [
        "0F0", "1F0", "1B0", "1REDUCE_GRAD", "0B0", "0REDUCE_GRAD", "0OPTIMIZER", "1OPTIMIZER",
    ]  # fmt: skip


def test_without_overlap_reductions_come_behind_the_whole_row() -> None:
    assert rows(INTERLEAVED, costs(), overlap=False) == [
        *INTERLEAVED, "0REDUCE_GRAD", "1REDUCE_GRAD", "0OPTIMIZER", "1OPTIMIZER",
    ]  # fmt: skip


def test_what_takes_no_time_is_not_added() -> None:
    assert rows(INTERLEAVED, costs(reduce_ns=0, optimizer_ns=0), overlap=True) == INTERLEAVED
    assert rows(INTERLEAVED, costs(reduce_ns=0), overlap=True) == [*INTERLEAVED, "0OPTIMIZER", "1OPTIMIZER"]


def test_a_reduction_never_splits_a_pair() -> None:
    row = ["0F0", "1F0", "(1B0;0F1)OVERLAP_F_B", "0B0", "1F1", "1B1", "0B1"]

    assert "(1B0;0F1)OVERLAP_F_B" in rows(row, costs(), overlap=True)


def test_a_table_keeps_its_own_reductions_and_updates_in_place_where_they_overlap() -> None:
    row = ["0F0", "1F0", "1B0", "1REDUCE_GRAD", "1OPTIMIZER", "0B0", "0REDUCE_GRAD", "0OPTIMIZER"]

    assert rows(row, costs(), overlap=True) == row


@pytest.mark.parametrize("takes", [0, 7])
def test_a_tables_own_reductions_wait_for_every_rank_without_overlap(takes: int) -> None:
    row = ["0UNSHARD", "0F0", "1F0", "1B0", "1REDUCE_GRAD", "1OPTIMIZER", "1UNSHARD", "0B0", "0REDUCE_GRAD"]
    schedule = Schedule.from_rows([row])

    timeline = simulate(schedule, costs(reduce_ns=takes), overlap_reduction=False)

    result = spans(timeline)
    assert result["0B0"] == (40, 60)
    assert result["0REDUCE_GRAD"] == (60, 60 + takes)
    assert result["1REDUCE_GRAD"] == (60 + takes, 60 + 2 * takes)
    assert result["1OPTIMIZER"][0] >= result["1REDUCE_GRAD"][1]


def test_a_tables_own_update_waits_for_the_reduction_that_is_added() -> None:
    for overlap in (True, False):
        timeline = simulate(Schedule.from_rows([["0F0", "0B0", "0OPTIMIZER"]]), Workload.uniform(
            1, f_ns=10, b_ns=20, reduce_ns=7, optimizer_ns=3), overlap_reduction=overlap)  # fmt: skip

        assert spans(timeline) == {
            "0F0": (0, 10), "0B0": (10, 30), "0REDUCE_GRAD": (30, 37), "0OPTIMIZER": (37, 40),
        }  # fmt: skip


def test_a_rank_without_actions_gets_none() -> None:
    schedule = Schedule.from_rows([["0F0", "0B0"], [], ["1F0", "1B0"]])

    for overlap in (True, False):
        assert with_epilogue(schedule, costs(), overlap=overlap).rows() == [
            ["0F0", "0B0", "0REDUCE_GRAD", "0OPTIMIZER"], [], ["1F0", "1B0", "1REDUCE_GRAD", "1OPTIMIZER"],
        ]  # fmt: skip


def test_an_update_between_backwards_waits_for_its_reduction() -> None:
    row = ["0F0", "1F0", "1B0", "1REDUCE_GRAD", "1OPTIMIZER", "0B0", "0REDUCE_GRAD", "0OPTIMIZER"]
    workload = costs()

    metrics = measure(simulate(Schedule.from_rows([row]), workload), workload)

    assert metrics.idle_by_cause_ns == {
        cause: 14 if cause == "reduction" else 0 for cause in metrics.idle_by_cause_ns
    }
    assert int(metrics.idle_ns[0, IdleCause.REDUCTION]) == 14


@pytest.mark.parametrize("name", PolicyName)
def test_a_pair_whose_members_wait_for_each_other_is_refused_under_every_policy(name: PolicyName) -> None:
    schedule = Schedule.from_rows([["(0F0;1F0)OVERLAP_F_B", "1B0", "0B0"]])

    with pytest.raises(ScheduleError, match="rank 0: 1F0 needs 0F0, which is in the same overlapped pair"):
        simulate(schedule, costs(), policy=Policy(name=name))


@pytest.mark.parametrize("overlap", [True, False])
def test_ranks_meet_when_all_have_computed_and_update_behind_it(*, overlap: bool) -> None:
    schedule = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])
    workload = Workload.uniform(2, f_ns=10, b_ns=20, optimizer_ns=3)

    plain = simulate(schedule, workload, overlap_reduction=overlap)
    met = simulate(schedule, replace(workload, sync_ns=100), overlap_reduction=overlap)

    assert max(end for name, (_, end) in spans(plain).items() if "B" in name) == 90
    assert int(met.end_ns.max()) == 90 + 100 + 3
    metrics = measure(met, workload)
    assert metrics.busy_ns.tolist() == [63, 63]
    assert metrics.idle_ns[:, IdleCause.REDUCTION].tolist() == [100, 100]


def test_a_stage_on_two_ranks_is_reduced_when_both_have_its_gradients() -> None:
    both_ways = Placement.of_stages([[0, 1], [1, 0]], microbatches=2)
    rows = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    workload = Workload.uniform(2, f_ns=[10, 10], b_ns=[20, 50], reduce_ns=[7, 9])

    timeline = simulate(Schedule.from_rows(rows, placement=both_ways), workload, stage_replicas=True)

    ends = {(item.action.stage, item.rank): item.end_ns for item in slices(timeline) if str(item.action)[1] == "B"}
    starts = {
        (item.action.stage, item.rank): item.start_ns for item in slices(timeline) if "REDUCE" in str(item.action)
    }
    assert set(starts) == {(stage, rank) for stage in (0, 1) for rank in (0, 1)}
    for (stage, rank), start in starts.items():
        assert start >= max(ends[stage, 0], ends[stage, 1]), (stage, rank)
    assert min(starts.values()) == max(ends[1, 0], ends[1, 1])
