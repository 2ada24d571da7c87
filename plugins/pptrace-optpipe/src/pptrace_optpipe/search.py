"""The search for a schedule."""

from __future__ import annotations

import random
import time
from concurrent.futures import BrokenExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import PptraceError, Schedule, ScheduleError
from pptrace_optpipe.bounds import bound, counted_bound, relaxed_bound, relaxed_ranks
from pptrace_optpipe.cache import Cache, Entry
from pptrace_optpipe.memory_repair import repaired
from pptrace_optpipe.model import Effort, WorkClock, limited, solve
from pptrace_optpipe.partial_models import MOST_OPS, improved, steady_rows
from pptrace_optpipe.playback import play, rows_of, with_stream_waits
from pptrace_optpipe.problem import AWAIT_OF, OpKind, coarsened, split_rows
from pptrace_optpipe.setting import joined, rows_of_table, table_of
from pptrace_optpipe.start_schedules import (
    StartSchedule,
    disturbed,
    fitted,
    in_order,
    is_better,
    start,
    started,
    within_share,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

    from pptrace_optpipe.problem import Problem, Rows
    from pptrace_optpipe.setting import SearchInput, Simulated
    from pptrace_optpipe.start_schedules import Rival


_WHOLE = 200
"""The most computations in a problem that is solved by one model."""
_STARTS = 0.5
"""The largest share of the time for start schedules."""
_DISTURBED = 0.125
"""The largest share of the time for lists with disturbed times."""
_STEADY = 0.25
"""The largest share of the time for periodic schedules."""
_COUNTS = 0.125
"""The largest share of the time for a bound by counts."""
_EXACT_UNITS = 10**15
"""More units of time than any rank's work has."""
_SLICE = 0.05
"""Share of the time after which searches side by side exchange their best schedules."""
_LEAST_SLICE = 1.0
"""The least time between two exchanges."""
_POLL_SECONDS = 0.1
"""Seconds between two calls of ``Effort.stopped``."""
_UNITS = 4_000
"""Units of time in a rank's work in the solver's model, coarse enough for a fast solution."""
_WIDEST = 2
"""The widest windows, relative to those of the first round."""
_LONGEST = 8
"""The most work of the solver per window, relative to that in the first round."""


class SearchResult(Struct, frozen=True, kw_only=True):
    """The best schedule of a search."""

    schedule: StartSchedule
    bound: int
    """A lower bound of the step, given the problem's transfer times."""
    seconds: float


class _Search:
    """The state of a search."""

    def __init__(self, problem: Problem, effort: Effort, tell: Callable[[SearchResult], None]) -> None:
        self.problem, self.effort, self.tell = problem, effort, tell
        self.coarse, self.unit = coarsened(problem, _UNITS)
        self.began, self.ops = effort.clock(), len(problem.ops())
        self.bound = bound(problem)
        self.best: StartSchedule | None = None
        self.random = random.Random(effort.seed)  # noqa: S311 - which window is next, not a secret

    def remaining(self) -> float:
        """Return the remaining seconds, or units of work."""
        return 0.0 if self.effort.stopped() else self.effort.seconds - (self.effort.clock() - self.began)

    def kind(self, seconds: float) -> Effort:
        """Return an effort with at most ``seconds`` of the remaining time."""
        return replace(self.effort, seconds=min(seconds, self.remaining()))

    def is_over(self) -> bool:
        """Return whether the time is over or the best schedule is proved optimal."""
        return self.remaining() <= 0 or (self.best is not None and self.best.played.step <= self.bound)

    def result(self) -> SearchResult | None:
        """Return the best result so far."""
        if self.best is None:
            return None
        return SearchResult(schedule=self.best, bound=self.bound, seconds=self.effort.clock() - self.began)

    def take(self, rows: Rows | None) -> None:
        """Keep rows as the best schedule if they fit and are better."""
        if rows is None:
            return
        self.effort.count(self.ops)
        rows = repaired(self.problem, split_rows(self.problem, rows))
        played = play(self.problem, rows)
        if played is None or not played.fits(self.problem):
            return
        schedule = StartSchedule(rows_of(self.problem, played.start), played)
        if is_better(schedule, self.best):
            is_shorter = self.best is None or played.step < self.best.played.step
            self.best = schedule
            if is_shorter:
                self._report()

    def raise_bound(self, bound: int) -> None:
        """Keep a bound if it is higher than the current one."""
        if bound > self.bound:
            self.bound = bound
            self._report()

    def _report(self) -> None:
        result = self.result()
        if result is not None:
            self.tell(result)

    def start(self) -> None:
        """Try start schedules, for a share of the time."""

        def is_over() -> bool:
            self.effort.count(self.ops)
            return self.remaining() <= self.effort.seconds * (1 - _STARTS)

        start(self.problem, self.bound, is_over, lambda schedule: self.take(schedule.rows))

    def disturb(self) -> None:
        """Try list scheduling with disturbed times, for a share of the time."""
        if self.best is None or self.ops <= _WHOLE:
            return
        least = self.remaining() - self.effort.seconds * _DISTURBED
        for rows in disturbed(self.problem, self.random):
            if self.is_over() or self.remaining() <= least:
                return
            self.effort.count(self.ops)
            played = None if rows is None else play(self.problem, rows)
            if rows is not None and played is not None and played.step < self.best.played.step:
                for schedule in fitted(self.problem, rows, played):
                    self.take(schedule.rows)

    def repeat(self) -> None:
        """Try periodic schedules, for a share of the time."""
        if self.is_over() or self.ops <= _WHOLE:
            return
        least = self.remaining() - self.effort.seconds * _STEADY
        effort = replace(self.kind(self.effort.seconds * _STEADY), stopped=lambda: self.remaining() <= least)
        for rows in steady_rows(self.problem, effort):
            played = play(self.problem, rows)
            if played is not None:
                for schedule in fitted(self.problem, rows, played):
                    self.take(schedule.rows)
            if self.is_over() or self.remaining() <= least:
                return

    def count(self) -> None:
        """Raise the bound by counts of operations, for a share of the time."""
        if self.best is None or self.is_over():
            return
        kind = self.kind(self.effort.seconds * _COUNTS)
        self.raise_bound(counted_bound(self.problem, kind, length=self.best.played.step, least=self.bound))

    def relax(self) -> None:
        """Raise the bound by relaxations to small groups of ranks, for a share of the time."""
        if self.best is None or len(self.coarse.ops()) > _WHOLE:
            return
        horizon = self.best.played.step // self.unit + 1
        for ranks in relaxed_ranks(self.coarse):
            if self.is_over() or self.remaining() < self.effort.seconds / 2:
                return
            kind, least = self.kind(self.effort.seconds / 8), self.bound // self.unit
            self.raise_bound(relaxed_bound(self.coarse, kind, ranks, horizon, least) * self.unit)

    def solve_whole(self) -> None:
        """Solve the model of the whole problem, with the best schedule as a hint.

        Where rounded times leave a gap after an optimum, the model with exact times follows.
        """
        for units in (_UNITS, _EXACT_UNITS) if self.ops <= _WHOLE else ():
            if self.best is None or self.is_over():
                return
            problem, unit = coarsened(self.problem, units)
            played = play(problem, split_rows(problem, self.best.rows))
            if played is None:
                return
            kind, least = self.kind(self.remaining()), self.bound // unit
            solved = solve(problem, kind, horizon=played.step, hint=played.start, least=least)
            self.raise_bound(solved.bound * unit)
            if solved.start:
                self.take(rows_of(problem, solved.start))
            if solved.length != solved.bound:
                return

    def windows(self) -> None:
        """Improve the best schedule in windows until the time is over.

        After each round without a shorter schedule, windows are wider and the solver works longer on each.
        """
        if self.effort.start_executor is not None:
            self._windows_side_by_side(self.effort.start_executor)
        fruitless, before = 0, self.remaining() + 1
        while self.best is not None and not self.is_over() and self.remaining() < before:
            step, before = self.best.played.step, self.remaining()
            self._try_windows(self.best, fruitless)
            fruitless = 0 if self.best.played.step < step else fruitless + 1

    def _windows_side_by_side(self, start_executor: Callable[[], Executor]) -> None:
        """Search in several processes with different seeds; each slice of time starts from the best schedule."""
        executor = start_executor()
        try:
            while self.best is not None and not self.is_over():
                seconds = min(max(self.effort.seconds * _SLICE, _LEAST_SLICE), self.remaining())
                is_timed = not isinstance(self.effort.clock, WorkClock)
                call = partial(windows_from, self.problem, self.best.rows, self.bound, seconds, is_timed=is_timed)
                futures = [executor.submit(call, self.random.randrange(2**31)) for _ in range(self.effort.workers)]
                while not self.effort.stopped() and wait(futures, timeout=_POLL_SECONDS).not_done:
                    pass
                for future in futures:
                    self.take(future.result() if future.done() else None)
                self.effort.count(0, seconds)
        except BrokenExecutor:  # this process goes on alone
            return
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _try_windows(self, best: StartSchedule, fruitless: int) -> None:
        """Try windows over the whole step once, with a further seed of the solver."""
        played = play(self.coarse, split_rows(self.coarse, best.rows))
        if played is None:
            return
        widest = min(1 + fruitless / 4, _WIDEST)
        width = max(int(played.step * MOST_OPS / max(self.ops, 1) * self.random.uniform(widest / 2, widest)), 1)
        effort = replace(self.kind(20), seed=self.random.randrange(2**31))
        work = min(2**fruitless, _LONGEST)
        shift = self.random.randrange(width)
        lows = list(range(-shift, played.step, max(width // 2, 1)))
        self.random.shuffle(lows)
        for low in lows:
            if self.is_over():
                break
            rows = split_rows(self.coarse, (self.best or best).rows)
            played = play(self.coarse, rows)
            if played is not None:
                span_effort = replace(effort, seconds=self.kind(20).seconds)
                self.take(improved(self.coarse, rows, played, (low, low + width), span_effort, work))


def windows_from(
    problem: Problem, rows: Rows, least: int, seconds: float, seed: int, *, is_timed: bool
) -> Rows | None:
    """Return the best rows of a search in windows.

    Args:
        problem: what to schedule.
        rows: the rows to start from.
        least: a known lower bound.
        seconds: time of the search, or units of work.
        seed: seed of the search.
        is_timed: whether ``seconds`` is a time.
    """
    effort = Effort(seconds=seconds, seed=seed) if is_timed else limited(None, seconds, seed=seed)
    state = _Search(problem, effort, lambda _: None)
    state.bound = max(state.bound, least)
    state.take(rows)
    state.windows()
    return state.best.rows if state.best is not None else None


def search(
    problem: Problem,
    effort: Effort,
    *,
    warm: Sequence[Rows] = (),
    only: bool = False,
    least: int = 0,
    tell: Callable[[SearchResult], None] = lambda _: None,
) -> SearchResult | None:
    """Return the best schedule found within the effort; None if no schedule fits.

    With one worker and a limit of work, the same problem, seed and start rows give the same schedule. With a limit
    of time, this holds only if no part of the search runs out of time.

    Args:
        problem: what to schedule.
        effort: time, threads and seed.
        warm: rows to start from, in addition to those of heuristics.
        only: whether to return the best of ``warm`` with a bound, without further search.
        least: a known lower bound.
        tell: called for every shorter schedule and higher bound.
    """
    state = _Search(problem, effort, tell)
    state.bound = max(state.bound, least)
    for rows in warm:
        state.take(rows)
    if not only:
        state.start()
        state.disturb()
        state.repeat()
        state.count()
        state.relax()
        state.solve_whole()
        state.windows()
    return state.result()


_SHARE = 0.25
"""Share of the time to simulate hand-made orders; start schedules get half of it. With ``async`` messages, neither
is simulated."""
_AT_LEAST = 4
"""The least number of hand-made orders that are simulated, even in a very short search."""


class Optimised(Struct, frozen=True, kw_only=True):
    """The best table of a search."""

    table: Schedule
    simulated: Simulated
    bound_ns: int
    """Lower bound of the step of all tables with this placement and limit; 0 if it is not known."""
    problem: Problem | None = None
    """The problem of the table's placement."""
    seconds: float = 0.0
    rival: str = ""
    """The name of another plugin's schedule, if that is the best table; else empty."""
    rivals: tuple[Rival, ...] = ()
    """The schedules of other plugins that were built in time."""

    @property
    def rows(self) -> Rows:
        """The rows of the table with split backwards; empty if a search cannot split them."""
        with suppress(ScheduleError):
            return rows_of_table(self.table)
        return []

    @property
    def proved(self) -> bool:
        """Whether the step reaches the bound, so that the table is optimal."""
        return self.simulated.step_ns <= self.bound_ns

    @property
    def gap(self) -> float:
        """The difference between step and bound, as a share of the step."""
        step = self.simulated.step_ns
        return max(step - self.bound_ns, 0) / step if step else 0.0


def cached_search(
    problem: Problem,
    effort: Effort,
    cache: Cache | None,
    *,
    warm: Sequence[Rows] = (),
    tell: Callable[[SearchResult], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> SearchResult | None:
    """Search from the cached result, if any, and cache the new result.

    A cached result is returned without a new search if it is proved optimal or had at least the same search time.
    See :func:`pptrace_optpipe.search.search`.
    """
    if cache is None:
        return search(problem, effort, warm=warm, tell=tell)
    cached, fault = cache.get(problem)
    if fault:
        warn(fault)
    coarse, unit = coarsened(problem)
    least, start_rows = 0, []
    if cached is None:
        start_rows = cache.near(problem)
    else:
        least, start_rows = cached.bound * unit, [cached.rows]
        if cached.step <= cached.bound or cached.seconds + 1 > effort.seconds:
            result = search(problem, effort, warm=start_rows, tell=tell, only=True, least=least)
            if result is not None:
                return result
    result = search(problem, effort, warm=[*warm, *start_rows], tell=tell, least=least)
    played = None if result is None else play(coarse, result.schedule.rows)
    if result is not None and played is not None:
        spent = max(result.seconds, 0.0) + (0.0 if cached is None else cached.seconds)
        spent = max(spent, 0.0 if effort.stopped() else effort.seconds)
        cache.put(problem, Entry(rows=result.schedule.rows, step=played.step, bound=result.bound // unit,
                                 seconds=spent))  # fmt: skip
    return result


class _Judge:
    """The simulator of rows. It keeps the best table that fits in memory."""

    def __init__(
        self, search_input: SearchInput, best: Optimised | None, tell: Callable[[Optimised], None]
    ) -> None:
        self.input, self.best, self.tell = search_input, best, tell
        self.problem = search_input.problem
        self.judged: Rows | None = None

    def play(self, rows: Rows) -> None:
        """Simulate rows with joined backwards where this costs no time, and unchanged.

        The simulator does not know which copies share a stream, so tables have the waits between them.
        """
        rows = with_stream_waits(self.problem, rows)
        for variant in (joined(self.problem, rows), rows):
            self.play_table(table_of(variant, self.input.placement))

    def play_table(self, table: Schedule) -> None:
        """Simulate a table, and keep it if it fits and is the shortest."""
        with suppress(PptraceError):  # a policy may deadlock on what another one runs
            simulated = self.input.simulate(table)
            is_shorter = self.best is None or simulated.step_ns < self.best.simulated.step_ns
            if is_shorter and self.input.fits(simulated):
                self.best = Optimised(table=table, simulated=simulated, bound_ns=0, problem=self.problem)

    def hear(self, result: SearchResult) -> None:
        """Simulate a search's result if it is new, and report the best table."""
        if self.judged is not result.schedule.rows:
            self.judged = result.schedule.rows
            self.play(result.schedule.rows)
        best = self.bounded(result)
        if best is not None:
            self.tell(best)

    def bounded(self, result: SearchResult) -> Optimised | None:
        """Return the best table with the bound of a search, if it has the placement of the search."""
        best = self.best
        if best is None or best.table.placement != self.input.placement or not best.rows:
            return best
        bound = result.bound if result.bound <= best.simulated.step_ns else 0
        return replace(best, bound_ns=bound, problem=self.problem)

    def play_starts(self, effort: Effort, known: Sequence[Rows]) -> None:
        """Simulate start schedules if messages have costs that the search does not model.

        A message policy may deadlock on all start schedules. Therefore orders of hand-made schedules come first,
        repaired by copies with waits if they exceed memory.
        """
        if self.input.messages_are_simple:
            return
        until = effort.clock() + effort.seconds * _SHARE
        self._play_until(until, effort, in_order(self.problem, known), at_least=_AT_LEAST)
        if effort.stopped():
            return
        until += effort.seconds * _SHARE / 2
        starts = takewhile(lambda _: not (effort.stopped() or effort.clock() > until), started(self.problem))
        self._play_until(until, effort, sorted(starts, key=lambda schedule: schedule.played.step))

    def _play_until(
        self, until: float, effort: Effort, schedules: Iterable[StartSchedule], at_least: int = 0
    ) -> None:
        """Simulate schedules until a time."""
        for index, schedule in enumerate(schedules):
            if effort.stopped() or (index >= at_least and effort.clock() > until):
                return
            self.play(schedule.rows)
            effort.count(len(self.problem.ops()))


def optimise(
    search_input: SearchInput,
    effort: Effort,
    cache: Cache | None,
    *,
    warm: Sequence[Schedule] = (),
    rivals: Iterable[Rival | None] = (),
    tell: Callable[[Optimised], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Optimised:
    """Return the best table within the limit of a search's input.

    A share of the time is for ``rivals``, schedules of other plugins that are built as they are iterated, with
    None for one that cannot be compared. The simulator runs every better schedule with the configuration's network
    and policy. The result is the table with the shortest simulated step within the limit. The search starts from
    ``warm``, tables of its placement, and from rivals that fit and have the same placement. If a schedule with
    another placement remains the best after half of the time, the second half searches in that placement. The
    result is never longer than any of these schedules.

    Raises:
        ScheduleError: no table that fits was found in time.
    """
    built, effort = within_share(rivals, effort)
    start, start_s = effort.clock(), time.monotonic()
    fitting = sorted((rival for rival in built if rival.fits), key=lambda rival: rival.simulated.step_ns)
    best, rival_input = None, None
    if fitting:
        rival = fitting[0]
        best = Optimised(table=rival.table, simulated=rival.simulated, bound_ns=0, rival=rival.name)
        rival_input = _input_of_rival(search_input, rival)
    rows: list[Rows] = []
    judge = _Judge(search_input, best, tell)
    for table in warm:
        if not search_input.problem.shared:
            judge.play_table(table)
        with suppress(ScheduleError):
            rows.append(rows_of_table(table))
            if search_input.problem.shared:
                judge.play(rows[-1])
    first_effort = effort if rival_input is None else replace(effort, seconds=effort.seconds / 2)
    rows += _rows_in_placement(search_input, fitting)
    best = _search_placement(judge, first_effort, cache, rows, warn, built)
    remaining = effort.seconds - (effort.clock() - start)
    if rival_input is not None and best is not None and best.rival and remaining > 0 and not effort.stopped():
        judge = _Judge(rival_input, best, tell)
        with suppress(PptraceError):
            rows = _rows_in_placement(rival_input, fitting)
            best = _search_placement(judge, replace(effort, seconds=remaining), cache, rows, warn, built)
    if best is None:
        raise ScheduleError("nothing that fits was found in time: allow more time or memory")
    return replace(best, seconds=time.monotonic() - start_s, rivals=tuple(built))


def _search_placement(
    judge: _Judge, effort: Effort, cache: Cache | None, warm: Sequence[Rows], warn: Callable[[str], None],
    rivals: Sequence[Rival],
) -> Optimised | None:  # fmt: skip
    """Search in the placement of a judge, and return the best table so far; rivals may exceed memory."""
    absent = set() if judge.problem.recomputes else {OpKind.C}
    if not judge.problem.offload:
        absent |= {OpKind.O, OpKind.R, *AWAIT_OF.values()}
    warm = [[[op for op in row if op.kind not in absent] for row in rows] for rows in warm]
    judge.play_starts(effort, _rows_in_placement(judge.input, rivals))
    result = cached_search(judge.problem, effort, cache, warm=warm, tell=judge.hear, warn=warn)
    if result is None:
        return judge.best
    judge.hear(result)
    return judge.bounded(result)


def _input_of_rival(search_input: SearchInput, rival: Rival) -> SearchInput | None:
    """Return the input of a search in a rival's placement; None if it is the same or backwards cannot be split."""
    table = rival.table
    is_same = table.placement == search_input.placement
    if is_same or table.microbatches != search_input.placement.microbatches or rival.rows() is None:
        return None
    with suppress(PptraceError):
        return rival.search_input()
    return None


def _rows_in_placement(search_input: SearchInput, rivals: Sequence[Rival]) -> list[Rows]:
    """Return the rows of rivals with the placement of an input."""
    same_placement = (rival.rows() for rival in rivals if rival.table.placement == search_input.placement)
    return [rows for rows in same_placement if rows is not None]
