"""Operations of a job's replicas, from their measured steps, and their simulation with given durations.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), section 3. An
operation starts when its dependencies have ended. Operations that communicate with each other move data once all
of them have started. Gaps of the host between operations are not simulated.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pptrace.measured.computations import extract_computations
from pptrace.plugin import Kind, ScheduleError, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.plugin import Action, Replica, Step

Times: TypeAlias = NDArray[np.float64]
"""Nanoseconds, shape (operations, replicas, steps) or (steps,)."""

_CLOCK_ERROR_NS = -10_000_000
"""A transfer that ends this long before its start has a wrong clock, and counts as 0."""


class JobOperation(Struct, frozen=True, kw_only=True):
    """One operation of every replica and step of a pipeline."""

    type: str
    """Type, such as ``forward-compute``. In the ideal step, operations of a type have the same duration."""
    rank: int
    """The rank of the pipeline that runs it."""
    dependencies: tuple[int, ...] = ()
    """Indices of operations that end before it starts."""
    communicates: bool = False
    """Whether the network determines its duration."""
    category: str = ""
    """Name in reports, the same for both ends of a message; by default, the type."""
    action: Action | None = None
    """Action in a schedule table; None without one."""


class Job(Struct, frozen=True, kw_only=True, eq=False):
    """All replicas of a pipeline. Times have the shape (operations, replicas, steps) and any origin per step."""

    operations: tuple[JobOperation, ...]
    """The operations of one replica."""
    rendezvous: tuple[tuple[int, ...], ...]
    """Disjoint groups of operations that transfer data once all operations of the group have started."""
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


class _Timed(NamedTuple):
    operation: JobOperation
    start_ns: int
    end_ns: int


def build_job(replicas: Sequence[Replica]) -> Job:
    """Return a job of the steps in which each rank of all replicas ran the same operations in the same order.

    The duration of a message begins when both ends are ready. Collectives across replicas end everywhere at once,
    so they align the replicas' clocks. Without such a collective, the replicas' steps start together.

    Raises:
        ScheduleError: there is no such step.
    """
    labels = [step.label for step in replicas[0].steps]
    by_label = [{step.label: _timed_operations(step) for step in replica.steps} for replica in replicas]
    shared = [label for label in labels if all(label in steps for steps in by_label)]
    if not shared:
        raise ScheduleError("no step was recorded of every replica")
    orders = {
        label: [tuple(timed.operation for timed in steps[label]) for steps in by_label] for label in shared
    }  # fmt: skip
    operations = Counter(orders[label][0] for label in shared).most_common(1)[0][0]
    kept = [label for label in shared if all(order == operations for order in orders[label])]
    if not kept:
        raise ScheduleError("there is no step in which all replicas ran the same actions in the same order")
    times = np.array(
        [[[(timed.start_ns, timed.end_ns) for timed in steps[label]] for label in kept] for steps in by_label],
        dtype=np.int64,
    )
    start, end = times.transpose(3, 2, 0, 1)
    across_replicas = [
        index for index, operation in enumerate(operations)
        if operation.action is not None and _is_across_replicas(operation.action.kind)
    ]  # fmt: skip
    offset = _clock_offsets(across_replicas, start, end)
    return Job(
        operations=operations, rendezvous=tuple((index,) for index in across_replicas),
        across_replicas=frozenset(across_replicas),
        workers=np.array([replica.ranks for replica in replicas], dtype=np.int64),
        replicas=tuple(replica.name for replica in replicas), steps=tuple(kept),
        start_ns=start - offset, end_ns=end - offset,
    )  # fmt: skip


def _is_across_replicas(kind: Kind) -> bool:
    return kind.traits.per_stage and kind.traits.stream is Stream.DATA_PARALLEL


def _clock_offsets(
    across_replicas: Sequence[int], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the offset of each replica's clock, of a shape that broadcasts to (replicas, steps)."""
    if not across_replicas:
        first: NDArray[np.int64] = start.min(axis=0)
        return first
    difference = end[across_replicas] - end[across_replicas, :1]
    offset: NDArray[np.int64] = np.median(difference, axis=(0, 2)).astype(np.int64)[:, None]
    return offset


def _timed_operations(step: Step) -> list[_Timed]:
    """Return a step's computations, its messages, and its collectives across replicas, in absolute time."""
    computations = extract_computations(step.timeline)
    messages = list(_messages(computations))
    count = len(computations)
    rank = computations.rank.tolist()
    dependencies: list[tuple[int, ...]] = [
        (index - 1,) if index and rank[index] == rank[index - 1] else () for index in range(count)
    ]
    for index, (_, consumer) in enumerate(messages, count):
        dependencies[consumer] += (index,)
    timed = [
        _Timed(
            JobOperation(
                type=action.kind.word, rank=rank[index], dependencies=dependencies[index], action=action
            ),
            int(computations.end_ns[index] - computations.duration_ns[index]),
            int(computations.end_ns[index]),
        )
        for index, action in enumerate(map(computations.action, range(count)))
    ]  # fmt: skip
    timed += [message for message, _ in messages]
    timed += _collectives(step, computations)
    begins_ns = step.begins_ns
    return [_Timed(operation, start_ns + begins_ns, end_ns + begins_ns) for operation, start_ns, end_ns in timed]


def _messages(computations: Any) -> Iterator[tuple[_Timed, int]]:
    """Yield messages, which start when their producer ends, and the index of their consumer."""
    columns = (computations.kind, computations.stage, computations.microbatch)
    cells = zip(*(column.tolist() for column in columns), strict=True)
    index_of = {cell: index for index, cell in enumerate(cells)}
    transfers = computations.transfers
    for transfer in np.lexsort((transfers.microbatch, transfers.stage, transfers.kind)).tolist():
        action = transfers.action(transfer)
        forward = action.kind is Kind.SEND_F
        kinds = (Kind.F,) if forward else (Kind.B, Kind.I)
        producer = _find(index_of, kinds, action.stage, action.microbatch)
        consumer = _find(index_of, kinds, action.stage + (1 if forward else -1), action.microbatch)
        if producer is not None and consumer is not None:
            operation = JobOperation(
                type=f"messages {'forward' if forward else 'backward'}", rank=int(transfers.source[transfer]),
                dependencies=(producer,), communicates=True, action=action,
            )  # fmt: skip
            start_ns = int(computations.end_ns[producer])
            yield _Timed(operation, start_ns, start_ns + max(int(transfers.duration_ns[transfer]), 0)), consumer


def _find(
    index_of: Mapping[tuple[int, int, int], int], kinds: Sequence[Kind], stage: int, microbatch: int
) -> int | None:
    keys = [(kind, stage, microbatch) for kind in kinds]
    return next((index_of[key] for key in keys if key in index_of), None)


def _collectives(step: Step, computations: Any) -> Iterator[_Timed]:
    """Yield collectives across replicas, each after the last computation of its rank that ended before it."""
    timeline = step.timeline
    ranks = timeline.rank_of_row()
    for row in np.flatnonzero([_is_across_replicas(Kind(kind)) for kind in timeline.kind.tolist()]).tolist():
        rank, start_ns, action = int(ranks[row]), int(timeline.start_ns[row]), timeline.action(row)
        ended = np.flatnonzero((computations.rank == rank) & (computations.end_ns <= start_ns))
        operation = JobOperation(
            type=action.kind.name.lower().replace("_", " "), rank=rank,
            dependencies=tuple(ended[-1:].tolist()), communicates=True, action=action,
        )  # fmt: skip
        yield _Timed(operation, start_ns, int(timeline.end_ns[row]))
