"""Delay what takes too much memory: ops of a row move behind the computation that comes next.

A table says order and no time, so an op starts as soon as it may, be it earlier than a solver meant. Where memory
is then short, the forward or reload that takes it changes places with the next computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_optpipe.playing import changes, play
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from pptrace_optpipe.playing import Played
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["repaired"]

_MOST = 60
"""Moves after which rows are given up."""


def repaired(problem: Problem, rows: Rows) -> Rows:
    """Return rows that fit where some moves are enough, else the rows as they then are."""
    rows = [list(row) for row in rows]
    for _ in range(_MOST):
        played = play(problem, rows)
        if played is None:
            return rows
        over = next((rank for rank, limit in enumerate(problem.limit)
                     if limit not in (NO_LIMIT, max(limit, played.peak[rank]))), None)  # fmt: skip
        if over is None or not _delayed(problem, rows[over], played, problem.limit[over]):
            return rows
    return rows


def _delayed(problem: Problem, row: list[Op], played: Played, limit: int) -> bool:
    """Move the first op that takes too much behind the next computation; return whether it may go there."""
    events = []
    for place, op in enumerate(row):
        taken, freed = changes(problem, op)
        events += [(played.start[op], taken, place)] * bool(taken) + [(played.end[op], -freed, place)] * bool(
            freed
        )
    held = 0
    for _, change, place in sorted(events):
        held += change
        if held > limit:
            return _moved(row, place)
    return False


def _moved(row: list[Op], place: int) -> bool:
    """Move an op behind the next computation of its row, if that does not need it."""
    op = row[place]
    then = next((at for at in range(place + 1, len(row)) if row[at].part in COMPUTED), None)
    if then is None or op.part not in (Part.F, Part.R):
        return False
    other = row[then]
    same = (op.stage, op.microbatch) == (other.stage, other.microbatch)
    if same or (op.part is Part.F and other.part is Part.F):
        return False
    row.insert(then, row.pop(place))
    return True
