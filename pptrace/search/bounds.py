"""Lower bounds of the step and memory of configurations.

A rank runs its row in order. An action starts after its predecessors in the model: a forward after all forwards of
its microbatch on earlier stages, a backward after all forwards and the backwards of later stages. On a graph of
stages, earlier and later stages are those of the longest path. The step ends after all successors of an action,
down to the backward of the first stage. No step of the table is shorter, even with messages of zero duration. With
these, the bound of a table is exact for 1F1B and its interleaved forms on a chain of stages. The activation memory
follows from the order of the row alone.

An action outside overlapped pairs takes its whole duration: its segments are sequential, and the next action of
the row waits for its result. Overlapped pairs have two bounds. Let ``c`` be the end of the last computation of a
row so far, and ``s`` the end of the last collective of a communication stream.

* Computations keep the order of the row. The first segments of a pair start after ``c``. So a pair moves ``c`` by
  at least its computations, and by at least the longest chain of dependent segments that ends in a computation of
  one of its members. In a whole table, the order of all segments of a pair is known. The pair then moves ``c`` by
  at least the time of this order, from idle streams to the last computation.
* Collectives of a stream keep the order of the row. So a pair moves ``s`` by at least its collectives on the
  stream. After a single action with such collectives, ``max(c, s)`` is the end of this action, and the following
  single actions take their whole duration. After a pair, ``s`` can be later than ``c``. The next single action
  then moves ``s`` by its collectives alone.

The bound of a row is the larger one of its ``c`` and of ``s`` of each stream.

Memory between two pairs of a row has a bound, too. The next pair starts after all computations of the row so far.
So all earlier forwards have allocated what their computations need, and no later backward has freed anything.

Three bounds, from fast to tight, each at most the next: the mean work of the ranks, for any table; the outline
of a table, from a few of its actions; and the whole table.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Validation
from pptrace.memo import memoized
from pptrace.run.costs import in_parts, part_times
from pptrace.sim.overlapped_pairs import least_pair_ns
from pptrace.steps.actions import group_starts
from pptrace.steps.kinds import COMPUTE, GATHERS, KINDS, PASSES, TABLE, Kind, KindSet, Stream
from pptrace.steps.segments import overlapped_ns, results_of, single

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pptrace.config.schema import Experiment
    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload


_COLLECTIVES = KindSet(kind for kind in Kind if KINDS[kind].stream is Stream.DATA_PARALLEL)


class Bound(Struct, frozen=True, kw_only=True):
    """Lower bounds of a simulated step."""

    step_ns: int
    """Step time."""
    peak_bytes: int
    """Memory of the fullest rank."""
    fits: bool = True
    """Whether the bound of each rank is within its known capacity."""


def least(bounds: Sequence[Bound]) -> Bound:
    """Return bounds that hold wherever one of several does."""
    return Bound(
        step_ns=min(bound.step_ns for bound in bounds),
        peak_bytes=min(bound.peak_bytes for bound in bounds),
        fits=any(bound.fits for bound in bounds),
    )


def work_bound(
    workload: Workload, ranks: int, microbatches: int, *, has_pairs: bool = False, encoder_ranks: int = 0
) -> Bound:
    """Return lower bounds for any table: those of ranks with encoders alone, and means over the other ranks.

    The total computation is assumed not to depend on the number of stages.

    Args:
        workload: costs of one stage per rank, for schedules without overlapped pairs.
        ranks: number of pipeline ranks.
        microbatches: microbatches of the step.
        has_pairs: whether schedules have overlapped pairs, which can hide all collectives.
        encoder_ranks: first ranks that have their stage alone, in any table.
    """
    busiest_ns = _busiest_ns(workload, ranks, microbatches, has_pairs=has_pairs, encoder_ranks=encoder_ranks)
    state = state_bound(workload, ranks, encoder_ranks, workload.reserved_bytes)
    return replace(state, step_ns=busiest_ns)


def exceeds_device_memory(workload: Workload, ranks: int, microbatches: int) -> bool:
    """Return whether 1F1B needs more memory than there is, with costs of one stage per rank."""
    in_flight = np.minimum(ranks - np.arange(ranks), microbatches)
    peaks = workload.static_bytes + workload.reserved_bytes + in_flight * workload.activation_bytes
    return bool(workload.capacity_bytes and (peaks > workload.capacities(ranks)).any())


def state_bound(workload: Workload, ranks: int, encoder_ranks: int = 0, reserved_bytes: int = 0) -> Bound:
    """Return lower bounds of all steps with this training state: its memory as in :func:`work_bound`, no time."""
    state_bytes, rooms = workload.state_bytes, workload.capacities(ranks) - reserved_bytes
    first_fit = bool((state_bytes[:encoder_ranks] <= rooms[:encoder_ranks]).all())
    others_fit = int(state_bytes[encoder_ranks:].sum()) <= int(rooms[encoder_ranks:].sum())
    return Bound(
        step_ns=0, peak_bytes=_busiest(state_bytes, ranks, encoder_ranks) + reserved_bytes,
        fits=not workload.capacity_bytes or (first_fit and others_fit),
    )  # fmt: skip


def _busiest(values: Int64s, ranks: int, encoder_ranks: int, times: int = 1) -> int:
    """Return a lower bound on the largest value of a rank: that of ranks with encoders, or the mean of others."""
    mean = int(values[encoder_ranks:].sum()) * times // (ranks - encoder_ranks)
    return max(mean, int(values[:encoder_ranks].max(initial=0)) * times)


def _busiest_ns(workload: Workload, ranks: int, microbatches: int, *, has_pairs: bool, encoder_ranks: int) -> int:
    """Return a lower bound on the work of the busiest rank."""
    times = Times.of(workload, has_pairs=has_pairs)
    works = [times.in_pairs, *times.streams] if has_pairs else [times.alone]
    # Parts of a microbatch are rounded down, by less than a nanosecond each.
    return max(
        _busiest(
            work[Kind.F] + np.minimum(work[Kind.B], work[Kind.I] + work[Kind.W]), ranks, encoder_ranks,
            microbatches,
        ) - 64 * workload.stages * microbatches
        for work in (*works, np.zeros_like(times.alone))
    )  # fmt: skip


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


def sharded_step_ns(table: Schedule, workload: Workload) -> int:
    """Return a lower bound of the step of one rank with sharded weights, without its optimizer.

    Computations keep the order of the row, and so do gathers and reductions, which share a stream. The next
    computation of a gathered stage, and all later ones, follow its gather. A reduction follows the computations
    before it. With overlapped pairs, the bound is the time of gathers and reductions alone.

    Args:
        table: a row with gathers, as :func:`~pptrace.run.preparation.prepare` returns it.
        workload: its costs, per stage of the table.
    """
    collectives = _COLLECTIVES.mask(table.kind)
    collective_ns = np.stack([workload.duration_ns(kind) for kind in Kind])
    busy_ns = np.where(collectives, collective_ns[table.kind, table.stage], 0)
    if table.has_pairs:
        return int(busy_ns.sum())
    times, computes = Times.of(workload, has_pairs=False), COMPUTE.mask(table.kind)
    work_ns = np.where(computes, times.alone[table.kind, table.stage] * table.span, 0)
    done_ns, sent_ns = work_ns.cumsum(), busy_ns.cumsum()
    if not done_ns.size:
        return 0
    step_ns, worked_ns, total_sent_ns = max(done_ns[-1], sent_ns[-1]), done_ns[-1], sent_ns[-1]
    following_ns = [0] * table.stages  # computation from the next action of each stage on
    rows = zip(
        table.kind.tolist(), table.stage.tolist(), done_ns.tolist(), work_ns.tolist(), sent_ns.tolist(),
        busy_ns.tolist(), strict=True,
    )  # fmt: skip
    for kind, stage, row_done_ns, row_work_ns, row_sent_ns, row_busy_ns in reversed([*rows]):
        if row_work_ns:
            following_ns[stage] = worked_ns - row_done_ns + row_work_ns
        elif kind in GATHERS:
            step_ns = max(step_ns, row_sent_ns + following_ns[stage])
        elif row_busy_ns:
            step_ns = max(step_ns, row_done_ns + total_sent_ns - row_sent_ns + row_busy_ns)
    return int(step_ns)


def _step_ns(table: Schedule, workload: Workload, experiment: Experiment) -> int:
    times = Times.of(workload, has_pairs=table.has_pairs)
    computes = COMPUTE.mask(table.kind)
    place, has_inputs = _places(table), bool((table.kind == Kind.I).any())
    edges = None if table.placement.is_chain else table.placement.edges.tolist()
    before_ns, until_end_ns = (values[place] for values in times.dependencies(has_inputs=has_inputs, edges=edges))

    def of_actions(values: Int64s) -> Int64s:
        return np.where(computes, values[table.kind, table.stage] * table.span, 0)

    is_paired = (table.pair >= 0) & bool(workload.segments)
    starts = group_starts(np.where(is_paired, table.pair, -1), table.row_ptr)
    if not starts.size:
        return int(_optimizer_times(table, workload, experiment).max(initial=0))
    row = (np.searchsorted(table.row_ptr, starts, side="right") - 1).astype(np.int64)
    is_single, group = ~is_paired[starts], np.cumsum(np.isin(np.arange(table.kind.size), starts)) - 1
    alone_ns = of_actions(times.alone)
    chains_ns = np.where(is_paired, of_actions(times.chains), 0)
    computed_ns = np.where(is_paired, of_actions(times.in_pairs), alone_ns)
    row_ns = np.maximum(np.add.reduceat(computed_ns, starts), np.maximum.reduceat(chains_ns, starts))
    row_ns = np.maximum(row_ns, _least_pairs_ns(table, workload, experiment, starts))
    first_ns = np.minimum.reduceat(before_ns, starts)

    def earliest_start(member_ns: Int64s, duration_ns: Int64s) -> Int64s:
        """Return the earliest start of a pair whose end respects the earliest start of each member."""
        end_ns = np.maximum.reduceat(before_ns + member_ns, starts)
        earliest_ns: Int64s = np.maximum(first_ns, end_ns - duration_ns)
        return earliest_ns

    ends_ns = _row_ends(row_ns, earliest_start(np.maximum(computed_ns, chains_ns), row_ns), row)
    start_ns = np.maximum(first_ns, np.where(np.diff(row, prepend=-1) == 0, np.append(0, ends_ns[:-1]), 0))
    pair_results_ns = np.maximum(start_ns[group], before_ns) + of_actions(times.results)
    done_ns = [(ends_ns, np.where(is_paired, pair_results_ns, ends_ns[group]), np.ones_like(is_single))]
    for stream in times.streams if is_paired.any() else ():
        of_stream = of_actions(stream)
        busy_ns = np.add.reduceat(of_stream, starts)
        # A single action waits for the collectives before it if the last of them are those of a single action.
        last = np.maximum.accumulate(np.where(busy_ns > 0, np.arange(starts.size), -1))
        last = np.append(-1, last[:-1])
        waits = is_single & ((last < np.searchsorted(row, row)) | is_single[last])
        is_last = waits | (busy_ns > 0)
        begin_ns = np.where(waits, first_ns, np.where(busy_ns > 0, earliest_start(of_stream, busy_ns), 0))
        stream_ends_ns = _row_ends(np.where(waits, alone_ns[starts], busy_ns), begin_ns, row)
        is_end = is_single & is_last
        done_ns.append((stream_ends_ns, np.where(is_end[group], stream_ends_ns[group], 0), is_end))
    optimizer_ns = _optimizer_times(table, workload, experiment)
    lasts = np.searchsorted(row, np.arange(table.ranks), side="right") - 1
    has_row = np.diff(table.row_ptr) > 0
    step_ns = int(optimizer_ns.max(initial=0))
    for group_ns, result_ns, is_end in done_ns:
        last_ns = np.where(has_row, group_ns[lasts], 0)
        step_ns = max(
            step_ns,
            int((last_ns + np.where(is_end[lasts], optimizer_ns, 0)).max(initial=0)),
            int((result_ns + until_end_ns).max(initial=0)) + int(optimizer_ns.min(initial=0)),
        )
    return step_ns


def _least_pairs_ns(table: Schedule, workload: Workload, experiment: Experiment, starts: Int64s) -> Int64s:
    """Return the least time from the start of each overlapped pair to its last computation; 0 for other actions.

    Args:
        table: the table.
        workload: its costs, per stage of the table.
        experiment: their configuration.
        starts: the first row of each single action or pair.
    """
    least_ns = np.zeros(starts.size, dtype=np.int64)
    if not workload.segments or workload.classes or experiment.schedule.interleave:
        return least_ns
    sizes = np.diff(starts, append=len(table))
    cell = table.kind.astype(np.int64) * table.stages + table.stage
    for size in set(sizes[sizes > 1].tolist()):
        pairs = np.flatnonzero(sizes == size)
        cells, number = np.unique(cell[starts[pairs, None] + np.arange(size)], axis=0, return_inverse=True)
        distinct_ns = [_least_pair_ns(table, workload, members) for members in cells.tolist()]
        least_ns[pairs] = np.array(distinct_ns)[number.ravel()]
    return least_ns


def _least_pair_ns(table: Schedule, workload: Workload, cells: Sequence[int]) -> int:
    """Return the value of :func:`least_pair_ns` for actions as kind x stages + stage; 0 if one has no segments."""
    places = [(Kind(cell // table.stages), cell % table.stages) for cell in cells]
    if not all(kind in workload.segments for kind, _ in places):
        return 0
    members = tuple(workload.segments[kind][stage] for kind, stage in places)
    turns = table.interleave.get(tuple(kind for kind, _ in places), ())
    return memoized(partial(least_pair_ns, members, turns), ("pair", turns), *members)


def _row_ends(duration_ns: Int64s, before_ns: Int64s, row: Int64s) -> Int64s:
    """Return the least end of each part of the rows, whose parts follow each other and start after a time."""
    done_ns = duration_ns.cumsum()
    # An offset per row, larger than any time, lets one pass accumulate all rows.
    offset_ns = row * (int(done_ns[-1]) + int(before_ns.max()) + 1)
    idle_ns = np.maximum.accumulate(before_ns - (done_ns - duration_ns) + offset_ns) - offset_ns
    ends_ns: Int64s = idle_ns + done_ns
    return ends_ns


def _places(table: Schedule) -> Int64s:
    """Return the index of each action in the arrays of :meth:`Times.dependencies`.

    It is 1 + the stage of a forward, 1 + stages + the stage of a backward, and 0 for other actions.
    """
    forward, backward = table.kind == Kind.F, (table.kind == Kind.B) | (table.kind == Kind.I)
    return np.where(forward, 1 + table.stage, np.where(backward, 1 + table.stages + table.stage, 0))


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
        known = taken[low:high][_is_between_pairs(table.pair[low:high]) | (not workload.segments)]
        static[rank] += max(int(known.max(initial=base)) - base, 0)
    return static


def _is_between_pairs(pair: Int32s) -> NDArray[np.bool_]:
    """Return whether each action of a row is outside pairs, or the last of its pair."""
    is_last: NDArray[np.bool_] = (pair < 0) | (pair != np.append(pair[1:], -1))
    return is_last


def _moves_memory(workload: Workload, experiment: Experiment) -> bool:
    """Return whether memory depends on more than the order of the actions in a table."""
    choice = experiment.schedule
    return bool(
        choice.offload is not None or choice.recompute is not None or workload.classes
        or not all(map(partial(_bounds_memory, workload), PASSES))
    )  # fmt: skip


def _bounds_memory(workload: Workload, kind: Kind) -> bool:
    """Return whether the bound of memory also holds for actions of a kind with segments.

    It does if they free no more than without segments, and allocate as much in time.

    A segment allocates in time if a computation with a duration depends on it, or is it.
    """
    changes = TABLE.activation[kind] * workload.activation_bytes
    changes = changes + TABLE.weight_activation[kind] * workload.weight_activation_bytes
    stages = {
        (id(segments), change): segments
        for segments, change in zip(workload.segments.get(kind, ()), changes.tolist(), strict=False)
    }
    return all(
        memoized(partial(_keeps_bound, segments, change), ("keeps", change), segments)
        for (_, change), segments in stages.items()
    )


def _keeps_bound(segments: Sequence[Segment], change: int) -> bool:
    """Return whether segments allocate as much as a change of memory in time, and free no more."""
    stated = [part.activation_bytes or 0 for part in segments]
    if all(part.activation_bytes is None for part in segments):
        stated[0 if change > 0 else -1] = change
    allocated = sum(stated[index] for index in _computed(segments) if stated[index] > 0)
    return allocated >= change and sum(size for size in stated if size < 0) >= min(change, 0)


def _computed(segments: Sequence[Segment]) -> set[int]:
    """Return the indices of computations with a duration, and of all segments that these depend on."""
    computed = {
        index for index, part in enumerate(segments)
        if part.is_computation and part.duration_ns and not part.paired
    }  # fmt: skip
    for index in range(len(segments) - 1, -1, -1):
        if index in computed:
            computed.update(segments[index].needs_of(index))
    return computed


_GROUP_STREAMS = tuple(stream for stream in Stream if stream.is_group)


class Times(Struct, frozen=True, kw_only=True):
    """Least times of actions in ns, over all classes of microbatches; each of shape (kinds, stages).

    Without segments, all actions run one after another. Segments on links of the network take no time.
    """

    alone: Int64s
    """Outside overlapped pairs."""
    in_pairs: Int64s
    """Computations in a pair."""
    chains: Int64s
    """Longest chains of dependent segments that end in a computation, in a pair."""
    results: Int64s
    """From the start to the result, in a pair or not."""
    streams: tuple[Int64s, ...]
    """Collectives on each communication stream that has any."""

    @classmethod
    def of(cls, workload: Workload, *, has_pairs: bool) -> Times:
        """Return the times of costs; without segments, overlapped pairs have no collectives."""
        classes = [_class_times(costs, has_pairs=has_pairs) for costs in (workload, *workload.classes)]
        alone, in_pairs, chains, results, *streams = np.min(classes, axis=0)
        used = tuple(stream for stream in streams if stream.any())
        return cls(alone=alone, in_pairs=in_pairs, chains=chains, results=results, streams=used)

    def dependencies(self, *, has_inputs: bool, edges: Sequence[tuple[int, int]] | None) -> tuple[Int64s, Int64s]:
        """Return lower bounds on the time before the start and after the result of an action, by :func:`_places`.

        Args:
            has_inputs: whether the table has backwards for the input gradient alone.
            edges: the stages' graph as (from, to), each to a later stage; None for a chain.
        """
        forward, backward = self.results[Kind.F], self.results[Kind.B]
        if has_inputs:
            backward = np.minimum(backward, self.results[Kind.I])
        if edges is not None:
            before_forwards, after_backwards = _longest(forward, 0, edges), _longest(backward, 0, edges)
            reverse = [(high, low) for low, high in edges]
            before_backwards = _longest(backward, before_forwards + forward, reverse)
            after_forwards = _longest(forward, after_backwards + backward, reverse)
            before_start = np.concatenate([[0], before_forwards, before_backwards])
            after_result = np.concatenate([[0], after_forwards, after_backwards])
            return before_start, after_result
        forward_ns, backward_ns = np.append(0, forward.cumsum()), np.append(0, backward.cumsum())
        before_start = np.concatenate([[0], forward_ns[:-1], forward_ns[-1] + backward_ns[-1] - backward_ns[1:]])
        after_result = np.concatenate([[0], forward_ns[-1] - forward_ns[1:] + backward_ns[-1], backward_ns[:-1]])
        return before_start, after_result


def _class_times(costs: Workload, *, has_pairs: bool) -> Int64s:
    """Return the times of one class of microbatches, shape (columns, kinds, stages), as :func:`_segment_times`."""
    columns = len(Times.__struct_fields__) - 1 + len(_GROUP_STREAMS)
    times = np.zeros((columns, len(Kind), costs.stages), dtype=np.int64)
    alone, in_pairs, _, results, *_ = times
    for kind in COMPUTE:
        alone[kind] = in_pairs[kind] = results[kind] = costs.duration_ns(kind)
        if has_pairs and not costs.segments:
            in_pairs[kind] -= costs.collective_ns(kind)
    for kind, stages in costs.segments.items():
        rows = {
            key: memoized(
                partial(_segment_times, segments, overlapped=costs.overlapped),
                ("segment times", costs.overlapped), segments,
            ) for key, segments in dict(zip(map(id, stages), stages, strict=True)).items()
        }  # fmt: skip
        times[:, kind] = np.transpose([rows[id(segments)] for segments in stages])
    return times


def _segment_times(segments: Sequence[Segment], *, overlapped: bool) -> tuple[int, ...]:
    """Return the least times of an action in the order of the fields of :class:`Times`, with all group streams.

    Args:
        segments: those of the action.
        overlapped: as in :class:`Workload`.
    """
    segments = [replace(part, duration_ns=0, link="") if part.link else part for part in segments]
    ends_ns, results_ns, streams = list[int](), list[int](), Counter[Stream]()
    computed_ns = in_pairs = free_ns = alone_ns = 0
    for index, part in enumerate(segments):
        producers, duration_ns, stream = part.needs_of(index), part.duration_ns, part.stream
        begin_ns = result_ns = 0
        for need in producers:
            begin_ns, result_ns = max(begin_ns, ends_ns[need]), max(result_ns, results_ns[need])
        own_ns = 0 if part.paired else duration_ns
        if stream is Stream.COMPUTE:
            begin_ns, result_ns = max(begin_ns, computed_ns), max(result_ns, free_ns)
            computed_ns = begin_ns + duration_ns
            free_ns = result_ns + own_ns
            in_pairs += duration_ns
        else:
            streams[stream] += duration_ns
        ends_ns.append(begin_ns + duration_ns)
        results_ns.append(result_ns + own_ns)
        alone_ns += own_ns
    if overlapped:
        alone_ns = overlapped_ns(single(segments))
    result_ns = max((results_ns[index] for index in results_of(segments)), default=0)
    return alone_ns, in_pairs, computed_ns, min(result_ns, alone_ns), *map(streams.__getitem__, _GROUP_STREAMS)


def _longest(durations: Int64s, least: Int64s | int, edges: Sequence[tuple[int, int]]) -> Int64s:
    """Return the longest time on the paths to each stage, without the stage.

    Args:
        durations: of the stages, shape (stages,).
        least: the times of paths of one stage.
        edges: the graph as (from, to), all upwards or all downwards.
    """
    longest = (np.zeros_like(durations) + least).tolist()
    is_upwards = all(low < high for low, high in edges)
    for start, end in sorted(edges, reverse=not is_upwards):
        longest[end] = max(longest[end], longest[start] + int(durations[start]))
    return np.array(longest, dtype=np.int64)


class TableSummary(Struct, frozen=True, kw_only=True):
    """Counts of the actions of each row of a table, for fast bounds with many costs.

    A span of a row begins with the first action or the first backward, and ends with the last action or the last
    backward that other ranks wait for. Arrays have the shape (spans, ranks, ...) or (ranks, ...). A rank's stages
    have local numbers; ranks with fewer stages have further ones without costs.

    The roles of actions are: before the first overlapped pair, in a pair, between pairs or first after the last
    one, and later.
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
    """Shape (spans, ranks, roles, kinds, local stages): actions of a span."""
    first: Int64s
    """Shape (spans, ranks): the place of the first action of a span, see :func:`_places`."""
    last: Int64s
    """Shape (spans, ranks): the place of the last action of a span; 0 for a member of an overlapped pair."""
    drain: Int64s
    """Shape (ranks,): kind and local stage of the first action after the last pair, as an index in the flat array
    of both; -1 if pairs are last."""
    held: Int64s
    """Shape (2, ranks, 2, local stages): microbatches of which a rank holds activations, and activations of weight
    gradients, at its fullest moment; first of all moments, then of those between overlapped pairs."""
    edges: tuple[tuple[int, int], ...]
    """The stages' graph as (from, to); empty for a chain."""
    moves_memory: bool
    """Whether the table copies or recomputes activations."""

    @classmethod
    def of(cls, table: Schedule) -> TableSummary:
        """Return the outline of a table."""
        kinds = tuple(kind for kind in Kind if kind in COMPUTE and (table.kind == kind).any())
        copies = table.placement.copies()
        width = int(copies.sum(axis=1).max(initial=1))
        stages = np.full((table.ranks, width), table.stages, dtype=np.int64)
        local = np.zeros((table.ranks, table.stages), dtype=np.int64)
        for rank in range(table.ranks):
            (held,) = np.nonzero(copies[rank])
            stages[rank, : held.size] = held
            local[rank, held] = np.arange(held.size)
        counts = np.zeros((_SPANS, table.ranks, _ROLES, len(kinds), width), dtype=np.int64)
        drain = np.full(table.ranks, -1)
        first, last = (np.zeros((_SPANS, table.ranks), dtype=np.int64) for _ in range(2))
        fullest = np.zeros((2, table.ranks, 2, width), dtype=np.int64)
        number = np.full(len(Kind), -1)
        number[list(kinds)] = np.arange(len(kinds))
        places = _places(table)
        for rank in range(table.ranks):
            row = slice(int(table.row_ptr[rank]), int(table.row_ptr[rank + 1]))
            kind, stage, span = table.kind[row], local[rank, table.stage[row]], table.span[row]
            known = np.stack([np.ones(kind.size, dtype=np.bool_), _is_between_pairs(table.pair[row])])
            fullest[:, rank] = [_fullest(kind, stage, span, width, moments) for moments in known]
            (actions,) = np.nonzero(number[kind] >= 0)
            if not actions.size:
                continue
            cell, place, weight = number[kind] * width + stage, places[row], span.astype(np.float64)
            pair = table.pair[row]
            role = _roles(pair, actions)
            cell += role * len(kinds) * width
            later = actions[(pair[actions] < 0) & (role[actions] > _IN_PAIR)]
            if (pair < 0).all() or (later.size and later[-1] == actions[-1]):
                ended = actions[pair[actions] >= 0].max(initial=-1)
                after = actions[actions > ended]
                drain[rank] = number[kind[after[0]]] * width + stage[after[0]]
            (backwards,) = np.nonzero((kind == Kind.B) | (kind == Kind.I))
            ends = [(actions[0], actions[-1])]
            ends += [(actions[0], backwards[-1]), (backwards[0], actions[-1]), (backwards[0], backwards[-1])] * (
                backwards.size > 0
            )
            for index, (begin, end) in enumerate(ends):
                is_inside = (actions >= begin) & (actions <= end)
                # Other members of the pair in which a span begins can be earlier.
                is_inside &= (pair[actions] < 0) | (pair[actions] != pair[begin]) | (actions == begin)
                inside = actions[is_inside]
                total = np.bincount(cell[inside], weights=weight[inside], minlength=_ROLES * len(kinds) * width)
                counts[index, rank] = total.reshape(_ROLES, len(kinds), width)
                first[index, rank] = place[begin]
                last[index, rank] = place[end] if pair[end] < 0 else 0
        return cls(
            chunks=table.stages // table.ranks, has_pairs=table.has_pairs, kinds=kinds, stages=stages,
            counts=counts, first=first, last=last, drain=drain, held=fullest, edges=table.placement.graph,
            moves_memory=bool((TABLE.copied[table.kind] | TABLE.recomputed[table.kind]).any()),
        )  # fmt: skip

    def bound(self, workload: Workload, experiment: Experiment) -> Bound:
        """Return lower bounds of the table with these costs; none is above that of :func:`bound_of`."""
        times = Times.of(workload, has_pairs=self.has_pairs)
        before_start, after_result = times.dependencies(has_inputs=Kind.I in self.kinds, edges=self.edges or None)
        optimizer_ns = np.zeros(len(self.stages), dtype=np.int64)
        if experiment.data_parallel.validation is Validation.BEFORE:
            optimizer_ns = _padded(workload.optimizer_ns)[self.stages].sum(axis=1)
        step_ns = 0
        for row_ns, result_ns, is_end in self._ends(times, before_start, has_segments=bool(workload.segments)):
            step_ns = max(
                step_ns,
                int((row_ns[_WHOLE_ROWS] + np.where(is_end, optimizer_ns, 0)).max(initial=0)),
                int((result_ns + np.where(result_ns > 0, after_result[self.last], 0)).max(initial=0))
                + int(optimizer_ns.min(initial=0)),
            )
        peaks = _padded(workload.static_bytes)[self.stages].sum(axis=1) + workload.reserved_bytes
        if not (self.moves_memory or _moves_memory(workload, experiment)):
            kept = np.stack([workload.activation_bytes, workload.weight_activation_bytes])
            held = self.held[int(bool(workload.segments))]
            peaks += (held * _padded(kept)[:, self.stages].transpose(1, 0, 2)).sum(axis=(1, 2))
        fits = not workload.capacity_bytes or bool((peaks <= workload.capacities(len(peaks))).all())
        return Bound(step_ns=step_ns, peak_bytes=int(peaks.max(initial=0)), fits=fits)

    def _ends(
        self, times: Times, before_start: Int64s, *, has_segments: bool
    ) -> Iterator[tuple[Int64s, Int64s, NDArray[np.bool_]]]:
        """Yield lower bounds on the end of each span, and on the result of its last action, shape (spans, ranks).

        The first ones are those of computations, the others those of the streams of collectives. The third value
        is whether the optimizer of each rank starts after the end of its row, shape (ranks,).
        """

        def of_actions(values: Int64s) -> Int64s:
            local: Int64s = _padded(values[list(self.kinds)])[:, self.stages].transpose(1, 0, 2)
            return local

        def totals(local: Int64s) -> Int64s:
            """Return the times of the actions of each role, shape (roles, spans, ranks)."""
            spans, ranks, roles, *_ = self.counts.shape
            ns: Int64s = self.counts.reshape(spans, ranks, roles, -1) @ local.reshape(ranks, -1, 1)
            return ns[..., 0].transpose(2, 0, 1)

        start_ns, alone = before_start[self.first], of_actions(times.alone)
        early_ns, _, between_ns, late_ns = alone_ns = totals(alone)
        if not (self.has_pairs and has_segments):
            ends_ns = start_ns + alone_ns.sum(axis=0)
            yield ends_ns, ends_ns, np.ones(len(self.stages), dtype=np.bool_)
            return
        chains, is_forward = of_actions(times.chains), np.array([kind == Kind.F for kind in self.kinds])[:, None]
        pairs_ns = np.maximum.reduce([
            totals(local)[_IN_PAIR]
            for local in (of_actions(times.in_pairs), chains * is_forward, chains * ~is_forward)
        ])  # fmt: skip
        ends_ns = start_ns + early_ns + between_ns + late_ns + pairs_ns
        yield ends_ns, ends_ns, np.ones(len(self.stages), dtype=np.bool_)
        for stream in times.streams:
            busy = of_actions(stream)
            busy_ns = totals(busy)
            is_last = (self.drain >= 0) & (busy.reshape(len(busy), -1)[np.arange(len(busy)), self.drain] > 0)
            ends_ns = start_ns + early_ns + busy_ns[_IN_PAIR] + busy_ns[_BETWEEN]
            ends_ns += np.where(is_last, late_ns, busy_ns[_LATE])
            yield ends_ns, np.where(is_last, ends_ns, 0), is_last


_SPANS = 4
_ROLES = 4
_EARLY, _IN_PAIR, _BETWEEN, _LATE = range(_ROLES)
_WHOLE_ROWS = 0
"""The span from the first to the last action of a row."""


def _roles(pair: Int32s, actions: NDArray[Any]) -> NDArray[Any]:
    """Return the role of each action of a row, see :class:`TableSummary`; ``actions`` are its computations."""
    role = np.zeros(pair.size, dtype=np.int64)
    paired = actions[pair[actions] >= 0]
    if paired.size:
        role[paired[0] :] = _BETWEEN
        role[paired] = _IN_PAIR
        later = actions[actions > paired[-1]]
        role[later[1:]] = _LATE
    return role


def _fullest(
    kind: NDArray[Any], stage: Int64s, span: NDArray[Any], stages: int, moments: NDArray[np.bool_]
) -> Int64s:
    """Return the held activations of a row after the action with most, among some; shape (2, stages)."""
    changes = np.stack([TABLE.activation[kind], TABLE.weight_activation[kind]]).astype(np.int64) * span
    held = np.where(moments, (2 * changes[0] + changes[1]).cumsum(), 0)
    if not held.size or held.max() <= 0:
        return np.zeros((2, stages), dtype=np.int64)
    end = int(held.argmax()) + 1
    totals = [np.bincount(stage[:end], weights=change[:end], minlength=stages) for change in changes]
    return np.rint(np.stack(totals)).astype(np.int64)


def _padded(values: NDArray[Any]) -> NDArray[Any]:
    """Return values per stage, shape (..., stages), with a further stage without costs."""
    return np.append(values, np.zeros((*values.shape[:-1], 1), dtype=values.dtype), axis=-1)
