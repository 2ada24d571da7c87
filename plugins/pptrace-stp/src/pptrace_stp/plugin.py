"""Synergistic tensor and pipeline parallelism: computation of a microbatch overlaps with another's all-reduce.

Source: Qi et al., Synergistic Tensor and Pipeline Parallelism, NeurIPS 2025, arXiv:2510.27257; the order of
blocks is that of the authors' released generator.

Two chunks per rank in a V: chunk 0 of rank r is stage r, chunk 1 is stage 2p - 1 - r, so rank 0 has the loss. A
rank waits for messages only between blocks. A block is a single forward or backward, or an overlapped pair of the
same chunk and different microbatches. The units are attention and MLP, each with its all-reduce. Pairs run on the
compute stream as

    F with B (full)     attention F, MLP I, MLP W, MLP F, attention I, attention W     (0, 1, 1, 0, 1, 1)
    F with I            attention F, MLP I, MLP F, attention I                         (0, 1)
    F with W, F with F  alternately, as above                                          (0, 1)

Order of rank r, with p ranks, m microbatches and q = p - r - 1 (F0 and F1 are forwards of chunk 0 and 1, & is a
pair, W is the earliest pending weight gradient)::

    2q F0,  r+1 times F0 F1,  F0 where r+1 is odd,  floor((r+1)/2) times F0&F0,  q times F1&I1 F0&W,
    2(m-3p+1)+1+2r times F&B by turns of chunk 1 and 0 (of the last r, I in place of B),
    2q+r times B0 F1&I1,  r+1 times B0 B1,  q times B0 W W,  B0,  2r W

Bubble, if a forward and both halves of a backward take equal times: (p - 1) / (6m + p - 1). The paper counts
activations at the ends of blocks, without pending weight gradients: at most 3p chunks per rank. Inside a block and
with pending weight gradients, the maximum is 3p + max(1, r). 2p + 1 + r forwards do not overlap with a backward.
The schedule needs m >= 3p - 1; with fewer microbatches, the steady state of some rank lacks forwards.

``warm_up: lean`` is our interpretation of a variant that the paper shows without an order. The warm-up has as many
forwards as the steady state needs, 2p - r of chunk 0 and r + 1 of chunk 1, so each rank has 2p + 1 chunks::

    2q F0,  r+1 times F0 F1,  F0,  q times F1&I1 W,
    2(m-2p+r)+1 times F&B by turns (of the last r, I in place of B),
    q times B0 F1&I1,  r+1 times B0 B1,  q times B0 W,  B0,  r W

Bubble: (p - 1) / (3m + p - 1), twice the idle time of the full warm-up, or (p - 1) / (2m + p - 1) if messages
start at the ends of blocks. Activations: 2p + 1 + max(1, r) as above. The schedule needs m >= 2p.

Offloading copies activations of chunk 0 to the host after the forward's block, and back one block before the
backward's block. Activations of chunk 1 have short lifetimes and stay.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from pptrace.plugin import Schedule, ScheduleOffer, ScheduleRequest

_CHUNKS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np
    from msgspec.structs import replace

    from pptrace.plugin import Placement, Schedule, with_copies
    from pptrace_stp.rows import TURNS, copied, rows_of

    ranks, microbatches = request.ranks, request.microbatches
    rows = rows_of(ranks, microbatches, lean=_is_lean(request))
    starts_block = np.append(True, (rows.pair[1:] != rows.pair[:-1]) | (rows.pair[1:] < 0))
    table = Schedule.from_columns(
        Placement.v_shaped(ranks, microbatches, _CHUNKS),
        rows.row_ptr,
        rows.kind,
        np.where(rows.chunk == 0, rows.row, 2 * ranks - 1 - rows.row),
        rows.microbatch,
        pair=np.where(rows.pair < 0, -1, np.cumsum(starts_block) - 1),
    )
    shares = [float(request.options.get(name, 0)) for name in ("offload_warm_up", "offload_steady")]
    if any(shares):
        table = with_copies(table, copied(rows, microbatches, *shares))
    return replace(table, interleave=TURNS)


def check(request: ScheduleRequest) -> None:
    """Raise an error for chunks that form no V, and for too few microbatches for the warm-up."""
    if request.chunks not in {1, _CHUNKS}:
        raise ConstraintError(
            f"stp has two chunks of the model on a rank, not {request.chunks}", nearest="2", key="parallel.vp"
        )
    fewest, lean = _fewest(request), _is_lean(request)
    if request.microbatches < fewest:
        warm_up = "lean warm-up" if lean else "warm-up"
        hint = (
            ""
            if lean or request.microbatches < 2 * request.ranks
            else f"; with warm_up: lean, {request.microbatches} are enough"
        )
        raise ConstraintError(
            f"stp's {warm_up} on {request.ranks} ranks takes {fewest} microbatches or more, not "
            f"{request.microbatches}{hint}",
            nearest=f"{fewest} microbatches",
            key="batch.microbatches",
        )


def bubble(request: ScheduleRequest) -> Fraction:
    """Return the idle time divided by ranks times length."""
    from fractions import Fraction

    idle = request.ranks - 1
    return Fraction(idle, (3 if _is_lean(request) else 6) * request.microbatches + idle)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the peak number of chunk activations per rank, including those for pending weight gradients."""
    from fractions import Fraction

    ranks = request.ranks
    most = 2 * ranks + 1 if _is_lean(request) else 3 * ranks
    return [Fraction(most + max(1, rank)) for rank in range(ranks)]


def _fewest(request: ScheduleRequest) -> int:
    return 2 * request.ranks if _is_lean(request) else 3 * request.ranks - 1


def _is_lean(request: ScheduleRequest) -> bool:
    return bool(request.options.get("warm_up") == "lean")


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedule."""
    from pptrace.plugin import ScheduleOffer

    yield ScheduleOffer(
        name="stp",
        summary="Forwards beside backwards in a V of two chunks per rank, which hides tensor-parallel "
        "communication.",
        build=build,
        options=lambda: import_module("pptrace_stp.rows").StpOptions,
        check=check,
        bubble=bubble,
        peak_activations=peak_activations,
        has_pairs=True,
        constraints="Two chunks per rank; at least 3p - 1 microbatches on p ranks, or 2p with warm_up: lean.",
        source="https://arxiv.org/abs/2510.27257",
    )
