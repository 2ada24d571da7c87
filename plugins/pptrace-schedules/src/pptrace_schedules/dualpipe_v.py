"""DualPipeV is DualPipe folded in the middle: a V of two chunks per rank, with one copy of the model.

Source: DeepSeek-AI, deepseek-ai/DualPipe (2025), after Sea AI Lab's "cut-in-half" of DualPipe, DeepSeek-V3
Technical Report, arXiv:2412.19437, section 3.2.1. PyTorch has the same order (``ScheduleDualPipeV``).

Chunk 0 of rank r of p is stage r, chunk 1 is stage 2p - 1 - r, so rank 0 has the loss. With q = p - 1 - r and m
microbatches (F0 and F1 are forwards of chunk 0 and 1, & makes an overlapped pair, I and W are a backward's halves,
and W is of the earliest backward that is due)::

    2q F0,   r+1 times F0 F1,   q times I1 W F1,
    m-2p+r+1 times F0&B1 F1&B0   (the last rank's first: F0 B1 F1&B0),
    q times B1 F1&B0,
    floor((r+1)/2) times B1 B0,   B1 I0 where r is even,   floor((r+1)/2) times I1 I0,
    q times W I0,   r+1 W

These are DualPipe's rows for 2p ranks and 2m microbatches, of which each rank here runs both halves' one. A pair
runs as there. Bubble, as the authors state it: (p - 1) (F&B + B - 3W) of idle time, of chunks, under DualPipe's
conditions; with costs that are not in segments, and F = I = W, the share of idle time is (p - 1) / (6m + p - 1).
Peak activations: 2p + 1 chunks on every rank.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER"]

_CHUNKS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Placement
    from pptrace_schedules.bidirectional import program, table

    ranks, microbatches = request.ranks, request.microbatches
    rows = program(np.arange(ranks, dtype=np.int32), ranks, microbatches)
    stage = np.where(rows.chunk == 0, rows.row, 2 * ranks - 1 - rows.row)
    return table(rows, Placement.v_shaped(ranks, microbatches, _CHUNKS), stage, rows.microbatch)


def check(request: ScheduleRequest) -> None:
    """Refuse chunks that make no V, and fewer microbatches than stages."""
    if request.chunks not in {1, _CHUNKS}:
        raise ConstraintError(
            f"dualpipe-v has two chunks of the model on a rank, not {request.chunks}",
            nearest="2 chunks",
            key="parallel.vp",
        )
    stages = _CHUNKS * request.ranks
    if request.microbatches < stages:
        raise ConstraintError(
            f"dualpipe-v's warm-up through {stages} stages takes {stages} microbatches or more, not "
            f"{request.microbatches}",
            nearest=f"{stages} microbatches",
            key="batch.microbatches",
        )


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    idle = request.ranks - 1
    return Fraction(idle, 6 * request.microbatches + idle)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds at most."""
    return [Fraction(_CHUNKS * request.ranks + 1)] * request.ranks


OFFER = ScheduleOffer(
    name="dualpipe-v",
    summary="DualPipe folded into a V of two chunks per rank: its overlapped pairs with one copy of the model.",
    build=build,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    has_pairs=True,
    constraints="Two chunks per rank; at least two microbatches per rank.",
    source="https://arxiv.org/abs/2412.19437",
)
