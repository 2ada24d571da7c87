"""Steps whose actions consist of segments are taken apart, compared, explained and replayed action by action."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from compared_steps import MS, side_of_step

from pptrace.analysis.diff.step_diff import diff
from pptrace.analysis.explanation.explanation import explain
from pptrace.analysis.steps.replay import replay
from pptrace.model.kinds import Kind, Stream
from pptrace.model.segments import Segment
from pptrace.model.workload import Workload
from pptrace.network.flat import Flat
from pptrace.schedule.table import Schedule
from pptrace.sim.simulate import simulate
from pptrace.timeline.counters import in_flight
from pptrace.timeline.order import computed_order
from pptrace.timeline.phases import phases

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

ROWS = [
    ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"],
    ["1F0", "(1F1;1B0)OVERLAP_F_B", "(1F2;1B1)OVERLAP_F_B", "1B2"],
]
REDUCE = Segment(name="all-reduce", duration_ns=2 * MS, stream=Stream.TENSOR_PARALLEL)
FORWARD = (
    Segment(name="attention", duration_ns=3 * MS), REDUCE, Segment(name="mlp", duration_ns=5 * MS), REDUCE,
)  # fmt: skip
BACKWARD = (
    Segment(name="mlp-input", duration_ns=5 * MS), REDUCE,
    Segment(name="mlp-weight", duration_ns=5 * MS, needs=(0,)),
    Segment(name="attention-input", duration_ns=3 * MS, needs=(1,)), replace(REDUCE, needs=(3,)),
    Segment(name="attention-weight", duration_ns=3 * MS, needs=(3,)),
)  # fmt: skip


def step(longer: tuple[Kind, int, int] | None = None) -> Timeline:
    """Simulate two ranks with overlapped pairs; 3 ms are added to one action of a kind, stage and microbatch."""
    whole = Workload.uniform(2, boundary_bytes=1000)
    costs = whole.segmented({Kind.F: [FORWARD] * 2, Kind.B: [BACKWARD] * 2})
    if longer is not None:
        kind, stage, unit = longer
        segments = {Kind.F: [FORWARD] * 2, Kind.B: [BACKWARD] * 2}
        first, *rest = segments[kind][stage]
        segments[kind][stage] = (replace(first, duration_ns=first.duration_ns + 3 * MS), *rest)
        other = [int(each == unit) for each in range(3)]
        costs = replace(costs, classes=(whole.segmented(segments),), microbatch_class=other)
    table = replace(Schedule.from_rows(ROWS), interleave={(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)})
    return simulate(table, costs, Flat(latency_ns=1000, rate_kbps=10**6))


def test_a_step_in_segments_does_not_differ_from_itself() -> None:
    found = diff(side_of_step(step()), side_of_step(step()))

    assert found.same
    assert found.changes == found.orders == found.culprits == ()


@pytest.mark.parametrize("longer", [(Kind.F, 0, 1), (Kind.F, 1, 2), (Kind.B, 1, 0), (Kind.B, 0, 2)])
def test_three_milliseconds_on_one_action_are_ranked_first(longer: tuple[Kind, int, int]) -> None:
    kind, stage, unit = longer

    found = diff(side_of_step(step()), side_of_step(step(longer)))

    assert str(found.changes[0].action) == f"{stage}{kind.name}{unit}"
    assert found.changes[0].change_ns.value == pytest.approx(3 * MS, rel=0.1)
    assert sum(one.change_ns.value for one in found.ladder) == found.step_ns.change.value


def test_a_replay_gives_the_step_again_with_one_row_per_action() -> None:
    again = replay(step())

    assert again.replayed_ns == again.step.span_ns
    assert len(again.step) == computed_order(step()).kind.size == 12
    assert again.step.order.rows() == Schedule.from_rows(ROWS).rows()


def test_an_explanation_names_whole_actions_and_its_parts_sum_to_the_step() -> None:
    found = explain(side_of_step(step()))

    assert sum(time.value for time in found.parts_ns.values()) == found.step_ns.value
    assert sum(time.value for time in found.critical_path_ns.values()) == found.step_ns.value
    for rank, idle in zip(found.ranks, found.idle_ns, strict=True):
        assert rank.busy_ns.value + idle.value == found.step_ns.value


def test_phases_and_counters_count_actions_and_not_segments() -> None:
    timeline = step()

    assert [(one.rank, one.name) for one in phases(timeline)][:2] == [(0, "warm-up"), (0, "cool-down")]
    counts = {one.rank: int(one.value.max()) for one in in_flight(timeline)}
    assert counts == {0: 3, 1: 2}
