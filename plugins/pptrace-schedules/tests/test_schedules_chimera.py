"""Chimera's four constructions: what they promise, the figures that papers print of them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_schedule_family, assert_valid_schedule, grid
from pptrace.testing.schedules import count
from pptrace.timeline.metrics import measure
from pptrace_schedules.plugin import pptrace_schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.timeline.metrics import Metrics

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
CHIMERA = OFFERS["chimera"]
SCALES = ("merged", "concatenation", "forward-doubling", "backward-halving")
MICROBATCHES = (8, 16, 32, 64, 128, 256)


def request(ranks: int, microbatches: int, times: Sequence[int] = (), **options: Any) -> ScheduleRequest:
    backward = tuple(2 * time for time in times)
    return ScheduleRequest(
        ranks=ranks, microbatches=microbatches, f_ns=tuple(times), b_ns=backward, options=options
    )


def table(
    ranks: int, microbatches: int, times: Sequence[int] = (), *, name: str = "chimera", **options: Any
) -> Schedule:
    schedule = OFFERS[name].build(request(ranks, microbatches, times, **options))
    assert isinstance(schedule, Schedule)
    return schedule


def run(schedule: Schedule, times: Sequence[int] = ()) -> Metrics:
    """Simulate with a backward of two forwards and free messages; activations weigh what forwards take."""
    forward = list(times) or [1] * schedule.stages
    backward = [2 * time for time in forward]
    costs = Workload.uniform(schedule.stages, f_ns=forward, b_ns=backward, activation_bytes=forward)
    return measure(simulate(schedule, costs), costs)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("pipelines", [2, 4, 6])
def test_every_size_that_is_taken_makes_a_table_with_the_stated_figures(scale: str, pipelines: int) -> None:
    options = {"scale": scale, "pipelines": pipelines}
    sizes = grid(ranks=(1, 2, 3, 4, 6, 8, 12), microbatches=(1, 2, 3, 4, 6, 8, 12, 16), options=options)

    assert_schedule_family(CHIMERA, sizes=sizes, growth=False)


@pytest.mark.parametrize("scale", SCALES)
def test_several_units_have_the_stated_figures(scale: str) -> None:
    sizes = grid(ranks=(8,), microbatches=(32,), options={"scale": scale})

    assert_schedule_family(CHIMERA, sizes=sizes, growth=False)


@pytest.mark.parametrize("scale", SCALES)
def test_generation_grows_as_the_table_does(scale: str) -> None:
    assert_schedule_family(CHIMERA, sizes=grid(ranks=(8,), microbatches=(16,), options={"scale": scale}))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("times", [(1, 1, 2, 2), (2, 2, 1, 1), (5, 1, 3, 2), (0, 1, 1, 0), (3, 3, 3, 3)])
@pytest.mark.parametrize("microbatches", [4, 8, 24])
def test_tables_for_uneven_stages_are_valid_and_repeatable(
    scale: str, times: tuple[int, ...], microbatches: int
) -> None:
    schedule = table(4, microbatches, times, scale=scale)

    assert_valid_schedule(schedule)
    assert schedule == table(4, microbatches, times, scale=scale)


def test_the_basic_unit_reads_as_documented() -> None:
    rows = [
        "F0 F2 F1 B1 F3 B3 B0 B2",
        "F0 F1 F2 F3 B1 B0 B3 B2",
        "F1 F0 F3 F2 B0 B1 B2 B3",
        "F1 F3 F0 B0 F2 B2 B1 B3",
    ]

    for rank, row in enumerate(table(4, 4).rows()):
        down, up = str(rank), str(3 - rank)
        assert row == [(up if int(cell[1:]) % 2 else down) + cell for cell in rows[rank].split()]


def test_directions_mirror_each_other() -> None:
    placement = table(8, 8).placement

    assert placement.stage_rank.tolist() == [list(range(8)), list(range(7, -1, -1))]
    assert placement.microbatch_route.tolist() == [0, 1] * 4


@pytest.mark.parametrize(("ranks", "pipelines"), [(4, 2), (4, 4), (8, 2), (8, 4), (8, 8), (12, 6)])
def test_a_rank_holds_as_many_stages_as_there_are_pipelines(ranks: int, pipelines: int) -> None:
    placement = table(ranks, ranks, pipelines=pipelines).placement

    assert placement.routes == pipelines
    assert {len(placement.stages_of(rank)) for rank in range(ranks)} == {pipelines}
    assert [sorted(route) for route in placement.stage_rank.tolist()] == [list(range(ranks))] * pipelines


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_as_many_pipelines_as_ranks_leave_no_bubble_in_equal_slots(ranks: int, batches: int) -> None:
    schedule = table(ranks, batches * ranks, pipelines=ranks, scale="concatenation")
    costs = Workload.uniform(ranks, f_ns=1, b_ns=1)

    assert measure(simulate(schedule, costs), costs).step_ns == 2 * batches * ranks
    assert CHIMERA.bubble is not None
    assert CHIMERA.bubble(request(ranks, ranks, pipelines=ranks)) == 0


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16])
def test_the_microbatch_in_equal_slots_has_the_papers_length_and_in_real_ones_its_bubble(ranks: int) -> None:
    schedule = table(ranks, ranks)
    equal = Workload.uniform(ranks, f_ns=1, b_ns=1)

    assert measure(simulate(schedule, equal), equal).step_ns == 2 * ranks + ranks - 2
    assert count(schedule).bubble == Fraction(2 * ranks - 4, 5 * ranks - 4)


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16])
def test_the_microbatch_holds_half_the_ranks_and_some_more(ranks: int) -> None:
    held = count(table(ranks, ranks)).peak_activations

    assert held == tuple(ranks // 2 + 1 + min(rank, ranks - 1 - rank) for rank in range(ranks))
    assert max(held) == ranks


@pytest.mark.parametrize(
    ("ranks", "microbatches", "length", "bubble"), [(8, 16, 65, 26), (4, 16, 55, 13), (8, 8, 36, 33)]
)
def test_tables_are_as_long_as_the_tabular_study_prints(
    ranks: int, microbatches: int, length: int, bubble: int
) -> None:
    schedule = table(ranks, microbatches)

    assert run(schedule).step_ns == length
    assert count(schedule).bubble == 1 - Fraction(3 * microbatches, length)
    assert round(100 * count(schedule).bubble) == bubble


@pytest.mark.parametrize(("ranks", "printed"), [(8, 16), (4, 6)])
def test_the_formula_is_the_one_that_the_tabular_study_prints(ranks: int, printed: int) -> None:
    assert CHIMERA.bubble is not None
    stated = CHIMERA.bubble(request(ranks, 16))

    assert stated == Fraction(ranks - 2, 2 * 16 + ranks - 2)
    assert round(100 * stated) == printed


@pytest.mark.parametrize("ranks", [4, 8])
def test_tables_lie_between_the_formula_and_gpipe_and_come_close_to_it(ranks: int) -> None:
    assert CHIMERA.bubble is not None
    gaps = list[Fraction]()
    for microbatches in MICROBATCHES:
        stated, counted = CHIMERA.bubble(request(ranks, microbatches)), count(table(ranks, microbatches)).bubble
        assert stated is not None
        assert stated < counted < count(table(ranks, microbatches, name="gpipe")).bubble
        gaps.append(counted - stated)

    assert gaps[-1] < Fraction(1, 100) < Fraction(6, 100) < gaps[0]


def test_merged_bubbles_over_all_microbatches() -> None:
    lengths = {8: (36, 65, 110, 206, 398, 782), 4: (29, 55, 102, 196, 389, 775)}

    for ranks, expected in lengths.items():
        assert tuple(run(table(ranks, microbatches)).step_ns for microbatches in MICROBATCHES) == expected


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_merged_holds_at_most_what_its_pipelines_may(ranks: int, microbatches: int) -> None:
    held = count(table(ranks, microbatches)).peak_activations

    allowed = [2 * (ranks - rank) - 1 + 2 * (rank + 1) - 1 for rank in range(ranks)]
    assert all(most <= bound for most, bound in zip(held, allowed, strict=True))
    assert max(held) <= 2 * ranks - 2 or microbatches <= ranks


@pytest.mark.parametrize(("ranks", "pipelines"), [(2, 2), (4, 2), (4, 4), (6, 2), (8, 2), (8, 4)])
@pytest.mark.parametrize("batches", [1, 2, 4, 16])
def test_concatenation_of_even_stages_never_holds_more_than_the_ranks(
    ranks: int, pipelines: int, batches: int
) -> None:
    schedule = table(ranks, batches * ranks, pipelines=pipelines, scale="concatenation")

    assert max(count(schedule).peak_activations) == ranks
    unit = run(table(ranks, ranks, pipelines=pipelines)).step_ns
    assert run(schedule).step_ns <= batches * unit


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 8), (4, 32), (8, 16)])
def test_forward_doubling_takes_two_microbatches_forward_and_one_back(ranks: int, microbatches: int) -> None:
    schedule = table(ranks, microbatches, scale="forward-doubling")

    assert set(schedule.span[schedule.kind == Kind.F]) == {2}
    assert set(schedule.span[schedule.kind == Kind.B]) == {1}
    assert run(schedule).busy_ns.tolist() == [3 * microbatches] * ranks


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 4), (4, 8), (4, 32), (8, 16)])
def test_backward_halving_is_forward_doubling_of_halves(ranks: int, microbatches: int) -> None:
    halves = request(ranks, microbatches, scale="backward-halving")
    assert CHIMERA.parts is not None

    assert CHIMERA.parts(halves) == 2
    assert CHIMERA.parts(request(ranks, microbatches)) == 1
    assert CHIMERA.build(halves) == table(ranks, 2 * microbatches, scale="forward-doubling")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("microbatches", [4, 8, 16])
def test_all_constructions_compute_alike_from_end_to_end(scale: str, microbatches: int) -> None:
    costs = {"name": "table", "forward": "10 us", "backward": "20 us", "activation": "8 MiB"}
    made = pptrace.simulate(
        schedule={"name": "chimera", "options": {"scale": scale}},
        pp=4, microbatches=microbatches, costs=costs, network="ideal",
    )  # fmt: skip

    assert made.metrics.busy_ns.tolist() == [30_000 * microbatches] * 4
    assert made.prepared.schedule.microbatches == microbatches * (2 if scale == "backward-halving" else 1)


HALVES = {4: ((20,) * 2 + (40,) * 2, 30), 8: ((10,) * 4 + (20,) * 4, 15)}
"""Stages of 1:2, lighter where a microbatch enters, in blocks of 120 over both directions; and even ones."""


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("microbatches", MICROBATCHES)
@pytest.mark.parametrize("heavy_first", [False, True])
def test_a_table_made_for_uneven_stages_is_never_slower_than_the_even_one(
    ranks: int, microbatches: int, heavy_first: bool  # noqa: FBT001 - a parameter
) -> None:  # fmt: skip
    times = HALVES[ranks][0][:: -1 if heavy_first else 1]

    made, replayed = run(table(ranks, microbatches, times), times), run(table(ranks, microbatches), times)

    assert made.step_ns <= replayed.step_ns
    assert made.busy_ns.tolist() == [3 * HALVES[ranks][1] * microbatches] * ranks


GAINS = {  # in per mille of the step with even stages, at equal work per rank
    (4, "light first"): (-80, -67, -26, -3, -4, -5),
    (8, "light first"): (0, -118, -42, -10, -5, -3),
    (4, "heavy first"): (34, 18, 7, 3, 3, 1),
    (8, "heavy first"): (19, 46, 24, 49, -5, 0),
}


@pytest.mark.parametrize(("ranks", "order"), GAINS)
def test_what_an_uneven_partition_changes(ranks: int, order: str) -> None:
    times, even = HALVES[ranks]
    times = times if order == "light first" else times[::-1]

    gains = tuple(
        round(
            1000
            * Fraction(
                run(table(ranks, microbatches, times), times).step_ns,
                run(table(ranks, microbatches)).step_ns * even,
            )
            - 1000
        )
        for microbatches in MICROBATCHES
    )

    assert gains == GAINS[ranks, order]


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_an_uneven_partition_never_lowers_the_highest_peak(ranks: int, microbatches: int) -> None:
    times, even = HALVES[ranks]

    peak, even_peak = (
        max(run(table(ranks, microbatches, stages), stages).memory.peak_activation_bytes.tolist())
        for stages in (times, (even,) * ranks)
    )

    assert peak >= even_peak
    assert (peak == even_peak) == ((ranks, microbatches) not in {(4, 8), (8, 16)})


def test_times_in_another_microbatch_change_nothing() -> None:
    times = (1, 1, 2, 2)

    assert table(4, 16, times) == table(4, 16, [1000 * time for time in times])
    assert table(4, 16) == table(4, 16, (7,) * 4)
