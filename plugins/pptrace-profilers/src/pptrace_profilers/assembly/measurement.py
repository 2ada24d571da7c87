"""From files to a measurement: read each, take one pipeline of them, bring them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.errors import TraceError
from pptrace.model.action import COMMUNICATION, COMPUTE
from pptrace_profilers.assembly.assembly import assemble
from pptrace_profilers.assembly.pipelines import numbers_of, one_pipeline
from pptrace_profilers.assembly.summaries import without_actions
from pptrace_profilers.formats.run_files import read_each
from pptrace_profilers.inference.confidence import infer
from pptrace_profilers.pytorch.process import read_kineto
from pptrace_profilers.rules.file import read_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import ImportRequest, Measurement
    from pptrace_profilers.recording.recording import Recording

__all__ = ["measure_files", "measure_kineto", "measure_recordings"]


def measure_kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of PyTorch's profiler; one that cannot be read is noted, and the others are used.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a rule that cannot be, or not for these files.
    """
    rules = read_rules(request.rules)
    by_name = rules.by_name("PyTorch's profiler")
    return measure_files(paths, request, lambda path: rules.ranked([read_kineto(path, by_name)]))


def measure_files(
    paths: Sequence[Path],
    request: ImportRequest,
    read: Callable[[Path], Sequence[Recording]],
) -> Measurement:
    """Read files by a format's own reader; one that cannot be read is noted, and the others are used.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a layout or replica that cannot be.
    """
    found, lost = read_each(paths, read)
    recordings = [one for own in found.values() for one in own]
    if not recordings:
        raise TraceError("holds nothing of any rank", file=paths[0])
    return measure_recordings(recordings, request, lost)


def measure_recordings(
    recordings: Sequence[Recording], request: ImportRequest, notes: Sequence[str] = ()
) -> Measurement:
    """Bring recordings of any profiler together; without any action there are summaries only.

    Raises:
        TraceError: they are no pipeline's.
        ConfigError: a layout or replica that cannot be.
    """
    pipeline, assumed = one_pipeline(recordings, request.layout, request.replica)
    acts = any(ran.action.kind not in COMMUNICATION for one in pipeline for ran in one.ran)
    inferred = ""
    if not acts:
        pipeline, inferred = infer(pipeline)
        acts = any(one.ran for one in pipeline)
    try:
        measured = assemble(pipeline) if acts else without_actions(pipeline)
    except TraceError as error:
        if error.file:
            raise
        path = pipeline[0].path
        raise TraceError(str(error), file=path if len(pipeline) == 1 else path.parent) from error
    overlapping = [note for one in pipeline for note in _overlaps(one)]
    told = [inferred] if inferred else []
    return replace(
        measured,
        notes=(*notes, *assumed, *told, *overlapping, *_memory(pipeline), *measured.notes),
        numbers=numbers_of(pipeline, recordings, request.layout),
    )


def _memory(pipeline: Sequence[Recording]) -> Iterator[str]:
    """Yield what was allocated at most on each rank's GPU, where that was recorded."""
    most = [one.allocated_bytes for one in pipeline]
    if any(most):
        told = ", ".join(f"{one / 2**30:.1f}" for one in most)
        yield f"most memory that PyTorch had allocated on the ranks' GPUs: {told} GiB"


def _overlaps(one: Recording) -> Iterator[str]:
    """Yield how many computations of a rank's host begin before another one has ended."""
    until, first, count = -(2**63), "", 0
    for ran in one.ran:
        if ran.action.kind in COMPUTE and ran.device is None:
            if count == 0 and until > ran.start_ns:
                first = str(ran.action)
            count += until > ran.start_ns
            until = max(until, ran.end_ns)
    if count:
        told = f"{count:,} actions begin before another has ended, {first} first"
        yield f"{one.path.name}: {told}: they are taken to begin where it ends"
