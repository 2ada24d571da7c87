"""Changes of costs: speeds of computation and communication, even stages, random times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.run.heterogeneous_replicas import changed
from pptrace.run.speeds import PASSES, slowed, slowed_segments, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.network.contract import Links, Network, Paths
    from pptrace.run.inputs import Prepared
    from pptrace.steps.columns import Int32s
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload

_EVENED = tuple(f"{name}{part}_ns" for name in PASSES for part in ("", "_collective"))
_CLASSES = 8
"""Classes of microbatches with random times."""


def at_speeds(prepared: Prepared, compute: float = 1, communication: float = 1) -> Prepared:
    """Return inputs with scaled speeds of computation and communication.

    Communication has messages, collectives, reductions and copies to the host, latencies included.
    """
    network: Network = prepared.network if communication == 1 else _Faster(prepared.network, communication)
    return changed(prepared, lambda costs: slowed(costs, 1 / compute, 1 / communication), network=network)


def evened(workload: Workload) -> Workload:
    """Return costs with the mean computation of all stages on each; segments are scaled to it."""
    means: dict[str, Any] = {
        name: np.full(workload.stages, round(float(getattr(workload, name).mean())), dtype=np.int64)
        for name in _EVENED
    }
    classes = tuple(evened(each) for each in workload.classes)
    if not workload.segments:
        return replace(workload, classes=classes, **means)
    parts = {kind: _evened_segments(stages) for kind, stages in workload.segments.items()}
    return replace(workload, segments={}, classes=classes, **means).segmented(parts)


def _evened_segments(stages: Sequence[tuple[Segment, ...]]) -> list[tuple[Segment, ...]]:
    """Return segments scaled to the mean computation and communication of stages that have them."""
    totals_ns = np.array([
        [sum(each.duration_ns for each in segments if each.is_computation is is_computation)
         for is_computation in (True, False)]
        for segments in stages
    ], dtype=np.float64)  # fmt: skip
    some = totals_ns > 0
    means_ns = totals_ns.sum(axis=0) / np.maximum(some.sum(axis=0), 1)
    factors = np.where(some, means_ns / np.where(some, totals_ns, 1), 1)
    return [slowed_segments(segments, *pair) for segments, pair in zip(stages, factors.tolist(), strict=True)]


def jittered(prepared: Prepared, seed: int, spread: float) -> Prepared:
    """Return inputs with normally distributed factors of computations, with mean 1 and deviation ``spread``."""
    workload, microbatches = prepared.workload, prepared.schedule.microbatches
    if workload.classes:
        return prepared
    drawn = np.random.default_rng(seed)
    factors = np.clip(drawn.normal(1, spread, (_CLASSES, workload.stages)), 0.5, 2)
    classes = tuple(slowed(workload, factor, 1) for factor in factors)
    numbers = drawn.integers(1, _CLASSES + 1, microbatches).astype(np.int32)
    return replace(prepared, workload=replace(workload, classes=classes, microbatch_class=numbers))


@dataclass(frozen=True, slots=True)
class _Faster:
    """A network with scaled times."""

    network: Network
    factor: float

    @property
    def links(self) -> Links:
        links = self.network.links
        return replace(
            links, rate_kbps=times(links.rate_kbps, self.factor),
            flow_rate_kbps=times(links.flow_rate_kbps, self.factor),
            latency_ns=times(links.latency_ns, 1 / self.factor),
            overhead_ns=times(links.overhead_ns, 1 / self.factor),
        )  # fmt: skip

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return scaled paths; paths without a limit or a route stay."""
        paths = self.network.paths(src, dst)
        rate = np.where(paths.rate_kbps > 0, times(paths.rate_kbps, self.factor), paths.rate_kbps)
        return replace(
            paths, rate_kbps=rate, latency_ns=times(paths.latency_ns, 1 / self.factor),
            overhead_ns=times(paths.overhead_ns, 1 / self.factor),
        )  # fmt: skip
