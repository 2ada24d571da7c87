"""What a run without actions still tells: communication and computation by rank and name, and the clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Measurement, Occupied, Summary, TraceError
from pptrace_profilers.assembly.clocks import align
from pptrace_profilers.recording.intervals import covered_ns, totals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    notes = dict.fromkeys(note for recording in recordings for note in recording.notes)
    return Measurement(
        steps=(),
        clocks=tuple(align(len(recordings), list(_transfers(recordings)))),
        summaries=tuple(summaries),
        occupied=tuple(
            _occupied(rank, recording.operations)
            for rank, recording in enumerate(recordings)
            if recording.operations is not None and recording.operations.name.size
        ),
        notes=(*notes, "no action of a pipeline was found: communication and computation are summed by name"),
    )


def _transfers(recordings: Sequence[Recording]) -> Iterator[tuple[int, int, int, int]]:
    """Yield sender, receiver, when it was sent and when it was there, in order between two ranks.

    Where one side has fewer, nobody knows which are missing: none of the two ranks' messages count.
    """
    for source, sender in enumerate(recordings):
        for target, receiver in enumerate(recordings):
            sent = [end.start_ns for end in sender.ends if end.sends and end.peer == target]
            received = [end.end_ns for end in receiver.ends if not end.sends and end.peer == source]
            if len(sent) == len(received):
                yield from ((source, target, *times) for times in zip(sent, received, strict=True))


def _of_rank(rank: int, recording: Recording) -> list[Summary]:
    operations = recording.operations
    summaries = [] if operations is None else _of_operations(rank, operations)
    return sorted([*summaries, *_of_messages(rank, recording)], key=lambda one: (-one.total_ns, one.what))


def _of_operations(rank: int, operations: Operations) -> list[Summary]:
    sizes = np.zeros(operations.name.size, dtype=np.int64)
    for position, payloads in operations.payloads.items():
        sizes[position] = sum(payload.size_bytes for payload in payloads)
    key = operations.name * 2 + operations.communicates
    keys, count, total = totals(key, operations.end_ns - operations.start_ns)
    columns = (keys, count, total, totals(key, sizes)[2])
    return [
        Summary(
            rank=rank, what=operations.names[name // 2], communicates=bool(name % 2),
            count=times, total_ns=time, size_bytes=size,
        )
        for name, times, time, size in zip(*(column.tolist() for column in columns), strict=True)
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


def _of_messages(rank: int, recording: Recording) -> Iterator[Summary]:
    """Yield what the host's own messages amount to; those of GPU operations are counted as operations."""
    operations = recording.operations
    times = () if operations is None else (operations.start_ns.tolist(), operations.end_ns.tolist())
    counted = set(zip(*times, strict=True))
    for sends, what in ((True, "send"), (False, "receive")):
        ends = [end for end in recording.ends if end.sends == sends and (end.start_ns, end.end_ns) not in counted]
        if ends:
            yield Summary(
                rank=rank, what=what, communicates=True, count=len(ends),
                total_ns=sum(end.end_ns - end.start_ns for end in ends),
                size_bytes=sum(end.size_bytes for end in ends),
            )  # fmt: skip
