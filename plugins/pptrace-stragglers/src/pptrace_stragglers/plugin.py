"""The importer and the analysis of this distribution; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pptrace.plugin import (
        ExplanationOffer,
        ExplanationPart,
        ImporterOffer,
        ImportRequest,
        Measurement,
        Step,
        Timeline,
    )

__all__ = ["pptrace_explanations", "pptrace_importers"]

_PARQUET = b"PAR1"


@hookimpl
def pptrace_explanations() -> Iterable[ExplanationOffer]:
    """Yield the analysis of stragglers."""
    from pptrace.plugin import ExplanationOffer

    yield ExplanationOffer(
        name="stragglers", summary="Costs of slow operations, workers and stages of a job.", explain=_explain
    )


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the importer of whole jobs."""
    from pptrace.plugin import ImporterOffer

    yield ImporterOffer(
        name="straggler-analysis",
        summary="Parquet of a job's operations, as ByteDance's StragglerAnalysis has it.",
        recognises=lambda _, head: head.startswith(_PARQUET), read=_read, measure=_measure,
    )  # fmt: skip


def _explain(measurement: Measurement, step: Step) -> ExplanationPart | None:
    from pptrace_stragglers.what_if import explain_job

    return explain_job(measurement, step)


def _measure(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    from pptrace_stragglers.measurement import measure_job

    return measure_job(paths, request)


def _read(paths: Sequence[Path]) -> Timeline:
    from pptrace.plugin import ImportRequest, TraceError

    steps = _measure(paths, ImportRequest()).steps
    if not steps:
        raise TraceError("holds no action of a pipeline: there is no step to convert", file=paths[0])
    return steps[0].timeline
