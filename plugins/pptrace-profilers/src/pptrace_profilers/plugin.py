"""What this distribution offers: importers of measured traces; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.hooks import ImporterOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import ImportRequest, Measurement
    from pptrace.timeline.timeline import Timeline

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
    from pptrace.timeline.measurement import ImportRequest

    return _measure_kineto(paths, ImportRequest()).steps[0].timeline
