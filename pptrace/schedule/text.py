"""Schedule tables in files: CSV as PyTorch reads and writes it, or text with one rank per line.

A row of CSV is a rank and a cell an action; an empty cell is an idle step, which a table does not keep.
Text has blanks between its cells; its empty lines and those that begin with ``#`` are skipped.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from pptrace.errors import ScheduleError, TableError
from pptrace.limits.reading import is_named_pipe
from pptrace.model.cells import CellColumns
from pptrace.schedule.infer import infer_placement
from pptrace.schedule.row import Form, parse_row
from pptrace.schedule.source import Source, TableFile
from pptrace.schedule.table import Schedule

__all__ = ["load_table", "parse_table", "read_table"]

_LARGEST = 1 << 30
"""Bytes; some 100 million actions."""

_ENDS = re.compile(r"\r\n|\n|\r")
_FORMS = {".csv": Form.CSV, ".txt": Form.TEXT}


def read_table(path: Path | str) -> Schedule:
    """Read a table: as its suffix says (``.csv``, ``.txt``), else CSV where there are commas.

    Raises:
        TableError: the file cannot be read, or a cell is no action (row, column, cell).
    """
    return load_table(path).schedule


def load_table(path: Path | str) -> TableFile:
    """Read a table and keep its rows, for errors; raises as :func:`read_table`."""
    path = Path(path)
    return parse_table(_text(path), path, _FORMS.get(path.suffix.lower()))


def parse_table(text: str, file: Path | str = "", form: Form | None = None) -> TableFile:
    r"""Read the text of a table, as CSV where there is a comma unless ``form`` says what it is.

    >>> parse_table("0F0,,0B0\n1F0,1B0\n").schedule.rows()
    [['0F0', '0B0'], ['1F0', '1B0']]

    Raises:
        TableError: a cell is no action, or a row is blank.
    """
    lines = _ENDS.split(text)
    form = form or (Form.CSV if "," in text else Form.TEXT)
    numbers = _rank_lines(lines, form, str(file))
    rows, waits = [], []
    for number in numbers:
        try:
            cells, asked = parse_row(lines[number - 1], form)
            rows.append(cells)
            waits.append(asked)
        except TableError as error:
            raise TableError(error.message, file=file, row=number, column=error.column, cell=error.cell) from None
    source = Source(
        file=str(file), form=form, lines=tuple(lines[number - 1] for number in numbers), numbers=tuple(numbers)
    )
    schedule, told = _schedule(rows, source), np.concatenate(waits)
    return TableFile(schedule=replace(schedule, waits=(told,)) if told.size else schedule, source=source)


def _text(path: Path) -> str:
    try:
        if is_named_pipe(path):
            raise TableError("is a pipe: save what it gives to a file first", file=path)
        if path.exists() and not (path.is_file() or path.is_fifo()):
            raise TableError("not a file: name a table (.csv or .txt)", file=path)
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise TableError("larger than 1 GiB: no schedule table is", file=path)
        raw = path.read_bytes()
    except OSError as error:
        raise TableError(f"cannot be read: {(error.strerror or str(error)).lower()}", file=path) from None
    except ValueError:
        raise TableError("cannot be read: no file has such a name", file=repr(str(path))) from None
    if b"\0" in raw:
        raise TableError("not a text file: expected one row of actions per rank", file=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"not UTF-8 (byte 0x{raw[error.start]:02x}): save it as UTF-8", file=path, row=row
        ) from None


def _rank_lines(lines: list[str], form: Form, file: str) -> list[int]:
    """Return the numbers of the lines that are ranks."""
    written = [number for number, line in enumerate(lines, 1) if line.strip()]
    if form is Form.TEXT:
        written = [number for number in written if not lines[number - 1].lstrip().startswith("#")]
    if not written:
        raise TableError("no actions: write one row of actions per rank, such as 0F0,0B0", file=file)
    if form is Form.CSV and written[-1] > len(written):
        blank = next(row for row, number in enumerate(written, 1) if row != number)
        message = 'the row is blank, and each row is a rank: remove it, or write "" for a rank without actions'
        raise TableError(message, file=file, row=blank)
    return written


def _schedule(rows: list[CellColumns], source: Source) -> Schedule:
    ptr = np.cumsum([0, *(len(row.kind) for row in rows)], dtype=np.int64)
    cells = CellColumns(
        *(np.fromiter(chain.from_iterable(column), np.int32) for column in zip(*rows, strict=True))
    )
    try:
        placement = infer_placement(ptr, cells)
    except ScheduleError as error:
        raise source.locate(error, ptr.tolist()) from None
    pairs = np.array([max(row.pair, default=-1) + 1 for row in rows])
    before = np.repeat(np.cumsum(pairs) - pairs, np.diff(ptr))
    return Schedule.of_cells(
        placement, ptr, cells._replace(pair=np.where(cells.pair < 0, -1, cells.pair + before))
    )
