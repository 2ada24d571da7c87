"""The step that a job would take if operations of one type were alike, as a timeline of one replica."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.stragglers.simulation import JobModel
from pptrace.analysis.stragglers.what_if import ideal_times
from pptrace.model.kinds import COMMUNICATION, RECEIVES, SENDS, Stream
from pptrace.timeline.build import from_slices
from pptrace.timeline.timeline import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.model.placement import Placement
    from pptrace.timeline.job import Job
    from pptrace.timeline.timeline import Timeline

__all__ = ["ideal_timeline"]


def ideal_timeline(job: Job, placement: Placement) -> Timeline:
    """Return the ideal step, which is the same in every replica and step; a message is on its sender's stream.

    Operations that no table has, such as an optimizer's, are times without a slice.

    Args:
        job: the replicas.
        placement: where the stages of one are.
    """
    model = JobModel(job)
    ideal = ideal_times(job, model.measured())[:, :1, :1]
    first = JobModel(replace(job, start_ns=job.start_ns[:, :1, :1], end_ns=job.end_ns[:, :1, :1]))
    _, end = first.run(ideal)
    until = np.rint(end[:, 0, 0]).astype(np.int64)
    begin = np.rint(end[:, 0, 0] - ideal[:, 0, 0]).astype(np.int64)
    return from_slices(_slices(job, begin.tolist(), until.tolist()), placement)


def _slices(job: Job, begin: list[int], until: list[int]) -> Iterator[Slice]:
    free: dict[tuple[int, Stream, int], int] = {}
    for at in sorted(range(len(begin)), key=lambda one: (begin[one], until[one])):
        one = job.operations[at]
        action = one.action
        if action is None or action.kind in RECEIVES:
            continue
        lane = -1
        stream = Stream.SEND if action.kind in SENDS else action.kind.traits.stream
        if action.kind in COMMUNICATION:
            lane = (one.rank + (1 if action.kind.name.endswith("_F") else -1)) % job.ranks
        key = one.rank, stream, lane
        # With two ranks both ways of messages go to one peer, whose stream takes one at a time.
        start = max(begin[at], free.get(key, 0))
        free[key] = max(until[at], start)
        yield Slice(rank=one.rank, stream=stream, action=action, start_ns=start, end_ns=free[key], peer=lane)
