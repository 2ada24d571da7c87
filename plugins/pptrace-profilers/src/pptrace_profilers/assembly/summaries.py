"""What a run without actions still tells: communication and computation by rank and name, and the clocks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import TraceError
from pptrace.timeline.measurement import Measurement, Occupied, Summary
from pptrace_profilers.assembly.clocks import align
from pptrace_profilers.recording.coverage import covered_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace_profilers.recording.recording import Operations, Recording

__all__ = ["without_actions"]


def without_actions(recordings: Sequence[Recording]) -> Measurement:
    """Return a measurement of no steps.

    Args:
        recordings: one per pipeline rank, in their order; peers of their messages are pipeline ranks.

    Raises:
        TraceError: there is neither an operation nor a message.
    """
    summaries = [one for rank, recording in enumerate(recordings) for one in _of_rank(rank, recording)]
    if not summaries:
        message = "holds no action of a pipeline, no operation of a GPU and no message"
        raise TraceError(message, file=recordings[0].path)
    notes = dict.fromkeys(note for one in recordings for note in one.notes)
    told = "no action of a pipeline was found: communication and computation are summed by name"
    return Measurement(
        steps=(),
        clocks=tuple(align(len(recordings), _matched(recordings))),
        summaries=tuple(summaries),
        occupied=tuple(
            _occupied(rank, one.operations)
            for rank, one in enumerate(recordings)
            if one.operations is not None and one.operations.name.size
        ),
        notes=(*notes, told),
    )


def _matched(recordings: Sequence[Recording]) -> list[tuple[int, int, int, int]]:
    """Return sender, receiver, when it was sent and when it was there, in order between two ranks.

    Where one side has fewer, nobody knows which are missing: none of the two ranks' messages count.
    """
    found = []
    for source, sender in enumerate(recordings):
        for target, receiver in enumerate(recordings):
            sent = [end.start_ns for end in sender.ends if end.sends and end.peer == target]
            there = [end.end_ns for end in receiver.ends if not end.sends and end.peer == source]
            if len(sent) == len(there):
                found += [(source, target, *times) for times in zip(sent, there, strict=True)]
    return found


def _of_rank(rank: int, recording: Recording) -> list[Summary]:
    found = _of_operations(rank, recording.operations) if recording.operations is not None else []
    found += _of_messages(rank, recording)
    return sorted(found, key=lambda one: (-one.total_ns, one.what))


def _of_operations(rank: int, operations: Operations) -> list[Summary]:
    sizes = np.zeros(operations.name.size, dtype=np.int64)
    for position, said in operations.said.items():
        sizes[position] = sum(one.size_bytes for one in said)
    keys, group = np.unique(operations.name * 2 + operations.communicates, return_inverse=True)
    count = np.bincount(group, minlength=keys.size)
    total, size = np.zeros((2, keys.size), dtype=np.int64)
    np.add.at(total, group, operations.end_ns - operations.start_ns)
    np.add.at(size, group, sizes)
    columns = zip(keys.tolist(), count.tolist(), total.tolist(), size.tolist(), strict=True)
    return [
        Summary(
            rank=rank, what=operations.names[key // 2], communicates=bool(key % 2),
            count=many, total_ns=time, size_bytes=size_bytes,
        )
        for key, many, time, size_bytes in columns
    ]  # fmt: skip


def _occupied(rank: int, operations: Operations) -> Occupied:
    order = np.argsort(operations.start_ns, kind="stable")
    start, end = operations.start_ns[order], operations.end_ns[order]
    computes = ~operations.communicates[order]

    def union(chosen: NDArray[np.bool_]) -> int:
        return int(covered_ns(np.zeros(int(chosen.sum()), dtype=np.int64), start[chosen], end[chosen], 1)[0])

    computing, busy = union(computes), union(np.ones_like(computes))
    return Occupied(
        rank=rank, computing_ns=computing, exposed_ns=busy - computing,
        idle_ns=int(end.max() - start.min()) - busy,
    )  # fmt: skip


def _of_messages(rank: int, recording: Recording) -> list[Summary]:
    """Return what the host's own messages amount to; those of GPU operations are counted as operations."""
    counted: set[tuple[int, int]] = set()
    if recording.operations is not None:
        own = recording.operations
        counted = set(zip(own.start_ns.tolist(), own.end_ns.tolist(), strict=True))
    totals: dict[bool, list[int]] = defaultdict(lambda: [0, 0, 0])
    for end in recording.ends:
        if (end.start_ns, end.end_ns) not in counted:
            parts = (1, end.end_ns - end.start_ns, end.size_bytes)
            totals[end.sends] = [a + b for a, b in zip(totals[end.sends], parts, strict=True)]
    return [
        Summary(
            rank=rank, what="send" if sends else "receive", communicates=True,
            count=count, total_ns=total, size_bytes=size,
        )
        for sends, (count, total, size) in totals.items()
    ]  # fmt: skip
