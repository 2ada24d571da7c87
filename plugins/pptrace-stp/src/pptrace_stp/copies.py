"""Copies to host memory and back, put between a row's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind
from pptrace_stp.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["with_copies"]

_ROUNDING = 1e-9
"""Of shares such as 0.1, whose multiples are whole but for this."""


def with_copies(rows: Rows, microbatches: int, warm_up: float, steady: float) -> Rows:
    """Return rows in which some of chunk 0's activations are on the host between forward and backward.

    A copy out stands behind the forward's block, a copy back one block ahead of the backward's.

    Args:
        rows: the rows of all ranks.
        microbatches: how many there are.
        warm_up: the share of those whose forwards come before a rank's first backward of chunk 0.
        steady: the share of the others.
    """
    below = rows.chunk == 0
    forward = np.flatnonzero(below & (rows.kind == Kind.F)).reshape(-1, microbatches)
    backward = np.flatnonzero(below & ((rows.kind == Kind.B) | (rows.kind == Kind.I))).reshape(forward.shape)
    early = rows.block[forward] < rows.block[backward[:, :1]]
    chosen = _spread(early, warm_up) | _spread(~early, steady)
    out, back = forward[chosen], backward[chosen]
    # Around a block: what comes back for the next one, the block, what goes out.
    moment = np.concatenate([3 * rows.block + 1, 3 * rows.block[out] + 2, 3 * rows.block[back] - 3])
    order = np.argsort(moment, kind="stable")
    source = np.concatenate([np.arange(rows.kind.size), out, back])[order]
    kind = np.concatenate([rows.kind, np.full(out.size, Kind.OFFLOAD), np.full(back.size, Kind.RELOAD)])[order]
    block = np.where(order < rows.kind.size, rows.block[source], -1)
    rank, chunk, microbatch = (column[source] for column in (rows.rank, rows.chunk, rows.microbatch))
    return Rows(rank, kind.astype(np.int8), chunk, microbatch, block.astype(np.int32))


def _spread(among: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return which of some entries of each row are a share of them, spread evenly."""
    due = np.floor(np.cumsum(among, axis=1) * share + _ROUNDING)
    chosen: NDArray[np.bool_] = among & (np.diff(due, axis=1, prepend=0) > 0)
    return chosen
