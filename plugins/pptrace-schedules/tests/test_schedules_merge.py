"""Merged backwards: PyTorch's rule action by action, valid tables, and collectives that are hidden again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptrace.api import simulate
from pptrace.network.contract import Flat
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate as run
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_valid_schedule
from pptrace.timeline.metrics import measure
from pptrace_schedules.plugin import pptrace_schedules
from pptrace_schedules.zero_bubble.generate import merged

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
    split, merged = (rows(name, ranks, microbatches, order="fixed", merge=merge) for merge in (False, True))

    assert_valid_schedule(merged)
    for rank in range(ranks):
        assert [str(item) for item in merged[rank]] == walked([str(item) for item in split[rank]])


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


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, ScheduleRequest]:
    name = draw(st.sampled_from(list(CHUNKS)))
    ranks, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    stages = ranks * CHUNKS[name]
    f, i, w, hidden = (
        tuple(draw(st.lists(st.integers(low, 30), min_size=stages, max_size=stages))) for low in (1, 1, 1, -5)
    )
    whole = tuple(max(item + two - less, 1) for item, two, less in zip(i, w, hidden, strict=True))
    return name, ScheduleRequest(
        ranks=ranks, microbatches=ranks * rounds, chunks=CHUNKS[name], f_ns=f, i_ns=i, w_ns=w, b_ns=whole,
        transfer_ns=draw(st.integers(0, 12)), options={"shorten": draw(st.sampled_from(["rank", "step"]))},
    )  # fmt: skip


@settings(settings.get_profile("few"))
@given(requests())
def test_a_generated_order_that_may_merge_is_no_longer_than_split_or_merged_afterwards(
    asked: tuple[str, ScheduleRequest],
) -> None:
    name, request = asked
    costs = Workload.uniform(
        request.stages, f_ns=request.f_ns, i_ns=request.i_ns, w_ns=request.w_ns, b_ns=request.b_ns
    )

    def length(table: Schedule) -> tuple[int, int]:
        assert_valid_schedule(table)
        metrics = measure(run(table, costs, Flat(latency_ns=request.transfer_ns)), costs)
        both = (metrics.pace_ns, metrics.step_ns)
        return both if request.options["shorten"] == "rank" else (both[1], both[0])

    def built(**options: object) -> Schedule:
        made = OFFERS[name].build(replace(request, options={**request.options, **options}))
        assert isinstance(made, Schedule)
        return made

    split, found = built(), built(merge=True)
    assert length(found) <= min(length(split), length(merged(split)), length(built(merge=True, order="fixed")))


def test_a_gradient_that_is_waited_for_is_handed_on_before_its_weight_gradient() -> None:
    """Merged afterwards, every backward of V-Min's chain of gradients would make the next stage wait."""
    name, ranks, microbatches = "v-min", 4, 8
    even = (6,) * (2 * ranks)
    request = ScheduleRequest(
        ranks=ranks, microbatches=microbatches, chunks=2, f_ns=even, i_ns=even, w_ns=even, b_ns=(11,) * len(even),
        options={"merge": True},
    )  # fmt: skip
    table = OFFERS[name].build(request)
    assert isinstance(table, Schedule)
    kinds = np.bincount(table.kind, minlength=int(Kind.B) + 1)

    assert kinds[Kind.B] > 0
    assert kinds[Kind.I] > 0
