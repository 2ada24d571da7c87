"""Replicas of a job that differ, each as the step that it is: one at a time, so none is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.resolve import document_of, load
from pptrace.experiment.lengths import lengths_of
from pptrace.experiment.run import run_prepared, simulate
from pptrace.experiment.speeds import speeds_of
from pptrace.experiment.unlike import kinds_of, unlike_replicas
from pptrace.hooks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.run import Run
    from pptrace.model.columns import Int64s

__all__ = ["Replicas", "replicas_of"]

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
