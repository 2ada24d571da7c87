"""The table as text: ranks by slots, in colour on a terminal, plain when piped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.show.label import INK, MARK, basic_colour, colour, full_label

if TYPE_CHECKING:
    from rich.text import Text

    from pptrace.show.slots import Cell, Drawing

__all__ = ["Window", "plain_lines", "rich_lines", "window"]

_MARGIN = 8
"""Columns before the first slot: ``rank 12 ``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a table that is shown."""

    first: int
    """First slot."""
    last: int
    """Behind the last slot."""
    slot: int
    """Columns of a slot."""
    hidden: int
    """Slots of the table that are not shown."""


def window(drawing: Drawing, width: int, first: int = 0, last: int | None = None) -> Window:
    """Return what fits ``width`` columns of the slots from ``first`` up to ``last``."""
    slot = 1 + max((-(-len(_name(cell, drawing)) // max(cell.length, 1)) for cell in drawing.cells), default=1)
    end = drawing.length if last is None else min(last, drawing.length)
    end = max(min(end, first + max((width - _MARGIN) // slot, 1)), first)
    return Window(first=first, last=end, slot=slot, hidden=drawing.length - (end - first))


def plain_lines(drawing: Drawing, seen: Window) -> list[str]:
    """Return a line per rank; idle slots are dots, a cell that goes on is filled with ``=``."""
    return [_row_text(drawing, rank, seen) for rank in range(drawing.ranks)]


def rich_lines(drawing: Drawing, seen: Window, *, basic: bool = False) -> list[Text]:
    """Return a line per rank, cells on their kind's colour; ``basic`` for terminals of sixteen colours."""
    from rich.text import Text

    lines = []
    for rank in range(drawing.ranks):
        line = Text(f"rank {rank:<{_MARGIN - 5}}")
        at = seen.first
        for cell in _visible(drawing, rank, seen):
            start, end = max(cell.start, seen.first), min(cell.start + cell.length, seen.last)
            line.append(" " * ((start - at) * seen.slot))
            width = (end - start) * seen.slot
            style = f"black on {basic_colour(cell)}" if basic else f"{INK} on {colour(cell)}"
            if cell.marked:
                style = f"bold white on {'red' if basic else MARK}"
            line.append(f"{_name(cell, drawing):^{width - 1}}"[: width - 1], style)
            line.append(" ")
            at = end
        lines.append(line)
    return lines


def _row_text(drawing: Drawing, rank: int, seen: Window) -> str:
    slots = ["." + " " * (seen.slot - 1)] * (seen.last - seen.first)
    for cell in _visible(drawing, rank, seen):
        start, end = max(cell.start, seen.first), min(cell.start + cell.length, seen.last)
        width = (end - start) * seen.slot
        text = f"{_name(cell, drawing):=<{width - 1}} "[:width] if end > start else ""
        for i in range(end - start):
            slots[start - seen.first + i] = text[i * seen.slot : (i + 1) * seen.slot]
    return f"rank {rank:<{_MARGIN - 5}}" + "".join(slots).rstrip()


def _visible(drawing: Drawing, rank: int, seen: Window) -> list[Cell]:
    return [
        cell
        for cell in drawing.cells
        if cell.rank == rank and cell.start < seen.last and cell.start + cell.length > seen.first
    ]


def _name(cell: Cell, drawing: Drawing) -> str:
    name = full_label(cell, drawing.chunks)
    return f"[{name}]" if cell.marked else name
