"""Replicas of a job that differ, each as the step that it is: one at a time, so none is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.resolve import document_of, load
from pptrace.experiment.lengths import lengths_of, speeds_of, unlike_replicas
from pptrace.experiment.run import run_prepared, simulate
from pptrace.hooks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.run import Run
    from pptrace.model.columns import Int64s

__all__ = ["Replicas", "replicas_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas of a job whose microbatches differ in length."""

    resolved: Resolved
    """The job."""
    registry: Registry
    """The plugins."""
    lengths: Int64s
    """Tokens in each microbatch's sequences, shape (replicas, microbatches)."""

    def run(self, replica: int) -> Run:
        """Simulate one.

        Raises:
            PptraceError: there is no such replica, or the job cannot be simulated.
        """
        batch = self.resolved.experiment.batch.model_copy(update={"replica": replica})
        return simulate(self.resolved.with_section("batch", batch, {}), self.registry)

    def alike(self, replica: int) -> int:
        """Return how many replicas have the same lengths."""
        return int((self.lengths == self.lengths[replica]).all(axis=1).sum())

    def runs(self, most: int) -> Iterator[tuple[list[int], Run]]:
        """Yield those that differ, the one that computes longest first, and which replicas are alike.

        Args:
            most: how many at most.

        Raises:
            PptraceError: the job cannot be simulated.
        """
        prepared = simulate(self.resolved, self.registry).prepared
        unlike = unlike_replicas(prepared, self.lengths)
        slowest_first = np.argsort(-unlike.ready_ns.max(axis=1), kind="stable")
        for kind in slowest_first[:most].tolist():
            workload = unlike.workload_of(prepared.workload, kind)
            numbers = np.flatnonzero(unlike.kind_of == kind).tolist()
            yield numbers, run_prepared(replace(prepared, workload=workload), self.registry)


def replicas_of(configuration: Mapping[str, Any]) -> Replicas | None:
    """Return the replicas of a job by its configuration; None where they are alike.

    Raises:
        PptraceError: a configuration that the installed plugins cannot use.
    """
    asked = configuration.get("data_parallel")
    speeds = asked.get("speeds") if isinstance(asked, dict) else None
    if not (configuration.get("batch") or {}).get("lengths") and not speeds:
        return None
    resolved, lengths = lengths_of(load(document_of(dict(configuration)), (), {}))
    lengths = speeds_of(resolved) if lengths is None else lengths
    if lengths is None or len(np.unique(lengths, axis=0)) == 1:
        return None
    return Replicas(resolved=resolved, registry=Registry.load(warn=lambda _: None), lengths=lengths)
