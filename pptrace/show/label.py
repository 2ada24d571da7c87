"""What a cell is called in a picture, and its colour."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from pptrace.model.kinds import KINDS, Kind, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.show.slots import Cell

__all__ = ["INK", "MARK", "basic_colour", "colour", "full_label", "legend", "picture_label", "short_label"]

INK = "#102030"
"""Letters on a cell."""

MARK = "#c81e1e"
"""Around a cell that is wrong."""

_LONGEST = 2
"""Letters of a kind's name that a label takes."""

_SENT, _RECEIVED = "\N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW}"


_DARKER = 0.84
"""Of what a colour is, on every other chunk."""


def colour(cell: Cell) -> str:
    """Return a cell's colour: by kind, by direction where there are more routes, and darker on odd chunks."""
    basic = cell.action.kind.traits.colour[min(cell.route, 1)]
    if cell.chunk % 2 == 0:
        return basic
    return "#" + "".join(f"{round(int(basic[at : at + 2], 16) * _DARKER):02x}" for at in (1, 3, 5))


def basic_colour(cell: Cell) -> str:
    """Return a cell's colour on a terminal of sixteen colours."""
    return cell.action.kind.traits.terminal_colour[min(cell.route, 1)]


def short_label(cell: Cell) -> str:
    """Return the microbatch's number, or the kind of an action that has none."""
    action = cell.action
    if action.microbatch < 0:
        return action.kind.name[:2]
    last = f"-{action.microbatch + action.span - 1}" if action.span > 1 else ""
    return f"{action.microbatch}{last}"


def picture_label(cell: Cell, chunks: int) -> str:
    """Return the microbatch, with the stage in front where a rank holds several; messages have an arrow."""
    stage = f"{cell.action.stage}:" if chunks > 1 else ""
    return f"{_arrow(cell.action.kind, _SENT, _RECEIVED)}{stage}{short_label(cell)}"


def legend(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the colour of each meaning that a picture has, in a fixed order; those of one colour together."""
    found = {(cell.action.kind, min(cell.route, 1), cell.chunk % 2): colour(cell) for cell in cells}
    meanings: dict[tuple[str, str], list[str]] = {}
    for odd, route, (kind, traits) in product(range(2), range(2), KINDS.items()):
        if traits.meaning and (kind, route, odd) in found:
            other = ", other way" if traits.colour[route] != traits.colour[0] else ""
            which = other + (", odd chunk" if odd else "")
            meanings.setdefault((found[kind, route, odd], which), []).append(traits.meaning)
    return {" or ".join(dict.fromkeys(names)) + which: fill for (fill, which), names in meanings.items()}


def _arrow(kind: Kind, sent: str, received: str) -> str:
    return {Role.SEND: sent, Role.RECEIVE: received}.get(kind.traits.role, "")


def full_label(cell: Cell, chunks: int) -> str:
    """Return kind and microbatch, with the stage in front where a rank holds several.

    Messages have an arrow: ``>3`` is sent, ``<3`` received. Of a long name stands the first letter: ``R3``.
    """
    action = cell.action
    name = action.kind.name if len(action.kind.name) <= _LONGEST else action.kind.name[0]
    kind = _arrow(action.kind, ">", "<") or (name if action.microbatch >= 0 else "")
    stage = f"{action.stage}" if chunks > 1 else ""
    return f"{stage}{kind}{short_label(cell)}"
