"""Gradients may be validated before ranks update their weights, or after."""

from __future__ import annotations

import pytest

import pptrace

pytestmark = pytest.mark.needs_plugins

COSTS = {
    "name": "table", "forward": "10 us", "backward": "20 us", "reduction": "5 us", "sync": "7 us",
    "update": "3 us",
}  # fmt: skip


def step(validation: str, schedule: str = "zb-h2", **more: object) -> pptrace.Run:
    return pptrace.simulate(
        schedule=schedule, pp=4, microbatches=16, costs=COSTS, network="ideal",
        data_parallel={"validation": validation, **more},
    )  # fmt: skip


def test_before_the_update_all_ranks_meet() -> None:
    run = step("before", overlap=True)

    assert run.metrics.step_ns == 480_000 + 30_000 + 5_000 + 7_000 + 3_000
    assert run.metrics.pace_ns <= run.metrics.step_ns


def test_after_it_no_rank_waits_for_another() -> None:
    run = step("after")

    assert run.metrics.step_ns == 480_000 + 30_000 + 5_000 + 3_000
    assert run.metrics.pace_ns == 480_000 + 5_000 + 3_000
    assert "pace 488 us" in run.summary()
    assert run.to_dict()["pace_ns"] == 488_000


def test_a_failed_one_is_undone_and_done_again_behind_a_meeting() -> None:
    assert step("failed").metrics.step_ns == step("before", overlap=True).metrics.step_ns + 6_000


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_schedule_whose_first_rank_works_to_the_end_gains_the_meeting_alone(schedule: str) -> None:
    run = step("after", schedule)

    assert run.metrics.pace_ns == run.metrics.step_ns
