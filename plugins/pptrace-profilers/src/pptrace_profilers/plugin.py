"""What this distribution offers: importers of measured traces, and a command; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pptrace.plugin import CommandOffer, ImporterOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from click import Command

    from pptrace.timeline.measurement import ImportRequest, Measurement
    from pptrace.timeline.timeline import Timeline

    Measure: TypeAlias = Callable[[Sequence[Path], ImportRequest], Measurement]
    Recognise: TypeAlias = Callable[[bytes], bool]

__all__ = ["pptrace_commands", "pptrace_importers"]


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


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Yield the command that prints a module of annotations."""
    yield CommandOffer(
        name="annotate",
        summary="Print a module that marks a pipeline's actions in PyTorch's profiler.",
        load=_annotate,
    )


def _annotate() -> Command:
    from pptrace_profilers.annotate.command import command

    return command


def _offer(name: str, summary: str, recognises: str, measure: Measure) -> ImporterOffer:
    return ImporterOffer(
        name=name, summary=summary, recognises=lambda _, head: _recogniser(recognises)(head),
        read=lambda paths: _first(measure, paths), measure=measure,
    )  # fmt: skip


def _recogniser(name: str) -> Recognise:
    from pptrace_profilers import recognise

    found: Recognise = getattr(recognise, name)
    return found


def _kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    from pptrace_profilers.measure import measure_kineto

    return measure_kineto(paths, request)


def _other(name: str) -> Measure:
    """Return a format's function, which is imported on its first call."""

    def measure(paths: Sequence[Path], request: ImportRequest) -> Measurement:
        from pptrace_profilers import formats

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
