"""Simple rules give the tables of well-known schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.list_scheduler import Actions, InFlight, list_schedule
from pptrace.steps.placement import Placement
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS = {Kind.F: 1, Kind.B: 2}


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("microbatches", [1, 2, 3, 7, 8, 9, 24])
@pytest.mark.parametrize("per_rank", [False, True])
def test_few_in_flight_give_1f1b(ranks: int, microbatches: int, per_rank: bool) -> None:  # noqa: FBT001 - a parameter
    bound = ranks - np.arange(ranks)
    in_flight = InFlight(rank=bound) if per_rank else InFlight(stage=bound)

    schedule = list_schedule(Placement.looped(ranks, microbatches), SLOTS, in_flight=in_flight)

    for rank, row in enumerate(schedule.rows()):
        ahead = min(ranks - 1 - rank, microbatches)
        expected = [f"{rank}F{microbatch}" for microbatch in range(ahead)]
        for microbatch in range(microbatches - ahead):
            expected += [f"{rank}F{microbatch + ahead}", f"{rank}B{microbatch}"]
        expected += [f"{rank}B{microbatch}" for microbatch in range(microbatches - ahead, microbatches)]
        assert row == expected


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 3, 8, 24])
def test_without_a_bound_it_is_as_long_as_1f1b_and_holds_more(ranks: int, microbatches: int) -> None:
    schedule = list_schedule(Placement.looped(ranks, microbatches), SLOTS)

    costs = Workload.uniform(ranks, f_ns=1, b_ns=2, activation_bytes=1)
    measured = measure(simulate(schedule, costs), costs)
    below = range(2 * (ranks - 1), -1, -2)
    assert measured.step_ns == 3 * (microbatches + ranks - 1)
    # Until the first backward is back, a rank runs a forward in each of the slots of its round trip.
    assert measured.memory.peak_activations.tolist() == [min(microbatches, 1 + 3 * hops // 2) for hops in below]


def forwards_first(actions: Actions) -> Sequence[np.ndarray]:
    return [actions.kind != Kind.F, actions.microbatch]


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("microbatches", [1, 4, 7])
def test_forwards_first_is_gpipe(ranks: int, microbatches: int) -> None:
    schedule = list_schedule(Placement.looped(ranks, microbatches), SLOTS, priority=forwards_first)

    assert schedule.rows() == [
        [f"{rank}F{microbatch}" for microbatch in range(microbatches)]
        + [f"{rank}B{microbatch}" for microbatch in range(microbatches)]
        for rank in range(ranks)
    ]


def deepest_backward_then_earliest_forward(actions: Actions) -> Sequence[np.ndarray]:
    forward = actions.kind == Kind.F
    return [~forward, np.where(forward, actions.stage, -actions.stage), actions.microbatch]


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 4, 3), (3, 7, 2), (1, 5, 4)])
def test_forwards_first_stage_by_stage_is_breadth_first(ranks: int, microbatches: int, chunks: int) -> None:
    placement = Placement.looped(ranks, microbatches, chunks)

    schedule = list_schedule(placement, SLOTS, priority=deepest_backward_then_earliest_forward)

    for rank, row in enumerate(schedule.rows()):
        stages = range(rank, ranks * chunks, ranks)
        forwards = [f"{stage}F{microbatch}" for stage in stages for microbatch in range(microbatches)]
        assert row == forwards + [
            f"{stage}B{microbatch}" for stage in reversed(stages) for microbatch in range(microbatches)
        ]
