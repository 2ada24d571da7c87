"""Repair of tables that exceed memory, by copies and recomputation.

On each rank, wherever more would be held than may be, the activation that is needed last is thrown away behind its
forward and computed again right before its input gradient. What a rank computes follows one another, so what it
holds then goes by the order of its row alone, whatever the times.

On each rank, whenever more is held than may be, the activation that is needed last goes: its copy out starts
behind its forward, its copy back as late as the input gradient allows. This is the part that AdaOffload has in
OptPipe and the offload pass in PipeOffload (Wan et al., arXiv:2503.01328): offloads earliest-fit from the left,
reloads latest-fit from the right.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from pptrace_optpipe.playback import changes, play
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, ON_RANK, Op, Part, computed_again

if TYPE_CHECKING:
    from pptrace_optpipe.playback import Played
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["recomputed", "repaired", "with_copies", "with_either", "with_recompute"]


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
    """Return an operation with its recomputation before it."""
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


class _Copy(NamedTuple):
    """When an activation goes and comes back."""

    out: int
    back: int
    place: int
    """In front of which computation of the row it is launched to come back."""


def with_copies(problem: Problem, rows: Rows, played: Played) -> Rows | None:
    """Return rows with copies that delay nothing and fit; None where too little can be copied in time."""
    found: Rows = []
    for rank, row in enumerate(rows):
        limit = problem.limit[rank]
        if limit == NO_LIMIT or played.peak[rank] <= limit:
            found.append(list(row))
            continue
        copied = _Rank(problem, row, played, limit).row()
        if copied is None:
            return None
        found.append(copied)
    return found


def with_either(problem: Problem, rows: Rows, played: Played) -> Rows | None:
    """Return rows with copies on ranks where those alone fit, and forwards computed again on the others."""
    found: Rows = []
    for rank, row in enumerate(rows):
        limit = problem.limit[rank]
        made: list[Op] | None = list(row)
        if limit != NO_LIMIT and played.peak[rank] > limit:
            made = _Rank(problem, row, played, limit).row() or recomputed(problem, row, limit)
        if made is None:
            return None
        found.append(made)
    return found


class _Rank:
    """The computations of one rank and their host copies."""

    def __init__(self, problem: Problem, row: list[Op], played: Played, limit: int) -> None:
        self.problem, self.limit = problem, limit
        self.computed = [op for op in row if op.part in COMPUTED]
        self.start, self.end = played.start, played.end
        self.starts = [self.start[op] for op in self.computed]
        self.chosen: list[Op] = []
        self.late: set[Op] = set()

    def row(self) -> list[Op] | None:
        """Choose activations until the rest fits, and return the row with their copies."""
        copies: dict[Op, _Copy] = {}
        while True:
            over = self._over(copies)
            if over is None:
                return self._merged(copies)
            op = self._needed_last(over)
            if op is None:
                return None
            self.chosen.append(op)
            planned = self._planned()
            if planned is None:
                self.chosen.pop()
                self.late.add(op)
            else:
                copies = planned

    def _needed_last(self, moment: int) -> Op | None:
        """Return the activation that is there at a moment, could be gone, and is needed last."""
        problem, best = self.problem, None
        for op in self.computed:
            if op.part is not Part.F or op in self.late or op in self.chosen:
                continue
            stage = op.stage
            if self.end[op] + problem.offload[stage] > moment:
                continue
            needed = self.start[Op(Part.I, stage, op.microbatch)] - problem.reload[stage]
            if needed > moment and (best is None or needed > best[0]):
                best = (needed, op)
        return None if best is None else best[1]

    def _planned(self) -> dict[Op, _Copy] | None:
        """Return when the chosen activations are copied; None where one would not be back in time."""
        problem, free, out = self.problem, 0, {}
        for op in sorted(self.chosen, key=lambda one: self.end[one]):
            out[op] = max(self.end[op], free)
            free = out[op] + problem.offload[op.stage]
        plan, last = {}, None
        for op in sorted(self.chosen, key=lambda one: -self._gradient(one)):
            took = problem.reload[op.stage]
            until = self._gradient(op) if last is None else min(self._gradient(op), last)
            place = max(bisect_right(self.starts, until - took) - 1, 0)
            begin = until - took
            gone = out[op] + problem.offload[op.stage]
            if begin >= self.end[self.computed[place]]:
                # Between computations it is launched when the one before is done, however long nothing runs then.
                begin = max(self.end[self.computed[place]], min(gone, begin))
                place += 1
            else:
                begin = self.starts[place]
            if begin < gone:
                return None
            plan[op], last = _Copy(out[op], begin, place), begin
        return plan

    def _gradient(self, op: Op) -> int:
        return self.start[Op(Part.I, op.stage, op.microbatch)]

    def _over(self, copies: dict[Op, _Copy]) -> int | None:
        """Return when more is held than may be, first."""
        events = []
        for op in self.computed:
            taken, freed = changes(self.problem, op, ())
            events += [(self.start[op], taken), (self.end[op], -freed)]
        for op, copy in copies.items():
            size = self.problem.activation[op.stage]
            events += [(copy.out + self.problem.offload[op.stage], -size), (copy.back, size)]
        held = 0
        for moment, change in sorted(events):
            held += change
            if held > self.limit:
                return moment
        return None

    def _merged(self, copies: dict[Op, _Copy]) -> list[Op]:
        """Return the row with the copies inserted."""
        back: dict[int, list[tuple[int, Op]]] = {}
        for op, copy in copies.items():
            back.setdefault(copy.place, []).append((copy.back, op._replace(part=Part.R)))
        row = []
        for place, op in enumerate(self.computed):
            row += [one for _, one in sorted(back.get(place, []))]
            row.append(op)
            if op in copies:
                row.append(op._replace(part=Part.O))
        return row


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
