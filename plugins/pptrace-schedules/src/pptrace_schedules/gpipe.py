"""GPipe and looped BFS run every microbatch forward, then every microbatch backward.

GPipe: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, NeurIPS 2019,
arXiv:1811.06965, figure 2c. Order of rank k of K, with M microbatches::

    F_k,0 F_k,1 … F_k,M-1   B_k,0 B_k,1 … B_k,M-1

The figure draws the backwards in reverse order, PyTorch and this table in order; neither the length nor
the memory depends on it. The paper recomputes activations in the backward; here, that is the choice of
``model.recompute``. Bubble: (K - 1) / (M + K - 1). Peak activations of every rank: M.

Looped BFS: Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023, arXiv:2211.05953. All microbatches run
through one chunk before the next: breadth first, over chunks that loop. Chunk c of rank r is stage c p + r. With
m microbatches and v chunks, every rank runs, for its chunks::

    c = 0 … v - 1:   F_0 F_1 … F_m-1
    c = v - 1 … 0:   B_m-1 … B_1 B_0

Backwards go in reverse order, as PyTorch has them (``ScheduleLoopedBFS``). With one chunk this is GPipe.
Bubble: (p - 1) / (v m + p - 1) where m >= p; with m < p, L = v p + m - 1 slots of one forward and one
backward, and the bubble is 1 - v m / L. Peak activations of every rank, in chunks: v m.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.interleaved_1f1b import looped_bubble
from pptrace_schedules.one_f_one_b import check_one_chunk

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest


def build(request: ScheduleRequest, *, reverses: bool = False) -> Schedule:
    """Return the table; backwards of looped BFS are in the reverse order of forwards."""
    import numpy as np

    from pptrace.plugin import Kind, Placement, Schedule
    from pptrace_schedules.row_patterns import in_rounds

    ranks, passes = request.ranks, in_rounds(request, request.microbatches)
    steps = request.chunks * request.microbatches
    microbatch, stage = np.hstack([passes.forward, passes.forward[:, ::-1] if reverses else passes.backward])
    return Schedule.from_columns(
        Placement.looped(ranks, request.microbatches, request.chunks),
        np.arange(ranks + 1) * 2 * steps,
        np.tile(np.repeat(np.array([Kind.F, Kind.B], dtype=np.int8), steps), ranks),
        np.add.outer(np.arange(ranks, dtype=np.int32), stage).ravel(),
        np.tile(microbatch, ranks),
    )


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds between its last forward and its first backward."""
    return [Fraction(request.chunks * request.microbatches)] * request.ranks


OFFER = ScheduleOffer(
    name="gpipe",
    summary="Every microbatch forward, then every microbatch backward.",
    build=build,
    check=partial(check_one_chunk, name="gpipe", instead="looped-bfs"),
    bubble=looped_bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/1811.06965",
)

LOOPED_BFS = ScheduleOffer(
    name="looped-bfs",
    summary="All microbatches through one chunk of a rank before the next: breadth first.",
    build=partial(build, reverses=True),
    bubble=looped_bubble,
    peak_activations=peak_activations,
    constraints="Any number of ranks, microbatches and chunks per rank.",
    source="https://arxiv.org/abs/2211.05953",
)
