"""Operations of a job's replicas, and their simulation with given durations.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3. An
operation starts when its dependencies have ended. Operations that communicate with each other move data once all
of them have started. Gaps of the host between operations are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pptrace.plugin import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Action

__all__ = ["Job", "JobOperation", "JobSimulation", "Times"]

Times: TypeAlias = NDArray[np.float64]
"""Nanoseconds, shape (operations, replicas, steps) or (steps,)."""

_CLOCK_ERROR_NS = -10_000_000
"""A transfer that seems to end so long before its start has a wrong clock, and counts as 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOperation:
    """One operation of a pipeline's step, which every replica runs in every step."""

    type: str
    """Its type, such as ``forward-compute``. In the ideal step, operations of a type have the same duration."""
    rank: int
    """The rank of the pipeline that runs it."""
    dependencies: tuple[int, ...] = ()
    """Indices of operations that end before it starts."""
    communicates: bool = False
    """Whether the network determines its duration."""
    category: str = ""
    """The name that its costs are reported under, the same for both ends of a message; its type by default."""
    action: Action | None = None
    """Its action in a schedule table; None for an operation that tables do not have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """All replicas of a pipeline. Times have the shape (operations, replicas, steps) and any origin per step."""

    operations: tuple[JobOperation, ...]
    """The operations of one replica."""
    rendezvous: tuple[tuple[int, ...], ...]
    """Indices of operations that move data once all of them have started. No operation is in two."""
    across_replicas: frozenset[int]
    """Operations in a rendezvous that also wait for the same operation of all other replicas."""
    workers: NDArray[np.int64]
    """Global ranks, shape (replicas, ranks)."""
    replicas: tuple[str, ...]
    """Names of the replicas, such as ``dp=3``."""
    steps: tuple[str, ...]
    """Names of the steps."""
    start_ns: NDArray[np.int64]
    """Start of each operation."""
    end_ns: NDArray[np.int64]
    """End of each operation."""

    @property
    def ranks(self) -> int:
        """Ranks of one pipeline."""
        return int(self.workers.shape[1])

    def indices(self, *, rank: int | None = None, category: str | None = None) -> Sequence[int]:
        """Return the indices of the operations of a rank, or of a category."""
        return [
            index
            for index, operation in enumerate(self.operations)
            if rank in {None, operation.rank} and category in {None, operation.category or operation.type}
        ]


class JobSimulation:
    """A job's operations in topological order.

    Raises:
        ScheduleError: the dependencies have a cycle.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        rendezvous = {index: members for members in job.rendezvous for index in members}
        nodes = {index: rendezvous.get(index, (index,)) for index in range(len(job.operations))}
        dependencies: dict[tuple[int, ...], set[tuple[int, ...]]] = {members: set() for members in nodes.values()}
        for index, operation in enumerate(job.operations):
            dependencies[nodes[index]] |= {nodes[dependency] for dependency in operation.dependencies}
        try:
            self._order = tuple(TopologicalSorter(dependencies).static_order())
        except CycleError as error:
            raise ScheduleError("operations wait for each other in a circle") from error

    def measured_ns(self) -> Times:
        """Return the duration of each operation; of a rendezvous, from the start of its last member."""
        job = self.job
        duration = (job.end_ns - job.start_ns).astype(np.float64)
        for members in job.rendezvous:
            ready = job.start_ns[list(members)].max(axis=0)
            for index in members:
                begin = ready.max(axis=0) if index in job.across_replicas else ready
                duration[index] = job.end_ns[index] - begin
                duration[index][duration[index] <= _CLOCK_ERROR_NS] = 0
        return duration

    def run(self, duration_ns: Times) -> tuple[Times, Times]:
        """Return starts and ends of operations with these durations; each step starts at 0."""
        job = self.job
        start, end = np.zeros_like(duration_ns), np.zeros_like(duration_ns)
        for members in self._order:
            for index in members:
                for dependency in job.operations[index].dependencies:
                    np.maximum(start[index], end[dependency], out=start[index])
            ready = start[list(members)].max(axis=0)
            for index in members:
                begin = ready.max(axis=0) if index in job.across_replicas else ready
                end[index] = begin + duration_ns[index]
        return start, end

    def steps_ns(self, duration_ns: Times) -> Times:
        """Return the length of each step with these durations, shape (steps,)."""
        lengths: Times = self.run(duration_ns)[1].max(axis=(0, 1))
        return lengths
