"""From recordings to a measurement: take one pipeline of them, bring them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.plugin import COMMUNICATION, COMPUTE, ConfigError, Replica, TraceError
from pptrace_profilers.assembly.assembly import assemble
from pptrace_profilers.assembly.pipelines import numbers_of, one_pipeline, whole_pipelines
from pptrace_profilers.assembly.summaries import without_actions
from pptrace_profilers.inference.actions import infer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.plugin import ImportRequest, Measurement
    from pptrace_profilers.recording.recording import Recording

__all__ = ["measure_recordings"]


def measure_recordings(
    recordings: Sequence[Recording], request: ImportRequest, notes: Sequence[str] = ()
) -> Measurement:
    """Bring recordings of any profiler together; without any action there are summaries only.

    Raises:
        TraceError: they are no pipeline's.
        ConfigError: a layout or replica that cannot be.
    """
    if request.every_replica:
        return _with_replicas(recordings, request, notes)
    pipeline, assumed = one_pipeline(recordings, request.layout, request.replica)
    acts = any(one.action.kind not in COMMUNICATION for recording in pipeline for one in recording.executions)
    inferred = ""
    if not acts:
        pipeline, inferred = infer(pipeline)
        acts = any(recording.executions for recording in pipeline)
    numbers, ranks = numbers_of(pipeline, recordings, request.layout)
    try:
        measurement = assemble(pipeline, numbers) if acts else without_actions(pipeline)
    except TraceError as error:
        if error.file:
            raise
        path = pipeline[0].path
        raise TraceError(str(error), file=path if len(pipeline) == 1 else path.parent) from error
    overlaps = [note for recording in pipeline for note in _overlaps(recording)]
    inference = [inferred] if inferred else []
    return replace(
        measurement,
        notes=(*notes, *assumed, *inference, *overlaps, *_memory(pipeline), *measurement.notes),
        numbers=numbers,
        ranks=ranks,
    )


def _with_replicas(recordings: Sequence[Recording], request: ImportRequest, notes: Sequence[str]) -> Measurement:
    """Return the measurement of one pipeline with the steps of all; one that cannot be read is noted."""
    asked = replace(request, every_replica=False)
    measured = measure_recordings(recordings, asked, notes)
    pipelines = whole_pipelines(recordings, request.layout)
    if len(pipelines) == 1 or not measured.steps:
        return measured
    replicas, unread = [], []
    for name, ranks in pipelines.items():
        try:
            steps = measure_recordings(recordings, replace(asked, replica=name)).steps
        except (ConfigError, TraceError) as error:
            unread.append(f"replica {name} is not compared: {error}")
            continue
        replicas.append(Replica(name=name, ranks=ranks, steps=steps))
    return replace(measured, replicas=tuple(replicas), notes=(*measured.notes, *unread))


def _memory(pipeline: Sequence[Recording]) -> Iterator[str]:
    """Yield what was allocated at most on each rank's GPU, where that was recorded."""
    allocated = [recording.allocated_bytes for recording in pipeline]
    if any(allocated):
        sizes = ", ".join(f"{size / 2**30:.1f}" for size in allocated)
        yield f"most memory that PyTorch had allocated on the ranks' GPUs: {sizes} GiB"


def _overlaps(recording: Recording) -> Iterator[str]:
    """Yield how many computations of a rank's host begin before another one has ended."""
    until, first, count = -(2**63), "", 0
    for execution in recording.executions:
        if execution.action.kind in COMPUTE and execution.gpu is None:
            if until > execution.start_ns:
                first = first or str(execution.action)
                count += 1
            until = max(until, execution.end_ns)
    if count:
        yield (
            f"{recording.path.name}: {count:,} actions begin before another has ended, {first} first: "
            "they are taken to begin where it ends"
        )
