"""Chimera runs pipelines in both directions over the same ranks, each with its own copy of the model.

Source: Li and Hoefler, Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines,
SC 2021, arXiv:2107.06925. Merged construction and uneven stages: Barley et al., A Tabular Schedule Abstraction
for Communication-Aware Evaluation of Pipeline-Parallel LLM Training, 2026.

With D ranks and 2f pipelines, pipeline 2i puts stage s on rank s + i D/f (mod D), pipeline 2i + 1 on rank
D - 1 - s + i D/f. Microbatches take the pipelines in turn. In every construction a rank prefers a backward
(the earliest microbatch's) to a forward (the deepest stage's).

A basic unit has up to D microbatches. It is built in slots, in which a forward and a backward take one slot each,
so that the pipelines interlock. For D = 4 (microbatches 0 and 2 go down the ranks, 1 and 3 up)::

    rank 0   F0 F2 .  F1 B1 F3 B3 B0 .  B2
    rank 1   .  F0 F1 F2 F3 B1 B0 B3 B2 .
    rank 2   .  F1 F0 F3 F2 B0 B1 B2 B3 .
    rank 3   F1 F3 .  F0 B0 F2 B2 B1 .  B3

More microbatches than ranks:

``merged``
    One table of all microbatches, built with real durations. Each pipeline is a 1F1B that has at most
    2 (D - s) - 1 microbatches in flight on its stage s.
``concatenation``
    Basic units one after another; forwards of the next unit fill bubbles.
``forward-doubling``
    The same with units of 2D microbatches: a forward computes two, and takes as long as the backward of one.
``backward-halving``
    The same with each microbatch divided into halves: a forward computes both, a backward one.

If stages differ in time (an uneven partition), units are also built with real durations, unless the order of even
stages is shorter with these durations. Both directions have the same partition, so a rank holds a stage and its
mirror image. Units then overlap more: concatenated units of even stages hold at most D microbatches, and those of
uneven stages may hold about as many as merged ones.

If forward and backward take the same time, the bubble is (D - 2f) / (2f N + D - 2f), as in the papers. If a
backward takes two forwards, it is larger: (2D - 4) / (5D - 4) for the basic unit of N = D, f = 1. Forward doubling
and backward halving have no formula. Peak activations of rank r in that unit: D/2 + 1 + min(r, D - 1 - r). There
are 2f copies of the weights.
"""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules.one_f_one_b import check_one_chunk

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

_DOUBLED = ("forward-doubling", "backward-halving")


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.bidirectional import in_basic_units, merged

    scale = _scale(request)
    if scale == "merged" and request.microbatches > request.ranks:
        return merged(request, _pipelines(request))
    span = 2 if scale in _DOUBLED else 1
    return in_basic_units(request, _pipelines(request), request.microbatches * parts(request), span)


def check(request: ScheduleRequest) -> None:
    """Refuse odd ranks, pipelines that do not spread evenly, and microbatches that do not fill them."""
    check_one_chunk(request, "chimera", "hanayo")
    ranks, pipelines, scale = request.ranks, _pipelines(request), _scale(request)
    if ranks % 2:
        message = f"chimera pairs a rank with its mirror image, and {ranks} ranks are odd"
        step = 2 if pipelines % 2 else pipelines
        raise ConstraintError(message, nearest=nearest_multiples(ranks, step, "ranks"), key="parallel.pp")
    if pipelines % 2 or ranks % pipelines:
        fit = [n for n in range(2, ranks + 1, 2) if ranks % n == 0]
        around = [*[n for n in fit if n < pipelines][-1:], *[n for n in fit if n > pipelines][:1]]
        message = f"{pipelines} pipelines do not spread evenly over {ranks} ranks in both directions"
        nearest = f"{' or '.join(map(str, around))} pipelines"
        raise ConstraintError(message, nearest=nearest, key="schedule.options.pipelines")
    whole = ranks * (2 if scale == "forward-doubling" else 1)
    step = pipelines * (2 if scale == "forward-doubling" else 1)
    if scale != "merged" and request.microbatches > whole:
        step = whole
    if request.microbatches % step:
        what = f"basic units of {whole}" if step == whole else f"{pipelines} pipelines"
        doubled = " with two microbatches at once" if scale == "forward-doubling" and step != whole else ""
        message = f"chimera ({scale}) fills {what}{doubled}, and {request.microbatches} microbatches do not"
        raise ConstraintError(
            message,
            nearest=nearest_multiples(request.microbatches, step, "microbatches"),
            key="batch.microbatches",
        )


def parts(request: ScheduleRequest) -> int:
    """Return into how many parts a microbatch is cut."""
    return 2 if _scale(request) == "backward-halving" else 1


def bubble(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length as the papers state it, forward and backward alike."""
    if _scale(request) in _DOUBLED:
        return None
    ranks, pipelines = request.ranks, _pipelines(request)
    return Fraction(ranks - pipelines, pipelines * request.microbatches + ranks - pipelines)


def peak_activations(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the activations that each rank holds at most in a basic unit of two pipelines."""
    ranks = request.ranks
    if request.microbatches != ranks or _pipelines(request) != 2 or _scale(request) in _DOUBLED:  # noqa: PLR2004 - a pair
        return None
    return [Fraction(ranks // 2 + 1 + min(rank, ranks - 1 - rank)) for rank in range(ranks)]


def _pipelines(request: ScheduleRequest) -> int:
    return int(request.options.get("pipelines", 2))


def _scale(request: ScheduleRequest) -> str:
    return str(request.options.get("scale", "merged"))


def nearest_multiples(value: int, step: int, what: str) -> str:
    """Return the multiples of a step around a value, as the nearest sizes that work."""
    below = value - value % step
    return f"{below} or {below + step} {what}" if below else f"{step} {what}"


OFFER = ScheduleOffer(
    name="chimera",
    summary="Pipelines in both directions over the same ranks, each with its own copy of the model.",
    build=build,
    options=lambda: import_module("pptrace_schedules.options").ChimeraOptions,
    check=check,
    bubble=bubble,
    bubble_is_exact=False,
    peak_activations=peak_activations,
    parts=parts,
    constraints=(
        "An even number of ranks, a multiple of the pipelines; microbatches a multiple of the pipelines. More "
        "microbatches than ranks are a multiple of the ranks for concatenation and backward-halving, and of twice "
        "the ranks for forward-doubling."
    ),
    source="https://arxiv.org/abs/2107.06925",
)
