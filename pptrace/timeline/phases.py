"""Phases of a rank's step: warm-up, steady state and cool-down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import BACKWARD, Kind
from pptrace.timeline.actions import in_group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Phase", "phases"]

_NEVER = int(np.iinfo(np.int64).max)


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
    length is left out, and a rank without a forward or without a backward has none. Of actions in
    segments, computation counts.
    """
    computes = ~in_group(timeline)
    forward = (timeline.kind == Kind.F) & computes
    backward = BACKWARD.mask(timeline.kind) & computes
    ranks, firsts = _ranks(timeline)
    start = _first(timeline.start_ns, forward, firsts)
    turn = _first(timeline.start_ns, backward, firsts)
    last = _last(timeline.end_ns, forward, firsts)
    end = _last(timeline.end_ns, backward, firsts)
    found = []
    for index, rank in enumerate(ranks):
        if turn[index] == _NEVER or start[index] == _NEVER:
            continue
        cool = max(last[index], turn[index])
        bounds = (start[index], turn[index], cool, end[index])
        names = ("warm-up", "steady", "cool-down")
        for name, begin, until in zip(names, bounds, bounds[1:], strict=False):
            if until > begin:
                found.append(Phase(rank=rank, name=name, start_ns=begin, end_ns=until))
    return tuple(found)


def _ranks(timeline: Timeline) -> tuple[list[int], NDArray[np.int64]]:
    """Return the ranks that have rows, and the first row of each."""
    filled = np.diff(timeline.lane_ptr) > 0
    rank, first = np.unique(timeline.lane_rank[filled], return_index=True)
    return rank.tolist(), timeline.lane_ptr[:-1][filled][first].astype(np.int64)


def _first(time: Int64s, chosen: NDArray[np.bool_], firsts: NDArray[np.int64]) -> list[int]:
    return _of_ranks(np.minimum, np.where(chosen, time, _NEVER), firsts)


def _last(time: Int64s, chosen: NDArray[np.bool_], firsts: NDArray[np.int64]) -> list[int]:
    return _of_ranks(np.maximum, np.where(chosen, time, -1), firsts)


def _of_ranks(pick: np.ufunc, time: Int64s, firsts: NDArray[np.int64]) -> list[int]:
    found: list[int] = pick.reduceat(time, firsts).tolist() if firsts.size else []
    return found
