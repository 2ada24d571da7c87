"""The stages' graph over the ranks, as kernels read it: who holds which stage, what it feeds and what feeds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.model.placement import Placement

__all__ = ["StageGraph", "graph_of"]


class StageGraph(NamedTuple):
    """A placement, with the successors and predecessors of every stage as CSR."""

    ranks: int
    """Number of ranks."""
    stages: int
    """Number of stages."""
    microbatches: int
    """Number of microbatches."""
    routes: int
    """Number of routes."""
    edges: int
    """Number of edges."""
    nearby: int
    """Whether any rank holds both ends of an edge."""
    stage_rank: Int32s
    """Shape (routes x stages,): the rank of each stage on each route, -1 where the route skips it."""
    microbatch_route: Int32s
    """Shape (microbatches,): each microbatch's route."""
    edge_from: Int32s
    """Shape (edges,): the stage that an edge comes from."""
    edge_to: Int32s
    """Shape (edges,): the stage that it goes to."""
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


def graph_of(placement: Placement) -> StageGraph:
    """Return a placement's graph of stages."""
    edge_from, edge_to = (np.ascontiguousarray(side) for side in placement.edges.T)
    succ_ptr, succ_edge = _grouped(edge_from, placement.stages)
    pred_ptr, pred_edge = _grouped(edge_to, placement.stages)
    nearby = (placement.stage_rank[:, edge_from] == placement.stage_rank[:, edge_to]).any()
    return StageGraph(
        ranks=placement.ranks, stages=placement.stages, microbatches=placement.microbatches,
        routes=placement.routes,
        edges=edge_from.size, nearby=int(nearby), stage_rank=placement.stage_rank.ravel(),
        microbatch_route=placement.microbatch_route,
        edge_from=edge_from, edge_to=edge_to, succ_ptr=succ_ptr, succ=edge_to[succ_edge], succ_edge=succ_edge,
        pred_ptr=pred_ptr, pred=edge_from[pred_edge], pred_edge=pred_edge,
    )  # fmt: skip


def _grouped(key: Int32s, stages: int) -> tuple[Int32s, Int32s]:
    order = np.argsort(key, kind="stable").astype(np.int32)
    counts = np.bincount(key, minlength=stages)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), order
