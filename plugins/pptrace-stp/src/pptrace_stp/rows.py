"""Options of the schedule, its rows and their copies."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from pptrace.plugin import Kind, Parameters
from pptrace_schedules import row_patterns
from pptrace_schedules.row_patterns import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace_schedules.row_patterns import Rows

_Share = Annotated[float, Field(ge=0, le=1)]


class StpOptions(Parameters):
    """Options of the warm-up and of offloading."""

    warm_up: Literal["full", "lean"] = "full"
    """full: as many forwards ahead as keep every rank busy, 3p chunks of activations. lean: as many as the steady
    state needs, 2p + 1 chunks, with longer gaps at the end."""
    offload_warm_up: _Share = 0
    """Share of chunk 0's microbatches in the warm-up whose activations are copied to host memory; their copies
    should take less than a forward each, on average."""
    offload_steady: _Share = 0
    """The same share from the first backward of chunk 0 on; it may be larger."""


TURNS: Mapping[tuple[Kind, ...], tuple[int, ...]] = MappingProxyType({
    (Kind.F, Kind.B): (0, 1, 1, 0, 1, 1), (Kind.F, Kind.I): (0, 1), (Kind.F, Kind.W): (0, 1),
    (Kind.F, Kind.F): (0, 1),
})  # fmt: skip
"""By kinds of a pair, the order in which its actions compute units: 0 for the first action, 1 for the second. The
all-reduce of each unit overlaps with the next unit."""


def rows_of(ranks: int, microbatches: int, *, lean: bool) -> Rows:
    """Return the rows of all ranks."""
    rank = np.arange(ranks)
    later_ranks, weights = ranks - 1 - rank, 1 if lean else 2
    warm_up_forwards = 2 * ranks - rank if lean else 3 * ranks - 1 - rank
    steady_blocks = 2 * (microbatches - warm_up_forwards) + 1 - rank
    odd = steady_blocks % 2
    steps = [
        Step(2 * later_ranks, "F0"),
        Step(rank + 1, "F0 F1"),
        Step(np.ones_like(rank) if lean else odd, "F0"),
        Step(0 * rank if lean else (rank + 1) // 2, "F0&F0"),
        Step(later_ranks, "F1&I1 W" if lean else "F1&I1 F0&W"),
        Step(steady_blocks // 2, "F1&B1 F0&B0"),
        Step(odd, "F1&B1"),
        Step(odd * (rank // 2), "F0&I0 F1&I1"),
        Step((1 - odd) * (rank // 2), "F1&I1 F0&I0"),
        Step(rank % 2, "F1&I1"),
        Step(later_ranks if lean else 2 * later_ranks + rank, "B0 F1&I1"),
        Step(rank + 1, "B0 B1"),
        Step(later_ranks, "B0" + " W" * weights),
        Step(np.ones_like(rank), "B0"),
        Step(weights * rank, "W"),
    ]
    return row_patterns.rows_of(steps, microbatches)


_ROUNDING = 1e-9
"""Tolerance for multiples of shares such as 0.1, which are not exact in floating point."""


def copied(rows: Rows, microbatches: int, warm_up: float, steady: float) -> NDArray[np.bool_]:
    """Return which activations are on the host between forward and backward, shape (stages, microbatches).

    Args:
        rows: the rows of all ranks.
        microbatches: number of microbatches.
        warm_up: share of microbatches with a forward before the rank's first backward of chunk 0.
        steady: share of all later microbatches.
    """
    is_first_chunk = rows.chunk == 0
    forward = np.flatnonzero(is_first_chunk & (rows.kind == Kind.F)).reshape(-1, microbatches)
    is_backward = (rows.kind == Kind.B) | (rows.kind == Kind.I)
    backward = np.flatnonzero(is_first_chunk & is_backward).reshape(forward.shape)
    first, first_pair = backward[:, :1], rows.pair[backward[:, :1]]
    is_warm_up = (forward < first) & ((rows.pair[forward] != first_pair) | (first_pair < 0))
    chosen = _spread(is_warm_up, warm_up) | _spread(~is_warm_up, steady)
    return np.concatenate([chosen, np.zeros_like(chosen)])


def _spread(candidates: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return an evenly distributed share of the true entries of each row."""
    count = np.floor(np.cumsum(candidates, axis=1) * share + _ROUNDING)
    chosen: NDArray[np.bool_] = candidates & (np.diff(count, axis=1, prepend=0) > 0)
    return chosen
