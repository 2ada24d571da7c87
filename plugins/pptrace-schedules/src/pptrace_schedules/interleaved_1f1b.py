"""Interleaved 1F1B splits each rank's layers into v chunks and runs 1F1B over them, p microbatches a round.

Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
SC 2021, arXiv:2104.04473, section 2.2. Rounds of other sizes than p are PyTorch's (``ScheduleInterleaved1F1B``).

Chunk c of rank r is stage c p + r. With m microbatches, rounds of g = m / max(1, floor(m / p)) and
w = min(v m, (v - 1) g + 2 (p - 1 - r)), rank r runs::

    w F,   v m - w times F B,   w B

    forwards    round 0: chunk 0 of microbatches 0 … g - 1, chunk 1 of the same, …, chunk v - 1; round 1: …
    backwards   the same rounds, each from chunk v - 1 down to chunk 0

Bubble: (p - 1) / (v m + p - 1) where m >= p, against the paper's (p - 1) / (v m) of the ideal time. With
m < p a round is too short to hide the way back to rank 0: L = p + m - 1 + (v - 1) max(p, m) slots of one
forward and one backward, and the bubble is 1 - v m / L.
Peak activations of rank r, in chunks: min(v m, w + 1).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

_FEWEST_CHUNKS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.row_patterns import in_rounds, one_forward_one_backward

    size = round_size(request)
    return one_forward_one_backward(request, warm_ups(request, size), in_rounds(request, size))


def check(request: ScheduleRequest, *, name: str = "interleaved-1f1b", instead: str = "1f1b") -> None:
    """Refuse a single chunk per rank, and microbatches that make no rounds of equal size.

    Raises:
        ConstraintError: the schedule ``name`` is asked for them; ``instead`` takes a single chunk.
    """
    if request.chunks < _FEWEST_CHUNKS:
        raise ConstraintError(
            f"{name} needs at least {_FEWEST_CHUNKS} chunks of the model on a rank, not {request.chunks} "
            f"({instead} takes one)",
            nearest=f"{_FEWEST_CHUNKS} chunks",
            key="parallel.vp",
        )
    ranks, microbatches = request.ranks, request.microbatches
    if not _fits(microbatches, ranks):
        below = next(fewer for fewer in range(microbatches - 1, 0, -1) if _fits(fewer, ranks))
        above = next(more for more in range(microbatches + 1, microbatches + ranks + 1) if _fits(more, ranks))
        raise ConstraintError(
            f"{name} runs microbatches in rounds of equal size, and {microbatches} is not divisible by "
            f"{_rounds(microbatches, ranks)} (pp {ranks})",
            nearest=f"{below} or {above} microbatches",
            key="batch.microbatches",
        )


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds when its first backward starts."""
    return held_after(request, warm_ups(request, round_size(request)))


def warm_ups(request: ScheduleRequest, size: int = 0, *, per_rank: int = 2, more: int = 0) -> list[int]:
    """Return the forwards of each rank before its first turn of a forward and a backward.

    They are those of all chunks but one in a round of ``size`` microbatches, ``per_rank`` for each later rank, and
    ``more``.
    """
    ahead, whole = (request.chunks - 1) * size + more, request.chunks * request.microbatches
    return [min(whole, ahead + per_rank * later) for later in reversed(range(request.ranks))]


def held_after(request: ScheduleRequest, warm_up: list[int]) -> list[Fraction]:
    """Return the chunks' activations that each rank holds when its first backward starts, after its warm-up."""
    whole = request.chunks * request.microbatches
    return [Fraction(min(whole, forwards + 1)) for forwards in warm_up]


def round_size(request: ScheduleRequest) -> int:
    """Return the microbatches of each round."""
    return request.microbatches // _rounds(request.microbatches, request.ranks)


def _rounds(microbatches: int, ranks: int) -> int:
    return max(1, microbatches // ranks)


def _fits(microbatches: int, ranks: int) -> bool:
    return microbatches % _rounds(microbatches, ranks) == 0


def looped_bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length.

    Rank 0 runs the first microbatch of its next chunk when the last rank has run it on this chunk, which
    leaves it idle where there are fewer microbatches than ranks.
    """
    ranks, microbatches, chunks = request.ranks, request.microbatches, request.chunks
    length = (chunks - 1) * max(ranks, microbatches) + microbatches + ranks - 1
    return 1 - Fraction(chunks * microbatches, length)


OFFER = ScheduleOffer(
    name="interleaved-1f1b",
    summary="1F1B over several chunks of the model per rank, which divides the bubble by their number.",
    build=build,
    check=check,
    bubble=looped_bubble,
    peak_activations=peak_activations,
    constraints=(
        "Two or more chunks per rank. Microbatches run in rounds of equal size: a multiple of the ranks, or fewer "
        "than two per rank, is always possible."
    ),
    source="https://arxiv.org/abs/2104.04473",
)
