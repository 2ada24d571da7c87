"""Recordings of all ranks become a measurement: steps, in each the pipeline's actions on one clock."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import TraceError
from pptrace.model.action import Action, Kind
from pptrace.timeline.measurement import Measurement, Step, Unattributed
from pptrace_profilers.clocks import align
from pptrace_profilers.rows import timeline_of
from pptrace_profilers.rules import NO_STAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.timeline.measurement import Clock
    from pptrace_profilers.recording import End, Ran, Recording

__all__ = ["Message", "RankStep", "assemble"]

_COMPUTES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})
_SENDS = {True: (Kind.SEND_F, Kind.RECV_F), False: (Kind.SEND_B, Kind.RECV_B)}
_EMPTY_SHARE = 0.1


@dataclass(slots=True)
class Message:
    """A message with both its ends, on one clock."""

    source: int
    """The sending rank."""
    target: int
    """The receiving rank."""
    sent: End
    """The sender's end."""
    received: End
    """The receiver's end."""
    forward: bool = True
    """Whether it is an activation."""
    stage: int = -1
    """The stage that sends it; -1 where that is unknown."""
    unit: int = -1
    """The microbatch."""


@dataclass(slots=True)
class RankStep:
    """What one rank did in one step."""

    ran: list[Ran] = field(default_factory=list)
    """Actions by time."""
    sends: list[End] = field(default_factory=list)
    """What left."""
    receives: list[End] = field(default_factory=list)
    """What arrived."""


def assemble(recordings: Sequence[Recording]) -> Measurement:
    """Return the measurement of a pipeline's recordings, one per pipeline rank in their order.

    Raises:
        TraceError: no step holds an action of a pipeline, or ranks hold the same stage and microbatch.
    """
    labels, by_step = _steps(recordings)
    unattributed: list[Unattributed] = []
    matched = [_messages(step, unattributed) for step in by_step]
    clocks = align(len(recordings), [
        (m.source, m.target, m.sent.start_ns, m.received.end_ns) for step in matched for m in step
    ])  # fmt: skip
    notes = [note for one in recordings for note in one.notes]
    steps = []
    for label, ranks, messages in zip(labels, by_step, matched, strict=True):
        if not any(one.ran for one in ranks):
            continue
        shifted = [_shifted(rank, clock) for rank, clock in zip(ranks, clocks, strict=True)]
        on_one_clock = [_on_one_clock(message, clocks) for message in messages]
        _name(shifted, on_one_clock, unattributed)
        notes += _fold_first_stage(shifted)
        timeline, gap = timeline_of(shifted, on_one_clock)
        steps.append(Step(label=label, timeline=timeline, gap_ns=gap))
    if not steps:
        raise TraceError("holds no action of a pipeline", file=recordings[0].path)
    return Measurement(
        steps=tuple(steps), clocks=tuple(clocks),
        unattributed=tuple(sorted(unattributed, key=lambda one: (-one.total_ns, one.rank, one.what))),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _steps(recordings: Sequence[Recording]) -> tuple[list[str], list[list[RankStep]]]:
    """Return the steps' labels, and per step what each rank did.

    Steps are those that the profiler marked on every rank; else an action's k-th time belongs to the k-th step.
    """
    marked = [dict.fromkeys(label for label, _, _ in one.windows) for one in recordings]
    labels = [label for label in marked[0] if all(label in other for other in marked)]
    if not labels:
        return _repeated(recordings)
    steps = [[RankStep() for _ in recordings] for _ in labels]
    for rank, one in enumerate(recordings):
        number = {label: index for index, label in enumerate(labels)}
        for label, start, end in one.windows:
            if label not in number:
                continue
            step = steps[number[label]][rank]
            step.ran += [ran for ran in one.ran if start <= ran.start_ns <= end]
            step.sends += [e for e in one.ends if e.sends and start <= e.start_ns <= end]
            step.receives += [e for e in one.ends if not e.sends and start <= e.start_ns <= end]
    return labels, steps


def _repeated(recordings: Sequence[Recording]) -> tuple[list[str], list[list[RankStep]]]:
    steps: list[list[RankStep]] = []
    for rank, one in enumerate(recordings):
        seen: dict[str, int] = defaultdict(int)
        starts: list[int] = []
        for ran in one.ran:
            number = seen[str(ran.action)]
            seen[str(ran.action)] += 1
            while len(steps) <= number:
                steps.append([RankStep() for _ in recordings])
            if len(starts) <= number:
                starts.append(ran.start_ns)
            steps[number][rank].ran.append(ran)
        for end in one.ends:
            number = max(int(np.searchsorted(starts, end.start_ns, side="right")) - 1, 0)
            if number < len(steps):
                own = steps[number][rank]
                (own.sends if end.sends else own.receives).append(end)
    return [f"step {number}" for number in range(len(steps))], steps


def _messages(ranks: Sequence[RankStep], unattributed: list[Unattributed]) -> list[Message]:
    """Match the ends of messages: between two ranks they arrive in the order in which they left."""
    found = []
    for source, sender in enumerate(ranks):
        for target, receiver in enumerate(ranks):
            sent = [end for end in sender.sends if end.peer == target]
            received = [end for end in receiver.receives if end.peer == source]
            found += [
                Message(source=source, target=target, sent=one, received=other)
                for one, other in zip(sent, received, strict=False)
            ]
            if len(sent) != len(received):
                rank, what = (source, "sends") if len(sent) > len(received) else (target, "receives")
                count = abs(len(sent) - len(received))
                other = target if rank == source else source
                unattributed.append(
                    Unattributed(
                        rank=rank, what=f"{what} that rank {other} has no other end of", count=count, total_ns=0
                    )
                )
    return found


def _shifted(rank: RankStep, clock: Clock) -> RankStep:
    offset = clock.offset_ns
    return RankStep(
        ran=[replace(one, start_ns=one.start_ns + offset, end_ns=one.end_ns + offset) for one in rank.ran],
        sends=rank.sends, receives=rank.receives,
    )  # fmt: skip


def _on_one_clock(message: Message, clocks: Sequence[Clock]) -> Message:
    sent, received = clocks[message.source].offset_ns, clocks[message.target].offset_ns
    return replace(
        message,
        sent=replace(message.sent, start_ns=message.sent.start_ns + sent, end_ns=message.sent.end_ns + sent),
        received=replace(
            message.received,
            start_ns=message.received.start_ns + received, end_ns=message.received.end_ns + received,
        ),
    )  # fmt: skip


def _name(ranks: Sequence[RankStep], messages: Iterable[Message], unattributed: list[Unattributed]) -> None:
    """Find out what each message carries, from either end's annotation, else from the order of actions."""
    for number, rank in enumerate(ranks):
        rank.ran = [_staged(one, number) for one in rank.ran]
    orders: dict[tuple[int, Kind], list[Action]] = {}
    for number, rank in enumerate(ranks):
        for kind in _COMPUTES:
            orders[number, kind] = [one.action for one in rank.ran if one.action.kind is kind]
    taken: dict[tuple[int, int], int] = defaultdict(int)
    for message in messages:
        _from_annotation(message)
        if message.stage >= 0:
            continue
        # One stage per rank: what goes to the next rank is an activation, what goes back a gradient, in order.
        step = message.target - message.source
        order = orders[message.source, Kind.F if step == 1 else Kind.B]
        at = taken[message.source, message.target]
        taken[message.source, message.target] += 1
        if abs(step) == 1 and at < len(order) and len({one.stage for one in order}) == 1:
            message.forward, message.stage, message.unit = step == 1, order[at].stage, order[at].unit
        else:
            length = message.received.end_ns - message.received.start_ns
            what = f"messages to rank {message.target} that no annotation names"
            unattributed.append(Unattributed(rank=message.source, what=what, count=1, total_ns=length))


def _staged(ran: Ran, rank: int) -> Ran:
    """Give an action without a stage the one of its rank."""
    return replace(ran, action=replace(ran.action, stage=rank)) if ran.action.stage == NO_STAGE else ran


def _from_annotation(message: Message) -> None:
    sent, received = message.sent.action, message.received.action
    if sent is not None and sent.kind in {Kind.SEND_F, Kind.SEND_B}:
        message.forward, message.stage, message.unit = sent.kind is Kind.SEND_F, sent.stage, sent.unit
    elif received is not None and received.kind in {Kind.RECV_F, Kind.RECV_B}:
        message.forward = received.kind is Kind.RECV_F
        message.stage, message.unit = received.stage + (-1 if message.forward else 1), received.unit


def _fold_first_stage(ranks: Sequence[RankStep]) -> list[str]:
    """Make one backward of the first stage's empty input gradient and what follows it.

    PyTorch skips the input gradient of the first stage, so that ``0I`` does nothing and ``0W`` the whole backward.
    """
    first = [one for rank in ranks for one in rank.ran if one.action.stage == 0]
    others = [
        one.end_ns - one.start_ns
        for rank in ranks
        for one in rank.ran
        if one.action.kind is Kind.I and one.action.stage > 0
    ]
    inputs = [one for one in first if one.action.kind is Kind.I]
    if not inputs or not others:
        return []
    lengths = [one.end_ns - one.start_ns for one in inputs]
    if np.median(lengths) > _EMPTY_SHARE * np.median(others):
        return []
    for rank in ranks:
        kept = [one for one in rank.ran if not (one.action.stage == 0 and one.action.kind is Kind.I)]
        rank.ran = [
            replace(one, action=replace(one.action, kind=Kind.B))
            if one.action.stage == 0 and one.action.kind is Kind.W
            else one
            for one in kept
        ]
    return [
        "stage 0: input gradients are empty, as PyTorch skips them; each is one backward with its weight gradient"
    ]
