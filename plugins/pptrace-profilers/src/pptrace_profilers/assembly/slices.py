"""A step's actions and messages become a timeline: waits cut off, messages between their two ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError, TraceError
from pptrace.model.action import COMMUNICATION, COMPUTE, Action, Kind
from pptrace.schedule.infer import infer_placement
from pptrace.timeline.build import from_slices
from pptrace.timeline.timeline import Slice, Stream
from pptrace_profilers.assembly.causes import with_causes
from pptrace_profilers.assembly.messages import kernel_of, kernels
from pptrace_profilers.assembly.overlapped_pairs import Usual

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.model.columns import Int64s
    from pptrace.model.placement import Placement
    from pptrace.timeline.timeline import Timeline
    from pptrace_profilers.assembly.messages import Message, RankStep
    from pptrace_profilers.recording.recording import Ran

__all__ = ["timeline_of"]

_STREAMS = {Kind.OFFLOAD: Stream.COPY_OUT, Kind.RELOAD: Stream.COPY_IN}
_Lane = tuple[int, Stream, int]


def timeline_of(ranks: Sequence[RankStep], messages: Sequence[Message]) -> tuple[Timeline, Int64s, int]:
    """Return a step's timeline, from its first action on, the gaps inside its slices, and when it begins.

    Raises:
        TraceError: the actions are no pipeline's.
    """
    arrived = {
        (message.forward, message.to_stage, message.unit): message.received.end_ns
        for message in messages
        if message.stage >= 0 and message.received is not None
    }
    usual = Usual(ranks, arrived)
    ran = [one for number, rank in enumerate(ranks) for one in _ran(number, rank, arrived, usual)]
    placement = _placement([one for one, _ in ran], len(ranks))
    # A message of a microbatch that was nowhere computed has no place in the step.
    sent = ((one, 0, brought) for one, brought in _carried(messages) if _within(one.action, placement))
    slices = [*((one, gap, -1) for one, gap in ran), *sent]
    slices.sort(key=lambda each: _place(each[0]))
    zero = min(one.start_ns for one, _, _ in slices)
    timeline = from_slices([_since(one, zero) for one, _, _ in slices], placement)
    brought = np.array([-1 if done < 0 else done - zero for _, _, done in slices], dtype=np.int64)
    if (brought >= 0).any():
        timeline = with_causes(timeline, brought)
    return timeline, np.array([gap for _, gap, _ in slices], dtype=np.int64), zero


def _within(action: Action, placement: Placement) -> bool:
    return action.unit + action.span <= placement.units and action.stage < placement.stages


def _place(one: Slice) -> tuple[int, int, int, int, int]:
    """Return what a timeline's rows are sorted by, so that they stay as they are here."""
    return one.rank, int(one.stream), one.peer, one.start_ns, one.end_ns


def _ran(
    rank: int, step: RankStep, arrived: Mapping[tuple[bool, int, int], int], usual: Usual
) -> Iterator[tuple[Slice, int]]:
    """Yield a rank's computations without the waits for their inputs, and its own collectives, with their gaps."""
    free: dict[Stream, int] = {}
    braids = 0
    on_gpu = any(one.device is not None for one in step.ran)
    for one in sorted(step.ran, key=_begin):
        if one.action.kind in COMMUNICATION and one.braid < 0:
            continue
        members = one.action.sub_actions or (one.action,)
        stream = _stream(one)
        if on_gpu:
            enter, begin, end = _on_gpu(one, free.get(stream))
        else:
            # A braid's members run one after another, so only the first one's input holds up its start.
            there = arrived.get((members[0].kind is Kind.F, members[0].stage, members[0].unit), one.start_ns)
            begin = max(one.start_ns, free.get(stream, one.start_ns), min(there, one.end_ns))
            enter, end = min(one.start_ns, begin), max(one.end_ns, begin)
        free[stream] = end
        cuts = usual.cuts(members, end - begin)
        for number, member in enumerate(members):
            first, last = begin + cuts[number], begin + cuts[number + 1]
            lost, collective = _inside(one, number, len(members), last - first)
            yield Slice(
                rank=rank, stream=stream, action=member, start_ns=first, end_ns=last, enter_ns=min(enter, first),
                braid=braids if len(members) > 1 else one.braid, collective_ns=collective,
            ), lost  # fmt: skip
        braids += len(members) > 1


def _begin(one: Ran) -> int:
    return one.device.start_ns if one.device is not None else one.start_ns


def _stream(one: Ran) -> Stream:
    """Return the stream of an action: the one that its kernels ran on, else the one that its kind stands for."""
    kind = one.action.kind
    if kind in COMMUNICATION:
        return Stream.COMM
    if kind in COMPUTE or (one.device is not None and one.device.computes and kind not in _STREAMS):
        return Stream.COMPUTE
    return _STREAMS.get(kind, Stream.DATA_PARALLEL)


def _on_gpu(one: Ran, free: int | None) -> tuple[int, int, int]:
    """Return when an action was at the head of its stream, when it started and when it ended.

    One without a kernel takes no time, where the host was or the stream is.
    """
    if one.device is None:
        at = one.start_ns if free is None else max(free, one.start_ns)
        return at, at, at
    begin = one.device.start_ns if free is None else max(free, one.device.start_ns)
    launch = one.device.launch_ns if one.device.launch_ns >= 0 else begin
    return min(max(launch, free or launch), begin), begin, max(one.device.end_ns, begin)


def _inside(one: Ran, number: int, members: int, length: int) -> tuple[int, int]:
    """Return a member's share of an action's gaps and collectives, no more than fits into it."""
    if one.device is None or one.action.kind in COMMUNICATION:
        return 0, 0
    gap, collective = (
        whole * (number + 1) // members - whole * number // members
        for whole in (one.device.gap_ns, one.device.collective_ns)
    )
    return min(gap, length), min(collective, length - min(gap, length))


def _carried(messages: Sequence[Message]) -> list[tuple[Slice, int]]:
    """Return the slices of each message on both ranks: from when both ends were there until it was.

    With each comes when the kernel ended that received it, -1 where none did.

    A message whose sender was done before the receiver began, or of which one end is known, moves at each end by
    that end's own time. A kernel that carries several messages ends with the last of them, so that what it
    received was there when its sender's kernel ended, if that was before.
    """
    found: list[tuple[Slice, int]] = []
    free: dict[_Lane, int] = {}
    carried_by = kernels(messages)
    for message in sorted((one for one in messages if one.stage >= 0), key=_last):
        sent, received = message.sent, message.received
        kinds = (Kind.SEND_F, Kind.RECV_F) if message.forward else (Kind.SEND_B, Kind.RECV_B)
        size = max(end.size_bytes for end in (sent, received) if end is not None)
        apart = sent is None or received is None or (sent.posted_ns >= 0 and sent.end_ns < received.start_ns)
        lanes = (
            (message.source, Stream.SEND, message.target, message.stage, sent),
            (message.target, Stream.RECV, message.source, message.to_stage, received),
        )
        for (rank, stream, peer, stage, own), kind in zip(lanes, kinds, strict=True):
            if own is None or rank < 0:
                continue
            lane = (rank, stream, peer)
            begin, end = own.start_ns, own.end_ns
            if not apart and sent is not None and received is not None:
                begin, end = max(sent.start_ns, received.start_ns), received.end_ns
                if carried_by[kernel_of(message.target, received)] > 1:
                    end = min(end, max(sent.end_ns, begin))
            end = max(end, free.get(lane, end))
            begin = min(max(begin, free.get(lane, begin)), end)
            free[lane] = end
            carried = Slice(
                rank=rank, stream=stream, peer=peer, start_ns=begin, end_ns=end, size_bytes=size,
                action=Action(kind=kind, stage=stage, unit=message.unit, span=message.span),
                enter_ns=min(own.start_ns, begin),
            )  # fmt: skip
            found.append((carried, own.end_ns if own is received and own.posted_ns >= 0 else -1))
    return found


def _last(message: Message) -> int:
    end = message.received or message.sent
    return end.end_ns if end is not None else 0


def _placement(slices: Sequence[Slice], ranks: int) -> Placement:
    rows = sorted(
        (one for one in slices if one.stream is Stream.COMPUTE), key=lambda one: (one.rank, one.start_ns)
    )
    columns = [
        np.array([getattr(one.action, name) for one in rows], dtype=np.int32)
        for name in ("kind", "stage", "unit", "span")
    ]
    ptr = np.searchsorted([one.rank for one in rows], np.arange(ranks + 1))
    try:
        return infer_placement(ptr, *columns)
    except ScheduleError as error:
        raise TraceError(f"its actions are no pipeline's: {error}") from error


def _since(one: Slice, zero: int) -> Slice:
    """Return a slice by the time since the step's first action; what was launched before waits from then on."""
    return replace(
        one, start_ns=one.start_ns - zero, end_ns=one.end_ns - zero, enter_ns=max(one.enter_ns - zero, 0)
    )
