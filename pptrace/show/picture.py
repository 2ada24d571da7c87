"""The table as a picture: SVG by itself, PNG with matplotlib."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pptrace.errors import PptraceError
from pptrace.show.label import INK, LEGEND, MARK, colour, short_label

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.show.slots import Cell, Drawing

__all__ = ["svg_text", "write_png"]

_SLOT, _ROW, _LEFT, _TOP = 26, 26, 64, 34
_MOST_PNG_CELLS = 20_000


def svg_text(drawing: Drawing, title: str) -> str:
    """Return the drawing as an SVG document; every cell's full action is its tooltip."""
    width = _LEFT + drawing.length * _SLOT + 16
    below = _TOP + drawing.ranks * _ROW + 14
    size = f'width="{max(width, 420)}" height="{below + 40}"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for rank in range(drawing.ranks):
        y = _TOP + rank * _ROW
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">rank {rank}</text>')
        lines.append(
            f'<rect x="{_LEFT}" y="{y + 1}" width="{drawing.length * _SLOT}" height="{_ROW - 2}" fill="#f2f3f5"/>'
        )
    # Marked cells last, so that their frames lie on top.
    lines += [_svg_cell(cell, drawing) for cell in sorted(drawing.cells, key=lambda cell: cell.marked)]
    x = _LEFT
    for letter, meaning, fill in LEGEND:
        lines.append(f'<rect x="{x}" y="{below}" width="14" height="14" fill="{fill}"/>')
        lines.append(f'<text x="{x + 19}" y="{below + 12}">{letter} {meaning}</text>')
        x += 34 + 7 * (len(letter) + len(meaning))
    if drawing.error is not None:
        lines.append(f'<text x="{_LEFT}" y="{below + 32}" fill="{MARK}">{escape(str(drawing.error))}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _svg_cell(cell: Cell, drawing: Drawing) -> str:
    x, y, width = _LEFT + cell.start * _SLOT, _TOP + cell.rank * _ROW, cell.length * _SLOT
    frame = f'stroke="{MARK}" stroke-width="3"' if cell.marked else 'stroke="#ffffff"'
    text = f"{cell.action.stage}:{short_label(cell)}" if drawing.chunks > 1 else short_label(cell)
    size = "" if len(text) * 7 < width else f' font-size="{max(width // max(len(text), 1) * 3 // 2, 5)}"'
    return (
        f'<g><title>{cell.action}</title><rect x="{x}" y="{y + 1}" width="{width}" height="{_ROW - 2}" '
        f'fill="{colour(cell)}" {frame}/><text x="{x + width / 2:g}" y="{y + 17}" '
        f'text-anchor="middle"{size}>{text}</text></g>'
    )


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
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    if drawing.error is not None:
        axes.set_xlabel(str(drawing.error), color=MARK, loc="left", fontsize=8, wrap=True)
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
