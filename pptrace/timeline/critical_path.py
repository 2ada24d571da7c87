"""The critical path: the chain of slices, each released by the one before, that ends the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.model.action import COMMUNICATION, Kind
from pptrace.model.columns import Int32s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.timeline.timeline import Timeline

__all__ = ["CriticalPath", "critical_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The slices on the path and where its time goes; the parts sum to the step."""

    rows: Int32s
    """Rows of the timeline, first to last."""
    by_kind_ns: Mapping[str, int]
    """Time on the path per kind of action, with ``wire`` for latency and ``wait`` for the rest."""
    by_stage_ns: Mapping[int, int]
    """Compute time on the path per stage."""

    @property
    def slowest_stage(self) -> int:
        """The stage with the most compute time on the path, the lowest on a tie; -1 where there is none."""
        if not self.by_stage_ns:
            return -1
        return min(self.by_stage_ns, key=lambda stage: (-self.by_stage_ns[stage], stage))


def critical_path(timeline: Timeline) -> CriticalPath:
    """Walk back from the slice that ends last (the lowest row on a tie) along the recorded causes."""
    rows: list[int] = []
    by_kind: dict[str, int] = {}
    by_stage: dict[int, int] = {}
    if not len(timeline):
        return CriticalPath(rows=np.zeros(0, dtype=np.int32), by_kind_ns={}, by_stage_ns={})
    row = int(np.argmax(timeline.end_ns))
    until = int(timeline.end_ns[row])
    while row >= 0:
        rows.append(row)
        begin, end = int(timeline.start_ns[row]), int(timeline.end_ns[row])
        kind = Kind(int(timeline.kind[row]))
        ran = max(min(end, until) - begin, 0)
        wire = max(min(until, end + int(timeline.lag_ns[row])) - max(end, begin), 0) if until > end else 0
        _add(by_kind, kind.name, ran)
        _add(by_kind, "wire", wire)
        _add(by_kind, "wait", until - begin - ran - wire)
        if kind not in COMMUNICATION:
            _add(by_stage, int(timeline.stage[row]), ran)
        row, until = int(timeline.cause[row]), begin
    _add(by_kind, "wait", until - int(timeline.start_ns.min()))
    return CriticalPath(
        rows=np.array(rows[::-1], dtype=np.int32),
        by_kind_ns=dict(sorted(by_kind.items(), key=lambda item: (-item[1], item[0]))),
        by_stage_ns=dict(sorted(by_stage.items())),
    )


def _add(totals: dict[Any, int], key: str | int, value: int) -> None:
    if value:
        totals[key] = totals.get(key, 0) + value
