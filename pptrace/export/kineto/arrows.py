"""Arrows: flows as lines of JSON behind the slices that they touch.

They stand side by side with their slices, because viewers bind a flow to the slice that came last before
it where times are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pptrace.export.kineto.cells import Block, Part, Some, microseconds, number, pieces, stacked, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.export.kineto.flows import Points

__all__ = ["Arrows"]

_PHASES = [b'"s"', b'"t"', b'"f","bp":"e"']
_NAMED = [b'"p2p","name":"p2p"', b'"critical path","name":"critical path"']
_USUAL_FLOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrows:
    """Adds flows to the lines of slices."""

    points: Points
    """Where flows touch which rows."""
    first: int
    """What the file adds to a row's number, and so to a flow's."""

    def at_once(self, rows: slice) -> int:
        """Return the most flows that touch one of some rows."""
        ptr = self.points.row_ptr[rows.start : rows.stop + 1]
        return int(np.diff(ptr).max(initial=0))

    def behind(self, parts: list[Part], place: bytes, rows: slice) -> Iterator[Block]:
        """Yield the lines of some rows and of their flows; ``place`` is JSON up to the time."""
        count = rows.stop - rows.start
        ptr = self.points.row_ptr[rows.start : rows.stop + 1]
        per_row = np.diff(ptr)
        most = int(per_row.max(initial=0))
        if most <= _USUAL_FLOWS and most == per_row.min():
            flows = chain(*(self._parts(ptr[:-1] + slot, place) for slot in range(most)))
            yield from pieces(count, [*parts, *flows, b"\n"])
            return
        slots: list[Some] = []
        for slot in range(most):
            hit = np.flatnonzero(per_row > slot)
            slots.append(Some(stacked(hit.size, self._parts(ptr[hit] + slot, place)), hit))
        if most <= _USUAL_FLOWS:
            yield from pieces(count, [*parts, *slots, b"\n"])
            return
        block = stacked(count, [*parts, *slots, b"\n"])
        keep = np.ones(block.shape, dtype=bool)
        end = block.shape[1] - 1 - sum(cells.shape[1] for cells in slots)
        for index, cells in enumerate(slots):
            keep[:, end : end + cells.shape[1]] = (per_row > index)[:, None]
            end += cells.shape[1]
        yield block[keep]

    def _parts(self, points: NDArray[np.int64], place: bytes) -> list[Part]:
        flow = number(self.points.flow[points].astype(np.int64) + self.first)
        at = microseconds(self.points.at_ns[points], whole=False)
        phase = words(self.points.phase[points], _PHASES)
        named = words(self.points.on_path[points].astype(np.int8), _NAMED)
        return [b'\n{"ph":', phase, b',"id":', flow, place, at, b',"cat":', named, b"},"]
