"""The search: feasible wherever anything is, never worse with copies, at the bound where memory is plentiful."""

from __future__ import annotations

import time
from concurrent.futures import BrokenExecutor
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from toy_pipelines import effort, toy, v_shaped

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

from pptrace.plugin import ExecutorRequest, Registry
from pptrace.plugins.builtin_executors import Serial
from pptrace_optpipe import search as search_module
from pptrace_optpipe.bounds import bound
from pptrace_optpipe.listing import Lister, Rule, serial_rows
from pptrace_optpipe.model import Effort
from pptrace_optpipe.partial_models import improved
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import NO_LIMIT, Problem, coarsened
from pptrace_optpipe.search import SearchResult, search
from pptrace_optpipe.start_schedules import start, started

PROFILED = [
    (8, 24, (18522, 18086, 9337, 601)), (8, 24, (29718, 29444, 19927, 527)), (16, 48, (11347, 11248, 8132, 377)),
]  # fmt: skip
"""Ranks, microbatches, and F, I, W and transfer in microseconds, as Zero Bubble's paper measured them."""


def profiled(ranks: int, microbatches: int, times: tuple[int, int, int, int], limit: int) -> Problem:
    f, i, w, transfer = ((item,) * ranks for item in times)
    return Problem(
        microbatches=microbatches, stage_rank=tuple(range(ranks)), f=f, i=i, w=w, activation=(2,) * ranks,
        weight_activation=(1,) * ranks, limit=(limit,) * ranks, forward_transfer=transfer[1:],
        backward_transfer=transfer[1:],
    )  # fmt: skip


@pytest.mark.parametrize(("ranks", "microbatches", "limit"), [(8, 32, 8), (8, 32, 15), (16, 64, 16)])
def test_plentiful_memory_gives_the_bound(ranks: int, microbatches: int, limit: int) -> None:
    search_result = search(toy(ranks, microbatches, limit, copies=False), effort(20))

    assert search_result is not None
    assert search_result.schedule.played.step == search_result.bound == 2 * (3 * microbatches + ranks - 1)


@pytest.mark.parametrize(("ranks", "microbatches", "times"), PROFILED)
def test_measured_times_come_within_two_percent(
    ranks: int, microbatches: int, times: tuple[int, int, int, int]
) -> None:
    problem = profiled(ranks, microbatches, times, 2 * (2 * ranks))

    start_schedule = start(problem, enough=102 * bound(problem) // 100)

    assert start_schedule is not None
    assert start_schedule.played.step <= 1.02 * bound(problem)


@pytest.mark.parametrize("limit", [2, 3, 4, 5, 6])
def test_copies_are_never_worse_and_idle_halves_where_memory_is_short(limit: int) -> None:
    steps = {}
    for copies in (False, True):
        problem = toy(8, 16, limit, copies=copies)
        start_schedule = start(problem, bound(problem))
        assert start_schedule is not None
        steps[copies] = start_schedule.played.step
    idle = {copies: step - 2 * 3 * 16 for copies, step in steps.items()}

    assert steps[True] <= steps[False]
    if limit in {4, 5}:
        assert idle[True] <= idle[False] / 2


def test_below_what_fits_without_copies_one_with_copies_is_found() -> None:
    problem = replace(toy(4, 4, 1, copies=True), stage_rank=(0, 1, 0, 1), limit=(3, 3), tail=())

    search_result = search(problem, effort(1))

    assert start(replace(problem, offload=(), reload=())) is None
    assert search_result is not None
    assert search_result.schedule.played.fits(problem)
    assert search_result.schedule.rank_key[1] >= 4


@given(
    st.integers(1, 4), st.integers(1, 6), st.integers(1, 2), st.integers(0, 1), st.randoms(use_true_random=False),
)  # fmt: skip
def test_something_is_found_whenever_anything_fits(
    ranks: int, microbatches: int, chunks: int, copies: int, random: Random
) -> None:
    stages = ranks * chunks
    one = [tuple(random.randint(1, 9) for _ in range(stages)) for _ in range(6)]
    held = tuple(random.randint(2, 6) for _ in range(stages))
    rank_of = tuple(stage % ranks for stage in range(stages))
    need = [[held[stage] for stage in range(stages) if rank_of[stage] == rank] for rank in range(ranks)]
    limit = tuple((max if copies else sum)(own) + random.randint(0, 3) for own in need)
    problem = Problem(
        microbatches=microbatches, stage_rank=rank_of, f=one[0], i=one[1], w=one[2], activation=held,
        weight_activation=(1,) * stages, limit=limit, offload=one[3] if copies else (),
        reload=one[4] if copies else (), forward_transfer=one[5][1:], backward_transfer=one[5][1:],
    )  # fmt: skip

    start_schedule = start(problem)

    assert start_schedule is not None
    assert start_schedule.played.fits(problem)
    assert start_schedule.played.step >= bound(problem)
    if not copies:
        rule = Rule(limit=problem.limit, patient=False, lookahead=0.9, by_arrival=True)
        rows = Lister(problem, rule).rows()
        assert rows is not None
        played = play(problem, rows)
        assert played is not None
        assert played.fits(problem)


def test_lookahead_shortens_lists_of_unlike_stages_in_little_memory() -> None:
    """The bound is 13,215; times are in units of 0.2 ms, and memory has 9.5 activations."""
    times = tuple(range(35, 66, 2))
    problem = replace(toy(16, 64, 9.5, copies=False), f=times, i=times, w=times)

    def listed(**rule: Any) -> int:
        rows = Lister(problem, Rule(limit=problem.limit, patient=False, **rule)).rows()
        played = None if rows is None else play(problem, rows)
        assert played is not None
        assert played.fits(problem)
        return played.step

    assert bound(problem) == 13_215
    assert listed() == 15_153
    assert listed(lookahead=0.9) == 14_268
    assert listed(lookahead=0.9, by_arrival=True) == 14_096


def test_messages_lengthen_a_start_schedule_no_more_than_its_order_needs() -> None:
    """Lists in which each of few activations waits for messages take 826; those that ignore messages, 764."""
    problem = replace(
        toy(6, 18, 4, copies=False), f=(10,) * 6, i=(10,) * 6, w=(10,) * 6, forward_transfer=(1,) * 5,
        backward_transfer=(1,) * 5,
    )  # fmt: skip
    start_schedule, without = start(problem), start(problem.without_transfers)

    assert start_schedule is not None
    assert without is not None
    played = play(problem, without.rows)
    assert played is not None
    assert start_schedule.played.step <= played.step <= 764


@pytest.mark.parametrize(("limit", "length", "least"), [(32, 207, 207), (18, 235, 233), (15, 243, 242)])
def test_memory_shared_by_round_trips_is_near_what_v_schedules_take(limit: int, length: int, least: int) -> None:
    problem = v_shaped(16, 32, limit)

    start_schedule = start(problem, enough=bound(problem), stopped=stops_after(6))

    assert start_schedule is not None
    assert start_schedule.played.step <= length
    assert bound(problem) == least
    assert start_schedule.played.fits(problem)


def stops_after(count: int) -> Callable[[], bool]:
    asked = iter(range(count))
    return lambda: next(asked, None) is None


def test_serial_rows_hold_one_microbatch() -> None:
    problem = toy(4, 3, 1, copies=False)

    played = play(problem, serial_rows(problem, copied=False))

    assert played is not None
    assert set(played.peak) == {2}
    assert played.step == 3 * 2 * (4 + 4 + 1)


def test_a_window_mends_what_was_made_worse() -> None:
    problem = toy(4, 8, 4, copies=False)
    rows = Lister(problem, Rule(limit=problem.limit, weights_first=True)).rows()
    assert rows is not None
    before = play(problem, rows)
    assert before is not None
    assert before.step == 60

    better = improved(problem, rows, before, (0, before.step), effort(20))

    assert better is not None
    after = play(problem, better)
    assert after is not None
    assert after.fits(problem)
    assert after.step < before.step


def test_one_worker_and_a_seed_give_the_same_schedule() -> None:
    problem = toy(3, 4, 2, copies=False)

    results = [search(problem, effort(60, seed=3)) for _ in range(2)]

    assert results[0] is not None
    assert results[1] is not None
    assert results[0].schedule.rows == results[1].schedule.rows


def test_a_search_that_work_limits_is_the_same_on_a_slower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = v_shaped(4, 12, 5)
    search_result = search(problem, quick := effort(0.3))
    monkeypatch.setattr("pptrace_optpipe.search.play", lambda *given: time.sleep(0.02) or play(*given))
    later = search(problem, slow := effort(0.3))

    assert search_result is not None
    assert later is not None
    assert later.schedule.rows == search_result.schedule.rows
    assert later.bound == search_result.bound < search_result.schedule.played.step
    assert slow.clock() == quick.clock() >= 0.3


class Broken(Serial):
    """An executor whose workers have died."""

    def submit(self, *_: Any, **__: Any) -> Any:
        """Fail as a pool without workers does."""
        raise BrokenExecutor


def test_searches_side_by_side_share_the_best_and_give_the_same_each_time() -> None:
    problem = v_shaped(4, 12, 5)
    alone = search(problem, effort(0.3))
    together = [search(problem, effort(0.5, workers=2, start_executor=Serial)) for _ in range(2)]
    broken = search(problem, effort(0.3, start_executor=Broken))

    assert alone is not None
    assert broken is not None
    assert [result.schedule.rows for result in together if result] == [together[0].schedule.rows] * 2
    assert together[0].bound <= together[0].schedule.played.step <= alone.schedule.played.step
    assert together[0].schedule.played.fits(problem)
    assert broken.schedule.rows == alone.schedule.rows


def test_other_processes_search_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    # With two threads, the solver of the whole problem sometimes takes all of the effort.
    monkeypatch.setattr("pptrace_optpipe.search._Search.solve_whole", lambda _: None)
    problem, workers = v_shaped(4, 12, 5), ExecutorRequest(workers=2)
    seeds: list[int] = []
    offer = Registry.load().executors["processes"].offer

    class Counted(Serial):
        def __init__(self) -> None:
            self.pool = offer.build(workers)

        def submit(self, fn: Any, /, seed: int, **_: Any) -> Any:
            seeds.append(seed)
            return self.pool.submit(fn, seed)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - theirs
            self.pool.shutdown(wait, cancel_futures=cancel_futures)

    result = search(problem, effort(4, workers=2, start_executor=Counted))

    assert result is not None
    assert result.schedule.played.fits(problem)
    assert len(seeds) == len(set(seeds)) > 0
    assert len(seeds) % 2 == 0


def test_progress_never_goes_back_and_a_stop_keeps_the_best() -> None:
    reported: list[SearchResult] = []
    problem = toy(8, 24, 4, copies=False)

    search_result = search(problem, effort(60, stopped=lambda: len(reported) > 0), tell=reported.append)

    assert search_result is not None
    assert search_result.schedule.played.step == reported[-1].schedule.played.step
    assert [result.schedule.played.step for result in reported] == sorted(
        (result.schedule.played.step for result in reported), reverse=True
    )


def test_larger_units_round_times_down_and_keep_sizes() -> None:
    problem = replace(toy(2, 2, 3, copies=True), f=(1_000_000_007, 1_000_000_009))

    coarse, unit = coarsened(problem, 1000)

    assert coarse.f[0] * unit <= problem.f[0] < (coarse.f[0] + 1) * unit
    assert coarse.limit == (6, 6)
    assert bound(coarse) * unit <= bound(problem)


def test_no_limit_is_no_limit() -> None:
    problem = replace(toy(4, 8, 1, copies=True), limit=(NO_LIMIT,) * 4)

    start_schedule = start(problem)

    assert start_schedule is not None
    assert not problem.copies
    assert start_schedule.played.step == bound(problem)


def test_more_memory_than_all_activations_need_adds_no_start_schedules() -> None:
    counts = [len([*started(toy(2, 3, limit, copies=True))]) for limit in (100, 10_000)]

    assert counts[0] == counts[1]


def test_no_more_start_schedules_are_built_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    built = count()
    starts = (SimpleNamespace(played=SimpleNamespace(step=step)) for step in built)
    monkeypatch.setattr(search_module, "started", lambda _problem: starts)
    played: list[int] = []
    judge: Any = SimpleNamespace(
        input=SimpleNamespace(messages_are_simple=False), problem=None,
        _play_until=lambda _until, _effort, schedules, **_: played.append(len(list(schedules))),
    )  # fmt: skip
    monkeypatch.setattr(search_module, "in_order", lambda _problem, _known: [])
    now = count()

    play_starts = search_module._Judge.play_starts  # noqa: SLF001 - a whole search takes longer than its time
    play_starts(judge, Effort(seconds=100, clock=lambda: float(next(now))), [])

    assert played[0] == 0
    assert 1 <= played[1] == next(built) - 1 <= 100
