"""Which computations need what nobody recorded: of a rank whose file is missing, or of an action that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.placement import Placement

__all__ = ["needs_unrecorded"]

_MAKERS = ([Kind.F], [Kind.B, Kind.I])


def needs_unrecorded(cells: CellColumns, placement: Placement, *, lacks_ranks: bool) -> NDArray[np.bool_]:
    """Return which computations take an activation or a gradient from a computation that is not there.

    Args:
        cells: the computations.
        placement: their stages.
        lacks_ranks: whether ranks are missing; then there may be stages behind the last one that is known, too.
    """
    needs = np.zeros(cells.kind.size, dtype=np.bool_)
    if not cells.kind.size:
        return needs
    away = np.stack([placement.edges, placement.edges[:, ::-1]])
    for kinds, edges in zip(_MAKERS, away, strict=True):
        rows = np.flatnonzero(np.isin(cells.kind, kinds) & (cells.microbatch >= 0))
        needs[rows] = _lacks_maker(cells.taken(rows), placement, edges)
    if lacks_ranks:
        lasts = np.setdiff1d(np.arange(placement.stages), placement.edges[:, 0])
        needs |= np.isin(cells.kind, _MAKERS[1]) & np.isin(cells.stage, lasts)
    return needs


def _lacks_maker(cells: CellColumns, placement: Placement, edges: Int32s) -> NDArray[np.bool_]:
    """Return which computations of one pass lack one of those that their stage takes a result from.

    Args:
        cells: all computations of the pass; each is one of a stage from its first microbatch on.
        placement: their stages.
        edges: shape (edges, 2): the stage that makes a result, and the one that takes it.
    """
    width = placement.microbatches + 1
    stage, microbatch = cells.stage.astype(np.int64), cells.microbatch.astype(np.int64)
    first = stage * width + microbatch
    starts, ends = np.sort(first), np.sort(np.minimum(first + cells.span, stage * width + width - 1))
    cell, cell_of_row = np.unique(first, return_inverse=True)
    by_taker = edges[np.argsort(edges[:, 1], kind="stable")].astype(np.int64)
    begin, end = (np.searchsorted(by_taker[:, 1], cell // width, side=side) for side in ("left", "right"))
    asking = np.repeat(np.arange(cell.size), end - begin)
    maker = by_taker[np.arange(asking.size) + (end - np.cumsum(end - begin))[asking], 0]
    needed = maker * width + cell[asking] % width
    made = np.searchsorted(starts, needed, side="right") > np.searchsorted(ends, needed, side="right")
    lacking = np.zeros(cell.size, dtype=np.bool_)
    lacking[asking[~made & _exists(placement, maker, cell[asking] % width)]] = True
    return lacking[cell_of_row]


def _exists(placement: Placement, stage: Int64s, microbatch: Int64s) -> NDArray[np.bool_]:
    """Return whether each microbatch's route has a stage; a stage that no route has is missing."""
    nowhere: NDArray[np.bool_] = np.all(placement.stage_rank < 0, axis=0)
    return nowhere[stage] | (placement.stage_rank[placement.microbatch_route[microbatch], stage] >= 0)
