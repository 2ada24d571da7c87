"""Spans that enclose slices: the step on each host, and the phases of each compute stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.export.kineto.lanes import HOST, process_of
from pptrace.model.kinds import Stream
from pptrace.timeline.phases import phases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.export.kineto.lanes import Lane
    from pptrace.timeline.timeline import Timeline

__all__ = ["spans", "step_of"]


def step_of(timeline: Timeline) -> tuple[int, int]:
    """Return the start and end of the step, which ranks written apart share."""
    if not len(timeline):
        return 0, 0
    start = min(int(timeline.enter_ns.min()), int(timeline.start_ns.min()))
    return start, max(int(timeline.end_ns.max()), int(timeline.enter_ns.max()))


def spans(timeline: Timeline, lanes: Sequence[Lane], step: tuple[int, int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield each span's event up to its ``ts``, its start and its end, in nanoseconds.

    Phases are GPU annotations without a stream, as the profiler writes them: readers would count
    them as kernels otherwise. One that would cut a slice in two is left out.
    """
    for process in sorted({process_of(lane.rank, timeline.ranks) for lane in lanes}):
        yield _event("user_annotation", "ProfilerStep#1", process, HOST), *step
    compute = {lane.rank: lane for lane in lanes if lane.stream == Stream.COMPUTE and lane.peer < 0}
    for phase in phases(timeline):
        lane = compute.get(phase.rank)
        if lane and not any(_within_slice(timeline, lane.rows, t) for t in (phase.start_ns, phase.end_ns)):
            event = _event("gpu_user_annotation", phase.name, process_of(lane.rank, timeline.ranks), lane.thread)
            yield event, phase.start_ns, phase.end_ns


def _within_slice(timeline: Timeline, rows: slice, at_ns: int) -> bool:
    ended = int(np.searchsorted(timeline.end_ns[rows], at_ns, side="right"))
    starts = timeline.start_ns[rows]
    return ended < starts.size and int(starts[ended]) < at_ns


def _event(category: str, name: str, pid: int, tid: int) -> bytes:
    return b'{"ph":"X","cat":"%s","name":"%s","pid":%d,"tid":%d,"ts":' % (
        category.encode(), name.encode(), pid, tid,
    )  # fmt: skip
