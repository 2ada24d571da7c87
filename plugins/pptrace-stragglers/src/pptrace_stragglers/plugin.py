"""The importer and the analysis of this distribution; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ExplanationOffer, ImporterOffer

__all__ = ["pptrace_explanations", "pptrace_importers"]

_PARQUET = b"PAR1"


@hookimpl
def pptrace_explanations() -> Iterable[ExplanationOffer]:
    """Yield the analysis of stragglers."""
    from pptrace.plugin import ExplanationOffer

    yield ExplanationOffer(
        name="stragglers", summary="Costs of slow operations, workers and stages of a job.",
        explain=deferred("pptrace_stragglers.what_if:explain_job"),
    )  # fmt: skip


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the importer of whole jobs."""
    from pptrace.plugin import ImporterOffer

    yield ImporterOffer(
        name="straggler-analysis",
        summary="Parquet of a job's operations, as ByteDance's StragglerAnalysis has it.",
        recognises=lambda _, head: head.startswith(_PARQUET),
        measure=deferred("pptrace_stragglers.measurement:measure_job"),
    )  # fmt: skip
