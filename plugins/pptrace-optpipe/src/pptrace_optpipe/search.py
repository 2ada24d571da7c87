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
from pptrace_optpipe.start_schedules import StartSchedule, better, fitted, in_order, start, started
from pptrace_optpipe.steady_state import steady_rows
from pptrace_optpipe.windows import MOST_OPS, improved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Op, Problem, Rows
    from pptrace_optpipe.setting import Ground, Simulated
    from pptrace_optpipe.start_schedules import Rival

__all__ = ["Found", "Optimised", "cached_search", "optimise", "search"]

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
class Found:
    """What a search came to."""

    schedule: StartSchedule
    bound: int
    """No schedule is shorter, as far as times between computations go."""
    seconds: float

    @property
    def gap(self) -> float:
        """The part of the length that may still be saved."""
        length = self.schedule.played.step
        return 0.0 if not length else max(length - self.bound, 0) / length


class _Search:
    """A search while it goes on."""

    def __init__(self, problem: Problem, effort: Effort, tell: Callable[[Found], None]) -> None:
        self.problem, self.effort, self.tell = problem, effort, tell
        self.coarse, self.unit = coarsened(problem, _UNITS)
        self.began, self.ops = effort.clock(), len(problem.ops())
        self.bound = bound(problem)
        self.best: StartSchedule | None = None
        self.random = random.Random(effort.seed)  # noqa: S311 - which window is next, not a secret

    def left(self) -> float:
        """Return the seconds that are left, or units of work."""
        return 0.0 if self.effort.stopped() else self.effort.seconds - (self.effort.clock() - self.began)

    def is_over(self) -> bool:
        """Return whether there is nothing left to do, or no time."""
        return self.left() <= 0 or (self.best is not None and self.best.played.step <= self.bound)

    def found(self) -> Found | None:
        """Return the best result so far."""
        if self.best is None:
            return None
        return Found(schedule=self.best, bound=self.bound, seconds=self.effort.clock() - self.began)

    def take(self, rows: Rows | None) -> bool:
        """Take rows if they fit and are better, and return whether they were."""
        if rows is None:
            return False
        self.effort.count(self.ops)
        rows = repaired(self.problem, rows)
        played = play(self.problem, rows)
        if played is None or not played.fits(self.problem):
            return False
        rows = rows_of(self.problem, played.start)
        one = StartSchedule(rows, played)
        if not better(one, self.best):
            return False
        shorter = self.best is None or played.step < self.best.played.step
        self.best = one
        if shorter:
            self._tell()
        return True

    def has_begun(self) -> bool:
        """Count a rule to start from that was tried, and return whether their part of the time is over."""
        self.effort.count(self.ops)
        return self.left() <= self.effort.seconds * (1 - _STARTS)

    def begin(self, one: StartSchedule) -> None:
        """Take a schedule to start from."""
        self.take(one.rows)

    def _tell(self) -> None:
        now = self.found()
        if now is not None:
            self.tell(now)

    def repeat(self) -> None:
        """Take schedules that repeat a period, for a part of the time."""
        if self.is_over() or self.ops <= _WHOLE:
            return
        least = self.left() - self.effort.seconds * _STEADY
        each = replace(self.part(self.effort.seconds * _STEADY), stopped=lambda: self.left() <= least)
        for rows in steady_rows(self.problem, each):
            played = play(self.problem, rows)
            if played is not None:
                for one in fitted(self.problem, rows, played):
                    self.take(one.rows)
            if self.is_over() or self.left() <= least:
                return

    def raise_bound(self, least: int) -> None:
        """Take a bound that is higher."""
        if least > self.bound:
            self.bound = least
            self._tell()

    def part(self, seconds: float) -> Effort:
        """Return a part of the effort."""
        return replace(self.effort, seconds=min(seconds, self.left()))

    def count(self) -> None:
        """Raise the bound by counts without microbatches, for a part of the time."""
        if self.best is None or self.is_over():
            return
        length = self.best.played.step
        part = self.part(self.effort.seconds * _COUNTS)
        self.raise_bound(counted_bound(self.problem, part, length=length, least=self.bound))

    def relax(self) -> None:
        """Raise the bound by small groups of ranks, for a part of the time."""
        if self.best is None or len(self.coarse.ops()) > _WHOLE:
            return
        horizon = self.best.played.step // self.unit + 1
        for ranks in relaxed_ranks(self.coarse):
            if self.is_over() or self.left() < self.effort.seconds / 2:
                return
            least = relaxed_bound(
                self.coarse, self.part(self.effort.seconds / 8), ranks, horizon, self.bound // self.unit
            )
            self.raise_bound(least * self.unit)

    def solve_whole(self) -> None:
        """Solve the whole model, from the best so far."""
        if self.best is None or len(self.coarse.ops()) > _WHOLE or self.is_over():
            return
        now = play(self.coarse, self.best.rows)
        if now is None:
            return
        done = solve(
            self.coarse, self.part(self.left()), horizon=now.step, hint=now.start, least=self.bound // self.unit
        )
        if self.coarse.shortest is self.coarse:
            self.raise_bound(done.bound * self.unit)
        if done.start:
            self.take(rows_of(self.coarse, done.start))

    def windows(self) -> None:
        """Improve window by window until nothing comes of it any more, or time is over."""
        fruitless = 0
        while self.best is not None and fruitless < _FRUITLESS and not self.is_over():
            fruitless = 0 if self._round() else fruitless + 1

    def _round(self) -> bool:
        """Try windows over the whole step once, and return whether one shortened it."""
        assert self.best is not None  # noqa: S101 - for the type checker
        before = self.best.played.step
        length = play(self.coarse, self.best.rows)
        if length is None:
            return False
        ops = len(self.coarse.ops())
        width = max(length.step * MOST_OPS // max(ops, 1), 1)
        shift = self.random.randrange(width)
        lows = list(range(-shift, length.step, max(width // 2, 1)))
        self.random.shuffle(lows)
        for low in lows:
            if self.is_over():
                break
            now = play(self.coarse, self.best.rows)
            if now is not None:
                self.take(improved(self.coarse, self.best.rows, now, (low, low + width), self.part(20)))
        return self.best.played.step < before


def search(
    problem: Problem,
    effort: Effort,
    *,
    warm: Sequence[Rows] = (),
    only: bool = False,
    least: int = 0,
    tell: Callable[[Found], None] = lambda _: None,
) -> Found | None:
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
    one = _Search(problem, effort, tell)
    one.bound = max(one.bound, least)
    for rows in warm:
        one.take(rows)
    if only:
        return one.found()
    start(problem, one.bound, one.has_begun, one.begin)
    one.repeat()
    one.count()
    one.relax()
    one.solve_whole()
    one.windows()
    return one.found()


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
    """What was searched in, with those rows."""
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
    tell: Callable[[Found], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Found | None:
    """Search from the cached result, if any, and cache the new result.

    What was searched as long, or is proved, is taken as it is; see :func:`pptrace_optpipe.search.search`.
    """
    known, wrong = cache.get(problem) if cache is not None else (None, "")
    if wrong:
        warn(wrong)
    coarse, unit = coarsened(problem)
    least = 0 if known is None else known.bound * unit
    if known is not None and (known.step <= known.bound or known.seconds + 1 > effort.seconds):
        found = search(problem, effort, warm=[known.rows], tell=tell, only=True, least=least)
        if found is not None:
            return found
    near = [known.rows] if known is not None else cache.near(problem) if cache is not None else []
    found = search(problem, effort, warm=[*warm, *near], tell=tell, least=least)
    if found is not None and cache is not None:
        played = play(coarse, found.schedule.rows)
        if played is not None:
            spent = (known.seconds if known is not None else 0.0) + max(found.seconds, 0.0)
            spent = max(spent, effort.seconds if not effort.stopped() else 0.0)
            cache.put(problem, Entry(rows=found.schedule.rows, step=played.step, bound=found.bound // unit,
                                     seconds=spent))  # fmt: skip
    return found


class _Judge:
    """The simulator of found rows. It keeps the best rows that fit in memory."""

    def __init__(
        self, ground: Ground, memory: int, best: Optimised | None, tell: Callable[[Optimised], None]
    ) -> None:
        self.ground, self.memory, self.best, self.tell = ground, memory, best, tell
        self.problem = ground.problem(memory)
        self.judged: Rows | None = None

    def play(self, rows: Rows) -> None:
        """Play rows, with backwards whole where splitting gains nothing and as they are."""
        for each in (joined(self.problem, rows), rows):
            self.play_table(table_of(each, self.ground.placement), rows)

    def play_table(self, table: Schedule, rows: Rows) -> None:
        """Play a table as it is; ``rows`` has it with backwards split."""
        with suppress(PptraceError):  # a policy may deadlock on what another one runs
            simulated = self.ground.simulate(table)
            fits = self.ground.fits(simulated, self.memory)
            if fits and (self.best is None or simulated.step_ns < self.best.simulated.step_ns):
                self.best = Optimised(
                    table=table, simulated=simulated, bound_ns=0, rows=rows, problem=self.problem
                )

    def hear(self, found: Found) -> None:
        """Play what a search found, if it is new, and pass it on."""
        if self.judged is not found.schedule.rows:
            self.judged = found.schedule.rows
            self.play(found.schedule.rows)
        best = self.bounded(found)
        if best is not None:
            self.tell(best)

    def bounded(self, found: Found) -> Optimised | None:
        """Return the best with the bound of a search, which is one for tables of its placement alone."""
        best = self.best
        if best is None or not best.rows or best.table.placement != self.ground.placement:
            return best
        bound = found.bound if found.bound <= best.simulated.step_ns else 0
        return replace(best, bound_ns=bound, problem=self.problem)

    def play_starts(self, effort: Effort, made: Sequence[Rows]) -> None:
        """Play what searches start from, where messages cost what a search does not see.

        A policy may deadlock on all of that. So the orders of schedules made by hand go first, whatever those
        hold, with copies that they wait for.
        """
        if self.ground.messages_are_simple:
            return
        until = effort.clock() + effort.seconds * _SHARE
        for place, one in enumerate(in_order(self.problem, made)):
            if effort.stopped() or (place >= _AT_LEAST and effort.clock() > until):
                break
            self.play(one.rows)
            effort.count(len(self.problem.ops()))
        until += effort.seconds * _SHARE / 2
        for one in sorted(started(self.problem), key=lambda one: one.played.step):
            if effort.clock() > until or effort.stopped():
                return
            self.play(one.rows)
            effort.count(len(self.problem.ops()))


def optimise(
    ground: Ground,
    memory: int,
    effort: Effort,
    cache: Cache | None,
    *,
    warm: Schedule | None = None,
    rivals: Sequence[Rival] = (),
    tell: Callable[[Optimised], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Optimised:
    """Return the best table within so many bytes per rank.

    The simulator has the last word: it plays every better schedule under the configuration's network and policy,
    and the shortest step that keeps the limit there is the result. The search starts from schedules of other
    plugins that keep it and have its placement; where one of another placement is shorter than what comes of that,
    the rest of the time goes to that placement, and the result is never longer than any of them.

    Raises:
        ScheduleError: nothing that fits was found in time.
        ConstraintError: nothing can fit.
    """
    began, began_s = effort.clock(), time.monotonic()
    known = sorted((one for one in rivals if one.fits(memory)), key=lambda one: one.simulated.step_ns)
    first = known[0] if known else None
    best = None if first is None else _of_rival(first)
    other = None if first is None or warm is not None else _elsewhere(ground, first)
    rows = [rows_of_table(warm)] if warm is not None else []
    part = effort if other is None else replace(effort, seconds=effort.seconds / 2)
    judge = _Judge(ground, memory, best, tell)
    if warm is not None:
        judge.play_table(warm, rows[0])
    best = _searched(judge, part, cache, [*rows, *_starts(ground, known)], warn, _starts(ground, rivals))
    left = effort.seconds - (effort.clock() - began)
    if other is not None and best is not None and best.rival and left > 0 and not effort.stopped():
        with suppress(PptraceError):
            judge = _Judge(other, memory, best, tell)
            best = _searched(
                judge, replace(effort, seconds=left), cache, _starts(other, known), warn, _starts(other, rivals)
            )
    if best is None:
        raise ScheduleError("nothing that fits was found in time: allow more time or memory")
    return replace(best, seconds=time.monotonic() - began_s)


def _searched(
    judge: _Judge, effort: Effort, cache: Cache | None, warm: Sequence[Rows], warn: Callable[[str], None],
    made: Sequence[Rows],
) -> Optimised | None:  # fmt: skip
    """Search in one placement, and return the best that is known then; ``made`` need not fit."""
    if not judge.problem.recomputes:
        warm = [[[op for op in row if op.part is not Part.C] for row in rows] for rows in warm]
    judge.play_starts(effort, made)
    found = cached_search(judge.problem, effort, cache, warm=warm, tell=judge.hear, warn=warn)
    if found is None:
        return judge.best
    judge.hear(found)
    return judge.bounded(found)


def _of_rival(rival: Rival) -> Optimised:
    """Return a schedule of another plugin as a result."""
    return Optimised(
        table=rival.table, simulated=rival.simulated, bound_ns=0, rows=rival.rows() or (), rival=rival.name
    )


def _elsewhere(ground: Ground, rival: Rival) -> Ground | None:
    """Return the search problem of a rival with another placement, if its backwards can be split."""
    table = rival.table
    if table.placement == ground.placement or table.microbatches != ground.placement.microbatches:
        return None
    return None if rival.rows() is None else rival.ground()


def _starts(ground: Ground, known: Sequence[Rival]) -> list[Rows]:
    """Return the rows of rivals that have a ground's placement."""
    alike = (one.rows() for one in known if one.table.placement == ground.placement)
    return [rows for rows in alike if rows is not None]
