"""Repair of tables that exceed memory, by copies and recomputation.

By order: where a rank exceeds its limit, it gives up the activation that is needed last. With recomputation, it
frees the activation after the forward and recomputes the forward directly before the input gradient. With copies,
it offloads the activation after the forward. Operations that use the freed memory await the offload, and the
reload starts some computations before the input gradient. The memory of a rank then depends only on the order of
its row, not on times and messages.

By time: where a rank exceeds its limit, it offloads the activation that is needed last. The offload starts after
the forward, and the reload starts as late as the input gradient allows. OptPipe's AdaOffload and the offload pass
of PipeOffload (Wan et al., arXiv:2503.01328) do the same: offloads earliest-fit from the left, reloads latest-fit
from the right.
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
"""By computation of an evicted activation, its replacement in the row."""


def with_room(
    problem: Problem, rows: Rows, played: Played, repairs: Iterable[Callable[..., list[Op] | None]]
) -> Rows | None:
    """Return rows that fit: unchanged, or from the first successful repair; None if all repairs of a row fail."""
    fitting: Rows = []
    for row, limit, peak in zip(rows, problem.limit, played.peak, strict=True):
        repaired_row: list[Op] | None = list(row)
        if limit not in (NO_LIMIT, max(limit, peak)):
            repaired_row = next(filter(None, (repair(problem, row, played, limit) for repair in repairs)), None)
        if repaired_row is None:
            return None
        fitting.append(repaired_row)
    return fitting


def recomputed_row(problem: Problem, row: list[Op], _: Played | None, limit: int) -> list[Op] | None:
    """Return a rank's row with as few recomputed forwards as necessary; None if it never fits."""
    return _evict(problem, row, limit, _RECOMPUTED)


def copied_row(problem: Problem, row: list[Op], played: Played, limit: int) -> list[Op] | None:
    """Return a rank's row with copies that delay no computation; None if it never fits."""
    return _Rank(problem, row, played, limit).row()


def _evict(
    problem: Problem, row: list[Op], limit: int, replacement: Mapping[Part, tuple[Part, ...]]
) -> list[Op] | None:
    """Return a rank's row that fits by its order, with activations evicted in order of latest need.

    ``replacement`` maps each computation of an evicted activation to its operations. Return None if the row never
    fits.
    """
    chosen: set[tuple[int, int]] = set()
    while True:
        evicted_row = [
            op._replace(part=part)
            for op in row
            for part in (replacement.get(op.part, (op.part,)) if op[1:] in chosen else (op.part,))
        ]
        place = _first_excess(problem, evicted_row, limit)
        if place is None:
            return evicted_row
        resident = {op[1:] for op in evicted_row[: place + 1] if op.part is Part.F} - chosen
        gradients = [op[1:] for op in evicted_row[place:] if op.part is Part.I]
        candidate = next((key for key in reversed(gradients) if key in resident), None)
        if candidate is None:
            return None
        chosen.add(candidate)


def _first_excess(problem: Problem, row: list[Op], limit: int) -> int | None:
    """Return the first place at which a row exceeds the limit if offloads end immediately; None if it fits."""
    used, recomputed = 0, computed_again(row)
    for place, op in enumerate(row):
        taken, freed = memory_changes(problem, op, recomputed)
        if used + taken > limit:
            return place
        used += taken - freed
    return None


def with_waits(problem: Problem, rows: Rows, early: int) -> Rows | None:
    """Return rows with the same order of computations within the limit; None if this is impossible.

    Args:
        problem: what to schedule.
        rows: computations without copies and recomputation.
        early: the most computations between the start of a reload and its input gradient.
    """
    fitting: Rows = []
    for row, limit in zip(rows, problem.limit, strict=True):
        repaired_row = None
        if limit != NO_LIMIT and problem.copies:
            repaired_row = _evict(problem, row, limit, _COPIED)
            if repaired_row is not None:
                _fetch_early(problem, repaired_row, limit, early)
        if limit != NO_LIMIT and problem.recomputes and repaired_row is None:
            repaired_row = recomputed_row(problem, row, None, limit)
        fitting.append(list(row) if repaired_row is None else repaired_row)
    fitting = repaired(problem, fitting)
    order = [[op for op in row if op.part in ON_RANK and op.part is not Part.C] for row in fitting]
    return fitting if order == rows else None


def _fetch_early(problem: Problem, row: list[Op], limit: int, early: int) -> None:
    """Move reloads before earlier computations, while memory allows it and no reload passes another copy."""
    for op in [op for op in row if op.part is Part.R]:
        place = row.index(op)
        for earlier in range(place - 1, max(place - 1 - early, -1), -1):
            if row[earlier].part not in ON_RANK:
                break
            row[earlier], row[earlier + 1] = op, row[earlier]
            if _first_excess(problem, row, limit) is not None:
                row[earlier], row[earlier + 1] = row[earlier + 1], op
                break


class _Copy(NamedTuple):
    """Start times of an activation's offload and reload."""

    offload_start: int
    reload_start: int
    place: int
    """Place of the computation before which the reload is inserted."""


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
        """Offload activations until the row fits, and return the row with copies; None if it never fits."""
        copies: dict[Op, _Copy] = {}
        while True:
            excess_time = self._first_excess(copies)
            if excess_time is None:
                return self._merge_copies(copies)
            op = self._eviction_candidate(excess_time)
            if op is None:
                return None
            self.chosen.append(op)
            planned = self._plan_copies()
            if planned is None:
                self.chosen.pop()
                self.late.add(op)
            else:
                copies = planned

    def _eviction_candidate(self, moment: int) -> Op | None:
        """Return the forward whose activation is in memory at a moment, can be offloaded and is needed last."""
        problem, candidates = self.problem, []
        for op in self.computed:
            if op.part is Part.F and op not in self.late and op not in self.chosen:
                needed = self._gradient(op) - problem.reload[op.stage]
                if self.end[op] + problem.offload[op.stage] <= moment < needed:
                    candidates.append((needed, op))
        return max(candidates, key=lambda pair: pair[0])[1] if candidates else None

    def _plan_copies(self) -> dict[Op, _Copy] | None:
        """Return the copies of the chosen activations; None if a reload would end too late."""
        problem, free, offload_start = self.problem, 0, {}
        for op in sorted(self.chosen, key=lambda op: self.end[op]):
            offload_start[op] = max(self.end[op], free)
            free = offload_start[op] + problem.offload[op.stage]
        plan, next_reload_start = {}, None
        for op in sorted(self.chosen, key=lambda op: -self._gradient(op)):
            reload_end = self._gradient(op)
            if next_reload_start is not None:
                reload_end = min(reload_end, next_reload_start)
            reload_start = reload_end - problem.reload[op.stage]
            place = max(bisect_right(self.starts, reload_start) - 1, 0)
            offload_end = offload_start[op] + problem.offload[op.stage]
            if reload_start >= self.end[self.computed[place]]:
                # Between computations, the reload starts at the end of the previous computation, before idle time.
                reload_start = max(self.end[self.computed[place]], min(offload_end, reload_start))
                place += 1
            else:
                reload_start = self.starts[place]
            if reload_start < offload_end:
                return None
            plan[op], next_reload_start = _Copy(offload_start[op], reload_start, place), reload_start
        return plan

    def _gradient(self, op: Op) -> int:
        return self.start[Op(Part.I, op.stage, op.microbatch)]

    def _first_excess(self, copies: dict[Op, _Copy]) -> int | None:
        """Return the first time at which memory exceeds the limit; None if it never does."""
        changes = []
        for op in self.computed:
            taken, freed = memory_changes(self.problem, op, ())
            changes += [(self.start[op], taken), (self.end[op], -freed)]
        for op, copy in copies.items():
            size = self.problem.activation[op.stage]
            changes += [(copy.offload_start + self.problem.offload[op.stage], -size), (copy.reload_start, size)]
        changes.sort()
        sizes = accumulate(change for _, change in changes)
        return next((moment for (moment, _), size in zip(changes, sizes, strict=True) if size > self.limit), None)

    def _merge_copies(self, copies: dict[Op, _Copy]) -> list[Op]:
        """Return the row with the copies inserted."""
        reloads: dict[int, list[tuple[int, Op]]] = {}
        for op, copy in copies.items():
            reloads.setdefault(copy.place, []).append((copy.reload_start, op._replace(part=Part.R)))
        row = []
        for place, op in enumerate(self.computed):
            row += [reload for _, reload in sorted(reloads.get(place, []))]
            row.append(op)
            if op in copies:
                row.append(op._replace(part=Part.O))
        return row


_MOST_MOVES = 60
"""The most moves that repair a row."""


def repaired(problem: Problem, rows: Rows) -> Rows:
    """Return rows repaired by waits and moves; if they are not sufficient, the rows may exceed their limits."""
    played = play(problem, rows)
    if played is not None and played.fits(problem):
        return rows
    return [
        row if limit == NO_LIMIT else _repair(problem, row, limit)
        for row, limit in zip(rows, problem.limit, strict=True)
    ]


def _repair(problem: Problem, row: list[Op], limit: int) -> list[Op]:
    row = [op for op in row if op.part not in AWAIT_OF.values()]
    for _ in range(_MOST_MOVES):
        awaiting_row, excess_place = _insert_waits(problem, row, limit)
        if excess_place < 0:
            return awaiting_row
        if not _move_later(row, excess_place):
            break
    return row


def _insert_waits(problem: Problem, row: list[Op], limit: int) -> tuple[list[Op], int]:
    """Return a row in which operations await the offloads that they need, and the first place that exceeds memory.

    The place is -1 if the row fits.
    """
    awaiting_row, used = list[Op](), 0
    running: list[Op] = []
    recomputed = computed_again(row)
    for place, op in enumerate(row):
        taken, freed = memory_changes(problem, op, recomputed)
        awaited = None
        offload = op._replace(part=Part.O)
        if op.part in (Part.R, Part.I) and offload in running:
            ended_count = running.index(offload) + 1
            used -= sum(memory_changes(problem, ended, recomputed)[1] for ended in running[:ended_count])
            running = running[ended_count:]
        while taken and used + taken > limit and running:
            awaited = running.pop(0)
            used -= memory_changes(problem, awaited, recomputed)[1]
        if taken and used + taken > limit:
            return row, place
        if awaited is not None:
            awaiting_row.append(awaited._replace(part=Part.A))
        awaiting_row.append(op)
        used += taken
        if op.part is Part.O:
            running.append(op)
        else:
            used -= freed
    return awaiting_row, -1


def _move_later(row: list[Op], place: int) -> bool:
    """Move an operation after the next computation of its row, if independent. Return whether it moved."""
    op = row[place]
    next_place = next((index for index in range(place + 1, len(row)) if row[index].part in ON_RANK), None)
    if next_place is None or op.part not in (Part.F, Part.R, Part.C):
        return False
    next_op = row[next_place]
    is_same_microbatch = (op.stage, op.microbatch) == (next_op.stage, next_op.microbatch)
    if is_same_microbatch or (op.part is Part.F and next_op.part is Part.F):
        return False
    row.insert(next_place, row.pop(place))
    return True
