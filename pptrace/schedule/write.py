"""Write a schedule as a table's text, in PyTorch's dialects and others."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import COMMUNICATION, PER_STAGE, Kind, KindSet
from pptrace.schedule.issue_order import Receive, with_messages
from pptrace.schedule.row import Form

if TYPE_CHECKING:
    from pptrace.schedule.table import Schedule

__all__ = ["Dialect", "in_dialect", "table_text"]

_NAMES = [kind.name for kind in Kind]
_INSERTED = KindSet({*COMMUNICATION, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD})
"""What PyTorch puts into a compute-only table itself, and refuses to find in one."""


class Dialect(Enum):
    """What a table holds."""

    COMPUTE = "compute"
    """Computation alone: PyTorch's ``compute_only``."""
    COMMS = "comms"
    """Computation and messages: PyTorch's ``compute_comms``."""


def table_text(schedule: Schedule, form: Form = Form.CSV) -> str:
    r"""Return a schedule as text, a line per rank; a rank without actions is one idle cell.

    >>> from pptrace.schedule.table import Schedule
    >>> table_text(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]))
    '0F0,0B0\n1F0,1B0\n'
    """
    separator, idle = (",", '""') if form is Form.CSV else (" ", "-")
    cells, pair = _cells(schedule), schedule.pair.tolist()
    rows = [cells[low:high] for low, high in pairwise(schedule.row_ptr.tolist())]
    if (schedule.pair >= 0).any():
        bounds = pairwise(schedule.row_ptr.tolist())
        rows = [_joined(row, pair[low:high]) for row, (low, high) in zip(rows, bounds, strict=True)]
    return "".join(f"{separator.join(row) or idle}\n" for row in rows)


def in_dialect(schedule: Schedule, dialect: Dialect, receive: Receive = Receive.ASAP) -> Schedule:
    """Return a schedule with what a dialect holds: messages removed, or put in place unless they are.

    The compute dialect keeps neither messages nor what else PyTorch inserts by itself
    (``UNSHARD``, ``RESHARD``, ``REDUCE_GRAD``).

    Raises:
        ScheduleError: messages are to be placed, and no order of them lets every action run.
    """
    if dialect is Dialect.COMPUTE:
        return schedule.selected(np.flatnonzero(~_INSERTED.mask(schedule.kind)))
    if schedule.has_communication:
        return schedule
    issued = with_messages(schedule, receive)
    return replace(schedule, row_ptr=issued.row_ptr, **issued.cells._asdict())


def _cells(schedule: Schedule) -> list[str]:
    """Return every action's text, overlapped pairs taken apart."""
    kinds, stages, microbatches = schedule.kind.tolist(), schedule.stage.tolist(), schedule.microbatch.tolist()
    cells = [f"{s}{_NAMES[k]}{u}" for k, s, u in zip(kinds, stages, microbatches, strict=True)]
    for row in np.flatnonzero((schedule.span > 1) | PER_STAGE.mask(schedule.kind)).tolist():
        cells[row] = str(schedule.action(row))
    awaited = schedule.awaited()
    for row, own in enumerate(zip(kinds, stages, microbatches, strict=True)) if awaited else ():
        cells[row] += "".join(f"@{one}" for one in awaited.get(own, ()))
    return cells


def _joined(cells: list[str], pair: list[int]) -> list[str]:
    """Return the cells of a row, neighbours of one overlapped pair as one."""
    row: list[str] = []
    members: list[str] = []
    for position, cell in enumerate(cells):
        number = pair[position]
        if number < 0:
            row.append(cell)
            continue
        members.append(cell)
        if position + 1 == len(cells) or pair[position + 1] != number:
            row.append(f"({';'.join(members)})OVERLAP_F_B")
            members = []
    return row
