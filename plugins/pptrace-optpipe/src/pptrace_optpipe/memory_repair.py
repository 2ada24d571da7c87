"""Repair of tables that exceed memory, by copies and recomputation.

By order: on each rank, wherever more would be held than may be, the activation that is needed last is thrown away
behind its forward and computed again right before its input gradient; or it goes to the host behind its forward,
whatever takes its room waits for that, and it comes back some computations before its input gradient. What a rank
holds then depends on the order of its row alone, whatever the times and messages are.

By time: whenever more is held than may be, the activation that is needed last goes to the host. Its copy out
starts behind its forward, its copy back as late as the input gradient allows. This is the part that AdaOffload has
in OptPipe and the offload pass in PipeOffload (Wan et al., arXiv:2503.01328): offloads earliest-fit from the left,
reloads latest-fit from the right.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pptrace_optpipe.playback import memory_changes, play
from pptrace_optpipe.problem import AWAIT_OF, COMPUTED, NO_LIMIT, ON_RANK, Op, Part, computed_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pptrace_optpipe.playback import Played
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["copied_row", "recomputed_row", "repaired", "with_room", "with_waits"]

_RECOMPUTED = {Part.I: (Part.C, Part.I)}
_COPIED = {Part.F: (Part.F, Part.O), Part.I: (Part.R, Part.I)}
"""By computation of an activation that gives way, what takes its place in the row."""


def with_room(
    problem: Problem, rows: Rows, played: Played, ways: Iterable[Callable[..., list[Op] | None]]
) -> Rows | None:
    """Return rows of which each fits as it is, or by the first way that makes it fit; None where none does."""
    fitting: Rows = []
    for row, limit, peak in zip(rows, problem.limit, played.peak, strict=True):
        made: list[Op] | None = list(row)
        if limit not in (NO_LIMIT, max(limit, peak)):
            made = next(filter(None, (way(problem, row, played, limit) for way in ways)), None)
        if made is None:
            return None
        fitting.append(made)
    return fitting


def recomputed_row(problem: Problem, row: list[Op], _: Played | None, limit: int) -> list[Op] | None:
    """Return a rank's row with as few forwards computed again as it takes; None where that is not enough."""
    return _evicted(problem, row, limit, _RECOMPUTED)


def copied_row(problem: Problem, row: list[Op], played: Played, limit: int) -> list[Op] | None:
    """Return a rank's row with copies that delay nothing; None where too little can be copied in time."""
    return _Rank(problem, row, played, limit).row()


def _evicted(
    problem: Problem, row: list[Op], limit: int, replacement: Mapping[Part, tuple[Part, ...]]
) -> list[Op] | None:
    """Return a rank's row in which activations give way, those needed last first, until it fits by its order."""
    chosen: set[tuple[int, int]] = set()
    while True:
        made = [
            op._replace(part=part)
            for op in row
            for part in (replacement.get(op.part, (op.part,)) if op[1:] in chosen else (op.part,))
        ]
        place = _over(problem, made, limit)
        if place is None:
            return made
        there = {op[1:] for op in made[: place + 1] if op.part is Part.F} - chosen
        needed = [op[1:] for op in made[place:] if op.part is Part.I]
        last = next((key for key in reversed(needed) if key in there), None)
        if last is None:
            return None
        chosen.add(last)


def _over(problem: Problem, row: list[Op], limit: int) -> int | None:
    """Return the first place in a row at which more is held than may be, if copies out end at once."""
    held, again = 0, computed_again(row)
    for place, op in enumerate(row):
        taken, freed = memory_changes(problem, op, again)
        if held + taken > limit:
            return place
        held += taken - freed
    return None


def with_waits(problem: Problem, rows: Rows, early: int) -> Rows | None:
    """Return rows in the same order of computations within the limit; None where that cannot be.

    Args:
        problem: what to schedule.
        rows: computations alone.
        early: how many computations ahead of an input gradient its activation begins to come back, at most.
    """
    fitting: Rows = []
    for row, limit in zip(rows, problem.limit, strict=True):
        made = None
        if limit != NO_LIMIT and problem.copies:
            made = _evicted(problem, row, limit, _COPIED)
            if made is not None:
                _fetch_early(problem, made, limit, early)
        if limit != NO_LIMIT and problem.recomputes and made is None:
            made = recomputed_row(problem, row, None, limit)
        fitting.append(list(row) if made is None else made)
    fitting = repaired(problem, fitting)
    order = [[op for op in row if op.part in ON_RANK and op.part is not Part.C] for row in fitting]
    return fitting if order == rows else None


def _fetch_early(problem: Problem, row: list[Op], limit: int, early: int) -> None:
    """Move copies back ahead of computations, as long as there is room and no other copy is passed."""
    for op in [op for op in row if op.part is Part.R]:
        place = row.index(op)
        for ahead in range(place - 1, max(place - 1 - early, -1), -1):
            if row[ahead].part not in ON_RANK:
                break
            row[ahead], row[ahead + 1] = op, row[ahead]
            if _over(problem, row, limit) is not None:
                row[ahead], row[ahead + 1] = row[ahead + 1], op
                break


class _Copy(NamedTuple):
    """When an activation goes and comes back."""

    out: int
    back: int
    place: int
    """In front of which computation of the row it is launched to come back."""


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
        problem, candidates = self.problem, []
        for op in self.computed:
            if op.part is Part.F and op not in self.late and op not in self.chosen:
                needed = self._gradient(op) - problem.reload[op.stage]
                if self.end[op] + problem.offload[op.stage] <= moment < needed:
                    candidates.append((needed, op))
        return max(candidates, key=lambda pair: pair[0])[1] if candidates else None

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
        """Return the first moment at which more is held than may be."""
        changes = []
        for op in self.computed:
            taken, freed = memory_changes(self.problem, op, ())
            changes += [(self.start[op], taken), (self.end[op], -freed)]
        for op, copy in copies.items():
            size = self.problem.activation[op.stage]
            changes += [(copy.out + self.problem.offload[op.stage], -size), (copy.back, size)]
        changes.sort()
        held = accumulate(change for _, change in changes)
        return next((moment for (moment, _), size in zip(changes, held, strict=True) if size > self.limit), None)

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
    row = [op for op in row if op.part not in AWAIT_OF.values()]
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
        taken, freed = memory_changes(problem, op, again)
        awaited = None
        own = op._replace(part=Part.O)
        if op.part in (Part.R, Part.I) and own in under_way:
            through = under_way.index(own) + 1
            held -= sum(memory_changes(problem, one, again)[1] for one in under_way[:through])
            under_way = under_way[through:]
        while taken and held + taken > limit and under_way:
            awaited = under_way.pop(0)
            held -= memory_changes(problem, awaited, again)[1]
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
