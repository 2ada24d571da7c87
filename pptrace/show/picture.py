"""The table as a picture: SVG by itself, PNG with matplotlib."""

from __future__ import annotations

from html import escape
from itertools import count
from textwrap import wrap
from typing import TYPE_CHECKING

from pptrace.errors import PptraceError
from pptrace.show.label import INK, LEGEND, MARK, colour, short_label

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.show.slots import Cell, Drawing

__all__ = ["svg_text", "write_png"]

_SLOT, _ROW, _LEFT, _TOP = 26, 26, 64, 34
_WIDEST = 6000
"""Pixels that slots are narrowed to fit, as far as they can be."""

_LETTER = 7
"""Pixels of a letter."""

_SMALLEST = 6
"""Letters below this size are left out; the tooltip tells the action."""

_MOST_PNG_CELLS = 20_000


def svg_text(drawing: Drawing, title: str) -> str:
    """Return the drawing as an SVG document; every cell's full action is its tooltip."""
    slot = min(max(_WIDEST // max(drawing.length, 1), 2), _SLOT)
    width = max(_LEFT + drawing.length * slot + 16, 480)
    below = _TOP + drawing.ranks * _ROW + 24
    wrong = wrap(str(drawing.error), (width - _LEFT) // _LETTER) if drawing.error is not None else []
    size = f'width="{width}" height="{below + 26 + 16 * len(wrong)}"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for rank in range(drawing.ranks):
        y = _TOP + rank * _ROW
        lacks = f' fill="{MARK}" font-weight="bold"' if rank == drawing.lacking[0] else ""
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end"{lacks}>rank {rank}</text>')
        lines.append(
            f'<rect x="{_LEFT}" y="{y + 1}" width="{drawing.length * slot}" height="{_ROW - 2}" fill="#f2f3f5"/>'
        )
    lines += _svg_axis(drawing.length, slot, below - 12)
    # Marked cells last, so that their frames lie on top.
    lines += [_svg_cell(cell, drawing, slot) for cell in sorted(drawing.cells, key=lambda cell: cell.marked)]
    x = _LEFT
    for letter, meaning, fill in LEGEND:
        lines.append(f'<rect x="{x}" y="{below}" width="14" height="14" fill="{fill}"/>')
        lines.append(f'<text x="{x + 19}" y="{below + 12}">{letter} {meaning}</text>')
        x += 34 + _LETTER * (len(letter) + len(meaning))
    for at, line in enumerate(wrong):
        lines.append(f'<text x="{_LEFT}" y="{below + 32 + 16 * at}" fill="{MARK}">{escape(line)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _svg_axis(length: int, slot: int, y: int) -> list[str]:
    """Return the numbers of some slots, at their left edges."""
    step = next(step for base in count() for step in (10**base, 5 * 10**base) if step * slot >= 5 * _LETTER)
    style = 'font-size="10" fill="#6b7480" text-anchor="middle"'
    return [f'<text x="{_LEFT + at * slot}" y="{y}" {style}>{at}</text>' for at in range(0, length + 1, step)]


def _svg_cell(cell: Cell, drawing: Drawing, slot: int) -> str:
    x, y, width = _LEFT + cell.start * slot, _TOP + cell.rank * _ROW, cell.length * slot
    frame = f'stroke="{MARK}" stroke-width="3"' if cell.marked else 'stroke="#ffffff"'
    text = f"{cell.action.stage}:{short_label(cell)}" if drawing.chunks > 1 else short_label(cell)
    box = f'<rect x="{x}" y="{y + 1}" width="{width}" height="{_ROW - 2}" fill="{colour(cell)}" {frame}/>'
    letters = min(12, width * 12 // (len(text) * _LETTER))
    if letters < _SMALLEST:
        return f"<g><title>{cell.action}</title>{box}</g>"
    size = "" if letters == 12 else f' font-size="{letters}"'  # noqa: PLR2004 - the document's own size
    label = f'<text x="{x + width / 2:g}" y="{y + 17}" text-anchor="middle"{size}>{text}</text>'
    return f"<g><title>{cell.action}</title>{box}{label}</g>"


def write_png(drawing: Drawing, title: str, path: Path) -> None:
    """Write the drawing as PNG.

    Raises:
        PptraceError: matplotlib is not installed, or the table is too large for pixels.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise PptraceError("PNG needs matplotlib: pip install 'pptrace[plot]', or write .svg") from error
    if len(drawing.cells) > _MOST_PNG_CELLS:
        raise PptraceError(f"{len(drawing.cells)} cells are too many for PNG: write .svg, or fewer microbatches")
    inches = max(drawing.length * 0.28 + 1.2, 7.5), drawing.ranks * 0.32 + 1.1
    figure = Figure(figsize=(min(inches[0], 160), min(inches[1], 160)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for cell in sorted(drawing.cells, key=lambda cell: cell.marked):
        edge, line = (MARK, 2.5) if cell.marked else ("white", 0.8)
        box = Rectangle((cell.start, cell.rank - 0.46), cell.length, 0.92, fc=colour(cell), ec=edge, lw=line)
        axes.add_patch(box)
        text = f"{cell.action.stage}:{short_label(cell)}" if drawing.chunks > 1 else short_label(cell)
        axes.text(cell.start + cell.length / 2, cell.rank, text, ha="center", va="center", fontsize=8, color=INK)
    axes.set(
        xlim=(0, max(drawing.length, 1)), ylim=(drawing.ranks - 0.45, -0.55), xlabel="slot",
        yticks=range(drawing.ranks), yticklabels=[f"rank {rank}" for rank in range(drawing.ranks)],
    )  # fmt: skip
    handles = [Rectangle((0, 0), 1, 1, fc=fill, label=f"{letter} {meaning}") for letter, meaning, fill in LEGEND]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=8, frameon=False)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    if drawing.error is not None:
        axes.set_xlabel(str(drawing.error), color=MARK, loc="left", fontsize=8, wrap=True)
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
