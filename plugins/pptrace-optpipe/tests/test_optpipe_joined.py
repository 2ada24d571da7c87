"""Joined backwards that are shorter than their parts: the search chooses per stage and microbatch."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from msgspec.structs import replace
from oracle_joined_backwards import shortest_step
from toy_pipelines import effort

from pptrace_optpipe.bounds import bound
from pptrace_optpipe.partial_models import improved
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import COMPUTED, Op, OpKind, Problem, split_rows
from pptrace_optpipe.search import search
from pptrace_optpipe.start_schedules import started


def random_toy(seed: int) -> Problem:
    """Return two or three ranks with joined backwards of 0.6 to 1.1 times their parts."""
    random = Random(seed)  # noqa: S311 - costs of a toy, not a secret
    ranks = random.randint(2, 3)

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(ranks))

    f, i, w, activation = some(2, 10), some(2, 10), some(2, 10), some(2, 4)
    parts = zip(i, w, strict=True)
    return Problem(
        microbatches=random.randint(2, 4), stage_rank=tuple(range(ranks)), f=f, i=i, w=w,
        b=tuple(max(1, round(sum(pair) * random.uniform(0.6, 1.1))) for pair in parts),
        activation=activation, weight_activation=tuple(random.randint(0, size) for size in activation),
        limit=tuple(size * random.randint(1, ranks) + random.randint(0, 2) for size in activation),
        forward_transfer=(random.randint(0, 2),) * (ranks - 1),
        backward_transfer=(random.randint(0, 2),) * (ranks - 1),
    )  # fmt: skip


def halves(rows: list[list[Op]]) -> list[Op]:
    """Return the computations of rows in order, with joined backwards as two."""
    return sorted(
        op._replace(kind=kind)
        for row in rows for op in row
        for kind in ((OpKind.I, OpKind.W) if op.kind is OpKind.B else (op.kind,))
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 4, 7, 9, 13, 23])
def test_the_search_finds_and_proves_the_optimum_of_an_independent_model(seed: int) -> None:
    problem = random_toy(seed)

    result = search(problem, effort(10))

    optimum = shortest_step(problem)
    assert result is not None
    assert result.schedule.played.step == result.bound == optimum
    assert result.schedule.played.fits(problem)
    assert bound(problem) <= optimum
    played = play(problem, result.schedule.rows)
    assert played is not None
    assert played.step == optimum
    assert halves(result.schedule.rows) == sorted(problem.ops())


def test_a_gap_of_rounded_times_is_closed() -> None:
    coarse = random_toy(1)
    fine = {name: tuple(10_007 * time + 13 for time in getattr(coarse, name)) for name in "fiwb"}
    messages = {name: tuple(10_007 * time for time in getattr(coarse, name))
                for name in ("forward_transfer", "backward_transfer")}  # fmt: skip
    problem = replace(coarse, **fine, **messages)  # type: ignore[arg-type] # columns by name

    result = search(problem, effort(20))

    assert result is not None
    assert result.schedule.played.step == result.bound
    assert shortest_step(coarse) <= result.bound / 10_007 <= shortest_step(coarse) + 0.1


def test_weight_gradients_may_pass_a_joined_backward() -> None:
    """On the last rank, the gradient of the first microbatch goes on early, and its weight gradient comes last."""
    problem = Problem(
        microbatches=2, stage_rank=(0, 1), f=(1, 1), i=(9, 3), w=(1, 5), b=(10, 4), activation=(1, 1),
        weight_activation=(0, 0), limit=(2, 2),
    )  # fmt: skip

    result = search(problem, effort(5))

    assert result is not None
    assert result.schedule.played.step == result.bound == shortest_step(problem)


def test_windows_join_and_split_backwards_and_keep_all_computations() -> None:
    changes = set()
    for seed, position in product(range(12), (0.0, 0.4)):
        problem = random_toy(seed)
        for schedule in list(started(problem))[:2]:
            rows = split_rows(problem, schedule.rows)
            before = play(problem, rows)
            assert before is not None
            low = int(before.step * position)

            better = improved(problem, rows, before, (low, low + 40), effort(1))

            if better is None:
                continue
            after = play(problem, better)
            assert after is not None
            assert after.fits(problem)
            assert after.step <= before.step
            assert halves(better) == sorted(problem.ops())
            counts = [sum(op.kind is OpKind.B for row in item for op in row) for item in (rows, better)]
            changes.add((counts[1] > counts[0]) - (counts[1] < counts[0]))
    assert changes == {-1, 0, 1}


def test_joined_backwards_of_other_stages_are_split_without_loss() -> None:
    problem = replace(random_toy(0), i=(5, 5, 5), w=(5, 5, 5), b=(12, 9, 10))
    rows = [[Op(OpKind.F, stage, 0), Op(OpKind.B, stage, 0)] for stage in range(3)]

    split = split_rows(problem, rows)

    assert problem.joinable == {1}
    assert [[op.kind for op in row] for row in split] == [[*COMPUTED], [OpKind.F, OpKind.B], [*COMPUTED]]
