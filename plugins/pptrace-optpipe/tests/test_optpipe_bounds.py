"""Bounds by argument: below every optimum that the solver proves, and what schedules made by hand take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_pipelines import effort, optimum, toy, v_shaped

import pptrace
from pptrace_optpipe.bounds import bound
from pptrace_optpipe.model import solve
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import Op, OpKind, Problem
from pptrace_optpipe.search import search
from pptrace_optpipe.start_schedules import start

if TYPE_CHECKING:
    from random import Random

PLACEMENTS = [(0, 1), (0, 0), (0, 1, 1, 0), (0, 1, 0, 1), (0, 1, 2)]


@settings(settings.get_profile("few"))
@given(
    st.sampled_from(PLACEMENTS), st.integers(1, 6), st.sampled_from(["", "", "copies", "again"]),
    st.sampled_from([1, 1, 3]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_no_schedule_of_any_costs_beats_the_bound(
    rank_of: tuple[int, ...], microbatches: int, more: str, longest: int, random: Random
) -> None:
    stages = len(rank_of)
    microbatches = min(microbatches, 12 // stages)

    def some(low: int, high: int, count: int = stages) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(count))

    whole, ranks = some(1, longest), max(rank_of) + 1
    least = max if more == "copies" else sum
    room = [least(whole[stage] for stage in range(stages) if rank_of[stage] == rank) for rank in range(ranks)]
    problem = Problem(
        microbatches=microbatches, stage_rank=rank_of, f=some(1, longest), i=some(1, longest),
        w=some(1, longest), activation=whole,
        weight_activation=tuple(random.randint(item // 2, item) for item in whole),
        limit=tuple(item + random.randint(0, 3) for item in room),
        forward_transfer=some(0, longest // 2, stages - 1), backward_transfer=some(0, longest // 2, stages - 1),
        offload=some(1, 4) if more == "copies" else (),
        reload=some(1, 4) if more == "copies" else (), recompute=some(1, 3) if more == "again" else (),
        checkpoint=tuple(random.randint(0, item) for item in whole) if more == "again" else (),
        tail=some(0, 2, ranks) if random.random() < 0.3 else (),
    )  # fmt: skip
    begun = start(problem)
    assert begun is not None

    solution = solve(problem, effort(1), horizon=begun.played.step)

    assert solution.length is None or bound(problem) <= solution.length


@pytest.mark.parametrize(
    ("ranks", "microbatches", "limit", "length"), [(2, 4, 3, 26), (3, 4, 4, 29), (3, 5, 5, 33), (4, 4, 5, 32)]
)
def test_the_solver_proves_what_fill_and_drain_of_a_full_rank_take(
    ranks: int, microbatches: int, limit: int, length: int
) -> None:
    problem = v_shaped(ranks, microbatches, limit)

    solution = solve(problem, effort(20), horizon=length + 1)

    assert (solution.length, solution.bound) == (length, length)
    assert bound(problem) == length


@pytest.mark.parametrize(
    ("stages", "microbatches", "limit", "length"),
    [(2, 4, 2, 13), (3, 4, 2, 17), (4, 4, 3, 18), (2, 4, 1.5, 17), (3, 4, 1.5, 25), (4, 4, 1.5, 33)],
)
def test_of_one_stage_per_rank_the_arguments_alone_prove_optima_below_as_many_activations_as_ranks(
    stages: int, microbatches: int, limit: float, length: int
) -> None:
    """The solver proves these in the tests of optima, and an integer program some of them."""
    assert bound(toy(stages, microbatches, limit, copies=False)) == 2 * length


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "limit", "idle"),
    [("zb-v", 8, 16, 16, 7), ("v-half", 4, 8, 6, 5), ("v-half", 8, 16, 10, 17), ("v-half", 10, 40, 12, 23),
     ("v-min", 4, 16, 4, 11), ("v-min", 10, 40, 8, 35)],
)  # fmt: skip
def test_v_schedules_in_their_own_memory_cannot_be_beaten(
    name: str, ranks: int, microbatches: int, limit: int, idle: int
) -> None:
    """The last rank waits p - 1 for the fill, 2 p - n with n activations full, and 3 p - 2 n in the drain."""
    step = pptrace.simulate(
        schedule=name, parallel={"pp": ranks, "vp": 2}, batch={"microbatches": microbatches},
        costs={"name": "table", "forward": "1 ms", "input_gradient": "1 ms", "weight_gradient": "1 ms",
               "boundary": "0 B", "activation": "2 MiB", "weight_activation": "1 MiB"},
    )  # fmt: skip

    assert idle == ranks - 1 + max(0, 2 * ranks - limit) + max(0, 3 * ranks - 2 * limit)
    assert bound(v_shaped(ranks, microbatches, limit)) == 6 * microbatches + idle
    assert step.metrics.step_ns == (6 * microbatches + idle) * 10**6
    assert step.metrics.memory is not None
    assert max(step.metrics.memory.peak_activations) == limit


@pytest.mark.parametrize(("limit", "room"), [(5, 2), (7, 3), (8, 4)])
def test_only_whole_activations_fit_into_memory(limit: int, room: int) -> None:
    """Of 25 microbatches, each forward waits for a round trip of the one that is so many places earlier."""
    ranks, microbatches = 8, 25
    problem = Problem(
        microbatches=microbatches, stage_rank=tuple(range(ranks)), f=(2,) * ranks, i=(3,) * ranks, w=(1,) * ranks,
        activation=(2,) * ranks, weight_activation=(1,) * ranks, limit=(limit,) * ranks,
    )  # fmt: skip
    is_full = limit % 2 == 0

    trip = ranks * (2 + 3)

    assert bound(problem) >= (microbatches - 1) // room * (trip + is_full) + trip + 1
    assert bound(problem) > microbatches * (2 * trip + 1) / limit


@pytest.mark.parametrize(("limit", "step"), [(32, 399), (18, 425), (15, 434), (12, 443)])
def test_what_16_ranks_and_64_microbatches_take_at_least(limit: int, step: int) -> None:
    assert bound(v_shaped(16, 64, limit)) == step


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (3, 4), (4, 5), (4, 12)])
def test_room_for_one_activation_is_full_from_the_first_forward_to_the_last_gradient(
    ranks: int, microbatches: int
) -> None:
    """On the last rank but one, each activation takes the room for two computations and two copies."""
    twos = (2,) * ranks
    problem = Problem(
        microbatches=microbatches, stage_rank=tuple(range(ranks)), f=twos, i=twos, w=twos, activation=twos,
        weight_activation=(1,) * ranks, limit=(3,) * ranks, offload=twos, reload=twos,
    )  # fmt: skip

    begun = start(problem, enough=bound(problem))

    fill = drain = 2 * (ranks - 2)
    assert begun is not None
    assert bound(problem) == begun.played.step == fill + microbatches * (2 + 2 + 2 + 2) + drain + 2


def slow_copies(ranks: int, copy: int, transfer: int) -> Problem:
    """Return five microbatches with room for two activations, and copies longer than what is computed."""
    twos = (2,) * ranks
    return Problem(
        microbatches=5, stage_rank=tuple(range(ranks)), f=twos, i=twos, w=twos, activation=twos,
        weight_activation=(1,) * ranks, limit=(4,) * ranks, offload=(copy,) * ranks, reload=(copy,) * ranks,
        forward_transfer=(transfer,) * (ranks - 1), backward_transfer=(transfer,) * (ranks - 1),
    )  # fmt: skip


@pytest.mark.parametrize(("ranks", "copy", "transfer", "length"), [(3, 5, 0, 41), (2, 7, 4, 49)])
def test_a_microbatch_may_overtake_one_whose_copy_is_slow(
    ranks: int, copy: int, transfer: int, length: int
) -> None:
    problem = slow_copies(ranks, copy, transfer)

    best = optimum(problem, effort(20))

    assert (best.length, best.bound) == (length, length)
    assert bound(problem) <= length


def test_backwards_in_one_that_are_shorter_than_their_halves_bound_the_step() -> None:
    twos, ones = (10,) * 3, (1,) * 3
    problem = Problem(
        microbatches=5, stage_rank=(0, 1, 2), f=twos, i=twos, w=twos, b=(16,) * 3, activation=(2,) * 3,
        weight_activation=ones, limit=(4,) * 3,
    )  # fmt: skip
    rows = [
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4", "F0 F1 I0 W0 B1 F2 I2 F3 W2 F4 I3 W3 I4 W4",
        "F0 I0 F1 I1 W0 W1 F2 I2 W2 F3 B3 F4 I4 W4",
    ]  # fmt: skip
    played = play(problem, [
        [Op(OpKind[word[0]], rank, int(word[1:])) for word in row.split()] for rank, row in enumerate(rows)
    ])  # fmt: skip

    assert played is not None
    assert played.fits(problem)
    assert played.step == 198
    search_result = search(problem, effort(2))
    assert search_result is not None
    assert bound(problem) <= search_result.bound <= 198
