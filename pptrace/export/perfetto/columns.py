"""The columns of a timeline as Perfetto's and ``proto/pptrace.proto``'s fields name them; -1 is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pptrace.export.perfetto.names import categories

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.export.perfetto.flows import FlowIds, Flows
    from pptrace.export.perfetto.names import Names
    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Column", "FlowColumn", "PlainColumn", "SparseColumn", "TakenColumn", "event_columns", "field_columns"]


class Column(Protocol):
    """Values of rows, -1 for a row that has none."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        ...

    @property
    def bounds(self) -> tuple[int, int]:
        """A value that no row is below, and one that none is above; both -1 where no row has one."""
        ...


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """Values as they are."""

    values: NDArray[np.integer[Any]]
    """Shape (rows,)."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        return self.values.take(rows)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        return (int(self.values.min()), int(self.values.max())) if self.values.size else (-1, -1)


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """Values that are absent where they are what a reader expects."""

    values: NDArray[np.integer[Any]]
    """Shape (rows,)."""
    expected: NDArray[np.integer[Any]] | int
    """One for all rows, or one per row."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        values = self.values.take(rows)
        expected = self.expected if isinstance(self.expected, int) else self.expected.take(rows)
        return np.where(values == expected, -1, values)

    @property
    def bounds(self) -> tuple[int, int]:
        """-1 and the largest value."""
        return -1, int(self.values.max()) if (self.values != self.expected).any() else -1


@dataclass(frozen=True, slots=True)
class FlowColumn:
    """The n-th flow id of each row."""

    ids: FlowIds
    """All of them."""
    place: int
    """Which, from 0."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' ids."""
        return self.ids.at(rows, self.place)

    @property
    def bounds(self) -> tuple[int, int]:
        """-1 and the largest id."""
        return -1, int(self.ids.ids.max(initial=-1))


@dataclass(frozen=True, slots=True)
class TakenColumn:
    """A column of other rows, some of them, several times."""

    column: Column
    """Their column."""
    rows: Int32s
    """Which of them each row is."""

    def at(self, rows: Int32s) -> NDArray[np.integer[Any]]:
        """Return the rows' values."""
        return self.column.at(self.rows.take(rows))

    @property
    def bounds(self) -> tuple[int, int]:
        """Those of the whole column."""
        return self.column.bounds


def field_columns(timeline: Timeline, flows: Flows, first_row: int) -> dict[str, Column]:
    """Return the columns of the typed fields."""
    t = timeline
    columns: dict[str, Column] = {
        "row": PlainColumn(np.arange(first_row, first_row + len(t), dtype=np.int32)),
        "kind": PlainColumn(t.kind),
        "rank": PlainColumn(t.rank_of_row()),
        "stage": PlainColumn(t.stage),
        "microbatch": PlainColumn(t.microbatch),
        "span": SparseColumn(t.span, 1),
        "peer": PlainColumn(flows.peer),
        "bytes": SparseColumn(t.size_bytes, 0),
        "enter_ns": SparseColumn(t.enter_ns, t.start_ns),
        "lag_ns": SparseColumn(t.lag_ns, 0),
        "uncontended_ns": SparseColumn(t.uncontended_ns, t.end_ns - t.start_ns),
        "collective_ns": SparseColumn(t.collective_ns, 0),
        "cause": PlainColumn(t.cause),
        "pair": PlainColumn(t.pair),
    }
    if t.parts is not None:
        columns["segment_number"] = PlainColumn(t.parts.number)
    return columns


def event_columns(timeline: Timeline, lane_uuid: Int32s, names: Names) -> dict[str, Column]:
    """Return the columns of Perfetto's own fields."""
    columns: dict[str, Column] = {
        "start": PlainColumn(timeline.start_ns),
        "end": PlainColumn(timeline.end_ns),
        "track": PlainColumn(np.repeat(lane_uuid, np.diff(timeline.lane_ptr))),
        "name": PlainColumn(names.name),
        "category": PlainColumn(categories(timeline)),
    }
    if names.microbatch is not None:
        columns["correlation"] = PlainColumn(names.microbatch)
    return columns
