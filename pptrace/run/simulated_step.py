"""A simulated step with its cached analyses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pptrace.errors import ScheduleError
from pptrace.run.inputs import at_location, located
from pptrace.run.post_training import simulate_step
from pptrace.run.preparation import prepare
from pptrace.timeline.actions import communication
from pptrace.timeline.memory import measure_memory
from pptrace.timeline.metrics import measure
from pptrace.timeline.timeline import LOADS_KEY, window

if TYPE_CHECKING:
    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import Prepared
    from pptrace.timeline.link_use import Traffic
    from pptrace.timeline.memory import Memory
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Counter, Timeline, Waits


@dataclass(frozen=True)
class SimulatedStep:
    """One simulated step."""

    prepared: Prepared
    """The inputs."""
    timeline: Timeline
    """Every slice, in columns."""
    traffic: Traffic | None
    """Messages on the network's links; None without links."""
    registry: Registry
    """The plugins, for exports."""

    @classmethod
    def of(cls, prepared: Prepared, registry: Registry) -> Self:
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
        from pptrace.timeline.critical_path import why

        hidden = {} if self.timeline.parts is None else {"communication": communication(self.metrics.groups)}
        provenance = {**self.timeline.provenance, **self.provenance, **hidden}
        path = why(self.timeline)
        counters = self._counters(path.waits)
        # A counter of the cluster has the name of its link.
        link_names = {counter.name for counter in counters if counter.rank < 0}
        routes = None if self.traffic is None else self.traffic.routes().of_links(link_names)
        return replace(self.timeline, counters=counters, routes=routes, why=path, provenance=provenance)

    def _counters(self, waits: Waits) -> tuple[Counter, ...]:
        from pptrace.timeline.link_use import link_counters
        from pptrace.timeline.memory import memory_counters
        from pptrace.timeline.metrics import communication_counters, in_flight, send_rates

        workload = self.prepared.workload
        has_memory = workload.activation_bytes.any() or workload.static_bytes.any()
        groups = [memory_counters(self.timeline, workload) if has_memory else ()]
        groups += [
            in_flight(self.timeline),
            send_rates(self.timeline),
            communication_counters(self.timeline, waits),
        ]
        if self.traffic is not None:
            groups.append(link_counters(self.timeline, self.traffic))
        counters = [counter for group in groups for counter in group]
        return tuple(sorted(counters, key=lambda counter: counter.rank))
