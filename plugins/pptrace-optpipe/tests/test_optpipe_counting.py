"""The bound by counts: no schedule is refuted, and what it shows to be too short is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from toy_pipelines import effort, toy, v_shaped

from pptrace_optpipe import bounds
from pptrace_optpipe.bounds import can_be_as_short, counted_bound
from pptrace_optpipe.model import Effort, solve
from pptrace_optpipe.problem import Problem
from pptrace_optpipe.start_schedules import start

if TYPE_CHECKING:
    from random import Random

EFFORT = effort(20)
BOTH = (False, True)
PLACEMENTS = [(0,), (0, 1), (0, 0), (0, 1, 1, 0), (0, 1, 0, 1), (0, 1, 2)]


@settings(settings.get_profile("few"))
@given(
    st.sampled_from(PLACEMENTS), st.integers(1, 5), st.sampled_from(["", "copies", "copies", "again", "both"]),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_schedule_that_exists_is_never_too_short(
    rank_of: tuple[int, ...], microbatches: int, more: str, random: Random
) -> None:
    """Copies may be slow, instant or share streams, and backwards in one shorter than their halves."""
    stages = len(rank_of)
    copies, anew = more in {"copies", "both"}, more in {"again", "both"}

    def some(low: int, high: int, count: int = stages) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(count))

    whole, f, i, w = some(1, 3), some(1, 3), some(1, 3), some(0, 3)
    ranks = max(rank_of) + 1
    room = [sum(whole[stage] for stage in range(stages) if rank_of[stage] == rank) for rank in range(ranks)]
    problem = Problem(
        microbatches=min(microbatches, 6 // stages), stage_rank=rank_of, f=f, i=i, w=w, activation=whole,
        b=tuple(random.randint(max(item, 1), item + other) for item, other in zip(i, w, strict=True)),
        weight_activation=tuple(random.randint(0, item) for item in whole),
        limit=tuple(item + random.randint(0, 3) for item in room),
        forward_transfer=some(0, 2, stages - 1), backward_transfer=some(0, 2, stages - 1),
        offload=some(1, 5) if copies else (), reload=some(1, 5) if copies else (),
        shared=((0, 1),) if copies and ranks > 1 and random.random() < 0.5 else (),
        recompute=some(1, 3) if anew else (), checkpoint=tuple(map(min, whole, some(0, 2))) if anew else (),
        tail=() if random.random() < 0.5 else some(0, 2, ranks),
    )  # fmt: skip
    begun = start(problem)
    assert begun is not None
    solution = solve(problem, effort(1), horizon=begun.played.step)

    assert solution.length is None or all(
        can_be_as_short(problem.shortest, EFFORT, solution.length, apart=apart) for apart in BOTH
    )
    for apart in BOTH:
        assert can_be_as_short(problem.shortest, EFFORT, begun.played.step, apart=apart)


@pytest.mark.parametrize(
    ("problem", "length"),
    [(toy(2, 4, 2, copies=True), 26), (toy(2, 4, 1.5, copies=False), 34),
     (v_shaped(2, 4, 3), 26)],
)  # fmt: skip
def test_counts_show_what_one_moment_less_cannot_be(problem: Problem, length: int) -> None:
    """Lengths are what the whole model proves."""
    assert not can_be_as_short(problem, EFFORT, length - 1, apart=True)
    assert can_be_as_short(problem, EFFORT, length, apart=True)
    assert counted_bound(problem, EFFORT, length=length + 3) == length


def test_a_bound_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes by a second each time it is read, and a solver that must not be asked."""
    problem, now = toy(2, 4, 2, copies=True), iter(range(1000))
    monkeypatch.setattr(bounds, "run_solver", lambda *_: pytest.fail("asked too late"))

    result = counted_bound(problem, Effort(seconds=6, clock=lambda: float(next(now))), length=30, least=20)

    assert result == 20
    assert next(now) < 20


def test_a_bound_is_given_up_when_asked() -> None:
    """Also while the model is made."""
    asked = iter([False, False])

    result = can_be_as_short(
        toy(2, 4, 2, copies=True), replace(EFFORT, stopped=lambda: next(asked, True)), 10, apart=True
    )

    assert result
    assert next(asked, None) is None


def test_short_messages_cost_no_more_than_themselves() -> None:
    """Computations stay exact however fine the times of messages are."""
    plain = toy(2, 2, 1, copies=True)
    names = ("f", "i", "w", "offload", "reload")
    times = {name: tuple(1_000_000 * item for item in getattr(plain, name)) for name in names}
    short = replace(plain, **times, forward_transfer=(777,), backward_transfer=(778,))

    exact = counted_bound(plain, EFFORT, length=40)

    assert counted_bound(short, EFFORT, length=40_000_000) == 1_000_000 * exact
