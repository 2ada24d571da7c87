"""Check that no member of an overlapped pair needs what another one of it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.cells import group_starts
from pptrace.model.kinds import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.model.columns import Int32s
    from pptrace.schedule.index import Positions
    from pptrace.schedule.table import Schedule

__all__ = ["check_pairs"]


def check_pairs(schedule: Schedule, positions: Positions) -> None:
    """Check that members of a pair do not wait for each other; a weight gradient may follow its input's.

    Raises:
        ScheduleError: a member's backward is of its own pair's forward, or its stage feeds another member's.
    """
    if not (schedule.pair >= 0).any():
        return
    starts = group_starts(schedule.pair, schedule.row_ptr)
    group = np.repeat(np.arange(starts.size), np.diff(starts, append=len(schedule)))
    for made, needed in _waits(schedule, positions):
        both = (made >= 0) & (needed >= 0) & (made != needed) & (group[made] == group[needed])
        if both.any():
            at = np.flatnonzero(both)[0]
            row, other = int(needed.flat[at]), int(made.flat[at])
            rank = schedule.rank_at(row)
            raise ScheduleError(
                f"rank {rank}: {schedule.action(row)} needs {schedule.action(other)}, which is in the same "
                "overlapped pair: write one behind the other",
                rank=rank,
                position=row,
                action=str(schedule.action(row)),
                missing=str(schedule.action(other)),
            )


def _waits(schedule: Schedule, positions: Positions) -> Iterator[tuple[Int32s, Int32s]]:
    """Yield positions of which the first makes what the second needs, by microbatch; -1 where there is none."""
    forward, backward = positions.of(Result.ACTIVATION), positions.of(Result.GRADIENT)
    yield forward, backward
    low, high = schedule.placement.edges.T
    yield forward[low], forward[high]
    yield backward[high], backward[low]
