"""Which computations need what nobody recorded: of a rank whose file is missing, or of an action that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.cells import CellColumns
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
    lasts = np.setdiff1d(np.arange(placement.stages), placement.edges[:, 0]) if lacks_ranks else np.zeros(0)
    for kinds, edges in zip(_MAKERS, away, strict=True):
        goes = np.isin(cells.kind, kinds)
        made = np.zeros((placement.stages, placement.microbatches + 1), dtype=np.int64)
        np.add.at(made, (cells.stage[goes], cells.microbatch[goes]), 1)
        ends = np.minimum(cells.microbatch[goes] + cells.span[goes], placement.microbatches)
        np.add.at(made, (cells.stage[goes], ends), -1)
        held = np.cumsum(made, axis=1) > 0
        lacking = np.zeros_like(held)
        for maker, taker in edges.tolist():
            lacking[taker] |= ~held[maker] & _exists(placement, maker)
        needs |= goes & lacking[cells.stage, cells.microbatch]
    needs |= np.isin(cells.kind, _MAKERS[1]) & np.isin(cells.stage, lasts)
    return needs


def _exists(placement: Placement, stage: int) -> NDArray[np.bool_]:
    """Return, per microbatch, whether its route has a stage; one that none has is missing. False behind all."""
    ranks = placement.stage_rank[:, stage]
    on_route = (
        ranks[placement.microbatch_route] >= 0
        if (ranks >= 0).any()
        else np.ones(placement.microbatches, dtype=np.bool_)
    )
    return np.append(on_route, False)
