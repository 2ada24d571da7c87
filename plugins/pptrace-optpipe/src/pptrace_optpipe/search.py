"""The search: a schedule to start from, the whole model or windows of it, and bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace_optpipe.bounds import bound, relaxed_bound, relaxed_ranks
from pptrace_optpipe.counting import counted_bound
from pptrace_optpipe.ordering import rows_of
from pptrace_optpipe.playing import play
from pptrace_optpipe.problem import coarsened
from pptrace_optpipe.repair import repaired
from pptrace_optpipe.solving import solve
from pptrace_optpipe.starting import Schedule, better, fitted, start
from pptrace_optpipe.steady import steady_rows
from pptrace_optpipe.windows import MOST_OPS, improved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_optpipe.problem import Problem, Rows
    from pptrace_optpipe.solving import Effort

__all__ = ["Found", "search"]

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

    schedule: Schedule
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
        self.best: Schedule | None = None
        self.random = random.Random(effort.seed)  # noqa: S311 - which window is next, not a secret

    def left(self) -> float:
        """Return the seconds that are left, or units of work."""
        return 0.0 if self.effort.stopped() else self.effort.seconds - (self.effort.clock() - self.began)

    def is_over(self) -> bool:
        """Return whether there is nothing left to do, or no time."""
        return self.left() <= 0 or (self.best is not None and self.best.played.step <= self.bound)

    def found(self) -> Found | None:
        """Return what is known."""
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
        one = Schedule(rows, played)
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

    def begin(self, one: Schedule) -> None:
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
        tell: told of every shorter schedule and higher bound.
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
