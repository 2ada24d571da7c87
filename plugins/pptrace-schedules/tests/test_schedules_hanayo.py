"""Hanayo's waves: their stages, their closed forms, the figures that papers print of them."""

from __future__ import annotations

from fractions import Fraction

import pytest

import pptrace
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_schedule_family, grid
from pptrace.testing.schedules import count
from pptrace.timeline.metrics import measure
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
HANAYO = OFFERS["hanayo"]


def table(ranks: int, microbatches: int, waves: int = 0, *, chunks: int = 1) -> Schedule:
    options = {"waves": waves} if waves else {}
    schedule = HANAYO.build(
        ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=options)
    )
    assert isinstance(schedule, Schedule)
    return schedule


def stated(ranks: int, microbatches: int, waves: int) -> Fraction | None:
    assert HANAYO.bubble is not None
    return HANAYO.bubble(ScheduleRequest(ranks=ranks, microbatches=microbatches, options={"waves": waves}))


def length(schedule: Schedule) -> Fraction:
    """Return the table's length in times of a rank's whole share of the model: a forward of 1, a backward of 2."""
    costs = Workload.uniform(schedule.stages, f_ns=1, b_ns=2)
    return Fraction(measure(simulate(schedule, costs), costs).step_ns * schedule.ranks, schedule.stages)


@pytest.mark.parametrize("waves", [1, 2, 3])
def test_every_size_makes_a_table_with_the_stated_figures(waves: int) -> None:
    sizes = grid(ranks=(1, 2, 3, 4, 5), microbatches=(1, 2, 3, 4, 5, 8, 9, 16), options={"waves": waves})
    largest = grid(ranks=(8,), microbatches=(27,), options={"waves": waves})

    assert_schedule_family(HANAYO, sizes=[*sizes, *largest], growth=False)


def test_chunks_that_are_written_make_waves_too() -> None:
    sizes = grid(ranks=(1, 2, 3, 4), microbatches=(1, 2, 3, 4, 5, 8), chunks=(2, 4, 6))

    assert_schedule_family(HANAYO, sizes=sizes, growth=False)


@pytest.mark.parametrize(("chunks", "waves"), [(2, 1), (4, 2), (6, 3), (1, 2)])
def test_waves_are_half_the_chunks_and_two_unless_said(chunks: int, waves: int) -> None:
    assert table(3, 5, chunks=chunks) == table(3, 5, waves)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_stages_run_down_the_ranks_and_up_again(ranks: int, waves: int) -> None:
    placement = table(ranks, 2, waves).placement

    down = list(range(ranks))
    assert placement.stage_rank.tolist() == [(down + down[::-1]) * waves]
    for rank in range(ranks):
        ways = [chunk * ranks + (rank if chunk % 2 == 0 else ranks - 1 - rank) for chunk in range(2 * waves)]
        assert placement.stages_of(rank) == ways


def test_two_waves_on_eight_ranks_idle_as_the_tabular_study_prints() -> None:
    chimera = OFFERS["chimera"].build(ScheduleRequest(ranks=8, microbatches=8))
    assert isinstance(chimera, Schedule)

    assert length(table(8, 8, 2)) == 31
    assert count(table(8, 8, 2)).bubble == stated(8, 8, 2) == Fraction(7, 31)
    assert round(1000 * Fraction(7, 31)) == 226
    assert length(chimera) == 36
    assert round(1000 * (Fraction(31, 36) - 1)) == -139


@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_lengths_are_the_documented_ones(ranks: int, waves: int) -> None:
    for microbatches in range(1, ranks + 1):
        assert length(table(ranks, microbatches, waves)) == 3 * ranks + Fraction(2 * microbatches - 2, waves)
    for batches in (2, 3, 5):
        microbatches = batches * ranks
        steady = microbatches * (3 + Fraction(ranks - 1, ranks * waves))
        assert length(table(ranks, microbatches, waves)) == steady + Fraction(2 * ranks - 3, 2 * waves)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_the_papers_own_regime_and_what_it_prints_for_it(ranks: int, waves: int) -> None:
    own = Fraction(2 * ranks - 2, 3 * ranks * waves + 2 * ranks - 2)
    printed = Fraction(2 * ranks - 2, 3 * ranks * waves + ranks - 1)

    assert count(table(ranks, ranks, waves)).bubble == stated(ranks, ranks, waves) == own < printed


@pytest.mark.parametrize("microbatches", [1, 4, 8, 16, 64])
def test_more_waves_idle_less_and_one_rank_never_does(microbatches: int) -> None:
    bubbles = [count(table(8, microbatches, waves)).bubble for waves in (1, 2, 4)]

    assert bubbles[0] > bubbles[1] > bubbles[2] or microbatches == 1
    assert count(table(1, microbatches, 2)).bubble == stated(1, microbatches, 2) == 0


@pytest.mark.parametrize("waves", [1, 2])
def test_beyond_its_regime_a_bubble_stays_and_memory_does_too(waves: int) -> None:
    ranks = 4
    left = Fraction(ranks - 1, 3 * ranks * waves + ranks - 1)

    bubbles = [count(table(ranks, microbatches, waves)).bubble for microbatches in (4, 16, 64, 256)]

    assert bubbles == sorted(bubbles, reverse=True)
    assert left < bubbles[-1] < left + Fraction(1, 100)
    assert count(OFFERS["1f1b"].build(ScheduleRequest(ranks=ranks, microbatches=256))).bubble < left
    for microbatches in (8, 64, 256):
        assert max(count(table(ranks, microbatches, waves)).peak_activations) == 2 * waves * ranks


@pytest.mark.parametrize("microbatches", [5, 6, 7, 9, 11, 13])
def test_sizes_between_multiples_of_the_ranks_have_tables_and_no_formula(microbatches: int) -> None:
    assert stated(4, microbatches, 2) is None
    whole, rest = length(table(4, microbatches - microbatches % 4, 2)), length(table(4, microbatches % 4, 2))
    assert whole < length(table(4, microbatches, 2)) < whole + rest


def test_one_copy_of_the_model() -> None:
    copies = table(8, 8, 2).placement.copies()

    assert copies.sum(axis=0).tolist() == [1] * 32
    assert copies.sum(axis=1).tolist() == [4] * 8


@pytest.mark.parametrize(("options", "chunks"), [({}, 4), ({"waves": 3}, 6)])
def test_a_step_has_the_chunks_that_the_waves_ask_for(options: dict[str, int], chunks: int) -> None:
    run = pptrace.simulate(schedule={"name": "hanayo", "options": options}, pp=4, microbatches=4, network="ideal")

    assert run.prepared.schedule.stages == 4 * chunks
    assert run.prepared.resolved.experiment.parallel.vp == chunks
    assert run.metrics.bubble == stated(4, 4, chunks // 2)
