"""Measured steps with their summaries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import ConfigError, KernelTotal, Measurement, Occupied, Replica, Summary, TraceError, kinds
from pptrace_profilers.action_inference import infer
from pptrace_profilers.alignment import align
from pptrace_profilers.gpu_spans import totals, union_ns
from pptrace_profilers.pipelines import choose_pipeline, complete_pipelines, numbers_of
from pptrace_profilers.timeline_assembly import assemble

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import Clock, ImportRequest
    from pptrace_profilers.alignment import Transfers
    from pptrace_profilers.recording import Operations, Recording


def measure_recordings(
    recordings: Sequence[Recording], request: ImportRequest, notes: Sequence[str] = ()
) -> Measurement:
    """Measure recordings of any profiler; without actions there are only summaries.

    Raises:
        TraceError: the recordings do not form a pipeline.
        ConfigError: the layout or replica is invalid.
    """
    if request.every_replica:
        return _measure_replicas(recordings, request, notes)
    pipeline, assumed = choose_pipeline(recordings, request.layout, request.replica)
    has_actions = not all(kinds.COMMUNICATION.mask(recording.executions.kind).all() for recording in pipeline)
    inference_note = ""
    if not has_actions:
        pipeline, inference_note = infer(pipeline)
        has_actions = any(len(recording.executions) for recording in pipeline)
    numbers, ranks = numbers_of(pipeline, recordings, request.layout)
    try:
        measurement = assemble(pipeline, numbers, request.clocks) if has_actions else without_actions(pipeline)
    except TraceError as error:
        if error.file:
            raise
        path = pipeline[0].path
        raise TraceError(str(error), file=path if len(pipeline) == 1 else path.parent) from error
    if numbers and has_actions:
        measurement = _with_pipeline_ranks(measurement, numbers)
    overlaps = [note for recording in pipeline for note in _overlaps(recording)]
    return replace(
        measurement,
        notes=(
            *notes,
            *assumed,
            *([inference_note] if inference_note else []),
            *overlaps,
            *_memory(pipeline),
            *measurement.notes,
        ),
        numbers=numbers,
        ranks=ranks,
    )


def _with_pipeline_ranks(measurement: Measurement, numbers: Sequence[int]) -> Measurement:
    """Return a measurement whose clocks, files and further work have the numbers of the ranks in the pipeline."""
    return replace(
        measurement,
        clocks=tuple(replace(clock, rank=numbers[clock.rank]) for clock in measurement.clocks),
        sources=tuple(replace(source, rank=numbers[source.rank]) for source in measurement.sources),
        unattributed=tuple(replace(work, rank=numbers[work.rank]) for work in measurement.unattributed),
    )


def _measure_replicas(
    recordings: Sequence[Recording], request: ImportRequest, notes: Sequence[str]
) -> Measurement:
    """Return the measurement of a pipeline with the steps of all replicas; invalid replicas are noted."""
    single_request = replace(request, every_replica=False)
    measured = measure_recordings(recordings, single_request, notes)
    pipelines = complete_pipelines(recordings, request.layout)
    if len(pipelines) == 1 or not measured.steps:
        return measured
    replicas, unread = [], []
    for name, ranks in pipelines.items():
        try:
            steps = measure_recordings(recordings, replace(single_request, replica=name)).steps
        except (ConfigError, TraceError) as error:
            unread.append(f"replica {name} is not compared: {error}")
            continue
        replicas.append(Replica(name=name, ranks=ranks, steps=steps))
    return replace(measured, replicas=tuple(replicas), notes=(*measured.notes, *unread))


def _memory(pipeline: Sequence[Recording]) -> Iterator[str]:
    """Yield a note on the peak of allocated memory on each GPU, if recorded."""
    allocated = [recording.allocated_bytes for recording in pipeline]
    if any(allocated):
        sizes = ", ".join(f"{size / 2**30:.1f}" for size in allocated)
        yield f"most memory that PyTorch had allocated on the ranks' GPUs: {sizes} GiB"


def _overlaps(recording: Recording) -> Iterator[str]:
    """Yield a note on the computations of a rank's host that begin before the end of another."""
    executions = recording.executions
    executions = executions.of_rows(kinds.COMPUTE.mask(executions.kind) & ~executions.on_gpu)
    until_ns = np.maximum.accumulate(executions.end_ns)[:-1]
    early = executions.action[1:][until_ns > executions.start_ns[1:]]
    if early.size:
        yield (
            f"{recording.path.name}: {early.size:,} actions begin before another has ended, {early[0]} first: "
            "each is moved to start at that end"
        )


def without_actions(recordings: Sequence[Recording]) -> Measurement:
    """Return a measurement without steps.

    Args:
        recordings: one per pipeline rank, in their order; peers of their messages are pipeline ranks.

    Raises:
        TraceError: the recordings have neither operations nor messages.
    """
    ranks = [max(recording.rank, 0) for recording in recordings]
    summaries = [
        summary
        for rank, recording in zip(ranks, recordings, strict=True)
        for summary in _rank_summaries(rank, recording)
    ]
    if not summaries:
        message = "holds no action of a pipeline, no operation of a GPU and no message"
        raise TraceError(message, file=recordings[0].path)
    notes = dict.fromkeys(note for recording in recordings for note in recording.notes)
    return Measurement(
        steps=(),
        clocks=tuple(replace(clock, rank=rank) for rank, clock in zip(ranks, _clocks(recordings), strict=True)),
        summaries=tuple(summaries),
        kernels=tuple(
            total
            for rank, recording in zip(ranks, recordings, strict=True)
            if recording.operations is not None
            for total in _kernel_totals(rank, recording.operations)
        ),
        occupied=tuple(
            _occupied(rank, recording.operations)
            for rank, recording in zip(ranks, recordings, strict=True)
            if recording.operations is not None and recording.operations.name.size
        ),
        notes=(*notes, "no action of a pipeline was found: communication and computation are summed by name"),
    )


def _clocks(recordings: Sequence[Recording]) -> list[Clock]:
    """Return the clocks of recordings without actions."""
    return align(len(recordings), _transfers(recordings), [recording.host for recording in recordings])


def _transfers(recordings: Sequence[Recording]) -> Transfers:
    """Return sender, receiver, post time and arrival time of messages, in order between two ranks.

    If two ranks have different numbers of sends and receives, their messages are left out.
    """
    columns = [(np.zeros(0, dtype=np.int64),) * 4]
    for source, target in product(range(len(recordings)), repeat=2):
        sender, receiver = recordings[source].ends, recordings[target].ends
        posted_ns = sender.start_ns[sender.sends & (sender.peer == target)]
        arrived_ns = receiver.end_ns[~receiver.sends & (receiver.peer == source)]
        if posted_ns.size == arrived_ns.size:
            sources, targets = (np.full(posted_ns.size, rank) for rank in (source, target))
            columns.append((sources, targets, posted_ns, arrived_ns))
    sources, targets, posted_ns, arrived_ns = map(np.concatenate, zip(*columns, strict=True))
    return sources, targets, posted_ns, arrived_ns


def _rank_summaries(rank: int, recording: Recording) -> list[Summary]:
    operations = recording.operations
    summaries = [] if operations is None else _operation_summaries(rank, operations)
    return sorted(
        [*summaries, *_message_summaries(rank, recording), *_untimed_summaries(rank, recording)],
        key=lambda summary: (-summary.total_ns, summary.what),
    )


def _operation_summaries(rank: int, operations: Operations) -> list[Summary]:
    sizes = np.zeros(operations.name.size, dtype=np.int64)
    for position, payloads in operations.payloads.items():
        sizes[position] = sum(payload.size_bytes for payload in payloads)
    key = operations.name * 4 + operations.communicates * 2 + operations.copies
    keys, count, total = totals(key, operations.end_ns - operations.start_ns)
    columns = (keys, count, total, totals(key, sizes)[2])
    return [
        Summary(
            rank=rank, what=operations.names[key // 4], communicates=bool(key & 2), copies=bool(key & 1),
            count=times, total_ns=time, size_bytes=size,
        )
        for key, times, time, size in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip


def _kernel_totals(rank: int, operations: Operations) -> Iterator[KernelTotal]:
    """Yield the totals of a rank's operations by name, stream and operator."""
    operator = np.full(operations.name.size, -1) if operations.operator is None else operations.operator
    keys, index = np.unique(np.stack([operations.name, operations.stream, operator]), axis=1, return_inverse=True)
    counts = np.bincount(index.reshape(-1))
    _, _, total_ns = totals(index.reshape(-1), operations.end_ns - operations.start_ns)
    columns = (*keys.tolist(), counts.tolist(), total_ns.tolist())
    for name, stream, of, count, time_ns in zip(*columns, strict=True):
        yield KernelTotal(
            rank=rank, what=operations.names[name], stream=stream, count=count, total_ns=time_ns,
            operator=operations.names[of] if of >= 0 else "",
        )  # fmt: skip


def _occupied(rank: int, operations: Operations) -> Occupied:
    start, end, works = operations.start_ns, operations.end_ns, ~operations.copies
    computes = works & ~operations.communicates
    computing, working = (union_ns(start[rows], end[rows]) for rows in (computes, works))
    busy = union_ns(start, end)
    return Occupied(
        rank=rank, computing_ns=computing, exposed_ns=working - computing, copying_ns=busy - working,
        idle_ns=int(end.max() - start.min()) - busy,
    )  # fmt: skip


_SENT, _RECEIVED = "send", "receive"


def _message_summaries(rank: int, recording: Recording) -> Iterator[Summary]:
    """Yield the sums of messages on the host; those of GPU operations count as operations."""
    operations = recording.operations
    times = () if operations is None else (operations.start_ns.tolist(), operations.end_ns.tolist())
    counted = set(zip(*times, strict=True))
    spans = zip(recording.ends.start_ns.tolist(), recording.ends.end_ns.tolist(), strict=True)
    on_host = np.array([span not in counted for span in spans], dtype=bool)
    for sends, what in ((True, _SENT), (False, _RECEIVED)):
        ends = recording.ends.of_rows(on_host & (recording.ends.sends == sends))
        if len(ends):
            yield Summary(
                rank=rank, what=what, communicates=True, count=len(ends),
                total_ns=int((ends.end_ns - ends.start_ns).sum()), size_bytes=int(ends.size_bytes.sum()),
            )  # fmt: skip


def _untimed_summaries(rank: int, recording: Recording) -> Iterator[Summary]:
    """Yield the sums of messages and collectives of unknown duration."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for payload in recording.untimed:
        sizes[_RECEIVED if payload.operation == "recv" else payload.operation].append(payload.size_bytes)
    for what, of_name in sizes.items():
        yield Summary(
            rank=rank, what=what, communicates=True, count=len(of_name), total_ns=0, size_bytes=sum(of_name),
            untimed=len(of_name),
        )  # fmt: skip
