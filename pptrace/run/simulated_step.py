"""A simulated step with its analyses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.resolution import document_of, load
from pptrace.errors import ScheduleError
from pptrace.plugins.offers import ExporterOffer
from pptrace.plugins.registry import Registry
from pptrace.run.costs import lengths_of
from pptrace.run.heterogeneous_replicas import unlike_replicas
from pptrace.run.inputs import kinds_of, located, placed
from pptrace.run.preparation import prepare
from pptrace.run.speeds import speeds_of
from pptrace.sanitize import Printed
from pptrace.sim.simulation import simulate_traffic
from pptrace.timeline.actions import communication
from pptrace.timeline.memory import measure_memory
from pptrace.timeline.metrics import measure
from pptrace.timeline.timeline import window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace.config.resolution import Resolved
    from pptrace.run.inputs import Prepared
    from pptrace.run.neighbourhood import Advice
    from pptrace.run.overheads import Lever
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.link_use import Traffic
    from pptrace.timeline.memory import Memory
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Counter, Timeline, Waits

__all__ = ["Replicas", "Run", "replicas_of", "run_prepared", "simulate"]

_PAGE = "page"
"""The format of a run's own page, which tells more than a timeline has."""


@dataclass(frozen=True)
class Run(Printed):
    """One simulated step; prints as its summary."""

    prepared: Prepared
    """What was simulated."""
    timeline: Timeline
    """Every slice, in columns."""
    traffic: Traffic | None
    """What the messages did on the network's links; None where it has none."""
    registry: Registry
    """The plugins, for exports."""

    @cached_property
    def metrics(self) -> Metrics:
        """What the step amounts to."""
        return measure(self.timeline, self.prepared.workload, self.memory)

    @cached_property
    def memory(self) -> Memory:
        """Memory of every rank, which candidates are judged by without the rest of the metrics."""
        return measure_memory(self.timeline, self.prepared.workload)

    @cached_property
    def step_ns(self) -> int:
        """The step's length, likewise."""
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

    @cached_property
    def lever(self) -> Lever:
        """The largest overhead; simulates the step again without one after the other."""
        from pptrace.run.overheads import largest_lever

        return largest_lever(self)

    def under(self, resolved: Resolved) -> Run:
        """Return the run of another configuration with the same plugins."""
        return simulate(resolved, self.registry)

    @cached_property
    def advice(self) -> Advice:
        """A faster configuration of the same processes and batch; simulates the likeliest few."""
        from pptrace.run.advice import advise

        return advise(self)

    def advise(self) -> Advice:
        """Return the fastest of many configurations of the same processes and batch; simulates up to some dozens.

        The run's summary and its plain values have this advice from then on.
        """
        from pptrace.run.advice import advise

        found = advise(self, deep=True)
        self.__dict__["advice"] = found
        return found

    def save(self, *targets: str | Path, only: Sequence[str] = (), color: str = "kind") -> list[Path]:
        """Write the step as traces, pictures or a page; the suffix says which, ``{rank}`` one file per rank.

        Args:
            targets: such as ``step.pftrace``, ``step.json.gz``, ``out/rank{rank}.json``, ``step.svg``,
                ``report.html``.
            only: parts to keep, such as ``ranks=0,7`` and ``microbatches=0:32``.
            color: ``kind`` or ``microbatch``.

        Raises:
            OutputError: a file cannot be written; none was changed then.
            ConfigError: ``only`` cannot be read.
        """
        from pptrace.run.saving import save
        from pptrace.timeline.trim import parse_only, trim

        timeline = self.traced()
        if only:
            kept = parse_only(only)
            timeline = trim(timeline, kept.ranks, kept.microbatches)
        exporters = {name: provided.offer for name, provided in self.registry.exporters.items()}
        exporters |= {
            _PAGE: ExporterOffer(
                name=_PAGE,
                summary="The run as a page.",
                suffixes=(".html",),
                write=self._write_page,
            )
        }
        names = [str(target) for target in targets]
        return save(timeline, names, exporters, {"color": color})

    def traced(self) -> Timeline:
        """Return the timeline as traces hold it: with counters, routes and provenance.

        Of the network's links it names those that a message went over or that have a counter; a large job has
        100,000 others.
        Where actions consist of segments, the provenance says how much of each group's communication was hidden.
        """
        from pptrace.timeline.critical_path import why

        hidden = {} if self.timeline.parts is None else {"communication": communication(self.metrics.groups)}
        provenance = {**self.timeline.provenance, **self.provenance, **hidden}
        found = why(self.timeline)
        counters = self._counters(found.waits)
        names = {counter.name for counter in counters if counter.rank < 0}
        routes = None if self.traffic is None else self.traffic.routes().of_links(names)
        return replace(self.timeline, counters=counters, routes=routes, why=found, provenance=provenance)

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

        return document(self)

    def summary(self, written: Sequence[Path] = ()) -> str:
        """Return the summary that the command line prints, as plain text; ``written`` are its traces."""
        from pptrace.run.summary import summary_lines

        return "\n".join(summary_lines(self, written))

    def __repr__(self) -> str:
        return self.summary()

    def _write_page(self, timeline: Timeline, path: Path, _options: Mapping[str, Any]) -> None:
        from pptrace.run.page import run_page

        path.write_text(run_page(self, timeline), encoding="utf-8")

    def _counters(self, waits: Waits) -> tuple[Counter, ...]:
        from pptrace.timeline.link_use import link_counters
        from pptrace.timeline.memory import memory_counters
        from pptrace.timeline.metrics import communication_counters, in_flight, link_use

        workload = self.prepared.workload
        known = bool(workload.activation_bytes.any() or workload.static_bytes.any())
        groups = [memory_counters(self.timeline, workload) if known else ()]
        groups += [in_flight(self.timeline), link_use(self.timeline), communication_counters(self.timeline, waits)]
        if self.traffic is not None:
            groups.append(link_counters(self.timeline, self.traffic))
        counters = [counter for group in groups for counter in group]
        return tuple(sorted(counters, key=lambda counter: counter.rank))


def simulate(resolved: Resolved, registry: Registry, *, loose: bool | None = None) -> Run:
    """Prepare and simulate a resolved configuration.

    Args:
        resolved: the configuration.
        registry: the plugins.
        loose: whether chunks per rank that the schedule does not take are left out, as for ``prepare``.

    Raises:
        PptraceError: whatever :func:`~pptrace.run.preparation.prepare` and the simulation refuse.
    """
    return run_prepared(prepare(resolved, registry, loose=loose), registry)


def run_prepared(prepared: Prepared, registry: Registry) -> Run:
    """Simulate what is prepared, whatever was changed of it since.

    Raises:
        PptraceError: whatever the simulation refuses.
    """
    reduction = prepared.resolved.experiment.data_parallel
    try:
        with placed(prepared.resolved, "network"):
            step = simulate_traffic(
                prepared.schedule, prepared.workload, prepared.network, prepared.policy,
                contention=prepared.contention, overlap_reduction=reduction.overlaps,
                stage_replicas=reduction.stage_replicas,
            )  # fmt: skip
    except ScheduleError as error:
        raise located(error, prepared, registry) from error
    return Run(prepared, step.timeline, step.traffic, registry)


_KEYS = (("batch", "lengths"), ("data_parallel", "speeds"), ("data_parallel", "spread"))
"""What makes replicas differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas of a job that differ."""

    resolved: Resolved
    """The job."""
    registry: Registry
    """The plugins."""
    kind_of: Int64s
    """Replicas of one number are alike, shape (replicas,)."""

    def run(self, replica: int) -> Run:
        """Simulate one.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        batch = self.resolved.experiment.batch.model_copy(update={"replica": replica})
        return simulate(self.resolved.with_section("batch", batch, {}), self.registry)

    def alike(self, replica: int) -> int:
        """Return how many replicas are like one, which counts."""
        return int((self.kind_of == self.kind_of[replica]).sum())

    def runs(self, most: int) -> Iterator[tuple[list[int], Run]]:
        """Yield those that differ, the one that computes longest first, and which replicas are alike.

        Args:
            most: how many at most.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        prepared = simulate(self.resolved, self.registry).prepared
        differing = prepared.differing
        if differing is None:
            return
        unlike = unlike_replicas(prepared, differing)
        slowest_first = np.argsort(-unlike.ready_ns.max(axis=1), kind="stable")
        for kind in slowest_first[:most].tolist():
            workload = unlike.workload_of(differing, kind, prepared.schedule.placement)
            numbers = np.flatnonzero(unlike.kind_of == kind).tolist()
            yield numbers, run_prepared(replace(prepared, workload=workload), self.registry)


def replicas_of(configuration: Mapping[str, Any]) -> Replicas | None:
    """Return the replicas of a job by its configuration; None where they are alike.

    Raises:
        PptraceError: a configuration that the installed plugins cannot use.
    """
    if not any(_says(configuration, *key) for key in _KEYS):
        return None
    resolved, lengths = lengths_of(load(document_of(dict(configuration)), (), {}))
    speeds = speeds_of(resolved)
    if lengths is None and speeds is None:
        return None
    first, kind_of = kinds_of(lengths, speeds)
    if len(first) == 1:
        return None
    return Replicas(resolved=resolved, registry=Registry.load(warn=lambda _: None), kind_of=kind_of)


def _says(configuration: Mapping[str, Any], section: str, key: str) -> bool:
    told = configuration.get(section)
    return isinstance(told, dict) and bool(told.get(key))
