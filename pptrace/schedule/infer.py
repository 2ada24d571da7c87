"""Infer a placement from a table: each stage is where its actions are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.columns import distinct_rows
from pptrace.model.kinds import Kind
from pptrace.model.placement import Placement, chain

if TYPE_CHECKING:
    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int32s, Int64s

__all__ = ["infer_placement"]

_ROOM = 1 << 20
_PER_ACTION = 64
"""A table may name this many stages times microbatches, and this many more per action."""


def infer_placement(row_ptr: Int32s | Int64s, cells: CellColumns) -> Placement:
    """Return the placement that a table's own rows imply, its stages a chain.

    A microbatch's stage is on the rank of its first action (of the lowest rank, where ranks disagree:
    validation then names the misplaced one). Microbatches with equal ranks share a route.

    Raises:
        ScheduleError: a stage or microbatch is far beyond what so many actions can fill.
    """
    stage, microbatch, span = cells.stage, cells.microbatch, cells.span
    ranks = int(row_ptr.size - 1)
    rank = np.repeat(np.arange(ranks, dtype=np.int32), np.diff(row_ptr))
    placed = (microbatch >= 0) & (stage >= 0) & (span >= 1)
    last = microbatch.astype(np.int64) + span
    stages = int(stage.max(initial=-1)) + 1
    microbatches = int(last[placed].max(initial=0))
    room = _ROOM + _PER_ACTION * int(stage.size)
    if stages * max(microbatches, 1) > room or int(span[placed].sum(dtype=np.int64)) > room:
        raise _out_of_range(rank, cells, last)
    rows = np.flatnonzero(placed)
    rows = np.repeat(rows, span[rows])
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    microbatches_of = microbatch[rows] + np.arange(rows.size) - np.repeat(first, np.diff(first, append=rows.size))
    held = _lowest(microbatches * stages, microbatches_of * stages + stage[rows], rank[rows]).reshape(
        microbatches, stages
    )
    staged = np.flatnonzero(stage >= 0)
    default = _lowest(stages, stage[staged], rank[staged])
    held = np.where(held < 0, default[None, :], held)
    routes, microbatch_route = _routes(held)
    return Placement(
        ranks=ranks,
        stage_rank=routes if microbatches else default[None, :],
        microbatch_route=microbatch_route,
        edges=chain(stages),
    )


def _lowest(size: int, cell: Int32s | Int64s, rank: Int32s) -> Int32s:
    """Return the lowest rank that is given for each of ``size`` cells, -1 where none is."""
    none = np.iinfo(np.int32).max
    lowest = np.full(size, none, dtype=np.int32)
    np.minimum.at(lowest, cell, rank)
    return np.where(lowest == none, np.int32(-1), lowest)


def _routes(held: Int32s) -> tuple[Int32s, Int32s]:
    """Return the distinct rows, in the order of their first microbatch, and each microbatch's."""
    if not held.size:
        return held[:1], np.zeros(len(held), dtype=np.int32)
    first, route = distinct_rows(held)
    return held[first], route


def _out_of_range(rank: Int32s, cells: CellColumns, last: Int64s) -> ScheduleError:
    kind, stage, microbatch = cells.kind, cells.stage, cells.microbatch
    far = int(np.argmax(last)) if int(last.max()) > int(stage.max()) else int(np.argmax(stage))
    number = "" if microbatch[far] < 0 else str(int(microbatch[far]))
    beyond = int(last[far] - microbatch[far])
    action = f"{int(stage[far])}{Kind(int(kind[far])).name}{number}{f'+{beyond}' if beyond > 1 else ''}"
    return ScheduleError(
        f"rank {int(rank[far])}: {action} is out of range: a table of {stage.size} actions cannot fill "
        f"that many stages and microbatches, which are numbered from 0 without gaps",
        rank=int(rank[far]),
        position=far,
        action=action,
    )
