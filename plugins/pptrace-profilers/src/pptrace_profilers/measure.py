"""From files to a measurement: read each, take one pipeline of them, bring them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.errors import TraceError
from pptrace_profilers.assemble import assemble
from pptrace_profilers.kineto import read_kineto
from pptrace_profilers.ranks import one_pipeline
from pptrace_profilers.rules import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import ImportRequest, Measurement
    from pptrace_profilers.recording import Recording

__all__ = ["measure_kineto", "measure_recordings"]


def measure_kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of PyTorch's profiler; one that cannot be read is noted, and the others are used.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
    """
    recordings: list[Recording] = []
    notes: list[str] = []
    for path in paths:
        try:
            recordings.append(read_kineto(path, BUILT_IN))
        except TraceError as error:
            if len(paths) == 1:
                raise
            notes.append(str(error))
    if not recordings:
        raise TraceError(f"none of {len(paths)} files can be read: {notes[0]}", file=paths[0].parent)
    measured = measure_recordings(recordings, request)
    return replace(measured, notes=(*notes, *measured.notes))


def measure_recordings(recordings: Sequence[Recording], request: ImportRequest) -> Measurement:
    """Bring recordings of any profiler together.

    Raises:
        TraceError: they are no pipeline's.
        ConfigError: a layout or replica that cannot be.
    """
    pipeline, notes = one_pipeline(recordings, request.layout, request.replica)
    measured = assemble(pipeline)
    return replace(measured, notes=(*notes, *measured.notes))
