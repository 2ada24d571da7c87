"""Closed forms equal what the tables themselves take and hold, exactly, over a grid of sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_schedule_family, grid
from pptrace.testing.schedules import count
from pptrace.timeline.metrics import measure
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
MICROBATCHES = (8, 16, 32, 64, 128, 256)


def table(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    schedule = OFFERS[name].build(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks))
    assert isinstance(schedule, Schedule)
    return schedule


def stated_bubble(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Fraction:
    bubble = OFFERS[name].bubble
    assert bubble is not None
    return bubble(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks))


def step_ns(name: str, ranks: int, microbatches: int, chunks: int = 1) -> int:
    schedule = table(name, ranks, microbatches, chunks)
    costs = Workload.uniform(ranks * chunks, f_ns=1, b_ns=2)
    return measure(simulate(schedule, costs), costs).step_ns


@pytest.mark.parametrize("name", OFFERS)
def test_closed_forms_hold_for_every_size_that_the_schedule_takes(name: str) -> None:
    sizes = grid(ranks=(1, 2, 3, 6), microbatches=(1, 2, 6, 9), chunks=(1, 2, 3))

    assert_schedule_family(OFFERS[name], sizes=sizes, growth=False)


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "interleaved-zb"])
def test_closed_forms_of_fixed_orders_hold_for_every_size(name: str) -> None:
    sizes = grid(ranks=(1, 2, 3, 6), microbatches=(1, 2, 6, 9), chunks=(1, 2), options={"order": "fixed"})

    assert_schedule_family(OFFERS[name], sizes=sizes, growth=False)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "slots"), [("v-half", 2, 4, 25), ("v-min", 3, 6, 41), ("zb-v", 8, 8, 55)]
)
def test_orders_for_equal_times_are_generated_by_default(
    name: str, ranks: int, microbatches: int, slots: int
) -> None:
    chunks = 2
    made = count(table(name, ranks, microbatches, chunks))

    assert 1 - made.bubble == Fraction(3 * chunks * microbatches, slots)
    assert stated_bubble(name, ranks, microbatches, chunks) == made.bubble


@pytest.mark.parametrize("name", OFFERS)
def test_generation_grows_as_the_table_does(name: str) -> None:
    chunks = 2 if name in {"interleaved-1f1b", "combined-1f1b", "interleaved-zb", "zb-v", "v-half", "v-min"} else 1

    assert_schedule_family(OFFERS[name], sizes=grid(ranks=(8,), microbatches=(64,), chunks=(chunks,)))


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_gpipe_and_1f1b_idle_alike_and_as_the_tabular_study_prints(ranks: int, microbatches: int) -> None:
    printed = Fraction(ranks - 1, microbatches + ranks - 1)

    for name in ("gpipe", "1f1b"):
        assert count(table(name, ranks, microbatches)).bubble == printed
        assert stated_bubble(name, ranks, microbatches) == printed
    assert (
        step_ns("gpipe", ranks, microbatches)
        == step_ns("1f1b", ranks, microbatches)
        == 3 * (microbatches + ranks - 1)
    )


@pytest.mark.parametrize(
    ("name", "chunks", "units_of_time"),
    [("gpipe", 1, 213), ("1f1b", 1, 213), ("interleaved-1f1b", 2, 405), ("looped-bfs", 2, 405)],
)
def test_the_step_of_8_ranks_and_64_microbatches(name: str, chunks: int, units_of_time: int) -> None:
    assert step_ns(name, 8, 64, chunks) == units_of_time


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "chunks", "units_of_time"),
    [
        ("gpipe", 8, 3, 1, 3 * 10),
        ("1f1b", 8, 3, 1, 3 * 10),
        ("interleaved-1f1b", 8, 3, 2, 3 * (16 + 2)),
        ("looped-bfs", 8, 3, 2, 3 * (16 + 2)),
        ("gpipe", 1, 5, 1, 3 * 5),
        ("1f1b", 1, 5, 1, 3 * 5),
        ("interleaved-1f1b", 1, 5, 2, 3 * 10),
        ("looped-bfs", 1, 5, 3, 3 * 15),
        ("gpipe", 4, 1, 1, 3 * 4),
        ("1f1b", 4, 1, 1, 3 * 4),
        ("interleaved-1f1b", 4, 1, 3, 3 * 12),
        ("looped-bfs", 4, 1, 3, 3 * 12),
    ],
)
def test_few_microbatches_one_rank_and_one_microbatch(
    name: str, ranks: int, microbatches: int, chunks: int, units_of_time: int
) -> None:
    assert step_ns(name, ranks, microbatches, chunks) == units_of_time


@pytest.mark.parametrize("microbatches", [1, 3, 4, 5, 32])
def test_1f1b_holds_no_more_microbatches_than_ranks_lie_below(microbatches: int) -> None:
    counted = count(table("1f1b", 4, microbatches))

    assert counted.peak_activations == tuple(min(4 - rank, microbatches) for rank in range(4))


def test_interleaving_halves_the_bubble_against_the_ideal_time() -> None:
    plain, halved = stated_bubble("1f1b", 8, 64), stated_bubble("interleaved-1f1b", 8, 64, 2)

    assert plain / (1 - plain) == Fraction(7, 64)
    assert halved / (1 - halved) == Fraction(7, 128)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_of_a_fixed_batch_gpipe_holds_all_and_1f1b_the_less_the_more_it_is_cut(
    ranks: int, microbatches: int
) -> None:
    eager, alternating = (count(table(name, ranks, microbatches)).peak_activations for name in ("gpipe", "1f1b"))
    microbatch = Fraction(1, microbatches)

    assert set(eager) == {microbatches}
    assert alternating == tuple(min(ranks - stage, microbatches) for stage in range(ranks))
    assert max(eager) * microbatch == 1
    assert max(alternating) * microbatch == min(1, ranks * microbatch)
    assert (max(alternating) < max(eager)) == (microbatches > ranks)
