"""Pipelines whose ops all take 1, an activation 1, its weight gradient's part 1/2, and a copy 1/2: in halves."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pptrace_optpipe.bounds import bound, counted_bound, relaxed_bound, relaxed_ranks
from pptrace_optpipe.listing import serial_rows
from pptrace_optpipe.model import Effort, Solved, limited, solve
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import Problem
from pptrace_optpipe.start_schedules import start


def toy(stages: int, microbatches: int, limit: float, *, copies: bool, **values: Any) -> Problem:
    """Return one whose copies start at any moment."""
    twos, ones = (2,) * stages, (1,) * stages
    return Problem(
        microbatches=microbatches, stage_rank=tuple(range(stages)), f=twos, i=twos, w=twos, activation=twos,
        weight_activation=ones, limit=(int(2 * limit),) * stages, offload=ones if copies else (),
        reload=ones if copies else (), **values,
    )  # fmt: skip


def again(
    stages: int, microbatches: int, limit: float, checkpoint: int, *, copies: bool, **values: Any
) -> Problem:
    """Return one whose forwards may be computed again, in as long; some halves stay until then."""
    given = {"recompute": (2,) * stages, "checkpoint": (checkpoint,) * stages, **values}
    return toy(stages, microbatches, limit, copies=copies, **given)


def v_shaped(ranks: int, microbatches: int, limit: int) -> Problem:
    """Return two stages per rank, down and up; everything takes 1, and a limit counts stages' activations."""
    ones, down = (1,) * (2 * ranks), tuple(range(ranks))
    return Problem(
        microbatches=microbatches, stage_rank=(*down, *down[::-1]), f=ones, i=ones, w=ones,
        activation=(2,) * (2 * ranks), weight_activation=ones, limit=(2 * limit,) * ranks,
    )  # fmt: skip


BRIEF = (
    "parallel: {pp: 3}\nbatch: {microbatches: 5}\ncosts: {name: table, forward: 10 ms, backward: 16 ms, "
    "input_gradient: 10 ms, weight_gradient: 10 ms, activation: 2 GiB, weight_activation: 1 GiB}\n"
)
"""A configuration whose backwards in one are shorter than their halves."""
FIRST = (
    "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0F4,0B3,0B4",
    "1F0,1F1,1I0,1W0,1B1,1F2,1I2,1F3,1W2,1F4,1I3,1W3,1I4,1W4",
    "2F0,2I0,2F1,2I1,2W0,2W1,2F2,2I2,2W2,2F3,2B3,2F4,2I4,2W4",
)
"""A table for that of 198 ms, within 4 GiB."""


def effort(units: float = 60, **more: Any) -> Effort:
    """Return an effort of so much work, which finds the same on every machine."""
    return limited(None, units, **more)


_SHARE = 0.2
"""The part of the time that a first search and each group of ranks may take; counts may take twice as much."""


def optimum(problem: Problem, effort: Effort) -> Solved:
    """Return the best schedule of a problem in small whole numbers, and the bound that was proved."""
    began = effort.clock()

    def share_of(share: float) -> Effort:
        left = effort.seconds - (effort.clock() - began)
        return replace(effort, seconds=min(left, effort.seconds * share))

    least = bound(problem)
    solution = solve(problem, share_of(_SHARE), horizon=_horizon(problem), least=least)
    if solution.length is None:
        return solve(problem, share_of(1), horizon=_horizon(problem), least=least)
    horizon = solution.length
    least = max(least, solution.bound)
    if least < solution.length:
        least = counted_bound(problem, share_of(2 * _SHARE), length=solution.length, least=least)
    for ranks in relaxed_ranks(problem):
        if least >= solution.length:
            return replace(solution, bound=least)
        if share_of(1).seconds < effort.seconds / 3:
            break
        least = relaxed_bound(problem, share_of(_SHARE), ranks, horizon, least)
    again = solve(problem, share_of(1), horizon=horizon, hint=solution.start, least=least)
    return again if again.length is not None else replace(solution, bound=again.bound)


def _horizon(problem: Problem) -> int:
    """Return a time by which the best schedule has ended: that of one that is known."""
    begun = start(problem, enough=bound(problem))
    played = begun.played if begun is not None else play(problem, serial_rows(problem, copied=problem.copies))
    return sum(problem.work(rank) for rank in range(problem.ranks)) if played is None else played.step
