"""Simulate a job's step with other times: all replicas and steps at once, by what each operation waits for.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3: an
operation starts once those that it waits for have ended, and one that communicates moves data once all that take
part have started. What the host did between operations is not part of it.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pptrace.errors import ScheduleError

if TYPE_CHECKING:
    from pptrace.timeline.job import Job

__all__ = ["JobModel", "Times"]

Times: TypeAlias = NDArray[np.float64]
"""Shape (operations, replicas, steps), or (steps,), in nanoseconds."""

_CONTRADICTED_NS = -10_000_000
"""Data that seem to have come so long before they were asked for say that a clock is wrong: they took no time."""


class JobModel:
    """A job's operations in an order in which they can run.

    Raises:
        ScheduleError: operations wait for each other in a circle.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        meeting = {at: members for members in job.meetings for at in members}
        nodes = {at: meeting.get(at, (at,)) for at in range(len(job.operations))}
        waits: dict[tuple[int, ...], set[tuple[int, ...]]] = {members: set() for members in nodes.values()}
        for at, one in enumerate(job.operations):
            waits[nodes[at]] |= {nodes[before] for before in one.after}
        try:
            self._order = tuple(TopologicalSorter(waits).static_order())
        except CycleError as error:
            raise ScheduleError("operations wait for each other in a circle") from error

    def measured(self) -> Times:
        """Return what each operation took: where several meet, from when the last of them started."""
        job = self.job
        took = (job.end_ns - job.start_ns).astype(np.float64)
        for members in job.meetings:
            ready = job.start_ns[list(members)].max(axis=0)
            for at in members:
                begun = ready.max(axis=0) if at in job.everywhere else ready
                took[at] = job.end_ns[at] - begun
                took[at][took[at] <= _CONTRADICTED_NS] = 0
        return took

    def run(self, took: Times) -> tuple[Times, Times]:
        """Return starts and ends, from 0 on, where operations take these times."""
        job = self.job
        start, end = np.zeros_like(took), np.zeros_like(took)
        for members in self._order:
            for at in members:
                for before in job.operations[at].after:
                    np.maximum(start[at], end[before], out=start[at])
            ready = start[list(members)].max(axis=0)
            for at in members:
                begun = ready.max(axis=0) if at in job.everywhere else ready
                end[at] = begun + took[at]
        return start, end

    def steps_ns(self, took: Times) -> Times:
        """Return how long each step is, shape (steps,), where operations take these times."""
        longest: Times = self.run(took)[1].max(axis=(0, 1))
        return longest
