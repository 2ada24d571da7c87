"""Files that were written rank by rank, as one timeline again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import TraceError
from pptrace.timeline.parts import Parts
from pptrace.timeline.timeline import LANE_COLUMNS, ROW_COLUMNS, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.routes import Routes

__all__ = ["Part", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one file holds."""

    path: Path
    """The file."""
    timeline: Timeline
    """Its lanes, rows and counters; causes count the rows of all files."""
    first_row: int
    """The number of its first row among those of all files."""

    @property
    def ranks(self) -> Int32s:
        """Its ranks, in order."""
        return np.unique(self.timeline.lane_rank)


def joined(parts: Sequence[Part]) -> Timeline:
    """Return the timeline of files that were written together; a cause that is in none of them becomes -1.

    Raises:
        TraceError: there is no file, or one is not of the same run as the first, or repeats a rank.
    """
    if not parts:
        raise TraceError("no trace file was given")
    first = parts[0]
    for part in parts:
        if _run(part.timeline) != _run(first.timeline):
            raise TraceError(f"is not of the same run as {first.path}; read them apart", file=part.path)
    ordered = sorted((part for part in parts if part.ranks.size), key=lambda part: int(part.ranks[0])) or [first]
    for before, after in pairwise(ordered):
        rows = before.first_row + len(before.timeline)
        if before.ranks[-1] >= after.ranks[0] or rows > after.first_row:
            raise TraceError(f"was not written beside {before.path}; read them apart", file=after.path)
    return _concatenated(ordered)


def _concatenated(parts: Sequence[Part]) -> Timeline:
    timelines = [part.timeline for part in parts]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(timeline, name) for timeline in timelines])
        for name in (*LANE_COLUMNS[:3], *ROW_COLUMNS)
    }
    sizes = np.concatenate([np.diff(timeline.lane_ptr) for timeline in timelines])
    columns["lane_ptr"] = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.concatenate([part.first_row + np.arange(len(part.timeline)) for part in parts])
    columns["cause"] = _places(rows, columns["cause"])
    counters = tuple(counter for timeline in timelines for counter in timeline.counters)
    segments = Parts.joined([timeline.parts for timeline in timelines])
    return replace(timelines[0], counters=counters, routes=_routes(timelines), parts=segments, **columns)


def _run(timeline: Timeline) -> tuple[Any, ...]:
    """Return what files of one run have in common."""
    routes = timeline.routes
    links = routes and (routes.name, routes.rate_kbps.tolist())
    segments = timeline.parts and timeline.parts.names
    return timeline.placement, timeline.provenance, links, segments


def _routes(timelines: Sequence[Timeline]) -> Routes | None:
    known = [timeline.routes for timeline in timelines if timeline.routes is not None]
    if not known:
        return None
    length = np.concatenate([np.diff(routes.ptr) for routes in known])
    link = np.concatenate([routes.link for routes in known])
    return replace(known[0], ptr=np.concatenate([[0], np.cumsum(length)]), link=link)


def _places(rows: Int64s, wanted: Int32s) -> Int64s:
    """Return where each wanted row is among the ascending ones, -1 where it is not."""
    place = np.minimum(np.searchsorted(rows, wanted), max(rows.size - 1, 0))
    return np.where(rows[place] == wanted, place, -1) if rows.size else place
