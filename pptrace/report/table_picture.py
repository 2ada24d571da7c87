"""The table as PNG or PDF, with matplotlib."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from pptrace.errors import PptraceError
from pptrace.report.table_drawing import INK, MARK, colour, legend, note, pairs_of, picture_label
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes

    from pptrace.report.table_drawing import Cell, Drawing, OverlappedPair

_MOST_CELLS = 20_000
_MOST_INCHES = 160
_PER_INCH = 11
"""Letters of the line below the slots that surely fit an inch."""

_SLOT = 0.28
"""Inches of a slot, unless a label needs more."""

_POINTS, _PAIR_POINTS = 8.0, 6.5
"""Sizes of labels, of actions and of members of a pair, where all labels fit."""

_LETTER = 0.0088
"""Inches of a digit per point of its size, in matplotlib's own font."""

_PER_LINE = 4
"""Entries of a line of the legend."""

METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Suffixes, with what would name a time or a version in each."""


def write_picture(drawing: Drawing, title: str, path: Path, suffix: str) -> None:
    """Write the drawing in the format of a suffix of :data:`METADATA`.

    Raises:
        PptraceError: matplotlib is not installed, or the table is too large for pixels.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise PptraceError(
            f"{suffix[1:].upper()} needs matplotlib: pip install matplotlib (or 'pptrace[plot]'), or write .svg"
        ) from error
    if len(drawing.cells) > _MOST_CELLS:
        name = suffix[1:].upper()
        raise PptraceError(
            f"{len(drawing.cells)} cells are too many for {name}: write .svg, or draw some with --slots"
        )
    entries = legend(drawing.cells)
    pairs = pairs_of(drawing)
    paired = {cell for pair in pairs for cell in pair.members}
    needed = _needed(drawing, pairs, paired)
    wide = min(max(drawing.length * max(_SLOT, needed) + 1.2, 7.5), _MOST_INCHES)
    shrunk = min((wide - 1.2) / max(drawing.length, 1) / needed, 1)
    columns = _columns(entries, wide)
    lines = -(-len(entries) // columns)
    label = wrap(f"slot ({said})" if (said := note(drawing)) else "slot", int((wide - 1) * _PER_INCH))
    inches = wide, drawing.ranks * 0.32 + 1.1 + max(lines - 2, 0) * 0.17 + (len(label) - 1) * 0.17
    figure = Figure(figsize=(min(inches[0], _MOST_INCHES), min(inches[1], _MOST_INCHES)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    alone = sorted(set(drawing.cells) - paired, key=lambda cell: (cell.marked, cell.rank, cell.start))
    for cell in alone:
        if not cell.copies:
            _draw_alone(axes, cell, drawing, _POINTS * shrunk)
    for pair in pairs:
        _draw_together(axes, pair, drawing, _PAIR_POINTS * shrunk)
    for cell in drawing.cells:
        if cell.copies:  # a thin bar, over what is computed meanwhile
            _draw_alone(axes, cell, drawing, _POINTS * shrunk)
    axes.set(
        xlim=(drawing.first, drawing.first + max(drawing.length, 1)), xlabel="\n".join(label),
        ylim=(drawing.ranks - 0.45, -0.55), yticks=range(drawing.ranks),
        yticklabels=[f"rank {rank}" for rank in range(drawing.ranks)],
    )  # fmt: skip
    handles = [Rectangle((0, 0), 1, 1, fc=fill, label=meaning) for meaning, fill in entries.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=8, frameon=False)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    if drawing.error is not None:
        axes.set_xlabel(str(drawing.error), color=MARK, loc="left", fontsize=8, wrap=True)
    figure.savefig(path, format=suffix[1:], dpi=110, metadata=METADATA[suffix])


def _needed(drawing: Drawing, pairs: Iterable[OverlappedPair], paired: set[Cell]) -> float:
    """Return the inches of a slot in which every label fits its action."""
    labels = [(cell, cell.length, _POINTS) for cell in drawing.cells if cell not in paired and not cell.copies]
    labels += [(cell, pair.length, _PAIR_POINTS) for pair in pairs for cell in pair.members]
    widths = [
        (len(picture_label(cell, drawing.chunks)) + 0.5) * _LETTER * points / length
        for cell, length, points in labels
        if length
    ]
    return max(widths, default=_SLOT)


def _draw_alone(axes: Axes, cell: Cell, drawing: Drawing, points: float) -> None:
    from matplotlib.patches import Rectangle

    start = drawing.first + cell.start
    if cell.copies:
        top = cell.rank + (-0.46 if cell.action.kind is Kind.RELOAD else 0.32)
        axes.add_patch(Rectangle((start + 0.05, top), 0.9, 0.14, fc=colour(cell), lw=0))
        return
    edge, line = (MARK, 2.5) if cell.marked else ("white", 0.8)
    axes.add_patch(Rectangle((start, cell.rank - 0.46), cell.length, 0.92, fc=colour(cell), ec=edge, lw=line))
    text = picture_label(cell, drawing.chunks)
    axes.text(start + cell.length / 2, cell.rank, text, ha="center", va="center", fontsize=points, color=INK)


def _columns(entries: Iterable[str], inches: float) -> int:
    """Return how many columns of a legend fit, letters and their key being as wide as they mostly are."""
    longest = max(map(len, entries), default=0)
    return min(max(int(inches / (0.062 * longest + 0.53)), 1), _PER_LINE)


def _draw_together(axes: Axes, pair: OverlappedPair, drawing: Drawing, points: float) -> None:
    """Draw a pair: a band per member, pale while the other computes, its label, and a frame around all."""
    from matplotlib.patches import Rectangle

    left, height = drawing.first + pair.start, 0.92 / len(pair.members)
    top = pair.members[0].rank - 0.46
    for place, (cell, turns) in enumerate(zip(pair.members, pair.turns, strict=True)):
        y, fill = top + place * height, colour(cell)
        axes.add_patch(Rectangle((left, y), pair.length, height, fc=fill, alpha=0.4, lw=0))
        for start, length in turns:
            axes.add_patch(Rectangle((drawing.first + start, y), length, height, fc=fill, lw=0))
        text = picture_label(cell, drawing.chunks)
        axes.text(
            left + pair.length / 2, y + height / 2, text, ha="center", va="center", fontsize=points, color=INK
        )
    axes.add_patch(Rectangle((left, top), pair.length, 0.92, fill=False, ec=INK, lw=1.1))
