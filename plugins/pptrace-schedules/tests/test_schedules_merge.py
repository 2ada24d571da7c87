"""Merged backwards: PyTorch's rule action by action, valid tables, and collectives that are hidden again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pptrace.api import simulate
from pptrace.model.request import ScheduleRequest
from pptrace.schedule.table import Schedule
from pptrace.testing import assert_valid_schedule
from pptrace_schedules.plugin import pptrace_schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
CHUNKS = {"zb-h1": 1, "zb-h2": 1, "zb-v": 2, "v-half": 2, "v-min": 2, "interleaved-zb": 2}


def rows(name: str, ranks: int, microbatches: int, **options: object) -> Schedule:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=CHUNKS[name], options=options)
    schedule = OFFERS[name].build(request)
    assert isinstance(schedule, Schedule)
    return schedule


def walked(row: Sequence[str]) -> list[str]:
    """Go through a row as PyTorch's runtime does, one action and the next."""
    left, found = list(row), list[str]()
    while left:
        action = left.pop(0)
        if left and "I" in action and left[0] == action.replace("I", "W"):
            left.pop(0)
            action = action.replace("I", "B")
        found.append(action)
    return found


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 1), (3, 4), (4, 12), (8, 9)])
def test_halves_that_stand_side_by_side_are_one_action(name: str, ranks: int, microbatches: int) -> None:
    split, merged = rows(name, ranks, microbatches), rows(name, ranks, microbatches, merge=True)

    assert_valid_schedule(merged)
    for rank in range(ranks):
        assert [str(one) for one in merged[rank]] == walked([str(one) for one in split[rank]])


def test_all_reduces_of_whole_backwards_hide_behind_weight_gradients() -> None:
    """All-reduces of 1 ms: 4 m are exposed with split backwards, 2 m with merged ones."""
    work = {"name": "layer", "time": "1 ms"}
    reduce = {"name": "all-reduce", "time": "1 ms", "stream": "tensor-parallel"}
    weight = {**work, "needs": [0]}
    costs = {
        "name": "table", "alone": "overlapped",
        "segments": {"F": [work, reduce], "I": [work, reduce], "W": [work], "B": [work, reduce, weight]},
    }  # fmt: skip
    count = 12

    def step_ms(*, merge: bool) -> float:
        options = {"order": "fixed", "merge": merge}
        schedule = {"name": "zb-v", "options": options}
        return simulate(pp=1, microbatches=count, schedule=schedule, costs=costs).metrics.step_ns / 1e6

    assert step_ms(merge=False) == 2 * count * 5
    assert step_ms(merge=True) == 2 * count * 4


def test_merged_tables_have_no_closed_form() -> None:
    request = ScheduleRequest(ranks=4, microbatches=8, chunks=2, options={"merge": True})

    assert OFFERS["zb-v"].bubble(request) is None
