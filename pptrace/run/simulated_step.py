"""A simulated step with its analyses, summary, advice, page and files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pptrace.errors import ScheduleError
from pptrace.report.document import Printed, text_of
from pptrace.run.inputs import at_location, located
from pptrace.run.preparation import prepare
from pptrace.timeline.actions import communication
from pptrace.timeline.memory import measure_memory
from pptrace.timeline.metrics import measure
from pptrace.timeline.timeline import window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Document
    from pptrace.run.inputs import Prepared
    from pptrace.run.neighbourhood import Advice
    from pptrace.run.overheads import Bottleneck
    from pptrace.timeline.link_use import Traffic
    from pptrace.timeline.memory import Memory
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Counter, Timeline, Waits


@dataclass(frozen=True, repr=False)
class SimulatedStep(Printed):
    """One simulated step; prints as its summary."""

    prepared: Prepared
    """The inputs."""
    timeline: Timeline
    """Every slice, in columns."""
    traffic: Traffic | None
    """Messages on the network's links; None without links."""
    registry: Registry
    """The plugins, for exports."""

    @cached_property
    def metrics(self) -> Metrics:
        """Figures of the step."""
        return measure(self.timeline, self.prepared.workload, self.memory)

    @cached_property
    def memory(self) -> Memory:
        """Memory of every rank; searches read it without the other metrics."""
        return measure_memory(self.timeline, self.prepared.workload)

    @cached_property
    def step_ns(self) -> int:
        """Length of the step; searches read it without the other metrics."""
        opened, closed = window(self.timeline)
        return closed - opened

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Version, plugins with versions, and the whole configuration; no time, host or path."""
        from pptrace.version import __version__

        return {
            "pptrace": __version__,
            "plugins": dict(self.prepared.plugins),
            "configuration": self.prepared.resolved.to_dict(),
        }

    def traced(self) -> Timeline:
        """Return the timeline as traces hold it: with counters, routes and provenance.

        Routes hold only links with messages or counters; a large job has 100,000 links without any.
        With action segments, the provenance has the hidden part of each group's communication.
        """
        from pptrace.timeline.critical_path import why

        hidden = {} if self.timeline.parts is None else {"communication": communication(self.metrics.groups)}
        provenance = {**self.timeline.provenance, **self.provenance, **hidden}
        path = why(self.timeline)
        counters = self._counters(path.waits)
        names = {counter.name for counter in counters if counter.rank < 0}
        routes = None if self.traffic is None else self.traffic.routes().of_links(names)
        return replace(self.timeline, counters=counters, routes=routes, why=path, provenance=provenance)

    def _counters(self, waits: Waits) -> tuple[Counter, ...]:
        from pptrace.timeline.link_use import link_counters
        from pptrace.timeline.memory import memory_counters
        from pptrace.timeline.metrics import communication_counters, in_flight, link_use

        workload = self.prepared.workload
        has_memory = workload.activation_bytes.any() or workload.static_bytes.any()
        groups = [memory_counters(self.timeline, workload) if has_memory else ()]
        groups += [in_flight(self.timeline), link_use(self.timeline), communication_counters(self.timeline, waits)]
        if self.traffic is not None:
            groups.append(link_counters(self.timeline, self.traffic))
        counters = [counter for group in groups for counter in group]
        return tuple(sorted(counters, key=lambda counter: counter.rank))

    @cached_property
    def lever(self) -> Bottleneck:
        """The largest overhead, by re-simulation without each overhead."""
        from pptrace.run.overheads import find_bottleneck

        return find_bottleneck(self)

    def under(self, resolved: Resolved) -> SimulatedStep:
        """Return the step of another configuration with the same plugins."""
        return simulate(resolved, self.registry)

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
        """Write the step as traces, pictures or a page, by the suffix; ``{rank}`` writes one file per rank.

        Args:
            targets: such as ``step.pftrace``, ``step.json.gz``, ``out/rank{rank}.json``, ``step.svg``,
                ``report.html``.
            only: parts to keep, such as ``ranks=0,7`` and ``microbatches=0:32``.
            color: ``kind`` or ``microbatch``.

        Raises:
            OutputError: a file cannot be written; none was changed then.
            ConfigError: ``only`` cannot be read.
        """
        from pptrace.plugins.offers import ExporterOffer
        from pptrace.run.saving import save
        from pptrace.timeline.trim import parse_only, trim

        def write_page(timeline: Timeline, path: Path, _options: Mapping[str, Any]) -> None:
            from pptrace.run.page import run_page

            path.write_text(run_page(self, timeline, self.lever, self.advice), encoding="utf-8")

        timeline = self.traced()
        if only:
            kept = parse_only(only)
            timeline = trim(timeline, kept.ranks, kept.microbatches)
        exporters = {name: provided.offer for name, provided in self.registry.exporters.items()}
        exporters["page"] = ExporterOffer(
            name="page", summary="The run as a page.", suffixes=(".html",), write=write_page
        )
        return save(timeline, [str(target) for target in targets], exporters, {"color": color})

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
        from pptrace.run.figures import document

        return document(self, self.lever, self.advice)

    def document(self, written: Sequence[Path] = ()) -> Document:
        """Return the summary that the command line prints; ``written`` are its traces."""
        from pptrace.run.summary import summary_document

        return summary_document(self, self.lever, self.advice, written)

    def summary(self, written: Sequence[Path] = ()) -> str:
        """Return :meth:`document` as plain text."""
        return text_of(self.document(written))

    def __repr__(self) -> str:
        return self.summary()


Run = SimulatedStep
"""The name in the Python API."""


def simulate(resolved: Resolved, registry: Registry, *, loose: bool | None = None) -> SimulatedStep:
    """Prepare and simulate a resolved configuration; ``loose`` is as for ``prepare``.

    Raises:
        PptraceError: errors of :func:`~pptrace.run.preparation.prepare` and of the simulation.
    """
    return run_prepared(prepare(resolved, registry, loose=loose), registry)


def run_prepared(prepared: Prepared, registry: Registry) -> SimulatedStep:
    """Simulate prepared inputs.

    Raises:
        PptraceError: errors of the simulation.
    """
    try:
        with at_location(prepared.resolved, "network"):
            step = prepared.simulate()
    except ScheduleError as error:
        raise located(error, prepared, registry) from error
    return SimulatedStep(prepared, step.timeline, step.traffic, registry)
