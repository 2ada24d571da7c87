"""A job from the measured timelines of its replicas."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.plugin import Kind, ScheduleError, Stream, extract_computations
from pptrace_stragglers.simulation import Job, JobOperation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import Computations, Replica, Step

__all__ = ["build_job"]


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
    times = np.array([[_start_and_end(steps[label]) for label in kept] for steps in by_label])
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


def _start_and_end(operations: Sequence[_Timed]) -> NDArray[np.int64]:
    """Return the times of operations, shape (operations, 2)."""
    return np.array([(timed.start_ns, timed.end_ns) for timed in operations], dtype=np.int64)


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
    return [_Timed(each.operation, each.start_ns + step.begins_ns, each.end_ns + step.begins_ns) for each in timed]


def _messages(computations: Computations) -> Iterator[tuple[_Timed, int]]:
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


def _collectives(step: Step, computations: Computations) -> Iterator[_Timed]:
    """Yield collectives across replicas, each after the last computation of its rank that ended before it."""
    timeline = step.timeline
    ranks = timeline.rank_of_row()
    for row in np.flatnonzero([_is_across_replicas(Kind(kind)) for kind in timeline.kind.tolist()]).tolist():
        rank, start_ns, action = int(ranks[row]), int(timeline.start_ns[row]), timeline.action(row)
        ended = np.flatnonzero((computations.rank == rank) & (computations.end_ns <= start_ns))
        operation = JobOperation(
            type=action.kind.word or action.kind.name, rank=rank, dependencies=tuple(ended[-1:].tolist()),
            communicates=True, action=action,
        )  # fmt: skip
        yield _Timed(operation, start_ns, int(timeline.end_ns[row]))
