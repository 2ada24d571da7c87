"""Steady states: apart and within memory at every moment of a period, of the least period, and worth unrolling."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from toy_pipelines import effort, toy, v_shaped

from pptrace_optpipe.partial_models import Pattern, least_period, pattern_of, shortest_pattern, steady_rows
from pptrace_optpipe.playback import play, rows_of
from pptrace_optpipe.problem import NO_LIMIT, Op, OpKind, Problem
from pptrace_optpipe.start_schedules import fitted, start

if TYPE_CHECKING:
    from random import Random

EFFORT = effort(20)


def most_held(problem: Problem, pattern: Pattern, rank: int) -> int:
    """Return the most that a rank holds in a period, moment by moment."""
    spans = []
    for stage in problem.stages_of[rank]:
        forward, gradient, weight = (pattern.start[Op(kind, stage, 0)] for kind in (OpKind.F, OpKind.I, OpKind.W))
        done, whole = gradient + problem.i[stage], problem.activation[stage]
        spans += [(forward, done, whole), (done, weight + problem.w[stage], problem.weight_activation[stage])]
    return max(
        sum(size * sum(begin <= moment + lap * pattern.period < end for lap in range(end // pattern.period + 1))
            for begin, end, size in spans)
        for moment in range(pattern.period)
    )  # fmt: skip


@settings(settings.get_profile("few"))
@given(st.integers(2, 3), st.integers(1, 2), st.integers(0, 4), st.randoms(use_true_random=False))
def test_a_pattern_keeps_streams_apart_and_memory_within_its_limit(
    ranks: int, chunks: int, more: int, random: Random
) -> None:
    stages = ranks * chunks
    f, i, w, size, message = (tuple(random.randint(low, 3) for _ in range(stages)) for low in (1, 1, 1, 2, 0))
    problem = Problem(
        microbatches=5, stage_rank=tuple(stage % ranks for stage in range(stages)), f=f, i=i, w=w, activation=size,
        weight_activation=(1,) * stages, limit=(3 * chunks + more,) * ranks, forward_transfer=message[1:],
        backward_transfer=message[1:],
    )  # fmt: skip
    pattern = shortest_pattern(problem, EFFORT)

    assert pattern is not None
    assert pattern.period >= least_period(problem)
    for rank, own in enumerate(problem.stages_of):
        runs = sorted(
            (begin % pattern.period, problem.duration(op))
            for op, begin in pattern.start.items()
            if op.stage in own
        )
        again = [*runs, (runs[0][0] + pattern.period, 0)]
        assert all(one + took <= other for (one, took), (other, _) in pairwise(again))
        assert most_held(problem, pattern, rank) <= problem.limit[rank]
    played = play(problem, rows_of(problem, pattern.starts(problem.microbatches)))
    assert played is not None
    assert played.fits(problem)


@pytest.mark.parametrize(("ranks", "limit", "period"), [(4, 4, 6), (8, 7, 6), (6, 5, 8)])
def test_the_least_period_of_stages_down_and_up(ranks: int, limit: int, period: int) -> None:
    problem = v_shaped(ranks, 4, limit)

    assert pattern_of(problem, period - 1, EFFORT) is None
    pattern = shortest_pattern(problem, EFFORT)

    assert pattern is not None
    assert pattern.period == period


def test_repeating_a_period_beats_lists_where_memory_is_short() -> None:
    problem = v_shaped(8, 32, 6)
    (rows,) = steady_rows(problem, EFFORT)
    steady, listed = play(problem, rows), start(problem)

    assert steady is not None
    assert listed is not None
    assert steady.fits(problem)
    assert steady.step < listed.played.step


def test_copies_make_room_for_a_period_that_needs_more() -> None:
    problem = toy(4, 16, 2, copies=True)
    bare = replace(problem, offload=(), reload=())
    (alone,) = steady_rows(bare, EFFORT)
    without = play(bare, alone)
    made = [
        item.played.step
        for rows in steady_rows(problem, EFFORT)
        if (played := play(problem, rows)) is not None
        for item in fitted(problem, rows, played)
    ]

    assert without is not None
    assert min(made) < without.step


def test_without_limits_a_period_is_the_longest_work() -> None:
    problem = replace(toy(4, 8, 1, copies=False), limit=(NO_LIMIT,) * 4, w=(2, 3, 2, 2))
    pattern = shortest_pattern(problem, EFFORT)

    assert pattern is not None
    assert pattern.period == 7
