"""Which step each action and message belongs to: as the profiler marks them, else by how often an action comes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.assembly.messages import RankStep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pptrace_profilers.recording.recording import End, Recording

__all__ = ["split_steps"]

_TOLD = 8
"""Steps that are named one by one."""


def split_steps(recordings: Sequence[Recording]) -> tuple[list[str], list[list[RankStep]], list[str]]:
    """Return the steps' labels, per step what each rank did by when its host began it, and what was left out.

    Steps are those that the profiler marked on every rank; else an action's k-th time belongs to the k-th step,
    and what has no microbatch to the step that runs at its time.
    """
    marked = [dict.fromkeys(label for label, _, _ in one.windows) for one in recordings]
    labels = [label for label in marked[0] if all(label in other for other in marked)]
    if labels:
        numbers = [_as_marked(one, labels) for one in recordings]
    else:
        numbers = [_as_repeated(one) for one in recordings]
        labels = [f"step {number}" for number in range(1 + max(max(one, default=-1) for one in numbers))]
    steps = _filled(recordings, numbers, len(labels))
    left_out = list(_left_out(recordings, numbers, marked, labels))
    if not any(marked) or not set(labels) & set(marked[0]):
        return labels, steps, left_out
    return _each_once(recordings, labels, steps, left_out)


def _filled(recordings: Sequence[Recording], numbers: Sequence[Sequence[int]], count: int) -> list[list[RankStep]]:
    """Return per step what each rank did, from the step of each of its actions and messages."""
    steps = [[RankStep() for _ in recordings] for _ in range(count)]
    for rank, (one, number) in enumerate(zip(recordings, numbers, strict=True)):
        for ran, step in zip(one.ran, number, strict=False):
            if step >= 0:
                steps[step][rank].ran.append(ran)
        for end, step in zip(one.ends, number[len(one.ran) :], strict=True):
            if step >= 0:
                (steps[step][rank].sends if end.sends else steps[step][rank].receives).append(end)
    return steps


def _each_once(
    recordings: Sequence[Recording], labels: Sequence[str], steps: Sequence[Sequence[RankStep]], notes: list[str]
) -> tuple[list[str], list[list[RankStep]], list[str]]:
    """Return steps in which no action comes twice: a mark may be around several runs of a schedule."""
    names: list[str] = []
    once: list[list[RankStep]] = []
    for label, step in zip(labels, steps, strict=True):
        own = [
            replace(one, ran=tuple(rank.ran), ends=tuple(sorted([*rank.sends, *rank.receives], key=_post)))
            for one, rank in zip(recordings, step, strict=True)
        ]
        numbers = [_as_repeated(one) for one in own]
        times = 1 + max(0, *(max(number, default=0) for number in numbers))
        once += _filled(own, numbers, times)
        names += [label] if times == 1 else [f"{label}, {number + 1} of {times}" for number in range(times)]
        if times > 1:
            notes.append(f"{label} holds actions {times} times: taken for {times} steps")
    return names, once, notes


def _left_out(
    recordings: Sequence[Recording], numbers: Sequence[Sequence[int]], marked: Sequence[Collection[str]],
    labels: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield what steps and actions are in no step of all ranks."""
    if any(marked) and not set(labels) & set(marked[0]):
        yield "no step is marked on every rank: an action's k-th time is taken for the k-th step's"
        return
    some = [label for label in dict.fromkeys(label for one in marked for label in one) if label not in labels]
    if some:
        yield f"{_listed(some)} not marked on every rank: left out"
    for one, number in zip(recordings, numbers, strict=True):
        outside = [str(ran.action) for ran, step in zip(one.ran, number, strict=False) if step < 0]
        if outside and not some:
            told = "1 action is" if len(outside) == 1 else f"{len(outside):,} actions are"
            yield f"{one.path.name}: {told} outside of all steps, {outside[0]} first: left out"


def _listed(labels: Sequence[str]) -> str:
    told = ", ".join(labels[:_TOLD]) + (f" and {len(labels) - _TOLD} others" if len(labels) > _TOLD else "")
    return f"{told} {'is' if len(labels) == 1 else 'are'}"


def _as_marked(one: Recording, labels: Sequence[str]) -> list[int]:
    """Return the step of each action, then of each message, -1 for what is outside of all."""
    windows = sorted((start, end, labels.index(label)) for label, start, end in one.windows if label in labels)
    starts, ends, numbers = (np.array(column, dtype=np.int64) for column in zip(*windows, strict=True))
    times = np.array([*(ran.start_ns for ran in one.ran), *_posts(one)], dtype=np.int64)
    at = np.searchsorted(starts, times, side="right") - 1
    inside = (at >= 0) & (times <= ends[at])
    found: list[int] = np.where(inside, numbers[at], -1).tolist()
    return found


def _as_repeated(one: Recording) -> list[int]:
    """Return the same by counting."""
    seen: dict[str, int] = defaultdict(int)
    starts: list[int] = []
    found: list[int] = []
    for ran in one.ran:
        if ran.action.unit < 0:
            found.append(max(len(starts) - 1, 0))
            continue
        name = str(ran.action)
        found.append(seen[name])
        seen[name] += 1
        if len(starts) < seen[name]:
            starts.append(ran.start_ns)
    if not starts:
        return [*found, *[-1] * len(one.ends)]
    at = np.searchsorted(starts, list(_posts(one)), side="right") - 1
    ended = np.maximum.accumulate(np.array([ran.end_ns for ran in one.ran], dtype=np.int64))
    known = [end.end_ns if end.posted_ns < 0 else end.posted_ns for end in one.ends]
    needed = np.searchsorted(ended, known, side="right")
    # What the host waits for, or launches, is needed by what ends next, which a step may begin with.
    waits = np.array([not end.sends for end in one.ends], dtype=bool)
    later = np.array(found, dtype=np.int64)[np.minimum(needed, len(found) - 1)]
    return [*found, *np.where(waits, later, np.maximum(at, 0)).tolist()]


def _posts(one: Recording) -> list[int]:
    return [_post(end) for end in one.ends]


def _post(end: End) -> int:
    return end.posted_ns if end.posted_ns >= 0 else end.start_ns
