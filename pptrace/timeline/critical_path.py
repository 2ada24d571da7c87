"""The critical path of a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pptrace.steps.kinds import COMPUTE, Kind
from pptrace.timeline.idle import waits
from pptrace.timeline.timeline import OnPath, Why, take, window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline

PATH_PARTS = ("", "wire", "wait")
"""Kinds of path parts: the slice (``""``), the latency after it, or time without a slice."""


class CriticalPath(Struct, frozen=True):
    """The slices on the critical path and its time by kind; the times sum to the step."""

    rows: Int32s
    """Rows of the timeline, first to last."""
    by_kind_ns: Mapping[str, int]
    """Time on the path per kind of action, with ``wire`` for latency and ``wait`` for time without a slice."""
    by_stage_ns: Mapping[int, int]
    """Compute time on the path per stage."""

    @property
    def slowest_stage(self) -> int:
        """The stage with the most compute time on the path, the lowest on a tie; -1 where there is none."""
        if not self.by_stage_ns:
            return -1
        return min(self.by_stage_ns, key=lambda stage: (-self.by_stage_ns[stage], stage))


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the path back from the slice that ends last (the lowest row on a tie) along the recorded causes."""
    rows = _path(timeline)
    path = on_path(timeline, rows)
    part_ns, runs = path.end_ns - path.start_ns, path.part == 0
    kind, stage, slice_ns = timeline.kind[path.row[runs]], timeline.stage[path.row[runs]], part_ns[runs]
    computes = COMPUTE.mask(kind)
    parts, kinds, stages = (
        np.zeros(n, dtype=np.int64) for n in (len(PATH_PARTS), len(Kind), timeline.placement.stages)
    )
    np.add.at(parts, path.part, part_ns)
    np.add.at(kinds, kind, slice_ns)
    np.add.at(stages, stage[computes], slice_ns[computes])
    by_kind = {Kind(number).name: int(time_ns) for number, time_ns in enumerate(kinds)}
    by_kind |= {PATH_PARTS[index]: int(parts[index]) for index in (1, 2)}
    return CriticalPath(
        rows=rows,
        by_kind_ns=dict(sorted(((k, v) for k, v in by_kind.items() if v), key=lambda item: (-item[1], item[0]))),
        by_stage_ns={index: int(time_ns) for index, time_ns in enumerate(stages) if time_ns},
    )


def on_path(timeline: Timeline, rows: Int32s | None = None) -> OnPath:
    """Return the parts of the critical path by time, including a wait before its first slice.

    By default, its rows follow from the recorded causes.
    """
    rows = _path(timeline) if rows is None else rows
    opened = window(timeline)[0] if rows.size else 0
    begin, ran, wire, until = _split(timeline, rows, opened)
    ends = np.stack([begin + ran, begin + ran + wire, until], axis=1).ravel()
    starts = np.concatenate([begin[:1], ends[:-1]])
    row, part = np.repeat(rows, len(PATH_PARTS)), np.tile(np.arange(len(PATH_PARTS), dtype=np.int8), rows.size)
    if rows.size and begin[0] > opened:
        starts, ends = np.insert(starts, 0, opened), np.insert(ends, 0, begin[0])
        row, part = np.insert(row, 0, rows[0]), np.insert(part, 0, len(PATH_PARTS) - 1)
    lasts = ends > starts
    return OnPath(row=row[lasts], part=part[lasts], start_ns=starts[lasts], end_ns=ends[lasts])


def _path(timeline: Timeline) -> Int32s:
    """Return the rows on the chain of causes of the row that ends last, first to last."""
    rows: list[int] = []
    cause = timeline.cause.data  # whose single values are read faster than those of an array
    row = _last_row(timeline) if len(timeline) else -1
    while row >= 0 and len(rows) < len(timeline):
        rows.append(row)
        row = cause[row]
    return np.array(rows[::-1], dtype=np.int32)


def _last_row(timeline: Timeline) -> int:
    """Return the row that ends last, the lowest on a tie; ends ascend within a lane."""
    filled = np.flatnonzero(np.diff(timeline.lane_ptr) > 0)
    ends_ns = timeline.end_ns[timeline.lane_ptr[filled + 1] - 1]
    lane = filled[np.argmax(ends_ns)]
    low, high = (int(row) for row in timeline.lane_ptr[lane : lane + 2])
    return low + int(np.searchsorted(timeline.end_ns[low:high], ends_ns.max()))


def _split(timeline: Timeline, rows: Int32s, opened_ns: int) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return, per row of the path, its begin, its duration, its wire latency, and the begin of the next row."""
    begin, end = np.maximum(timeline.start_ns[rows], opened_ns), timeline.end_ns[rows]
    until = np.append(begin[1:], end[-1:])
    ran = np.maximum(np.minimum(end, until) - begin, 0)
    wire = np.minimum(np.maximum(until - np.maximum(end, begin), 0), timeline.lag_ns[rows])
    return begin, ran, wire, until


def why(timeline: Timeline, path: Int32s | None = None) -> Why:
    """Return the waits and the critical path of a full step; ``path`` has the path's rows if they are known.

    Ranks without lanes, such as ranks whose files were not read, have no waits.
    """
    idle = waits(timeline)
    known = np.isin(idle.rank, timeline.lane_rank)
    return Why(waits=idle if known.all() else take(idle, known), path=on_path(timeline, path))
