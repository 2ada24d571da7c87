"""Charts of plain columns, drawn by matplotlib: lines, bars, points and cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

INK, MUTED, LIMIT = "#1b1f24", "#8c959f", "#d55e00"
"""Colors of text, of secondary elements and of limits."""

CYCLE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f", "#000000")
"""Colors for any color vision: Okabe and Ito, Color Universal Design (2008),
https://jfly.uni-koeln.de/color/, with grey instead of yellow, which is too pale on white."""

_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata without time and version, by suffix."""

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "pptrace",  # ids in SVG are random without a salt
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.prop_cycle": f"cycler(color={list(CYCLE)})",
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.labelsize": 9,
    "figure.titlesize": 10,
    "grid.color": "#eaeef2",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8,
}
"""The style of charts; colors ``C0`` to ``C7`` are those of :data:`CYCLE`."""

_MARKERS = "osD^vPX*"
_HANDLE, _LETTER = 0.75, 0.08
"""Widths of the handle and of a letter in legends, in inches."""
_LONGEST = 150
"""The most letters of a line below a chart."""


def check_picture(path: Path) -> None:
    """Check the suffix of a picture.

    Raises:
        OutputError: another suffix than .png, .svg or .pdf.
    """
    if path.suffix.lower() not in _METADATA:
        raise OutputError(f"a picture ends in {', '.join(_METADATA)}", file=path)


def write_picture(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Write the figure that ``draw`` fills; equal drawings give equal bytes.

    Args:
        path: a .png, .svg or .pdf file.
        size: width and height in inches.
        draw: draws into a :class:`matplotlib.figure.Figure`.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
    """
    check_picture(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    suffix = path.suffix.lower()
    with replace_file(path) as temporary, mpl.rc_context():
        mpl.rcdefaults()  # a picture does not depend on the user's settings
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def look(index: int) -> dict[str, str]:
    """Return the color and the marker of a line or of points."""
    marker = _MARKERS[(index + index // len(CYCLE)) % len(_MARKERS)]
    return {"color": CYCLE[index % len(CYCLE)], "marker": marker}


def draw_points(axes: Any, points: Mapping[str, Iterable[tuple[float, float]]]) -> None:
    """Draw points of several names, each with its color and marker."""
    for index, (name, coordinates) in enumerate(points.items()):
        x, y = columns_of(coordinates)
        axes.scatter(x, y, s=26, alpha=0.8, linewidths=0, label=name, **look(index))


def draw_line(axes: Any, points: Iterable[tuple[float, float]], index: int, dashes: Any = "-") -> None:
    """Draw a line."""
    axes.plot(*columns_of(sorted(points)), ls=dashes, zorder=2 + 0.01 * index, **line_style(index))


def line_style(index: int) -> dict[str, Any]:
    """Return the style of a line and its hollow markers, for the line and for its legend."""
    return {"lw": 1.8, "ms": 6, "mfc": "white", "mew": 1.4, **look(index)}


def add_legend(figure: Any, handles: Sequence[Any]) -> None:
    """Draw a legend above the axes, in as many columns as fit the width of the figure."""
    longest = max(len(handle.get_label()) for handle in handles)
    columns = int(figure.get_figwidth() / (_HANDLE + _LETTER * longest))
    figure.legend(handles=handles, loc="outside upper left", ncols=max(min(columns, len(handles)), 1))


def draw_bars(
    axes: Any,
    names: Sequence[str],
    parts: Mapping[str, tuple[Sequence[float], str]],
    *,
    title: str,
    unit: str,
    notes: Sequence[str] = (),
    limit: tuple[float, str] | None = None,
    stacked: bool = False,
) -> None:
    """Draw horizontal bars.

    Args:
        axes: the axes.
        names: the rows.
        parts: lengths by row and a color, by name of the part.
        title: what the bars show.
        unit: the unit of their lengths.
        notes: texts at the ends of the bars, by row.
        limit: a vertical line and its name.
        stacked: whether the parts of a row form a single bar.
    """
    height = 0.6 if stacked else 0.75 / len(parts)
    left, ends = [0.0] * len(names), [0.0] * len(names)
    for index, (name, (lengths, color)) in enumerate(parts.items()):
        offset = 0 if stacked else (index - (len(parts) - 1) / 2) * height
        places = [row + offset for row in range(len(names))]
        axes.barh(places, lengths, height * 0.92, left=left, color=color, label=name)
        stops = [start + length for start, length in zip(left, lengths, strict=True)]
        ends = list(map(max, ends, stops))
        left = stops if stacked else left
    most = max(ends, default=0) or 1
    for row, note in enumerate(notes):
        axes.text(ends[row] + 0.02 * most, row, note, va="center", fontsize=9)
    if limit is not None:
        most = max(most, limit[0])
        axes.axvline(limit[0], color=LIMIT, lw=1.6, label=limit[1])
    axes.set(xlim=(0, most * (1.4 if notes else 1.08)), ylim=(len(names) - 0.45, -0.55), xlabel=unit)
    axes.set_title(title, fontweight="bold", pad=22)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    if len(parts) > 1 or limit is not None:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=3, borderaxespad=0)


def draw_cells(
    axes: Any, columns: Sequence[str], rows: Sequence[str], cells: Sequence[Sequence[tuple[str, str]]]
) -> None:
    """Draw a table of cells with text and color, the first row at the bottom."""
    from matplotlib.colors import to_rgb

    axes.imshow([[to_rgb(color) for _, color in row] for row in cells], aspect="auto", origin="lower")
    for line, row in enumerate(cells):
        for column, (text, _) in enumerate(row):
            axes.text(column, line, text, ha="center", va="center", fontsize=8, linespacing=1.35)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks([column - 0.5 for column in range(1, len(columns))], minor=True)
    axes.set_yticks([row - 0.5 for row in range(1, len(rows))], minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color="white", lw=2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def columns_of(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the coordinates of points."""
    coordinates = list(points)
    return [x for x, _ in coordinates], [y for _, y in coordinates]


def add_captions(figure: Any, heading: Sequence[str], below: Sequence[str]) -> None:
    """Write the heading above a chart, and lines of at most 150 letters below it."""
    figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=11)
    if below:
        text = "\n".join(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…" for line in below)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=8)
