"""Put further actions into the rows of a table, each of the stage and microbatches of a row that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.model.cells import CellColumns
from pptrace.model.kinds import COMPUTE, STAGE_ENDS
from pptrace.record import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.kinds import Kind
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.table import Schedule

__all__ = ["Blocks", "Worked", "blocks_of", "inserted", "inserted_of_stages", "rows_of", "worked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What ranks compute one after the other: actions alone, and overlapped pairs as one."""

    of_row: NDArray[np.int64]
    """Each row's block, counted over all ranks; -1 for what does not compute."""
    first: NDArray[np.int64]
    """Each block's first row."""
    last: NDArray[np.int64]
    """Each block's last row."""


class Worked(NamedTuple):
    """What rows work on, one value per row and microbatch."""

    number: NDArray[np.int64]
    """Place of the row among those asked for."""
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int64]


def blocks_of(table: Schedule | IssueOrder) -> Blocks:
    """Return the blocks of a table; what ends a step is in none."""
    rows = np.flatnonzero(COMPUTE.mask(table.kind) & ~STAGE_ENDS.mask(table.kind))
    rank, pair = np.searchsorted(table.row_ptr, rows, side="right"), table.pair[rows]
    begins = np.ones(rows.size, dtype=bool)
    begins[1:] = (pair[1:] < 0) | (pair[1:] != pair[:-1]) | (rank[1:] != rank[:-1])
    of_row = np.full(len(table), -1, dtype=np.int64)
    of_row[rows] = begins.cumsum() - 1
    return Blocks(of_row=of_row, first=rows[begins], last=rows[np.append(begins[1:], begins[:1])])


def worked(schedule: Schedule, rows: NDArray[np.int64]) -> Worked:
    """Return the stages and microbatches of rows, of an action on several microbatches each of them."""
    span = schedule.span[rows]
    if span.max(initial=1) == 1:
        return Worked(np.arange(rows.size), schedule.stage[rows], schedule.microbatch[rows].astype(np.int64))
    number = np.repeat(np.arange(rows.size), span)
    offset = np.arange(number.size) - np.repeat(np.cumsum(span) - span, span)
    return Worked(number, schedule.stage[rows][number], schedule.microbatch[rows][number] + offset)


def rows_of(schedule: Schedule, chosen: NDArray[np.bool_], *sorts: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Return the rows that work on what is chosen, and on what else such rows work on.

    Args:
        schedule: the table.
        chosen: shape (stages, microbatches).
        sorts: masks of the rows in question, one for each list of them that is returned.
    """
    among = [np.flatnonzero(sort) for sort in sorts]
    all_worked = [worked(schedule, rows) for rows in among]
    while True:
        whole, found = np.zeros_like(chosen), []
        for rows, (number, stage, microbatch) in zip(among, all_worked, strict=True):
            taken = np.zeros(rows.size, dtype=bool)
            taken[number[chosen[stage, microbatch]]] = True
            more = taken[number]
            whole[stage[more], microbatch[more]] = True
            found.append(rows[taken])
        if not (whole & ~chosen).any():
            return found
        chosen = whole


def inserted(
    schedule: Schedule, at: NDArray[np.int64], kind: NDArray[np.int8] | Kind, source: NDArray[np.int64]
) -> Schedule:
    """Return a table with further actions.

    Args:
        schedule: the table.
        at: the rows before which they stand, in order, on the rank of ``source``; one place's in the order given.
        kind: their kinds.
        source: rows whose rank, stage and microbatches they have.
    """
    rank = np.searchsorted(schedule.row_ptr, source, side="right") - 1
    shift = np.cumsum([0, *np.bincount(rank, minlength=schedule.ranks)])
    place = at + np.arange(at.size)
    new = np.zeros(len(schedule) + at.size, dtype=bool)
    new[place] = True
    row = np.empty(new.size, dtype=np.int64)
    row[place], row[~new] = source, np.arange(len(schedule))
    cells = schedule.cells.taken(row)
    cells.kind[place] = kind
    cells.pair[place] = -1
    return replace(schedule, row_ptr=schedule.row_ptr + shift, **cells._asdict())


def inserted_of_stages(schedule: Schedule, added: NDArray[np.int64]) -> Schedule:
    """Return a table with further actions that belong to stages and to no microbatch.

    Args:
        schedule: the table.
        added: their columns: the row before which each stands, its rank, kind and stage; one place's in the order
            given.
    """
    if not added.shape[1]:
        return schedule
    at, rank, kind, stage = added[:, np.lexsort((np.arange(added.shape[1]), added[1], added[0]))]
    cells = CellColumns(kind=kind, stage=stage, microbatch=-1, span=1, pair=-1)
    shift = np.cumsum([0, *np.bincount(rank, minlength=schedule.ranks)])
    inserted = (np.insert(values, at, new) for values, new in zip(schedule.cells, cells, strict=True))
    return replace(schedule, row_ptr=schedule.row_ptr + shift, **CellColumns(*inserted)._asdict())
