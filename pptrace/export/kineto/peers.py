"""Which rank a message of a slice goes to or comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.export.kinds import TOWARDS_NEXT

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.model.placement import Placement
    from pptrace.timeline.timeline import Timeline

__all__ = ["Peers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The neighbours of each stage on each route; -1 where a stage has none, or several."""

    microbatch_route: Int32s
    """Shape (microbatches,): each microbatch's route."""
    after: Int32s
    """Shape (routes, stages): the rank that holds the next stage."""
    before: Int32s
    """Shape (routes, stages): the rank that holds the stage before."""

    @classmethod
    def of(cls, placement: Placement) -> Self:
        """Find the neighbours along the placement's edges."""
        source, target = placement.edges[:, 0], placement.edges[:, 1]
        return cls(
            microbatch_route=placement.microbatch_route,
            after=_only(placement.stage_rank, source, target),
            before=_only(placement.stage_rank, target, source),
        )

    def among(self, timeline: Timeline, rows: slice | Int32s) -> Int32s:
        """Return the peer of each row's message, by its stage, microbatch and direction."""
        microbatch, stage = timeline.microbatch[rows], timeline.stage[rows]
        known = (microbatch >= 0) & (microbatch < self.microbatch_route.size) & (stage < self.after.shape[1])
        route = np.zeros_like(microbatch)
        route[known] = self.microbatch_route[microbatch[known]]
        stage = np.where(known, stage, 0)
        onward = TOWARDS_NEXT[timeline.kind[rows]]
        peer = np.where(onward, self.after[route, stage], self.before[route, stage])
        return np.where(known, peer, np.int32(-1))


def _only(stage_rank: Int32s, at: Int32s, neighbour: Int32s) -> Int32s:
    """Return the rank of each stage's neighbour where it has one only on the route."""
    route, edge = np.nonzero((stage_rank[:, at] >= 0) & (stage_rank[:, neighbour] >= 0))
    count = np.zeros_like(stage_rank)
    np.add.at(count, (route, at[edge]), 1)
    rank = np.full_like(stage_rank, -1)
    rank[route, at[edge]] = stage_rank[route, neighbour[edge]]
    return np.where(count == 1, rank, np.int32(-1))
