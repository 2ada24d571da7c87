"""The critical path: the chain of slices, each released by the one before, that ends the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.model.kinds import COMPUTE, Kind
from pptrace.timeline.kernels import following
from pptrace.timeline.window import window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.model.columns import Int32s
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
    if not len(timeline):
        return CriticalPath(rows=np.zeros(0, dtype=np.int32), by_kind_ns={}, by_stage_ns={})
    last = int(np.argmax(timeline.end_ns))
    found = np.empty(len(timeline), dtype=np.int32)
    length = run(following.follow_causes, (timeline.cause, last), (found,), work=len(timeline))
    rows = found[:length][::-1].copy()
    opened, _ = window(timeline)
    begin, end = np.maximum(timeline.start_ns[rows], opened), timeline.end_ns[rows]
    until = np.append(begin[1:], end[-1])
    ran = np.maximum(np.minimum(end, until) - begin, 0)
    wire = np.minimum(np.maximum(until - np.maximum(end, begin), 0), timeline.lag_ns[rows])
    waited = int((until - begin - ran - wire).sum()) + int(begin[0]) - opened
    kinds = np.zeros(len(Kind), dtype=np.int64)
    np.add.at(kinds, timeline.kind[rows], ran)
    by_kind = {Kind(kind).name: int(time) for kind, time in enumerate(kinds)}
    by_kind |= {"wire": int(wire.sum()), "wait": waited}
    computes = COMPUTE.mask(timeline.kind[rows])
    stages = np.zeros(timeline.placement.stages, dtype=np.int64)
    np.add.at(stages, timeline.stage[rows][computes], ran[computes])
    return CriticalPath(
        rows=rows,
        by_kind_ns=dict(sorted(((k, v) for k, v in by_kind.items() if v), key=lambda item: (-item[1], item[0]))),
        by_stage_ns={stage: int(time) for stage, time in enumerate(stages) if time},
    )
