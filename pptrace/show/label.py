"""What a cell is called in a picture, and its colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.model.action import COMMUNICATION, Kind

if TYPE_CHECKING:
    from pptrace.show.slots import Cell

__all__ = ["INK", "LEGEND", "MARK", "basic_colour", "colour", "full_label", "short_label"]

INK = "#102030"
"""Letters on a cell."""

MARK = "#c81e1e"
"""Around a cell that is wrong."""

_COLOURS = {
    Kind.F: ("#9cc3f0", "#f5bd7a"),
    Kind.B: ("#8fd19e", "#ef9a94"),
    Kind.I: ("#8fd19e", "#ef9a94"),
    Kind.W: ("#cdebc3", "#f7cfc6"),
    Kind.RECOMPUTE: ("#d5c6ee", "#d5c6ee"),
}
"""Colours on the first and on every other route."""

_MESSAGE, _OTHER = "#dadde2", "#c9cdd4"

_BASIC = {
    Kind.F: ("blue", "yellow"),
    Kind.B: ("green", "red"),
    Kind.I: ("green", "red"),
    Kind.W: ("cyan", "magenta"),
}
"""As above, on a terminal of sixteen colours."""

LEGEND = (
    ("F", "forward", "#9cc3f0"),
    ("B/I", "backward, input gradient", "#8fd19e"),
    ("W", "weight gradient", "#cdebc3"),
)
"""Letter, meaning and colour of the usual kinds."""


def colour(cell: Cell) -> str:
    """Return a cell's colour: by kind, and by direction where units take more than one route."""
    kind = cell.action.kind
    if kind in COMMUNICATION:
        return _MESSAGE
    return _COLOURS[kind][min(cell.route, 1)] if kind in _COLOURS else _OTHER


def basic_colour(cell: Cell) -> str:
    """Return a cell's colour on a terminal of sixteen colours."""
    names = _BASIC.get(cell.action.kind)
    return names[min(cell.route, 1)] if names else "white"


def short_label(cell: Cell) -> str:
    """Return the microbatch's number, or the kind of an action that has none."""
    action = cell.action
    if action.unit < 0:
        return action.kind.name[:2]
    last = f"-{action.unit + action.span - 1}" if action.span > 1 else ""
    return f"{action.unit}{last}"


def full_label(cell: Cell, chunks: int) -> str:
    """Return kind and microbatch, with the stage in front where a rank holds several.

    Messages have an arrow: ``>3`` is sent, ``<3`` received.
    """
    action = cell.action
    letters = {Kind.SEND_F: ">", Kind.SEND_B: ">", Kind.RECV_F: "<", Kind.RECV_B: "<"}
    kind = letters.get(action.kind, action.kind.name if action.unit >= 0 else "")
    stage = f"{action.stage}" if chunks > 1 else ""
    return f"{stage}{kind}{short_label(cell)}"
