"""Looped BFS runs all microbatches through one chunk before the next: breadth first, over chunks that loop.

Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023, arXiv:2211.05953.

Chunk c of rank r is stage c p + r. With m microbatches and v chunks, every rank runs, for its chunks::

    c = 0 … v - 1:   F_0 F_1 … F_m-1
    c = v - 1 … 0:   B_m-1 … B_1 B_0

Backwards go in reverse order, as PyTorch has them (``ScheduleLoopedBFS``): neither the length nor the
memory depends on it. With one chunk this is GPipe.

Bubble: (p - 1) / (v m + p - 1) where m >= p; with m < p, L = v p + m - 1 slots of one forward and one
backward, and the bubble is 1 - v m / L. Peak activations of every rank, each a chunk's: v m.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.interleaved_1f1b import looped_bubble

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Kind, Placement, Schedule

    ranks, steps = request.ranks, request.chunks * request.microbatches
    chunk, microbatch = np.divmod(np.arange(steps, dtype=np.int32), request.microbatches)
    # Backwards mirror forwards: the last chunk first, the last microbatch first.
    stage = np.concatenate([chunk, chunk[::-1]]) * ranks
    return Schedule.from_columns(
        Placement.looped(ranks, request.microbatches, request.chunks),
        np.arange(ranks + 1) * 2 * steps,
        np.tile(np.repeat(np.array([Kind.F, Kind.B], dtype=np.int8), steps), ranks),
        np.add.outer(np.arange(ranks, dtype=np.int32), stage).ravel(),
        np.tile(np.concatenate([microbatch, microbatch[::-1]]), ranks),
    )


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    return looped_bubble(request)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds between its last forward and its first backward."""
    return [Fraction(request.chunks * request.microbatches)] * request.ranks


OFFER = ScheduleOffer(
    name="looped-bfs",
    summary="All microbatches through one chunk of a rank before the next: breadth first.",
    build=build,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="Any number of ranks, microbatches and chunks per rank.",
    source="https://arxiv.org/abs/2211.05953",
)
