"""What a cell is called in a picture, and its colour."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from pptrace.model.action import COMMUNICATION, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.show.slots import Cell

__all__ = ["INK", "MARK", "basic_colour", "colour", "full_label", "legend", "picture_label", "short_label"]

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

_ACTIVATION, _GRADIENT, _OTHER = "#dbe5f0", "#dce9df", "#c9cdd4"
"""Messages forward, messages backward, and what else there is."""

_BASIC = {
    Kind.F: ("blue", "yellow"),
    Kind.B: ("green", "red"),
    Kind.I: ("green", "red"),
    Kind.W: ("cyan", "magenta"),
}
"""As above, on a terminal of sixteen colours."""

_SENT, _RECEIVED = "\N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW}"

_MEANING = {
    Kind.F: "F forward",
    Kind.B: "B backward",
    Kind.I: "I input gradient",
    Kind.W: "W weight gradient",
    Kind.RECOMPUTE: "recompute",
    Kind.SEND_F: f"{_SENT} {_RECEIVED} activations sent, received",
    Kind.RECV_F: f"{_SENT} {_RECEIVED} activations sent, received",
    Kind.SEND_B: f"{_SENT} {_RECEIVED} gradients sent, received",
    Kind.RECV_B: f"{_SENT} {_RECEIVED} gradients sent, received",
}
"""What a legend calls the kinds."""

_ARROW = {Kind.SEND_F: _SENT, Kind.SEND_B: _SENT, Kind.RECV_F: _RECEIVED, Kind.RECV_B: _RECEIVED}


def colour(cell: Cell) -> str:
    """Return a cell's colour: by kind, and by direction where units take more than one route."""
    kind = cell.action.kind
    if kind in COMMUNICATION:
        return _ACTIVATION if kind in {Kind.SEND_F, Kind.RECV_F} else _GRADIENT
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


def picture_label(cell: Cell, chunks: int) -> str:
    """Return the microbatch, with the stage in front where a rank holds several; messages have an arrow."""
    stage = f"{cell.action.stage}:" if chunks > 1 else ""
    return f"{_ARROW.get(cell.action.kind, '')}{stage}{short_label(cell)}"


def legend(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the colour of each meaning that a picture has, in a fixed order."""
    found = {(cell.action.kind, min(cell.route, 1)): colour(cell) for cell in cells}
    entries: dict[str, str] = {}
    for route, kind in product(range(2), _MEANING):
        if (kind, route) in found:
            fill = found[kind, route]
            way = "" if fill == _COLOURS.get(kind, (fill,))[0] else ", other way"
            entries[_MEANING[kind] + way] = fill
    return entries


def full_label(cell: Cell, chunks: int) -> str:
    """Return kind and microbatch, with the stage in front where a rank holds several.

    Messages have an arrow: ``>3`` is sent, ``<3`` received.
    """
    action = cell.action
    letters = {Kind.SEND_F: ">", Kind.SEND_B: ">", Kind.RECV_F: "<", Kind.RECV_B: "<"}
    kind = letters.get(action.kind, action.kind.name if action.unit >= 0 else "")
    stage = f"{action.stage}" if chunks > 1 else ""
    return f"{stage}{kind}{short_label(cell)}"
