"""What a trace says beside a step's slices: why ranks wait, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from pptrace.timeline.critical_path import OnPath, on_path
from pptrace.timeline.idle import Waits, waits

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Why", "why"]

_Columns = TypeVar("_Columns", Waits, OnPath)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Why:
    """Found in a whole step, so that a part of one still says what the whole was."""

    waits: Waits
    """Why ranks idled."""
    path: OnPath
    """The critical path."""

    def of_ranks(self, ranks: Collection[int], rank_of_row: Int32s) -> Self:
        """Return what concerns some ranks; rows keep their numbers."""
        chosen = sorted(ranks)
        return replace(
            self, waits=_taken(self.waits, np.isin(self.waits.rank, chosen)),
            path=_taken(self.path, np.isin(rank_of_row[self.path.row], chosen)),
        )  # fmt: skip

    def renumbered(self, number: Int32s) -> Self:
        """Give rows new numbers, -1 for those that went, with which their part of the path goes."""
        path = _taken(self.path, number[self.path.row] >= 0)
        return replace(
            self, waits=replace(self.waits, row=number[self.waits.row]), path=replace(path, row=number[path.row])
        )

    def within(self, start_ns: int, end_ns: int) -> Self:
        """Return the waits that lie in a span, and the path."""
        inside = (self.waits.start_ns >= start_ns) & (self.waits.end_ns <= end_ns)
        return replace(self, waits=_taken(self.waits, inside))

    def shifted(self, by_ns: int) -> Self:
        """Return the same later."""
        return replace(self, waits=_later(self.waits, by_ns), path=_later(self.path, by_ns))


def why(timeline: Timeline, path: Int32s | None = None) -> Why:
    """Find in a whole step why ranks wait and what the critical path is, whose rows may be known already.

    Of a rank whose lanes are missing, as where the files of some ranks were read, nothing is known.
    """
    found = waits(timeline)
    known = np.isin(found.rank, timeline.lane_rank)
    return Why(waits=found if known.all() else _taken(found, known), path=on_path(timeline, path))


def _taken(columns: _Columns, chosen: NDArray[np.bool_]) -> _Columns:
    return replace(columns, **{name: getattr(columns, name)[chosen] for name in columns.__slots__})


def _later(columns: _Columns, by_ns: int) -> _Columns:
    return replace(columns, start_ns=columns.start_ns + by_ns, end_ns=columns.end_ns + by_ns)
