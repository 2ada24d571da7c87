"""One forward, one backward: the rows that 1F1B and its interleaved form share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Placement, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int32s, ScheduleRequest

__all__ = ["one_forward_one_backward"]


def one_forward_one_backward(
    request: ScheduleRequest,
    warm_up: Sequence[int],
    microbatch: Int32s,
    forward: Int32s,
    backward: Int32s,
    microbatch_back: Int32s | None = None,
    *,
    overlapped: bool = False,
) -> Schedule:
    """Return the table of rows ``F…F  F B F B …  B…B`` with ``warm_up[r]`` forwards before the turns.

    Args:
        request: the sizes; every rank runs ``chunks * microbatches`` steps forward and as many backward.
        warm_up: forwards of each rank before its first turn.
        microbatch: shape (steps,): the microbatch of each step, forward as backward.
        forward: shape (steps,): rank 0's stage at each forward step; rank ``r`` holds the ``r``-th behind it.
        backward: the same of each backward step.
        microbatch_back: the microbatch of each backward step, where backwards have an order of their own.
        overlapped: whether each turn's forward and backward are an overlapped pair.
    """
    ranks, steps = request.ranks, microbatch.size
    back_to = microbatch if microbatch_back is None else microbatch_back
    length = 2 * steps
    kind = np.full((ranks, length), Kind.F, dtype=np.int8)
    stage, microbatches = (np.empty((ranks, length), dtype=np.int32) for _ in range(2))
    pair = np.full((ranks, length), -1, dtype=np.int32)
    for rank, ahead in enumerate(warm_up):
        turns = steps - ahead
        early, late = slice(ahead), slice(length - ahead, None)
        forth, back = slice(ahead, length - ahead, 2), slice(ahead + 1, length - ahead, 2)
        kind[rank, back] = kind[rank, late] = Kind.B
        if overlapped:
            pair[rank, forth] = pair[rank, back] = rank * steps + np.arange(turns, dtype=np.int32)
        for column, f, b in ((microbatches[rank], microbatch, back_to), (stage[rank], forward, backward)):
            column[early], column[forth] = f[:ahead], f[ahead:]
            column[back], column[late] = b[:turns], b[turns:]
        stage[rank] += rank
    return Schedule.from_columns(
        Placement.looped(ranks, request.microbatches, request.chunks),
        np.arange(ranks + 1) * length,
        kind.ravel(),
        stage.ravel(),
        microbatches.ravel(),
        pair=pair.ravel(),
    )
