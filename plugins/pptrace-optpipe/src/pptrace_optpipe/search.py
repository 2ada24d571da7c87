"""The search for a schedule."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.plugin import PptraceError, Schedule, ScheduleError
from pptrace_optpipe.bounds import bound, counted_bound, relaxed_bound, relaxed_ranks
from pptrace_optpipe.cache import Cache, Entry
from pptrace_optpipe.memory_repair import repaired
from pptrace_optpipe.model import solve
from pptrace_optpipe.playback import play, rows_of
from pptrace_optpipe.problem import Part, coarsened
from pptrace_optpipe.setting import joined, rows_of_table, table_of
from pptrace_optpipe.start_schedules import StartSchedule, fitted, in_order, is_better, start, started
from pptrace_optpipe.steady_state import steady_rows
from pptrace_optpipe.windows import MOST_OPS, improved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Op, Problem, Rows
    from pptrace_optpipe.setting import SearchInput, Simulated
    from pptrace_optpipe.start_schedules import Rival

__all__ = ["Optimised", "SearchResult", "cached_search", "optimise", "search"]

_WHOLE = 200
"""Computations up to which the whole model is solved."""
_STARTS = 0.5
"""The part of the time that goes to schedules to start from, at most."""
_STEADY = 0.25
"""The part that goes to schedules that repeat, at most."""
_COUNTS = 0.125
"""The part that goes to a bound by counts, at most."""
_UNITS = 4_000
"""Units of time that a rank's work has in what the solver is given: coarse enough to be quick."""
_FRUITLESS = 3
"""Rounds over all windows without a better schedule after which the search ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best schedule of a search."""

    schedule: StartSchedule
    bound: int
    """No schedule is shorter, as far as times between computations go."""
    seconds: float


class _Search:
    """A search while it goes on."""

    def __init__(self, problem: Problem, effort: Effort, tell: Callable[[SearchResult], None]) -> None:
        self.problem, self.effort, self.tell = problem, effort, tell
        self.coarse, self.unit = coarsened(problem, _UNITS)
        self.began, self.ops = effort.clock(), len(problem.ops())
        self.bound = bound(problem)
        self.best: StartSchedule | None = None
        self.random = random.Random(effort.seed)  # noqa: S311 - which window is next, not a secret

    def left(self) -> float:
        """Return the seconds that are left, or units of work."""
        return 0.0 if self.effort.stopped() else self.effort.seconds - (self.effort.clock() - self.began)

    def part(self, seconds: float) -> Effort:
        """Return a part of the effort."""
        return replace(self.effort, seconds=min(seconds, self.left()))

    def is_over(self) -> bool:
        """Return whether there is nothing left to do, or no time."""
        return self.left() <= 0 or (self.best is not None and self.best.played.step <= self.bound)

    def result(self) -> SearchResult | None:
        """Return the best result so far."""
        if self.best is None:
            return None
        return SearchResult(schedule=self.best, bound=self.bound, seconds=self.effort.clock() - self.began)

    def take(self, rows: Rows | None) -> None:
        """Take rows if they fit and are better."""
        if rows is None:
            return
        self.effort.count(self.ops)
        rows = repaired(self.problem, rows)
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
        """Take a bound that is higher."""
        if bound > self.bound:
            self.bound = bound
            self._report()

    def _report(self) -> None:
        result = self.result()
        if result is not None:
            self.tell(result)

    def start(self) -> None:
        """Take schedules to start from, for a part of the time."""

        def is_over() -> bool:
            self.effort.count(self.ops)
            return self.left() <= self.effort.seconds * (1 - _STARTS)

        start(self.problem, self.bound, is_over, lambda schedule: self.take(schedule.rows))

    def repeat(self) -> None:
        """Take schedules that repeat a period, for a part of the time."""
        if self.is_over() or self.ops <= _WHOLE:
            return
        least = self.left() - self.effort.seconds * _STEADY
        effort = replace(self.part(self.effort.seconds * _STEADY), stopped=lambda: self.left() <= least)
        for rows in steady_rows(self.problem, effort):
            played = play(self.problem, rows)
            if played is not None:
                for schedule in fitted(self.problem, rows, played):
                    self.take(schedule.rows)
            if self.is_over() or self.left() <= least:
                return

    def count(self) -> None:
        """Raise the bound by counts without microbatches, for a part of the time."""
        if self.best is None or self.is_over():
            return
        part = self.part(self.effort.seconds * _COUNTS)
        self.raise_bound(counted_bound(self.problem, part, length=self.best.played.step, least=self.bound))

    def relax(self) -> None:
        """Raise the bound by small groups of ranks, for a part of the time."""
        if self.best is None or len(self.coarse.ops()) > _WHOLE:
            return
        horizon = self.best.played.step // self.unit + 1
        for ranks in relaxed_ranks(self.coarse):
            if self.is_over() or self.left() < self.effort.seconds / 2:
                return
            part, least = self.part(self.effort.seconds / 8), self.bound // self.unit
            self.raise_bound(relaxed_bound(self.coarse, part, ranks, horizon, least) * self.unit)

    def solve_whole(self) -> None:
        """Solve the whole model, from the best so far."""
        if self.best is None or len(self.coarse.ops()) > _WHOLE or self.is_over():
            return
        played = play(self.coarse, self.best.rows)
        if played is None:
            return
        part, least = self.part(self.left()), self.bound // self.unit
        solved = solve(self.coarse, part, horizon=played.step, hint=played.start, least=least)
        if self.coarse.shortest is self.coarse:
            self.raise_bound(solved.bound * self.unit)
        if solved.start:
            self.take(rows_of(self.coarse, solved.start))

    def windows(self) -> None:
        """Improve window by window until nothing comes of it any more, or time is over."""
        fruitless = 0
        while self.best is not None and fruitless < _FRUITLESS and not self.is_over():
            step = self.best.played.step
            self._try_windows(self.best)
            fruitless = 0 if self.best.played.step < step else fruitless + 1

    def _try_windows(self, best: StartSchedule) -> None:
        """Try windows over the whole step once."""
        played = play(self.coarse, best.rows)
        if played is None:
            return
        width = max(played.step * MOST_OPS // max(self.ops, 1), 1)
        shift = self.random.randrange(width)
        lows = list(range(-shift, played.step, max(width // 2, 1)))
        self.random.shuffle(lows)
        for low in lows:
            if self.is_over():
                break
            best = self.best or best
            played = play(self.coarse, best.rows)
            if played is not None:
                self.take(improved(self.coarse, best.rows, played, (low, low + width), self.part(20)))


def search(
    problem: Problem,
    effort: Effort,
    *,
    warm: Sequence[Rows] = (),
    only: bool = False,
    least: int = 0,
    tell: Callable[[SearchResult], None] = lambda _: None,
) -> SearchResult | None:
    """Return the best schedule that was found in time; None where none fits.

    With one worker, the same problem, seed and start give the same schedule: always where work is limited, else
    whenever neither the search nor the part of its time that a bound may take runs out.

    Args:
        problem: what to schedule.
        effort: time, threads and seed.
        warm: rows to start from beside the heuristics'.
        only: whether to do no more than bound those.
        least: a lower bound that is known.
        tell: called for every shorter schedule and higher bound.
    """
    state = _Search(problem, effort, tell)
    state.bound = max(state.bound, least)
    for rows in warm:
        state.take(rows)
    if not only:
        state.start()
        state.repeat()
        state.count()
        state.relax()
        state.solve_whole()
        state.windows()
    return state.result()


_SHARE = 0.25
"""The part of the time in which the simulator plays orders made by hand, and half of it for what a search starts
from, unless messages are ``async``."""
_AT_LEAST = 4
"""How many of those orders it plays, however short a search is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimised:
    """The best table of a search."""

    table: Schedule
    simulated: Simulated
    bound_ns: int
    """No table of its placement has a shorter step under the same limit; 0 where that was not searched."""
    rows: Sequence[list[Op]] = ()
    """Its rows; none of a schedule that a search cannot split."""
    problem: Problem | None = None
    """The problem of its placement."""
    seconds: float = 0.0
    rival: str = ""
    """The schedule of another plugin that it is, if nothing better was found."""

    @property
    def proved(self) -> bool:
        """Whether the table is as short as the bound."""
        return self.simulated.step_ns <= self.bound_ns

    @property
    def gap(self) -> float:
        """The part of the step that may still be saved."""
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

    What was searched as long, or is proved, is taken as it is; see :func:`pptrace_optpipe.search.search`.
    """
    if cache is None:
        return search(problem, effort, warm=warm, tell=tell)
    known, fault = cache.get(problem)
    if fault:
        warn(fault)
    coarse, unit = coarsened(problem)
    least, near = 0, []
    if known is None:
        near = cache.near(problem)
    else:
        least, near = known.bound * unit, [known.rows]
        if known.step <= known.bound or known.seconds + 1 > effort.seconds:
            result = search(problem, effort, warm=near, tell=tell, only=True, least=least)
            if result is not None:
                return result
    result = search(problem, effort, warm=[*warm, *near], tell=tell, least=least)
    played = None if result is None else play(coarse, result.schedule.rows)
    if result is not None and played is not None:
        spent = max(result.seconds, 0.0) + (0.0 if known is None else known.seconds)
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
        """Simulate rows, with backwards whole where splitting gains nothing and as they are."""
        for variant in (joined(self.problem, rows), rows):
            self.play_table(table_of(variant, self.input.placement), rows)

    def play_table(self, table: Schedule, rows: Rows) -> None:
        """Simulate a table as it is; ``rows`` has it with backwards split."""
        with suppress(PptraceError):  # a policy may deadlock on what another one runs
            simulated = self.input.simulate(table)
            is_shorter = self.best is None or simulated.step_ns < self.best.simulated.step_ns
            if is_shorter and self.input.fits(simulated):
                self.best = Optimised(
                    table=table, simulated=simulated, bound_ns=0, rows=rows, problem=self.problem
                )

    def hear(self, result: SearchResult) -> None:
        """Simulate a search's result, if it is new, and pass it on."""
        if self.judged is not result.schedule.rows:
            self.judged = result.schedule.rows
            self.play(result.schedule.rows)
        best = self.bounded(result)
        if best is not None:
            self.tell(best)

    def bounded(self, result: SearchResult) -> Optimised | None:
        """Return the best with the bound of a search, which is one for tables of its placement alone."""
        best = self.best
        if best is None or not best.rows or best.table.placement != self.input.placement:
            return best
        bound = result.bound if result.bound <= best.simulated.step_ns else 0
        return replace(best, bound_ns=bound, problem=self.problem)

    def play_starts(self, effort: Effort, known: Sequence[Rows]) -> None:
        """Simulate what searches start from, where messages cost what a search does not see.

        A policy may deadlock on all of that. So the orders of schedules made by hand go first, whatever those
        hold, with copies that they wait for.
        """
        if self.input.messages_are_simple:
            return
        until = effort.clock() + effort.seconds * _SHARE
        self._play_until(until, effort, in_order(self.problem, known), at_least=_AT_LEAST)
        if effort.stopped():
            return
        until += effort.seconds * _SHARE / 2
        starts = sorted(started(self.problem), key=lambda schedule: schedule.played.step)
        self._play_until(until, effort, starts)

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
    warm: Schedule | None = None,
    rivals: Sequence[Rival] = (),
    tell: Callable[[Optimised], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Optimised:
    """Return the best table within the limit of a search's input.

    The simulator has the last word: it plays every better schedule under the configuration's network and policy,
    and the shortest step that keeps the limit there is the result. The search starts from schedules of other
    plugins that keep it and have its placement; where one of another placement is shorter than what comes of that,
    the rest of the time goes to that placement, and the result is never longer than any of them.

    Raises:
        ScheduleError: nothing that fits was found in time.
    """
    began, began_s = effort.clock(), time.monotonic()
    fitting = sorted((rival for rival in rivals if rival.fits), key=lambda rival: rival.simulated.step_ns)
    best, elsewhere = None, None
    if fitting:
        rival = fitting[0]
        best = Optimised(
            table=rival.table, simulated=rival.simulated, bound_ns=0, rows=rival.rows() or (), rival=rival.name
        )
        if warm is None:
            elsewhere = _elsewhere(search_input, rival)
    rows = [rows_of_table(warm)] if warm is not None else []
    judge = _Judge(search_input, best, tell)
    if warm is not None:
        judge.play_table(warm, rows[0])
    part = effort if elsewhere is None else replace(effort, seconds=effort.seconds / 2)
    best = _searched(judge, part, cache, [*rows, *_starts(search_input, fitting)], warn, rivals)
    left = effort.seconds - (effort.clock() - began)
    if elsewhere is not None and best is not None and best.rival and left > 0 and not effort.stopped():
        judge, part = _Judge(elsewhere, best, tell), replace(effort, seconds=left)
        with suppress(PptraceError):
            best = _searched(judge, part, cache, _starts(elsewhere, fitting), warn, rivals)
    if best is None:
        raise ScheduleError("nothing that fits was found in time: allow more time or memory")
    return replace(best, seconds=time.monotonic() - began_s)


def _searched(
    judge: _Judge, effort: Effort, cache: Cache | None, warm: Sequence[Rows], warn: Callable[[str], None],
    rivals: Sequence[Rival],
) -> Optimised | None:  # fmt: skip
    """Search in one placement, and return the best that is known then; rivals need not fit."""
    if not judge.problem.recomputes:
        warm = [[[op for op in row if op.part is not Part.C] for row in rows] for rows in warm]
    judge.play_starts(effort, _starts(judge.input, rivals))
    result = cached_search(judge.problem, effort, cache, warm=warm, tell=judge.hear, warn=warn)
    if result is None:
        return judge.best
    judge.hear(result)
    return judge.bounded(result)


def _elsewhere(search_input: SearchInput, rival: Rival) -> SearchInput | None:
    """Return a rival's own input where its placement is another one and a search can split its backwards."""
    table = rival.table
    is_same = table.placement == search_input.placement
    if is_same or table.microbatches != search_input.placement.microbatches or rival.rows() is None:
        return None
    with suppress(PptraceError):
        return rival.search_input()
    return None


def _starts(search_input: SearchInput, rivals: Sequence[Rival]) -> list[Rows]:
    """Return the rows of rivals that have an input's placement."""
    alike = (rival.rows() for rival in rivals if rival.table.placement == search_input.placement)
    return [rows for rows in alike if rows is not None]
