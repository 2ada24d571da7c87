"""Toy optima: proved by the model, and equal to another engine's on another formulation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from oracle_time_indexed import shortest
from toy_pipelines import again, effort, optimum, toy

from pptrace_optpipe.bounds import bound, relaxed_bound
from pptrace_optpipe.model import solve

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem

WITHOUT = [
    (2, 4, 2, 13), (2, 4, 1.5, 17), (3, 4, 3, 14), (3, 4, 2, 17), (3, 4, 1.5, 25), (4, 4, 4, 15),
    (4, 8, 4, 27),
]  # fmt: skip
WITH = [(2, 4, 2, 13), (2, 4, 1.5, 13.5), (3, 4, 3, 14), (3, 4, 2, 14), (4, 4, 3, 15), (4, 4, 4, 15)]
LONG = [
    (4, 4, 3, False, 18),
    (4, 4, 1.5, False, 33), (4, 8, 3, False, 31), (4, 8, 2, False, 41), (3, 4, 1.5, True, 15.5),
    (4, 4, 1.5, True, 17.5), (4, 8, 3, True, 27), (4, 8, 2, True, 28),
]  # fmt: skip
ROWS = [(*row[:3], False, row[3]) for row in WITHOUT] + [(*row[:3], True, row[3]) for row in WITH]
IS_LONG = bool(os.environ.get("PPTRACE_OPTPIPE_LONG"))
OF_BOTH = [(2, 4, 2, False, 13), (3, 4, 3, False, 14), (2, 3, 2, True, 10)]
"""Those that the other engine proves in seconds; the others take it a minute or more."""
OF_BOTH += [
    (3, 4, 3, True, 14),
    (2, 4, 2, True, 13),
    (2, 4, 1.5, True, 13.5),
    (3, 4, 2, True, 14),
    (4, 4, 3, True, 15),
] * IS_LONG


AGAIN = [(2, 3, 1.5, 0, False, 11), (2, 3, 1.5, 1, False, 12), (2, 3, 1.5, 0, True, 10.5),
         (3, 3, 1.5, 0, False, 13), (3, 3, 1.5, 1, False, 14), (3, 4, 1.5, 0, False, 16)]  # fmt: skip
"""Where forwards may be computed again too, and so many halves of an activation stay until then."""
OF_BOTH_AGAIN = [(2, 2, 1, 0, False), (2, 2, 1, 1, False)]
OF_BOTH_AGAIN += [(2, 2, 1.5, 1, True), *(row[:5] for row in AGAIN[:5])] * IS_LONG


@pytest.mark.parametrize(("stages", "microbatches", "limit", "copies", "length"), ROWS)
def test_the_model_proves_the_optimum(
    stages: int, microbatches: int, limit: float, copies: int, length: float
) -> None:
    problem = toy(stages, microbatches, limit, copies=bool(copies))

    best = optimum(problem, effort())

    assert (best.length, best.bound) == (2 * length, 2 * length)
    held_within(problem, best.start)


@pytest.mark.skipif(not IS_LONG, reason="minutes: set PPTRACE_OPTPIPE_LONG")
@pytest.mark.parametrize(("stages", "microbatches", "limit", "copies", "length"), LONG)
def test_the_model_proves_the_harder_optima_too(
    stages: int, microbatches: int, limit: float, copies: int, length: float
) -> None:
    best = optimum(toy(stages, microbatches, limit, copies=bool(copies)), effort(240))

    assert (best.length, best.bound) == (2 * length, 2 * length)


@pytest.mark.parametrize(("stages", "microbatches", "limit", "copies", "length"), OF_BOTH)
def test_an_integer_program_over_moments_has_the_same_optimum(
    stages: int, microbatches: int, limit: float, copies: int, length: float
) -> None:
    problem = toy(stages, microbatches, limit, copies=bool(copies))

    assert shortest(problem, int(2 * length), ordered=not copies) == 2 * length


@pytest.mark.parametrize(("stages", "microbatches", "limit", "checkpoint", "copies", "length"), AGAIN)
def test_computing_again_shortens_what_memory_makes_long(
    stages: int, microbatches: int, limit: float, checkpoint: int, copies: int, length: float
) -> None:
    problem = again(stages, microbatches, limit, checkpoint, copies=bool(copies))

    best = optimum(problem, effort())

    assert (best.length, best.bound) == (2 * length, 2 * length)
    assert bound(problem) <= best.bound
    assert length < optimum(toy(stages, microbatches, limit, copies=False), effort()).length / 2
    held_within(problem, best.start)


@pytest.mark.parametrize(("stages", "microbatches", "limit", "checkpoint", "copies"), OF_BOTH_AGAIN)
def test_an_integer_program_computes_as_much_again(
    stages: int, microbatches: int, limit: float, checkpoint: int, copies: int
) -> None:
    problem = again(stages, microbatches, limit, checkpoint, copies=bool(copies))
    best = optimum(problem, effort())

    assert best.length == best.bound
    assert shortest(problem, best.length, ordered=False) == best.length


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 4), (4, 8)])
def test_memory_for_as_many_activations_as_stages_gives_zero_bubble_h1(stages: int, microbatches: int) -> None:
    problem = toy(stages, microbatches, stages, copies=False)

    best = optimum(problem, effort())

    assert best.length == best.bound
    assert best.length == 2 * (3 * microbatches + (stages - 1) * (1 + 1 - 1))


@pytest.mark.parametrize(("stages", "microbatches", "limit", "copies", "length"), ROWS)
def test_bounds_by_argument_are_no_higher_than_the_optimum(
    stages: int, microbatches: int, limit: float, copies: int, length: float
) -> None:
    problem = toy(stages, microbatches, limit, copies=bool(copies))

    assert 6 * microbatches <= bound(problem) <= 2 * length


def test_a_few_ranks_bound_all_of_them() -> None:
    problem = toy(4, 4, 1.5, copies=True)
    result = [relaxed_bound(problem, effort(), ranks, 35, 0) for ranks in ((0,), (0, 3), (0, 1, 3))]

    assert result == sorted(result)
    assert 2 * 12 <= result[0] <= result[-1] <= 35


def test_a_rank_pair_on_one_channel_is_never_faster() -> None:
    alone = toy(2, 4, 1.5, copies=True)
    paired = toy(2, 4, 1.5, copies=True, shared=((0, 1),))

    lengths = [optimum(problem, effort()).length for problem in (alone, paired)]

    assert lengths[0] == 27
    assert lengths[1] is not None
    assert 27 <= lengths[1] <= 34


def test_a_limit_that_nothing_fits_in_is_found_to_be_one() -> None:
    assert solve(toy(2, 2, 0.5, copies=False), effort(), horizon=60).length is None


def held_within(problem: Problem, start: dict[Any, int]) -> None:
    """Check dataflow, streams and memory at every moment, by counting."""
    from pptrace_optpipe.problem import COMPUTED, OpKind

    end = {op: begin + problem.duration(op) for op, begin in start.items()}
    anew = {(op.stage, op.microbatch) for op in start if op.kind is OpKind.C}
    for op, begin in start.items():
        needs = {
            OpKind.F: [op._replace(stage=op.stage - 1)] if op.stage else [],
            OpKind.I: [op._replace(stage=op.stage + 1)] if op.stage + 1 < problem.stages else [],
            OpKind.W: [op._replace(kind=OpKind.I)], OpKind.O: [op._replace(kind=OpKind.F)],
            OpKind.R: [op._replace(kind=OpKind.O)], OpKind.C: [op._replace(kind=OpKind.F)],
        }[op.kind]  # fmt: skip
        if op.kind is OpKind.I:
            needs = [*needs, op._replace(kind=OpKind.F)]
            needs += [item for item in (op._replace(kind=OpKind.R), op._replace(kind=OpKind.C)) if item in start]
        assert all(end[need] <= begin for need in needs)
    for moment in range(max(end.values())):
        for stage in range(problem.stages):
            own = [op for op in start if op.stage == stage]
            running = [op for op in own if start[op] <= moment < end[op]]
            for kinds in ((*COMPUTED, OpKind.C), (OpKind.O,), (OpKind.R,)):
                assert sum(op.kind in kinds for op in running) <= 1
            held = 0
            for op in own:
                kept = problem.checkpoint[stage] if (stage, op.microbatch) in anew else 2
                takes = {OpKind.F: kept, OpKind.R: 2, OpKind.C: 2 - kept}.get(op.kind, 0)
                frees = {OpKind.I: 1, OpKind.W: 1, OpKind.O: 2}.get(op.kind, 0)
                held += takes * (start[op] <= moment) - frees * (end[op] <= moment)
            assert held <= problem.limit[stage]
