"""A placement is read off a table: each stage is where its actions are."""

from __future__ import annotations

import pytest
from hypothesis import given
from strategies import placements, valid_schedules

from pptrace.errors import ScheduleError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule


def test_stages_are_where_their_actions_are() -> None:
    placement = Schedule.from_rows([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]]).placement

    assert placement == Placement.v_shaped(ranks=2, microbatches=1)


def test_microbatches_on_other_ranks_take_another_route() -> None:
    placement = Schedule.from_rows([["1F0", "0F1", "1B0", "0B1"], ["0F0", "1F1", "0B0", "1B1"]]).placement

    assert placement.stage_rank.tolist() == [[1, 0], [0, 1]]
    assert placement.microbatch_route.tolist() == [0, 1]


def test_a_span_covers_all_its_microbatches() -> None:
    placement = Schedule.from_rows([["0F0+3", "0B0+3"]]).placement

    assert placement == Placement.looped(ranks=1, microbatches=3)


def test_where_ranks_disagree_the_lowest_has_the_stage() -> None:
    placement = Schedule.from_rows([["0F0", "0B0"], ["0F0", "1F0", "1B0"]]).placement

    assert placement.stage_rank.tolist() == [[0, 1]]


def test_an_action_of_a_stage_alone_places_it() -> None:
    assert Schedule.from_rows([["0F0", "0B0"], ["1OPTIMIZER"]]).placement.stage_rank.tolist() == [[0, 1]]
    assert Schedule.from_rows([["0OPTIMIZER"]]).placement.microbatches == 0


def test_a_table_without_actions_has_no_stage() -> None:
    assert Schedule.from_rows([[], []]).placement.stages == 0


@pytest.mark.parametrize("cell", ["0F500000000", "500000000F0", "0F0+2000000000", "2147483647F2147483647",
                                  "500000000OPTIMIZER"])  # fmt: skip
def test_a_number_far_beyond_the_actions_is_refused_before_memory_is_taken(cell: str) -> None:
    with pytest.raises(ScheduleError, match="is out of range: a table of 3 actions cannot fill") as caught:
        Schedule.from_rows([["0F0", "0B0", cell]])

    assert (caught.value.rank, caught.value.position, caught.value.action) == (0, 2, cell)


def test_actions_with_numbers_below_zero_place_nothing() -> None:
    rows = [
        ["0F0", Action(kind=Kind.F, stage=-1, microbatch=0), Action(kind=Kind.F, stage=0, microbatch=-2), "0B0"]
    ]

    assert Schedule.from_rows(rows).placement == Placement.looped(ranks=1, microbatches=1)


@given(valid_schedules())
def test_every_action_is_on_the_rank_that_the_placement_names(schedule: Schedule) -> None:
    for rank in range(schedule.ranks):
        for action in schedule[rank]:
            for member in action.sub_actions or (action,):
                for microbatch in range(member.microbatch, member.microbatch + member.span):
                    assert schedule.placement.rank_of(member.stage, microbatch) == rank


@given(placements())
def test_a_placement_comes_back_from_any_table_over_it(placement: Placement) -> None:
    rows: list[list[str]] = [[] for _ in range(placement.ranks)]
    for microbatch in range(placement.microbatches):
        for stage in range(placement.stages):
            rows[placement.rank_of(stage, microbatch)].append(f"{stage}F{microbatch}")

    assert Schedule.from_rows(rows).placement == placement
