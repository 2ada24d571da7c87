"""The result of a simulation: a step with its summary, advice, page and files."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.report.document import PAGES, Printed, text_of, write_page
from pptrace.run.preparation import prepare
from pptrace.run.simulated_step import SimulatedStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Document
    from pptrace.run.neighbourhood import Advice
    from pptrace.run.overheads import Bottleneck
    from pptrace.timeline.timeline import Timeline


class Run(SimulatedStep, Printed, frozen=True, dict=True):
    """One simulated step; prints as its summary."""

    @cached_property
    def bottleneck(self) -> Bottleneck:
        """The largest overhead, by re-simulation without each overhead."""
        from pptrace.run.overheads import find_bottleneck

        return find_bottleneck(self)

    @cached_property
    def advice(self) -> Advice:
        """A faster configuration with the same processes and batch; simulates a few candidates."""
        from pptrace.run.advice import advise

        return advise(self)

    def advise(self) -> Advice:
        """Return the fastest of up to some dozens of simulated configurations with the same processes and batch.

        The summary and the plain values of this run have this advice from then on.
        """
        from pptrace.run.advice import advise

        advice = advise(self, deep=True)
        self.__dict__["advice"] = advice
        return advice

    def save(self, *targets: str | Path, only: Sequence[str] = (), color: str = "kind") -> list[Path]:
        """Write the step as traces, pictures, a page or its table, by the suffix.

        A table has no messages and no gathers, as the configuration inserts them. Gathers from host memory belong
        to the schedule, and remain. Other formats write one file per rank for a name with ``{rank}``.

        Args:
            targets: such as ``step.pftrace``, ``step.json.gz``, ``out/rank{rank}.json``, ``step.svg``,
                ``report.html``, ``report.md``, ``order.csv``.
            only: parts to keep, such as ``ranks=0,7`` and ``microbatches=0:32``; not for tables.
            color: ``kind`` or ``microbatch``.

        Raises:
            OutputError: a file cannot be written, or a part of a table is requested; no file was changed then.
            ConfigError: ``only`` cannot be read.
        """
        from pptrace.plugins.offers import ExporterOffer
        from pptrace.run.trace_files import RANK, exporter_for, save, table_exporters
        from pptrace.timeline.trim import parse_only, trim

        def write(suffix: str, timeline: Timeline, path: Path, _options: Mapping[str, Any]) -> None:
            from pptrace.run.page import page_document

            write_page(path, suffix, page_document(self, timeline, self.bottleneck, self.advice))

        timeline = self.traced()
        if only:
            kept = parse_only(only)
            timeline = trim(timeline, kept.ranks, kept.microbatches)
        exporters = {name: provided.offer for name, provided in self.registry.exporters.items()}
        exporters |= {
            suffix: ExporterOffer(
                name=suffix, summary="The run as a page.", suffixes=(suffix,), write=partial(write, suffix)
            )
            for suffix in PAGES
        }
        names = [str(target) for target in targets]
        tables = table_exporters(self.prepared.schedule)
        exporters |= tables
        for name in names:
            if exporter_for(name, exporters).name in tables and (only or RANK in name):
                raise OutputError("a table is of the whole step: leave out --only and {rank}", file=name)
        return save(timeline, names, exporters, {"color": color})

    def table(self) -> list[dict[str, Any]]:
        """Return one row per rank, times in nanoseconds and sizes in bytes; takes well to pandas."""
        from pptrace.run.figures import rank_rows

        return rank_rows(self)

    def members(self) -> list[dict[str, Any]]:
        """Return one row per action in segments, members of overlapped pairs among them; times in nanoseconds.

        Empty where the table has no overlapped pair, or its costs no segments.
        """
        from pptrace.run.figures import member_rows

        return member_rows(self.timeline)

    def to_dict(self) -> dict[str, Any]:
        """Return everything measured as plain JSON values."""
        from pptrace.run.figures import plain_values

        return plain_values(self, self.bottleneck, self.advice)

    def document(self, written: Sequence[Path] = (), *, full: bool = False) -> Document:
        """Return the summary that the command line prints.

        Args:
            written: its traces.
            full: whether every rank has a line; by default as many as a terminal shows at once.
        """
        from pptrace.run.summary import summary_document

        return summary_document(self, self.bottleneck, self.advice, written, full=full)

    def summary(self, written: Sequence[Path] = (), *, full: bool = False) -> str:
        """Return :meth:`document` as plain text of the terminal's width."""
        from pptrace.run.summary import summary_width

        return text_of(self.document(written, full=full), summary_width())

    def __repr__(self) -> str:
        return self.summary()

    def _picture(self) -> str:
        from pptrace.report.step_drawing import chart_of, chart_svg

        return chart_svg(chart_of(self.timeline))


def simulate(resolved: Resolved, registry: Registry, *, may_drop_chunks: bool | None = None) -> Run:
    """Prepare and simulate a resolved configuration; ``may_drop_chunks`` is as for ``prepare``.

    Raises:
        PptraceError: errors of :func:`~pptrace.run.preparation.prepare` and of the simulation.
    """
    return Run.of(prepare(resolved, registry, may_drop_chunks=may_drop_chunks), registry)
