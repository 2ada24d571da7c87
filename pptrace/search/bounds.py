"""Lower bounds of the step and memory of configurations.

A rank runs its row in order. An action starts after its predecessors in the model: a forward after all forwards of
its microbatch on earlier stages, a backward after all forwards and the backwards of later stages. The step ends
after all successors of an action, down to the backward of the first stage. No step of the table is shorter, even
with messages of zero duration. With these, the bound of a table is exact for 1F1B and its interleaved forms on a
chain of stages. The activation memory follows from the order of the row alone.

Three bounds, from fast to tight, each at most the next: the mean work of the ranks, for any table; the outline
of a table, from a few of its actions; and the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Validation
from pptrace.run.costs import in_parts, part_times
from pptrace.steps.kinds import COMPUTE, TABLE, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.config.schema import Experiment
    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a simulated step."""

    step_ns: int
    """Step time."""
    peak_bytes: int
    """Memory of the fullest rank."""
    fits: bool = True
    """Whether the bound of each rank is within its known capacity."""


def work_bound(workload: Workload, ranks: int, microbatches: int, *, has_pairs: bool = False) -> Bound:
    """Return lower bounds for any table: means over the ranks.

    The total computation is assumed not to depend on the number of stages.

    Args:
        workload: costs of one stage per rank, for schedules without overlapped pairs.
        ranks: number of pipeline ranks.
        microbatches: microbatches of the step.
        has_pairs: whether schedules have overlapped pairs, which can hide all collectives.
    """
    static_bytes = int(workload.static_bytes.sum()) + ranks * workload.reserved_bytes
    return Bound(
        step_ns=_least_work_ns(workload, ranks, microbatches, has_pairs=has_pairs),
        peak_bytes=static_bytes // ranks,
        fits=not workload.capacity_bytes or static_bytes <= int(workload.capacities(ranks).sum()),
    )


def exceeds_memory(workload: Workload, ranks: int, microbatches: int) -> bool:
    """Return whether 1F1B needs more memory than there is, with costs of one stage per rank."""
    in_flight = np.minimum(ranks - np.arange(ranks), microbatches)
    peaks = workload.static_bytes + workload.reserved_bytes + in_flight * workload.activation_bytes
    return bool(workload.capacity_bytes and (peaks > workload.capacities(ranks)).any())


def state_bound(workload: Workload, ranks: int) -> Bound:
    """Return lower bounds of all steps with this training state: its memory on the mean rank, and no time."""
    static_bytes = int(workload.static_bytes.sum())
    fits = not workload.capacity_bytes or static_bytes <= int(workload.capacities(ranks).sum())
    return Bound(step_ns=0, peak_bytes=static_bytes // ranks, fits=fits)


def _least_work_ns(workload: Workload, ranks: int, microbatches: int, *, has_pairs: bool) -> int:
    """Return a lower bound on the computation of the busiest rank: the mean over the ranks."""
    times = _durations(workload, has_pairs=has_pairs)
    backward = np.minimum(times[Kind.B], times[Kind.I] + times[Kind.W])
    work_ns = int((times[Kind.F] + backward).sum()) * microbatches
    # Parts of a microbatch are rounded down, by less than a nanosecond each.
    return max(work_ns // ranks - 64 * workload.stages * microbatches, 0)


def bound_of(
    table: Schedule,
    request: ScheduleRequest,
    workload: Workload,
    experiment: Experiment,
    provided: Provided[ScheduleOffer],
) -> Bound:
    """Return the lower bounds of a table.

    Args:
        table: the table.
        request: its request.
        workload: its costs, per stage of the table.
        experiment: their configuration.
        provided: the schedule.
    """
    if table.updates > 1:
        return work_bound(workload, table.ranks, request.microbatches)
    if table.microbatches > request.microbatches:
        parts = table.microbatches // request.microbatches
        workload = in_parts(workload, request.microbatches, parts, part_times(provided, request, workload))
    peaks = _peaks(table, workload, experiment)
    fits = not workload.capacity_bytes or bool((peaks <= workload.capacities(table.ranks)).all())
    return Bound(
        step_ns=_step_ns(table, workload, experiment), peak_bytes=int(peaks.max(initial=0)), fits=fits,
    )  # fmt: skip


def _step_ns(table: Schedule, workload: Workload, experiment: Experiment) -> int:
    times = _durations(workload)
    duration_ns = times[table.kind, table.stage] * table.span
    duration_ns[~COMPUTE.mask(table.kind)] = 0
    place, has_inputs = _places(table), bool((table.kind == Kind.I).any())
    is_chain = table.placement.is_chain
    before_ns, until_end_ns = (
        values[place] for values in _dependency_times(workload, times, has_inputs=has_inputs, is_chain=is_chain)
    )
    row = np.repeat(np.arange(table.ranks), np.diff(table.row_ptr))
    done_ns = duration_ns.cumsum()
    # An offset per rank, larger than any time, lets one pass accumulate all rows.
    offset_ns = row * (int(done_ns[-1] if done_ns.size else 0) + int(before_ns.max(initial=0)) + 1)
    idle_ns = np.maximum.accumulate(before_ns - (done_ns - duration_ns) + offset_ns) - offset_ns
    ends_ns = idle_ns + done_ns
    filled = np.diff(table.row_ptr) > 0
    last_ns = np.zeros(table.ranks, dtype=np.int64)
    last_ns[filled] = ends_ns[table.row_ptr[1:][filled] - 1]
    optimizer_ns = _optimizer_times(table, workload, experiment)
    return int(max(
        (last_ns + optimizer_ns).max(initial=0),
        (ends_ns + until_end_ns).max(initial=0) + int(optimizer_ns.min(initial=0)),
    ))  # fmt: skip


def _places(table: Schedule) -> Int64s:
    """Return the index of each action in the arrays of :func:`_dependency_times`.

    It is 1 + the stage of a forward, 1 + stages + the stage of a backward, and 0 for other actions.
    """
    forward, backward = table.kind == Kind.F, (table.kind == Kind.B) | (table.kind == Kind.I)
    return np.where(forward, 1 + table.stage, np.where(backward, 1 + table.stages + table.stage, 0))


def _dependency_times(
    workload: Workload, times: Int64s, *, has_inputs: bool, is_chain: bool
) -> tuple[Int64s, Int64s]:
    """Return lower bounds on the time before the start and after the end of an action, by :func:`_places`.

    Args:
        workload: costs per stage.
        times: the durations of :func:`_durations`.
        has_inputs: whether the table has backwards for the input gradient alone.
        is_chain: whether each stage feeds the next one and nothing else.
    """
    if not is_chain or workload.segments:
        none = np.zeros(1 + 2 * workload.stages, dtype=np.int64)
        return none, none
    forward = times[Kind.F]
    backward = np.minimum(times[Kind.B], times[Kind.I]) if has_inputs else times[Kind.B]
    first, up = np.append(0, forward.cumsum()), np.append(0, backward.cumsum())
    before = np.concatenate([[0], first[:-1], first[-1] + up[-1] - up[1:]])
    after = np.concatenate([[0], first[-1] - first[1:] + up[-1], up[:-1]])
    return before, after


def _optimizer_times(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    """Return the optimizer time of each rank after its row; 0 where the validation moves it."""
    if experiment.data_parallel.validation is not Validation.BEFORE:
        return np.zeros(table.ranks, dtype=np.int64)
    optimizer_ns: Int64s = table.placement.copies().astype(np.int64) @ workload.optimizer_ns
    return optimizer_ns


def _peaks(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    static: Int64s = table.placement.copies().astype(np.int64) @ workload.static_bytes + workload.reserved_bytes
    if _moves_memory(workload, experiment) or (TABLE.copied[table.kind] | TABLE.recomputed[table.kind]).any():
        return static
    kind, stage = table.kind, table.stage
    change = TABLE.activation[kind] * workload.activation_bytes[stage]
    change = (change + TABLE.weight_activation[kind] * workload.weight_activation_bytes[stage]) * table.span
    taken: NDArray[Any] = change.cumsum()
    for rank in range(table.ranks):
        low, high = int(table.row_ptr[rank]), int(table.row_ptr[rank + 1])
        base = int(taken[low - 1]) if low else 0
        static[rank] += max(int(taken[low:high].max(initial=base)) - base, 0)
    return static


def _moves_memory(workload: Workload, experiment: Experiment) -> bool:
    """Return whether memory depends on more than the order of the actions in a table."""
    choice = experiment.schedule
    return bool(
        choice.offload is not None or choice.recompute is not None or workload.segments or workload.classes
    )


def _durations(workload: Workload, *, has_pairs: bool = False) -> Int64s:
    """Return the least duration of each kind per stage, shape (kinds, stages).

    Durations of segments, and of actions in overlapped pairs, are those of the computation.
    """
    durations: list[Int64s] = []
    for costs in (workload, *workload.classes):
        hides = has_pairs or bool(costs.segments)
        durations.append(
            np.stack([costs.duration_ns(kind) - (costs.collective_ns(kind) if hides else 0) for kind in Kind])
        )
    least: Int64s = np.min(np.stack(durations), axis=0)
    return least


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A few actions of each row of a table, for fast bounds with many costs.

    A span of a row begins with the first action or the first backward, and ends with the last action or the last
    backward that other ranks wait for. Arrays have the shape (spans, ranks, ...) or (ranks, ...). A rank's stages
    have local numbers; ranks with fewer stages have further ones without costs.
    """

    chunks: int
    """Chunks per rank."""
    has_pairs: bool
    """Whether the table has overlapped pairs."""
    kinds: tuple[Kind, ...]
    """Kinds of computations in the table."""
    stages: Int64s
    """Shape (ranks, local stages): the stage, or the number of all stages for a missing one."""
    counts: Int64s
    """Shape (spans, ranks, kinds, local stages): actions of a span."""
    first: Int64s
    """Shape (spans, ranks): the place of the first action of a span, see :func:`_places`."""
    last: Int64s
    """Shape (spans, ranks): the place of the last action of a span."""
    held: Int64s
    """Shape (ranks, 2, local stages): microbatches of which a rank holds activations, and activations of weight
    gradients, at its fullest moment."""
    edges: tuple[tuple[int, int], ...]
    """The stages' graph as (from, to); empty for a chain."""
    moves_memory: bool
    """Whether the table copies or recomputes activations."""

    @classmethod
    def of(cls, table: Schedule) -> Outline:
        """Return the outline of a table."""
        kinds = tuple(kind for kind in Kind if COMPUTE.mask(np.array([kind]))[0] and (table.kind == kind).any())
        copies = table.placement.copies()
        width = int(copies.sum(axis=1).max(initial=1))
        stages = np.full((table.ranks, width), table.stages, dtype=np.int64)
        local = np.zeros((table.ranks, table.stages), dtype=np.int64)
        for rank in range(table.ranks):
            (held,) = np.nonzero(copies[rank])
            stages[rank, : held.size] = held
            local[rank, held] = np.arange(held.size)
        counts = np.zeros((_SPANS, table.ranks, len(kinds), width), dtype=np.int64)
        first, last = (np.zeros((_SPANS, table.ranks), dtype=np.int64) for _ in range(2))
        fullest = np.zeros((table.ranks, 2, width), dtype=np.int64)
        number = np.full(len(Kind), -1)
        number[list(kinds)] = np.arange(len(kinds))
        places = _places(table)
        for rank in range(table.ranks):
            row = slice(int(table.row_ptr[rank]), int(table.row_ptr[rank + 1]))
            kind, stage, span = table.kind[row], local[rank, table.stage[row]], table.span[row]
            fullest[rank] = _fullest(kind, stage, span, width)
            (actions,) = np.nonzero(number[kind] >= 0)
            if not actions.size:
                continue
            cell, place, weight = number[kind] * width + stage, places[row], span.astype(np.float64)
            (backwards,) = np.nonzero((kind == Kind.B) | (kind == Kind.I))
            ends = [(actions[0], actions[-1])]
            ends += [(actions[0], backwards[-1]), (backwards[0], actions[-1]), (backwards[0], backwards[-1])] * (
                backwards.size > 0
            )
            for index, (begin, end) in enumerate(ends):
                inside = actions[(actions >= begin) & (actions <= end)]
                total = np.bincount(cell[inside], weights=weight[inside], minlength=len(kinds) * width)
                counts[index, rank] = total.reshape(len(kinds), width)
                first[index, rank], last[index, rank] = place[begin], place[end]
        return cls(
            chunks=table.stages // table.ranks, has_pairs=table.has_pairs, kinds=kinds, stages=stages,
            counts=counts, first=first, last=last, held=fullest, edges=table.placement.graph,
            moves_memory=bool((TABLE.copied[table.kind] | TABLE.recomputed[table.kind]).any()),
        )  # fmt: skip

    def bound(self, workload: Workload, experiment: Experiment) -> Bound:
        """Return lower bounds of the table with these costs; none is above that of :func:`bound_of`."""
        times = _durations(workload)
        local = _padded(times[list(self.kinds)])[:, self.stages].transpose(1, 0, 2)
        before, after = _dependency_times(
            workload, times, has_inputs=Kind.I in self.kinds, is_chain=not self.edges
        )
        ends_ns = before[self.first] + (self.counts * local).sum(axis=(2, 3))
        optimizer_ns = np.zeros(len(self.stages), dtype=np.int64)
        if experiment.data_parallel.validation is Validation.BEFORE:
            optimizer_ns = _padded(workload.optimizer_ns)[self.stages].sum(axis=1)
        step_ns = max(
            int((ends_ns[_WHOLE_ROWS] + optimizer_ns).max(initial=0)),
            int((ends_ns + after[self.last]).max(initial=0)) + int(optimizer_ns.min(initial=0)),
        )
        peaks = _padded(workload.static_bytes)[self.stages].sum(axis=1) + workload.reserved_bytes
        if not (self.moves_memory or _moves_memory(workload, experiment)):
            kept = np.stack([workload.activation_bytes, workload.weight_activation_bytes])
            peaks += (self.held * _padded(kept)[:, self.stages].transpose(1, 0, 2)).sum(axis=(1, 2))
        fits = not workload.capacity_bytes or bool((peaks <= workload.capacities(len(peaks))).all())
        return Bound(step_ns=step_ns, peak_bytes=int(peaks.max(initial=0)), fits=fits)


_SPANS = 4
_WHOLE_ROWS = 0
"""The span from the first to the last action of a row."""


def _fullest(kind: NDArray[Any], stage: Int64s, span: NDArray[Any], stages: int) -> Int64s:
    """Return the held activations of a row at the action after which it has most, as :attr:`Outline.held`."""
    changes = np.stack([TABLE.activation[kind], TABLE.weight_activation[kind]]).astype(np.int64) * span
    held = (2 * changes[0] + changes[1]).cumsum()
    if not held.size or held.max() <= 0:
        return np.zeros((2, stages), dtype=np.int64)
    end = int(held.argmax()) + 1
    totals = [np.bincount(stage[:end], weights=change[:end], minlength=stages) for change in changes]
    return np.rint(np.stack(totals)).astype(np.int64)


def _padded(values: NDArray[Any]) -> NDArray[Any]:
    """Return values per stage, shape (..., stages), with a further stage without costs."""
    return np.append(values, np.zeros((*values.shape[:-1], 1), dtype=values.dtype), axis=-1)
