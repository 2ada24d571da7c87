"""Hanayo folds the pipeline into waves: a microbatch runs down the ranks and up, W times.

Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training Efficiency,
SC 2023, arXiv:2308.15762.

With W waves each of P ranks holds 2W chunks: chunk c of rank r is stage c P + r where c is even, on the way down,
and c P + P - 1 - r on the way up. A rank does, in slots in which a chunk's forward and backward count alike, a
backward if one can run (the earliest microbatch first), else the forward of the deepest stage that can.

In times of a rank's whole share of the model, a forward of 1 and a backward of 2, B microbatches take::

    B <= P              3P + (2B - 2) / W
    B = 2P, 3P, …       B (3 + (P - 1) / (PW)) + (2P - 3) / (2W)

and the bubble is 1 - 3B / length: (2P - 2) / (3PW + 2P - 2) where B = P, for which the paper prints
(2P - 2) / (3PW + P - 1). Other B beyond P follow the same rule and have no closed form here.

Peak activations of rank r, each a chunk's: 2W min(B, P) - max(0, P - 1 - r - |B - P|).

The paper's own regime is B = P. Beyond it one batch of P follows another in the same waves: memory stays where it
was, and a bubble of (P - 1) / (3PW + P - 1) remains however many microbatches there are, where 1F1B's vanishes.
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
