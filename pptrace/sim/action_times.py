"""Times of single actions in place of a workload's: for replaying what was measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pptrace.model.action import Kind
from pptrace.model.columns import Int64s, column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.model.placement import Placement

__all__ = ["ActionTimes"]

_SENDS = (Kind.SEND_F, Kind.SEND_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTimes:
    """Nanoseconds per action, flat over (kind, stage, unit); -1 where the workload or the network says it.

    An action of several units stands at its first.
    """

    duration_ns: Int64s
    """Time on the rank's compute stream."""
    gap_ns: Int64s
    """Time before it in which its rank's stream waits for the host; 0 for none."""
    transfer_ns: Int64s
    """At ``SEND_F`` and ``SEND_B`` of the sending stage: from both ends being ready until the data are there."""

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, column(getattr(self, one.name), np.int64))

    @classmethod
    def nothing(cls, placement: Placement) -> Self:
        """Return times that change nothing."""
        cells = len(Kind) * placement.stages * placement.units
        none = np.full(cells, -1, dtype=np.int64)
        return cls(duration_ns=none, gap_ns=np.zeros(cells, dtype=np.int64), transfer_ns=none)

    def laid_over(self, columns: Mapping[str, Any], placement: Placement) -> None:
        """Write these times into the rows that they are for, in place.

        Args:
            columns: of tasks: ``kind``, ``stage``, ``unit``, ``duration_ns`` and ``lag_ns``.
            placement: the stages and units that cells count.
        """
        rows = np.flatnonzero((columns["unit"] >= 0) & (columns["stage"] >= 0))
        kind, stage, unit = (columns[name][rows].astype(np.int64) for name in ("kind", "stage", "unit"))
        cell = (kind * placement.stages + stage) * placement.units + unit
        known = self.duration_ns[cell] >= 0
        columns["duration_ns"][rows[known]] = self.duration_ns[cell[known]]
        columns["duration_ns"][rows] += self.gap_ns[cell]
        sent = np.isin(kind, _SENDS) & (self.transfer_ns[cell] >= 0)
        columns["duration_ns"][rows[sent]] = 0
        columns["lag_ns"][rows[sent]] = self.transfer_ns[cell[sent]]
