"""Steps whose actions consist of segments are taken apart, compared, explained and replayed action by action."""

from __future__ import annotations

import pytest
from compared_steps import MS, side_of_step
from paired_steps import ROWS, paired_step

from pptrace.measured.diff import diff
from pptrace.measured.explanation import explain
from pptrace.measured.replay import replay
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.timeline.counters import in_flight
from pptrace.timeline.metrics import phases


def test_a_step_in_segments_does_not_differ_from_itself() -> None:
    difference = diff(side_of_step(paired_step()), side_of_step(paired_step()))

    assert difference.same
    assert difference.changes == difference.orders == difference.causes == ()


@pytest.mark.parametrize("longer", [(Kind.F, 0, 1), (Kind.F, 1, 2), (Kind.B, 1, 0), (Kind.B, 0, 2)])
def test_three_milliseconds_on_one_action_are_ranked_first(longer: tuple[Kind, int, int]) -> None:
    kind, stage, microbatch = longer

    difference = diff(side_of_step(paired_step()), side_of_step(paired_step(longer)))

    assert str(difference.changes[0].action) == f"{stage}{kind.name}{microbatch}"
    assert difference.changes[0].change_ns.value == pytest.approx(3 * MS, rel=0.1)
    assert sum(rung.change_ns.value for rung in difference.ladder) == difference.step_ns.change.value


def test_a_replay_gives_the_step_again_with_one_row_per_action() -> None:
    again = replay(paired_step())

    assert again.replayed_ns == again.step.span_ns
    assert len(again.step) == 12
    assert again.step.order.rows() == Schedule.from_rows(ROWS).rows()


def test_an_explanation_names_whole_actions_and_its_parts_sum_to_the_step() -> None:
    result = explain(side_of_step(paired_step()))

    assert sum(time.value for time in result.parts_ns.values()) == result.step_ns.value
    assert sum(time.value for time in result.critical_path_ns.values()) == result.step_ns.value
    for rank, idle in zip(result.ranks, result.idle_ns, strict=True):
        assert rank.busy_ns.value + idle.value == result.step_ns.value


def test_phases_and_counters_count_actions_and_not_segments() -> None:
    timeline = paired_step()

    result = [(item.rank, item.name) for item in phases(timeline)]
    assert result == [(0, "warm-up"), (0, "cool-down"), (1, "warm-up"), (1, "steady"), (1, "cool-down")]
    computed = timeline.end_ns[timeline.lane_ptr[0] : timeline.lane_ptr[1]]
    assert phases(timeline)[1].end_ns in computed
    counts = {item.rank: int(item.value.max()) for item in in_flight(timeline)}
    assert counts == {0: 3, 1: 2}
