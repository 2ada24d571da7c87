"""A step's actions and messages become a timeline: waits cut off, messages between their two ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import (
    COMMUNICATION,
    COPIES,
    Action,
    CellColumns,
    ScheduleError,
    Slice,
    Stream,
    TraceError,
    from_slices,
    infer_placement,
    message_kind,
)
from pptrace_profilers.assembly.causes import with_causes
from pptrace_profilers.assembly.group_waits import with_group_waits
from pptrace_profilers.assembly.messages import kernel_of, kernel_payloads
from pptrace_profilers.assembly.overlapped_pairs import TimesAlone, arrival
from pptrace_profilers.recording.recording import shifted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import Int64s, Placement, Timeline
    from pptrace_profilers.assembly.messages import Message
    from pptrace_profilers.assembly.overlapped_pairs import Arrivals
    from pptrace_profilers.recording.recording import Execution, MessageEnd, Recording

__all__ = ["arrivals_of", "timeline_of"]


def timeline_of(ranks: Sequence[Recording], messages: Sequence[Message]) -> tuple[Timeline, Int64s, int]:
    """Return a step's timeline, from its first action on, the gaps inside its slices, and when it begins.

    Raises:
        TraceError: the actions are no pipeline's.
    """
    arrivals = arrivals_of(messages)
    times = TimesAlone(ranks, arrivals)
    actions = [one for number, rank in enumerate(ranks) for one in _actions(number, rank, arrivals, times)]
    placement = _placement([action for action, _ in actions], len(ranks))
    # A message of a microbatch that was nowhere computed has no place in the step.
    moves = ((move, 0, done) for move, done in _moves(messages) if _is_within(move.action, placement))
    slices = [*((action, gap, -1) for action, gap in actions), *moves]
    slices.sort(key=lambda row: _place(row[0]))
    slices = with_group_waits(slices)
    zero = min(row.start_ns for row, _, _ in slices)
    timeline = from_slices([_since(row, zero) for row, _, _ in slices], placement)
    received = np.array([-1 if done < 0 else done - zero for _, _, done in slices], dtype=np.int64)
    if (received >= 0).any():
        timeline = with_causes(timeline, received)
    return timeline, np.array([gap for _, gap, _ in slices], dtype=np.int64), zero


def arrivals_of(messages: Sequence[Message]) -> dict[tuple[bool, int, int], int]:
    """Return when each input was there: by whether it is an activation, its stage, and its first microbatch."""
    return {
        (message.forward, message.to_stage, message.microbatch): message.received.end_ns
        for message in messages
        if message.stage >= 0 and message.received is not None
    }


def _is_within(action: Action, placement: Placement) -> bool:
    return action.microbatch + action.span <= placement.microbatches and action.stage < placement.stages


def _place(row: Slice) -> tuple[int, int, int, int, int]:
    """Return what a timeline's rows are sorted by, so that they stay as they are here."""
    return row.rank, int(row.stream), row.peer, row.start_ns, row.end_ns


def _actions(rank: int, step: Recording, arrivals: Arrivals, times: TimesAlone) -> Iterator[tuple[Slice, int]]:
    """Yield a rank's computations without the waits for their inputs, and its own collectives, with their gaps."""
    free: dict[Stream, int] = {}
    pairs = 0
    on_gpu = any(execution.gpu is not None for execution in step.executions)
    for execution in sorted(step.executions, key=_begin):
        if execution.action.kind in COMMUNICATION and execution.pair < 0:
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


def _begin(execution: Execution) -> int:
    return execution.gpu.start_ns if execution.gpu is not None else execution.start_ns


def _stream(execution: Execution) -> Stream:
    """Return the stream of an action: the one that its kernels ran on, else the one that its kind stands for."""
    kind, gpu = execution.action.kind, execution.gpu
    if kind in COMMUNICATION and execution.pair >= 0:
        return Stream.EXPERT_PARALLEL
    computed = gpu is not None and gpu.computes and kind not in COMMUNICATION | COPIES
    return Stream.COMPUTE if computed else kind.traits.stream


def _on_host(execution: Execution, free: int, arrivals: Arrivals) -> tuple[int, int, int]:
    """Return when an action was at the head of its stream, when it started and when it ended."""
    # A pair's members run one after another, so only the first one's input holds up its start.
    there = arrival(execution.members[0], arrivals, execution.start_ns)
    begin = max(execution.start_ns, free, min(there, execution.end_ns))
    return min(execution.start_ns, begin), begin, max(execution.end_ns, begin)


def _on_gpu(execution: Execution, free: int | None) -> tuple[int, int, int]:
    """Return the same of a GPU; an action without a kernel takes no time, where the host was or the stream is."""
    gpu = execution.gpu
    if gpu is None:
        at = execution.start_ns if free is None else max(free, execution.start_ns)
        return at, at, at
    begin = gpu.start_ns if free is None else max(free, gpu.start_ns)
    launch = gpu.launch_ns if gpu.launch_ns >= 0 else begin
    return min(max(launch, free or launch), begin), begin, max(gpu.end_ns, begin)


def _gap_and_collective(execution: Execution, number: int, members: int, length: int) -> tuple[int, int]:
    """Return a member's share of an action's gaps and collectives, no more than fits into it."""
    if execution.gpu is None or execution.action.kind in COMMUNICATION:
        return 0, 0
    gap, collective = (
        whole * (number + 1) // members - whole * number // members
        for whole in (execution.gpu.gap_ns, execution.gpu.collective_ns)
    )
    return min(gap, length), min(collective, length - min(gap, length))


def _moves(messages: Sequence[Message]) -> Iterator[tuple[Slice, int]]:
    """Yield the slices of each message on both ranks: from when both ends were there until it was.

    With each comes when the kernel ended that received it, -1 where none did.
    """
    free: dict[tuple[int, int, bool], int] = {}
    payloads = kernel_payloads(messages)
    for message in sorted((one for one in messages if one.stage >= 0), key=_end):
        sent, received = message.sent, message.received
        batched = received is not None and payloads[kernel_of(message.target, received)] > 1
        size = max(end.size_bytes for end in (sent, received) if end is not None)
        ways = (message.source, message.target, sent, True), (message.target, message.source, received, False)
        for rank, peer, end, sends in ways:
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
                    kind=message_kind(sends=sends, forward=message.forward),
                    stage=message.stage if sends else message.to_stage,
                    microbatch=message.microbatch, span=message.span,
                ),
            ), -1 if sends or end.posted_ns < 0 else end.end_ns  # fmt: skip


def _times(
    end: MessageEnd, sent: MessageEnd | None, received: MessageEnd | None, *, batched: bool
) -> tuple[int, int]:
    """Return from when until when a message moves at one end.

    One whose sender was done before the receiver began, or of which one end is known, moves at each end by that
    end's own time. A kernel that carries several messages ends with the last of them, so that what it received was
    there when its sender's kernel ended, if that was before.
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
        (one for one in slices if one.stream is Stream.COMPUTE), key=lambda one: (one.rank, one.start_ns)
    )
    columns = [
        np.array([getattr(row.action, name) for row in rows], dtype=np.int32)
        for name in ("kind", "stage", "microbatch", "span")
    ]
    ptr = np.searchsorted([row.rank for row in rows], np.arange(ranks + 1))
    try:
        return infer_placement(ptr, CellColumns(columns[0], columns[1], columns[2], columns[3], None))
    except ScheduleError as error:
        raise TraceError(f"its actions are no pipeline's: {error}") from error


def _since(row: Slice, zero: int) -> Slice:
    """Return a slice by the time since the step's first action; what was launched before waits from then on."""
    return shifted(row, -zero, enter_ns=max(row.enter_ns - zero, 0))
