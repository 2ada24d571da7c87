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
    Recognise: TypeAlias = Callable[[bytes], bool]

__all__ = ["pptrace_importers"]


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the importers, the general one last: the first that recognises a file reads it."""
    yield _offer("pytorch", "Traces of PyTorch's profiler (Kineto), one file per rank.", "is_kineto", _kineto)
    yield _offer("nccl-profiler", "Files of NCCL's example profiler plugin.", "is_nccl", _other("measure_nccl"))
    yield _offer("nccl-inspector", "Lines of NCCL Inspector.", "is_inspector", _other("measure_inspector"))
    yield _offer("nsys", "SQLite exports of Nsight Systems.", "is_nsys", _other("measure_nsys"))
    yield _offer(
        "pytorch-perfetto", "Perfetto traces of PyTorch's profiler.", "is_pftrace", _other("measure_pftrace")
    )
    yield _offer("chrome", "Any Chrome JSON, by --rules.", "is_chrome", _other("measure_chrome"))


def _offer(name: str, summary: str, recognises: str, measure: Measure) -> ImporterOffer:
    return ImporterOffer(
        name=name, summary=summary, recognises=lambda _, head: _recogniser(recognises)(head),
        read=lambda paths: _first(measure, paths), measure=measure,
    )  # fmt: skip


def _recogniser(name: str) -> Recognise:
    from pptrace_profilers.formats import recognition as recognise

    found: Recognise = getattr(recognise, name)
    return found


def _kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    from pptrace_profilers.assembly.measurement import measure_kineto

    return measure_kineto(paths, request)


def _other(name: str) -> Measure:
    """Return a format's function, which is imported on its first call."""

    def measure(paths: Sequence[Path], request: ImportRequest) -> Measurement:
        from pptrace_profilers import importers as formats

        found: Measure = getattr(formats, name)
        return found(paths, request)

    return measure


def _first(measure: Measure, paths: Sequence[Path]) -> Timeline:
    """Return a run's first step."""
    from pptrace.errors import TraceError
    from pptrace.timeline.measurement import ImportRequest

    steps = measure(paths, ImportRequest()).steps
    if not steps:
        raise TraceError("holds no action of a pipeline: there is no step to convert", file=paths[0])
    return steps[0].timeline
