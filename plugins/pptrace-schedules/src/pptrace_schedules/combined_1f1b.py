"""Combined 1F1B is interleaved 1F1B with overlapped pairs, in which exchanges of tokens overlap with computation.

Source: NVIDIA, Megatron-LM, ``--overlap-moe-expert-parallel-comm`` (``pipeline_parallel/combined_1f1b.py`` and
``schedules.py``, 2025). Rounds of other sizes than p are its
``--microbatch-group-size-per-virtual-pipeline-stage``.

Chunk c of rank r is stage c p + r. With m microbatches, v chunks and rounds of g microbatches, rank r has
w = min(v m, (v - 1) g + 2 (p - 1 - r) + 1) forwards before its first pair. This is one more than in interleaved
1F1B, so that the actions of a pair do not depend on each other. Rank r runs (& is an overlapped pair)::

    w F,   v m - w times F&B,   w B

    forwards    round 0: chunk 0 of microbatches 0 … g - 1, chunk 1 of the same, …, chunk v - 1; round 1: …
    backwards   the same rounds, each from chunk v - 1 down to chunk 0

On one rank with one chunk, the forward of a microbatch overlaps with the backward of the previous one.

In a pair, the compute stream runs for each layer: attention F, experts I, experts W, experts F, attention I,
attention W. The communication stream runs: combine B, dispatch F, dispatch B, combine F. The costs say whether an
exchange waits for the weight gradient of its half. With ``--delay-wgrad-compute``, it does not.

The bubble is (p - 1) / (v m + p - 1), as in interleaved 1F1B: pairs take less time, and the path through the ranks
does not. Peak activations of rank r, in chunks: min(v m, w + 1), one more than in interleaved 1F1B.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules.interleaved_1f1b import held_after, looped_bubble, warm_ups

if TYPE_CHECKING:
    from fractions import Fraction

    from pptrace.plugin import Schedule, ScheduleRequest

_FEWEST_CHUNKS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from msgspec.structs import replace

    from pptrace_schedules.bidirectional import TURNS
    from pptrace_schedules.row_patterns import in_rounds, one_forward_one_backward

    passes = in_rounds(request, _round_size(request))
    table = one_forward_one_backward(request, _warm_ups(request), passes, overlapped=True)
    return replace(table, interleave=TURNS)


def check(request: ScheduleRequest) -> None:
    """Refuse a pipeline without virtual stages, and rounds that do not reach over the ranks."""
    ranks, chunks, microbatches = request.ranks, request.chunks, request.microbatches
    if ranks == 1 and chunks > 1:
        raise ConstraintError(
            f"combined-1f1b on one rank is not a pipeline, and takes one chunk of the model, not {chunks}",
            nearest="1 chunk",
            key="parallel.vp",
        )
    if ranks > 1 and chunks < _FEWEST_CHUNKS:
        raise ConstraintError(
            f"combined-1f1b needs at least {_FEWEST_CHUNKS} chunks of the model on each of {ranks} ranks, not "
            f"{chunks}",
            nearest=f"{_FEWEST_CHUNKS} chunks",
            key="parallel.vp",
        )
    size = _round_size(request)
    if size < ranks:
        raise ConstraintError(
            f"a round of combined-1f1b reaches over all {ranks} ranks, and {size} microbatches do not",
            nearest=f"{ranks}",
            key="schedule.options.round",
        )
    if microbatches < ranks or 0 < microbatches % size < ranks:
        below, above = microbatches // size * size, microbatches // size * size + ranks
        near = f"{below} or {above} microbatches" if below >= ranks else f"{above} microbatches"
        raise ConstraintError(
            f"the last round of combined-1f1b takes {ranks} microbatches or more, and of {microbatches} in rounds "
            f"of {size} it has {microbatches % size}",
            nearest=near,
            key="batch.microbatches",
        )


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds in its first pair, its backward not yet done."""
    return held_after(request, _warm_ups(request))


def _warm_ups(request: ScheduleRequest) -> list[int]:
    return warm_ups(request, _round_size(request), more=1)


def _round_size(request: ScheduleRequest) -> int:
    return int(request.options.get("round") or request.ranks)


OFFER = ScheduleOffer(
    name="combined-1f1b",
    summary="Interleaved 1F1B with one more forward ahead, so that every steady forward overlaps a backward.",
    build=build,
    options=lambda: import_module("pptrace_schedules.options").CombinedOptions,
    check=check,
    bubble=looped_bubble,
    peak_activations=peak_activations,
    has_pairs=True,
    constraints=(
        "Two or more chunks per rank, or one rank with one chunk. Each round has at least as many microbatches as "
        "ranks, also the last one."
    ),
    source="https://github.com/NVIDIA/Megatron-LM",
)
