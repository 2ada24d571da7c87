"""The replicas of a measured pipeline as a job: computations, messages between ranks, collectives of replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.times import performed
from pptrace.errors import ScheduleError
from pptrace.model.kinds import GRADIENTS, PER_STAGE, TOWARDS_NEXT, Kind, Stream
from pptrace.timeline.job import Job, JobOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.model.action import Action
    from pptrace.timeline.measurement import Replica, Step

__all__ = ["job_of_replicas"]


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
    done = performed(step.timeline)
    place = {tuple(cell): at for at, cell in enumerate(zip(done.kind.tolist(), done.stage.tolist(),
             done.microbatch.tolist(), strict=True))}  # fmt: skip
    actions = [done.action(at) for at in range(len(done))]
    after: list[list[int]] = [
        [at - 1] if at and done.rank[at] == done.rank[at - 1] else [] for at in range(len(done))
    ]
    operations = [
        JobOperation(sort=one.kind.word, rank=int(done.rank[at]), action=one) for at, one in enumerate(actions)
    ]
    start, end = (done.end_ns - done.duration_ns).tolist(), done.end_ns.tolist()
    moved = done.transfers
    order = np.lexsort((moved.microbatch, moved.stage, moved.kind))
    for at in order.tolist():
        action = moved.action(at)
        ahead = action.kind in TOWARDS_NEXT
        kinds = [Kind.F] if ahead else sorted(GRADIENTS)
        target = action.stage + (1 if ahead else -1)
        makes = _first(place, kinds, action.stage, action.microbatch)
        takes = _first(place, kinds, target, action.microbatch)
        if makes is None or takes is None:
            continue
        after[takes].append(len(operations))
        sort = f"messages {'forward' if ahead else 'backward'}"
        operations.append(
            JobOperation(sort=sort, rank=int(moved.source[at]), after=(makes,), communicates=True, action=action)
        )
        start.append(end[makes])
        end.append(end[makes] + max(int(moved.took_ns[at]), 0))
    operations = [
        replace(one, after=tuple(after[at])) if at < len(after) else one for at, one in enumerate(operations)
    ]
    for rank, action, begin, until in _collectives(step):
        before = np.flatnonzero((done.rank == rank) & (done.end_ns <= begin))
        waits = (int(before[-1]),) if before.size else ()
        operations.append(
            JobOperation(sort=action.kind.word or action.kind.name, rank=rank, after=waits, communicates=True,
                         action=action)
        )  # fmt: skip
        start.append(begin)
        end.append(until)
    times = [np.array(column, dtype=np.int64) + step.begins_ns for column in (start, end)]
    return _Part(tuple(operations), *times)


def _first(place: dict[tuple[int, ...], int], kinds: Sequence[Kind], stage: int, microbatch: int) -> int | None:
    return next((place[kind, stage, microbatch] for kind in kinds if (kind, stage, microbatch) in place), None)


def _collectives(step: Step) -> list[tuple[int, Action, int, int]]:
    """Return rank, action, start and end of what replicas do together."""
    timeline = step.timeline
    ranks = timeline.rank_of_row()
    rows = [row for row in range(len(timeline)) if _meets(Kind(int(timeline.kind[row])))]
    return [
        (int(ranks[row]), timeline.action(row), int(timeline.start_ns[row]), int(timeline.end_ns[row]))
        for row in rows
    ]
