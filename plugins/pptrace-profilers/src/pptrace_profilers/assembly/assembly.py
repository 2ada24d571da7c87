"""Recordings of all ranks become a measurement: steps, in each the pipeline's actions on one clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import TraceError
from pptrace.model.action import COMMUNICATION, Kind
from pptrace.timeline.measurement import Measurement, Source, Step, Unattributed
from pptrace_profilers.assembly.clocks import align
from pptrace_profilers.assembly.messages import RankStep, kernel_of, kernels, match_ends, on_one_clock
from pptrace_profilers.assembly.microbatches import name_messages
from pptrace_profilers.assembly.slices import timeline_of
from pptrace_profilers.assembly.steps import split_steps
from pptrace_profilers.rules.names import NO_STAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.timeline.measurement import Clock
    from pptrace_profilers.assembly.messages import Message
    from pptrace_profilers.recording.recording import Ran, Recording

__all__ = ["assemble"]

_EMPTY_SHARE = 0.1
_ENDING_NS = 20_000
"""The most by which a kernel that sends ends later than its last byte is there."""
_CONTRADICTED_NS = 50_000
"""From how much on it is told that no one offset of a clock fits."""
_PASSES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})


def assemble(recordings: Sequence[Recording]) -> Measurement:
    """Return the measurement of a pipeline's recordings, one per pipeline rank in their order.

    Raises:
        TraceError: no step holds an action of a pipeline, or ranks hold the same stage and microbatch.
    """
    labels, by_step, left_out = split_steps(recordings)
    unattributed = [replace(one, rank=rank) for rank, each in enumerate(recordings) for one in each.unattributed]
    matched = [match_ends(step, unattributed) for step in by_step]
    clocks = align(len(recordings), _sent([message for step in matched for message in step]))
    notes = [*(note for one in recordings for note in one.notes), *left_out, *_contradicted(clocks)]
    steps = []
    for label, ranks, messages in zip(labels, by_step, matched, strict=True):
        if not any(one.action.kind not in COMMUNICATION for rank in ranks for one in rank.ran):
            notes.append(f"{label} holds no action: left out")
            continue
        shifted = [_shifted(rank, clock) for rank, clock in zip(ranks, clocks, strict=True)]
        carried = [on_one_clock(message, clocks) for message in messages]
        _check_replicas(shifted, recordings)
        name_messages(shifted, carried, unattributed)
        notes += _fold_first_stage(shifted)
        timeline, gap, begins = timeline_of(shifted, carried)
        covered = _covered(recordings, label)
        steps.append(Step(label=label, timeline=timeline, gap_ns=gap, covered_ns=covered, begins_ns=begins))
    if not steps:
        raise TraceError("holds no action of a pipeline", file=recordings[0].path)
    return Measurement(
        steps=tuple(steps), clocks=tuple(clocks), unattributed=_summed(unattributed),
        sources=_sources(recordings), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _contradicted(clocks: Sequence[Clock]) -> list[str]:
    off = [one for one in clocks if one.contradicted_ns > _CONTRADICTED_NS]
    if not off:
        return []
    ranks, worst = ", ".join(str(one.rank) for one in off), max(one.contradicted_ns for one in off)
    told = f"clocks of ranks {ranks} contradict their messages by up to {worst / 1e6:.3f} ms, however they are set"
    return [f"{told}: they drift, or times are wrong, and what links take is known no better than that"]


def _sources(recordings: Sequence[Recording]) -> tuple[Source, ...]:
    found = [
        Source(rank=rank, path=one.path, origin_ns=one.origin_ns, has_clock=one.has_clock)
        for rank, one in enumerate(recordings)
        if one.origin_ns is not None
    ]
    return tuple(found) if len(found) == len(recordings) else ()


def _sent(messages: Sequence[Message]) -> list[tuple[int, int, int, int]]:
    """Return sender, receiver, and by their own clocks when a message had not yet left and when it was there.

    A kernel that carries nothing else ends when its message has left, much later than it starts where it waits for
    its peer. That is used where it is known both ways, for clocks are set to the middle of what both ways allow.
    """
    carried_by = kernels(messages)
    whole = [
        (one, one.sent, one.received) for one in messages if one.sent is not None and one.received is not None
    ]
    alone = [carried_by[kernel_of(one.source, sent)] == 1 for one, sent, _ in whole]
    ways = {(one.source, one.target) for (one, _, _), own in zip(whole, alone, strict=True) if own}
    found = []
    for (one, sent, received), own in zip(whole, alone, strict=True):
        left = sent.start_ns
        if own and (one.target, one.source) in ways:
            left = max(left, sent.end_ns - _ENDING_NS)
        found.append((one.source, one.target, left, received.end_ns))
    return found


def _summed(unattributed: Sequence[Unattributed]) -> tuple[Unattributed, ...]:
    """Return one entry per rank and name, the longest first."""
    totals: dict[tuple[int, str], tuple[int, int]] = {}
    for one in unattributed:
        count, total = totals.get((one.rank, one.what), (0, 0))
        totals[one.rank, one.what] = (count + one.count, total + one.total_ns)
    found = [
        Unattributed(rank=rank, what=what, count=count, total_ns=total)
        for (rank, what), (count, total) in totals.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.rank, one.what)))


def _covered(recordings: Sequence[Recording], label: str) -> int:
    """Return the longest of the ranges that the ranks' profilers wrote around a step."""
    ranges = (end - start for one in recordings for name, start, end in one.windows if name == label)
    return max(ranges, default=0)


def _shifted(rank: RankStep, clock: Clock) -> RankStep:
    """Return what a rank did, by rank 0's clock, with the rank's own stage where names did not say one."""
    return RankStep(
        ran=[_later(_staged(one, clock.rank), clock.offset_ns) for one in rank.ran],
        sends=rank.sends, receives=rank.receives,
    )  # fmt: skip


def _later(one: Ran, by_ns: int) -> Ran:
    device = one.device
    if device is not None:
        launch = device.launch_ns + by_ns if device.launch_ns >= 0 else -1
        device = replace(device, start_ns=device.start_ns + by_ns, end_ns=device.end_ns + by_ns, launch_ns=launch)
    return replace(one, start_ns=one.start_ns + by_ns, end_ns=one.end_ns + by_ns, device=device)


def _staged(ran: Ran, rank: int) -> Ran:
    """Give an action without a stage the one of its rank."""
    return replace(ran, action=replace(ran.action, stage=rank)) if ran.action.stage == NO_STAGE else ran


def _check_replicas(ranks: Sequence[RankStep], recordings: Sequence[Recording]) -> None:
    """Refuse a stage that works on one microbatch on several ranks: those are of several pipelines."""
    holders: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        members = [member for one in rank.ran for member in one.action.sub_actions or (one.action,)]
        for action in (str(member) for member in members if member.kind in _PASSES):
            first = holders.setdefault(action, number)
            if first != number:
                a, b = recordings[first].rank, recordings[number].rank
                message = (
                    f"{action} is of rank {a} and of rank {b}, so they are of two pipelines: "
                    "say how the job is laid out, as --layout pp=2,dp=2"
                )
                raise TraceError(message, file=recordings[number].path)


def _fold_first_stage(ranks: Sequence[RankStep]) -> list[str]:
    """Make one backward of the first stage's empty input gradient and what follows it.

    PyTorch skips the input gradient of the first stage, so that ``0I`` does nothing and ``0W`` the whole backward.
    """
    inputs = [one for rank in ranks for one in rank.ran if one.action.kind is Kind.I]
    on_gpu = any(one.device is not None for one in inputs)
    first = [_length(one, on_gpu=on_gpu) for one in inputs if one.action.stage == 0]
    others = [_length(one, on_gpu=on_gpu) for one in inputs if one.action.stage > 0]
    if not first or not others or np.median(first) > _EMPTY_SHARE * np.median(others):
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


def _length(one: Ran, *, on_gpu: bool) -> int:
    """Return what an action took; one without a kernel took a GPU no time."""
    if one.device is not None:
        return one.device.end_ns - one.device.start_ns
    return 0 if on_gpu else one.end_ns - one.start_ns
