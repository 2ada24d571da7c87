"""Repair of rows that exceed memory, by host copies and recomputation.

Where a rank exceeds its limit, it gives up the activation that is needed last. With copies, it offloads the
activation after the forward. Operations that use the freed memory await the offload. If memory allows, the reload
starts one computation before the input gradient. With recomputation, it frees the activation after the forward and
recomputes the forward directly before the input gradient. The memory of a rank then depends only on the order of
its row, not on times and messages.

OptPipe's AdaOffload and the offload pass of PipeOffload (Wan et al., arXiv:2503.01328) select copies by time
instead: a reload ends just before its input gradient, and an offload may end only before the excess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_optpipe.playback import memory_changes, play
from pptrace_optpipe.problem import AWAIT_OF, GRADIENT, NO_LIMIT, ON_RANK, Op, OpKind, computed_again

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace_optpipe.problem import Problem, Rows


_REPLACEMENTS = {
    OpKind.O: {OpKind.F: (OpKind.F, OpKind.O), OpKind.I: (OpKind.R, OpKind.I), OpKind.B: (OpKind.R, OpKind.B)},
    OpKind.C: {OpKind.I: (OpKind.C, OpKind.I), OpKind.B: (OpKind.C, OpKind.B)},
}
"""By kind of eviction and computation of the evicted activation, the operations that replace it in the row."""
_SPACING = 1
"""The least computations between the forward of an offloaded activation and the use of the freed memory."""


def evict(problem: Problem, rows: Rows, kinds: Iterable[OpKind]) -> Rows:
    """Return rows with evicted activations and the same order of computations, if this is sufficient.

    Args:
        problem: what to schedule.
        rows: computations without copies and recomputation.
        kinds: ``O`` for offloads, ``C`` for recomputation; a rank uses the first kind with which its row fits.
    """
    fitting: Rows = []
    for row, limit in zip(rows, problem.limit, strict=True):
        candidates = (_evict(problem, row, limit, kind) for kind in kinds if limit != NO_LIMIT)
        fitting_row = next((candidate for candidate in candidates if candidate is not None), list(row))
        _advance_reloads(problem, fitting_row, limit)
        fitting.append(fitting_row)
    return repaired(problem, fitting)


def _evict(problem: Problem, row: list[Op], limit: int, by: OpKind) -> list[Op] | None:
    """Return a rank's row that fits by its order, with activations evicted in order of latest need.

    Return None if the row never fits. An offload counts as ended at its start.
    """
    is_offload = by is OpKind.O
    kept = (0,) * problem.stages if is_offload else problem.checkpoint
    forward_place = {op[1:]: place for place, op in enumerate(row) if op.kind is OpKind.F}
    gradient_place = {op[1:]: place for place, op in enumerate(row) if op.kind in GRADIENT}
    resident, evicted, used = set[tuple[int, int]](), set[tuple[int, int]](), 0
    for place, op in enumerate(row):
        activation, size, freed = op[1:], *memory_changes(problem, op, ())
        if op.kind is OpKind.F:
            resident.add(activation)
        elif op.kind in GRADIENT:
            resident.discard(activation)
            size = (problem.activation[op.stage] - kept[op.stage]) * (activation in evicted)
        while used + size > limit:
            spaced = {key for key in resident if forward_place[key] < place - _SPACING} if is_offload else resident
            candidate = max(spaced or resident, key=gradient_place.__getitem__, default=None)
            if candidate is None:
                return None
            resident.remove(candidate)
            evicted.add(candidate)
            if candidate != activation:
                used -= problem.activation[candidate[0]] - kept[candidate[0]]
            elif not is_offload:
                size = kept[op.stage]
        if op.kind is OpKind.F and activation in evicted:
            size = kept[op.stage]
        used += size - freed
    return [
        op._replace(kind=kind)
        for op in row
        for kind in (_REPLACEMENTS[by].get(op.kind, (op.kind,)) if op[1:] in evicted else (op.kind,))
    ]


def _exceeds(problem: Problem, row: list[Op], limit: int) -> bool:
    """Return whether a row exceeds the limit, even if offloads end immediately."""
    used, recomputed = 0, computed_again(row)
    for op in row:
        allocated, freed = memory_changes(problem, op, recomputed)
        if used + allocated > limit:
            return True
        used += allocated - freed
    return False


def _advance_reloads(problem: Problem, row: list[Op], limit: int) -> None:
    """Move each reload before the previous computation, if memory allows it."""
    for op in [op for op in row if op.kind is OpKind.R]:
        place = row.index(op)
        previous = row[place - 1]
        if previous.kind in ON_RANK:
            row[place - 1], row[place] = op, previous
            if _exceeds(problem, row, limit):
                row[place - 1], row[place] = previous, op


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
    row = [op for op in row if op.kind not in AWAIT_OF.values()]
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
        offload = op._replace(kind=OpKind.O)
        if op.kind in (OpKind.R, *GRADIENT) and offload in running:
            ended_count = running.index(offload) + 1
            used -= sum(memory_changes(problem, ended, recomputed)[1] for ended in running[:ended_count])
            running = running[ended_count:]
        while taken and used + taken > limit and running:
            awaited = running.pop(0)
            used -= memory_changes(problem, awaited, recomputed)[1]
        if taken and used + taken > limit:
            return row, place
        if awaited is not None:
            awaiting_row.append(awaited._replace(kind=OpKind.A))
        awaiting_row.append(op)
        used += taken
        if op.kind is OpKind.O:
            running.append(op)
        else:
            used -= freed
    return awaiting_row, -1


def _move_later(row: list[Op], place: int) -> bool:
    """Move an operation after the next computation of its row, if independent. Return whether it moved."""
    op = row[place]
    next_place = next((index for index in range(place + 1, len(row)) if row[index].kind in ON_RANK), None)
    if next_place is None or op.kind not in (OpKind.F, OpKind.R, OpKind.C):
        return False
    next_op = row[next_place]
    is_same_microbatch = (op.stage, op.microbatch) == (next_op.stage, next_op.microbatch)
    if is_same_microbatch or (op.kind is OpKind.F and next_op.kind is OpKind.F):
        return False
    row.insert(next_place, row.pop(place))
    return True
