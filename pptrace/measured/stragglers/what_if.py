"""Costs of slow operations, ranks and workers.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025). In the ideal step
every operation takes what those of its type take in the mean, or in the median if it communicates. A slowdown is a
step's length over the ideal one's (equation 1); that of some operations is that of the ideal step in which they
take what they took (2, 4); a worker's is the lesser of its replica's and its rank's. What goes where some
operations take what they ideally do, as a share of all that is lost, is M_W for the slowest workers (5) and M_S
for the last stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.measured.stragglers.simulation import JobModel
from pptrace.steps.kinds import BACKWARD, COMMUNICATION, COMPUTE, RECEIVES, SENDS, Stream
from pptrace.timeline.timeline import Slice, from_slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.measured.stragglers.simulation import Times
    from pptrace.steps.placement import Placement
    from pptrace.timeline.measurement import Job
    from pptrace.timeline.timeline import Timeline

__all__ = [
    "CAUSES",
    "Effect",
    "Removed",
    "Stragglers",
    "Worker",
    "correlation",
    "evened",
    "find_stragglers",
    "ideal_timeline",
    "ideal_times",
]

_SLOWEST_PERCENT = 3
"""Share of the workers that count as the slowest, rounded up."""
_DECIDES = 0.5
"""The share of a loss from which on what removes it is its cause."""
_LENGTHS_CORRELATE = 0.9
"""From how much on forwards and backwards that vary together say that sequences differ in length."""
_NO_LOSS = 1.005
"""A slowdown up to which there is no cause to look for."""

CAUSES = ("none", "workers", "last-stage", "lengths", "mixed")
"""What can be found: no loss, some workers, the last stage, lengths of sequences, or none that makes up half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What some operations cost."""

    slowdown: float
    """The ideal step with the times that these took, over the ideal step; mean over steps."""
    by_step: tuple[float, ...]
    """The same of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What some operations change if they are as they should be, and if only they are as they were."""

    without_ns: float
    """Length of the step with the times that these ideally take."""
    alone_ns: float
    """Length of the ideal step with the times that these took."""
    removed: float
    """What goes, as a share of what the job loses."""
    added: float
    """What comes, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One of the slowest workers."""

    replica: str
    """Its replica."""
    rank: int
    """Its rank in the pipeline."""
    worker: int
    """Its global rank."""
    slowdown: float
    """What it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """A job's stragglers; lengths are means over its steps."""

    cause: str
    """One of :data:`CAUSES`."""
    step_ns: float
    """Length of a step as it was recorded."""
    replayed_ns: float
    """Without what the host did between operations."""
    ideal_ns: float
    """With every operation as long as those of its type."""
    slowdown: float
    """The replayed step over the ideal one."""
    steps: tuple[str, ...]
    """Names of the steps."""
    by_step: tuple[float, ...]
    """The slowdown of each."""
    by_type: Mapping[str, Effect]
    """What each type of operation costs, the most first; the two ends of messages are one."""
    by_replica: Mapping[str, Effect]
    """What each replica costs."""
    by_rank: tuple[Effect, ...]
    """What each rank of the pipeline costs, in all replicas."""
    heat: NDArray[np.float64]
    """Shape (replicas, ranks): what each worker costs."""
    slowest: tuple[Worker, ...]
    """The slowest workers, the slowest first."""
    slowest_workers: Removed
    """What they cost; ``removed`` is M_W."""
    last_stage: Removed
    """What the last rank of the pipeline costs; ``removed`` is M_S."""
    lengths: Removed
    """What it costs that microbatches are not all as much work."""
    correlation: float
    """How far forwards and backwards of microbatches vary together: 1 where sequences differ in length, NaN where
    nothing varies."""


@dataclass(frozen=True, slots=True)
class _Account:
    """A job's times and its ideal ones."""

    model: JobModel
    took: Times
    ideal: Times
    steps_ns: Times
    ideal_ns: Times

    def effect(self, where: NDArray[np.bool_]) -> Effect:
        alone = self.model.steps_ns(np.where(where, self.took, self.ideal))
        return Effect(
            slowdown=float(alone.mean() / self.ideal_ns.mean()), by_step=tuple((alone / self.ideal_ns).tolist())
        )

    def removed(self, where: NDArray[np.bool_], better: Times | None = None) -> Removed:
        """Say what operations change that are as they ideally are, or better."""
        ideal = self.ideal if better is None else better
        without = float(self.model.steps_ns(np.where(where, ideal, self.took)).mean())
        worse = self.took if better is None else np.maximum(self.ideal + self.took - better, 0)
        alone = float(self.model.steps_ns(np.where(where, worse, self.ideal)).mean())
        whole, least = float(self.steps_ns.mean()), float(self.ideal_ns.mean())
        lost = whole - least or 1.0
        return Removed(
            without_ns=without, alone_ns=alone, removed=(whole - without) / lost, added=(alone - least) / lost
        )


def ideal_times(job: Job, took: Times) -> Times:
    """Return what operations would take if all of a type were alike: the mean, or the median of communication."""
    ideal = np.empty_like(took)
    sorts = np.array([one.sort for one in job.operations])
    for sort in dict.fromkeys(sorts.tolist()):
        of_sort = sorts == sort
        communicates = job.operations[int(np.argmax(of_sort))].communicates
        ideal[of_sort] = (np.median if communicates else np.mean)(took[of_sort])
    return ideal


def find_stragglers(job: Job) -> Stragglers:
    """Find what slows a job.

    Raises:
        ScheduleError: its operations wait for each other in a circle.
    """
    model = JobModel(job)
    took = model.measured()
    ideal = ideal_times(job, took)
    account = _Account(model, took, ideal, model.steps_ns(took), model.steps_ns(ideal))
    replicas = {name: account.effect(_within(took, replica=at)) for at, name in enumerate(job.replicas)}
    ranks = tuple(account.effect(_within(took, job.positions(rank=rank))) for rank in range(job.ranks))
    heat = np.minimum.outer(
        np.array([one.slowdown for one in replicas.values()]), np.array([one.slowdown for one in ranks])
    )
    slowest = _slowest(job, heat)
    of_workers = np.zeros(took.shape, dtype=bool)
    for one in slowest:
        of_workers |= _within(took, job.positions(rank=one.rank), replica=job.replicas.index(one.replica))
    workers = account.removed(of_workers)
    last = account.removed(_within(took, job.positions(rank=job.ranks - 1)))
    alike = account.removed(np.ones(took.shape, dtype=bool), evened(job, took))
    together = correlation(job, took)
    slowdown = float(account.steps_ns.mean() / account.ideal_ns.mean())
    return Stragglers(
        cause=_cause(slowdown, workers, last, alike, together), step_ns=float(_recorded_ns(job).mean()),
        replayed_ns=float(account.steps_ns.mean()), ideal_ns=float(account.ideal_ns.mean()), slowdown=slowdown,
        steps=job.steps, by_step=tuple((account.steps_ns / account.ideal_ns).tolist()),
        by_type=_by_type(job, account), by_replica=replicas, by_rank=ranks, heat=heat, slowest=slowest,
        slowest_workers=workers, last_stage=last, lengths=alike, correlation=together,
    )  # fmt: skip


def _cause(slowdown: float, workers: Removed, last: Removed, alike: Removed, together: float) -> str:
    """Return what removes most of the loss, if it removes half of it.

    Sequences' lengths reach the last stage and every worker, so they are looked at first where they show.
    """
    if slowdown <= _NO_LOSS:
        return "none"
    if together >= _LENGTHS_CORRELATE and alike.removed >= _DECIDES:
        return "lengths"
    cause, most = max(("workers", workers.removed), ("last-stage", last.removed), key=lambda one: one[1])
    return cause if most >= _DECIDES else "mixed"


def _by_type(job: Job, account: _Account) -> Mapping[str, Effect]:
    accounts = dict.fromkeys(one.account or one.sort for one in job.operations)
    effects = {name: account.effect(_within(account.took, job.positions(account=name))) for name in accounts}
    return dict(sorted(effects.items(), key=lambda item: -item[1].slowdown))


def _within(took: Times, positions: Sequence[int] | None = None, replica: int | None = None) -> NDArray[np.bool_]:
    """Return which times are of some operations, or of all, and of one replica, or of all."""
    where = np.zeros(took.shape, dtype=bool)
    rows = np.arange(took.shape[0]) if positions is None else np.array(positions, dtype=np.int64)
    where[rows, slice(None) if replica is None else slice(replica, replica + 1)] = True
    return where


def _slowest(job: Job, heat: NDArray[np.float64]) -> tuple[Worker, ...]:
    """Return the slowest workers; of two alike the one with the lesser global rank."""
    count = -(-heat.size * _SLOWEST_PERCENT // 100)
    order = np.lexsort((job.workers.ravel(), -heat.ravel()))[:count]
    places = [divmod(int(at), job.ranks) for at in order]
    return tuple(
        Worker(
            replica=job.replicas[replica], rank=rank, worker=int(job.workers[replica, rank]),
            slowdown=float(heat[replica, rank]),
        )
        for replica, rank in places
    )  # fmt: skip


def _recorded_ns(job: Job) -> Times:
    """Return how long each step was."""
    length: Times = (job.end_ns.max(axis=(0, 1)) - job.start_ns.min(axis=(0, 1))).astype(np.float64)
    return length


def evened(job: Job, took: Times) -> Times:
    """Return times with every microbatch as much work as the mean one.

    What a microbatch takes in sum, forward and backward on all ranks, is taken for its length: a sequence is as
    long on every rank, while a slow worker is one of them.
    """
    rows: dict[int, list[int]] = {}
    for at, one in enumerate(job.operations):
        if one.action is not None and one.action.kind in COMPUTE and one.action.microbatch >= 0:
            rows.setdefault(one.action.microbatch, []).append(at)
    even = took.copy()
    if rows:
        work = np.stack([took[positions].sum(axis=0) for positions in rows.values()])
        length = np.maximum(work, 1) / max(float(work.mean()), 1)
        for positions, own in zip(rows.values(), length, strict=True):
            even[positions] = took[positions] / own
    return even


def correlation(job: Job, took: Times) -> float:
    """Return the correlation of microbatches' forwards with their backwards; NaN where nothing varies.

    Both take longer for a long sequence, so it is near 1 where lengths differ; a slow machine makes no difference
    between a worker's own microbatches, and jitter none that forward and backward share.
    """
    sums: dict[tuple[bool, int, int], Times] = {}
    for at, one in enumerate(job.operations):
        if one.action is not None and one.action.kind in COMPUTE and one.action.microbatch >= 0:
            key = one.action.kind in BACKWARD, one.action.stage, one.action.microbatch
            sums[key] = sums.get(key, np.zeros(took.shape[1:])) + took[at]
    forward, backward = [], []
    for stage in dict.fromkeys(stage for _, stage, _ in sums):
        both = [[sums.get((late, at, which)) for late in (False, True)]
                for goes, at, which in sums if at == stage and not goes]  # fmt: skip
        pairs = [pair for pair in both if pair[1] is not None]
        if pairs:
            # Against each worker's own mean in the step: slow workers and slow steps are no long sequences.
            times = np.array(pairs)
            times = times / np.maximum(times.mean(axis=0, keepdims=True), 1)
            forward.append(times[:, 0].ravel())
            backward.append(times[:, 1].ravel())
    if not forward:
        return float("nan")
    values = np.concatenate(forward), np.concatenate(backward)
    if min(float(value.std()) for value in values) == 0:
        return float("nan")
    return float(np.corrcoef(*values)[0, 1])


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
