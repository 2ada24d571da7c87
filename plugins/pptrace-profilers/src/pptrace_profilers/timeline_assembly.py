"""Assembly of recordings to a timeline.

Kernels of a GPU give the arrival of a message even if no action waits for it. For recordings of hosts, arrivals
are inferred from waits. Waits for collectives of the rank's group count as ``collective_ns``, as in simulated
pairs of overlapped actions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.plugin import (
    Action,
    Kind,
    Measurement,
    Schedule,
    ScheduleError,
    Source,
    Step,
    Stream,
    Timeline,
    TraceError,
    Unattributed,
    kinds,
    messages,
)
from pptrace_profilers.alignment import (
    align,
    count_payloads,
    match_ends,
    name_messages,
    passes_of,
    shift_messages,
    split_steps,
)
from pptrace_profilers.recording import NO_ROWS, NO_STAGE, NOTHING, UNKNOWN, Rows, manifest_beside, members_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.plugin import Clock, Int64s, Placement
    from pptrace_profilers.alignment import Messages, Transfers
    from pptrace_profilers.recording import Executions, Recording


_EMPTY_SHARE = 0.1
_SKIPPED = "stage 0: input gradients are empty because PyTorch skips them; each is merged with its weight gradient"
_ENDING_NS = 20_000
"""Maximum time from the arrival of the last byte to the end of the sending kernel."""
_CONTRADICTED_NS = 50_000
"""Minimum contradiction of clocks for a note."""


def assemble(
    recordings: Sequence[Recording], numbers: Sequence[int] = (), earlier: Mapping[int, int] | None = None
) -> Measurement:
    """Return the measurement of a pipeline's recordings, one per pipeline rank in their order.

    Args:
        recordings: one per recorded rank.
        numbers: the pipeline ranks of the recordings if ranks are missing; by default, 0, 1 and so on.
        earlier: the clock offset in an earlier run by pipeline rank; kept where the messages allow that.

    Raises:
        TraceError: no step has an action of a pipeline, or two ranks have the same stage and microbatch.
    """
    labels, rank_steps, left_out = split_steps(recordings)
    unattributed = [
        replace(work, rank=rank) for rank, recording in enumerate(recordings) for work in recording.unattributed
    ]
    matched = [match_ends(step, unattributed) for step in rank_steps]
    places = numbers or range(len(recordings))
    known_ns = [offset for place in places if (offset := (earlier or {}).get(place)) is not None]
    clocks = align(
        len(recordings), _transfers(matched), [recording.host for recording in recordings],
        known_ns if len(known_ns) == len(recordings) else (),
    )  # fmt: skip
    notes = [*(note for recording in recordings for note in recording.notes), *left_out, *_contradictions(clocks)]
    aligned_steps = []
    for label, ranks, step_messages in zip(labels, rank_steps, matched, strict=True):
        if all(kinds.COMMUNICATION.mask(rank.executions.kind).all() for rank in ranks):
            notes.append(f"{label} holds no action: skipped")
            continue
        parts = [
            _align_recording(rank, clock, place) for rank, clock, place in zip(ranks, clocks, places, strict=True)
        ]
        _check_replicas(parts)
        moves = name_messages(parts, shift_messages(step_messages, clocks), unattributed)
        aligned_steps.append((label, parts, moves, arrivals_of(moves)))
    # A framework skips empty gradients in all steps, so one decision serves all of them.
    manifest = manifest_beside(recordings[0].path)
    stated = manifest.get("empty_input_gradient")
    stated = stated if isinstance(stated, bool) else None
    parts_of_steps = [(part, arrivals) for _, parts, _, arrivals in aligned_steps for part in parts]
    skips = _skips_input_gradient(parts_of_steps) if stated is None else stated
    # Only PyTorch's runs have this key, and PyTorch would skip them in a run that split those backwards, too.
    is_empty = skips or (stated is not None and not _splits_first_stage(parts_of_steps))
    notes += [_SKIPPED] if skips else []
    steps = []
    for label, parts, moves, arrivals in aligned_steps:
        merged = [_merge_first_stage_gradients(part) for part in parts] if skips else parts
        timeline, columns, begins = timeline_of(merged, moves, arrivals)
        steps.append(
            Step(
                label=label, timeline=timeline, gap_ns=columns.gap_ns, short_gap_ns=columns.short_gap_ns,
                host_ns=columns.host_ns, begins_ns=begins,
            )
        )  # fmt: skip
    if not steps:
        raise TraceError("holds no action of a pipeline", file=recordings[0].path)
    slices = _sequence_slices(manifest.get("slices"), steps)
    if slices > 1:
        count = steps[0].timeline.placement.microbatches // slices
        notes.append(f"{count} microbatches ran in {slices} slices each: actions have the numbers of slices")
    return Measurement(
        steps=tuple(steps), clocks=tuple(clocks), unattributed=_sum_by_name(unattributed),
        sources=_sources(recordings), notes=tuple(dict.fromkeys(notes)), empty_input_gradient=is_empty,
        slices=slices, p2p=p2p if isinstance(p2p := manifest.get("p2p"), dict) else {},
    )  # fmt: skip


def _sequence_slices(stated: object, steps: Sequence[Step]) -> int:
    """Return the stated slices of each sequence; 1 if they are no count, or do not divide the microbatches."""
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 1:
        return 1
    return 1 if any(step.timeline.placement.microbatches % stated for step in steps) else stated


def _contradictions(clocks: Sequence[Clock]) -> Iterator[str]:
    contradicted = [clock for clock in clocks if clock.contradicted_ns > _CONTRADICTED_NS]
    if contradicted:
        ranks = ", ".join(str(clock.rank) for clock in contradicted)
        worst = max(clock.contradicted_ns for clock in contradicted) / 1e6
        yield (
            f"no clock offsets of ranks {ranks} fit their messages; contradictions are up to {worst:.3f} ms: "
            "clocks drift or times are wrong, and durations of messages have this error"
        )


def _sources(recordings: Sequence[Recording]) -> tuple[Source, ...]:
    """Return the files of the ranks; empty if trace viewers cannot open all of them."""
    sources = [
        Source(rank=rank, path=recording.path, origin_ns=recording.origin_ns, has_clock=recording.has_clock)
        for rank, recording in enumerate(recordings)
        if recording.origin_ns is not None
    ]
    return tuple(sources) if len(sources) == len(recordings) else ()


def _transfers(steps: Sequence[Messages]) -> Transfers:
    """Return sender, receiver, earliest departure and arrival of each message, by the clocks of these ranks.

    A kernel with a single message ends when the message has left. That time is much later than its start if the
    kernel waits for its peer. It bounds the departure if both directions of a link have it, because clocks are set
    to the middle of the bounds of both directions.
    """
    columns = []
    for step, payloads in zip(steps, count_payloads(steps), strict=True):
        ends, rows = step.ends, np.flatnonzero((step.sent >= 0) & (step.received >= 0))
        sent, received = step.sent[rows], step.received[rows]
        columns.append((
            step.source[rows], step.target[rows], ends.start_ns[sent], ends.end_ns[sent],
            ends.end_ns[received], payloads[sent] == 1,
        ))  # fmt: skip
    source, target, start_ns, end_ns, arrived_ns, is_single = map(np.concatenate, zip(*columns, strict=True))
    ranks = int(source.max(initial=0) + target.max(initial=0)) + 1
    both_directions = np.isin(target * ranks + source, (source * ranks + target)[is_single])
    departure_ns = np.where(is_single & both_directions, np.maximum(start_ns, end_ns - _ENDING_NS), start_ns)
    return source, target, departure_ns, arrived_ns


def _sum_by_name(unattributed: Sequence[Unattributed]) -> tuple[Unattributed, ...]:
    """Return one entry per rank and name, the longest first."""
    sums: dict[tuple[int, str], Unattributed] = {}
    for work in unattributed:
        known = sums.get((work.rank, work.what))
        sums[work.rank, work.what] = (
            replace(known, count=known.count + work.count, total_ns=known.total_ns + work.total_ns)
            if known is not None
            else work
        )
    return tuple(sorted(sums.values(), key=lambda work: (-work.total_ns, work.rank, work.what)))


def _align_recording(part: Recording, clock: Clock, place: int) -> Recording:
    """Return a recording by rank 0's clock; an action without a stage gets the rank's place as its stage."""
    old, by_ns = part.executions, clock.offset_ns
    executions = old.with_columns(
        action=np.array([replace(a, stage=place) if a.stage == NO_STAGE else a for a in old.action]),
        start_ns=old.start_ns + by_ns, end_ns=old.end_ns + by_ns,
        gpu_start_ns=old.gpu_start_ns + by_ns, gpu_end_ns=old.gpu_end_ns + by_ns,
        launch_ns=np.where(old.launch_ns >= 0, old.launch_ns + by_ns, -1),
        operators_start_ns=np.where(old.operators_start_ns >= 0, old.operators_start_ns + by_ns, -1),
        operators_end_ns=np.where(old.operators_end_ns >= 0, old.operators_end_ns + by_ns, -1),
    )  # fmt: skip
    return replace(part, executions=executions)


def _check_replicas(ranks: Sequence[Recording]) -> None:
    """Raise an error if several ranks run the same action, because they belong to different pipelines."""
    holders: dict[Action, int] = {}
    for number, rank in enumerate(ranks):
        for action in passes_of(rank):
            first = holders.setdefault(action, number)
            if first != number:
                a, b = ranks[first].rank, rank.rank
                message = (
                    f"ranks {a} and {b} both run {action}, so they belong to two pipelines: "
                    "give the layout of the job, such as --layout pp=2,dp=2"
                )
                raise TraceError(message, file=rank.path)


def _splits_first_stage(ranks: Sequence[tuple[Recording, Arrivals]]) -> bool:
    """Return whether the first stage has an input gradient apart."""
    return any(
        action.stage == 0 and action.kind is Kind.I for rank, _ in ranks for action in rank.executions.action
    )


def _skips_input_gradient(ranks: Sequence[tuple[Recording, Arrivals]]) -> bool:
    """Return whether the first stage's input gradients are empty, so that its ``0W`` is the whole backward.

    Waits for messages that were not recorded lengthen some of them, so their lower quartile counts.
    """
    inputs = [(rank.executions.of_rows(rank.executions.kind == Kind.I), arrivals) for rank, arrivals in ranks]
    on_gpu = any(executions.on_gpu.any() for executions, _ in inputs)
    # On a GPU, an action without a kernel has no duration.
    lengths = np.concatenate([
        np.where(executions.on_gpu | (not on_gpu), work_ns(executions, arrivals), 0)
        for executions, arrivals in inputs
    ])  # fmt: skip
    stage = np.array([action.stage for executions, _ in inputs for action in executions.action])
    first, later_stages = lengths[stage == 0], lengths[stage > 0]
    if not first.size or not later_stages.size:
        return False
    return bool(np.quantile(first, 0.25) <= _EMPTY_SHARE * np.median(later_stages))


def _merge_first_stage_gradients(rank: Recording) -> Recording:
    """Replace the input and weight gradients of the first stage by one backward."""
    in_first_stage = np.array([action.stage == 0 for action in rank.executions.action], dtype=bool)
    kept = rank.executions.of_rows(~in_first_stage | (rank.executions.kind != Kind.I))
    actions = [replace(a, kind=Kind.B) if a.stage == 0 and a.kind is Kind.W else a for a in kept.action]
    return replace(rank, executions=kept.with_columns(action=np.array(actions)))


@dataclass(frozen=True, slots=True, init=False, eq=False)
class _Slices(Rows):
    """Slices of a timeline, with the gaps inside them and the ends of their receiving kernels."""

    rank: Int64s = NO_ROWS
    stream: Int64s = NO_ROWS
    peer: Int64s = UNKNOWN
    kind: Int64s = NO_ROWS
    stage: Int64s = NO_ROWS
    microbatch: Int64s = NO_ROWS
    span: Int64s = NO_ROWS
    pair: Int64s = UNKNOWN
    enter_ns: Int64s = NO_ROWS
    collective_ns: Int64s = NOTHING
    size_bytes: Int64s = NOTHING
    gap_ns: Int64s = NOTHING
    short_gap_ns: Int64s = NOTHING
    host_ns: Int64s = UNKNOWN
    received_ns: Int64s = UNKNOWN
    """End of the receiving kernel of a received message; -1 without one."""


def timeline_of(
    ranks: Sequence[Recording], messages: Messages, arrivals: Arrivals
) -> tuple[Timeline, _Slices, int]:
    """Return the timeline of a step from its first action, the columns of its slices, and its start.

    On GPUs, it starts with the first kernel of an action or message. A host that is ahead has then issued actions
    without kernels long before, such as gathers of parameters in a group of one rank.

    Raises:
        TraceError: the actions do not form a pipeline.
    """
    times = TimesAlone(ranks, arrivals)
    actions = [_actions(number, rank.executions, arrivals, times) for number, rank in enumerate(ranks)]
    placement = _placement(actions)
    moves = _moves(messages)
    # A message of a microbatch without computation does not belong to the step.
    moves = moves.of_rows(
        (moves.stage < placement.stages) & (moves.microbatch + moves.span <= placement.microbatches)
    )
    slices = _Slices.concatenate([*actions, moves])
    slices = slices.sorted_by(slices.rank, slices.stream, slices.peer, slices.start_ns, slices.end_ns)
    lasting = slices.end_ns > slices.start_ns
    begins_ns = int(slices.start_ns[lasting if lasting.any() else ...].min())
    columns = {column.name: getattr(slices, column.name) for column in fields(slices)}
    columns |= {
        "start_ns": np.maximum(slices.start_ns - begins_ns, 0), "end_ns": np.maximum(slices.end_ns - begins_ns, 0),
        # Actions launched before the first action of the step wait from its start on.
        "enter_ns": np.maximum(slices.enter_ns - begins_ns, 0),
        "uncontended_ns": slices.end_ns - slices.start_ns,
        "lag_ns": np.zeros_like(slices.start_ns), "cause": np.full_like(slices.start_ns, -1),
    }  # fmt: skip
    timeline = add_group_waits(Timeline.from_columns(columns, placement))
    if (slices.received_ns >= 0).any():
        received_ns = np.where(slices.received_ns < 0, -1, slices.received_ns - begins_ns)
        timeline = add_causes(timeline, received_ns)
    return timeline, slices, begins_ns


def arrivals_of(messages: Messages) -> Arrivals:
    """Return the arrival of each input by whether it is an activation, its stage and its first microbatch."""
    rows = np.flatnonzero((messages.stage >= 0) & (messages.received >= 0))
    keys = zip(
        *(c[rows].tolist() for c in (messages.forward, messages.to_stage, messages.microbatch)), strict=True
    )
    return dict(zip(keys, messages.ends.end_ns[messages.received[rows]].tolist(), strict=True))


def _actions(rank: int, executions: Executions, arrivals: Arrivals, times: TimesAlone) -> _Slices:
    """Return a rank's computations without the waits for their inputs, and its collectives."""
    is_gpu = bool(executions.on_gpu.any())
    executions = executions.sorted_by(executions.work_ns[0])
    executions = executions.of_rows(~kinds.COMMUNICATION.mask(executions.kind) | (executions.pair >= 0))
    ready_ns, end_ns = executions.work_ns
    if is_gpu:  # an action without a kernel has no duration
        end_ns = np.where(executions.on_gpu, end_ns, ready_ns)
    else:
        ready_ns = np.maximum(ready_ns, np.minimum(_arrivals_at(executions, arrivals), end_ns))
    stream = _streams(executions)
    free_ns = _free_ns(stream, end_ns)
    begin_ns = np.maximum(ready_ns, free_ns)
    end_ns = np.maximum(end_ns, begin_ns)
    enter_ns = executions.start_ns
    if is_gpu:
        enter_ns = np.where(executions.launch_ns >= 0, np.maximum(executions.launch_ns, free_ns), begin_ns)
    host_ns = _outside_operators_ns(executions, begin_ns, end_ns)
    members = [members_of(action) for action in executions.action]
    count = np.array([len(of_action) for of_action in members], dtype=np.int64)
    row = np.repeat(np.arange(count.size), count)
    number = np.arange(row.size) - (np.cumsum(count) - count)[row]
    spans = [
        span_ns
        for of_action, begins_ns, ends_ns in zip(members, begin_ns.tolist(), end_ns.tolist(), strict=True)
        for span_ns in times.spans(of_action, begins_ns, ends_ns, {} if is_gpu else arrivals)
    ]
    first_ns, last_ns = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    gap_ns, short_gap_ns, collective_ns = (
        (total_ns * (number + 1) // count[row] - total_ns * number // count[row])
        for total_ns in (executions.gap_ns[row], executions.short_gap_ns[row], executions.collective_ns[row])
    )
    computes = ~kinds.COMMUNICATION.mask(executions.kind)[row]
    gap_ns = np.minimum(gap_ns, last_ns - first_ns) * computes
    single = [member for of_action in members for member in of_action]
    return _Slices(
        rank=rank, stream=stream[row], kind=[a.kind for a in single], stage=[a.stage for a in single],
        microbatch=[a.microbatch for a in single], span=[a.span for a in single],
        pair=np.where(count > 1, np.cumsum(count > 1) - 1, executions.pair)[row],
        start_ns=first_ns, end_ns=last_ns, enter_ns=np.minimum(enter_ns[row], first_ns), gap_ns=gap_ns,
        short_gap_ns=np.minimum(short_gap_ns, gap_ns), host_ns=np.where(count == 1, host_ns, -1)[row],
        collective_ns=np.minimum(collective_ns, last_ns - first_ns - gap_ns) * computes,
    )  # fmt: skip


def _outside_operators_ns(executions: Executions, begin_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return the time of each action before its first and after its last operator; -1 where unknown."""
    known = (executions.operators_start_ns >= 0) & ~executions.on_gpu
    before_ns = np.clip(executions.operators_start_ns, begin_ns, end_ns) - begin_ns
    after_ns = end_ns - np.clip(executions.operators_end_ns, begin_ns, end_ns)
    return np.where(known, np.minimum(before_ns + after_ns, end_ns - begin_ns), -1)


def _streams(executions: Executions) -> Int64s:
    """Return the stream of the kernels of each action, by default the stream of its kind."""
    kind = executions.kind
    computes = executions.on_gpu & executions.computes & ~kinds.COPIES.mask(kind)
    of_kind = np.array([action.kind.traits.stream for action in executions.action], dtype=np.int64)
    stream = np.where(computes, Stream.COMPUTE, of_kind)
    return np.where(kinds.COMMUNICATION.mask(kind), Stream.EXPERT_PARALLEL, stream)


def _free_ns(lane: Int64s, end_ns: Int64s) -> Int64s:
    """Return when all previous rows of each row's lane have ended; the least integer for the first row."""
    free_ns = np.full(lane.size, np.iinfo(np.int64).min)
    order = np.argsort(lane, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        free_ns[rows[1:]] = np.maximum.accumulate(end_ns[rows])[:-1]
    return free_ns


def _moves(messages: Messages) -> _Slices:
    """Return the slices of each message on both ranks, from the start of both ends to the arrival."""
    ends, (payloads,) = messages.ends, count_payloads([messages])
    rows = np.flatnonzero(messages.stage >= 0)
    last = np.where(messages.received >= 0, messages.received, messages.sent)[rows]
    rows = rows[np.argsort(ends.end_ns[last], kind="stable")]
    sent, received = messages.sent[rows], messages.received[rows]
    both = (sent >= 0) & (received >= 0)
    size_bytes = np.maximum(
        np.where(sent >= 0, ends.size_bytes[sent], 0), np.where(received >= 0, ends.size_bytes[received], 0)
    )
    # A message that was sent before the receiver started has the times of each end's own kernel.
    both &= (ends.posted_ns[sent] < 0) | (ends.end_ns[sent] >= ends.start_ns[received])
    start_ns, end_ns = np.maximum(ends.start_ns[sent], ends.start_ns[received]), ends.end_ns[received]
    # A kernel with several messages ends with the last one, so this message has arrived when it has left.
    batched = payloads[received] > 1
    end_ns = np.where(batched, np.minimum(end_ns, np.maximum(ends.end_ns[sent], start_ns)), end_ns)
    source, target, forward = messages.source[rows], messages.target[rows], messages.forward[rows]
    sides = []
    for sends, end, rank, peer in ((True, sent, source, target), (False, received, target, source)):
        slices = _Slices(
            rank=rank, peer=peer, stream=Stream.SEND if sends else Stream.RECV,
            kind=np.where(forward, *(kinds.message_kind(sends=sends, forward=is_f) for is_f in (True, False))),
            stage=(messages.stage if sends else messages.to_stage)[rows],
            microbatch=messages.microbatch[rows], span=messages.span[rows], size_bytes=size_bytes,
            enter_ns=ends.start_ns[end], start_ns=np.where(both, start_ns, ends.start_ns[end]),
            end_ns=np.where(both, end_ns, ends.end_ns[end]),
            received_ns=np.where(ends.posted_ns[end] < 0, -1, ends.end_ns[end]) if not sends else -1,
        ).of_rows((end >= 0) & (rank >= 0))  # fmt: skip
        free_ns = _free_ns(slices.rank * (peer.max(initial=0) + 2) + slices.peer, slices.end_ns)
        stop_ns = np.maximum(slices.end_ns, free_ns)
        begin_ns = np.minimum(np.maximum(slices.start_ns, free_ns), stop_ns)
        enter_ns = np.minimum(slices.enter_ns, begin_ns)
        sides.append(slices.with_columns(start_ns=begin_ns, end_ns=stop_ns, enter_ns=enter_ns))
    return _Slices.concatenate(sides)


def _placement(slices: Sequence[_Slices]) -> Placement:
    """Return the placement of the stages of a step, from the slices of each rank by time."""
    computed = [of_rank.of_rows(of_rank.stream == Stream.COMPUTE) for of_rank in slices]
    rows = [
        [
            Action(kind=Kind(kind), stage=stage, microbatch=microbatch, span=span)
            for kind, stage, microbatch, span in zip(*(column.tolist() for column in columns), strict=True)
        ]
        for columns in ((c.kind, c.stage, c.microbatch, c.span) for c in computed)
    ]
    try:
        return Schedule.from_rows(rows).placement
    except ScheduleError as error:
        raise TraceError(f"its actions do not form a pipeline: {error}") from error


_IN_TABLES = sorted(kinds.COMPUTE - kinds.STAGE_ENDS)
_PROMPT_NS = 20_000
"""Maximum delay of a computation after its input; later ones waited for the host."""


def add_causes(timeline: Timeline, received_ns: Int64s) -> Timeline:
    """Return a step with the known causes of its computations and messages.

    Args:
        timeline: a step of GPUs.
        received_ns: shape (slices,): end of the receiving kernel of a received message; -1 for all other slices,
            and if no kernel was recorded.
    """
    cause = np.full(len(timeline), -1, dtype=np.int32)
    previous_end_ns = np.full(len(timeline), -1, dtype=np.int64)
    on_compute = timeline.lane_stream[timeline.lane_of_row()] == Stream.COMPUTE
    rows = np.flatnonzero(on_compute & np.isin(timeline.kind, _IN_TABLES))
    rank = timeline.rank_of_row()[rows]
    same_rank = rank[1:] == rank[:-1]
    previous_row, next_row = rows[:-1][same_rank], rows[1:][same_rank]
    cause[next_row] = previous_row
    previous_end_ns[next_row] = timeline.end_ns[previous_row]
    moves = messages(timeline)
    for ends in (moves.send, moves.recv):
        cause[ends[ends >= 0]] = moves.producer[ends >= 0]
    waits = moves.consumer >= 0
    consumer, recv = moves.consumer[waits], moves.recv[waits]
    arrival_ns = np.where(recv >= 0, received_ns[recv], -1)
    unknown = consumer[arrival_ns < 0]
    is_late = timeline.start_ns[consumer] > arrival_ns + _PROMPT_NS
    previous_ns = previous_end_ns[consumer]
    released = (arrival_ns >= 0) & (arrival_ns >= previous_ns) & (~is_late | (previous_ns < 0))
    cause[consumer[released]] = recv[released]
    cause[unknown] = -1
    return replace(timeline, cause=cause)


def add_group_waits(timeline: Timeline) -> Timeline:
    """Return a step whose computations include the waits for their inputs from overlapped pairs."""
    stream = np.repeat(timeline.lane_stream, np.diff(timeline.lane_ptr))
    exchanges = np.flatnonzero(stream == Stream.EXPERT_PARALLEL).tolist()
    source_of = {_consumer_key(timeline.action(row)): row for row in exchanges}
    start_ns, end_ns = timeline.start_ns, timeline.end_ns
    waited_ns = np.zeros_like(start_ns)
    for lane in np.flatnonzero(timeline.lane_stream == Stream.COMPUTE).tolist() if source_of else ():
        for previous_row, row in pairwise(range(timeline.lane_ptr[lane], timeline.lane_ptr[lane + 1])):
            action = timeline.action(row)
            source = source_of.get((action.kind is Kind.F, action.stage, action.microbatch))
            if source is not None and action.kind is not Kind.W:
                begin_ns = max(end_ns[previous_row], start_ns[source])
                waited_ns[row] = max(min(end_ns[source], start_ns[row]) - begin_ns, 0)
    return replace(
        timeline, start_ns=start_ns - waited_ns, enter_ns=np.minimum(timeline.enter_ns, start_ns - waited_ns),
        uncontended_ns=timeline.uncontended_ns + waited_ns, collective_ns=timeline.collective_ns + waited_ns,
    )  # fmt: skip


def _consumer_key(action: Action) -> tuple[bool, int, int]:
    """Return the consumer of a phase: whether it is a forward, its stage and its microbatch."""
    forward = action.kind.traits.direction is kinds.Pass.FORWARD
    stage_change = (1 if forward else -1) if action.kind in kinds.SENDS else 0
    return forward, action.stage + stage_change, action.microbatch


Arrivals = dict[tuple[bool, int, int], int]
"""Arrivals of inputs: of forwards or of backwards, by stage and microbatch."""


class TimesAlone:
    """Durations of actions that run alone, by kind and stage."""

    def __init__(self, ranks: Sequence[Recording], arrivals: Arrivals) -> None:
        times: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for rank in ranks:
            lengths_ns = work_ns(rank.executions, arrivals).tolist()
            for action, length_ns in zip(rank.executions.action, lengths_ns, strict=True):
                if not action.sub_actions:
                    times[action.kind, action.stage].append(length_ns)
        self._by_stage = {key: median(lengths) for key, lengths in times.items()}
        for (kind, _), lengths in list(times.items()):
            times[kind, -1] += lengths
        self._by_kind = {kind: median(lengths) for (kind, stage), lengths in times.items() if stage < 0}

    def spans(
        self, members: Sequence[Action], begin_ns: int, end_ns: int, arrivals: Arrivals
    ) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each member; equal parts if a member never ran alone.

        A member whose input arrives later than its part begins starts with the arrival. The member before it has
        then ended after its time alone.
        """
        times = [self._of(member.kind, member.stage) for member in members]
        weights = [time for time in times if time] if all(times) else [1.0] * len(members)
        length_ns, total, start_ns = end_ns - begin_ns, sum(weights), begin_ns
        for number, weight in enumerate(accumulate(weights), 1):
            stop_ns = (
                min(begin_ns + round(length_ns * weight / total), end_ns) if number < len(members) else end_ns
            )
            arrival_ns = _arrival_ns(members[number], arrivals, stop_ns) if number < len(members) else stop_ns
            next_ns = min(max(stop_ns, arrival_ns), end_ns)
            alone_ns = times[number - 1]
            if next_ns > stop_ns and alone_ns:
                stop_ns = min(start_ns + round(alone_ns), next_ns)
            yield start_ns, stop_ns
            start_ns = next_ns

    def _of(self, kind: Kind, stage: int) -> float | None:
        time = self._by_stage.get((kind, stage), self._by_kind.get(kind))
        if time is None and kind is Kind.B:
            parts = [self._of(part, stage) for part in (Kind.I, Kind.W)]
            return sum(part for part in parts if part) if all(parts) else None
        return time


def _arrivals_at(executions: Executions, arrivals: Arrivals) -> Int64s:
    """Return when the input of each action arrived, by default its start.

    The members of a pair run one after another, so only the input of the first member delays the start.
    """
    first = [members_of(action)[0] for action in executions.action]
    starts_ns = executions.start_ns.tolist()
    return np.array(
        [_arrival_ns(action, arrivals, start_ns) for action, start_ns in zip(first, starts_ns, strict=True)],
        dtype=np.int64,
    )


def _arrival_ns(action: Action, arrivals: Arrivals, default_ns: int) -> int:
    """Return when the input of an action arrived."""
    return arrivals.get((action.kind is Kind.F, action.stage, action.microbatch), default_ns)


def work_ns(executions: Executions, arrivals: Arrivals) -> Int64s:
    """Return the duration of each action without the wait for its input."""
    start_ns, end_ns = executions.work_ns
    ready_ns = np.minimum(np.maximum(start_ns, _arrivals_at(executions, arrivals)), end_ns)
    return end_ns - np.where(executions.on_gpu, start_ns, ready_ns)
