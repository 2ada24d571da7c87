"""One forward, one input gradient: the rows that zb-h1, zb-h2 and interleaved-zb share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int32s, Int64s, Placement

__all__ = ["one_forward_one_input_gradient"]


def one_forward_one_input_gradient(
    placement: Placement, ahead: Sequence[int], late: Sequence[int], steps: tuple[Int32s, Int32s, Int32s]
) -> Schedule:
    """Return the table of rows ``F…F  F I F I …  F I W F I W …  I W I W …  W…W``.

    Args:
        placement: stage ``s`` is on rank ``s`` mod ranks.
        ahead: forwards of each rank before its turns of one forward and one input gradient.
        late: how many input gradients of each rank come before its first weight gradient.
        steps: each of shape (steps,): the microbatch of each step, forward as backward; rank 0's stage at each
            forward step, and at each backward step. Rank ``r`` holds the ``r``-th behind it.
    """
    microbatch, forward, backward = steps
    ranks, count = placement.ranks, microbatch.size
    length = 3 * count
    shape = (ranks, length)
    kind, stage, microbatches = (
        np.empty(shape, dtype=np.int8),
        *(np.empty(shape, dtype=np.int32) for _ in range(2)),
    )
    for rank in range(ranks):
        places = _places(count, min(ahead[rank], count), late[rank])
        for which, at, own in zip((Kind.F, Kind.I, Kind.W), places, (forward, backward, backward), strict=True):
            kind[rank, at], stage[rank, at], microbatches[rank, at] = which, own + rank, microbatch
    return Schedule.from_columns(
        placement, np.arange(ranks + 1) * length, kind.ravel(), stage.ravel(), microbatches.ravel()
    )


def _places(count: int, ahead: int, late: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return where in a row the forwards, the input gradients and the weight gradients stand."""
    turn = np.arange(count)
    weights_before = np.maximum(turn - late, 0)
    forward, weight = turn.copy(), turn + 2 * count
    forward[ahead:] = (ahead + 2 * turn + weights_before)[: count - ahead]
    backward = ahead + turn + np.minimum(turn + 1, count - ahead) + weights_before
    weight[: max(count - late, 0)] = backward[late:] + 1
    return forward, backward, weight
