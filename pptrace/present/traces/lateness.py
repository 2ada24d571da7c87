"""How late the second step is, action by action: slices and counters for a trace of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.export.perfetto.columns import PlainColumn
from pptrace.export.perfetto.layout import COUNTER, Layout, Run, packet
from pptrace.export.perfetto.names import DIFFERENCE_CATEGORY
from pptrace.export.perfetto.records import Records
from pptrace.export.perfetto.slices import begin_place
from pptrace.export.perfetto.wire import Cell, cell_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.model.columns import Int32s, Int64s

__all__ = ["Lateness", "counter_run", "difference_runs", "lateness"]

_TIMESTAMP, _TRACK_UUID, _DOUBLE_COUNTER_VALUE = 8, 11, 44
"""Fields of TracePacket and TrackEvent, in perfetto/trace/track_event/track_event.proto."""
_VALUE_SIZE = 10
"""A tag of two bytes and a double."""
_BARELY_NS = 500
"""What is shown as 0.000 ms is no difference."""
_BEHIND_THE_REST, _BEHIND_SLICES = 6, 1 << 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One value per matched computation, rank by rank in the second step's time; both steps start at 0."""

    rank: Int32s
    """The second step's rank."""
    start_ns: Int64s
    """When it starts in the second step."""
    end_ns: Int64s
    """When it ends there."""
    late_ns: Int64s
    """How much later it ends there than in the first; negative for earlier."""
    row: Int64s
    """Its position among the second step's computations."""

    def __len__(self) -> int:
        return int(self.rank.size)


def lateness(findings: StepDiff) -> Lateness:
    """Return how late each matched computation ends."""
    first, second = findings.steps
    i, j = findings.matched.first, findings.matched.second
    order = np.lexsort((second.start_ns[j], second.rank[j]))
    i, j = i[order], j[order]
    begins = [int(step.start_ns.min()) if len(step) else 0 for step in findings.steps]
    end = second.end_ns[j] - begins[1]
    return Lateness(
        rank=second.rank[j], start_ns=second.start_ns[j] - begins[1], end_ns=end,
        late_ns=end - (first.end_ns[i] - begins[0]), row=j,
    )  # fmt: skip


def difference_runs(
    findings: StepDiff, late: Lateness, shift_ns: int, tracks: Mapping[int, int], first_name: int
) -> tuple[list[str], list[Run]]:
    """Return the names of the slices that say how much later or earlier an action ends, and their runs.

    Args:
        findings: the diff.
        late: its lateness.
        shift_ns: when the steps start in the trace.
        tracks: the track of each rank's slices.
        first_name: the number of the first name.
    """
    chosen = (np.abs(late.late_ns) >= _BARELY_NS) & (late.end_ns > late.start_ns)
    micros, name = np.unique((late.late_ns[chosen] + 500) // 1000, return_inverse=True)
    names = [f"{value / 1000:+,.3f} ms" for value in micros.tolist()]
    step, rows = findings.steps[1], late.row[chosen]
    rank = late.rank[chosen]
    columns: dict[str, NDArray[np.integer[Any]]] = {
        "start": late.start_ns[chosen] + shift_ns,
        "end": late.end_ns[chosen] + shift_ns,
        "track": _numbers(rank, tracks),
        "name": name.astype(np.int64) + first_name,
        "category": np.full(rank.size, DIFFERENCE_CATEGORY, dtype=np.int8),
        "kind": step.kind[rows], "rank": rank, "stage": step.stage[rows], "microbatch": step.microbatch[rows],
    }  # fmt: skip
    if not rank.size:
        return [], []
    records = Records({key: PlainColumn(values) for key, values in columns.items()})
    every = np.arange(rank.size, dtype=np.int32)
    return names, [
        Run(place=0, layout=Layout(tuple(records.end())), rows=every, values=records.values),
        Run(
            place=begin_place(_BEHIND_THE_REST, lasting=True),
            layout=Layout(tuple(records.begin(every, leaving=0, ending=0))), rows=every, values=records.values,
        ),
    ]  # fmt: skip


def counter_run(late: Lateness, shift_ns: int, tracks: Mapping[int, int]) -> Run:
    """Return each rank's lateness in milliseconds, 0 at first and then as of the end of each action."""
    ranks = np.unique(late.rank)
    columns = {
        "at": np.concatenate([np.zeros(ranks.size, dtype=np.int64), late.end_ns]) + shift_ns,
        "track": _numbers(np.concatenate([ranks, late.rank]), tracks),
        "value": np.concatenate([np.zeros(ranks.size), late.late_ns / 1e6]).view(np.int64),
    }
    cells = [
        Cell("track", _TRACK_UUID, cell_size(1, int(columns["track"].max(initial=0)))),
        Cell("value", _DOUBLE_COUNTER_VALUE, _VALUE_SIZE, fixed=True),
    ]
    when = Cell("at", _TIMESTAMP, cell_size(1, int(columns["at"].max(initial=0))))

    def values(_layout: Layout, rows: Int32s) -> dict[str, Int64s]:
        return {name: column[rows] for name, column in columns.items()}

    return Run(
        place=_BEHIND_SLICES, layout=Layout(tuple(packet(COUNTER, when, cells))),
        rows=np.arange(columns["at"].size, dtype=np.int32), values=values,
    )  # fmt: skip


def _numbers(ranks: Int32s, tracks: Mapping[int, int]) -> Int64s:
    known, place = np.unique(ranks, return_inverse=True)
    return np.array([tracks[int(rank)] for rank in known], dtype=np.int64)[place]
