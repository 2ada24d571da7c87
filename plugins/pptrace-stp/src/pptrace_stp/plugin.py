"""Synergistic tensor and pipeline parallelism computes one microbatch while another one's all-reduce is under way.

Source: Qi et al., Synergistic Tensor and Pipeline Parallelism, NeurIPS 2025, arXiv:2510.27257; the order of
blocks is that of the authors' released generator.

Two chunks per rank in a V: chunk 0 of rank r is stage r, chunk 1 is stage 2p - 1 - r, so rank 0 has the loss.
A block is what a rank computes between two waits for messages: a forward or backward alone, or an overlapped pair
of the same chunk and different microbatches. With attention and MLP as units, each with its all-reduce, pairs
run on the compute stream as

    F with B (full)     attention F, MLP I, MLP W, MLP F, attention I, attention W     (0, 1, 1, 0, 1, 1)
    F with I            attention F, MLP I, MLP F, attention I                         (0, 1)
    F with W, F with F  likewise by turns                                              (0, 1)

Order of rank r, with p ranks, m microbatches and q = p - r - 1 (F0 and F1 are forwards of chunk 0 and 1, & makes a
pair, W is the earliest weight gradient that is due)::

    2q F0,  r+1 times F0 F1,  F0 where r+1 is odd,  floor((r+1)/2) times F0&F0,  q times F1&I1 F0&W,
    2(m-3p+1)+1+2r times F&B by turns of chunk 1 and 0 (of the last r, I in place of B),
    2q+r times B0 F1&I1,  r+1 times B0 B1,  q times B0 W W,  B0,  2r W

Bubble, forward and both halves of a backward alike: (p - 1) / (6m + p - 1). A rank holds at most 3p chunks'
activations, as the paper counts them: at the ends of blocks, and without what waits for its weight gradient.
Inside of a block, and with that, they are 3p + max(1, r). 2p + 1 + r forwards have no backward beside them. It
takes m >= 3p - 1: with fewer, some rank's steady state has no forward left.

``warm_up: lean`` is our reading of the variant that the paper shows without an order: as many forwards ahead as
the steady state itself has, 2p - r of chunk 0 and r + 1 of chunk 1, hence 2p + 1 chunks on every rank::

    2q F0,  r+1 times F0 F1,  F0,  q times F1&I1 W,
    2(m-2p+r)+1 times F&B by turns (of the last r, I in place of B),
    q times B0 F1&I1,  r+1 times B0 B1,  q times B0 W,  B0,  r W

Bubble: (p - 1) / (3m + p - 1), twice the full warm-up's idle time, and (p - 1) / (2m + p - 1) where messages leave
behind their blocks; activations 2p + 1 + max(1, r) as above; from m = 2p on.

Offloading copies activations of chunk 0 to the host behind the forward's block and back one block ahead of the
backward's; those of chunk 1 are soon used.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from pptrace.plugin import Schedule, ScheduleRequest

__all__ = ["OFFER", "pptrace_schedules"]

_CHUNKS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from dataclasses import replace

    import numpy as np

    from pptrace.plugin import Placement, Schedule, with_copies
    from pptrace_stp.rows import TURNS, copied, rows_of

    ranks, microbatches = request.ranks, request.microbatches
    rows = rows_of(ranks, microbatches, lean=_is_lean(request))
    same = (rows.block[1:] == rows.block[:-1]) & (rows.block[1:] >= 0)
    overlaps = np.append(same, [False]) | np.append([False], same)
    table = Schedule.from_columns(
        Placement.v_shaped(ranks, microbatches, _CHUNKS),
        np.searchsorted(rows.rank, np.arange(ranks + 1)),
        rows.kind,
        np.where(rows.chunk == 0, rows.rank, 2 * ranks - 1 - rows.rank),
        rows.microbatch,
        pair=np.where(overlaps, rows.block, -1),
    )
    shares = [float(request.options.get(name, 0)) for name in ("offload_warm_up", "offload_steady")]
    if any(shares):
        table = with_copies(table, copied(rows, microbatches, *shares))
    return replace(table, interleave=TURNS)


def check(request: ScheduleRequest) -> None:
    """Refuse chunks that make no V, and fewer microbatches than the warm-up takes."""
    if request.chunks not in {1, _CHUNKS}:
        raise ConstraintError(
            f"stp has two chunks of the model on a rank, not {request.chunks}", nearest="2", key="parallel.vp"
        )
    fewest, lean = _fewest(request), _is_lean(request)
    if request.microbatches < fewest:
        what = "lean warm-up" if lean else "warm-up"
        instead = "" if lean or request.microbatches < 2 * request.ranks else "; warm_up: lean takes as many"
        raise ConstraintError(
            f"stp's {what} on {request.ranks} ranks takes {fewest} microbatches or more, not "
            f"{request.microbatches}{instead}",
            nearest=f"{fewest} microbatches",
            key="batch.microbatches",
        )


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    idle = request.ranks - 1
    return Fraction(idle, (3 if _is_lean(request) else 6) * request.microbatches + idle)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds at most, those that a weight gradient is due for too."""
    ranks = request.ranks
    most = 2 * ranks + 1 if _is_lean(request) else 3 * ranks
    return [Fraction(most + max(1, rank)) for rank in range(ranks)]


def options() -> type[BaseModel]:
    """Return the parameter model."""
    from pptrace_stp.rows import StpOptions

    return StpOptions


def _fewest(request: ScheduleRequest) -> int:
    return 2 * request.ranks if _is_lean(request) else 3 * request.ranks - 1


def _is_lean(request: ScheduleRequest) -> bool:
    return bool(request.options.get("warm_up") == "lean")


OFFER = ScheduleOffer(
    name="stp",
    summary="Forwards beside backwards in a V of two chunks per rank, which hides tensor-parallel communication.",
    build=build,
    options=options,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    has_pairs=True,
    constraints="Two chunks per rank; at least 3p - 1 microbatches on p ranks, or 2p with warm_up: lean.",
    source="https://arxiv.org/abs/2510.27257",
)


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    yield OFFER
