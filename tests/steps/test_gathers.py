"""Gathers of sharded weights and reductions of each microbatch: where tables get them, and what they cost."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.config.choices import Reshard
from pptrace.errors import ScheduleError
from pptrace.memo import Memo, memoizing
from pptrace.sim.simulation import simulate
from pptrace.steps.action_insertion import with_gathers, with_reductions
from pptrace.steps.kinds import COMPUTE, Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure
from pptrace_kernel import always_compiled
from tests.strategies import valid_schedules

ONE = np.ones(1, dtype=bool)


def spans(schedule: Schedule, workload: Workload) -> dict[str, list[tuple[int, int]]]:
    timeline = simulate(schedule, workload)
    found: dict[str, list[tuple[int, int]]] = {}
    for row in range(len(timeline)):
        one = timeline[row]
        found.setdefault(str(one.action), []).append((one.start_ns, one.end_ns))
    return found


def test_weights_that_are_never_freed_in_between_are_gathered_once() -> None:
    made = with_gathers(Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"]]), ONE, Reshard.NEVER, 3)

    assert made.rows() == [["0UNSHARD", "0F0", "0F1", "0B0", "0B1", "0RESHARD"]]


def test_weights_freed_behind_forwards_are_gathered_for_the_backward_one_computation_ahead() -> None:
    made = with_gathers(Schedule.from_rows([["0F0", "0B0", "0F1", "0B1"]]), ONE, Reshard.FORWARD)

    assert made.rows() == [
        ["0UNSHARD", "0UNSHARD", "0F0", "0RESHARD", "0B0", "0UNSHARD", "0F1", "0RESHARD", "0B1", "0RESHARD"]
    ]


def test_weights_freed_behind_every_pass_are_gathered_for_each() -> None:
    made = with_gathers(Schedule.from_rows([["0F0", "0B0", "0F1", "0B1"]]), ONE, Reshard.ALWAYS)

    found = spans(made, Workload.uniform(1, f_ns=10, b_ns=20, unshard_ns=15))
    # Each gather runs beside the computation ahead of its own, behind the gather before it.
    assert found["0UNSHARD"] == [(0, 15), (15, 30), (30, 45), (50, 65)]
    assert [found[name] for name in ("0F0", "0B0", "0F1", "0B1")] == [
        [(15, 25)],
        [(30, 50)],
        [(50, 60)],
        [(65, 85)],
    ]


@given(active=st.integers(1, 3), ahead=st.integers(1, 3), schedule=valid_schedules())
def test_the_stages_that_compute_next_are_gathered(active: int, ahead: int, schedule: Schedule) -> None:
    lookahead = [min(ahead, active)] * schedule.ranks
    made = with_gathers(schedule, np.ones(schedule.stages, dtype=bool), Reshard.NEVER, active, lookahead)
    with always_compiled():
        compiled = with_gathers(schedule, np.ones(schedule.stages, dtype=bool), Reshard.NEVER, active, lookahead)

    assert compiled == made
    validate(made)
    for row in made.rows():
        gathered: set[int] = set()
        for position, cell in enumerate(row):
            stage = int(re.findall(r"\d+", cell)[0])
            if cell.endswith("UNSHARD"):
                gathered.add(stage)
            elif cell.endswith("RESHARD"):
                gathered.remove(stage)
            else:
                assert next_stages(row[position:], lookahead[0]) <= gathered <= next_stages(row[position:], active)
        assert not gathered


def next_stages(cells: list[str], count: int) -> set[int]:
    """Return the stages of the first computations and whole pairs that have as many."""
    stages: set[int] = set()
    for cell in cells:
        if len(stages) < count and not cell.endswith("SHARD"):
            stages |= {int(stage) for stage in re.findall(r"(\d+)[FBIW]\d", cell)}
    return stages


@given(reshard=st.sampled_from([Reshard.FORWARD, Reshard.ALWAYS]), schedule=valid_schedules())
def test_every_pass_finds_its_weights_and_none_stay(reshard: Reshard, schedule: Schedule) -> None:
    made = with_gathers(schedule, np.ones(schedule.stages, dtype=bool), reshard)

    validate(made)
    ahead = np.zeros((made.ranks, made.stages), dtype=int)
    for row in range(len(made)):
        kind, stage, rank = Kind(int(made.kind[row])), int(made.stage[row]), made.rank_at(row)
        ahead[rank, stage] += (kind is Kind.UNSHARD) - (kind is Kind.RESHARD)
        assert kind not in COMPUTE or ahead[rank, stage] > 0
    assert not ahead.any()


def test_gathered_weights_count_once_and_whole_gradients_until_they_are_reduced() -> None:
    table = Schedule.from_rows([["0F0", "0B0", "0F1", "0B1"]])
    workload = Workload.uniform(
        1, f_ns=10, b_ns=20, unshard_ns=15, reduce_ns=5, weights_bytes=3, gathered_bytes=100, gradients_bytes=7,
        unreduced_bytes=1000, activation_bytes=50,
    )  # fmt: skip
    for made in (with_gathers(table, ONE, reshard, 3) for reshard in Reshard):
        memory = measure(simulate(made, workload), workload).memory
        assert memory.peak_bytes.tolist() == [3 + 100 + 7 + 1000 + 50]
        assert memory.static_bytes.tolist() == [3 + 7]
        assert (memory.weights_bytes.tolist(), memory.gradients_bytes.tolist()) == ([103], [1007])

    each = with_reductions(table, ONE)
    slow = Workload.uniform(1, f_ns=10, b_ns=20, reduce_ns=45, gradients_bytes=7, unreduced_bytes=1000)
    # The first microbatch's gradients are still on their way when the second one's backward begins.
    assert measure(simulate(each, slow), slow).memory.gradients_bytes.tolist() == [7 + 2 * 1000]
    assert spans(each, slow)["0REDUCE_GRAD"] == [(30, 75), (75, 120)]


def test_steps_that_share_results_have_one_table_for_equal_gathers_and_reductions() -> None:
    table = Schedule.from_rows([["0F0", "1F0", "1B0", "0B0", "0F1", "1F1", "1B1", "0B1"]])
    first_alone, both = np.array([True, False]), np.array([True, True])
    changes = [
        *((with_gathers, (stages, reshard, 2)) for stages in (first_alone, both) for reshard in Reshard),
        (with_gathers, (both, Reshard.ALWAYS, None, (), 1)),
        *((with_reductions, arguments) for arguments in ((first_alone,), (both,), (both, first_alone))),
        (with_gathers, (both, None)),
    ]
    alone = [change(table, *arguments) for change, arguments in changes]

    with memoizing(Memo()):
        first, again = ([change(table, *arguments) for change, arguments in changes] for _ in range(2))

    assert [made.rows() for made in first] == [made.rows() for made in alone]
    assert [id(made) for made in first] == [id(made) for made in again]


def test_reductions_of_each_microbatch_stand_behind_their_backward() -> None:
    made = with_reductions(Schedule.from_rows([["0F0", "0F1", "0I0", "0W0", "0B1"]]), ONE)

    validate(made)
    assert made.rows() == [["0F0", "0F1", "0I0", "0W0", "0REDUCE_GRAD", "0B1", "0REDUCE_GRAD"]]


@pytest.mark.parametrize("row", [
    ["0F0", "0F1", "0B0", "0REDUCE_GRAD", "0REDUCE_GRAD", "0B1", "0REDUCE_GRAD"],
    ["0F0", "0F1", "0B0", "0REDUCE_GRAD", "0B1"],
    ["0F0", "0F1", "0REDUCE_GRAD", "0B0", "0B1", "0REDUCE_GRAD"],
])  # fmt: skip
def test_a_reduction_of_nothing_new_and_one_that_leaves_a_backward_out_are_refused(row: list[str]) -> None:
    with pytest.raises(ScheduleError, match="0REDUCE_GRAD"):
        validate(Schedule.from_rows([row]))
