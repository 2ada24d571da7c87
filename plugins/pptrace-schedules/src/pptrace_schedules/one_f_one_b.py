"""1F1B alternates one forward and one backward as soon as the first backward can run.

Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021, arXiv:2006.09503
(PipeDream-Flush); Fan et al., DAPPLE, PPoPP 2021, arXiv:2007.01045, found the same order.

Order of rank r of p, with m microbatches and w = min(m, p - 1 - r)::

    w F,   m - w times F B,   w B          forwards 0 … m - 1 and backwards 0 … m - 1, each in order

Bubble: (p - 1) / (m + p - 1), that of GPipe. Peak activations of rank r: min(m, p - r).

Eager 1F1B has twice the warm-up, w = min(m, 2 (p - 1 - r)). Source: Zhuang et al., On Optimizing the Communication
of Model Parallelism, MLSys 2023, arXiv:2211.05322, section 4. Between a forward and the forward of the next rank,
there is another forward and backward. A message that takes less time than these delays nothing; 1F1B waits for it
in both directions. Where messages take no time, the bubble is that of 1F1B. Peak activations of rank r:
min(m, 2 (p - 1 - r) + 1).

PipeDream-2BW is the same order without a flush: the forwards of the next update follow at once. Source: Narayanan
et al., as above, section 3.1; code: ``forward_backward_pipelining_no_flushes`` in branch ``pipedream_2bw`` of
github.com/msr-fiddle/pipedream. Order of rank r with w = p - 1 - r and K updates (U)::

    w F,   K times (m times F B, then U)          the last w turns have no F

Gradients are those of the weights before the previous update, which the paper calls a delay of one:
W(t + 1) = W(t) - v grad f(W(t - 1)). For this, a rank holds two versions of its weights, and m >= p. Zmushko et
al., arXiv:2606.30634, train with this order and other optimizers. Bubble: 0 between updates, and that of 1F1B over
K m microbatches from the first forward to the last backward. Peak activations of rank r: p - r. Ranks do not
exchange the norm of gradients, as in the authors' code. That code keeps the second version in FP32; here both have
the type of the weights.

PACI has the order of PipeDream-2BW and one version of the weights. Source: Elam et al., Breaking the Bubble, 2026,
arXiv:2606.07881; code: ``DistPACI/Workers.py`` of github.com/ItayElam/PACI. There, a stage computes the backwards
that can start, and else a forward if fewer than p - r forwards lack their backward. After every m backwards it
updates its weights without a wait for other ranks. So a backward of rank r uses weights that are up to
ceil((p - 1 - r) / m) updates newer than those of its forward. Bubble and activations are those of PipeDream-2BW.
That code also runs m < p, where more updates are in the pipeline than a table shows; here m >= p.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules.interleaved_1f1b import held_after, looped_bubble, warm_ups

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

_UPDATES = 4


def build(request: ScheduleRequest, *, factor: int = 1) -> Schedule:
    """Return the table, with ``factor`` times the warm-up of 1F1B."""
    from pptrace_schedules.row_patterns import in_rounds, one_forward_one_backward

    passes = in_rounds(request, request.microbatches)
    return one_forward_one_backward(request, warm_ups(request, per_rank=factor), passes)


def peak_activations(request: ScheduleRequest, *, factor: int = 1) -> list[Fraction]:
    """Return the microbatches that each rank holds when its first backward starts."""
    return held_after(request, warm_ups(request, per_rank=factor))


def build_without_flush(request: ScheduleRequest) -> Schedule:
    """Return the table of PipeDream-2BW and PACI."""
    import numpy as np

    from pptrace.plugin import Kind, Schedule, ScheduleRequest

    updates, ranks = int(request.options.get("updates", _UPDATES)), request.ranks
    table = build(ScheduleRequest(ranks=ranks, microbatches=request.microbatches * updates))
    backwards = np.flatnonzero(table.kind == Kind.B).reshape(ranks * updates, request.microbatches)
    after = backwards[:, -1] + 1
    return Schedule.from_columns(
        table.placement,
        np.arange(ranks + 1) * (2 * table.microbatches + updates),
        np.insert(table.kind, after, Kind.OPTIMIZER),
        np.insert(table.stage, after, np.repeat(np.arange(ranks), updates)),
        np.insert(table.microbatch, after, -1),
    )


def check_without_flush(request: ScheduleRequest, name: str, limit: str) -> None:
    """Refuse several chunks per rank, and fewer microbatches than ranks, for which ``limit`` is the reason."""
    check_one_chunk(request, name, "interleaved-1f1b, with a flush,")
    if request.microbatches < request.ranks:
        raise ConstraintError(
            f"{name} {limit} for {request.ranks} microbatches or more per update, not for {request.microbatches}",
            nearest=f"{request.ranks} microbatches",
            key="batch.microbatches",
        )


def check_one_chunk(request: ScheduleRequest, name: str, instead: str = "interleaved-1f1b") -> None:
    """Refuse several chunks per rank.

    Raises:
        ConstraintError: the schedule ``name`` is asked for several; ``instead`` takes them.
    """
    if request.chunks != 1:
        raise ConstraintError(
            f"{name} keeps one chunk of the model on a rank, not {request.chunks} ({instead} takes several)",
            nearest="1 chunk",
            key="parallel.vp",
        )


def check_two_chunks(request: ScheduleRequest, name: str) -> None:
    """Refuse more than two chunks per rank; a single one is the default of requests.

    Raises:
        ConstraintError: the schedule ``name`` is asked for more.
    """
    if request.chunks not in {1, 2}:
        raise ConstraintError(
            f"{name} has two chunks of the model on a rank, not {request.chunks}",
            nearest="2 chunks",
            key="parallel.vp",
        )


OFFER = ScheduleOffer(
    name="1f1b",
    summary="One forward and one backward in turns, after a warm-up as long as the way to the last rank.",
    build=build,
    check=partial(check_one_chunk, name="1f1b"),
    bubble=looped_bubble,
    peak_activations=peak_activations,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2006.09503",
)

EAGER = ScheduleOffer(
    name="eager-1f1b",
    summary="1F1B with a warm-up of twice the forwards, which leaves messages a step's time.",
    build=partial(build, factor=2),
    check=partial(check_one_chunk, name="eager-1f1b"),
    bubble=looped_bubble,
    peak_activations=partial(peak_activations, factor=2),
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2211.05322",
)


def _without_flush(name: str, *, limit: str, **fields: Any) -> ScheduleOffer:
    """Return the offer of a schedule without flushes; ``fields`` are those that differ."""
    return ScheduleOffer(
        name=name,
        build=build_without_flush,
        check=partial(check_without_flush, name=name, limit=limit),
        options=lambda: import_module("pptrace_schedules.options").UpdateOptions,
        bubble=lambda _request: Fraction(0),
        peak_activations=lambda request: held_after(request, warm_ups(request, per_rank=1)),
        only_by_name=True,
        constraints="One chunk per rank; at least as many microbatches as ranks.",
        **fields,
    )


PIPEDREAM_2BW = _without_flush(
    "pipedream-2bw",
    limit="holds two versions of the weights, which suffice",
    summary="1F1B without a flush between optimizer updates, with two versions of the weights.",
    weight_versions=2,
    source="https://arxiv.org/abs/2006.09503",
)

PACI = _without_flush(
    "paci",
    limit="has a steady step between two updates",
    summary="1F1B without a flush between optimizer updates, with one version of the weights.",
    source="https://arxiv.org/abs/2606.07881",
)
