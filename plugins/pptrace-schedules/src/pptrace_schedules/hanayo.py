"""Hanayo folds the pipeline into waves: a microbatch runs down the ranks and up again, W times.

Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training Efficiency,
SC 2023, arXiv:2308.15762.

With W waves, each of P ranks holds 2W chunks. Chunk c of rank r is stage c P + r on the way down (c is even), and
stage c P + P - 1 - r on the way up. Time is divided into slots; a forward and a backward of a chunk take one slot
each. In a slot, a rank runs a backward if one is ready, that of the earliest microbatch first. Otherwise it runs
the forward of the deepest stage that is ready.

If the forward of all chunks of a rank takes 1 and the backward takes 2, the length of B microbatches is::

    B <= P              3P + (2B - 2) / W
    B = 2P, 3P, …       B (3 + (P - 1) / (PW)) + (2P - 3) / (2W)

The bubble is 1 - 3B / length. For B = P, it is (2P - 2) / (3PW + 2P - 2), where the paper prints
(2P - 2) / (3PW + P - 1). For other B above P, there is no closed form here.

Peak activations of rank r, in chunks: 2W min(B, P) - max(0, P - 1 - r - |B - P|).

The paper uses B = P. With more microbatches, groups of P microbatches follow each other in the same waves. Memory
stays the same. The bubble approaches (P - 1) / (3PW + P - 1), while the bubble of 1F1B approaches 0.
"""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

_WAVES = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace.plugin import Kind, Placement, list_schedule

    placement = Placement.v_shaped(request.ranks, request.microbatches, 2 * _waves(request))
    return list_schedule(placement, {Kind.F: 1, Kind.B: 1})


def check(request: ScheduleRequest) -> None:
    """Refuse chunks that are not two per wave."""
    waves = _waves(request)
    if request.chunks not in {1, 2 * waves}:
        given = f"not the {request.chunks} chunks per rank that are written"
        if request.options.get("waves"):
            raise ConstraintError(
                f"{waves} waves hold {2 * waves} chunks of the model on a rank, {given}",
                nearest=f"{2 * waves} chunks", key="parallel.vp",
            )  # fmt: skip
        raise ConstraintError(
            f"a wave holds two chunks of the model on a rank, so hanayo takes an even number, {given}",
            nearest=f"{request.chunks - 1} or {request.chunks + 1} chunks", key="parallel.vp",
        )  # fmt: skip


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length."""
    ranks, microbatches, waves = request.ranks, request.microbatches, _waves(request)
    if ranks == 1:
        return Fraction(0)
    if microbatches <= ranks:
        length = 3 * ranks + Fraction(2 * microbatches - 2, waves)
    elif microbatches % ranks == 0:
        length = microbatches * (3 + Fraction(ranks - 1, ranks * waves)) + Fraction(2 * ranks - 3, 2 * waves)
    else:
        return None
    return 1 - 3 * microbatches / length


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds at most."""
    ranks, microbatches = request.ranks, request.microbatches
    most = 2 * _waves(request) * min(microbatches, ranks)
    return [Fraction(most - max(0, ranks - 1 - rank - abs(microbatches - ranks))) for rank in range(ranks)]


def _waves(request: ScheduleRequest) -> int:
    return int(request.options.get("waves") or (request.chunks // 2 if request.chunks > 1 else _WAVES))


OFFER = ScheduleOffer(
    name="hanayo",
    summary="Waves down the ranks and up again over several chunks per rank, with one copy of the model.",
    build=build,
    options=lambda: import_module("pptrace_schedules.options").HanayoOptions,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints=(
        "Any number of ranks and microbatches; two chunks per rank and wave. The paper's regime is as many "
        "microbatches as ranks."
    ),
    source="https://arxiv.org/abs/2308.15762",
)
