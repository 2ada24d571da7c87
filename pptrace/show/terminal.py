"""The table as text: ranks by slots, in colour on a terminal, plain when piped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.model.kinds import Kind
from pptrace.show.label import INK, MARK, basic_colour, colour, full_label, picture_label

if TYPE_CHECKING:
    from rich.text import Text

    from pptrace.show.slots import Cell, Drawing

__all__ = ["Window", "copy_lines", "plain_lines", "rich_lines", "window", "windows"]

_MARGIN = 8
"""Columns before the first slot: ``rank 12 ``."""

_COPIES = {Kind.OFFLOAD: "  out", Kind.RELOAD: "  in"}
"""Copies of activations that have a line of their own below their rank's, and what stands before it."""


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
    slot = 1 + max(
        (-(-len(full_label(c, drawing.chunks)) // max(c.length, 1)) for c in drawing.cells),
        default=1,
    )
    end = drawing.length if last is None else min(last, drawing.length)
    end = max(min(end, first + max((width - _MARGIN) // slot, 1)), first)
    return Window(first=first, last=end, slot=slot, hidden=drawing.length - (end - first))


def windows(drawing: Drawing, width: int, first: int, last: int, most_lines: int) -> list[Window]:
    """Return the windows below each other that show the slots from ``first``, as many as the lines allow.

    ``hidden`` of each counts what neither it nor those before it show.
    """
    seen: list[Window] = []
    hidden = drawing.length
    lines = drawing.ranks + 1 + len({(cell.rank, cell.action.kind) for cell in drawing.cells if cell.copies})
    while not seen or (seen[-1].last < last and (len(seen) + 1) * lines <= most_lines):
        part = window(drawing, width, seen[-1].last if seen else first, last)
        hidden -= part.last - part.first
        seen.append(replace(part, hidden=hidden))
    return seen


def plain_lines(drawing: Drawing, seen: Window) -> list[str]:
    """Return a line per rank; idle slots are dots, a cell that goes on is filled with ``=``.

    A ``&`` stands between the members of an overlapped pair.
    What is wrong stands in brackets; a rank that lacks an action has a ``!``.
    """
    return [_row_text(drawing, rank, row, seen) for rank, row in enumerate(_by_rank(drawing, seen))]


def rich_lines(drawing: Drawing, seen: Window, *, basic: bool = False) -> list[Text]:
    """Return a line per rank, cells on their kind's colour; ``basic`` for terminals of sixteen colours."""
    from rich.text import Text

    lines = []
    wrong = f"bold white on {'red' if basic else MARK}"
    for rank, row in enumerate(_by_rank(drawing, seen)):
        line = Text()
        line.append(_margin(drawing, rank), "bold red" if rank == drawing.lacking[0] else "")
        at = seen.first
        joined = -1
        for cell in row:
            start, end = max(cell.start, seen.first), min(cell.start + cell.length, seen.last)
            line.append(" " * ((start - at) * seen.slot))
            if joined >= 0 and joined == cell.pair:
                line.right_crop(1)
                line.append("&", "bold")
            joined = cell.pair
            width = (end - start) * seen.slot
            style = f"black on {basic_colour(cell)}" if basic else f"{INK} on {colour(cell)}"
            name = full_label(cell, drawing.chunks)
            line.append(f"{name:^{width - 1}}"[: width - 1], wrong if cell.marked else style)
            line.append(" ")
            at = end
        lines.append(line)
    return lines


def copy_lines(drawing: Drawing, seen: Window) -> list[list[str]]:
    """Return each rank's lines of copies, out to the host and in again, each copy where it starts.

    A rank that copies nothing that way has no such line; ``+`` stands where more copies start in one slot.
    """
    lines: list[list[str]] = [[] for _ in range(drawing.ranks)]
    for kind, name in _COPIES.items():
        started: dict[int, dict[int, list[str]]] = {}
        for cell in drawing.cells:
            if cell.copies and cell.action.kind is kind:
                label = picture_label(cell, drawing.chunks)
                started.setdefault(cell.rank, {}).setdefault(cell.start, []).append(label)
        for rank, slots in started.items():
            line = name.ljust(_MARGIN)
            for slot in range(seen.first, seen.last):
                here = slots.get(slot, ["."])
                line += (here[0] + "+" * (len(here) > 1)).ljust(seen.slot)
            lines[rank].append(line.rstrip())
    return lines


def _row_text(drawing: Drawing, rank: int, row: list[Cell], seen: Window) -> str:
    margin = _margin(drawing, rank)
    line = list(margin + f"{'.':<{seen.slot}}" * (seen.last - seen.first))
    joined = -1
    for cell in row:
        start, end = max(cell.start, seen.first), min(cell.start + cell.length, seen.last)
        low, high = (len(margin) + (slot - seen.first) * seen.slot for slot in (start, end))
        name = full_label(cell, drawing.chunks)[: high - low - 1]
        line[low:high] = f"{name:=<{high - low - 1}} "
        if joined >= 0 and joined == cell.pair:
            line[low - 1] = "&"
        joined = cell.pair
        if cell.marked:
            line[low - 1], line[low + len(name)] = ("|" if line[low - 1] == "]" else "["), "]"
    return "".join(line).rstrip()


def _by_rank(drawing: Drawing, seen: Window) -> list[list[Cell]]:
    """Return each rank's cells that a window shows."""
    rows: list[list[Cell]] = [[] for _ in range(drawing.ranks)]
    for cell in drawing.cells:
        if cell.copies:
            continue
        if cell.start < seen.last and cell.start + cell.length > seen.first:
            rows[cell.rank].append(cell)
    return rows


def _margin(drawing: Drawing, rank: int) -> str:
    lacks = "!" if rank == drawing.lacking[0] else ""
    return f"rank {rank}{lacks}".ljust(_MARGIN)
