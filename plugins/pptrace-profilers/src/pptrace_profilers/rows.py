"""A step's actions and messages become a timeline: waits cut off, messages between their two ends."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError, TraceError
from pptrace.model.action import COMMUNICATION, Action, Kind
from pptrace.schedule.infer import infer_placement
from pptrace.timeline.build import from_slices
from pptrace.timeline.timeline import Slice, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.model.columns import Int64s
    from pptrace.model.placement import Placement
    from pptrace.timeline.timeline import Timeline
    from pptrace_profilers.assemble import Message, RankStep

__all__ = ["timeline_of"]

_COMPUTES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.RECOMPUTE, Kind.OPTIMIZER})


def timeline_of(ranks: Sequence[RankStep], messages: Sequence[Message]) -> tuple[Timeline, Int64s]:
    """Return a step's timeline, from its first action on, and the gaps inside its slices.

    Raises:
        TraceError: the actions are no pipeline's.
    """
    arrived = {
        (message.forward, message.stage + (1 if message.forward else -1), message.unit): message
        for message in messages
        if message.stage >= 0
    }
    slices = [one for number, rank in enumerate(ranks) for one in _computes(number, rank, arrived)]
    placement = _placement(slices, len(ranks))
    slices += _carried(messages)
    zero = min(one.start_ns for one in slices)
    timeline = from_slices([_since(one, zero) for one in slices], placement)
    return timeline, np.zeros(len(timeline), dtype=np.int64)


def _computes(rank: int, step: RankStep, arrived: Mapping[tuple[bool, int, int], Message]) -> list[Slice]:
    """Return a rank's computations without the waits for their inputs, and its own collectives."""
    found = []
    free: dict[Stream, int] = defaultdict(int)
    braids = 0
    for one in step.ran:
        if one.action.kind in COMMUNICATION:
            continue
        members = one.action.sub_actions or (one.action,)
        stream = Stream.COMPUTE if one.action.kind in _COMPUTES else Stream.DATA_PARALLEL
        # A braid's members run one after another, so only the first one's input holds up its start.
        first_in = arrived.get((members[0].kind is Kind.F, members[0].stage, members[0].unit))
        there = first_in.received.end_ns if first_in is not None else 0
        begin = max(one.start_ns, free[stream], min(there, one.end_ns))
        end = max(one.end_ns, begin)
        free[stream] = end
        length = end - begin
        for number, member in enumerate(members):
            first, last = begin + length * number // len(members), begin + length * (number + 1) // len(members)
            found.append(Slice(
                rank=rank, stream=stream, action=member, start_ns=first, end_ns=last,
                enter_ns=min(one.start_ns, first), braid=braids if len(members) > 1 else -1,
            ))  # fmt: skip
        braids += len(members) > 1
    return found


def _carried(messages: Sequence[Message]) -> list[Slice]:
    """Return both slices of each message: from when both ends were posted until it was there."""
    found = []
    free: dict[tuple[int, Stream, int], int] = defaultdict(int)
    for message in sorted(messages, key=lambda one: one.received.end_ns):
        if message.stage < 0:
            continue
        kinds = (Kind.SEND_F, Kind.RECV_F) if message.forward else (Kind.SEND_B, Kind.RECV_B)
        stages = (message.stage, message.stage + (1 if message.forward else -1))
        both = max(message.sent.start_ns, message.received.start_ns)
        ends = ((message.source, Stream.SEND, message.target), (message.target, Stream.RECV, message.source))
        for lane, kind, stage, post in zip(ends, kinds, stages, (message.sent, message.received), strict=True):
            end = max(message.received.end_ns, free[lane])
            begin = min(max(both, free[lane]), end)
            free[lane] = end
            found.append(Slice(
                rank=lane[0], stream=lane[1], peer=lane[2],
                action=Action(kind=kind, stage=stage, unit=message.unit),
                start_ns=begin, end_ns=end, enter_ns=min(post.start_ns, begin),
                size_bytes=message.sent.size_bytes or message.received.size_bytes,
            ))  # fmt: skip
    return found


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
    return Slice(
        rank=one.rank, stream=one.stream, action=one.action, peer=one.peer,
        start_ns=one.start_ns - zero, end_ns=one.end_ns - zero, enter_ns=one.enter_ns - zero,
        size_bytes=one.size_bytes, braid=one.braid,
    )  # fmt: skip
