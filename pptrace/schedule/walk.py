"""Walk a schedule's ranks in rounds, as far as every action has what it needs, and put its messages in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.model.cells import CELL, CellColumns
from pptrace.model.columns import passing, unset
from pptrace.model.kind_table import TABLE
from pptrace.schedule.kernels.heap import Heap
from pptrace.schedule.kernels.walk import Walk, place_messages
from pptrace.schedule.neighbours import graph_of

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.schedule.table import Schedule

__all__ = ["Issued", "empty", "walk"]


class Issued(NamedTuple):
    """An issue order to be filled."""

    row_ptr: Int32s
    cells: CellColumns
    edge: Int32s


def empty(rows: int, ranks: int) -> Issued:
    """Return one with room for so many rows."""
    *cells, edge = passing(rows, *(np.int8 if name == "kind" else np.int32 for name in CELL), np.int32)
    return Issued(np.zeros(ranks + 1, dtype=np.int32), CellColumns(*cells), edge)


def walk(schedule: Schedule, out: Issued | None = None) -> tuple[int, Int32s]:
    """Walk the ranks in rounds; return the actions walked and each rank's next position.

    With ``out`` (its ``row_ptr`` set), the actions and their messages are written there.
    """
    placement, issued = schedule.placement, out or empty(0, schedule.ranks)
    state = _start(schedule.ranks, 2 * placement.stages * placement.microbatches)
    walked = run(
        place_messages,
        (
            schedule.row_ptr, schedule.cells, graph_of(placement), TABLE,
            issued.row_ptr.copy(), int(out is not None), int(schedule.has_communication),
        ),
        (state, issued.cells, issued.edge),
        work=len(schedule),
    )  # fmt: skip
    return walked, state.head


def _start(ranks: int, cells: int) -> Walk:
    """Return the state of a walk before its first round."""
    head, write, needy, edge, offset, item, time = (np.zeros(ranks, dtype=np.int32) for _ in range(7))
    return Walk(
        head=head, write=write, done=np.zeros(cells, dtype=np.int8), needy=needy, edge=edge, offset=offset,
        waiting=unset(cells), next_waiting=unset(ranks), running=np.zeros(2 * ranks, dtype=np.int32),
        woken=Heap(item=item, place=unset(ranks), time=time, size=np.zeros(1, dtype=np.int32)),
    )  # fmt: skip
