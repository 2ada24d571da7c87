"""Memory of both steps by rank: bytes at the peak where both know them, and how many activations are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pptrace.analysis.steps.sides import Side
    from pptrace.model.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = ["RankMemory", "memory_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank holds in both steps."""

    rank: int
    """The rank."""
    peak_bytes: tuple[int, int] | None
    """The most bytes in use; None where a side does not know."""
    activations: tuple[int, int]
    """The most microbatches whose activations are held at once, each stage's counted as one."""


def memory_of(sides: tuple[Side, Side], metrics: tuple[Metrics, Metrics]) -> tuple[RankMemory, ...]:
    """Return every rank of both steps; nothing of other numbers of ranks, or where it is alike."""
    if metrics[0].ranks != metrics[1].ranks:
        return ()
    peaks = [_peaks(side, one) for side, one in zip(sides, metrics, strict=True)]
    held = [one.memory.peak_activations for one in metrics]
    ranks = tuple(
        RankMemory(
            rank=rank,
            peak_bytes=None
            if peaks[0] is None or peaks[1] is None
            else (int(peaks[0][rank]), int(peaks[1][rank])),
            activations=(int(held[0][rank]), int(held[1][rank])),
        )
        for rank in range(metrics[0].ranks)
    )
    differs = any(one.peak_bytes is not None or one.activations[0] != one.activations[1] for one in ranks)
    return ranks if differs else ()


def _peaks(side: Side, metrics: Metrics) -> Int64s | None:
    """Return each rank's peak: of what the step costs, else of the counters that its trace holds."""
    if metrics.memory.peak_bytes.any():
        return metrics.memory.peak_bytes
    counted = {
        one.rank: one.value for one in side.timeline.counters if (one.name, one.unit) == ("memory", "bytes")
    }
    if any(rank not in counted for rank in range(metrics.ranks)):
        return None
    return np.array([int(counted[rank].max(initial=0)) for rank in range(metrics.ranks)], dtype=np.int64)
