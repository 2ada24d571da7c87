"""Recordings of all ranks become a measurement: steps, in each the pipeline's actions on one clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import COMMUNICATION, PASSES, Kind, Measurement, Source, Step, TraceError, Unattributed
from pptrace_profilers.assembly.clocks import align
from pptrace_profilers.assembly.messages import kernel_of, kernel_payloads, match_ends, shifted_message
from pptrace_profilers.assembly.microbatches import name_messages
from pptrace_profilers.assembly.overlapped_pairs import own_length
from pptrace_profilers.assembly.slices import arrivals_of, timeline_of
from pptrace_profilers.assembly.steps import split_steps
from pptrace_profilers.recording.recording import NO_STAGE, shifted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import Clock
    from pptrace_profilers.assembly.messages import Message
    from pptrace_profilers.assembly.overlapped_pairs import Arrivals
    from pptrace_profilers.recording.recording import Execution, Recording

__all__ = ["assemble"]

_EMPTY_SHARE = 0.1
_SKIPPED = (
    "stage 0: input gradients are empty, as PyTorch skips them; each is one backward with its weight gradient"
)
_ENDING_NS = 20_000
"""The most by which a kernel that sends ends later than its last byte is there."""
_CONTRADICTED_NS = 50_000
"""From how much on it is told that no one offset of a clock fits."""


def assemble(recordings: Sequence[Recording], numbers: Sequence[int] = ()) -> Measurement:
    """Return the measurement of a pipeline's recordings, one per pipeline rank in their order.

    Args:
        recordings: what the ranks did.
        numbers: the ranks' places in the pipeline where others are missing; their own order unless given.

    Raises:
        TraceError: no step holds an action of a pipeline, or ranks hold the same stage and microbatch.
    """
    labels, rank_steps, left_out = split_steps(recordings)
    unattributed = [
        replace(work, rank=rank) for rank, recording in enumerate(recordings) for work in recording.unattributed
    ]
    matched = [match_ends(step, unattributed) for step in rank_steps]
    clocks = align(len(recordings), list(_transfers([message for step in matched for message in step])))
    notes = [*(note for one in recordings for note in one.notes), *left_out, *_contradictions(clocks)]
    found = []
    for label, ranks, messages in zip(labels, rank_steps, matched, strict=True):
        if all(one.action.kind in COMMUNICATION for rank in ranks for one in rank.executions):
            notes.append(f"{label} holds no action: left out")
            continue
        places = numbers or range(len(ranks))
        parts = [_on_one_clock(*one) for one in zip(ranks, clocks, places, strict=True)]
        _check_replicas(parts)
        moves = [shifted_message(message, clocks) for message in messages]
        name_messages(parts, moves, unattributed)
        found.append((label, parts, moves))
    # What a framework skips it skips in every step, however long one of them took.
    skips = _skips_input_gradient([(part, arrivals_of(moves)) for _, parts, moves in found for part in parts])
    notes += [_SKIPPED] if skips else []
    steps = []
    for label, parts, moves in found:
        whole = [_with_whole_backward(part) for part in parts] if skips else parts
        timeline, gap, begins = timeline_of(whole, moves)
        covered = _covered(recordings, label)
        steps.append(Step(label=label, timeline=timeline, gap_ns=gap, covered_ns=covered, begins_ns=begins))
    if not steps:
        raise TraceError("holds no action of a pipeline", file=recordings[0].path)
    return Measurement(
        steps=tuple(steps), clocks=tuple(clocks), unattributed=_summed(unattributed),
        sources=_sources(recordings), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _contradictions(clocks: Sequence[Clock]) -> Iterator[str]:
    contradicted = [clock for clock in clocks if clock.contradicted_ns > _CONTRADICTED_NS]
    if contradicted:
        ranks = ", ".join(str(clock.rank) for clock in contradicted)
        worst = max(clock.contradicted_ns for clock in contradicted) / 1e6
        yield (
            f"clocks of ranks {ranks} contradict their messages by up to {worst:.3f} ms, however they are set: "
            "they drift, or times are wrong, and what links take is known no better than that"
        )


def _sources(recordings: Sequence[Recording]) -> tuple[Source, ...]:
    """Return the ranks' files, where viewers of traces open all of them."""
    sources = [
        Source(rank=rank, path=one.path, origin_ns=one.origin_ns, has_clock=one.has_clock)
        for rank, one in enumerate(recordings)
        if one.origin_ns is not None
    ]
    return tuple(sources) if len(sources) == len(recordings) else ()


def _transfers(messages: Sequence[Message]) -> Iterator[tuple[int, int, int, int]]:
    """Yield sender, receiver, and by their own clocks when a message had not yet left and when it was there.

    A kernel that carries nothing else ends when its message has left, much later than it starts where it waits for
    its peer. That is used where it is known both ways, for clocks are set to the middle of what both ways allow.
    """
    payloads = kernel_payloads(messages)
    whole = [
        (one.source, one.target, one.sent, one.received, payloads[kernel_of(one.source, one.sent)] == 1)
        for one in messages
        if one.sent is not None and one.received is not None
    ]
    ways = {(source, target) for source, target, _, _, alone in whole if alone}
    for source, target, sent, received, alone in whole:
        left = sent.start_ns
        if alone and (target, source) in ways:
            left = max(left, sent.end_ns - _ENDING_NS)
        yield source, target, left, received.end_ns


def _summed(unattributed: Sequence[Unattributed]) -> tuple[Unattributed, ...]:
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


def _covered(recordings: Sequence[Recording], label: str) -> int:
    """Return the longest of the ranges that the ranks' profilers wrote around a step."""
    ranges = (end - start for recording in recordings for name, start, end in recording.windows if name == label)
    return max(ranges, default=0)


def _on_one_clock(part: Recording, clock: Clock, place: int) -> Recording:
    """Return what a rank did, by rank 0's clock, with its place as its stage where names did not say one."""
    executions = (_later(_staged(execution, place), clock.offset_ns) for execution in part.executions)
    return replace(part, executions=tuple(executions))


def _later(execution: Execution, by_ns: int) -> Execution:
    gpu = execution.gpu
    if gpu is not None:
        gpu = shifted(gpu, by_ns, launch_ns=gpu.launch_ns + by_ns if gpu.launch_ns >= 0 else -1)
    return shifted(execution, by_ns, gpu=gpu)


def _staged(execution: Execution, place: int) -> Execution:
    """Give an action without a stage the one of its rank."""
    if execution.action.stage != NO_STAGE:
        return execution
    return replace(execution, action=replace(execution.action, stage=place))


def _check_replicas(ranks: Sequence[Recording]) -> None:
    """Refuse a stage that works on one microbatch on several ranks: those are of several pipelines."""
    holders: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        members = (member for execution in rank.executions for member in execution.members)
        for action in (str(member) for member in members if member.kind in PASSES):
            first = holders.setdefault(action, number)
            if first != number:
                a, b = ranks[first].rank, rank.rank
                message = (
                    f"{action} is of rank {a} and of rank {b}, so they are of two pipelines: "
                    "say how the job is laid out, as --layout pp=2,dp=2"
                )
                raise TraceError(message, file=rank.path)


def _skips_input_gradient(ranks: Sequence[tuple[Recording, Arrivals]]) -> bool:
    """Return whether the first stage's input gradients are empty, so that its ``0W`` is the whole backward."""
    inputs = [
        (execution, arrivals)
        for rank, arrivals in ranks
        for execution in rank.executions
        if execution.action.kind is Kind.I
    ]
    on_gpu = any(execution.gpu is not None for execution, _ in inputs)
    lengths = [  # of a GPU's actions one without a kernel took no time
        (one.action.stage, 0 if on_gpu and one.gpu is None else own_length(one, arrivals))
        for one, arrivals in inputs
    ]
    first = [length for stage, length in lengths if stage == 0]
    others = [length for stage, length in lengths if stage > 0]
    return bool(first and others and np.median(first) <= _EMPTY_SHARE * np.median(others))


def _with_whole_backward(rank: Recording) -> Recording:
    """Make one backward of the first stage's input gradient and what follows it."""
    executions = [
        replace(one, action=replace(one.action, kind=Kind.B))
        if one.action.stage == 0 and one.action.kind is Kind.W
        else one
        for one in rank.executions
        if one.action.stage != 0 or one.action.kind is not Kind.I
    ]
    return replace(rank, executions=tuple(executions))
