"""A simulated step with its cached analyses, and the steps of replicas that differ."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.resolution import load
from pptrace.errors import ScheduleError
from pptrace.plugins.registry import Registry
from pptrace.run.inputs import at_location, located
from pptrace.run.preparation import build_costs, prepare
from pptrace.run.reinforcement_learning import simulate_step
from pptrace.run.replicas import simulate_replicas
from pptrace.run.speeds import kinds_of
from pptrace.steps.kinds import Kind
from pptrace.timeline.actions import communication
from pptrace.timeline.memory import measure_memory
from pptrace.timeline.metrics import measure
from pptrace.timeline.timeline import LOADS_KEY, window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace.config.resolution import Resolved
    from pptrace.run.inputs import StepInputs
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.link_use import Traffic
    from pptrace.timeline.memory import Memory
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Timeline


_KEYS = (("batch", "lengths"), ("batch", "documents"), ("data_parallel", "speeds"), ("data_parallel", "spread"))
"""Sections and keys by which replicas differ."""


class SimulatedStep(Struct, frozen=True, dict=True):
    """One simulated step."""

    prepared: StepInputs
    """The inputs."""
    timeline: Timeline
    """Every slice, in columns."""
    traffic: Traffic | None
    """Messages on the network's links; None without links."""
    registry: Registry
    """The plugins, for exports."""

    @classmethod
    def of(cls, prepared: StepInputs, registry: Registry) -> Self:
        """Simulate prepared inputs.

        Raises:
            PptraceError: errors of the simulation.
        """
        try:
            with at_location(prepared.resolved, "network"):
                step = simulate_step(prepared)
        except ScheduleError as error:
            raise located(error, prepared, registry) from error
        return cls(prepared, step.timeline, step.traffic, registry)

    def under(self, resolved: Resolved) -> Self:
        """Return the step of another configuration with the same plugins."""
        return self.of(prepare(resolved, self.registry), self.registry)

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

    @property
    def work_ns(self) -> int:
        """Computation of the step: forwards and backwards over all stages and microbatches."""
        microbatches = self.prepared.schedule.step_microbatches
        return self.prepared.workload.total_ns((Kind.F, Kind.B), microbatches)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Version, plugins with versions, the whole configuration, and loads of experts; no time, host or path."""
        from pptrace.version import __version__

        loads = self.prepared.workload.expert_load
        return {
            "pptrace": __version__,
            "plugins": dict(self.prepared.plugins),
            "configuration": self.prepared.resolved.to_dict(),
            **({LOADS_KEY: dict(loads)} if loads else {}),
        }

    def traced(self) -> Timeline:
        """Return the timeline as traces hold it: with counters, routes and provenance.

        Routes hold only links with messages or counters; a large job has 100,000 links without any.
        With action segments, the provenance has the hidden part of each group's communication.
        """
        from pptrace.timeline.counters import counters_of
        from pptrace.timeline.critical_path import why

        hidden = {} if self.timeline.parts is None else {"communication": communication(self.metrics.groups)}
        provenance = {**self.timeline.provenance, **self.provenance, **hidden}
        path = why(self.timeline)
        counters = counters_of(self.timeline, self.prepared.workload, self.traffic, path.waits)
        # A counter of the cluster has the name of its link.
        link_names = {counter.name for counter in counters if counter.rank < 0}
        routes = None if self.traffic is None else self.traffic.routes().of_links(link_names)
        return replace(self.timeline, counters=counters, routes=routes, why=path, provenance=provenance)


class Replicas(Struct, frozen=True):
    """The replicas of a job that differ."""

    resolved: Resolved
    """The job."""
    registry: Registry
    """The plugins."""
    kind_of: Int64s
    """The kind of each replica; replicas of one kind are equal; shape (replicas,)."""

    def run(self, replica: int) -> SimulatedStep:
        """Simulate one replica.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        resolved = self.resolved.with_values("batch", {"replica": replica})
        return SimulatedStep.of(prepare(resolved, self.registry), self.registry)

    def runs(self, most: int) -> Iterator[tuple[list[int], SimulatedStep]]:
        """Yield the numbers and the step of at most so many kinds of replicas, the longest computation first.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        prepared = prepare(self.resolved, self.registry)
        differing = prepared.differing
        if differing is None:
            return
        differences = simulate_replicas(prepared, differing)
        slowest_first = np.argsort(-differences.computation_ns, kind="stable")
        for kind in slowest_first[:most].tolist():
            numbers = np.flatnonzero(differences.kind_of == kind).tolist()
            yield numbers, SimulatedStep.of(differences.inputs_of(prepared, differing, kind), self.registry)


def replicas_of(configuration: Mapping[str, Any]) -> Replicas | None:
    """Return the replicas of a job by its configuration; None where they are equal.

    Raises:
        PptraceError: a configuration that the installed plugins cannot use.
    """
    sections = [(configuration.get(section), key) for section, key in _KEYS]
    if not any(isinstance(values, dict) and values.get(key) for values, key in sections):
        return None
    resolved, registry = load(dict(configuration)), Registry.load(warn=lambda _: None)
    costs = build_costs(resolved, registry)
    if costs.sequences is None and costs.speeds is None:
        return None
    first, kind_of = kinds_of(costs.classes, costs.speeds)
    if len(first) == 1:
        return None
    return Replicas(resolved=resolved, registry=registry, kind_of=kind_of)
