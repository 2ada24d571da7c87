"""Alignment of clocks, and the steps of a recording.

A message from a to b gives a lower bound of the offset of b's clock. A message from b to a gives an upper bound.
All bounds together leave an interval for the offset of each rank from rank 0. The offset is the middle of the
interval, and its error bound is half of the interval's length. The result does not depend on the initial clocks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Clock
from pptrace_profilers.gpu_spans import window_around
from pptrace_profilers.recording import list_some

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pptrace.plugin import Int64s
    from pptrace_profilers.recording import Execution, MessageEnd, Recording

    Step = tuple[Recording, ...]

_UNBOUND = np.int64(2**62 - 1)
"""Larger than times since 1970; sums of two do not overflow."""


def align(ranks: int, transfers: Sequence[tuple[int, int, int, int]]) -> list[Clock]:
    """Return each rank's clock.

    Args:
        ranks: number of ranks.
        transfers: sender, receiver, post time and arrival time of each message, by the clocks of these ranks.

    A rank without messages to and from rank 0, directly or indirectly, keeps its clock (0 pairs).
    """
    # slack[a, b]: upper bound of the offset of b minus the offset of a.
    slack = np.full((ranks, ranks), _UNBOUND, dtype=np.int64)
    np.fill_diagonal(slack, 0)
    pairs = np.zeros(ranks, dtype=np.int64)
    for source, target, posted, arrived in transfers:
        # With any offsets, a message arrives no earlier than it was posted.
        slack[target, source] = min(slack[target, source], arrived - posted)
        pairs[source] += 1
        pairs[target] += 1
    for middle in range(ranks):
        slack = np.minimum(slack, np.minimum(slack[:, [middle]] + slack[[middle], :], _UNBOUND))
    return [_clock(rank, slack, int(pairs[rank])) for rank in range(ranks)]


def _clock(rank: int, slack: Int64s, pairs: int) -> Clock:
    most, least = int(slack[0, rank]), -int(slack[rank, 0])
    half = _UNBOUND // 2
    if rank == 0 or most > half or least < -half:
        return Clock(rank=rank, offset_ns=0, bound_ns=0, pairs=0)
    return Clock(
        rank=rank, offset_ns=(most + least) // 2, bound_ns=abs(most - least) // 2, pairs=pairs,
        contradicted_ns=max(least - most, 0),
    )  # fmt: skip


_MOST_NAMED = 8
"""Maximum number of steps that a note lists."""


def split_steps(recordings: Sequence[Recording]) -> tuple[list[str], list[Step], list[str]]:
    """Return the labels of steps, the part of each recording in each step, and notes on dropped events.

    Steps are those that the profiler marked on every rank. Without such marks, the k-th run of an action belongs
    to the k-th step. An action without a microbatch belongs to the step at its time.
    """
    marked = [dict.fromkeys(label for label, _, _ in recording.windows) for recording in recordings]
    labels = [label for label in marked[0] if all(label in rank_labels for rank_labels in marked)]
    is_marked = bool(labels)
    if is_marked:
        numbers = [_by_mark(recording, labels) for recording in recordings]
    else:
        numbers = [_by_repetition(recording) for recording in recordings]
        count = 1 + max(max(rank_numbers, default=-1) for rank_numbers in numbers)
        labels = [f"step {number}" for number in range(count)]
    steps = _split_recordings(recordings, numbers, len(labels))
    if not is_marked:
        note = "no step is marked on every rank: an action's k-th time is taken for the k-th step's"
        return labels, steps, [note] if any(marked) else []
    notes = list(_omission_notes(recordings, numbers, marked, labels))
    return _split_repetitions(labels, steps, notes)


def _split_recordings(recordings: Sequence[Recording], numbers: Sequence[Sequence[int]], count: int) -> list[Step]:
    """Split recordings into steps by the step of each action and message."""
    return list(zip(*map(_split_recording, recordings, numbers, [count] * len(recordings)), strict=True))


def _split_recording(recording: Recording, numbers: Sequence[int], count: int) -> list[Recording]:
    executions: list[list[Execution]] = [[] for _ in range(count)]
    ends: list[list[MessageEnd]] = [[] for _ in range(count)]
    for execution, step in zip(recording.executions, numbers, strict=False):
        if step >= 0:
            executions[step].append(execution)
    for end, step in zip(recording.ends, numbers[len(recording.executions) :], strict=True):
        if step >= 0:
            ends[step].append(end)
    return [
        replace(recording, executions=tuple(executions[step]), ends=tuple(ends[step])) for step in range(count)
    ]


def _split_repetitions(
    labels: Sequence[str], steps: Sequence[Step], notes: list[str]
) -> tuple[list[str], list[Step], list[str]]:
    """Split marked steps in which actions repeat: a mark may enclose several runs of a schedule."""
    names: list[str] = []
    single_steps: list[Step] = []
    for label, step in zip(labels, steps, strict=True):
        parts = [replace(part, ends=tuple(sorted(part.ends, key=lambda end: end.host_ns))) for part in step]
        numbers = [_by_repetition(part) for part in parts]
        times = 1 + max(0, *(max(number, default=0) for number in numbers))
        single_steps += _split_recordings(parts, numbers, times)
        names += [label] if times == 1 else [f"{label}, {number + 1} of {times}" for number in range(times)]
        if times > 1:
            notes.append(f"{label} holds actions {times} times: taken for {times} steps")
    return names, single_steps, notes


def _omission_notes(
    recordings: Sequence[Recording], numbers: Sequence[Sequence[int]], marked: Sequence[Collection[str]],
    labels: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield notes on marked steps that some ranks lack, and on actions outside of all steps."""
    partial = [label for label in dict.fromkeys(label for rank in marked for label in rank) if label not in labels]
    if partial:
        verb = "is" if len(partial) == 1 else "are"
        yield f"{list_some(partial, len(partial), _MOST_NAMED)} {verb} not marked on every rank: left out"
        return
    for recording, number in zip(recordings, numbers, strict=True):
        steps = zip(recording.executions, number, strict=False)
        outside = [str(execution.action) for execution, step in steps if step < 0]
        if outside:
            count = "1 action is" if len(outside) == 1 else f"{len(outside):,} actions are"
            yield f"{recording.path.name}: {count} outside of all steps, {outside[0]} first: left out"


def _by_mark(recording: Recording, labels: Sequence[str]) -> list[int]:
    """Return the step of each action, then of each message; -1 outside of all steps."""
    windows = sorted(
        (start, end, labels.index(label)) for label, start, end in recording.windows if label in labels
    )
    steps = np.array([*(number for _, _, number in windows), -1], dtype=np.int64)
    starts_ns = [
        *(execution.start_ns for execution in recording.executions),
        *(end.host_ns for end in recording.ends),
    ]
    numbers: list[int] = steps[window_around([window[:2] for window in windows], starts_ns)].tolist()
    return numbers


def _by_repetition(recording: Recording) -> list[int]:
    """Return the step of each action, then of each message, by counting repetitions."""
    times: dict[str, int] = defaultdict(int)
    starts: list[int] = []
    steps: list[int] = []
    for execution in recording.executions:
        if execution.action.microbatch < 0:
            steps.append(max(len(starts) - 1, 0))
            continue
        name = str(execution.action)
        steps.append(times[name])
        times[name] += 1
        if len(starts) < times[name]:
            starts.append(execution.start_ns)
    if not starts:
        return [*steps, *[-1] * len(recording.ends)]
    latest = np.searchsorted(starts, [end.host_ns for end in recording.ends], side="right") - 1
    ended = np.maximum.accumulate(
        np.array([execution.end_ns for execution in recording.executions], dtype=np.int64)
    )
    wait_ends_ns = [end.end_ns if end.posted_ns < 0 else end.posted_ns for end in recording.ends]
    needed = np.searchsorted(ended, wait_ends_ns, side="right")
    # A receive belongs to the step of the action that ends next.
    waits = np.array([not end.sends for end in recording.ends], dtype=bool)
    waited_step = np.array(steps, dtype=np.int64)[np.minimum(needed, len(steps) - 1)]
    return [*steps, *np.where(waits, waited_step, np.maximum(latest, 0)).tolist()]
