"""Replicas of a job that differ, simulated one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.resolution import load
from pptrace.plugins.registry import Registry
from pptrace.run.heterogeneous_replicas import simulate_replicas
from pptrace.run.preparation import build_costs
from pptrace.run.run import Run, simulate
from pptrace.run.speeds import kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace.config.resolution import Resolved
    from pptrace.steps.columns import Int64s

_KEYS = (("batch", "lengths"), ("batch", "documents"), ("data_parallel", "speeds"), ("data_parallel", "spread"))
"""Sections and keys by which replicas differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas of a job that differ."""

    resolved: Resolved
    """The job."""
    registry: Registry
    """The plugins."""
    kind_of: Int64s
    """The kind of each replica; replicas of one kind are equal; shape (replicas,)."""

    def run(self, replica: int) -> Run:
        """Simulate one replica.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        return simulate(self.resolved.with_values("batch", {"replica": replica}), self.registry)

    def count_equal(self, replica: int) -> int:
        """Return the number of replicas that equal one of them, itself included."""
        return int((self.kind_of == self.kind_of[replica]).sum())

    def runs(self, most: int) -> Iterator[tuple[list[int], Run]]:
        """Yield the numbers and the step of each kind of replica, the kind with the longest computation first.

        Args:
            most: limit of kinds.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        prepared = simulate(self.resolved, self.registry).prepared
        differing = prepared.differing
        if differing is None:
            return
        differences = simulate_replicas(prepared, differing)
        slowest_first = np.argsort(-differences.ready_ns.max(axis=1), kind="stable")
        for kind in slowest_first[:most].tolist():
            numbers = np.flatnonzero(differences.kind_of == kind).tolist()
            yield numbers, Run.of(differences.inputs_of(prepared, differing, kind), self.registry)


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
