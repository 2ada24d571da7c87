"""What the list scheduler cannot play is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pptrace.errors import ScheduleError
from pptrace.steps.kinds import Kind
from pptrace.steps.list_scheduler import InFlight, list_schedule
from pptrace.steps.placement import Placement

SLOTS = {Kind.F: 1, Kind.B: 2}


@pytest.mark.parametrize(
    ("in_flight", "spans", "stuck"),
    [
        (InFlight(rank=[2, 0]), {}, "rank 1: 1F0"),
        (InFlight(stage=[1, 2]), {Kind.F: 2}, "rank 0: 0F0+2"),
        (InFlight(stage=0), {}, "rank 0: 0F0"),
    ],
)
def test_a_bound_that_leaves_an_action_waiting_is_refused_with_rank_and_action(
    in_flight: InFlight, spans: dict[Kind, int], stuck: str
) -> None:
    with pytest.raises(ScheduleError) as refused:
        list_schedule(Placement.looped(2, 4), SLOTS, in_flight=in_flight, spans=spans)

    assert str(refused.value) == f"{stuck} can never start: too few microbatches may be in flight; allow more"
    assert f"rank {refused.value.rank}: {refused.value.action}" == stuck


def test_more_actions_than_memory_holds_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "100MiB")
    with pytest.raises(ScheduleError) as refused:
        list_schedule(Placement.v_shaped(64, 50_000, 4), SLOTS)

    assert str(refused.value) == (
        "25,600,000 actions would take 488 MiB of memory: take fewer, or set PPTRACE_MOST_MEMORY to allow more"
    )


def test_a_rank_that_its_own_earlier_stages_fill_up_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"^rank 0: 3F0 can never start: .* allow more$"):
        list_schedule(Placement.v_shaped(2, 2), SLOTS, in_flight=InFlight(rank=[2, -1]))


@pytest.mark.parametrize(
    ("durations", "settings", "match"),
    [
        ({Kind.F: 1}, {}, "of F and B, or of F, I and W"),
        ({Kind.F: 1, Kind.I: 1}, {}, "of F and B, or of F, I and W"),
        ({Kind.F: 1, Kind.B: 1, Kind.W: 1}, {}, "of F and B, or of F, I and W"),
        ({Kind.F: 1, Kind.B: -1}, {}, "times of B and of transfers are integers from 0"),
        ({Kind.F: 1.5, Kind.B: 2}, {}, "times of F and of transfers are integers from 0"),
        ({Kind.F: [1, 2, 3], Kind.B: 2}, {}, "broadcast"),
        (SLOTS, {"transfer": -1}, "transfers are integers from 0"),
        (SLOTS, {"spans": {Kind.F: 3}}, "4 microbatches do not fill blocks of 3 F"),
        (SLOTS, {"spans": {Kind.F: 0}}, "spans are from 1, of F, B"),
        (SLOTS, {"spans": {Kind.B: -2}}, "spans are from 1, of F, B"),
        (SLOTS, {"spans": {Kind.W: 2}}, "spans are from 1, of F, B"),
        (SLOTS, {"in_flight": InFlight(rank=[1, 2, 3])}, "broadcast"),
    ],
)
def test_wrong_durations_spans_and_bounds_are_refused(
    durations: dict[Kind, Any], settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        list_schedule(Placement.looped(2, 4), durations, **settings)


def test_a_block_of_microbatches_on_two_routes_is_refused() -> None:
    placement = Placement.of_stages([[0, 1], [1, 0]], microbatches=4)

    with pytest.raises(ValueError, match="each take one route"):
        list_schedule(placement, SLOTS, spans={Kind.F: 2})


def test_a_route_that_skips_a_stage_is_refused() -> None:
    skipping = Placement(ranks=2, stage_rank=np.array([[0, 1], [1, -1]]), microbatch_route=np.array([0, 1]))

    with pytest.raises(ValueError, match="every route visits every stage"):
        list_schedule(skipping, SLOTS)


def test_a_cycle_of_stages_is_refused() -> None:
    cycle = Placement(
        ranks=2, stage_rank=np.array([[0, 1]]), microbatch_route=np.array([0]), edges=np.array([[0, 1], [1, 0]])
    )

    with pytest.raises(ScheduleError, match=r"^the stages' graph has a cycle: no action on it can ever start$"):
        list_schedule(cycle, SLOTS)


def test_times_too_long_to_add_up_are_refused_in_one_line() -> None:
    with pytest.raises(ScheduleError, match=r"^times add up to 2\*\*62 or more: give them in a larger unit$"):
        list_schedule(Placement.looped(2, 2), {Kind.F: 2**61, Kind.B: 1})
