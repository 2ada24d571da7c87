"""The program that DualPipe and DualPipeV share: what a rank does that holds a stage and its mirror image."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Schedule
from pptrace_schedules.blocks import Step, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.plugin import Int32s, Placement
    from pptrace_schedules.blocks import Rows

__all__ = ["TURNS", "program", "table"]

TURNS: Mapping[tuple[Kind, ...], tuple[int, ...]] = MappingProxyType({(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)})
"""Whose next computation a pair runs: attention F, experts I, experts W, experts F, attention I, attention W, and
so on, so that each exchange of tokens has another member's computation beside it."""


def program(depth: Int32s, size: int, microbatches: int) -> Rows:
    """Return the rows of ranks ``depth`` ranks from an end, of ``size`` from an end to the middle.

    Chunk 0 is what such a rank holds ``depth`` stages from the beginning, chunk 1 as many from the end; each runs
    ``microbatches`` microbatches, ``2 * size`` of them or more.
    """
    ahead, behind = depth + 1, size - 1 - depth
    turns, middle = microbatches - 2 * size + ahead, (behind == 0).astype(np.int32)
    half, odd = ahead // 2, depth % 2
    return rows_of(
        [
            Step(2 * behind, "F0"),
            Step(ahead, "F0 F1"),
            Step(behind, "I1 W F1"),
            Step(middle, "F0 B1 F1&B0"),
            Step(turns - middle, "F0&B1 F1&B0"),
            Step(behind, "B1 F1&B0"),
            Step(half, "B1 B0"),
            Step(1 - odd, "B1 I0"),
            Step(ahead - half - 1 + odd, "I1 I0"),
            Step(behind, "W I0"),
            Step(ahead, "W"),
        ],
        microbatches,
    )


def table(rows: Rows, placement: Placement, stage: Int32s, microbatch: Int32s) -> Schedule:
    """Return the table of a program's rows; ``stage`` and ``microbatch`` have shape (actions,)."""
    made = Schedule.from_columns(placement, rows.row_ptr, rows.kind, stage, microbatch, pair=rows.pair)
    return replace(made, interleave=TURNS)
