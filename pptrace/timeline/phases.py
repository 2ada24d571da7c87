"""Phases of a rank's step: warm-up, steady state and cool-down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Phase", "phases"]

_NEVER = np.iinfo(np.int64).max
_PASSES = (Kind.F, Kind.B, Kind.I, Kind.W)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of one rank's step."""

    rank: int
    """The rank."""
    name: str
    """``warm-up``, ``steady`` or ``cool-down``."""
    start_ns: int
    """When it starts."""
    end_ns: int
    """When it ends, after its start."""


def phases(timeline: Timeline) -> tuple[Phase, ...]:
    """Return the phases of every rank, by rank and time.

    Warm-up lasts from a rank's first forward until its first backward starts, cool-down from the end
    of its last forward to the end of its last backward, steady is what lies between. A phase without
    length is left out, and a rank without a forward or without a backward has none.
    """
    rank = timeline.rank_of_row()
    forward = timeline.kind == Kind.F
    backward = np.isin(timeline.kind, _PASSES[1:])
    ranks = max(timeline.ranks, int(rank.max(initial=-1)) + 1)
    start = _first(timeline.start_ns, rank, forward, ranks).tolist()
    turn = _first(timeline.start_ns, rank, backward, ranks).tolist()
    last = _last(timeline.end_ns, rank, forward, ranks).tolist()
    end = _last(timeline.end_ns, rank, backward, ranks).tolist()
    found = []
    for index in range(ranks):
        if turn[index] == _NEVER or start[index] == _NEVER:
            continue
        cool = max(last[index], turn[index])
        bounds = (start[index], turn[index], cool, end[index])
        names = ("warm-up", "steady", "cool-down")
        for name, begin, until in zip(names, bounds, bounds[1:], strict=False):
            if until > begin:
                found.append(Phase(rank=index, name=name, start_ns=begin, end_ns=until))
    return tuple(found)


def _first(time: Int64s, rank: NDArray[np.int32], chosen: NDArray[np.bool_], ranks: int) -> Int64s:
    found = np.full(ranks, _NEVER)
    np.minimum.at(found, rank[chosen], time[chosen])
    return found


def _last(time: Int64s, rank: NDArray[np.int32], chosen: NDArray[np.bool_], ranks: int) -> Int64s:
    found = np.full(ranks, -1)
    np.maximum.at(found, rank[chosen], time[chosen])
    return found
