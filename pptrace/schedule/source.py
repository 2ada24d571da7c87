"""The rows that a schedule was read from, so that what is wrong with it can be told as a cell of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.errors import TableError
from pptrace.schedule.row import Form, cells_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.errors import ScheduleError
    from pptrace.schedule.table import Schedule

__all__ = ["Source", "TableFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The rows of a file, one per rank."""

    file: str
    """As the user named it."""
    form: Form
    """How the rows are written."""
    lines: tuple[str, ...]
    """The row of each rank."""
    numbers: tuple[int, ...]
    """Each row's line in the file, counted from 1."""

    def locate(self, error: ScheduleError, row_ptr: Sequence[int]) -> TableError:
        """Return a schedule's error as that of a cell: the schedule's rows begin at ``row_ptr``."""
        if not 0 <= error.rank < len(self.lines):
            return TableError(error.message, file=self.file)
        row = self.numbers[error.rank]
        left = error.position - int(row_ptr[error.rank])
        if left < 0:
            return TableError(error.message, file=self.file, row=row)
        for column, cell in cells_of(self.lines[error.rank], self.form):
            left -= cell.count(";") + 1
            if left < 0:
                return TableError(error.message, file=self.file, row=row, column=column, cell=cell)
        return TableError(error.message, file=self.file, row=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A schedule and the rows that it was read from."""

    schedule: Schedule
    """What the rows say."""
    source: Source
    """The rows."""

    def locate(self, error: ScheduleError) -> TableError:
        """Return what is wrong with the schedule as what is wrong with a cell of the file."""
        return self.source.locate(error, self.schedule.row_ptr.tolist())
