"""Replicas of a job that differ in microbatch lengths or device speeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Reshard
from pptrace.config.quantities import format_duration, format_size
from pptrace.run.speeds import kinds_of
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import WEIGHT_GRADIENTS, Kind
from pptrace.timeline.memory import measure_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.run.inputs import Prepared
    from pptrace.run.speeds import ReplicaCosts
    from pptrace.steps.columns import Int64s
    from pptrace.steps.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaDifferences:
    """The replicas of a step that differ, each simulated alone."""

    kind_of: Int64s
    """The kind of each replica, shape (replicas,)."""
    first: Int64s
    """The first replica of each kind, shape (kinds,)."""
    ready_ns: Int64s
    """Time of each stage's complete gradients, shape (kinds, stages)."""
    peak_bytes: Int64s
    """Peak memory of each rank, shape (kinds, ranks)."""

    @property
    def slowest(self) -> int:
        """Return the kind with the longest computation."""
        return int(np.argmax(self.ready_ns.max(axis=1)))

    def inputs_of(self, prepared: Prepared, differing: ReplicaCosts, kind: int) -> Prepared:
        """Return the inputs of replicas of one kind, whose reductions wait for all replicas."""
        prepared = _replica(prepared, differing, int(self.first[kind]))
        released_ns = np.delete(self.ready_ns, kind, axis=0).max(axis=0)
        return replace(prepared, workload=replace(prepared.workload, released_ns=released_ns))


def changed(prepared: Prepared, costs: Callable[[Workload], Workload] | None = None, **parts: Any) -> Prepared:
    """Return inputs with other costs or fields, such as ``network``, for all replicas.

    Raises:
        ConfigError: as for :func:`with_slowest_replica`.
    """
    differing = prepared.differing
    if costs is not None and differing is not None:
        parts["differing"] = replace(differing, costs=costs(differing.costs))
    elif costs is not None:
        parts["workload"] = costs(prepared.workload)
    return with_slowest_replica(replace(prepared, **parts))


def with_slowest_replica(prepared: Prepared) -> Prepared:
    """Return the inputs of the slowest replica, or of ``batch.replica``; its reductions wait for all replicas.

    Reductions are simultaneous in all replicas, so all steps end at the same time. Inputs of one replica are
    simulated again, as their costs may differ.

    Args:
        prepared: inputs whose costs have a class for each length; unchanged for equal replicas.

    Raises:
        ConfigError: different replicas that synchronise within the step, or have slices of microbatches.
    """
    differing = prepared.differing
    if differing is None:
        return prepared
    replica = prepared.resolved.experiment.batch.replica
    if differing.kinds == 1:
        return replace(prepared, workload=differing.costs_of(0, prepared.schedule.placement))
    differences = simulate_replicas(prepared, differing)
    shown = differences.slowest if replica is None else int(differences.kind_of[replica])
    number = int(differences.first[shown]) if replica is None else replica
    prepared = differences.inputs_of(prepared, differing, shown)
    notes = (*prepared.workload.notes, _note(differences, shown, number))
    return replace(prepared, workload=replace(prepared.workload, notes=notes))


def inputs_of_replicas(prepared: Prepared) -> list[Prepared]:
    """Return the inputs of one replica of each kind alone; the given ones where all replicas are equal."""
    differing = prepared.differing
    if differing is None:
        return [prepared]
    first, _ = kinds_of(differing.classes, differing.speeds)
    return [_replica(prepared, differing, replica) for replica in first.tolist()]


def simulate_replicas(prepared: Prepared, differing: ReplicaCosts) -> ReplicaDifferences:
    """Simulate one replica of each kind.

    Raises:
        ConfigError: different replicas that synchronise within the step, or have slices of microbatches.
    """
    _check_uncut(prepared, differing)
    first, kind_of = kinds_of(differing.classes, differing.speeds)
    zero = np.zeros(prepared.workload.stages, dtype=np.int64)
    ready = np.zeros((len(first), zero.size), dtype=np.int64)
    peaks = np.zeros((len(first), prepared.schedule.ranks), dtype=np.int64)
    for ready_ns, peak, alone in zip(ready, peaks, inputs_of_replicas(prepared), strict=True):
        costs = replace(alone.workload, reduce_ns=zero, optimizer_ns=zero, sync_ns=0, released_ns=zero[:0])
        timeline = simulate(alone.schedule, costs, alone.network, alone.policy, contention=alone.contention)
        rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(timeline.kind))
        np.maximum.at(ready_ns, timeline.stage[rows], timeline.end_ns[rows])
        peak[:] = measure_memory(timeline, costs).peak_bytes
    return ReplicaDifferences(kind_of=kind_of, first=first, ready_ns=ready, peak_bytes=peaks)


def _replica(prepared: Prepared, differing: ReplicaCosts, replica: int) -> Prepared:
    """Return the inputs of one replica alone: its costs, and where it has fewer microbatches its table."""
    issued = differing.issued_of(replica)
    if issued is not None:
        request = replace(prepared.request, microbatches=issued.schedule.microbatches)
        is_configured = any(prepared.policy is each.policy for each in differing.tables.values())
        policy = issued.policy if is_configured else prepared.policy
        prepared = replace(prepared, schedule=issued.schedule, request=request, policy=policy)
    return replace(prepared, workload=differing.costs_of(replica, prepared.schedule.placement))


def _note(differences: ReplicaDifferences, shown: int, number: int) -> str:
    ends, peaks = differences.ready_ns.max(axis=1), differences.peak_bytes
    longest, least = format_duration(int(ends.max())), format_duration(int(ends.min()))
    says = f"Of {len(differences.kind_of)} replicas this is number {number}, which computes"
    if shown == differences.slowest:
        note = f"{says} longest: {longest}, the fastest {least}."
    else:
        slowest = differences.first[differences.slowest]
        note = f"{says} {format_duration(int(ends[shown]))}; number {slowest} computes longest: {longest}."
    fullest, rank = (int(place) for place in np.unravel_index(peaks.argmax(), peaks.shape))
    if peaks[fullest].max() > peaks[shown].max():
        more = format_size(int(peaks[fullest, rank]))
        note += f" Number {differences.first[fullest]} needs the most memory: {more} on rank {rank}."
    return note


def _check_uncut(prepared: Prepared, differing: ReplicaCosts) -> None:
    resolved, table = prepared.resolved, prepared.schedule
    configured = resolved.experiment.data_parallel
    if configured.reduce_each:
        raise resolved.error("data_parallel.reduce_each", "replicas that differ reduce once: remove the key")
    if (table.kind == Kind.RESHARD).any() and configured.reshard not in {None, Reshard.NEVER}:
        message = "replicas that differ gather weights once: remove the key"
        raise resolved.error("data_parallel.reshard", message)
    if differing.classes is not None and prepared.slices > 1:
        key = "batch.lengths" if resolved.experiment.batch.documents is None else "batch.documents"
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} cuts microbatches into parts: give all replicas the same lengths")
