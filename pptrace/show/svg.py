"""The table as SVG: a box per action, or bands of colour where there are too many."""

from __future__ import annotations

from html import escape
from itertools import count
from textwrap import wrap
from typing import TYPE_CHECKING

from pptrace.show.label import INK, MARK, colour, legend, picture_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pptrace.show.slots import Cell, Drawing

__all__ = ["svg_text"]

_SLOT, _ROW, _LEFT, _TOP, _RIGHT = 26, 26, 64, 34, 16
_WIDEST = 6000
"""Pixels that slots are narrowed to fit, as far as they can be."""

_NARROWEST = 480
"""Pixels that the title and a legend's line may take."""

_LETTER = 7
"""Pixels of a letter."""

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
    boxes = sorted(drawing.cells, key=lambda cell: cell.marked)
    body += [_box(cell, drawing, slot) for cell in boxes if cell.marked or not banded]
    keys, below = _legend(legend(drawing.cells), width, below)
    notes = [f'<text x="{_LEFT}" y="{below + 12}" fill="#6b7480">{_too_many(drawing)}</text>'] if banded else []
    below += 16 * len(notes)
    told = wrap(str(drawing.error), (width - _LEFT) // _LETTER) if drawing.error is not None else []
    for at, line in enumerate(told):
        notes.append(f'<text x="{_LEFT}" y="{below + 12 + 16 * at}" fill="{MARK}">{escape(line)}</text>')
    size = f'width="{width}" height="{below + 6 + 16 * len(told)}"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    return "\n".join([*head, *body, *keys, *notes, "</svg>", ""])


def _too_many(drawing: Drawing) -> str:
    return f"{len(drawing.cells):,} actions are too many to name here: draw some with --slots FIRST:LAST"


def _rows(drawing: Drawing, slot: int) -> Iterator[str]:
    """Yield each rank's name and the empty slots behind its cells."""
    for rank in range(drawing.ranks):
        y = _TOP + rank * _ROW
        lacks = f' fill="{MARK}" font-weight="bold"' if rank == drawing.lacking[0] else ""
        yield f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end"{lacks}>rank {rank}</text>'
        yield f'<rect x="{_LEFT}" y="{y + 1}" width="{drawing.length * slot}" height="{_ROW - 2}" fill="#f2f3f5"/>'


def _axis(drawing: Drawing, slot: int, y: int) -> Iterator[str]:
    """Yield the numbers of some slots, at their left edges."""
    step = next(step for base in count() for step in (10**base, 5 * 10**base) if step * slot >= 5 * _LETTER)
    style = 'font-size="10" fill="#6b7480" text-anchor="middle"'
    for at in range(-drawing.first % step, drawing.length + 1, step):
        yield f'<text x="{_LEFT + at * slot}" y="{y}" {style}>{drawing.first + at}</text>'


def _box(cell: Cell, drawing: Drawing, slot: int) -> str:
    x, y, width = _LEFT + cell.start * slot, _TOP + cell.rank * _ROW, cell.length * slot
    frame = f'stroke="{MARK}" stroke-width="3"' if cell.marked else 'stroke="#ffffff"'
    text = picture_label(cell, drawing.chunks)
    box = f'<rect x="{x}" y="{y + 1}" width="{width}" height="{_ROW - 2}" fill="{colour(cell)}" {frame}/>'
    letters = min(12, width * 12 // (len(text) * _LETTER))
    if letters < _SMALLEST:
        return f"<g><title>{cell.action}</title>{box}</g>"
    size = "" if letters == 12 else f' font-size="{letters}"'  # noqa: PLR2004 - the document's own size
    label = f'<text x="{x + width / 2:g}" y="{y + 17}" text-anchor="middle"{size}>{text}</text>'
    return f"<g><title>{cell.action}</title>{box}{label}</g>"


def _bands(drawing: Drawing, slot: int) -> Iterator[str]:
    """Yield a thick dashed line per rank and colour; coordinates inside are slots."""
    bands: dict[tuple[int, str], list[Cell]] = {}
    for cell in drawing.cells:
        bands.setdefault((cell.rank, colour(cell)), []).append(cell)
    yield f'<g fill="none" stroke-width="{_ROW - 2}" shape-rendering="crispEdges">'
    for (rank, fill), cells in sorted(bands.items()):
        place = f'transform="translate({_LEFT} {_TOP + rank * _ROW + _ROW // 2})scale({slot} 1)"'
        yield f'<path {place} stroke="{fill}" d="{_dashes(cells)}"/>'
    yield "</g>"


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


def _legend(entries: dict[str, str], width: int, y: int) -> tuple[list[str], int]:
    """Return the legend's lines from ``y`` on, and where they end."""
    lines, x = [], _LEFT
    for meaning, fill in entries.items():
        wide = 34 + _LETTER * len(meaning)
        if x > _LEFT and x + wide > width:
            x, y = _LEFT, y + 20
        lines.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{fill}"/>')
        lines.append(f'<text x="{x + 19}" y="{y + 12}">{meaning}</text>')
        x += wide
    return lines, y + 20
