"""Importers of measured traces, and the annotate command; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, ImporterOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from click import Command

    from pptrace.plugin import ImportRequest, Measurement, Timeline

__all__ = ["pptrace_commands", "pptrace_importers"]


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the importers, the general one last; the first importer that recognises a file reads it."""
    yield _offer("pytorch", "Traces of PyTorch's profiler (Kineto), one file per rank.", "kineto")
    yield _offer("nccl-profiler", "Files of NCCL's example profiler plugin.", "nccl")
    yield _offer("nccl-inspector", "Lines of NCCL Inspector.", "inspector")
    yield _offer("nsys", "SQLite exports of Nsight Systems.", "nsys")
    yield _offer("opentelemetry", "Spans of Megatron-LM (NeMo Lens): JSON lines, or OTLP's.", "otel")
    yield _offer("pytorch-perfetto", "Perfetto traces of PyTorch's profiler.", "pftrace")
    yield _offer("chrome", "Any Chrome JSON, by --rules.", "chrome")


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Yield the command that prints a module of annotations."""
    yield CommandOffer(
        name="annotate",
        summary="Print a module that marks a pipeline's actions in PyTorch's profiler.",
        load=_annotate,
    )


def _annotate() -> Command:
    from pptrace_profilers.annotation import command

    return command


def _offer(name: str, summary: str, format_name: str) -> ImporterOffer:
    """Return the offer of a format; its functions are imported on the first call."""

    def recognises(_: Path, head: bytes) -> bool:
        from pptrace_profilers import importers

        recognised: bool = getattr(importers, f"is_{format_name}")(head)
        return recognised

    def measure(paths: Sequence[Path], request: ImportRequest) -> Measurement:
        from pptrace_profilers import importers

        measurement: Measurement = getattr(importers, f"measure_{format_name}")(paths, request)
        return measurement

    def read(paths: Sequence[Path]) -> Timeline:
        from pptrace.plugin import ImportRequest, TraceError

        steps = measure(paths, ImportRequest()).steps
        if not steps:
            raise TraceError("holds no action of a pipeline: there is no step to convert", file=paths[0])
        return steps[0].timeline

    return ImporterOffer(name=name, summary=summary, recognises=recognises, read=read, measure=measure)
