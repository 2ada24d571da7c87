"""Two sides and what tells them apart, to be read, printed and saved from Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pptrace.analysis.diff.step_diff import diff
from pptrace.analysis.steps.sides import measured_side, simulated_side
from pptrace.analysis.steps.simulations import simulation_of
from pptrace.analysis.steps.sources import notes_on, side_of, steps_of
from pptrace.config.quantity import parse_share
from pptrace.experiment.run import Run
from pptrace.present.diff.document import diff_document
from pptrace.present.diff.files import write_diff
from pptrace.present.text import text_of
from pptrace.present.values import plain
from pptrace.timeline.measurement import ImportRequest, Measurement

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.analysis.steps.sides import Side
    from pptrace.hooks.registry import Registry
    from pptrace.present.document import Document

__all__ = ["Diff", "compare_steps"]


@dataclass(frozen=True, repr=False)
class Diff:
    """Two steps and what tells them apart; prints as the command line does."""

    findings: StepDiff
    """Everything that tells the second from the first."""
    sides: tuple[Side, Side]
    """The sides."""
    notes: tuple[str, ...]
    """What is not known of them."""

    @property
    def same(self) -> bool:
        """Whether the steps are equal to the tolerance."""
        return self.findings.same

    @property
    def change(self) -> float:
        """By which share the second step is longer."""
        return self.findings.change

    def document(self, top: int = 10) -> Document:
        """Return everything as sections and tables; ``top`` bounds the actions that are listed."""
        return diff_document(self.findings, top, self.notes)

    def summary(self, top: int = 10) -> str:
        """Return what the command line prints; ``top`` bounds the actions that are listed."""
        return text_of(self.document(top))

    def to_dict(self, top: int = 10) -> dict[str, Any]:
        """Return everything as plain JSON values, times in nanoseconds."""
        values: dict[str, Any] = plain(self.document(top))
        return values

    def save(self, *targets: str | Path, top: int = 10) -> list[Path]:
        """Write a report (.html), both steps as one trace (.pftrace), or all traces in one archive (.tar).

        Raises:
            OutputError: a file cannot be written; none was changed then.
        """
        return write_diff(targets, self.findings, self.sides, self.notes, top)

    __str__ = __repr__ = summary


def compare_steps(
    first: str | Path | Run | Measurement,
    second: str | Path | Run | Measurement,
    tolerance: float | str,
    step: str,
    request: ImportRequest,
    registry: Registry,
) -> Diff:
    """Compare two steps; :func:`pptrace.api.diff` says what of.

    Raises:
        PptraceError: whatever cannot be read, in one line.
    """
    equal = parse_share(tolerance, "tolerance")
    a, b = (
        _side(source, which, registry, request)
        for source, which in zip((first, second), steps_of(step), strict=True)
    )
    if not a.measured and not b.measured:
        a, b = (replace(side, simulation=simulation_of(side, registry)) for side in (a, b))
    return Diff(diff(a, b, equal), (a, b), tuple(notes_on((a, b), step, request)))


def _side(source: str | Path | Run | Measurement, step: str, registry: Registry, request: ImportRequest) -> Side:
    if isinstance(source, Run):
        return simulated_side(source, "a simulation")
    if isinstance(source, Measurement):
        return measured_side(source, "a measurement", step)
    return side_of(source, step, registry, request)
