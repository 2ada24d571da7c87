"""Slices as runs of records of one layout each, in an order that keeps equal times apart.

Trace processors sort by time and keep the file's order among equal times. So the file holds first
the ends of all slices that have a length, then slices without one, then the begins: of sends, of
slices on links, of receives, of the rest. Then no slice begins before its predecessor on the track has
ended, and a flow reaches sender, links, receiver and consumer in this order though all start at once.
Within a class, slices are grouped by their number of flow ids, so that records of one group have one
size.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.export.kinds import CARRIES, RECEIVES
from pptrace.export.perfetto.columns import FlowColumn, event_columns, field_columns
from pptrace.export.perfetto.flows import Flows
from pptrace.export.perfetto.layout import Layout, Run
from pptrace.export.perfetto.names import numbered
from pptrace.export.perfetto.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.export.perfetto.names import Names
    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Slices", "begin_place"]

_CLASS = np.where(RECEIVES, 2, np.where(CARRIES, 0, 4)).astype(np.int8)
"""Place of each kind among slices that begin at once."""


_LASTING = 8
"""From here on stand slices that have a length, behind those without."""


class Slices:
    """A timeline's slices with the tracks, names and flows that they refer to."""

    def __init__(self, timeline: Timeline, lane_uuid: Int32s, names: Names, first_row: int = 0) -> None:
        self._timeline = timeline
        self.flows = Flows.of(timeline, first_row)
        """Flow ids of each row."""
        self.columns = event_columns(timeline, lane_uuid, names) | field_columns(timeline, self.flows, first_row)
        """What a row's record may hold, by name."""

    def runs(self) -> Iterator[Run]:
        """Return all runs in the order of the file."""
        lasting = self._timeline.end_ns > self._timeline.start_ns
        out, into = _rounded(self.flows.leaving.per_row), _rounded(self.flows.ending.per_row)
        records = Records(
            self.columns
            | {f"out {n}": FlowColumn(self.flows.leaving, n) for n in range(int(out.max(initial=0)))}
            | {f"in {n}": FlowColumn(self.flows.ending, n) for n in range(int(into.max(initial=0)))}
        )
        if lasting.any():
            yield Run(place=0, layout=Layout(tuple(records.end())), rows=_places(lasting), values=records.values)
        parts = self._timeline.parts
        keys = [lasting, _CLASS[self._timeline.kind], out, into, *([parts.name + 1] if parts is not None else [])]
        groups, group = numbered(_combined(keys))
        for index in range(groups.size):
            rows = _places(group == index)
            first, lasts = int(rows[0]), bool(lasting[rows[0]])
            named = int(parts.name[first]) if parts is not None else -1
            text = parts.names[named] if parts is not None and named >= 0 else None
            begin = records.begin(rows, int(out[first]), int(into[first]), text)
            yield Run(
                place=begin_place(int(_CLASS[self._timeline.kind[first]]), lasting=lasts),
                layout=Layout(tuple(begin if lasts else begin + records.end())),
                rows=rows,
                values=records.values,
                segment=named,
            )


def begin_place(order: int, *, lasting: bool) -> int:
    """Return the place of begins: 1 for sends, 3 for receives and 5 for the rest leave room between."""
    return 1 + order + _LASTING * lasting


def _places(chosen: NDArray[np.bool_]) -> Int32s:
    return np.flatnonzero(chosen).astype(np.int32)


def _combined(keys: list[NDArray[Any]]) -> NDArray[np.integer[Any]]:
    """Return numbers that are equal where all keys are, in the order of the keys."""
    bounds = [int(key.max(initial=0)) + 1 for key in keys]
    combined: NDArray[np.integer[Any]] = np.zeros(keys[0].size, dtype=np.min_scalar_type(-prod(bounds)))
    for key, bound in zip(keys, bounds, strict=True):
        combined *= bound
        combined += key.astype(combined.dtype, copy=False)
    return combined


def _rounded(count: Int32s) -> Int32s:
    """Round up to powers of two, so that there are few groups."""
    if count.max(initial=0) <= 2:  # noqa: PLR2004 - powers of two already
        return count
    powers = np.int64(1) << np.arange(31)
    return np.where(count == 0, 0, powers[np.searchsorted(powers, count)]).astype(np.int32)
