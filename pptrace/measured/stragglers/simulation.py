"""Simulation of a recorded job from the durations of its operations.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3: an
operation starts once those that it waits for have ended, and one that communicates moves data once all that take
part have started. What the host did between operations is not part of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pptrace.errors import ScheduleError
from pptrace.measured.computations import performed
from pptrace.steps.kinds import GRADIENTS, PER_STAGE, TOWARDS_NEXT, Kind, Stream
from pptrace.timeline.measurement import Job, JobOperation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.measured.computations import Performed
    from pptrace.timeline.measurement import Replica, Step

    _Timed = tuple[JobOperation, int, int]

__all__ = ["JobModel", "Times", "job_of_replicas"]

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


@dataclass(frozen=True, slots=True)
class _Part:
    """One replica's step: its operations in an order of their own, with absolute times."""

    operations: tuple[JobOperation, ...]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def job_of_replicas(replicas: Sequence[Replica]) -> Job:
    """Return a job of the steps in which all replicas ran the same operations, each rank in the same order.

    A message takes what it took once both ends were ready. Clocks of replicas are set by collectives, which end
    everywhere at once; where there are none, replicas are taken to begin together.

    Raises:
        ScheduleError: there is no such step.
    """
    labels = [step.label for step in replicas[0].steps]
    by_label = [{step.label: _part(step) for step in one.steps} for one in replicas]
    shared = [label for label in labels if all(label in parts for parts in by_label)]
    orders = Counter(by_label[0][label].operations for label in shared)
    if not orders:
        raise ScheduleError("no step was recorded of every replica")
    operations = orders.most_common(1)[0][0]
    kept = [label for label in shared if all(parts[label].operations == operations for parts in by_label)]
    if not kept:
        raise ScheduleError("there is no step in which all replicas ran the same actions in the same order")
    times = [
        np.stack([np.stack([getattr(parts[label], name) for label in kept], axis=1) for parts in by_label], axis=1)
        for name in ("start_ns", "end_ns")
    ]
    everywhere = [at for at, one in enumerate(operations) if one.action is not None and _meets(one.action.kind)]
    offset = _offsets(everywhere, *times)
    return Job(
        operations=operations, meetings=tuple((at,) for at in everywhere), everywhere=frozenset(everywhere),
        workers=np.array([one.ranks for one in replicas], dtype=np.int64),
        replicas=tuple(one.name for one in replicas), steps=tuple(kept),
        start_ns=times[0] - offset, end_ns=times[1] - offset,
    )  # fmt: skip


def _meets(kind: Kind) -> bool:
    return kind in PER_STAGE and kind.traits.stream is Stream.DATA_PARALLEL


def _offsets(everywhere: Sequence[int], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what is taken off each replica's clock, shape (replicas, steps)."""
    if not everywhere:
        first: NDArray[np.int64] = start.min(axis=0)
        return first
    late = end[everywhere] - end[everywhere, :1]
    offset: NDArray[np.int64] = np.median(late, axis=(0, 2)).astype(np.int64)[:, None]
    return offset


def _part(step: Step) -> _Part:
    """Return a step's computations, then its messages, then what replicas do together."""
    done = performed(step.timeline)
    rank, begin, until = done.rank.tolist(), (done.end_ns - done.duration_ns).tolist(), done.end_ns.tolist()
    after: list[list[int]] = [[at - 1] if at and rank[at] == rank[at - 1] else [] for at in range(len(done))]
    cells = zip(done.kind.tolist(), done.stage.tolist(), done.microbatch.tolist(), strict=True)
    place: dict[tuple[int, ...], int] = {cell: at for at, cell in enumerate(cells)}
    others: list[_Timed] = []
    for message, takes in _messages(done, place):
        after[takes].append(len(done) + len(others))
        others.append(message)
    operations = [
        JobOperation(sort=one.kind.word, rank=rank[at], after=tuple(after[at]), action=one)
        for at, one in enumerate(map(done.action, range(len(done))))
    ]
    others += _collectives(step, done)
    times = (begin + [start for _, start, _ in others], until + [end for _, _, end in others])
    return _Part(
        (*operations, *(one for one, _, _ in others)),
        *(np.array(column, dtype=np.int64) + step.begins_ns for column in times),
    )


def _messages(done: Performed, place: Mapping[tuple[int, ...], int]) -> Iterator[tuple[_Timed, int]]:
    """Yield messages, each as if it left when it was made, and the computation that takes it."""
    moved = done.transfers
    for at in np.lexsort((moved.microbatch, moved.stage, moved.kind)).tolist():
        action = moved.action(at)
        ahead = action.kind in TOWARDS_NEXT
        kinds = [Kind.F] if ahead else sorted(GRADIENTS)
        makes = _first(place, kinds, action.stage, action.microbatch)
        takes = _first(place, kinds, action.stage + (1 if ahead else -1), action.microbatch)
        if makes is not None and takes is not None:
            message = JobOperation(
                sort=f"messages {'forward' if ahead else 'backward'}", rank=int(moved.source[at]), after=(makes,),
                communicates=True, action=action,
            )  # fmt: skip
            left = int(done.end_ns[makes])
            yield (message, left, left + max(int(moved.took_ns[at]), 0)), takes


def _first(place: Mapping[tuple[int, ...], int], kinds: Sequence[Kind], stage: int, microbatch: int) -> int | None:
    return next((place[kind, stage, microbatch] for kind in kinds if (kind, stage, microbatch) in place), None)


def _collectives(step: Step, done: Performed) -> Iterator[_Timed]:
    """Yield what replicas do together, each behind the last computation of its rank that ended before."""
    timeline = step.timeline
    ranks = timeline.rank_of_row()
    for row in np.flatnonzero([_meets(Kind(kind)) for kind in timeline.kind.tolist()]).tolist():
        rank, begin, action = int(ranks[row]), int(timeline.start_ns[row]), timeline.action(row)
        before = np.flatnonzero((done.rank == rank) & (done.end_ns <= begin))
        one = JobOperation(
            sort=action.kind.word or action.kind.name, rank=rank, after=tuple(before[-1:].tolist()),
            communicates=True, action=action,
        )  # fmt: skip
        yield one, begin, int(timeline.end_ns[row])
