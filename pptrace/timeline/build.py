"""Build a timeline from single slices: for importers, for examples and for tests."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.timeline.timeline import ROW_COLUMNS, Slice, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.model.placement import Placement

__all__ = ["from_slices"]


def from_slices(slices: Iterable[Slice], placement: Placement) -> Timeline:
    """Return the timeline of ``slices``, sorted into lanes; ``cause`` counts the rows as returned.

    Raises:
        ValueError: two slices of one lane overlap.
    """
    ordered = sorted(slices, key=lambda s: (*_lane(s), s.start_ns, s.end_ns))
    lanes = [(key, len(list(group))) for key, group in groupby(ordered, key=_lane)]
    columns: dict[str, Any] = {
        name: np.array([_value(s, name) for s in ordered], dtype=np.int64) for name in ROW_COLUMNS
    }
    timeline = Timeline(
        placement=placement,
        lane_rank=np.array([rank for (rank, _, _), _ in lanes], dtype=np.int32),
        lane_stream=np.array([stream for (_, stream, _), _ in lanes], dtype=np.int8),
        lane_peer=np.array([peer for (_, _, peer), _ in lanes], dtype=np.int32),
        lane_ptr=np.cumsum([0, *(count for _, count in lanes)]),
        **columns,
    )
    for lane in range(timeline.lanes):
        rows = slice(int(timeline.lane_ptr[lane]), int(timeline.lane_ptr[lane + 1]))
        if (timeline.start_ns[rows][1:] < timeline.end_ns[rows][:-1]).any():
            msg = f"slices of rank {timeline.lane_rank[lane]} overlap on one stream"
            raise ValueError(msg)
    return timeline


def _lane(item: Slice) -> tuple[int, int, int]:
    return item.rank, int(item.stream), item.peer


def _value(item: Slice, name: str) -> int:
    if name in {"kind", "stage", "microbatch", "span"}:
        return int(getattr(item.action, name))
    value = int(getattr(item, name))
    if value < 0 and name == "enter_ns":
        return item.start_ns
    if value < 0 and name == "uncontended_ns":
        return item.end_ns - item.start_ns
    return value
