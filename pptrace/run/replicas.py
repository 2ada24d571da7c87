"""Replicas of a job that differ in microbatch lengths or device speeds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Reshard, Sharing
from pptrace.config.quantities import format_duration, format_size
from pptrace.run.speeds import kinds_of
from pptrace.sim.cross_rank import find_collectives, with_meetings
from pptrace.sim.simulation import lower_step, run_together, simulate
from pptrace.steps.kinds import COMPUTE, WEIGHT_GRADIENTS, Kind
from pptrace.steps.placement import Placement
from pptrace.timeline.memory import measure_memory, needs_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.run.inputs import StepInputs
    from pptrace.run.speeds import ReplicaCosts
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


_FEWEST_TOGETHER = 8
"""Replicas from which it is faster to run them together."""


class ReplicaDifferences(Struct, frozen=True):
    """Times and memory of replicas that differ; replicas that gather units are simulated together."""

    kind_of: Int64s
    """The kind of each replica, shape (replicas,)."""
    first: Int64s
    """The first replica of each kind, shape (kinds,)."""
    ready_ns: Int64s
    """Time of each stage's complete gradients, shape (kinds, stages)."""
    peak_bytes: Int64s
    """Peak memory of each rank, shape (kinds, ranks)."""
    computation_ns: Int64s
    """Time until the last gradient, and of units the time of their computations, shape (kinds,)."""
    meeting_ns: Int64s
    """Times at which all replicas have issued each collective of units, in the order of issue; else empty."""

    @property
    def slowest(self) -> int:
        """Return the kind with the longest computation."""
        return int(np.argmax(self.computation_ns))

    def inputs_of(self, prepared: StepInputs, differing: ReplicaCosts, kind: int) -> StepInputs:
        """Return the inputs of replicas of one kind, whose collectives wait for all replicas."""
        prepared = _replica(prepared, differing, int(self.first[kind]))
        if self.meeting_ns.size:
            return replace(prepared, workload=replace(prepared.workload, meeting_ns=self.meeting_ns))
        released_ns = np.delete(self.ready_ns, kind, axis=0).max(axis=0)
        return replace(prepared, workload=replace(prepared.workload, released_ns=released_ns))


def changed(prepared: StepInputs, costs: Callable[[Workload], Workload] | None = None, **parts: Any) -> StepInputs:
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


def with_slowest_replica(prepared: StepInputs) -> StepInputs:
    """Return the inputs of the slowest replica, or of ``batch.replica``; its collectives wait for all replicas.

    Reductions are simultaneous in all replicas, and so are gathers of units. So all steps end at the same time.
    Inputs of one replica are simulated again, as their costs may differ. Inputs of equal replicas are unchanged.

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


def inputs_of_replicas(prepared: StepInputs) -> list[StepInputs]:
    """Return the inputs of one replica of each kind alone; the given ones where all replicas are equal."""
    differing = prepared.differing
    if differing is None:
        return [prepared]
    first, _ = kinds_of(differing.classes, differing.speeds)
    return [_replica(prepared, differing, replica) for replica in first.tolist()]


def simulate_replicas(prepared: StepInputs, differing: ReplicaCosts) -> ReplicaDifferences:
    """Simulate one replica of each kind.

    Raises:
        ConfigError: different replicas that synchronise within the step, or have slices of microbatches.
    """
    _check_uncut(prepared, differing)
    if prepared.units > 1:
        return _simulate_units(prepared, differing)
    first, kind_of = kinds_of(differing.classes, differing.speeds)
    zero = np.zeros(prepared.workload.stages, dtype=np.int64)
    ready = np.zeros((len(first), zero.size), dtype=np.int64)
    peaks = np.zeros((len(first), prepared.schedule.ranks), dtype=np.int64)
    by_table: dict[int, list[int]] = {}
    inputs = [
        replace(each, workload=replace(
            each.workload, reduce_ns=zero, optimizer_ns=zero, sync_ns=0, released_ns=zero[:0]
        ))
        for each in inputs_of_replicas(prepared)
    ]  # fmt: skip
    for kind, each in enumerate(inputs):
        by_table.setdefault(id(each.schedule), []).append(kind)
    for kinds in by_table.values():
        ready[kinds], peaks[kinds] = _measure_replicas([inputs[kind] for kind in kinds], differing)
    return ReplicaDifferences(
        kind_of=kind_of, first=first, ready_ns=ready, peak_bytes=peaks, computation_ns=ready.max(axis=1),
        meeting_ns=zero[:0],
    )  # fmt: skip


def _measure_replicas(inputs: Sequence[StepInputs], differing: ReplicaCosts) -> tuple[Int64s, Int64s]:
    """Return the times of complete gradients, and peak memory, of replicas with a common table.

    Replicas run together if their tasks do not depend on times. Otherwise, each is simulated.

    Returns:
        Shapes (replicas, stages) and (replicas, ranks).
    """
    costs, first = [each.workload for each in inputs], inputs[0]
    columns, column_of = _cost_columns(costs, first.schedule.microbatches, has_speeds=differing.speeds is not None)
    together = None
    if len(inputs) >= _FEWEST_TOGETHER and len(columns) <= 4 * len(inputs):
        together = run_together(first.schedule, columns, column_of, first.network, first.policy, first.contention)
    if together is not None and not needs_clock(together[0], costs[0]):
        timeline, ready = together
        # Without lengths, replicas have the same activations.
        measured = costs if differing.classes is not None else costs[:1]
        peaks = np.stack([measure_memory(timeline, each).peak_bytes for each in measured])
        return ready, np.broadcast_to(peaks, (len(inputs), peaks.shape[1]))
    ready = np.zeros((len(inputs), first.schedule.stages), dtype=np.int64)
    peaks = np.zeros((len(inputs), first.schedule.ranks), dtype=np.int64)
    for ready_ns, peak, alone in zip(ready, peaks, inputs, strict=True):
        timeline = simulate(
            alone.schedule, alone.workload, alone.network, alone.policy, contention=alone.contention
        )
        rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(timeline.kind))
        np.maximum.at(ready_ns, timeline.stage[rows], timeline.end_ns[rows])
        peak[:] = measure_memory(timeline, alone.workload).peak_bytes
    return ready, peaks


def _cost_columns(
    costs: Sequence[Workload], microbatches: int, *, has_speeds: bool
) -> tuple[list[Workload], Int32s]:
    """Return the different costs of microbatches in replicas, and their index.

    With ``has_speeds``, replicas also differ in costs without classes.

    Returns:
        Costs without classes; and the costs of each microbatch, and of actions without a microbatch, shape
        (replicas, microbatches + 1).
    """
    columns: dict[int, tuple[int, Workload]] = {}
    column_of = np.zeros((len(costs), microbatches + 1), dtype=np.int32)
    for each, row in zip(costs, column_of, strict=True):
        base = each if has_speeds else costs[0]
        known = [
            columns.setdefault(id(owner), (len(columns), owner))[0]
            if number in {0, *each.microbatch_class.tolist()}
            else -1
            for number, owner in enumerate((base, *each.classes))
        ]
        row[:-1] = np.array(known)[each.microbatch_class] if each.microbatch_class.size else known[0]
        row[-1] = known[0]
    plain = [
        replace(owner, classes=(), microbatch_class=owner.microbatch_class[:0]) for _, owner in columns.values()
    ]
    return plain, column_of


def _simulate_units(prepared: StepInputs, differing: ReplicaCosts) -> ReplicaDifferences:
    """Simulate one replica of each kind together, as ranks of one table whose collectives start together."""
    first, kind_of = kinds_of(differing.classes, differing.speeds)
    kinds, table = len(first), prepared.schedule
    costs = _costs_of_all([each.workload for each in inputs_of_replicas(prepared)], table.microbatches)
    # Replicas do not share links with each other.
    contention = prepared.contention._replace(links=Sharing.NONE)
    lowered = lower_step(
        _table_of_all(table, kinds), costs, prepared.network, prepared.policy, contention=contention,
        overlap_reduction=prepared.resolved.experiment.data_parallel.overlaps,
    )  # fmt: skip
    timeline = replace(lowered, graph=with_meetings(lowered.graph)).run().timeline
    rank, duration_ns = timeline.rank_of_row(), timeline.end_ns - timeline.start_ns
    ready = np.zeros((kinds, table.stages), dtype=np.int64)
    rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(timeline.kind))
    np.maximum.at(ready, (rank[rows], timeline.stage[rows]), timeline.end_ns[rows])
    computation = np.zeros(kinds, dtype=np.int64)
    rows = np.flatnonzero(COMPUTE.mask(timeline.kind))
    np.add.at(computation, rank[rows], duration_ns[rows])
    collectives = find_collectives(timeline.kind, timeline.lane_stream, timeline.lane_ptr)
    return ReplicaDifferences(
        kind_of=kind_of, first=first, ready_ns=ready, computation_ns=computation,
        peak_bytes=measure_memory(timeline, costs).peak_bytes[:, None],
        meeting_ns=timeline.start_ns[collectives].reshape(kinds, -1).max(axis=0),
    )  # fmt: skip


def _table_of_all(table: Schedule, replicas: int) -> Schedule:
    """Return the table of one rank repeated for each replica, with microbatches and a rank for each."""
    count, microbatches = len(table), table.microbatches
    number = np.arange(replicas, dtype=np.int32)
    offset = number * microbatches
    cells = table.cells.taken(np.tile(np.arange(count), replicas))
    microbatch = cells.microbatch + np.where(cells.microbatch >= 0, np.repeat(offset, count), 0)
    placement = Placement(
        ranks=replicas, edges=table.placement.edges,
        stage_rank=np.repeat(number, table.stages).reshape(replicas, -1),
        microbatch_route=np.repeat(number, microbatches),
    )  # fmt: skip
    is_microbatch = np.array([0, 0, 1, 0, 0, 1], dtype=np.int32)
    return replace(
        table, placement=placement, row_ptr=np.append(number, replicas).astype(np.int32) * count,
        waits=tuple(wait + start * is_microbatch for wait in table.waits for start in offset),
        **cells._replace(microbatch=microbatch.astype(np.int32))._asdict(),
    )  # fmt: skip


def _costs_of_all(costs: Sequence[Workload], microbatches: int) -> Workload:
    """Return the costs of replicas, each with as many microbatches, as classes of one workload."""
    classes: list[Workload] = []
    class_of = []
    for each in costs:
        numbers = each.microbatch_class if each.microbatch_class.size else np.zeros(microbatches, dtype=np.int32)
        class_of.append(numbers + len(classes) + 1)
        classes += [replace(each, classes=(), microbatch_class=numbers[:0]), *each.classes]
    return replace(
        costs[0], classes=tuple(classes), microbatch_class=np.concatenate(class_of).astype(np.int32),
        rank_capacity_bytes=np.zeros(0, dtype=np.int64),
    )  # fmt: skip


def _replica(prepared: StepInputs, differing: ReplicaCosts, replica: int) -> StepInputs:
    """Return the inputs of one replica alone: its costs, and where it has fewer microbatches its table."""
    classes = differing.classes
    if classes is not None and (issued := differing.tables.get(int(np.count_nonzero(classes[replica])))):
        request = dataclasses.replace(prepared.request, microbatches=issued.schedule.microbatches)
        is_configured = any(prepared.policy is each.policy for each in differing.tables.values())
        policy = issued.policy if is_configured else prepared.policy
        prepared = replace(prepared, schedule=issued.schedule, request=request, policy=policy)
    return replace(prepared, workload=differing.costs_of(replica, prepared.schedule.placement))


def _note(differences: ReplicaDifferences, shown: int, number: int) -> str:
    ends, peaks = differences.computation_ns, differences.peak_bytes
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


def _check_uncut(prepared: StepInputs, differing: ReplicaCosts) -> None:
    resolved, table = prepared.resolved, prepared.schedule
    configured, has_units = resolved.experiment.data_parallel, prepared.units > 1
    if configured.reduce_each and not has_units:
        raise resolved.error("data_parallel.reduce_each", "replicas that differ reduce once: remove the key")
    if not has_units and (table.kind == Kind.RESHARD).any() and configured.reshard not in {None, Reshard.NEVER}:
        message = "replicas that differ gather weights once: remove the key"
        raise resolved.error("data_parallel.reshard", message)
    if differing.classes is not None and prepared.slices > 1:
        key = "batch.lengths" if resolved.experiment.batch.documents is None else "batch.documents"
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} cuts microbatches into parts: give all replicas the same lengths")
