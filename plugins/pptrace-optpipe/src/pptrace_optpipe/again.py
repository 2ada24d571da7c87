"""Compute forwards again so that given rows fit their memory.

On each rank, wherever more would be held than may be, the activation that is needed last is thrown away behind its
forward and computed again right before its input gradient. What a rank computes follows one another, so what it
holds then goes by the order of its row alone, whatever the times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_optpipe.playing import changes
from pptrace_optpipe.problem import NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["recomputed", "with_recompute"]


def with_recompute(problem: Problem, rows: Rows) -> Rows | None:
    """Return rows without copies in which as few forwards as fit take are computed again; None where none do."""
    found: Rows = []
    for row, limit in zip(rows, problem.limit, strict=True):
        fitting = list(row) if limit == NO_LIMIT else recomputed(problem, row, limit)
        if fitting is None:
            return None
        found.append(fitting)
    return found


def recomputed(problem: Problem, row: list[Op], limit: int) -> list[Op] | None:
    """Return one rank's row without copies, within its limit; None where too little can be computed again."""
    again: set[tuple[int, int]] = set()
    while True:
        made = [one for op in row for one in _with_own(op, again)]
        place = _over(problem, made, again, limit)
        if place is None:
            return made
        chosen = _needed_last(made, place, again)
        if chosen is None:
            return None
        again.add(chosen)


def _with_own(op: Op, again: set[tuple[int, int]]) -> list[Op]:
    """Return an op behind what is computed again for it."""
    if op.part is Part.I and (op.stage, op.microbatch) in again:
        return [op._replace(part=Part.C), op]
    return [op]


def _over(problem: Problem, row: list[Op], again: set[tuple[int, int]], limit: int) -> int | None:
    """Return where in a row more is held than may be, first."""
    held = 0
    for place, op in enumerate(row):
        taken, freed = changes(problem, op, again)
        if held + taken > limit:
            return place
        held += taken - freed
    return None


def _needed_last(row: list[Op], place: int, again: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the whole activation that is there at a place and whose input gradient comes last."""
    there = {(op.stage, op.microbatch) for op in row[: place + 1] if op.part is Part.F} - again
    needed = [(op.stage, op.microbatch) for op in row[place:] if op.part is Part.I]
    return next((at for at in reversed(needed) if at in there), None)
