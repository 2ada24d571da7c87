"""Charts of sweeps."""

from __future__ import annotations

from itertools import chain, product
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from pptrace.config.flags import key_of
from pptrace.config.quantities import DURATION, FLOPS, RATE, SIZE
from pptrace.errors import ConfigError, nearest
from pptrace.report.charts import CYCLE, MUTED, add_legend, draw_cells, draw_line, line_style, write_picture
from pptrace.report.numbers import unique_names
from pptrace.run.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.run.figures import Cell, Row

Panels: TypeAlias = "dict[str, list[Row]]"
"""The rows of each chart of a picture by its title, the values of its axes."""

_SCHEDULES = ("schedule", "schedule.name")
_MOST_PANELS = 24
_MORE_IS_BETTER = {"tokens_per_s", "tokens_per_s_per_gpu", "mfu", "plausible_mfu"}
_TITLES = {
    "step_ns": "step time",
    "formula_bubble": "formula bubble",
    "table_bubble": "table bubble",
    "idle": "simulated idle time",
    "tokens_per_s": "tokens per second",
    "tokens_per_s_per_gpu": "tokens per second and GPU",
    "mfu": "MFU",
    "plausible_mfu": "plausible MFU",
}
_TIME = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_SIZE = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


class ChartColumn(Struct, frozen=True, kw_only=True):
    """A column in a chart."""

    column: str
    """Its name."""
    title: str
    """Its title."""
    unit: str
    """Its unit; empty for counts."""
    scale: float
    """The unit in units of the column."""

    @property
    def more_is_better(self) -> bool:
        """Whether the largest value is the best."""
        return self.column in _MORE_IS_BETTER

    def of(self, row: Row) -> float | None:
        """Return the value of a row in this unit; None without one."""
        value = row.get(self.column)
        return float(value) / self.scale if isinstance(value, int | float) else None


class Roles(Struct, frozen=True, kw_only=True):
    """The roles of a sweep's axes in a picture."""

    x: str
    """The axis along x."""
    lines: str | None
    """The axis of lines, or of competitors for cells; None where x is the only axis."""
    panels: tuple[str, ...]
    """The axes of panels."""


def figure_of(column: str, rows: Sequence[Row]) -> ChartColumn:
    """Return a column with a suitable unit.

    Raises:
        ConfigError: no run has a value in the column.
    """
    values = [abs(value) for row in rows if isinstance(value := row.get(column), int | float)]
    if not values:
        raise ConfigError(f"{column}: no run has a value to draw", file="--y")
    title = _TITLES.get(column) or column.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
    for suffix, units in (("_ns", _TIME), ("_bytes", _SIZE)):
        if column.endswith(suffix):
            scale, unit = next((each for each in units if max(values) >= each[0]), units[-1])
            return ChartColumn(column=column, title=title, unit=unit, scale=scale)
    share = column.startswith("idle") or column.endswith(("bubble", "mfu"))
    return ChartColumn(column=column, title=title, unit="%" if share else "", scale=0.01 if share else 1)


def roles_of(over: Sequence[str], rows: Sequence[Row], x: str | None, *, numbers: bool) -> Roles:
    """Return the roles of axes: schedules are lines; ``x``, or the first numeric axis, is the x axis.

    ``numbers`` requires numbers on the x axis.

    Raises:
        ConfigError: no such axis, or none whose values are numbers.
    """
    numeric = [key for key in over if all(number_of(row.get(key)) is not None for row in rows)]
    able = numeric if numbers else [*numeric, *(key for key in over if key not in numeric)]
    if x is not None:
        matches = [key for key in over if x in {key, key_of(key)}]
        if not matches:
            raise ConfigError(f"{x} is not an axis of this sweep{nearest(x, over)}", file="--x")
        if matches[0] not in able:
            raise ConfigError(f"the values of {x} are not numbers: draw winners, or take another axis", file="--x")
        chosen = matches[0]
    else:
        free = [key for key in able if key not in _SCHEDULES]
        if not free:
            raise ConfigError("no axis has numbers: add one, such as microbatches", file="--plot")
        chosen = free[0]
    rest = [key for key in over if key != chosen]
    lines = next((key for key in rest if key in _SCHEDULES), rest[0] if rest else None)
    return Roles(x=chosen, lines=lines, panels=tuple(key for key in rest if key != lines))


def panels_of(keys: Sequence[str], rows: Sequence[Row]) -> Panels:
    """Return a panel for each combination of these axes' values, in the order of the sweep.

    Raises:
        ConfigError: more than a page holds.
    """
    values = [list(dict.fromkeys(row[key] for row in rows)) for key in keys]
    panels = {}
    for cells in product(*values):
        within = [row for row in rows if all(row[key] == cell for key, cell in zip(keys, cells, strict=True))]
        title = ", ".join(f"{key} {cell}" for key, cell in zip(keys, cells, strict=True))
        if within:
            panels[title] = within
    if len(panels) > _MOST_PANELS:
        what = " x ".join(keys)
        message = (
            f"{len(panels)} panels for {what}; the maximum is {_MOST_PANELS}: sweep fewer values for a picture"
        )
        raise ConfigError(message, file="--plot")
    return panels


def number_of(cell: Cell) -> float | None:
    """Return the number of a cell in base units; None for other text.

    >>> number_of("50 GB/s"), number_of(8), number_of("1f1b")
    (50000000000.0, 8.0, None)
    """
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, int | float):
        return float(cell)
    for dimension in (RATE, SIZE, DURATION, FLOPS):
        try:
            return float(dimension.parse(cell))
        except ConfigError:
            continue
    return None


PLOTS = ("lines", "winners", "difference")
"""Kinds of pictures."""

_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_COLUMNS = 3
_DOUBLING = 6
"""Ratio of the largest to the smallest x from which the axis is logarithmic."""
_DECADES = 50
"""The same of y."""
_MOST_TICKS = 12


class Picture(Struct, frozen=True, kw_only=True):
    """The choice of a picture."""

    plot: str = "lines"
    """``lines``, ``winners`` or ``difference``."""
    x: str | None = None
    """The x axis; by default the first numeric one."""
    y: tuple[str, ...] = ("step_ns",)
    """Columns of figures; several of one unit for lines only."""


def check_choice(picture: Picture) -> None:
    """Refuse an invalid choice.

    Raises:
        ConfigError: an unknown kind of picture or figure, or too many figures.
    """
    if picture.plot not in PLOTS:
        raise ConfigError(f"no such picture{nearest(picture.plot, PLOTS)}", file=f"--plot {picture.plot}")
    if not picture.y:
        raise ConfigError("missing: name a figure, such as step_ns", file="--y")
    for column in picture.y:
        if column not in FIGURES:
            raise ConfigError(f"{column}: no such figure{nearest(column, FIGURES)}", file="--y")
    most = len(_DASHES) if picture.plot == "lines" else 1
    if len(picture.y) > most:
        raise ConfigError(f"{len(picture.y)} figures; {picture.plot} show {most} at most", file="--y")


def check_axes(picture: Picture, over: Sequence[str], rows: Sequence[Row]) -> Roles:
    """Refuse axes that do not suit the picture; ``rows`` need the cells of axes only.

    Raises:
        ConfigError: no x axis, nothing to compare, or too many panels.
    """
    roles = roles_of(over, rows, picture.x, numbers=picture.plot != "winners")
    if picture.plot != "lines" and len(_labels_of(rows, roles.lines)) <= 1:
        raise ConfigError("there is nothing to compare: sweep two schedules or more", file="--plot")
    panels_of(roles.panels[1:] if picture.plot == "winners" else roles.panels, rows)
    return roles


def save_picture(over: Sequence[str], rows: Sequence[Row], picture: Picture, path: Path) -> None:
    """Draw a sweep's rows into a .png, .svg or .pdf file; equal rows give equal bytes.

    Raises:
        ConfigError: these axes or figures give no such picture.
        OutputError: the file cannot be written.
    """
    check_choice(picture)
    rows = [row for row in rows if not row["error"]]
    figures = [figure_of(column, rows) for column in picture.y]
    if len({figure.unit for figure in figures}) > 1:
        units = ", ".join(f"{figure.column} in {figure.unit or 'no unit'}" for figure in figures)
        raise ConfigError(f"figures of one picture have one unit, not {units}", file="--y")
    roles = check_axes(picture, over, rows)
    if picture.plot == "winners":
        _save_winners(roles, rows, figures[0], path)
        return
    panels = panels_of(roles.panels, rows)
    columns = min(len(panels), _COLUMNS)
    size = 1.4 + 3.9 * max(columns, 1.4), 1.5 + 2.9 * -(-len(panels) // columns)
    draw = _draw_lines if picture.plot == "lines" else _draw_difference
    write_picture(path, size, lambda drawn: draw(drawn, roles, figures, panels))


def _draw_lines(drawn: Any, roles: Roles, figures: Sequence[ChartColumn], panels: Panels) -> None:
    rows = [*chain(*panels.values())]
    names = _labels_of(rows, roles.lines)
    for axes, panel in zip(_axes(drawn, panels, roles), panels.values(), strict=True):
        for index, name in enumerate(names):
            for figure, dashes in zip(figures, _DASHES, strict=False):
                draw_line(axes, _points(panel, roles, name, figure).items(), index, dashes)
    unit = f" [{figures[0].unit}]" if figures[0].unit else ""
    drawn.supylabel(f"{' and '.join(figure.title for figure in figures)}{unit}")
    values = [value for row in rows for figure in figures if (value := figure.of(row))]
    if values and min(values) > 0 and max(values) / min(values) >= _DECADES:
        _decades(drawn.axes[0])
    else:
        drawn.axes[0].set_ylim(0, 1.06 * max(values, default=1))
    _legend(drawn, names, figures)


def _draw_difference(drawn: Any, roles: Roles, figures: Sequence[ChartColumn], panels: Panels) -> None:
    names, (figure,) = _labels_of([*chain(*panels.values())], roles.lines), figures
    for axes, panel in zip(_axes(drawn, panels, roles), panels.values(), strict=True):
        base = _points(panel, roles, names[0], figure)
        for index, name in enumerate(names):
            values = _points(panel, roles, name, figure).items()
            shares = [(x, 100 * (value / base[x] - 1)) for x, value in values if base.get(x)]
            draw_line(axes, shares, index)
    drawn.axes[0].yaxis.set_major_formatter("{x:+g}")
    drawn.supylabel(f"{figure.title}, difference to {names[0]} [%]")
    _legend(drawn, names, figures)


def _points(rows: Sequence[Row], roles: Roles, name: str, figure: ChartColumn) -> dict[float, float]:
    """Return the known values of one line by x."""
    return {
        number_of(row[roles.x]) or 0.0: value
        for row in rows
        if (roles.lines is None or str(row[roles.lines]) == name) and (value := figure.of(row)) is not None
    }


def _axes(drawn: Any, panels: Panels, roles: Roles) -> list[Any]:
    """Return the axes of panels, with titles and ticks along x."""
    columns = min(len(panels), _COLUMNS)
    grid = drawn.subplots(-(-len(panels) // columns), columns, sharex=True, sharey=True, squeeze=False)
    for spare in grid.flat[len(panels) :]:
        spare.set_visible(False)
        grid.flat[spare.get_subplotspec().num1 - columns].xaxis.set_tick_params(labelbottom=True)
    drawn.supxlabel(roles.x)
    for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(title, fontsize=9)
        ticks = {number_of(row[roles.x]) or 0.0: str(row[roles.x]) for row in rows}
        places = sorted(ticks)
        if places[0] > 0 and places[-1] / places[0] >= _DOUBLING:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        shown = places[:: len(places) // -_MOST_TICKS][::-1]
        axes.set_xticks(shown, [ticks[x] for x in shown])
    return list(grid.flat[: len(panels)])


def _decades(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()


def _legend(drawn: Any, names: Sequence[str], figures: Sequence[ChartColumn]) -> None:
    """Draw the legend of lines and dashes."""
    from matplotlib.lines import Line2D

    handles = []
    if len(names) > 1:
        handles += [Line2D([], [], label=name, **line_style(index)) for index, name in enumerate(names)]
    if len(figures) > 1:
        for figure, dashes in zip(figures, _DASHES, strict=False):
            handles.append(Line2D([], [], color=MUTED, lw=2, ls=dashes, label=figure.title))
    if handles:
        add_legend(drawn, handles)


def _labels_of(rows: Sequence[Row], key: str | None) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows)) if key is not None else [""]


_NONE, _TIE = "#ffffff", "#d9dde2"
_PALE = 0.5
"""Share of white in the color of a winner, for readable text."""
_LONGEST_WINNER = 24
"""The most letters of a winner's name."""
_CELL, _CELL_LETTER = 0.3, 0.075
"""Widths of the margins and of a letter in a cell, in inches."""


def _save_winners(roles: Roles, rows: Sequence[Row], figure: ChartColumn, path: Path) -> None:
    """Draw a cell per value of ``roles.x`` and of another axis, with the color and label of its best run."""
    vertical, *further = roles.panels or (None,)
    panels = panels_of(further, rows)
    columns, lines = _cells_of(rows, roles.x), _cells_of(rows, vertical)
    names = _labels_of(rows, roles.lines)

    def draw(drawn: Any) -> None:
        grid = drawn.subplots(len(panels), 1, squeeze=False, sharex=True)
        for axes, (title, panel) in zip(grid.flat, panels.items(), strict=True):
            runs = {
                (line, column): [
                    row for row in panel if row[roles.x] == column and (not vertical or row[vertical] == line)
                ]
                for line in lines
                for column in columns
            }
            cells = [[_cell(runs[line, column], names, roles, figure) for column in columns] for line in lines]
            draw_cells(axes, [str(column) for column in columns], [str(line) for line in lines if vertical], cells)
            axes.set(ylabel=vertical or "", title=title)
        best = "highest" if figure.more_is_better else "lowest"
        drawn.suptitle(f"{best} {figure.title}, and its margin over the second", x=0.01, ha="left")
        drawn.supxlabel(roles.x)

    cell_width = _CELL + _CELL_LETTER * max(map(len, unique_names(names, _LONGEST_WINNER).values()))
    size = 1.9 + max(cell_width * len(columns), 3.2), 0.9 + len(panels) * (0.75 + 0.55 * len(lines))
    write_picture(path, size, draw)


def _cell(rows: Sequence[Row], names: Sequence[str], roles: Roles, figure: ChartColumn) -> tuple[str, str]:
    """Return the text and color of a cell; runs over their memory cannot win."""
    known = [
        (value, str(row[str(roles.lines)]), row.get("fits") is not False)
        for row in rows
        if (value := figure.of(row)) is not None
    ]
    fitting = sorted(
        ((value, name) for value, name, fits in known if fits),
        key=lambda run: -run[0] if figure.more_is_better else run[0],
    )
    if not fitting:
        return "none fits" if known else "-", _NONE
    short = unique_names(names, _LONGEST_WINNER)
    best, winner = fitting[0]
    tied = [name for value, name in fitting if value == best]
    if len(tied) == 2:  # noqa: PLR2004 - two names fit
        return "\n".join(["tie", *(short[name] for name in tied)]), _TIE
    if len(tied) > 1:
        return f"tie of {len(tied)}", _TIE
    color = _paler(CYCLE[names.index(winner) % len(CYCLE)])
    return f"{short[winner]}\n{_margin(best, fitting[1][0]) if len(fitting) > 1 else 'only one'}", color


def _margin(best: float, second: float) -> str:
    if not best:
        return ""
    percent = 100 * abs(second / best - 1)
    return f"{percent:.2g}%" if percent < 10 else f"{percent:.0f}%"  # noqa: PLR2004 - two digits either way


def _paler(color: str) -> str:
    parts = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * _PALE):02x}" for part in parts)


def _cells_of(rows: Sequence[Row], key: str | None) -> list[Cell]:
    """Return the values of an axis: numbers ascending, texts in the order of the sweep."""
    if key is None:
        return [None]
    values = list(dict.fromkeys(row[key] for row in rows))
    if any(number_of(value) is None for value in values):
        return values
    return sorted(values, key=lambda value: number_of(value) or 0.0)
