"""Optimise a configuration: search with the cache, and let the simulator choose among what is found."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.plugin import PptraceError, Schedule, ScheduleError
from pptrace_optpipe.caching import Cache, Entry
from pptrace_optpipe.playing import play
from pptrace_optpipe.problem import Part, coarsened
from pptrace_optpipe.search import Found, search
from pptrace_optpipe.starting import started
from pptrace_optpipe.tables import joined, rows_of_table, table_of
from pptrace_optpipe.waiting import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_optpipe.problem import Op, Problem, Rows
    from pptrace_optpipe.rivals import Rival
    from pptrace_optpipe.setting import Ground, Simulated
    from pptrace_optpipe.solving import Effort

__all__ = ["Optimised", "cached_search", "optimise"]

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
    """Search from what the cache has, if anything, and keep there what is found.

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
    """The simulator, which plays what is found in one placement and keeps the best that fits."""

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
    """Return the ground of a rival whose placement is another one, if a search can split what it runs."""
    table = rival.table
    if table.placement == ground.placement or table.microbatches != ground.placement.microbatches:
        return None
    return None if rival.rows() is None else rival.ground()


def _starts(ground: Ground, known: Sequence[Rival]) -> list[Rows]:
    """Return the rows of rivals that have a ground's placement."""
    alike = (one.rows() for one in known if one.table.placement == ground.placement)
    return [rows for rows in alike if rows is not None]
