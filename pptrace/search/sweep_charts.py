"""Charts of sweeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from pptrace.config.flags import key_of
from pptrace.config.quantities import DURATION, FLOPS, RATE, SIZE
from pptrace.errors import ConfigError, nearest
from pptrace.report.charts import CYCLE, INK, MUTED, write_picture
from pptrace.report.numbers import unique_names
from pptrace.run.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.run.figures import Cell, Row

_SCHEDULES = ("schedule", "schedule.name")
_MOST_PANELS = 24
_MORE_IS_BETTER = {"tokens_per_s", "mfu"}
_TITLES = {
    "step_ns": "step time",
    "formula_bubble": "formula bubble",
    "table_bubble": "table bubble",
    "idle": "simulated idle time",
    "tokens_per_s": "tokens per second",
    "mfu": "MFU",
}
_TIME = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_SIZE = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The roles of a sweep's axes in a picture."""

    x: str
    """The axis along x."""
    lines: str | None
    """The axis of lines, or of competitors for cells; None where x is the only axis."""
    panels: tuple[str, ...]
    """The axes of panels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of a picture."""

    title: str
    """The values of its axes."""
    rows: tuple[Row, ...]
    """Its runs."""


def figure_of(column: str, rows: Sequence[Row]) -> Figure:
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
            return Figure(column=column, title=title, unit=unit, scale=scale)
    share = column.startswith("idle") or column.endswith("bubble") or column == "mfu"
    return Figure(column=column, title=title, unit="%" if share else "", scale=0.01 if share else 1)


def roles_of(over: Sequence[str], rows: Sequence[Row], x: str | None, *, numbers: bool) -> Roles:
    """Return the roles of axes: schedules are lines; ``x`` or the first numeric axis is the x axis.

    Args:
        over: the axes.
        rows: the runs.
        x: the requested x axis.
        numbers: whether the x axis must be numeric.

    Raises:
        ConfigError: no such axis, or none whose values are numbers.
    """
    numeric = [key for key in over if all(number_of(row.get(key)) is not None for row in rows)]
    able = numeric if numbers else [*numeric, *(key for key in over if key not in numeric)]
    if x is not None:
        alike = [key for key in over if x in {key, key_of(key)}]
        if not alike:
            raise ConfigError(f"{x} is no axis of this sweep{nearest(x, over)}", file="--x")
        if alike[0] not in able:
            raise ConfigError(f"the values of {x} are no numbers: draw winners, or take another axis", file="--x")
        chosen = alike[0]
    else:
        free = [key for key in able if key not in _SCHEDULES]
        if not free:
            raise ConfigError("no axis has numbers to draw along: sweep one, such as microbatches", file="--plot")
        chosen = free[0]
    rest = [key for key in over if key != chosen]
    lines = next((key for key in rest if key in _SCHEDULES), rest[0] if rest else None)
    return Roles(x=chosen, lines=lines, panels=tuple(key for key in rest if key != lines))


def panels_of(keys: Sequence[str], rows: Sequence[Row]) -> list[Panel]:
    """Return a panel for each combination of these axes' values, in the order of the sweep.

    Raises:
        ConfigError: more than a page holds.
    """
    values = [list(dict.fromkeys(row[key] for row in rows)) for key in keys]
    panels = []
    for cells in product(*values):
        within = [row for row in rows if all(row[key] == cell for key, cell in zip(keys, cells, strict=True))]
        title = ", ".join(f"{key} {cell}" for key, cell in zip(keys, cells, strict=True))
        panels += [Panel(title=title, rows=tuple(within))] * bool(within)
    if len(panels) > _MOST_PANELS:
        what = " x ".join(keys)
        message = f"{len(panels)} panels for {what}; the most is {_MOST_PANELS}: sweep fewer values for a picture"
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
_SERIES_MARKERS = "osD^vPX*"
_COLUMNS = 3
_DOUBLING = 6
"""Ratio of the largest to the smallest x from which the axis is logarithmic."""
_DECADES = 50
"""The same of y."""
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
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
        PptraceError: matplotlib is not installed.
    """
    check_choice(picture)
    rows = [row for row in rows if not row["error"]]
    figures = [figure_of(column, rows) for column in picture.y]
    if len({figure.unit for figure in figures}) > 1:
        units = ", ".join(f"{figure.column} in {figure.unit or 'no unit'}" for figure in figures)
        raise ConfigError(f"figures of one picture have one unit, not {units}", file="--y")
    roles = check_axes(picture, over, rows)
    if picture.plot == "winners":
        beside, *further = roles.panels or (None,)
        panels = panels_of(further, rows)
        size = winners_size(roles.x, beside, rows, len(panels))
        write_picture(path, size, lambda drawn: draw_winners(drawn, roles, beside, figures[0], panels))
        return
    panels = panels_of(roles.panels, rows)
    columns = min(len(panels), _COLUMNS)
    size = 1.4 + 3.9 * max(columns, 1.4), 1.5 + 2.9 * -(-len(panels) // columns)
    draw = _draw_lines if picture.plot == "lines" else _draw_difference
    write_picture(path, size, lambda drawn: draw(drawn, roles, figures, panels))


def _draw_lines(drawn: Any, roles: Roles, figures: Sequence[Figure], panels: Sequence[Panel]) -> None:
    names = _names(panels, roles)
    for axes, panel in zip(_axes(drawn, panels), panels, strict=True):
        for place, name in enumerate(names):
            for figure, dashes in zip(figures, _DASHES, strict=False):
                points = [(_at(row, roles), figure.of(row)) for row in panel.rows if _has_role(row, roles, name)]
                _plot(axes, points, place, dashes)
        _finish(axes, panel, roles)
    unit = f" [{figures[0].unit}]" if figures[0].unit else ""
    _label_axes(drawn, roles, f"{' and '.join(figure.title for figure in figures)}{unit}")
    values = [value for panel in panels for row in panel.rows for f in figures if (value := f.of(row))]
    if values and min(values) > 0 and max(values) / min(values) >= _DECADES:
        _decades(drawn.axes[0])
    else:
        drawn.axes[0].set_ylim(0, 1.06 * max(values, default=1))
    _legend(drawn, names, figures)


def _draw_difference(drawn: Any, roles: Roles, figures: Sequence[Figure], panels: Sequence[Panel]) -> None:
    names, (figure,) = _names(panels, roles), figures
    for axes, panel in zip(_axes(drawn, panels), panels, strict=True):
        first = {_at(row, roles): figure.of(row) for row in panel.rows if _has_role(row, roles, names[0])}
        axes.axhline(0, color=CYCLE[0], lw=2)
        for place, name in enumerate(names[1:], 1):
            points = [
                (_at(row, roles), _percent(figure.of(row), first.get(_at(row, roles))))
                for row in panel.rows
                if _has_role(row, roles, name)
            ]
            _plot(axes, points, place, "-")
        _finish(axes, panel, roles)
    drawn.axes[0].yaxis.set_major_formatter("{x:+g}")
    _label_axes(drawn, roles, f"{figure.title}, difference to {names[0]} [%]")
    _legend(drawn, names, figures, base=True)


def _axes(drawn: Any, panels: Sequence[Panel]) -> list[Any]:
    columns = min(len(panels), _COLUMNS)
    grid = drawn.subplots(-(-len(panels) // columns), columns, sharex=True, sharey=True, squeeze=False)
    for spare in grid.flat[len(panels) :]:
        spare.set_visible(False)
        grid.flat[spare.get_subplotspec().num1 - columns].xaxis.set_tick_params(labelbottom=True)
    return list(grid.flat[: len(panels)])


def _plot(axes: Any, points: Sequence[tuple[float, float | None]], place: int, dashes: Any) -> None:
    """Draw a line. The first lines are wider, so that later ones do not cover them."""
    points = sorted((x, value) for x, value in points if value is not None)
    axes.plot(
        [x for x, _ in points], [value for _, value in points], ls=dashes, zorder=2 + 0.01 * place,
        **_line_style(place),
    )  # fmt: skip


def _line_style(place: int) -> dict[str, Any]:
    color, wide = CYCLE[place % len(CYCLE)], max(3 - place, 0)
    return {
        "color": color, "lw": 1.4 + 0.6 * wide, "marker": _SERIES_MARKERS[place % len(_SERIES_MARKERS)],
        "ms": 4.5 + 1.4 * wide, "mfc": "white" if wide else color, "mew": 1.3,
    }  # fmt: skip


def _finish(axes: Any, panel: Panel, roles: Roles) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.grid(color="#eaeef2", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
    ticks = {_at(row, roles): str(row[roles.x]) for row in panel.rows}
    at = sorted(ticks)
    if at[0] > 0 and at[-1] / at[0] >= _DOUBLING:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    every = -(-len(at) // _MOST_TICKS)
    shown = at[::-every][::-1]
    axes.set_xticks(shown, [ticks[x] for x in shown])


def _decades(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()


def _label_axes(drawn: Any, roles: Roles, y: str) -> None:
    drawn.supxlabel(roles.x, fontsize=9, color=INK)
    drawn.supylabel(y, fontsize=9, color=INK)


def _legend(drawn: Any, names: Sequence[str], figures: Sequence[Figure], *, base: bool = False) -> None:
    """Draw the legend of lines and dashes; with ``base``, the first line is the reference."""
    from matplotlib.lines import Line2D

    handles = []
    if len(names) > 1:
        for place, name in enumerate(names):
            look = {"color": CYCLE[0], "lw": 2} if base and not place else _line_style(place)
            handles.append(Line2D([], [], label=name, **look))
    if len(figures) > 1:
        for figure, dashes in zip(figures, _DASHES, strict=False):
            handles.append(Line2D([], [], color=MUTED, lw=2, ls=dashes, label=figure.title))
    if handles:
        drawn.legend(
            handles=handles, loc="outside upper left", ncols=min(len(handles), 6), fontsize=9, frameon=False
        )


def _names(panels: Sequence[Panel], roles: Roles) -> list[str]:
    return _labels_of([row for panel in panels for row in panel.rows], roles.lines)


def _labels_of(rows: Sequence[Row], key: str | None) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows)) if key is not None else [""]


def _has_role(row: Row, roles: Roles, name: str) -> bool:
    return roles.lines is None or str(row[roles.lines]) == name


def _at(row: Row, roles: Roles) -> float:
    return number_of(row[roles.x]) or 0.0


def _percent(value: float | None, first: float | None) -> float | None:
    if value is None or not first:
        return None
    return math.nan if math.isinf(value) else 100 * (value / first - 1)


_NONE, _TIE = "#ffffff", "#d9dde2"
_PALE = 0.5
"""Share of white in the color of a winner, for readable text."""
_LONGEST_WINNER = 14


def winners_size(x: str, beside: str | None, rows: Sequence[Row], panels: int) -> tuple[float, float]:
    """Return the size in inches for the cells and panels."""
    across, up = len(_cells_of(rows, x)), len(_cells_of(rows, beside))
    return 1.9 + max(1.05 * across, 3.2), 0.9 + panels * (0.75 + 0.55 * up)


def draw_winners(drawn: Any, roles: Roles, beside: str | None, figure: Figure, panels: Sequence[Panel]) -> None:
    """Draw a cell per value of ``roles.x`` and ``beside``, with the color and label of its best run."""
    from matplotlib.patches import Rectangle

    every = [row for panel in panels for row in panel.rows]
    names = list(dict.fromkeys(str(row[str(roles.lines)]) for row in every))
    across, up = _cells_of(every, roles.x), _cells_of(every, beside)
    grid = drawn.subplots(len(panels), 1, squeeze=False, sharex=True)
    for axes, panel in zip(grid.flat, panels, strict=True):
        for column, value in enumerate(across):
            for line, other in enumerate(up):
                there = [row for row in panel.rows if row[roles.x] == value and _has_value(row, beside, other)]
                text, color = _cell(there, names, roles, figure)
                axes.add_patch(Rectangle((column - 0.5, line - 0.5), 1, 1, fc=color, ec="white", lw=2))
                axes.text(column, line, text, ha="center", va="center", fontsize=8, color=INK, linespacing=1.35)
        axes.set(
            xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5), xticks=range(len(across)),
            xticklabels=[str(value) for value in across], yticks=range(len(up)) if beside else [],
        )  # fmt: skip
        if beside:
            axes.set_yticklabels([str(value) for value in up])
            axes.set_ylabel(beside, fontsize=9, color=INK)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    best = "highest" if figure.more_is_better else "least"
    drawn.suptitle(
        f"{best} {figure.title}, and by how much the next is behind", x=0.01, ha="left", fontsize=10, color=INK
    )
    drawn.supxlabel(roles.x, fontsize=9, color=INK)


def _cell(rows: Sequence[Row], names: Sequence[str], roles: Roles, figure: Figure) -> tuple[str, str]:
    """Return the text and color of a cell; runs over their memory cannot win."""
    ran = [row for row in rows if figure.of(row) is not None]
    fitting = [row for row in ran if row.get("fits") is not False]
    if not fitting:
        return "none fits" if ran else "-", _NONE
    known = [(value, str(row[str(roles.lines)])) for row in fitting if (value := figure.of(row)) is not None]
    short = unique_names(names, _LONGEST_WINNER)
    known.sort(key=lambda each: -each[0] if figure.more_is_better else each[0])
    best, winner = known[0]
    tied = [name for value, name in known if value == best]
    if len(tied) > 1:
        return "\n".join(["tie", *(short[name] for name in tied[:2])]) if len(
            tied
        ) == 2 else f"tie of {len(tied)}", _TIE  # noqa: PLR2004 - two names fit
    color = _paler(CYCLE[names.index(winner) % len(CYCLE)])
    if len(known) == 1:
        return f"{short[winner]}\nalone", color
    return f"{short[winner]}\n{_margin(best, known[1][0])}", color


def _margin(best: float, second: float) -> str:
    if not best:
        return ""
    percent = 100 * abs(second / best - 1)
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"  # noqa: PLR2004 - two digits either way


def _paler(color: str) -> str:
    parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * _PALE):02x}" for part in parts)


def _cells_of(rows: Sequence[Row], key: str | None) -> list[Cell]:
    """Return the values of an axis: numbers ascending, others in the order of the sweep."""
    if key is None:
        return [None]
    values = list(dict.fromkeys(row[key] for row in rows))
    numbers = [number_of(value) for value in values]
    if any(number is None for number in numbers):
        return values
    return sorted(values, key=lambda value: number_of(value) or 0.0)


def _has_value(row: Row, key: str | None, value: Cell) -> bool:
    return key is None or row[key] == value
