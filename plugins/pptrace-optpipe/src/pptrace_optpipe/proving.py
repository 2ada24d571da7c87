"""Prove the optimum of a small problem: raise the bound by counts and on a few ranks, then solve all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace_optpipe.bounds import bound, latest, relaxed_bound, relaxed_ranks
from pptrace_optpipe.counting import counted_bound
from pptrace_optpipe.listing import serial_rows
from pptrace_optpipe.playing import play
from pptrace_optpipe.solving import Solved, solve
from pptrace_optpipe.starting import start

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem
    from pptrace_optpipe.solving import Effort

__all__ = ["optimum"]

_SHARE = 0.2
"""The part of the time that a first search and each group of ranks may take; counts may take twice as much."""


def optimum(problem: Problem, effort: Effort) -> Solved:
    """Return the best schedule of a problem in small whole numbers, and the bound that was proved."""
    began = effort.clock()

    def part(share: float) -> Effort:
        left = effort.seconds - (effort.clock() - began)
        return replace(effort, seconds=min(left, effort.seconds * share))

    least = bound(problem)
    found = solve(problem, part(_SHARE), horizon=_horizon(problem), least=least)
    if found.length is None:
        return solve(problem, part(1), horizon=_horizon(problem), least=least)
    horizon = latest(problem, found.length)
    least = max(least, found.bound)
    if least < found.length:
        least = counted_bound(problem, part(2 * _SHARE), length=found.length, least=least)
    for ranks in relaxed_ranks(problem):
        if least >= found.length:
            return replace(found, bound=least)
        if part(1).seconds < effort.seconds / 3:
            break
        least = relaxed_bound(problem, part(_SHARE), ranks, horizon, least)
    again = solve(problem, part(1), horizon=horizon, hint=found.start, least=least)
    return again if again.length is not None else replace(found, bound=again.bound)


def _horizon(problem: Problem) -> int:
    """Return a time by which the best schedule has ended: that of one that is known."""
    plain = replace(problem, span=False)
    begun = start(plain, enough=bound(plain))
    played = begun.played if begun is not None else play(plain, serial_rows(plain, copied=problem.copies))
    step = sum(problem.work(rank) for rank in range(problem.ranks)) if played is None else played.step
    return latest(problem, step)
