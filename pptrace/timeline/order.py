"""The order in which each rank of a timeline computed: its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import COMPUTE, STAGE_ENDS, KindSet, Stream
from pptrace.schedule.table import Schedule
from pptrace.timeline.folded import folded
from pptrace.timeline.row_index import lanes_of

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["compute_rows", "computed_order"]

_IN_TABLES = KindSet(COMPUTE - STAGE_ENDS)


def compute_rows(timeline: Timeline) -> list[Int64s]:
    """Return, per rank, the rows of what a table holds, in the order in which they ran."""
    found = []
    for lane in lanes_of(timeline, Stream.COMPUTE):
        span = np.arange(timeline.lane_ptr[lane], timeline.lane_ptr[lane + 1]) if lane >= 0 else np.arange(0)
        found.append(span[_IN_TABLES.mask(timeline.kind[span])])
    return found


def computed_order(timeline: Timeline) -> Schedule:
    """Return the table of what each rank computed, one row per action."""
    timeline = folded(timeline)
    by_rank = compute_rows(timeline)
    rows = np.concatenate(by_rank) if by_rank else np.zeros(0, dtype=np.int64)
    return Schedule.of_cells(
        timeline.placement, np.cumsum([0, *(own.size for own in by_rank)]), timeline.cells.taken(rows)
    )
