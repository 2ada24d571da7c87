"""Forwards computed again by actions of their own, put into the rows of a table.

Source of the idea that they need not wait for a gradient: Liu et al., Mario: Near Zero-cost Activation
Checkpointing in Pipeline Parallelism, PPoPP 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.model.kinds import GRADIENTS, Kind
from pptrace.schedule.inserted import blocks_of, inserted, rows_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pptrace.schedule.table import Schedule

__all__ = ["with_recompute"]


def with_recompute(schedule: Schedule, chosen: NDArray[np.bool_], *, early: bool = False) -> Schedule:
    """Return a table in which chosen forwards are computed again, right before the block of their backward.

    Args:
        schedule: a table in which these forwards are not computed again.
        chosen: shape (stages, microbatches): which forwards.
        early: whether that may start before the backward's gradient is there; else it waits for it.

    >>> import numpy as np
    >>> from pptrace.schedule.table import Schedule
    >>> table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"]])
    >>> with_recompute(table, np.array([[False, True]])).rows()
    [['0F0', '0F1', '0B0', '0RECOMPUTE1', '0B1']]
    """
    (backward,) = rows_of(schedule, chosen, GRADIENTS.mask(schedule.kind))
    blocks = blocks_of(schedule)
    again = inserted(schedule, blocks.first[blocks.of_row[backward]], Kind.RECOMPUTE, backward)
    return replace(again, recompute_waits=not early)
