"""Read one row of a table: whole where every cell is plainly written, cell by cell where one is not."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from pptrace.errors import TableError
from pptrace.model.action import parse_action
from pptrace.model.cells import CellColumns, cell_columns, waits_of
from pptrace.model.kinds import PER_STAGE, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.model.action import Action
    from pptrace.model.columns import Int32s

__all__ = ["Form", "cells_of", "parse_row"]


class Form(Enum):
    """How the cells of a row are separated."""

    CSV = "csv"
    """By commas; a cell between two commas with nothing in it is idle."""
    TEXT = "text"
    """By blanks; ``-`` is idle."""


_MICROBATCH_KINDS = "|".join(sorted((k.name for k in Kind if k not in PER_STAGE), key=len, reverse=True))
_STAGE_KINDS = "|".join(sorted((k.name for k in PER_STAGE), key=len, reverse=True))
_KINDS = {kind.name: int(kind) for kind in Kind}
_PLAIN = rf"[0-9]{{1,9}}(?:(?:{_MICROBATCH_KINDS})[0-9]{{1,9}}(?:\+[1-9][0-9]{{0,8}})?|(?:{_STAGE_KINDS}))"
_CELL = rf"(?:{_PLAIN}|\({_PLAIN}(?:;{_PLAIN})*\)OVERLAP_F_B)"
_ROW = {
    Form.CSV: re.compile(rf"(?:[ \t]*{_CELL}?[ \t]*,)*+[ \t]*{_CELL}?[ \t]*"),
    Form.TEXT: re.compile(rf"[ \t]*(?:{_CELL}[ \t]+)*+{_CELL}?"),
}
_TOKEN = re.compile(rf"(\()?([0-9]+)({_MICROBATCH_KINDS}|{_STAGE_KINDS})([0-9]*)(?:\+([0-9]+))?(\))?")
_NO_WAITS = waits_of([])
_TEXT_CELL = re.compile(r"\([^()]*\)\S*|\S+")


def parse_row(line: str, form: Form) -> tuple[CellColumns, Int32s]:
    """Read one row and what its actions wait for, as :func:`waits_of` has it; its overlapped pairs count from 0.

    >>> parse_row("0F0,,(0F1;1B0)OVERLAP_F_B", Form.CSV)[0].pair
    [-1, 0, 0]

    Raises:
        TableError: a cell is no action (its column is named).
    """
    if _ROW[form].fullmatch(line) is None:
        actions = [_parse_at(cell, column) for column, cell in cells_of(line, form)]
        return cell_columns(actions), waits_of(actions)
    found = _TOKEN.findall(line)
    if not found:
        return cell_columns([]), _NO_WAITS
    opens, stages, kinds, microbatches, spans, closes = zip(*found, strict=True)
    cells = CellColumns(
        kind=[_KINDS[kind] for kind in kinds],
        stage=[int(stage) for stage in stages],
        microbatch=[int(microbatch) if microbatch else -1 for microbatch in microbatches],
        span=[int(span) if span else 1 for span in spans],
        pair=_pairs(opens, closes) if "(" in line else [-1] * len(kinds),
    )
    return cells, _NO_WAITS


def cells_of(line: str, form: Form) -> list[tuple[int, str]]:
    """Return the cells of a row that are not idle, each with its column, counted from 1.

    >>> cells_of('0F0, ,"0F1"', Form.CSV)
    [(1, '0F0'), (3, '0F1')]

    """
    if form is Form.TEXT:
        cells = _TEXT_CELL.findall(line)
        return [(column, cell) for column, cell in enumerate(cells, 1) if cell != "-"]
    # No action has a comma or a quote in it, so a quoted cell is its inside.
    cells = [_unquoted(cell.strip()) for cell in line.split(",")]
    return [(column, cell) for column, cell in enumerate(cells, 1) if cell]


def _unquoted(cell: str) -> str:
    return cell[1:-1].strip() if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _pairs(opens: Iterable[str], closes: Iterable[str]) -> list[int]:
    pair: list[int] = []
    number, inside = -1, False
    for opening, closing in zip(opens, closes, strict=True):
        if opening:
            number, inside = number + 1, True
        pair.append(number if inside else -1)
        inside = inside and not closing
    return pair


def _parse_at(cell: str, column: int) -> Action:
    try:
        return parse_action(cell)
    except TableError as error:
        short = cell if len(cell) <= _SHOWN else f"{cell[:_SHOWN]}..."
        hint = "; separate cells by commas" if ";" in cell and "(" not in cell else ""
        raise TableError(error.message + hint, column=column, cell=short) from None


_SHOWN = 60
