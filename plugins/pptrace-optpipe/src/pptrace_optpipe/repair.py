"""Hold rows to their limit whatever the times are: what takes memory awaits copies out, or moves back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_optpipe.playing import changes, play
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Op, Part, computed_again

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["repaired"]

_MOST = 60
"""Moves after which a row is given up."""


def repaired(problem: Problem, rows: Rows) -> Rows:
    """Return rows that fit where waits and some moves are enough, else the rows as they then are."""
    played = play(problem, rows)
    if played is not None and played.fits(problem):
        return rows
    return [
        row if limit == NO_LIMIT else _repaired(problem, row, limit)
        for row, limit in zip(rows, problem.limit, strict=True)
    ]


def _repaired(problem: Problem, row: list[Op], limit: int) -> list[Op]:
    row = [op for op in row if op.part not in (Part.A, Part.D)]
    for _ in range(_MOST):
        found, over = _awaiting(problem, row, limit)
        if over < 0:
            return found
        if not _moved(row, over):
            break
    return row


def _awaiting(problem: Problem, row: list[Op], limit: int) -> tuple[list[Op], int]:
    """Return a row in which ops await as many copies out as they need, and the first that finds no room, or -1."""
    found, held = list[Op](), 0
    under_way: list[Op] = []
    again = computed_again(row)
    for place, op in enumerate(row):
        taken, freed = changes(problem, op, again)
        awaited = None
        own = op._replace(part=Part.O)
        if op.part in (Part.R, Part.I) and own in under_way:
            through = under_way.index(own) + 1
            held -= sum(changes(problem, one, again)[1] for one in under_way[:through])
            under_way = under_way[through:]
        while taken and held + taken > limit and under_way:
            awaited = under_way.pop(0)
            held -= changes(problem, awaited, again)[1]
        if taken and held + taken > limit:
            return row, place
        if awaited is not None:
            found.append(awaited._replace(part=Part.A))
        found.append(op)
        held += taken
        if op.part is Part.O:
            under_way.append(op)
        else:
            held -= freed
    return found, -1


def _moved(row: list[Op], place: int) -> bool:
    """Move an op behind the next computation of its row, if that does not need it."""
    op = row[place]
    then = next((at for at in range(place + 1, len(row)) if row[at].part in ON_RANK), None)
    if then is None or op.part not in (Part.F, Part.R, Part.C):
        return False
    other = row[then]
    same = (op.stage, op.microbatch) == (other.stage, other.microbatch)
    if same or (op.part is Part.F and other.part is Part.F):
        return False
    row.insert(then, row.pop(place))
    return True
