"""Copies for rows whose order stays: computations wait for copies that take longer than what they run beside.

Some message policies take few orders of a pipeline, and none that a search under another policy finds; what they
take need not fit. On each rank, wherever more would be held than may be, the activation that is needed last goes
to the host behind its forward, whatever takes its room waits for that, and it comes back some computations before
its input gradient. So what is held goes by the order of the row alone, whatever the times and messages are.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from pptrace_optpipe.again import recomputed
from pptrace_optpipe.listing import Rule, list_rows
from pptrace_optpipe.playing import changes, play
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Part, computed_again
from pptrace_optpipe.repair import repaired
from pptrace_optpipe.starting import Schedule, flights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pptrace_optpipe.problem import Op, Problem, Rows

__all__ = ["in_order", "with_waits"]

_EARLY = (1, 2, 3, 0, 5)
"""How many computations before its input gradient an activation begins to come back, where there is room."""


def in_order(problem: Problem, known: Iterable[Rows]) -> Iterator[Schedule]:
    """Yield schedules that fit, in the orders of some that need not, and with as much in flight as 1F1B or more.

    Args:
        problem: what to schedule.
        known: rows, with backwards split; of copies and what is computed again they keep nothing.
    """
    bare = [[[op for op in row if op.part in ON_RANK and op.part is not Part.C] for row in rows] for rows in known]
    for most, first in product(flights(problem), (True, False)):
        listed = list_rows(problem, Rule(limit=(NO_LIMIT,) * problem.ranks, in_flight=most, weights_first=first))
        if listed is not None:
            bare.append([[op for op in row if op.part in ON_RANK] for row in listed])
    seen: list[Rows] = []
    for early, rows in product(_EARLY if problem.copies else _EARLY[:1], bare):
        found = with_waits(problem, rows, early)
        if found is None or found in seen:
            continue
        seen.append(found)
        played = play(problem, found)
        if played is not None and played.fits(problem):
            yield Schedule(found, played)


def with_waits(problem: Problem, rows: Rows, early: int) -> Rows | None:
    """Return rows in the same order of computations within the limit; None where that cannot be.

    Args:
        problem: what to schedule.
        rows: computations alone.
        early: how many computations ahead of an input gradient its activation begins to come back, at most.
    """
    found: Rows = []
    for row, limit in zip(rows, problem.limit, strict=True):
        made = _copied(problem, row, limit, early) if problem.copies and limit != NO_LIMIT else None
        if made is None and problem.recomputes and limit != NO_LIMIT:
            made = recomputed(problem, row, limit)
        found.append(list(row) if made is None else made)
    found = repaired(problem, found)
    order = [[op for op in row if op.part in ON_RANK and op.part is not Part.C] for row in found]
    return found if order == rows else None


def _copied(problem: Problem, row: list[Op], limit: int, early: int) -> list[Op] | None:
    """Return one rank's row with copies, within its limit where all that takes room waits for it."""
    gone: set[tuple[int, int]] = set()
    while True:
        made = [one for op in row for one in _with_own(op, gone)]
        place = _over(problem, made, limit)
        if place is None:
            break
        there = {(op.stage, op.microbatch) for op in made[: place + 1] if op.part is Part.F} - gone
        needed = [(op.stage, op.microbatch) for op in made[place:] if op.part is Part.I]
        last = next((at for at in reversed(needed) if at in there), None)
        if last is None:
            return None
        gone.add(last)
    for op in [one for one in made if one.part is Part.R]:
        _fetch(problem, made, op, limit, early)
    return made


def _with_own(op: Op, gone: set[tuple[int, int]]) -> list[Op]:
    """Return an op with its copy out behind it, or back in front of it."""
    if (op.stage, op.microbatch) not in gone or op.part not in (Part.F, Part.I):
        return [op]
    return [op, op._replace(part=Part.O)] if op.part is Part.F else [op._replace(part=Part.R), op]


def _over(problem: Problem, row: list[Op], limit: int) -> int | None:
    """Return where more is held than may be, first, where every copy out ends before anything else begins."""
    held, again = 0, computed_again(row)
    for place, op in enumerate(row):
        taken, freed = changes(problem, op, again)
        if held + taken > limit:
            return place
        held += taken - freed
    return None


def _fetch(problem: Problem, row: list[Op], op: Op, limit: int, early: int) -> None:
    """Move a copy back ahead of computations, as long as there is room and no other copy is passed."""
    place, passed = row.index(op), 0
    while passed < early and place:
        before = row[place - 1]
        if before.part not in ON_RANK:
            return
        row[place - 1], row[place] = op, before
        if _over(problem, row, limit) is not None:
            row[place - 1], row[place] = before, op
            return
        place, passed = place - 1, passed + 1
