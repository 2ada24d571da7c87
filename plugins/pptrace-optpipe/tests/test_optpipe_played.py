"""What is played is what was solved: in the simulator, tables keep the limit and the model's length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from toy_pipelines import again, effort, optimum, toy

from pptrace.plugin import Placement, measure, simulate
from pptrace.steps.kinds import COMPUTE, Kind
from pptrace.steps.text_forms import parse_table, table_text
from pptrace.steps.workload import Workload
from pptrace_optpipe.memory_repair import repaired
from pptrace_optpipe.playback import play, rows_of
from pptrace_optpipe.problem import Problem
from pptrace_optpipe.setting import rows_of_table, table_of
from pptrace_optpipe.start_schedules import start

if TYPE_CHECKING:
    from random import Random

    from pptrace.plugin import Schedule, Timeline

ROWS = [(2, 4, 2, 13), (2, 4, 1.5, 13.5), (3, 4, 3, 14), (3, 4, 2, 14), (3, 4, 1.5, 15.5), (4, 4, 3, 15),
        (4, 4, 4, 15), (4, 4, 1.5, 17.5)]  # fmt: skip
"""Stages, microbatches, limit, and the least length with copies."""


def costs(problem: Problem) -> Workload:
    """Return the times and sizes of a problem, in ns and bytes."""
    zero = (0,) * problem.stages
    columns = {f"{name}_ns": getattr(problem, name) or zero for name in TIMES}
    sizes = {
        f"{name}_bytes": getattr(problem, name) or zero
        for name in ("activation", "weight_activation", "checkpoint")
    }
    return Workload.uniform(problem.stages, **columns, **sizes)


def run(problem: Problem, schedule: Schedule) -> tuple[Timeline, tuple[int, ...]]:
    workload = costs(problem)
    timeline = simulate(schedule, workload)
    return timeline, tuple(measure(timeline, workload).memory.peak_activation_bytes.tolist())


@pytest.mark.parametrize(("stages", "microbatches", "limit", "length"), ROWS)
def test_the_simulator_plays_the_optimum_within_its_limit(
    stages: int, microbatches: int, limit: float, length: float
) -> None:
    problem = toy(stages, microbatches, limit, copies=True)
    best = optimum(problem, effort(60))
    rows = rows_of(problem, best.start)

    written = table_text(table_of(rows, Placement.looped(stages, microbatches, 1)))
    timeline, peak = run(problem, parse_table(written).schedule)

    assert best.length == best.bound
    assert best.length is not None
    assert max(peak) <= 2 * limit
    computed = COMPUTE.mask(timeline.kind)
    assert timeline.end_ns[computed].max() == best.length
    assert best.length == 2 * length
    assert rows_of_table(parse_table(written).schedule) == rows


@pytest.mark.parametrize(("copies", "checkpoint"), [(False, 0), (False, 1), (True, 1)])
def test_the_simulator_computes_again_within_the_limit(copies: int, checkpoint: int) -> None:
    problem = again(3, 3, 1.5, checkpoint, copies=bool(copies))
    best = optimum(problem, effort(60))
    rows = rows_of(problem, best.start)

    written = parse_table(table_text(table_of(rows, Placement.looped(3, 3, 1)))).schedule
    timeline, peak = run(problem, written)

    assert rows_of_table(written) == rows
    assert best.length == best.bound
    assert timeline.end_ns.max() == best.length
    assert max(peak) <= 3
    assert (timeline.kind == Kind.RECOMPUTE).any() or copies


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 2), st.randoms(use_true_random=False))
def test_no_timing_makes_a_table_hold_more_than_its_limit(
    ranks: int, microbatches: int, chunks: int, random: Random
) -> None:
    problem = drawn(ranks, microbatches, chunks, random)
    result = start(problem)
    assert result is not None

    rows = rows_of(problem, result.played.start)
    replayed = play(problem, rows)
    other = {name: tuple(random.randint(0, 40) for _ in getattr(problem, name)) for name in TIMES}
    slower = play(replace(problem, **other), rows)

    assert replayed is not None
    assert replayed.step <= result.played.step
    assert slower is not None
    assert slower.fits(problem)


def test_rows_that_hold_too_much_wait_for_room() -> None:
    text = "0F0,0OFFLOAD0,0F1,0OFFLOAD1,0F2,0I2,0W2,0RELOAD1,0I1,0W1,0RELOAD0,0I0,0W0\n"
    problem = toy(1, 3, 1, copies=True)

    rows = repaired(problem, rows_of_table(parse_table(text).schedule))

    assert table_text(table_of(rows, Placement.looped(1, 3, 1))) == (
        text.replace("0F1", "0F1@0OFFLOAD0").replace("0F2", "0F2@0OFFLOAD1")
    )
    assert max(run(problem, table_of(rows, Placement.looped(1, 3, 1)))[1]) == 2


TIMES = ("f", "i", "w", "offload", "reload", "recompute")


def drawn(ranks: int, microbatches: int, chunks: int, random: Random) -> Problem:
    """Return a problem with little memory, and times from 1 to 9."""
    stages = ranks * chunks
    held = tuple(random.randint(2, 6) for _ in range(stages))
    rank_of = tuple(stage % ranks for stage in range(stages))
    limit = tuple(max(held[rank::ranks]) + random.randint(0, 6) for rank in range(ranks))
    times = {name: tuple(random.randint(1, 9) for _ in range(stages)) for name in TIMES}
    if random.random() < 0.3:
        times |= {"offload": (), "reload": ()}
        limit = tuple(sum(held[rank::ranks]) + random.randint(0, 6) for rank in range(ranks))
    if random.random() < 0.5:
        times["recompute"] = ()
    return Problem(
        microbatches=microbatches, stage_rank=rank_of, activation=held, weight_activation=(1,) * stages,
        limit=limit, checkpoint=(random.randint(0, 2),) * stages, **times,
    )  # fmt: skip
