"""The stages' graph as neighbour lists: what each stage feeds, and what feeds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.model.placement import Placement

__all__ = ["Neighbours", "neighbours"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Successors and predecessors of every stage, as CSR."""

    succ_ptr: Int32s
    """Shape (stages + 1,)."""
    succ: Int32s
    """Stages that a stage feeds."""
    succ_edge: Int32s
    """Index of the edge to each successor."""
    pred_ptr: Int32s
    """Shape (stages + 1,)."""
    pred: Int32s
    """Stages that feed a stage."""
    pred_edge: Int32s
    """Index of the edge from each predecessor."""

    @property
    def arguments(self) -> tuple[Int32s, ...]:
        """All columns, in the order that kernels take them."""
        return (self.succ_ptr, self.succ, self.succ_edge, self.pred_ptr, self.pred, self.pred_edge)


def neighbours(placement: Placement) -> Neighbours:
    """Return the neighbour lists of a placement's edges."""
    succ_ptr, succ_edge = _grouped(placement.edges[:, 0], placement.stages)
    pred_ptr, pred_edge = _grouped(placement.edges[:, 1], placement.stages)
    return Neighbours(
        succ_ptr=succ_ptr,
        succ=np.ascontiguousarray(placement.edges[succ_edge, 1]),
        succ_edge=succ_edge,
        pred_ptr=pred_ptr,
        pred=np.ascontiguousarray(placement.edges[pred_edge, 0]),
        pred_edge=pred_edge,
    )


def _grouped(key: Int32s, stages: int) -> tuple[Int32s, Int32s]:
    order = np.argsort(key, kind="stable").astype(np.int32)
    counts = np.bincount(key, minlength=stages)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), order
