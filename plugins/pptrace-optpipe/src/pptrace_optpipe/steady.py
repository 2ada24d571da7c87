"""Schedules that repeat: the shortest period that memory allows, unrolled, with fill and drain.

The period is searched for without copies. Where activations may go to the host, or forwards may be computed again,
it is searched for with more memory than there is, and whoever takes the rows puts those in.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace_optpipe.ordering import rows_of
from pptrace_optpipe.periods import Pattern, least_period, pattern_of
from pptrace_optpipe.problem import NO_LIMIT, coarsened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pptrace_optpipe.problem import Problem, Rows
    from pptrace_optpipe.solving import Effort

__all__ = ["shortest_pattern", "steady_rows"]

_FINE, _COARSE = 6, 48
"""Units of time of a period: at least about so many, and at most."""
_LONGEST = 4
"""How many times its lower bound a period is, at most."""
_AHEAD = (Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3), Fraction(5, 4), Fraction(4))
"""With how much more memory the period is searched for, where copies or computing again make room."""


def steady_rows(problem: Problem, effort: Effort) -> Iterator[Rows]:
    """Yield rows that repeat; where copies or computing again are possible, also some that take too much memory.

    Args:
        problem: what to schedule.
        effort: for each period that is tried.
    """
    bare = replace(problem, offload=(), reload=(), recompute=(), checkpoint=(), tail=(), shared=())
    more = _AHEAD if problem.copies or problem.recomputes else _AHEAD[:1]
    for one in more:
        limit = tuple(NO_LIMIT if each == NO_LIMIT else int(each * one) for each in problem.limit)
        coarse = _in_units(replace(bare, limit=limit))
        pattern = shortest_pattern(coarse, effort)
        if pattern is not None:
            yield rows_of(coarse, pattern.starts(problem.microbatches))


def shortest_pattern(problem: Problem, effort: Effort) -> Pattern | None:
    """Return the steady state of the shortest period that is found, by halving; None where none is.

    Args:
        problem: what to schedule, in units coarse enough for a solver.
        effort: for each period that is tried.
    """
    low = least_period(problem)
    best = pattern_of(problem, low, effort, first=True)
    apart = 1
    while best is None and apart < (_LONGEST - 1) * low and not effort.stopped():
        best = pattern_of(problem, low + apart, effort, first=True)
        apart *= 2
    if best is None:
        return None
    failed = best.period - apart // 4 if apart > 1 else best.period - 1
    while best.period - failed > 1 and not effort.stopped():
        middle = (failed + best.period) // 2
        found = pattern_of(problem, middle, effort, first=True)
        if found is None:
            failed = middle
        else:
            best = found
    return pattern_of(problem, best.period, effort) or best


def _in_units(problem: Problem) -> Problem:
    """Return a problem whose longest work of a microbatch is neither too few units nor too many."""
    coarse, _ = coarsened(problem, _COARSE * problem.microbatches)
    work = max(coarse.work(rank) for rank in range(coarse.ranks)) // coarse.microbatches
    times = -(-_FINE // max(work, 1))
    if times == 1:
        return coarse

    def longer(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(times * value for value in values)

    return replace(
        coarse, f=longer(coarse.f), i=longer(coarse.i), w=longer(coarse.w), b=longer(coarse.b),
        forward_transfer=longer(coarse.forward_transfer), backward_transfer=longer(coarse.backward_transfer),
    )  # fmt: skip
