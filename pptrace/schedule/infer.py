"""Infer a placement from a table: each stage is where its actions are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.placement import Placement, chain

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s

__all__ = ["infer_placement"]


def infer_placement(row_ptr: Int32s, kind: Int32s, stage: Int32s, unit: Int32s, span: Int32s) -> Placement:
    """Return the placement that a table's own rows imply, its stages a chain.

    A unit's stage is on the rank of its first action (of the lowest rank, where ranks disagree:
    validation then names the misplaced one). Units with equal ranks share a route.
    """
    del kind
    ranks = row_ptr.size - 1
    rank = np.repeat(np.arange(ranks, dtype=np.int32), np.diff(row_ptr))
    stages = int(stage.max()) + 1 if stage.size else 0
    per_unit = unit >= 0
    units = int((unit + span)[per_unit].max()) if per_unit.any() else 0
    held = np.full((units, stages), -1, dtype=np.int32)
    # Written from the last row to the first, so that the lowest rank stays.
    for offset in range(int(span.max()) if span.size else 0):
        rows = np.flatnonzero(per_unit & (span > offset))[::-1]
        held[unit[rows] + offset, stage[rows]] = rank[rows]
    default = np.full(stages, -1, dtype=np.int32)
    default[stage[::-1]] = rank[::-1]
    held = np.where(held < 0, default[None, :], held)
    routes, unit_route = np.unique(held, axis=0, return_inverse=True)
    first_unit = np.array([int(np.argmax(unit_route == r)) for r in range(len(routes))], dtype=np.int64)
    order = np.argsort(first_unit)
    rename = np.empty_like(order)
    rename[order] = np.arange(order.size)
    return Placement(
        ranks=int(ranks),
        stage_rank=routes[order] if units else default[None, :],
        unit_route=rename[unit_route.ravel()].astype(np.int32),
        edges=chain(stages),
    )
