"""Optimise a configuration: search with the cache, and let the simulator choose among what is found."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.plugin import PptraceError, Schedule, ScheduleError
from pptrace_optpipe.caching import Cache, Entry
from pptrace_optpipe.playing import play
from pptrace_optpipe.problem import coarsened
from pptrace_optpipe.search import Found, search
from pptrace_optpipe.tables import joined, rows_of_table, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace_optpipe.problem import Problem, Rows
    from pptrace_optpipe.setting import Setting, Simulated
    from pptrace_optpipe.solving import Effort

__all__ = ["Optimised", "cached_search", "optimise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimised:
    """The best table of a search."""

    table: Schedule
    simulated: Simulated
    bound_ns: int
    """No table's step is shorter under the same limit."""
    problem: Problem
    rows: Rows
    seconds: float
    proved: bool
    """Whether the table is as short as the bound."""

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
    warm: Rows | None = None,
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
        found = search(problem, effort, warm=known.rows, tell=tell, only=True, least=least)
        if found is not None:
            return found
    found = search(problem, effort, warm=warm if known is None else known.rows, tell=tell, least=least)
    if found is not None and cache is not None:
        played = play(coarse, found.schedule.rows)
        if played is not None:
            spent = (known.seconds if known is not None else 0.0) + max(found.seconds, 0.0)
            spent = max(spent, effort.seconds if not effort.stopped() else 0.0)
            cache.put(problem, Entry(rows=found.schedule.rows, step=played.step, bound=found.bound // unit,
                                     seconds=spent))  # fmt: skip
    return found


def optimise(
    setting: Setting,
    memory: int,
    effort: Effort,
    cache: Cache | None,
    *,
    warm: Schedule | None = None,
    tell: Callable[[Simulated, Found], None] = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Optimised:
    """Return the best table within so many bytes per rank.

    The simulator has the last word: it plays every better schedule under the configuration's network and policy,
    and the shortest step that keeps the limit there is the result.

    Raises:
        ScheduleError: nothing that fits was found in time.
        ConstraintError: nothing can fit.
    """
    problem = setting.problem(memory)
    best: list[tuple[Simulated, Schedule, Rows]] = []

    def judge(found: Found) -> None:
        if best and best[0][2] is found.schedule.rows:
            tell(best[0][0], found)
            return
        for rows in (joined(problem, found.schedule.rows), found.schedule.rows):
            table = table_of(rows, setting.placement)
            with suppress(PptraceError):  # a policy may deadlock on what another one runs
                simulated = setting.simulate(table)
                fits = not memory or max(simulated.peak_bytes) <= memory
                if fits and (not best or simulated.step_ns < best[0][0].step_ns):
                    best[:] = [(simulated, table, found.schedule.rows)]
        if best:
            tell(best[0][0], found)

    rows = rows_of_table(warm) if warm is not None else None
    found = cached_search(problem, effort, cache, warm=rows, tell=judge, warn=warn)
    if found is not None:
        judge(found)
    if found is None or not best:
        raise ScheduleError("nothing that fits was found in time: allow more time or memory")
    simulated, table, rows = best[0]
    return Optimised(
        table=table, simulated=simulated, bound_ns=min(found.bound, simulated.step_ns), problem=problem, rows=rows,
        seconds=found.seconds, proved=simulated.step_ns <= found.bound,
    )  # fmt: skip
