"""Costs of slower and faster devices and communication."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.model.columns import Int64s
    from pptrace.model.segments import Segment
    from pptrace.model.workload import Workload

__all__ = ["PASSES", "slowed", "slowed_segments", "times"]

PASSES = ("f", "b", "i", "w")
"""Forwards and backwards, whole and split, as columns of costs begin."""
_MOVED = ("reduce_ns", "unshard_ns", "offload_ns", "reload_ns")
"""Communication outside of forwards and backwards."""


def slowed(workload: Workload, compute: ArrayLike, communication: float) -> Workload:
    """Return costs that take so many times as long; ``compute`` is one factor, or one per stage."""
    by_stage = np.broadcast_to(np.asarray(compute, dtype=float), (workload.stages,))
    columns: dict[str, Any] = {
        "optimizer_ns": times(workload.optimizer_ns, by_stage),
        "recompute_ns": times(workload.recompute_ns, by_stage),
        "sync_ns": round(workload.sync_ns * communication),
    }
    for name in _MOVED:
        columns[name] = times(getattr(workload, name), communication)
    for name in PASSES:
        whole, moved = getattr(workload, f"{name}_ns"), getattr(workload, f"{name}_collective_ns")
        own = times(moved, communication)
        columns |= {f"{name}_ns": times(whole - moved, by_stage) + own, f"{name}_collective_ns": own}
    classes = tuple(slowed(one, compute, communication) for one in workload.classes)
    if not workload.segments:
        return replace(workload, classes=classes, **columns)
    parts = {
        kind: [slowed_segments(own, factor, communication) for own, factor in zip(stages, by_stage, strict=True)]
        for kind, stages in workload.segments.items()
    }
    return replace(workload, segments={}, classes=classes, **columns).segmented(parts)


def slowed_segments(segments: Sequence[Segment], compute: float, communication: float) -> tuple[Segment, ...]:
    """Return segments that take so many times as long, rounded."""
    return tuple(
        replace(one, duration_ns=round(one.duration_ns * (compute if one.is_computation else communication)))
        for one in segments
    )


def times(values: NDArray[Any], factor: NDArray[np.float64] | float) -> Int64s:
    """Return times that are so many times as long, rounded."""
    found: Int64s = np.rint(values * factor).astype(np.int64)
    return found
