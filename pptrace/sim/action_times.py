"""Times of single actions in place of a workload's: for replaying what was measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.columns import Int64s, column, find
from pptrace.model.kinds import SENDS

if TYPE_CHECKING:
    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int32s
    from pptrace.model.placement import Placement
    from pptrace.sim.records import TaskColumns

__all__ = ["ActionTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTimes:
    """Nanoseconds per action, one value for each named action; the workload or the network gives all other times.

    An action of several microbatches stands at its first.
    """

    place: Int64s
    """Each action's place among all kinds, stages and microbatches, in that order; ascending, each once."""
    duration_ns: Int64s
    """Time on the rank's compute stream; -1 where the workload gives it."""
    gap_ns: Int64s
    """Time before it in which its rank's stream waits for the host; 0 for none."""
    transfer_ns: Int64s
    """At ``SEND_F`` and ``SEND_B`` of the sending stage: from both ends being ready until the data are there; -1
    where the network gives it."""

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, column(getattr(self, one.name), np.int64))

    def laid_over(self, cells: CellColumns, task: TaskColumns, placement: Placement) -> None:
        """Write these times into the rows that they are for, in place.

        Args:
            cells: what the rows are.
            task: what they take.
            placement: the stages and microbatches that cells count.
        """
        rows = np.flatnonzero((cells.microbatch >= 0) & (cells.stage >= 0))
        kind, stage, microbatch = (values[rows].astype(np.int64) for values in cells[:3])
        index = find(self.place, (kind * placement.stages + stage) * placement.microbatches + microbatch)
        rows, index, kind = rows[index >= 0], index[index >= 0], kind[index >= 0]
        known = self.duration_ns[index] >= 0
        task.duration_ns[rows[known]] = self.duration_ns[index[known]]
        task.duration_ns[rows] += self.gap_ns[index]
        sent = SENDS.mask(kind) & (self.transfer_ns[index] >= 0)
        task.duration_ns[rows[sent]] = 0
        task.lag_ns[rows[sent]] = self.transfer_ns[index[sent]]

    @staticmethod
    def shared(task: TaskColumns, twin: Int32s) -> None:
        """Give each receiver's side of a rendezvous, in place, what its sender's side takes.

        Args:
            task: what rows take.
            twin: the sender's side of each receiver's side, -1 for other rows.
        """
        received = np.flatnonzero(twin >= 0)
        for values in (task.duration_ns, task.lag_ns):
            values[received] = values[twin[received]]
