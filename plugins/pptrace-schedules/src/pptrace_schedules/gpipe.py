"""GPipe runs every microbatch forward, then every microbatch backward.

Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism,
NeurIPS 2019, arXiv:1811.06965, figure 2c.

Order of rank k of K, with M microbatches::

    F_k,0 F_k,1 … F_k,M-1   B_k,0 B_k,1 … B_k,M-1

The figure draws the backwards in reverse order, PyTorch and this table in order; neither the length nor
the memory depends on it. The paper computes activations again in the backward; here the model's
``recompute`` says so.

Bubble: (K - 1) / (M + K - 1). Peak activations of every rank: M.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.one_f_one_b import check_one_chunk

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Kind, Placement, Schedule

    ranks, microbatches = request.ranks, request.microbatches
    microbatch = np.arange(microbatches, dtype=np.int32)
    return Schedule.from_columns(
        Placement.looped(ranks, microbatches),
        np.arange(ranks + 1) * 2 * microbatches,
        np.tile(np.repeat(np.array([Kind.F, Kind.B], dtype=np.int8), microbatches), ranks),
        np.repeat(np.arange(ranks, dtype=np.int32), 2 * microbatches),
        np.tile(microbatch, 2 * ranks),
    )


def check(request: ScheduleRequest) -> None:
    """Refuse several chunks per rank."""
    check_one_chunk(request, "gpipe", "looped-bfs")


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    return Fraction(request.ranks - 1, request.microbatches + request.ranks - 1)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the microbatches that each rank holds between its last forward and its first backward."""
    return [Fraction(request.microbatches)] * request.ranks


OFFER = ScheduleOffer(
    name="gpipe",
    summary="Every microbatch forward, then every microbatch backward.",
    build=build,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/1811.06965",
)
