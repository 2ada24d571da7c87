"""The table as SVG: a box per action, or bands of colour where there are too many."""

from __future__ import annotations

from itertools import count
from textwrap import wrap
from typing import TYPE_CHECKING

from pptrace.model.kinds import Kind
from pptrace.present.svg import document, element, lines
from pptrace.show.label import INK, MARK, colour, legend, picture_label
from pptrace.show.together import note, pairs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from markupsafe import Markup

    from pptrace.show.slots import Cell, Drawing
    from pptrace.show.together import Together

__all__ = ["svg_text"]

_SLOT, _ROW, _LEFT, _TOP, _RIGHT = 26, 26, 64, 34, 16
_WIDEST = 6000
"""Pixels that slots are narrowed to fit, as far as they can be."""

_NARROWEST = 480
"""Pixels that the title and a legend's line may take."""

_LETTER = 7
"""Pixels of a letter."""

_LETTER_OF_NOTES = 6.5
"""Pixels of a letter of a sentence, which has narrow ones and spaces."""

_LETTERS = 12
"""The document's size of letters."""

_THIN = 4
"""Pixels of a copy's bar."""

_PALE = "#6b7480"

_SMALLEST = 6
"""Letters below this size are left out; the tooltip tells the action."""

_MOST_BOXES = 10_000
"""Cells that have a box and a tooltip of their own, some 200 bytes; beyond, a cell is a few bytes of a band."""


def svg_text(drawing: Drawing, title: str) -> str:
    """Return the drawing as an SVG document; every cell's full action is its tooltip, unless they are too many."""
    slot = min(max(_WIDEST // max(drawing.length, 1), 2), _SLOT)
    width = max(_LEFT + drawing.length * slot + _RIGHT, _NARROWEST)
    banded = len(drawing.cells) > _MOST_BOXES
    body = [*_rows(drawing, slot), *(_bands(drawing, slot) if banded else [])]
    below = _TOP + drawing.ranks * _ROW + 24
    body += _axis(drawing, slot, below - 12)
    # Marked cells last, so that their frames lie on top.
    pairs = [] if banded else pairs_of(drawing)
    paired = {cell for pair in pairs for cell in pair.members}
    boxes = sorted(drawing.cells, key=lambda cell: cell.marked)
    body += [_box(c, drawing, slot) for c in boxes if c.marked or not (banded or c.copies or c in paired)]
    body += [part for pair in pairs for part in _together(pair, drawing, slot)]
    body += [] if banded else [_bar(cell, slot) for cell in drawing.cells if cell.copies]
    keys, below = _legend(legend(drawing.cells), width, below)
    said = _too_many(drawing) if banded else note(drawing)
    notes = [(line, _PALE) for line in wrap(said, int((width - _LEFT) / _LETTER_OF_NOTES))]
    if drawing.error is not None:
        notes += [(line, MARK) for line in wrap(str(drawing.error), (width - _LEFT) // _LETTER)]
    body += keys
    body += [
        element("text", note, x=_LEFT, y=below + 12 + 16 * at, fill=fill) for at, (note, fill) in enumerate(notes)
    ]
    heading = element("text", title, x=_LEFT, y=20, font_size=14, font_weight="bold")
    return document(width, below + 6 + 16 * len(notes), INK, heading, *body)


def _too_many(drawing: Drawing) -> str:
    return f"{len(drawing.cells):,} actions are too many to name here: draw some with --slots FIRST:LAST"


def _rows(drawing: Drawing, slot: int) -> Iterator[Markup]:
    """Yield each rank's name and the empty slots behind its cells."""
    for rank in range(drawing.ranks):
        y = _TOP + rank * _ROW
        lacks = {"fill": MARK, "font_weight": "bold"} if rank == drawing.lacking[0] else {}
        yield element("text", f"rank {rank}", x=_LEFT - 8, y=y + 17, text_anchor="end", **lacks)
        yield element("rect", x=_LEFT, y=y + 1, width=drawing.length * slot, height=_ROW - 2, fill="#f2f3f5")


def _axis(drawing: Drawing, slot: int, y: int) -> Iterator[Markup]:
    """Yield the numbers of some slots, at their left edges."""
    step = next(step for base in count() for step in (10**base, 5 * 10**base) if step * slot >= 5 * _LETTER)
    for at in range(-drawing.first % step, drawing.length + 1, step):
        yield element(
            "text", str(drawing.first + at), x=_LEFT + at * slot, y=y, font_size=10, fill=_PALE,
            text_anchor="middle",
        )  # fmt: skip


def _box(cell: Cell, drawing: Drawing, slot: int) -> Markup:
    x, y, width = _LEFT + cell.start * slot, _TOP + cell.rank * _ROW, cell.length * slot
    frame = {"stroke": MARK, "stroke_width": "3"} if cell.marked else {"stroke": "#ffffff"}
    box = element("rect", x=x, y=y + 1, width=width, height=_ROW - 2, fill=colour(cell), **frame)
    text = picture_label(cell, drawing.chunks)
    parts = [element("title", str(cell.action)), box]
    letters = min(_LETTERS, width * _LETTERS // (len(text) * _LETTER))
    if letters >= _SMALLEST:
        size = {} if letters == _LETTERS else {"font_size": letters}
        parts.append(element("text", text, x=x + width / 2, y=y + 17, text_anchor="middle", **size))
    return element("g", *parts)


def _bar(cell: Cell, slot: int) -> Markup:
    """Return a copy of activations, over what is computed meanwhile."""
    top = 1 if cell.action.kind is Kind.RELOAD else _ROW - 1 - _THIN
    x, y, width = _LEFT + cell.start * slot + 1, _TOP + cell.rank * _ROW + top, cell.length * slot - 2
    bar = element("rect", x=x, y=y, width=max(width, 1), height=_THIN, fill=colour(cell))
    return element("g", element("title", str(cell.action)), bar)


def _together(pair: Together, drawing: Drawing, slot: int) -> Iterator[Markup]:
    """Yield a pair: a band per member, pale while the other computes, its label, and a frame around all."""
    top = _TOP + pair.members[0].rank * _ROW + 1
    left, width, height = _LEFT + pair.start * slot, pair.length * slot, (_ROW - 2) / len(pair.members)
    for place, (cell, turns) in enumerate(zip(pair.members, pair.turns, strict=True)):
        y, fill, text = top + place * height, colour(cell), picture_label(cell, drawing.chunks)
        white = element("rect", x=left, y=y, width=width, height=height, fill="#ffffff")
        pale = element("rect", x=left, y=y, width=width, height=height, fill=fill, fill_opacity="0.4")
        parts = [element("title", str(cell.action)), white, pale]
        parts += [
            element("rect", x=_LEFT + start * slot, y=y, width=length * slot, height=height, fill=fill)
            for start, length in turns
        ]
        letters = min(height - 2, width * _LETTERS / (len(text) * _LETTER))
        if letters >= _SMALLEST:
            middle, base = left + width / 2, y + height / 2 + letters * 0.36
            size = round(letters, 1)
            parts.append(element("text", text, x=middle, y=base, text_anchor="middle", font_size=size))
        yield element("g", *parts)
    yield element("rect", x=left, y=top, width=width, height=_ROW - 2, fill="none", stroke=INK, stroke_width="1.4")


def _bands(drawing: Drawing, slot: int) -> Iterator[Markup]:
    """Yield a thick dashed line per rank and colour; coordinates inside are slots."""
    bands: dict[tuple[int, str], list[Cell]] = {}
    for cell in drawing.cells:
        if cell.copies:
            continue
        bands.setdefault((cell.rank, colour(cell)), []).append(cell)
    paths = [
        element(
            "path", transform=f"translate({_LEFT} {_TOP + rank * _ROW + _ROW // 2})scale({slot} 1)", stroke=fill,
            d=_dashes(cells),
        )
        for (rank, fill), cells in sorted(bands.items())
    ]  # fmt: skip
    yield element("g", lines(paths), fill="none", stroke_width=_ROW - 2, shape_rendering="crispEdges")


def _dashes(cells: Iterable[Cell]) -> str:
    """Return cells as the dashes of a path, neighbours as one dash."""
    parts, at, drawn = ["M0 0"], 0, 0
    for cell in sorted(cells, key=lambda cell: cell.start):
        if cell.start > at:
            parts.append(f"h{drawn}m{cell.start - at} 0" if drawn else f"m{cell.start - at} 0")
            at, drawn = cell.start, 0
        drawn += cell.start + cell.length - at
        at = cell.start + cell.length
    return "".join([*parts, f"h{drawn}"])


def _legend(entries: dict[str, str], width: int, y: int) -> tuple[list[Markup], int]:
    """Return the legend's lines from ``y`` on, and where they end."""
    keys: list[Markup] = []
    x = _LEFT
    for meaning, fill in entries.items():
        wide = 34 + _LETTER * len(meaning)
        if x > _LEFT and x + wide > width:
            x, y = _LEFT, y + 20
        keys.append(element("rect", x=x, y=y, width=14, height=14, fill=fill))
        keys.append(element("text", meaning, x=x + 19, y=y + 12))
        x += wide
    return keys, y + 20
