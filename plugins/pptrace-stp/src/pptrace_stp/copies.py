"""Which of chunk 0's activations are copied to host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace_stp.rows import Rows

__all__ = ["copied"]

_ROUNDING = 1e-9
"""Of shares such as 0.1, whose multiples are whole but for this."""


def copied(rows: Rows, microbatches: int, warm_up: float, steady: float) -> NDArray[np.bool_]:
    """Return which activations are on the host between forward and backward, shape (stages, microbatches).

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
    return np.concatenate([chosen, np.zeros_like(chosen)])


def _spread(among: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return which of some entries of each row are a share of them, spread evenly."""
    due = np.floor(np.cumsum(among, axis=1) * share + _ROUNDING)
    chosen: NDArray[np.bool_] = among & (np.diff(due, axis=1, prepend=0) > 0)
    return chosen
