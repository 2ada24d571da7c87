"""Assembly of recordings to a timeline.

Kernels of a GPU give the arrival of a message even if no action waits for it. For recordings of hosts, arrivals
are inferred from waits. Waits for collectives of the rank's group count as ``collective_ns``, as in simulated
pairs of overlapped actions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import (
    Action,
    Kind,
    Measurement,
    Schedule,
    ScheduleError,
    Slice,
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
    kernel_of,
    kernel_payloads,
    match_ends,
    name_messages,
    shift_message,
    split_steps,
)
from pptrace_profilers.recording import NO_STAGE, manifest_value, shift

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import Clock, Int64s, Placement
    from pptrace_profilers.alignment import Message
    from pptrace_profilers.recording import Execution, MessageEnd, Recording


_EMPTY_SHARE = 0.1
_SKIPPED = "stage 0: input gradients are empty because PyTorch skips them; each is merged with its weight gradient"
_ENDING_NS = 20_000
"""Maximum time from the arrival of the last byte to the end of the sending kernel."""
_CONTRADICTED_NS = 50_000
"""Minimum contradiction of clocks for a note."""


def assemble(recordings: Sequence[Recording], numbers: Sequence[int] = ()) -> Measurement:
    """Return the measurement of a pipeline's recordings, one per pipeline rank in their order.

    Args:
        recordings: one per recorded rank.
        numbers: the pipeline ranks of the recordings if ranks are missing; by default, 0, 1 and so on.

    Raises:
        TraceError: no step has an action of a pipeline, or two ranks have the same stage and microbatch.
    """
    labels, rank_steps, left_out = split_steps(recordings)
    unattributed = [
        replace(work, rank=rank) for rank, recording in enumerate(recordings) for work in recording.unattributed
    ]
    matched = [match_ends(step, unattributed) for step in rank_steps]
    clocks = align(len(recordings), list(_transfers([message for step in matched for message in step])))
    notes = [*(note for recording in recordings for note in recording.notes), *left_out, *_contradictions(clocks)]
    aligned_steps = []
    for label, ranks, step_messages in zip(labels, rank_steps, matched, strict=True):
        if all(execution.action.kind in kinds.COMMUNICATION for rank in ranks for execution in rank.executions):
            notes.append(f"{label} holds no action: left out")
            continue
        places = numbers or range(len(ranks))
        parts = [
            _align_recording(rank, clock, place) for rank, clock, place in zip(ranks, clocks, places, strict=True)
        ]
        _check_replicas(parts)
        moves = [shift_message(message, clocks) for message in step_messages]
        name_messages(parts, moves, unattributed)
        aligned_steps.append((label, parts, moves, arrivals_of(moves)))
    # A framework skips empty gradients in all steps, so one decision serves all of them.
    stated = manifest_value(recordings[0].path, "empty_input_gradient")
    parts_of_steps = [(part, arrivals) for _, parts, _, arrivals in aligned_steps for part in parts]
    skips = _skips_input_gradient(parts_of_steps) if stated is None else stated
    # Only PyTorch's runs have this key, and PyTorch would skip them in a run that split its backwards, too.
    is_empty = skips or (stated is not None and not _splits_backwards(parts_of_steps))
    notes += [_SKIPPED] if skips else []
    steps = []
    for label, parts, moves, arrivals in aligned_steps:
        merged = [_merge_first_stage_gradients(part) for part in parts] if skips else parts
        timeline, gap, begins = timeline_of(merged, moves, arrivals)
        covered = max(
            (end - start for part in parts for name, start, end in part.windows if name == label), default=0
        )
        steps.append(Step(label=label, timeline=timeline, gap_ns=gap, covered_ns=covered, begins_ns=begins))
    if not steps:
        raise TraceError("holds no action of a pipeline", file=recordings[0].path)
    return Measurement(
        steps=tuple(steps), clocks=tuple(clocks), unattributed=_sum_by_name(unattributed),
        sources=_sources(recordings), notes=tuple(dict.fromkeys(notes)), empty_input_gradient=is_empty,
    )  # fmt: skip


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


def _transfers(messages: Sequence[Message]) -> Iterator[tuple[int, int, int, int]]:
    """Yield sender, receiver, earliest departure and arrival of each message, by the clocks of these ranks.

    A kernel with a single message ends when the message has left. That time is much later than its start if the
    kernel waits for its peer. It bounds the departure if both directions of a link have it, because clocks are set
    to the middle of the bounds of both directions.
    """
    payloads = kernel_payloads(messages)
    matched = [
        (
            message.source,
            message.target,
            message.sent,
            message.received,
            payloads[kernel_of(message.source, message.sent)] == 1,
        )
        for message in messages
        if message.sent is not None and message.received is not None
    ]  # fmt: skip
    links = {(source, target) for source, target, _, _, is_single in matched if is_single}
    for source, target, sent, received, is_single in matched:
        departure_ns = sent.start_ns
        if is_single and (target, source) in links:
            departure_ns = max(departure_ns, sent.end_ns - _ENDING_NS)
        yield source, target, departure_ns, received.end_ns


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
    return replace(
        part,
        executions=tuple(_align_execution(execution, clock.offset_ns, place) for execution in part.executions),
    )


def _align_execution(execution: Execution, offset_ns: int, place: int) -> Execution:
    action, gpu = execution.action, execution.gpu
    if action.stage == NO_STAGE:
        action = replace(action, stage=place)
    if gpu is not None:
        gpu = shift(gpu, offset_ns, launch_ns=gpu.launch_ns + offset_ns if gpu.launch_ns >= 0 else -1)
    return shift(execution, offset_ns, action=action, gpu=gpu)


def _check_replicas(ranks: Sequence[Recording]) -> None:
    """Raise an error if several ranks run the same action, because they belong to different pipelines."""
    holders: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        members = (member for execution in rank.executions for member in execution.members)
        for action in (str(member) for member in members if member.kind in kinds.PASSES):
            first = holders.setdefault(action, number)
            if first != number:
                a, b = ranks[first].rank, rank.rank
                message = (
                    f"ranks {a} and {b} both run {action}, so they belong to two pipelines: "
                    "give the layout of the job, such as --layout pp=2,dp=2"
                )
                raise TraceError(message, file=rank.path)


def _splits_backwards(ranks: Sequence[tuple[Recording, Arrivals]]) -> bool:
    """Return whether any rank has an input gradient apart."""
    return any(execution.action.kind is Kind.I for rank, _ in ranks for execution in rank.executions)


def _skips_input_gradient(ranks: Sequence[tuple[Recording, Arrivals]]) -> bool:
    """Return whether the first stage's input gradients are empty, so that its ``0W`` is the whole backward.

    Waits for messages that were not recorded lengthen some of them, so their lower quartile counts.
    """
    inputs = [
        (execution, arrivals)
        for rank, arrivals in ranks
        for execution in rank.executions
        if execution.action.kind is Kind.I
    ]
    on_gpu = any(execution.gpu is not None for execution, _ in inputs)
    lengths = [  # on a GPU, an action without a kernel has no duration
        (execution.action.stage, 0 if on_gpu and execution.gpu is None else work_ns(execution, arrivals))
        for execution, arrivals in inputs
    ]
    first = [length for stage, length in lengths if stage == 0]
    later_stages = [length for stage, length in lengths if stage > 0]
    return bool(first and later_stages and np.quantile(first, 0.25) <= _EMPTY_SHARE * np.median(later_stages))


def _merge_first_stage_gradients(rank: Recording) -> Recording:
    """Replace the input and weight gradients of the first stage by one backward."""
    executions = [
        replace(execution, action=replace(execution.action, kind=Kind.B))
        if execution.action.stage == 0 and execution.action.kind is Kind.W
        else execution
        for execution in rank.executions
        if execution.action.stage != 0 or execution.action.kind is not Kind.I
    ]
    return replace(rank, executions=tuple(executions))


def timeline_of(
    ranks: Sequence[Recording], messages: Sequence[Message], arrivals: Arrivals
) -> tuple[Timeline, Int64s, int]:
    """Return the timeline of a step from its first action, the gaps inside its slices, and its start.

    Raises:
        TraceError: the actions do not form a pipeline.
    """
    times = TimesAlone(ranks, arrivals)
    actions = [row for number, rank in enumerate(ranks) for row in _actions(number, rank, arrivals, times)]
    placement = _placement([action for action, _ in actions], len(ranks))
    moves = [
        (move, 0, received_ns)
        for move, received_ns in _moves(messages)
        # A message of a microbatch without computation does not belong to the step.
        if move.action.stage < placement.stages
        and move.action.microbatch + move.action.span <= placement.microbatches
    ]
    rows = [*((action, gap_ns, -1) for action, gap_ns in actions), *moves]
    lane_and_time = attrgetter("rank", "stream", "peer", "start_ns", "end_ns")
    rows.sort(key=lambda row: lane_and_time(row[0]))
    timeline = Timeline.from_slices([row for row, _, _ in rows], placement)
    begins_ns = int(timeline.start_ns.min())
    timeline = replace(
        timeline, start_ns=timeline.start_ns - begins_ns, end_ns=timeline.end_ns - begins_ns,
        # Actions launched before the first action of the step wait from its start on.
        enter_ns=np.maximum(timeline.enter_ns - begins_ns, 0),
    )  # fmt: skip
    timeline = add_group_waits(timeline)
    received_ns = np.array([received_ns for _, _, received_ns in rows], dtype=np.int64)
    if (received_ns >= 0).any():
        timeline = add_causes(timeline, np.where(received_ns < 0, -1, received_ns - begins_ns))
    return timeline, np.array([gap_ns for _, gap_ns, _ in rows], dtype=np.int64), begins_ns


def arrivals_of(messages: Sequence[Message]) -> Arrivals:
    """Return the arrival of each input by whether it is an activation, its stage and its first microbatch."""
    return {
        (message.forward, message.to_stage, message.microbatch): message.received.end_ns
        for message in messages
        if message.stage >= 0 and message.received is not None
    }


def _actions(rank: int, step: Recording, arrivals: Arrivals, times: TimesAlone) -> Iterator[tuple[Slice, int]]:
    """Yield a rank's computations without the waits for their inputs, and its collectives, each with its gap."""
    free: dict[Stream, int] = {}
    pairs = 0
    on_gpu = any(execution.gpu is not None for execution in step.executions)
    for execution in sorted(step.executions, key=lambda execution: (execution.gpu or execution).start_ns):
        if execution.action.kind in kinds.COMMUNICATION and execution.pair < 0:
            continue
        members, stream = execution.members, _stream(execution)
        if on_gpu:
            enter, begin, end = _on_gpu(execution, free.get(stream))
        else:
            enter, begin, end = _on_host(execution, free.get(stream, execution.start_ns), arrivals)
        free[stream] = end
        boundaries = times.boundaries(members, end - begin)
        for number, member in enumerate(members):
            first, last = begin + boundaries[number], begin + boundaries[number + 1]
            gap, collective = _gap_and_collective(execution, number, len(members), last - first)
            yield Slice(
                rank=rank, stream=stream, action=member, start_ns=first, end_ns=last, enter_ns=min(enter, first),
                pair=pairs if len(members) > 1 else execution.pair, collective_ns=collective,
            ), gap  # fmt: skip
        pairs += len(members) > 1


def _stream(execution: Execution) -> Stream:
    """Return the stream of the kernels of an action, by default the stream of its kind."""
    kind, gpu = execution.action.kind, execution.gpu
    if kind in kinds.COMMUNICATION and execution.pair >= 0:
        return Stream.EXPERT_PARALLEL
    computed = gpu is not None and gpu.computes and kind not in kinds.COMMUNICATION | kinds.COPIES
    return Stream.COMPUTE if computed else kind.traits.stream


def _on_host(execution: Execution, free: int, arrivals: Arrivals) -> tuple[int, int, int]:
    """Return when an action reached the head of its stream, when it started and when it ended."""
    # The members of a pair run one after another, so only the input of the first member delays the start.
    arrival_ns = arrival(execution.members[0], arrivals, execution.start_ns)
    begin = max(execution.start_ns, free, min(arrival_ns, execution.end_ns))
    return min(execution.start_ns, begin), begin, max(execution.end_ns, begin)


def _on_gpu(execution: Execution, free: int | None) -> tuple[int, int, int]:
    """Return enter, start and end on a GPU; an action without a kernel has no duration."""
    gpu = execution.gpu
    if gpu is None:
        time_ns = execution.start_ns if free is None else max(free, execution.start_ns)
        return time_ns, time_ns, time_ns
    begin = gpu.start_ns if free is None else max(free, gpu.start_ns)
    launch = gpu.launch_ns if gpu.launch_ns >= 0 else begin
    return min(max(launch, free or launch), begin), begin, max(gpu.end_ns, begin)


def _gap_and_collective(execution: Execution, number: int, members: int, length: int) -> tuple[int, int]:
    """Return a member's share of the gaps and collectives of an action, at most its length."""
    if execution.gpu is None or execution.action.kind in kinds.COMMUNICATION:
        return 0, 0
    gap, collective = (
        total_ns * (number + 1) // members - total_ns * number // members
        for total_ns in (execution.gpu.gap_ns, execution.gpu.collective_ns)
    )
    return min(gap, length), min(collective, length - min(gap, length))


def _moves(messages: Sequence[Message]) -> Iterator[tuple[Slice, int]]:
    """Yield the slices of each message on both ranks, from the start of both ends to the arrival.

    With each slice comes the end of the receiving kernel, -1 without one.
    """
    free: dict[tuple[int, int, bool], int] = {}
    payloads = kernel_payloads(messages)
    for message in sorted((message for message in messages if message.stage >= 0), key=_end):
        sent, received = message.sent, message.received
        batched = received is not None and payloads[kernel_of(message.target, received)] > 1
        size = max(end.size_bytes for end in (sent, received) if end is not None)
        sides = (message.source, message.target, sent, True), (message.target, message.source, received, False)
        for rank, peer, end, sends in sides:
            if end is None or rank < 0:
                continue
            start, stop = _times(end, sent, received, batched=batched)
            stop = max(stop, free.get((rank, peer, sends), stop))
            start = min(max(start, free.get((rank, peer, sends), start)), stop)
            free[rank, peer, sends] = stop
            yield Slice(
                rank=rank, stream=Stream.SEND if sends else Stream.RECV, peer=peer, size_bytes=size,
                start_ns=start, end_ns=stop, enter_ns=min(end.start_ns, start),
                action=Action(
                    kind=kinds.message_kind(sends=sends, forward=message.forward),
                    stage=message.stage if sends else message.to_stage,
                    microbatch=message.microbatch, span=message.span,
                ),
            ), -1 if sends or end.posted_ns < 0 else end.end_ns  # fmt: skip


def _times(
    end: MessageEnd, sent: MessageEnd | None, received: MessageEnd | None, *, batched: bool
) -> tuple[int, int]:
    """Return the start and end of a message at one of its ends.

    An end has the times of its kernel or post if the other end is unknown, or if the sender's kernel ended before
    the receiver started. A kernel with several messages ends with the last message. So a message has arrived when
    the sender's kernel ends, if that is before the end of the receiver's kernel.
    """
    if sent is None or received is None or (sent.posted_ns >= 0 and sent.end_ns < received.start_ns):
        return end.start_ns, end.end_ns
    start, stop = max(sent.start_ns, received.start_ns), received.end_ns
    return start, min(stop, max(sent.end_ns, start)) if batched else stop


def _end(message: Message) -> int:
    end = message.received or message.sent
    return end.end_ns if end is not None else 0


def _placement(slices: Sequence[Slice], ranks: int) -> Placement:
    rows = sorted(
        (row for row in slices if row.stream is Stream.COMPUTE), key=lambda row: (row.rank, row.start_ns)
    )
    actions: list[list[Action]] = [[] for _ in range(ranks)]
    for row in rows:
        actions[row.rank].append(row.action)
    try:
        return Schedule.from_rows(actions).placement
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
            for execution in rank.executions:
                action = execution.action
                if not action.sub_actions:
                    times[action.kind, action.stage].append(work_ns(execution, arrivals))
        self._by_stage = {key: median(lengths) for key, lengths in times.items()}
        for (kind, _), lengths in list(times.items()):
            times[kind, -1] += lengths
        self._by_kind = {kind: median(lengths) for (kind, stage), lengths in times.items() if stage < 0}

    def boundaries(self, members: Sequence[Action], length_ns: int) -> list[int]:
        """Return the start of each member and the end of the last; equal parts if a member never ran alone."""
        times = [self._of(member.kind, member.stage) for member in members]
        known = [time for time in times if time]
        weights = known if len(known) == len(times) else [1.0] * len(members)
        total = sum(weights)
        inner = [min(round(length_ns * weight / total), length_ns) for weight in accumulate(weights[:-1])]
        return [0, *inner, length_ns]

    def _of(self, kind: Kind, stage: int) -> float | None:
        time = self._by_stage.get((kind, stage), self._by_kind.get(kind))
        if time is None and kind is Kind.B:
            parts = [self._of(part, stage) for part in (Kind.I, Kind.W)]
            return sum(part for part in parts if part) if all(parts) else None
        return time


def arrival(action: Action, arrivals: Arrivals, default_ns: int) -> int:
    """Return the arrival of the input of an action."""
    return arrivals.get((action.kind is Kind.F, action.stage, action.microbatch), default_ns)


def work_ns(execution: Execution, arrivals: Arrivals) -> int:
    """Return the duration of an action without the wait for its input."""
    if execution.gpu is not None:
        return execution.gpu.end_ns - execution.gpu.start_ns
    arrival_ns = arrival(execution.action, arrivals, execution.start_ns)
    return execution.end_ns - min(max(execution.start_ns, arrival_ns), execution.end_ns)
