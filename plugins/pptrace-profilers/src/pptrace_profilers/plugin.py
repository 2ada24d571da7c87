"""What this distribution offers: importers of measured traces; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pptrace.hooks import ImporterOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import ImportRequest, Measurement
    from pptrace.timeline.timeline import Timeline

    Measure: TypeAlias = Callable[[Sequence[Path], ImportRequest], Measurement]

__all__ = ["pptrace_importers"]


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the importers."""
    yield ImporterOffer(
        name="pytorch", summary="Traces of PyTorch's profiler (Kineto), one file per rank.",
        recognises=_is_kineto, read=_read_kineto, measure=_measure_kineto,
    )  # fmt: skip


def _is_kineto(path: Path, head: bytes) -> bool:
    del path
    marks = (
        b'"schemaVersion"',
        b'"distributedInfo"',
        b'"deviceProperties"',
        b'"cat": "cpu_op"',
        b'"cat":"cpu_op"',
    )
    ours = b'"pptraceFormat"' in head
    return not ours and any(mark in head for mark in marks)


def _measure_kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    from pptrace_profilers.measure import measure_kineto

    return measure_kineto(paths, request)


def _read_kineto(paths: Sequence[Path]) -> Timeline:
    return _first(_measure_kineto, paths)


def _first(measure: Measure, paths: Sequence[Path]) -> Timeline:
    """Return a run's first step."""
    from pptrace.errors import TraceError
    from pptrace.timeline.measurement import ImportRequest

    steps = measure(paths, ImportRequest()).steps
    if not steps:
        raise TraceError("holds no action of a pipeline: there is no step to convert", file=paths[0])
    return steps[0].timeline
