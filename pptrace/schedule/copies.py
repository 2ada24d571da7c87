"""Activations on the host between forward and backward: copies out and back, put into the rows of a table.

Source of the rule: Wan et al., PipeOffload: Improving Scalability of Pipeline Parallelism with Memory
Optimization, ICML 2025, arXiv:2503.01328: copies out as early as they can be, copies back as late as they may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import GRADIENTS, Kind
from pptrace.schedule.inserted import blocks_of, inserted, rows_of, worked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from pptrace.model.columns import Int32s
    from pptrace.schedule.table import Schedule

__all__ = ["waits_for_copies", "with_copies"]


def with_copies(schedule: Schedule, chosen: NDArray[np.bool_], ahead: ArrayLike = 1) -> Schedule:
    """Return a table in which chosen activations are on the host between their forward and their backward.

    A copy out stands behind its forward. A copy back stands ``ahead`` blocks before its backward, but not before
    its copy out; it starts when the rank gets there. A block is an action or an overlapped pair. Activations that
    one action works on are copied together.

    Args:
        schedule: a table without copies of these activations.
        chosen: shape (stages, microbatches): which activations.
        ahead: how many blocks, for all or by stage and microbatch; 0 puts a copy back right before its backward.

    >>> from pptrace.schedule.table import Schedule
    >>> table = Schedule.from_rows([["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]])
    >>> with_copies(table, np.array([[True, False, False]])).rows()
    [['0F0', '0OFFLOAD0', '0F1', '0RELOAD0', '0F2', '0B0', '0B1', '0B2']]
    """
    forward, backward = rows_of(schedule, chosen, schedule.kind == Kind.F, GRADIENTS.mask(schedule.kind))
    blocks, far = blocks_of(schedule), np.broadcast_to(ahead, chosen.shape)
    out = blocks.last[blocks.of_row[forward]] + 1
    behind = np.zeros(chosen.shape, dtype=np.int64)
    number, stage, microbatch = worked(schedule, forward)
    behind[stage, microbatch] = out[number]
    first = schedule.stage[backward], schedule.microbatch[backward]
    back = blocks.first[np.maximum(blocks.of_row[backward] - far[first], 0)]
    number, stage, microbatch = worked(schedule, backward)
    np.maximum.at(back, number, behind[stage, microbatch])
    at, source = np.concatenate([out, back]), np.concatenate([forward, backward])
    kind = np.repeat(np.array([Kind.OFFLOAD, Kind.RELOAD], dtype=np.int8), [out.size, back.size])
    order = np.argsort(
        2 * at + (kind == Kind.RELOAD), kind="stable"
    )  # of two sorted runs: little more than a merge
    return inserted(schedule, at[order], kind[order], source[order])


def waits_for_copies(schedule: Schedule, behind: int) -> Int32s:
    """Return waits of ranks for their copies out, as :attr:`Schedule.waits` has them.

    What a rank computes ``behind`` blocks after a copied forward starts once the copy is done; 0 lets no block
    between. The copies back start when their ranks get there, as ever.
    """
    blocks, out = blocks_of(schedule), np.flatnonzero(schedule.kind == Kind.OFFLOAD)
    own = np.searchsorted(blocks.first, out) + behind
    there = own < blocks.first.size
    out, own = out[there], own[there]
    rows = blocks.first[own]
    same = np.searchsorted(schedule.row_ptr, rows, side="right") == np.searchsorted(
        schedule.row_ptr, out, side="right"
    )
    columns = [
        values[side[same]]
        for side in (out, rows)
        for values in (schedule.kind, schedule.stage, schedule.microbatch)
    ]
    return np.stack(columns, axis=1).astype(np.int32)
