"""A step with its costs altered: other speeds of computation and communication, even stages, times that vary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.experiment.lengths import changed
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.experiment.prepare import Prepared
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.segments import Segment
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Links, Network, Paths

__all__ = ["at_speeds", "evened", "jittered", "slowed", "with_speeds"]

_PASSES = ("f", "b", "i", "w")
_EVENED = tuple(f"{name}{part}_ns" for name in _PASSES for part in ("", "_collective"))
_MOVED = ("reduce_ns", "unshard_ns", "offload_ns", "reload_ns")
"""Communication outside of forwards and backwards."""
_CLASSES = 8
"""Sorts of microbatches whose times vary."""


def at_speeds(prepared: Prepared, compute: float = 1, communication: float = 1) -> Prepared:
    """Return a step whose computation, and whose communication, is so many times as fast.

    Communication is messages, collectives, reductions and copies to the host, their latencies included.
    """
    workload = slowed(prepared.workload, 1 / compute, 1 / communication)
    network: Network = _Faster(prepared.network, communication)
    return changed(prepared, workload=workload, network=network if communication != 1 else prepared.network)


def evened(workload: Workload) -> Workload:
    """Return costs in which every stage computes the mean of all; those in segments as they are."""
    if workload.segments:
        return workload
    means: dict[str, Any] = {
        name: np.full(workload.stages, round(float(getattr(workload, name).mean())), dtype=np.int64)
        for name in _EVENED
    }
    return replace(workload, classes=tuple(evened(one) for one in workload.classes), **means)


def jittered(prepared: Prepared, seed: int, spread: float) -> Prepared:
    """Return a step whose computations vary by stage and microbatch, normally and with a mean of 1.

    Args:
        prepared: the step.
        seed: what the times are drawn from; the same seed gives the same times.
        spread: their standard deviation, as a share.
    """
    workload, microbatches = prepared.workload, prepared.schedule.microbatches
    if workload.classes:
        return prepared
    drawn = np.random.default_rng(seed)
    factors = np.clip(drawn.normal(1, spread, (_CLASSES, workload.stages)), 0.5, 2)
    classes = tuple(slowed(workload, one, 1) for one in factors)
    numbers = drawn.integers(1, _CLASSES + 1, microbatches).astype(np.int32)
    return replace(prepared, workload=replace(workload, classes=classes, microbatch_class=numbers))


def slowed(workload: Workload, compute: ArrayLike, communication: float) -> Workload:
    """Return costs that take so many times as long; ``compute`` is one factor, or one per stage."""
    by_stage = np.broadcast_to(np.asarray(compute, dtype=float), (workload.stages,))
    columns: dict[str, Any] = {
        "optimizer_ns": _times(workload.optimizer_ns, by_stage),
        "recompute_ns": _times(workload.recompute_ns, by_stage),
        "sync_ns": round(workload.sync_ns * communication),
    }
    for name in _MOVED:
        columns[name] = _times(getattr(workload, name), communication)
    for name in _PASSES:
        whole, moved = getattr(workload, f"{name}_ns"), getattr(workload, f"{name}_collective_ns")
        own = _times(moved, communication)
        columns |= {f"{name}_ns": _times(whole - moved, by_stage) + own, f"{name}_collective_ns": own}
    classes = tuple(slowed(one, compute, communication) for one in workload.classes)
    if not workload.segments:
        return replace(workload, classes=classes, **columns)
    parts = {
        kind: [_of_segments(own, factor, communication) for own, factor in zip(stages, by_stage, strict=True)]
        for kind, stages in workload.segments.items()
    }
    return replace(workload, segments={}, classes=classes, **columns).segmented(parts)


def with_speeds(base: Workload, speeds: Int64s) -> Workload:
    """Return costs of replicas of unlike speeds; each microbatch has those of its first replica's.

    Args:
        base: costs at full speed.
        speeds: thousandths, shape (replicas, microbatches).
    """
    distinct, number = np.unique(speeds, return_inverse=True)
    classes = tuple(slowed(base, 1000 / speed, 1) for speed in distinct.tolist())
    own = number.reshape(speeds.shape)[0] + 1
    return replace(base, classes=classes, microbatch_class=own.astype(np.int32))


def _of_segments(segments: Sequence[Segment], compute: float, communication: float) -> tuple[Segment, ...]:
    return tuple(
        replace(one, duration_ns=round(one.duration_ns * (compute if one.is_computation else communication)))
        for one in segments
    )


def _times(values: Int64s, factor: NDArray[np.float64] | float) -> Int64s:
    found: Int64s = np.rint(values * factor).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class _Faster:
    """A network on which everything takes its part of the time."""

    network: Network
    factor: float

    @property
    def links(self) -> Links:
        """The same links with more capacity."""
        links = self.network.links
        return replace(
            links, rate_kbps=_times(links.rate_kbps, self.factor),
            flow_rate_kbps=_times(links.flow_rate_kbps, self.factor),
            latency_ns=_times(links.latency_ns, 1 / self.factor),
            overhead_ns=_times(links.overhead_ns, 1 / self.factor),
        )  # fmt: skip

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the same paths, faster; those without a limit or a route stay."""
        paths = self.network.paths(src, dst)
        rate = np.where(paths.rate_kbps > 0, _times(paths.rate_kbps, self.factor), paths.rate_kbps)
        return replace(
            paths, rate_kbps=rate, latency_ns=_times(paths.latency_ns, 1 / self.factor),
            overhead_ns=_times(paths.overhead_ns, 1 / self.factor),
        )  # fmt: skip
